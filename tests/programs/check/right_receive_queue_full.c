/* The program posts receives until the queue is full: the refusal is looked at, and nothing depends on it.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 8});
	struct ibv_mr *mr = new_region(pair.pd, 1 << 20, IBV_ACCESS_LOCAL_WRITE);
	int posted = 0;
	for (;;) {
		struct ibv_sge list = piece(mr, 64 * (posted + 1), 64);
		struct ibv_recv_wr wr = {.wr_id = posted, .sg_list = &list, .num_sge = 1}, *bad;
		int error = ibv_post_recv(pair.b.qp, &wr, &bad);
		if (error == ENOMEM)
			break;
		if (error || posted > 10000)
			return 1;
		posted++;
	}
	for (int i = 0; i < posted && i < 8; i++)
		post_send(pair.a.qp, i, mr, 0, 64);
	wait_good(pair.b.received, 8);
	wait_good(pair.a.sent, 8);
	close_end(&pair.b);
	pair.b.id = NULL;
	end_region(mr);
	close_pair(&pair);
	return 0;
}
