/* A message fills its receive, a shorter one does not, and an empty one needs no memory at all.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_recv_wr nothing = {.wr_id = 3}, *bad_receive;
	struct ibv_send_wr empty = request(3, IBV_WR_SEND, NULL, IBV_SEND_SIGNALED), *bad;
	empty.num_sge = 0;
	post_receive(pair.b.qp, 1, mr, 2048, 200);
	post_receive(pair.b.qp, 2, mr, 3072, 200);
	zero(ibv_post_recv(pair.b.qp, &nothing, &bad_receive));
	post_send(pair.a.qp, 1, mr, 0, 200);
	post_send(pair.a.qp, 2, mr, 0, 10);
	zero(ibv_post_send(pair.a.qp, &empty, &bad));
	wait_good(pair.a.sent, 3);
	wait_good(pair.b.received, 3);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
