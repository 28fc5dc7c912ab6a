/* Every eighth Write is signalled, but the send queue has four slots: no completion frees one in time.
 * expects: unsignalled-forever: 4 ... 0x5
 * remedy: max_send_wr requests
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 4});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	struct ibv_sge list = piece(mr, 0, 8);
	for (int i = 1; i <= 16; i++) {
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, mr, 2048), *bad;
		wr.send_flags = i % 8 ? 0 : IBV_SEND_SIGNALED;
		int error, tries = 0;
		while ((error = ibv_post_send(pair.a.qp, &wr, &bad)) == ENOMEM && tries++ < 1000) /* here */
			usleep(1000);
		if (error)
			break;
		if (i % 8 == 0)
			wait_good(pair.a.sent, 1);
	}
	// A Write may still be on its way to the region.
	close_end(&pair.a);
	close_end(&pair.b);
	pair.a.id = pair.b.id = NULL;
	end_region(mr);
	close_pair(&pair);
	return 0;
}
