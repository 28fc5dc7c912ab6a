/* A helper allocates a protection domain for each buffer: the lkey means nothing to the queue pair.
 * expects: access-refused: 0x1 ... protection domain 3
 * remedy: protection domain of the queue pair
 */
#include "common.h"

static struct ibv_mr *new_buffer(struct ibv_context *context)
{
	return new_region(some(ibv_alloc_pd(context)), 4096, IBV_ACCESS_LOCAL_WRITE);
}

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_buffer(pair.context);
	struct ibv_pd *pd = mr->pd;
	struct ibv_sge list = piece(mr, 0, 64);
	struct ibv_send_wr wr = request(1, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	wait_any(pair.a.sent);
	end_region(mr);
	zero(ibv_dealloc_pd(pd));
	close_pair(&pair);
	return 0;
}
