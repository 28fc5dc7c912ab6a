/* Every fourth Write is signalled, and its completion is polled before the eight slots of the send queue are used again.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 8});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	struct ibv_sge list = piece(mr, 0, 8);
	int under_way = 0;
	for (int i = 1; i <= 64; i++) {
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, mr, 2048), *bad;
		wr.send_flags = i % 4 ? 0 : IBV_SEND_SIGNALED;
		if (under_way == 8) {
			wait_good(pair.a.sent, 1);
			under_way -= 4;
		}
		zero(ibv_post_send(pair.a.qp, &wr, &bad));
		under_way++;
	}
	wait_good(pair.a.sent, 2);
	wait_placed(&pair);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
