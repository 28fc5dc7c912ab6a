/* The peer registers its buffer anew and does not tell the other side, which goes on with the old rkey.
 * expects: access-refused: is gone
 * remedy: use the rkey that the peer
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *from = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	void *bytes = some(calloc(1, 4096));
	struct ibv_mr *to = some(ibv_reg_mr(pair.pd, bytes, 4096, REMOTE));
	struct ibv_sge list = piece(from, 0, 64);
	struct ibv_send_wr wr = one_sided(1, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	wait_good(pair.a.sent, 1);
	wait_placed(&pair);
	zero(ibv_dereg_mr(to));
	to = some(ibv_reg_mr(pair.pd, bytes, 4096, REMOTE));
	wr.wr_id = 2;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	wait_any(pair.a.sent);
	wait_broken(&pair);
	end_region(from);
	zero(ibv_dereg_mr(to));
	free(bytes);
	close_pair(&pair);
	return 0;
}
