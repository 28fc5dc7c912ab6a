/* Each message is written into the same buffer, and the program waits for completions only at the end.
 * expects: buffer-changed: request 0x0
 * remedy: completion
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 4; i++)
		post_receive(pair.b.qp, i, mr, 1024 + 64 * i, 64);
	for (int i = 0; i < 4; i++) {
		snprintf(mr->addr, 64, "message %d", i);
		struct ibv_sge list = piece(mr, 0, 64);
		struct ibv_send_wr wr = request(i, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
		zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	}
	wait_good(pair.a.sent, 4);
	wait_good(pair.b.received, 4);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
