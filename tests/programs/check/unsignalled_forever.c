/* The program wants no completions and signals none of its Writes. No slot of the send queue is ever free again.
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
		wr.send_flags = 0;
		int error, tries = 0;
		while ((error = ibv_post_send(pair.a.qp, &wr, &bad)) == ENOMEM && tries++ < 1000) /* here */
			usleep(1000);
		if (error)
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
