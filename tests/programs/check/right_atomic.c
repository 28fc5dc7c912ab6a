/* Two clients of a counter: fetch-and-add with the right for it, on eight aligned bytes.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *into = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *counter = new_region(pair.pd, 4096, REMOTE | IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_sge list = piece(into, 0, 8);
	for (int i = 0; i < 4; i++) {
		struct ibv_send_wr wr = request(i, IBV_WR_ATOMIC_FETCH_AND_ADD, &list, IBV_SEND_SIGNALED), *bad;
		wr.wr.atomic.remote_addr = (uintptr_t)counter->addr;
		wr.wr.atomic.rkey = counter->rkey;
		wr.wr.atomic.compare_add = 1;
		zero(ibv_post_send(pair.a.qp, &wr, &bad));
		wait_good(pair.a.sent, 1);
		if (*(uint64_t *)into->addr != (uint64_t)i)
			return 1;
	}
	end_region(counter);
	end_region(into);
	close_pair(&pair);
	return 0;
}
