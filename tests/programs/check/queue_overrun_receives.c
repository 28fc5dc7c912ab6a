/* A completion queue of four entries belongs to a receive queue of eight. Eight messages arrive before the first poll.
 * expects: completion-queue-overrun: 4 entries
 * remedy: completion queue
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 8, .entries = 4});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	for (int i = 0; i < 8; i++)
		post_receive(pair.b.qp, i, mr, 2048 + i * 64, 64);
	for (int i = 0; i < 8; i++) {
		post_send(pair.a.qp, i, mr, 0, 64);
		wait_good(pair.a.sent, 1);
	}
	wait_arrived(&pair, mr);
	// A real adapter has lost the queue by now; here, the program may find all eight.
	struct ibv_wc wc;
	for (int i = 0; i < 8 && comes(pair.b.received, &wc, SHORT_MS); i++)
		;
	end_region(mr);
	close_pair(&pair);
	return 0;
}
