/* The program takes completion events and never calls ibv_ack_cq_events: ibv_destroy_cq waits for ever.
 * expects: event-not-acknowledged: completion queue ... 1 event
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
	struct pair pair = connect_pair((struct settings){.with_events = 1});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_cq *cq;
	void *context;
	zero(ibv_req_notify_cq(pair.b.received, 0));
	post_receive(pair.b.qp, 1, mr, 2048, 64);
	post_send(pair.a.qp, 1, mr, 0, 64);
	zero(ibv_get_cq_event(pair.events, &cq, &context));
	wait_good(pair.b.received, 1);
	wait_good(pair.a.sent, 1);
	end_region(mr);
	rdma_destroy_qp(pair.b.id);
	signal(SIGALRM, give_up);
	alarm(1);
	zero(ibv_destroy_cq(pair.b.received)); /* here */
	return 0;
}
