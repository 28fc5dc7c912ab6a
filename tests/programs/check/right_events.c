/* Arm, poll once more, wait; the events are acknowledged together at the end.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.with_events = 1});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	int events = 0;
	zero(ibv_req_notify_cq(pair.b.received, 0));
	for (int i = 0; i < 8; i++) {
		post_receive(pair.b.qp, i, mr, 2048, 64);
		post_send(pair.a.qp, i, mr, 0, 64);
		wait_good(pair.a.sent, 1);
		struct ibv_wc wc;
		while (ibv_poll_cq(pair.b.received, 1, &wc) == 0) {
			struct ibv_cq *cq;
			void *context;
			zero(ibv_get_cq_event(pair.events, &cq, &context));
			events++;
			zero(ibv_req_notify_cq(cq, 0));
		}
	}
	ibv_ack_cq_events(pair.b.received, events);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
