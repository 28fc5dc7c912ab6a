/* Two queue pairs take receives from one shared queue. Receives that are left go with the queue.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.with_srq = 1});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 8; i++) {
		struct ibv_sge list = piece(mr, 1024 + 64 * i, 64);
		struct ibv_recv_wr wr = {.wr_id = i, .sg_list = &list, .num_sge = 1}, *bad;
		zero(ibv_post_srq_recv(pair.srq, &wr, &bad));
	}
	for (int i = 0; i < 3; i++) {
		post_send(pair.a.qp, i, mr, 0, 64);
		wait_good(pair.b.received, 1);
		post_send(pair.b.qp, i, mr, 0, 64);
		wait_good(pair.a.received, 1);
	}
	wait_good(pair.a.sent, 3);
	wait_good(pair.b.sent, 3);
	close_end(&pair.a);
	close_end(&pair.b);
	pair.a.id = pair.b.id = NULL;
	zero(ibv_destroy_srq(pair.srq));
	pair.srq = NULL;
	end_region(mr);
	close_pair(&pair);
	return 0;
}
