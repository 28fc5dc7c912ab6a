/* A message that comes before the arming is found by the poll after it. The armed queue is then destroyed unused.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.with_events = 1});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_wc wc;
	post_receive(pair.b.qp, 1, mr, 2048, 64);
	if (ibv_poll_cq(pair.b.received, 1, &wc) != 0)
		return 1;
	post_send(pair.a.qp, 1, mr, 0, 64);
	wait_good(pair.a.sent, 1);
	zero(ibv_req_notify_cq(pair.b.received, 0));
	wait_good(pair.b.received, 1);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
