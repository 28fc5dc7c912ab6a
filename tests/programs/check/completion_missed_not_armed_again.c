/* After the first event the program does not arm the completion queue again, and waits for a second event.
 * expects: completion-missed: completion queue
 * remedy: ibv_req_notify_cq
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.with_events = 1});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct pollfd sleeper = {.fd = pair.events->fd, .events = POLLIN};
	zero(ibv_req_notify_cq(pair.b.received, 0));
	for (int i = 0; i < 2; i++) {
		post_receive(pair.b.qp, i, mr, 2048, 64);
		post_send(pair.a.qp, i, mr, 0, 64);
		if (poll(&sleeper, 1, i ? 2500 : LONG_MS) == 1) {
			struct ibv_cq *cq;
			void *context;
			zero(ibv_get_cq_event(pair.events, &cq, &context));
			ibv_ack_cq_events(cq, 1);
		}
		wait_good(pair.b.received, 1);
		wait_good(pair.a.sent, 1);
	}
	end_region(mr);
	close_pair(&pair);
	return 0;
}
