/* A Read brings bytes, and a Send behind it passes them on: without IBV_SEND_FENCE the Send may leave before the bytes are there.
 * profile: strict
 * expects: not-on-strict: IBV_SEND_FENCE
 * remedy: fence
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 8192, REMOTE);
	post_receive(pair.b.qp, 1, mr, 6144, 64);
	struct ibv_sge list = piece(mr, 0, 64);
	struct ibv_send_wr read = one_sided(1, IBV_WR_RDMA_READ, &list, mr, 4096), *bad;
	struct ibv_send_wr send = request(2, IBV_WR_SEND, &list, IBV_SEND_SIGNALED);
	zero(ibv_post_send(pair.a.qp, &read, &bad));
	zero(ibv_post_send(pair.a.qp, &send, &bad)); /* here */
	wait_good(pair.a.sent, 2);
	wait_good(pair.b.received, 1);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
