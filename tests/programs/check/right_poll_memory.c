/* The target polls the last byte of its memory instead of a completion queue, and clears it for the next message.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *from = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *to = new_region(pair.pd, 4096, REMOTE);
	volatile char *last = (char *)to->addr + 63;
	for (int i = 0; i < 16; i++) {
		memset(from->addr, i + 1, 64);
		struct ibv_sge list = piece(from, 0, 64);
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
		zero(ibv_post_send(pair.a.qp, &wr, &bad));
		for (long end = now_ms() + LONG_MS; *last != i + 1;)
			if (now_ms() > end)
				return 1;
		*last = 0;
		wait_good(pair.a.sent, 1);
	}
	end_region(from);
	end_region(to);
	close_pair(&pair);
	return 0;
}
