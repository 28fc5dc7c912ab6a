/* The program polls, finds nothing, arms the queue and sleeps. A message that came before the arming wakes nobody.
 * expects: completion-missed: completion queue
 * remedy: poll
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.with_events = 1});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	struct ibv_wc wc;
	post_receive(pair.b.qp, 1, mr, 2048, 64);
	if (ibv_poll_cq(pair.b.received, 1, &wc) != 0)
		return 1;
	// The message comes at the worst moment.
	post_send(pair.a.qp, 1, mr, 0, 64);
	wait_arrived(&pair, mr);
	zero(ibv_req_notify_cq(pair.b.received, 0));
	struct pollfd sleeper = {.fd = pair.events->fd, .events = POLLIN};
	if (poll(&sleeper, 1, 2500)) {
		struct ibv_cq *cq;
		void *context;
		zero(ibv_get_cq_event(pair.events, &cq, &context));
		ibv_ack_cq_events(cq, 1);
	}
	wait_good(pair.b.received, 1);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
