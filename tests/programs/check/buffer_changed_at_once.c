/* The program clears its buffer right after ibv_post_send, though the adapter may not have read it yet.
 * expects: buffer-changed: request 0x7
 * remedy: completion
 */
#include "common.h"

#define LENGTH (1 << 20)

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *from = new_region(pair.pd, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *to = new_region(pair.pd, LENGTH, REMOTE);
	memset(from->addr, 'a', LENGTH);
	struct ibv_sge list = piece(from, 0, LENGTH);
	struct ibv_send_wr wr = one_sided(7, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	memset(from->addr, 0, LENGTH);
	wait_good(pair.a.sent, 1);
	wait_placed(&pair);
	end_region(from);
	end_region(to);
	close_pair(&pair);
	return 0;
}
