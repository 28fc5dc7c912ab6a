/* A region that is addressed from zero: here, offsets in place of addresses are right.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *from = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	static char bytes[4096];
	struct ibv_mr *to = some(ibv_reg_mr(pair.pd, bytes, sizeof bytes, REMOTE | IBV_ACCESS_ZERO_BASED));
	strcpy(from->addr, "text");
	struct ibv_sge list = piece(from, 0, 64);
	struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, &list, IBV_SEND_SIGNALED), *bad;
	wr.wr.rdma.remote_addr = 64;
	wr.wr.rdma.rkey = to->rkey;
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	wait_good(pair.a.sent, 1);
	wait_placed(&pair);
	if (strcmp(bytes + 64, "text"))
		return 1;
	zero(ibv_dereg_mr(to));
	end_region(from);
	close_pair(&pair);
	return 0;
}
