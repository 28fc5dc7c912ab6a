/* A memory window is bound, used, bound elsewhere, used again, and deallocated after the last completion.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *under = new_region(pair.pd, 8192, REMOTE | IBV_ACCESS_MW_BIND);
	struct ibv_mr *into = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *window = some(ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1));
	for (int i = 0; i < 2; i++) {
		struct ibv_mw_bind bind = {.wr_id = 11, .send_flags = IBV_SEND_SIGNALED};
		bind.bind_info = (struct ibv_mw_bind_info){.mr = under, .addr = (uintptr_t)under->addr + 4096 * i, .length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_READ};
		zero(ibv_bind_mw(pair.b.qp, window, &bind));
		wait_good(pair.b.sent, 1);
		struct ibv_sge list = piece(into, 0, 64);
		struct ibv_send_wr wr = one_sided(12, IBV_WR_RDMA_READ, &list, under, 4096 * i), *bad;
		wr.wr.rdma.rkey = window->rkey;
		zero(ibv_post_send(pair.a.qp, &wr, &bad));
		wait_good(pair.a.sent, 1);
	}
	zero(ibv_dealloc_mw(window));
	end_region(under);
	end_region(into);
	close_pair(&pair);
	return 0;
}
