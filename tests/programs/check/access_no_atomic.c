/* A fetch-and-add on a region for Reads and Writes: atomics need a right of their own.
 * expects: access-refused: REMOTE_ATOMIC
 * remedy: IBV_ACCESS_REMOTE_ATOMIC
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *into = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *counter = new_region(pair.pd, 4096, REMOTE);
	struct ibv_sge list = piece(into, 0, 8);
	struct ibv_send_wr wr = request(1, IBV_WR_ATOMIC_FETCH_AND_ADD, &list, IBV_SEND_SIGNALED), *bad;
	wr.wr.atomic.remote_addr = (uintptr_t)counter->addr;
	wr.wr.atomic.rkey = counter->rkey;
	wr.wr.atomic.compare_add = 1;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	wait_any(pair.a.sent);
	end_region(counter);
	end_region(into);
	close_pair(&pair);
	return 0;
}
