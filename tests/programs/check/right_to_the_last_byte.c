/* A Write to the last byte of the peer's region, and a Write of nothing at its end.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *from = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	char bytes[100];
	struct ibv_mr *to = some(ibv_reg_mr(pair.pd, bytes, sizeof bytes, REMOTE));
	struct ibv_sge list = piece(from, 0, 100);
	struct ibv_send_wr wr = one_sided(1, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	wait_good(pair.a.sent, 1);
	wr = one_sided(2, IBV_WR_RDMA_WRITE, NULL, to, 100);
	wr.num_sge = 0;
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	wait_good(pair.a.sent, 1);
	wait_placed(&pair);
	zero(ibv_dereg_mr(to));
	end_region(from);
	close_pair(&pair);
	return 0;
}
