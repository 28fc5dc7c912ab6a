/* An error path leaves without rdma_ack_cm_event: rdma_destroy_id waits for ever.
 * expects: event-not-acknowledged: RDMA_CM_EVENT_ADDR_RESOLVED
 * remedy: acknowledge
 * also: object-leaked
 */
#include "common.h"

static void give_up(int signal)
{
	(void)signal;
	exit(0);
}

int main(void)
{
	struct rdma_event_channel *channel = some(rdma_create_event_channel());
	struct rdma_cm_id *id;
	struct rdma_cm_event *event;
	struct sockaddr_in address = local_address(7471);
	zero(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	zero(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, LONG_MS));
	zero(rdma_get_cm_event(channel, &event));
	signal(SIGALRM, give_up);
	alarm(1);
	zero(rdma_destroy_id(id)); /* here */
	rdma_destroy_event_channel(channel);
	return 0;
}
