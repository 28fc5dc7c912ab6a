/* The receive comes a moment after the message: rnr_retry is there for this.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_send(pair.a.qp, 1, mr, 0, 64);
	usleep(20000);
	post_receive(pair.b.qp, 1, mr, 2048, 64);
	wait_good(pair.b.received, 1);
	wait_good(pair.a.sent, 1);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
