/* The program counts arrived messages by a word in memory, and never polls the completion queue of its eight receives: it has four entries.
 * expects: completion-queue-overrun: 4 entries ... has held ... completions
 * remedy: create the completion queue with room for all outstanding requests
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
	end_region(mr);
	close_pair(&pair);
	return 0;
}
