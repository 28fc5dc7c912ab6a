/* The program gives an offset in place of an address, as with memory that is addressed from zero.
 * expects: access-refused: 0x40
 * remedy: keep the address and the length within the region
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *from = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *to = new_region(pair.pd, 4096, REMOTE);
	struct ibv_sge list = piece(from, 0, 64);
	struct ibv_send_wr wr = one_sided(1, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
	wr.wr.rdma.remote_addr = 64;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	wait_any(pair.a.sent);
	wait_broken(&pair);
	end_region(from);
	end_region(to);
	close_pair(&pair);
	return 0;
}
