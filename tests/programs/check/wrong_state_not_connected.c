/* The client sends before its connection stands: it has not waited for RDMA_CM_EVENT_ESTABLISHED.
 * expects: wrong-state: is in INIT ... RDMA_CM_EVENT_ESTABLISHED
 * remedy: RDMA_CM_EVENT_ESTABLISHED
 */
#include "common.h"

int main(void)
{
	struct pair pair = {.channel = some(rdma_create_event_channel())};
	begin_client(&pair, listen_somewhere(&pair), (struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge list = piece(mr, 0, 64);
	struct ibv_send_wr wr = request(8, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
	if (ibv_post_send(pair.a.qp, &wr, &bad)) /* here */
		puts("refused");
	begin_server(&pair, (struct settings){0});
	expect_event(pair.channel, RDMA_CM_EVENT_ESTABLISHED);
	expect_event(pair.channel, RDMA_CM_EVENT_ESTABLISHED);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
