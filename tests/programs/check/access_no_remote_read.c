/* The region permits remote Writes, and the program reads from it.
 * expects: access-refused: REMOTE_READ
 * remedy: IBV_ACCESS_REMOTE_READ
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *into = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *from = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_sge list = piece(into, 0, 64);
	struct ibv_send_wr wr = one_sided(1, IBV_WR_RDMA_READ, &list, from, 0), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	wait_any(pair.a.sent);
	end_region(from);
	end_region(into);
	close_pair(&pair);
	return 0;
}
