/* The program gives the pages of a buffer back to the system while a Write from it is under way.
 * expects: buffer-freed: request 0x3 ... 1048576 bytes
 * remedy: before its memory is freed
 */
#include "common.h"

#define LENGTH (1 << 20)

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *from = new_region(pair.pd, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *to = new_region(pair.pd, LENGTH, REMOTE);
	struct ibv_sge list = piece(from, 0, LENGTH);
	struct ibv_send_wr wr = one_sided(3, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	munmap(from->addr, LENGTH);
	wait_any(pair.a.sent);
	zero(ibv_dereg_mr(from));
	// The Write may still be on its way to the other region.
	close_end(&pair.a);
	close_end(&pair.b);
	pair.a.id = pair.b.id = NULL;
	end_region(to);
	close_pair(&pair);
	return 0;
}
