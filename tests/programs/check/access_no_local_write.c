/* Receives need IBV_ACCESS_LOCAL_WRITE. The region has no right at all.
 * expects: access-refused: 0x4 ... LOCAL_WRITE
 * remedy: IBV_ACCESS_LOCAL_WRITE
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *from = new_region(pair.pd, 4096, 0);
	struct ibv_mr *into = new_region(pair.pd, 4096, 0);
	struct ibv_sge list = piece(into, 0, 64);
	struct ibv_recv_wr wr = {.wr_id = 4, .sg_list = &list, .num_sge = 1}, *bad;
	zero(ibv_post_recv(pair.b.qp, &wr, &bad)); /* here */
	post_send(pair.a.qp, 1, from, 0, 64);
	wait_any(pair.b.received);
	wait_any(pair.a.sent);
	end_region(from);
	end_region(into);
	close_pair(&pair);
	return 0;
}
