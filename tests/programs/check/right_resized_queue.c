/* A completion queue of two entries grows to eight before eight receives complete.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 8, .entries = 2});
	zero(ibv_resize_cq(pair.b.received, 8));
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	for (int i = 0; i < 8; i++)
		post_receive(pair.b.qp, i, mr, 2048 + i * 64, 64);
	for (int i = 0; i < 8; i++) {
		post_send(pair.a.qp, i, mr, 0, 64);
		wait_good(pair.a.sent, 1);
	}
	wait_arrived(&pair, mr);
	wait_good(pair.b.received, 8);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
