/* Two regions over the same bytes, with different rights: one for the program itself, one for its peer.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	static char bytes[8192];
	struct ibv_mr *mine = some(ibv_reg_mr(pair.pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_mr *theirs = some(ibv_reg_mr(pair.pd, bytes + 4096, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ));
	struct ibv_sge list = piece(mine, 0, 64);
	struct ibv_send_wr wr = one_sided(1, IBV_WR_RDMA_READ, &list, theirs, 0), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	wait_good(pair.a.sent, 1);
	zero(ibv_dereg_mr(theirs));
	zero(ibv_dereg_mr(mine));
	close_pair(&pair);
	return 0;
}
