/* Two messages come with one event. The program polls one of them, arms the queue, and sleeps beside the other.
 * expects: completion-missed: completion queue
 * remedy: poll
 */
#include "common.h"

static int sleep_for_event(struct pair *pair, int limit_ms)
{
	struct pollfd sleeper = {.fd = pair->events->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;
	if (poll(&sleeper, 1, limit_ms) != 1)
		return 0;
	zero(ibv_get_cq_event(pair->events, &cq, &context));
	ibv_ack_cq_events(cq, 1);
	return 1;
}

int main(void)
{
	struct pair pair = connect_pair((struct settings){.with_events = 1});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	zero(ibv_req_notify_cq(pair.b.received, 0));
	for (int i = 0; i < 2; i++)
		post_receive(pair.b.qp, i, mr, 2048 + 64 * i, 64);
	for (int i = 0; i < 2; i++)
		post_send(pair.a.qp, i, mr, 0, 64);
	wait_arrived(&pair, mr);
	if (!sleep_for_event(&pair, LONG_MS))
		return 1;
	wait_good(pair.b.received, 1);
	zero(ibv_req_notify_cq(pair.b.received, 0));
	sleep_for_event(&pair, 2500);
	wait_good(pair.b.received, 1);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
