/* Completion, deregistration, and only then the pages go back to the system. New pages at the same place are another region.
 * correct
 */
#include "common.h"

#define LENGTH (1 << 20)

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *to = new_region(pair.pd, LENGTH, REMOTE);
	for (int i = 0; i < 4; i++) {
		struct ibv_mr *from = new_region(pair.pd, LENGTH, IBV_ACCESS_LOCAL_WRITE);
		memset(from->addr, i + 1, LENGTH);
		struct ibv_sge list = piece(from, 0, LENGTH);
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
		zero(ibv_post_send(pair.a.qp, &wr, &bad));
		wait_good(pair.a.sent, 1);
		end_region(from);
	}
	wait_placed(&pair);
	end_region(to);
	close_pair(&pair);
	return 0;
}
