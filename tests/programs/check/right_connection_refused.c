/* The server refuses a connection and destroys its identifier; the client is told, and ends.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = {.channel = some(rdma_create_event_channel())};
	begin_client(&pair, listen_somewhere(&pair), (struct settings){0});
	struct rdma_cm_id *id = expect_event(pair.channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	zero(rdma_reject(id, NULL, 0));
	zero(rdma_destroy_id(id));
	expect_event(pair.channel, RDMA_CM_EVENT_REJECTED);
	close_end(&pair.a);
	zero(rdma_destroy_id(pair.listener));
	zero(ibv_dealloc_pd(pair.pd));
	rdma_destroy_event_channel(pair.channel);
	return 0;
}
