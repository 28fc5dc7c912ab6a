/* Two buffers in turn: the program fills one while the other is sent.
 * correct
 */
#include "common.h"

#define HALF (1 << 16)

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 2});
	struct ibv_mr *from = new_region(pair.pd, 2 * HALF, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *to = new_region(pair.pd, 2 * HALF, REMOTE);
	for (int i = 0; i < 20; i++) {
		size_t half = i % 2 * HALF;
		if (i >= 2)
			wait_good(pair.a.sent, 1);
		memset((char *)from->addr + half, i, HALF);
		struct ibv_sge list = piece(from, half, HALF);
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, to, half), *bad;
		zero(ibv_post_send(pair.a.qp, &wr, &bad));
	}
	wait_good(pair.a.sent, 2);
	wait_placed(&pair);
	end_region(from);
	end_region(to);
	close_pair(&pair);
	return 0;
}
