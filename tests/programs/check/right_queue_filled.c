/* The send queue is filled to its last slot, and each slot is used again as soon as its completion was polled.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 4, .signal_all = 1});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	struct ibv_sge list = piece(mr, 0, 8);
	for (int i = 0; i < 32; i++) {
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, mr, 2048), *bad;
		wr.send_flags = 0;
		if (i >= 4)
			wait_good(pair.a.sent, 1);
		zero(ibv_post_send(pair.a.qp, &wr, &bad));
	}
	wait_good(pair.a.sent, 4);
	wait_placed(&pair);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
