/* The buffers are registered in a protection domain of their own, the queue pairs belong to another one.
 * expects: access-refused: protection domain
 * remedy: protection domain of the queue pair
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_pd *buffers = some(ibv_alloc_pd(pair.context));
	struct ibv_mr *from = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *to = new_region(buffers, 4096, REMOTE);
	struct ibv_sge list = piece(from, 0, 64);
	struct ibv_send_wr wr = one_sided(1, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	wait_any(pair.a.sent);
	wait_broken(&pair);
	end_region(from);
	end_region(to);
	zero(ibv_dealloc_pd(buffers));
	close_pair(&pair);
	return 0;
}
