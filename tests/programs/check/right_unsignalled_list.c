/* A list of four Writes, of which only the last is signalled.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 4});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	struct ibv_sge list = piece(mr, 0, 8);
	for (int round = 0; round < 8; round++) {
		struct ibv_send_wr wr[4], *bad;
		for (int i = 0; i < 4; i++) {
			wr[i] = one_sided(i, IBV_WR_RDMA_WRITE, &list, mr, 2048 + 8 * i);
			wr[i].send_flags = i == 3 ? IBV_SEND_SIGNALED : 0;
			wr[i].next = i == 3 ? NULL : &wr[i + 1];
		}
		zero(ibv_post_send(pair.a.qp, wr, &bad));
		wait_good(pair.a.sent, 1);
	}
	wait_placed(&pair);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
