/* Connections by the connection manager. */
#include "verify.h"

static struct rdma_event_channel *listening;
static struct rdma_cm_id *listener;

/* Private data: as much as InfiniBand's connection manager leaves for a program in either direction. */
enum { REQUEST_BYTES = 56, REPLY_BYTES = 136 };

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(channel, &event))
		fail("rdma_get_cm_event: %s", strerror(errno));
	return event;
}

static void acknowledge(struct rdma_cm_event *event)
{
	if (rdma_ack_cm_event(event))
		fail("rdma_ack_cm_event: %s", strerror(errno));
}

static void expect_event(struct rdma_event_channel *channel, enum rdma_cm_event_type expected)
{
	struct rdma_cm_event *event = next_event(channel);

	if (event->event != expected || event->status)
		fail("%s with status %d instead of %s", rdma_event_str(event->event), event->status, rdma_event_str(expected));
	acknowledge(event);
}

static enum rdma_port_space port_space(void)
{
	return service == UD ? RDMA_PS_UDP : RDMA_PS_TCP;
}

static void identify(struct connection *c)
{
	c->verbs = c->id->verbs;
	c->service = service;
	if (service == RC)
		c->service = c->verbs->device->transport_type == IBV_TRANSPORT_IWARP ? RC_IWARP : RC_IB;
}

static struct rdma_conn_param parameters(struct connection *c, uint8_t *data, uint8_t length)
{
	struct rdma_conn_param param = {
		.private_data = data, .private_data_len = length, .responder_resources = 4, .initiator_depth = 4,
		.retry_count = 7, .rnr_retry_count = 7, .qp_num = c->qp->qp_num,
	};

	fill(data, length, length);
	return param;
}

static void check_private_data(const void *data, uint8_t found, uint8_t expected)
{
	if (found < expected)
		fail("%u bytes of private data instead of %u", found, expected);
	check(data, expected, expected, "private data");
}

void cm_listen(struct sockaddr *address)
{
	listening = rdma_create_event_channel();
	if (!listening || rdma_create_id(listening, &listener, NULL, port_space()))
		fail("rdma_create_id: %s", strerror(errno));
	if (rdma_bind_addr(listener, address) || rdma_listen(listener, 4))
		fail("listening: %s", strerror(errno));
}

static void accept_connection(struct connection *c)
{
	struct rdma_cm_event *event = next_event(listening);
	struct rdma_conn_param param;
	uint8_t data[REPLY_BYTES];

	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		fail("%s instead of a connection request", rdma_event_str(event->event));
	c->id = event->id;
	identify(c);
	if (c->service == UD)
		check_private_data(event->param.ud.private_data, event->param.ud.private_data_len, REQUEST_BYTES);
	else
		check_private_data(event->param.conn.private_data, event->param.conn.private_data_len, REQUEST_BYTES);
	acknowledge(event);
	/* A channel of its own: the next request may overtake the end of this connection. */
	c->channel = rdma_create_event_channel();
	if (!c->channel || rdma_migrate_id(c->id, c->channel))
		fail("rdma_migrate_id: %s", strerror(errno));
	make_resources(c);
	param = parameters(c, data, REPLY_BYTES);
	if (rdma_accept(c->id, &param))
		fail("rdma_accept: %s", strerror(errno));
	if (c->service == UD)
		c->peer_qkey = RDMA_UDP_QKEY;
	else
		expect_event(c->channel, RDMA_CM_EVENT_ESTABLISHED);
}

static void connect_to(struct connection *c, struct sockaddr *server)
{
	struct rdma_conn_param param;
	struct rdma_cm_event *event;
	uint8_t data[REQUEST_BYTES], timeout = current->timeout;

	c->channel = rdma_create_event_channel();
	if (!c->channel || rdma_create_id(c->channel, &c->id, c, port_space()))
		fail("rdma_create_id: %s", strerror(errno));
	if (rdma_resolve_addr(c->id, NULL, server, TIMEOUT_MS))
		fail("rdma_resolve_addr: %s", strerror(errno));
	expect_event(c->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (current->timeout && rdma_set_option(c->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof(timeout)))
		fail("rdma_set_option: %s", strerror(errno));
	if (rdma_resolve_route(c->id, TIMEOUT_MS))
		fail("rdma_resolve_route: %s", strerror(errno));
	expect_event(c->channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	identify(c);
	make_resources(c);
	param = parameters(c, data, REQUEST_BYTES);
	if (rdma_connect(c->id, &param))
		fail("rdma_connect: %s", strerror(errno));
	event = next_event(c->channel);
	if (event->event != RDMA_CM_EVENT_ESTABLISHED || event->status)
		fail("%s with status %d instead of a connection", rdma_event_str(event->event), event->status);
	if (c->service == UD) {
		check_private_data(event->param.ud.private_data, event->param.ud.private_data_len, REPLY_BYTES);
		c->ah = ibv_create_ah(c->pd, &event->param.ud.ah_attr);
		if (!c->ah)
			fail("ibv_create_ah: %s", strerror(errno));
		c->peer_qpn = event->param.ud.qp_num;
		c->peer_qkey = event->param.ud.qkey;
	} else {
		check_private_data(event->param.conn.private_data, event->param.conn.private_data_len, REPLY_BYTES);
	}
	acknowledge(event);
}

void cm_open(struct connection *c, struct sockaddr *server)
{
	if (is_server)
		accept_connection(c);
	else
		connect_to(c, server);
}

/* Over InfiniBand's transport a refusal breaks the queue pairs alone: the side that leads says that it leaves. */
void cm_finish(struct connection *c, bool leads)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (c->service == UD) {
		if (ibv_modify_qp(c->qp, &attr, IBV_QP_STATE))
			fail("ibv_modify_qp to ERROR failed");
		return;
	}
	if (c->service == RC_IB && leads && rdma_disconnect(c->id))
		fail("rdma_disconnect: %s", strerror(errno));
	expect_event(c->channel, RDMA_CM_EVENT_DISCONNECTED);
	if (c->service == RC_IB && !leads && rdma_disconnect(c->id))
		fail("rdma_disconnect in answer: %s", strerror(errno));
}

void cm_close(struct connection *c)
{
	if (rdma_destroy_id(c->id))
		fail("rdma_destroy_id: %s", strerror(errno));
	rdma_destroy_event_channel(c->channel);
}

void cm_end(void)
{
	if (listener && rdma_destroy_id(listener))
		fail("rdma_destroy_id: %s", strerror(errno));
	if (listening)
		rdma_destroy_event_channel(listening);
}
