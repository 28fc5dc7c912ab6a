/* The program signals every 16th of its Writes, and its send queue has 8 slots. It gives up at the first ENOMEM.
 * expects: unsignalled-forever: 8 ... 0x8
 * remedy: IBV_SEND_SIGNALED
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 8});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	struct ibv_sge list = piece(mr, 0, 8);
	for (int i = 0; i < 20; i++) {
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, mr, 2048), *bad;
		wr.send_flags = i % 16 == 15 ? IBV_SEND_SIGNALED : 0;
		if (ibv_post_send(pair.a.qp, &wr, &bad)) /* here */
			break;
	}
	// A Write may still be on its way to the region.
	close_end(&pair.a);
	close_end(&pair.b);
	pair.a.id = pair.b.id = NULL;
	end_region(mr);
	close_pair(&pair);
	return 0;
}
