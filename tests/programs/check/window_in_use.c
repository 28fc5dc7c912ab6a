/* A memory window is deallocated while a Read through it is under way.
 * expects: window-in-use: request 0xc
 * also: access-refused
 * remedy: completion
 */
#include "common.h"

#define LENGTH (1 << 20)

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *under = new_region(pair.pd, LENGTH, REMOTE | IBV_ACCESS_MW_BIND);
	struct ibv_mr *into = new_region(pair.pd, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mw *window = some(ibv_alloc_mw(pair.pd, IBV_MW_TYPE_1));
	struct ibv_mw_bind bind = {.wr_id = 11, .send_flags = IBV_SEND_SIGNALED};
	bind.bind_info = (struct ibv_mw_bind_info){.mr = under, .addr = (uintptr_t)under->addr, .length = LENGTH, .mw_access_flags = IBV_ACCESS_REMOTE_READ};
	zero(ibv_bind_mw(pair.b.qp, window, &bind));
	wait_good(pair.b.sent, 1);
	struct ibv_sge list = piece(into, 0, LENGTH);
	struct ibv_send_wr wr = one_sided(12, IBV_WR_RDMA_READ, &list, under, 0), *bad;
	wr.wr.rdma.rkey = window->rkey;
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	zero(ibv_dealloc_mw(window)); /* here */
	wait_any(pair.a.sent);
	end_region(under);
	end_region(into);
	close_pair(&pair);
	return 0;
}
