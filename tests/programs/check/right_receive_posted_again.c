/* A server posts each buffer again as soon as its message was read, with the same wr_id.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 4});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 4; i++)
		post_receive(pair.b.qp, i, mr, 1024 + 64 * i, 64);
	for (int i = 0; i < 40; i++) {
		post_send(pair.a.qp, i, mr, 0, 64);
		struct ibv_wc wc = wait_good(pair.b.received, 1);
		post_receive(pair.b.qp, wc.wr_id, mr, 1024 + 64 * wc.wr_id, 64);
		wait_good(pair.a.sent, 1);
	}
	// Receives that nobody needs any more go with the queue pair, before their memory.
	close_end(&pair.b);
	pair.b.id = NULL;
	end_region(mr);
	close_pair(&pair);
	return 0;
}
