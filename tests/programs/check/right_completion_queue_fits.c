/* The completion queue has an entry for each of eight receives. All of them complete before the first poll.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 8, .entries = 8});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 8; i++)
		post_receive(pair.b.qp, i, mr, 2048 + i * 64, 64);
	for (int i = 0; i < 8; i++) {
		post_send(pair.a.qp, i, mr, 0, 64);
		wait_good(pair.a.sent, 1);
	}
	wait_good(pair.b.received, 8);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
