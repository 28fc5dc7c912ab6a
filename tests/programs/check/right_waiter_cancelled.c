/* A thread that waits for events is cancelled, and the program takes its completions later, without events.
 * correct
 */
#include "common.h"
#include <pthread.h>

static void *waits(void *channel)
{
	struct ibv_cq *cq;
	void *context;
	ibv_get_cq_event(channel, &cq, &context);
	return NULL;
}

int main(void)
{
	struct pair pair = connect_pair((struct settings){.with_events = 1});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_receive(pair.b.qp, 1, mr, 2048, 64);
	zero(ibv_req_notify_cq(pair.b.received, 1));
	pthread_t thread;
	zero(pthread_create(&thread, NULL, waits, pair.events));
	usleep(50000);
	zero(pthread_cancel(thread));
	zero(pthread_join(thread, NULL));
	zero(ibv_req_notify_cq(pair.b.received, 0));
	post_send(pair.a.qp, 1, mr, 0, 64);
	wait_good(pair.a.sent, 1);
	// It does other work meanwhile.
	usleep(1500000);
	wait_good(pair.b.received, 1);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
