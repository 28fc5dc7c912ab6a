/* Client and server are two processes: the server receives first, the client asks, the server writes the answer into the client's memory.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_processes((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	struct { uint64_t address; uint32_t rkey; } *told = mr->addr;
	char done = 0;
	if (pair.child) {
		post_receive(pair.b.qp, 1, mr, 0, sizeof *told);
		tell(&pair, &done, 1);
		wait_good(pair.b.received, 1);
		struct ibv_sge list = piece(mr, 1024, 64);
		struct ibv_send_wr wr = request(2, IBV_WR_RDMA_WRITE, &list, IBV_SEND_SIGNALED), *bad;
		strcpy((char *)mr->addr + 1024, "answer");
		wr.wr.rdma.remote_addr = told->address + 2048;
		wr.wr.rdma.rkey = told->rkey;
		zero(ibv_post_send(pair.b.qp, &wr, &bad));
		wait_good(pair.b.sent, 1);
		tell(&pair, &done, 1);
		hear(&pair, &done, 1);
	} else {
		hear(&pair, &done, 1);
		told->address = (uintptr_t)mr->addr;
		told->rkey = mr->rkey;
		post_send(pair.a.qp, 1, mr, 0, sizeof *told);
		wait_good(pair.a.sent, 1);
		hear(&pair, &done, 1);
		for (long end = now_ms() + LONG_MS; strcmp((char *)mr->addr + 2048, "answer");)
			if (now_ms() > end)
				return 1;
		tell(&pair, &done, 1);
	}
	end_region(mr);
	close_pair(&pair);
	return 0;
}
