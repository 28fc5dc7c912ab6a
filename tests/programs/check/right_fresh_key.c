/* The peer registers its buffer anew and tells the new rkey with a message.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	char bytes[4096];
	for (int i = 0; i < 4; i++) {
		struct ibv_mr *to = some(ibv_reg_mr(pair.pd, bytes, sizeof bytes, REMOTE));
		uint32_t *told = mr->addr, *heard = told + 256;
		*told = to->rkey;
		post_receive(pair.a.qp, i, mr, 1024, 4);
		post_send(pair.b.qp, i, mr, 0, 4);
		wait_good(pair.b.sent, 1);
		wait_good(pair.a.received, 1);
		struct ibv_sge list = piece(mr, 2048, 64);
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
		wr.wr.rdma.rkey = *heard;
		zero(ibv_post_send(pair.a.qp, &wr, &bad));
		wait_good(pair.a.sent, 1);
		wait_placed(&pair);
		zero(ibv_dereg_mr(to));
	}
	end_region(mr);
	close_pair(&pair);
	return 0;
}
