/* Two processes exchange key and address. The server sends them in network order, and the client takes them as they come.
 * expects: access-refused: key
 * remedy: rkey
 */
#include "common.h"
#include <endian.h>

int main(void)
{
	struct pair pair = connect_processes((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	struct { uint64_t address; uint32_t rkey; } where;
	char done;
	if (pair.child) {
		where.address = htobe64((uintptr_t)mr->addr);
		where.rkey = htobe32(mr->rkey);
		tell(&pair, &where, sizeof where);
		hear(&pair, &done, 1);
	} else {
		hear(&pair, &where, sizeof where);
		struct ibv_sge list = piece(mr, 0, 64);
		struct ibv_send_wr wr = request(1, IBV_WR_RDMA_WRITE, &list, IBV_SEND_SIGNALED), *bad;
		wr.wr.rdma.remote_addr = where.address;
		wr.wr.rdma.rkey = where.rkey;
		zero(ibv_post_send(pair.a.qp, &wr, &bad));
		wait_any(pair.a.sent);
		wait_broken(&pair);
		tell(&pair, &done, 1);
	}
	end_region(mr);
	close_pair(&pair);
	return 0;
}
