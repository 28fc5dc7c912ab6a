/* A function registers memory, posts a Write from it, and deregisters it without waiting for the completion.
 * expects: region-in-use: request 0x9
 * remedy: completion
 * also: access-refused
 */
#include "common.h"

#define LENGTH (1 << 20)

static void write_from(struct pair *pair, void *bytes, struct ibv_mr *to)
{
	struct ibv_mr *mr = some(ibv_reg_mr(pair->pd, bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_sge list = piece(mr, 0, LENGTH);
	struct ibv_send_wr wr = one_sided(9, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
	zero(ibv_post_send(pair->a.qp, &wr, &bad));
	zero(ibv_dereg_mr(mr)); /* here */
}

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	void *bytes = some(calloc(1, LENGTH));
	struct ibv_mr *to = new_region(pair.pd, LENGTH, REMOTE);
	write_from(&pair, bytes, to);
	wait_any(pair.a.sent);
	free(bytes);
	end_region(to);
	close_pair(&pair);
	return 0;
}
