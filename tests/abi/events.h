/* Events of connection management, as they are expected. */

#include "check.h"

#include <poll.h>
#include <rdma/rdma_cma.h>

#define TIMEOUT_MS 10000

/* The next event of a channel, which has to be this one. */
static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct pollfd readable = {.fd = channel->fd, .events = POLLIN};
	struct rdma_cm_event *event;
	CHECK(poll(&readable, 1, TIMEOUT_MS) == 1);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != wanted)
		fprintf(stderr, "%s instead of %s, status %d\n", rdma_event_str(event->event), rdma_event_str(wanted),
			event->status);
	CHECK(event->event == wanted);
	return event;
}

/* The same, acknowledged: what it is about. */
static struct rdma_cm_id *take(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event = next(channel, wanted);
	struct rdma_cm_id *id = event->id;
	CHECK(rdma_ack_cm_event(event) == 0);
	return id;
}
