/*
 * What the manual pages say beside the moving of bytes: return values, the order of destruction, who reports where, what a
 * cancelled thread leaves behind. One process, which connects to itself.
 *
 * usage: connections ADDRESS
 *
 * Built against the distribution's headers, it knows nothing of the library that it will run on. Status 0 means that all was
 * as expected.
 */
#define _GNU_SOURCE
#include "events.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_S = 60 };

static struct sockaddr_in address;

static struct sockaddr *at_port(uint16_t port)
{
	static struct sockaddr_in it;
	it = address;
	it.sin_port = port;
	return (struct sockaddr *)&it;
}

static int is_iwarp(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list != NULL && list[0] != NULL);
	int found = list[0]->transport_type == IBV_TRANSPORT_IWARP;
	ibv_free_device_list(list);
	return found;
}

static struct rdma_event_channel *new_channel(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	CHECK(channel != NULL);
	return channel;
}

static struct rdma_cm_id *new_id(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0);
	return id;
}

static struct rdma_cm_id *new_listener(struct rdma_event_channel *channel)
{
	struct rdma_cm_id *id = new_id(channel);
	CHECK(rdma_bind_addr(id, at_port(0)) == 0);
	CHECK(rdma_listen(id, 8) == 0);
	CHECK(rdma_get_src_port(id) != 0);
	return id;
}

/* An identifier that is ready to connect. */
static struct rdma_cm_id *new_client(struct rdma_event_channel *channel, struct rdma_cm_id *listener)
{
	struct rdma_cm_id *id = new_id(channel);
	CHECK(rdma_resolve_addr(id, NULL, at_port(rdma_get_src_port(listener)), 2000) == 0);
	CHECK(take(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == id);
	CHECK(id->verbs != NULL && id->pd != NULL && id->port_num == 1);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	CHECK(take(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
	return id;
}

static struct ibv_qp_init_attr queue_pair_wish(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	return attr;
}

static void make_queue_pair(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = queue_pair_wish(NULL);
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	CHECK(id->qp != NULL && id->qp->state == IBV_QPS_INIT);
	CHECK(id->send_cq != NULL && id->recv_cq != NULL && attr.send_cq == id->send_cq);
}

/* Private data has no length on InfiniBand's wire: what was not given comes as zeros. */
static int nothing_said(const struct rdma_conn_param *param)
{
	for (int i = 0; i < param->private_data_len; i++)
		if (((const char *)param->private_data)[i] != 0)
			return 0;
	return 1;
}

static struct rdma_conn_param parameters(void)
{
	struct rdma_conn_param param = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
	return param;
}

/* The new end of a connection on which the client has sent its request. */
static struct rdma_cm_id *accept_next(struct rdma_event_channel *channel)
{
	struct rdma_conn_param param = parameters();
	struct rdma_cm_id *id = take(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	make_queue_pair(id);
	CHECK(rdma_accept(id, &param) == 0);
	CHECK(id->qp->state == IBV_QPS_RTS);
	return id;
}

static void end(struct rdma_cm_id *id)
{
	if (id->qp)
		rdma_destroy_qp(id);
	CHECK(rdma_destroy_id(id) == 0);
}

/* What depends on something else keeps it alive. */
static void destruction(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list != NULL && list[0] != NULL);
	struct ibv_context *context = ibv_open_device(list[0]);
	ibv_free_device_list(list);
	CHECK(context != NULL);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 8, &checks, channel, 0);
	CHECK(channel != NULL && pd != NULL && cq != NULL && cq->channel == channel && cq->cq_context == &checks);
	struct ibv_qp_init_attr wish = queue_pair_wish(cq);
	struct ibv_qp *qp = ibv_create_qp(pd, &wish);
	CHECK(qp != NULL && qp->state == IBV_QPS_RESET && qp->send_cq == cq && qp->pd == pd);
	static char bytes[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr != NULL && mr->addr == bytes && mr->length == sizeof(bytes) && mr->pd == pd);

	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);

	struct ibv_sge sge = {.addr = (uintptr_t)bytes, .length = 8, .lkey = mr->lkey};
	struct ibv_recv_wr second = {.wr_id = 2, .sg_list = &sge, .num_sge = 2};
	struct ibv_recv_wr first = {.wr_id = 1, .next = &second, .sg_list = &sge, .num_sge = 1};
	struct ibv_recv_wr *bad = NULL;
	CHECK(ibv_post_recv(qp, &first, &bad) == EINVAL && bad == &first);
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
	CHECK(qp->state == IBV_QPS_INIT);
	CHECK(ibv_post_recv(qp, &first, &bad) == EINVAL && bad == &second);
	struct ibv_send_wr send = {.wr_id = 3, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND};
	struct ibv_send_wr *bad_send = NULL;
	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send);

	/* One event for the flushed receive; the queue waits until it is acknowledged (see `acknowledgement`). */
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	attr.qp_state = IBV_QPS_ERR;
	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
	struct ibv_cq *found = NULL;
	void *found_context = NULL;
	CHECK(ibv_get_cq_event(channel, &found, &found_context) == 0 && found == cq && found_context == &checks);
	ibv_ack_cq_events(cq, 1);
	struct ibv_wc wc = {0};
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 1 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == qp->qp_num);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(ibv_post_send(qp, &send, &bad_send) == 0);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.wr_id == 3 && wc.status == IBV_WC_WR_FLUSH_ERR);

	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
}

static void *destroy_id(void *id)
{
	return (void *)(intptr_t)rdma_destroy_id(id);
}

/* An event that is not acknowledged holds its identifier: of a request, the listener. */
static void acknowledgement(void)
{
	struct rdma_event_channel *server = new_channel(), *client = new_channel();
	struct rdma_cm_id *listener = new_listener(server), *id = new_client(client, listener);
	make_queue_pair(id);
	struct rdma_conn_param param = parameters();
	CHECK(rdma_connect(id, &param) == 0);
	struct rdma_cm_event *request = next(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(request->listen_id == listener && request->id->verbs != NULL && request->id->channel == server);
	CHECK(nothing_said(&request->param.conn));
	struct rdma_cm_id *accepted = request->id;

	pthread_t destroyer;
	void *result;
	CHECK(pthread_create(&destroyer, NULL, destroy_id, listener) == 0);
	struct timespec soon;
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_nsec += 50 * 1000 * 1000;
	soon.tv_sec += soon.tv_nsec / 1000000000;
	soon.tv_nsec %= 1000000000;
	CHECK(pthread_timedjoin_np(destroyer, &result, &soon) == ETIMEDOUT);
	CHECK(rdma_ack_cm_event(request) == 0);
	CHECK(pthread_join(destroyer, &result) == 0 && result == NULL);

	CHECK(rdma_reject(accepted, "no", 2) == 0);
	struct rdma_cm_event *refused = next(client, RDMA_CM_EVENT_REJECTED);
	/* On InfiniBand the status is the peer's reason, 28 for a program's own. */
	CHECK(refused->id == id && refused->status == (is_iwarp() ? -ECONNREFUSED : 28));
	CHECK(refused->param.conn.private_data_len >= 2 && memcmp(refused->param.conn.private_data, "no", 2) == 0);
	CHECK(id->qp->state == IBV_QPS_ERR);
	CHECK(rdma_ack_cm_event(refused) == 0);
	CHECK(rdma_connect(id, &param) == -1 && errno == EINVAL);
	CHECK(rdma_accept(id, &param) == -1 && errno == EINVAL);
	end(accepted);
	end(id);
	rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(client);
}

/* A queue pair of the program: brought up with the attributes of rdma_init_qp_attr, named by number or put into the identifier. */
static struct ibv_qp *own_queue_pair(struct rdma_cm_id *id, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr wish = queue_pair_wish(cq);
	struct ibv_qp *qp = ibv_create_qp(id->pd, &wish);
	CHECK(qp != NULL);
	/* On InfiniBand the peer has a say in the rest. */
	for (int state = IBV_QPS_INIT; state <= (is_iwarp() ? IBV_QPS_RTS : IBV_QPS_INIT); state++) {
		struct ibv_qp_attr attr = {.qp_state = state};
		int mask = 0;
		CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0);
		CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
	}
	return qp;
}

static void own_queue_pairs(int in_identifier)
{
	struct rdma_event_channel *server = new_channel(), *client = new_channel();
	struct rdma_cm_id *listener = new_listener(server), *id = new_client(client, listener);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	CHECK(cq != NULL);
	struct ibv_qp *mine = own_queue_pair(id, cq);
	struct rdma_conn_param param = parameters();
	if (in_identifier)
		id->qp = mine;
	else
		param.qp_num = mine->qp_num;
	CHECK(rdma_connect(id, in_identifier ? NULL : &param) == 0);
	struct rdma_cm_id *accepted = take(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct ibv_qp *theirs = own_queue_pair(accepted, cq);
	param = parameters();
	if (in_identifier)
		accepted->qp = theirs;
	else
		param.qp_num = theirs->qp_num;
	CHECK(rdma_accept(accepted, in_identifier ? NULL : &param) == 0);
	CHECK(take(client, RDMA_CM_EVENT_ESTABLISHED) == id);
	CHECK(take(server, RDMA_CM_EVENT_ESTABLISHED) == accepted);

	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK(ibv_query_qp(mine, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
	CHECK(init.send_cq == cq && init.qp_type == IBV_QPT_RC && mine->state == IBV_QPS_RTS);
	struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;
	struct ibv_send_wr send = {.wr_id = 2, .opcode = IBV_WR_SEND}, *bad_send;
	CHECK(ibv_post_recv(theirs, &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(mine, &send, &bad_send) == 0);
	int polled, completed = 0;
	struct ibv_wc wc;
	while (completed < 2) {
		CHECK((polled = ibv_poll_cq(cq, 1, &wc)) >= 0);
		if (polled)
			CHECK(wc.status == IBV_WC_SUCCESS);
		completed += polled;
	}
	CHECK(rdma_disconnect(id) == 0);
	CHECK(take(client, RDMA_CM_EVENT_DISCONNECTED) == id);
	CHECK(take(server, RDMA_CM_EVENT_DISCONNECTED) == accepted);
	id->qp = accepted->qp = NULL;
	CHECK(ibv_destroy_qp(mine) == 0 && ibv_destroy_qp(theirs) == 0 && ibv_destroy_cq(cq) == 0);
	end(accepted);
	end(id);
	end(listener);
	rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(client);
}

/* A queue pair destroyed with ibv_destroy_qp under its identifier, as rping does: later events do not touch it any more, though
 * another one may be where it was. */
static void destroyed_underneath(void)
{
	struct rdma_event_channel *server = new_channel(), *client = new_channel();
	struct rdma_cm_id *listener = new_listener(server), *id = new_client(client, listener);
	make_queue_pair(id);
	struct rdma_conn_param param = parameters();
	CHECK(rdma_connect(id, &param) == 0);
	struct rdma_cm_id *accepted = accept_next(server);
	CHECK(take(client, RDMA_CM_EVENT_ESTABLISHED) == id);
	CHECK(take(server, RDMA_CM_EVENT_ESTABLISHED) == accepted);
	CHECK(rdma_disconnect(accepted) == 0);
	CHECK(take(server, RDMA_CM_EVENT_DISCONNECTED) == accepted);
	struct ibv_qp_init_attr wish = queue_pair_wish(id->send_cq);
	CHECK(ibv_destroy_qp(id->qp) == 0);
	struct ibv_qp *others[8];
	for (int i = 0; i < 8; i++)
		CHECK((others[i] = ibv_create_qp(id->pd, &wish)) != NULL);
	CHECK(take(client, RDMA_CM_EVENT_DISCONNECTED) == id);
	for (int i = 0; i < 8; i++)
		CHECK(others[i]->state == IBV_QPS_RESET && ibv_destroy_qp(others[i]) == 0);
	/* The place is free for another one. */
	id->qp = NULL;
	wish = queue_pair_wish(NULL);
	CHECK(rdma_create_qp(id, NULL, &wish) == 0 && id->qp != NULL);
	end(accepted);
	end(id);
	end(listener);
	rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(client);
}

/* A program that disconnects before the answer comes hears of the end once. */
static void withdrawal(void)
{
	struct rdma_event_channel *server = new_channel(), *client = new_channel();
	struct rdma_cm_id *listener = new_listener(server), *id = new_client(client, listener);
	make_queue_pair(id);
	struct rdma_conn_param param = parameters();
	/* What a request carries on InfiniBand (rdma_connect(3)); iWARP has room for more. */
	char data[56];
	memset(data, 7, sizeof(data));
	param.private_data = data;
	param.private_data_len = sizeof(data);
	CHECK(rdma_connect(id, &param) == 0);
	struct rdma_cm_event *request = next(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(request->param.conn.private_data_len == sizeof(data));
	CHECK(memcmp(request->param.conn.private_data, data, sizeof(data)) == 0);
	struct rdma_cm_id *waiting = request->id;
	CHECK(rdma_ack_cm_event(request) == 0);
	CHECK(rdma_disconnect(id) == 0);
	struct rdma_cm_event *failed = next(client, RDMA_CM_EVENT_CONNECT_ERROR);
	CHECK(failed->id == id && failed->status == -ECONNABORTED && id->qp->state == IBV_QPS_ERR);
	CHECK(rdma_ack_cm_event(failed) == 0);
	struct pollfd quiet = {.fd = client->fd, .events = POLLIN};
	CHECK(rdma_disconnect(id) == 0 && poll(&quiet, 1, 0) == 0);
	end(waiting);
	end(id);
	end(listener);
	rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(client);
}

/* A listener that moves takes its waiting requests along, and they report where it went. */
static void migration(void)
{
	struct rdma_event_channel *server = new_channel(), *client = new_channel(), *target = new_channel();
	struct rdma_cm_id *listener = new_listener(server), *id = new_client(client, listener);
	make_queue_pair(id);
	struct rdma_conn_param param = parameters();
	CHECK(rdma_connect(id, &param) == 0);
	struct pollfd waiting = {.fd = server->fd, .events = POLLIN};
	CHECK(poll(&waiting, 1, TIMEOUT_MS) == 1);
	CHECK(rdma_migrate_id(listener, target) == 0 && listener->channel == target);
	CHECK(poll(&waiting, 1, 0) == 0);
	struct rdma_cm_id *accepted = accept_next(target);
	CHECK(accepted->channel == target);
	CHECK(take(client, RDMA_CM_EVENT_ESTABLISHED) == id);
	CHECK(take(target, RDMA_CM_EVENT_ESTABLISHED) == accepted);
	CHECK(poll(&waiting, 1, 0) == 0);
	end(accepted);
	CHECK(take(client, RDMA_CM_EVENT_DISCONNECTED) == id);
	end(id);
	end(listener);
	rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(target);
	rdma_destroy_event_channel(client);
}

/* Binding to `address` while `holder` is held: what errno says, or 0. */
static int bind_beside(const char *holder, const char *address, int reuse)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *ids[2] = { new_id(channel), new_id(channel) };
	const char *names[2] = { holder, address };
	struct sockaddr_in name = { .sin_family = AF_INET };
	int result = 0;

	for (int i = 0; i < 2; i++) {
		CHECK(inet_pton(AF_INET, names[i], &name.sin_addr) == 1);
		CHECK(!rdma_set_option(ids[i], RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &reuse, sizeof(reuse)));
		if (i)
			name.sin_port = rdma_get_src_port(ids[0]);
		if (rdma_bind_addr(ids[i], (struct sockaddr *)&name))
			result = errno;
		CHECK(i || !result);
	}
	end(ids[0]);
	end(ids[1]);
	rdma_destroy_event_channel(channel);
	return result;
}

/* PRACTICE-CALL-1 */
static void bindings(void)
{
	CHECK(bind_beside("127.0.0.1", "127.0.0.1", 0) == EADDRINUSE);
	CHECK(bind_beside("0.0.0.0", "127.0.0.1", 0) == EADDRNOTAVAIL);
	CHECK(bind_beside("127.0.0.1", "0.0.0.0", 0) == EADDRNOTAVAIL);
	CHECK(bind_beside("0.0.0.0", "0.0.0.0", 0) == EADDRNOTAVAIL);
	CHECK(bind_beside("127.0.0.1", "127.0.0.1", 1) == 0);
}

/* Without a channel each call waits for its outcome; none waits for what cannot come. */
static void synchronous(void)
{
	struct rdma_event_channel *channel = new_channel();
	struct rdma_cm_id *bound = new_id(channel), *id = new_id(NULL);
	CHECK(rdma_bind_addr(bound, at_port(0)) == 0);
	CHECK(rdma_bind_addr(bound, at_port(0)) == -1 && errno == EINVAL);
	struct rdma_cm_id *same = new_id(channel);
	CHECK(rdma_bind_addr(same, at_port(rdma_get_src_port(bound))) == -1 && errno == EADDRINUSE);
	end(same);

	struct sockaddr_storage anywhere = {0};
	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_route(id, 2000) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr(id, (struct sockaddr *)&anywhere, at_port(rdma_get_src_port(bound)), 2000) == 0);
	CHECK(id->event != NULL && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	CHECK(rdma_connect(id, NULL) == -1 && errno == EINVAL);
	make_queue_pair(id);
	/* Nobody listens there. */
	CHECK(rdma_connect(id, NULL) == -1 && errno == ECONNREFUSED);
	CHECK(id->event->event == RDMA_CM_EVENT_REJECTED &&
	      id->event->status == (is_iwarp() ? -ECONNREFUSED : 8));
	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
	end(id);
	end(bound);
	rdma_destroy_event_channel(channel);

	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *info;
	char text[INET_ADDRSTRLEN], port[8];
	inet_ntop(AF_INET, &address.sin_addr, text, sizeof(text));
	CHECK(rdma_getaddrinfo(text, "0", &hints, &info) == 0 && info->ai_src_len == sizeof(struct sockaddr_in));
	struct ibv_qp_init_attr wish = queue_pair_wish(NULL);
	struct rdma_cm_id *listener, *client, *accepted;
	CHECK(rdma_create_ep(&listener, info, NULL, &wish) == 0);
	rdma_freeaddrinfo(info);
	CHECK(rdma_listen(listener, 0) == 0);
	snprintf(port, sizeof(port), "%d", ntohs(rdma_get_src_port(listener)));
	hints.ai_flags = 0;
	CHECK(rdma_getaddrinfo(text, port, &hints, &info) == 0 && info->ai_dst_len == sizeof(struct sockaddr_in));
	wish = queue_pair_wish(NULL);
	CHECK(rdma_create_ep(&client, info, NULL, &wish) == 0 && client->qp != NULL);
	rdma_freeaddrinfo(info);
	/* Both ends in this thread: the client does without waiting. */
	struct rdma_event_channel *elsewhere = new_channel();
	CHECK(rdma_migrate_id(client, elsewhere) == 0);
	CHECK(rdma_connect(client, NULL) == 0);
	CHECK(rdma_get_request(listener, &accepted) == 0 && accepted->qp != NULL && accepted->event != NULL);
	CHECK(rdma_accept(accepted, NULL) == 0 && accepted->event->event == RDMA_CM_EVENT_ESTABLISHED);
	CHECK(take(elsewhere, RDMA_CM_EVENT_ESTABLISHED) == client);
	CHECK(rdma_migrate_id(client, NULL) == 0);
	CHECK(rdma_disconnect(client) == 0 && rdma_disconnect(accepted) == 0);
	CHECK(accepted->event->event == RDMA_CM_EVENT_DISCONNECTED);
	CHECK(rdma_disconnect(accepted) == -1 && errno == EINVAL);
	rdma_destroy_ep(accepted);
	rdma_destroy_ep(client);
	rdma_destroy_ep(listener);
	rdma_destroy_event_channel(elsewhere);
}

static void *wait_for_connection_event(void *channel)
{
	struct rdma_cm_event *event;
	return (void *)(intptr_t)rdma_get_cm_event(channel, &event);
}

static void *wait_for_completion_event(void *channel)
{
	struct ibv_cq *cq;
	void *context;
	return (void *)(intptr_t)ibv_get_cq_event(channel, &cq, &context);
}

static void *wait_for_asynchronous_event(void *context)
{
	struct ibv_async_event event;
	return (void *)(intptr_t)ibv_get_async_event(context, &event);
}

static void cancel_in(void *(*wait)(void *), void *argument)
{
	pthread_t thread;
	void *result;
	CHECK(pthread_create(&thread, NULL, wait, argument) == 0);
	CHECK(pthread_cancel(thread) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
}

/* All that a program does between waits, in a thread that is to be cancelled already. */
static void *everything(void *argument)
{
	int step = (int)(intptr_t)argument;
	struct rdma_event_channel *channel = NULL;
	struct rdma_cm_id *listener = NULL, *id = NULL;
	struct rdma_cm_event *event;
	struct rdma_conn_param param = parameters();
	struct ibv_qp_init_attr wish = queue_pair_wish(NULL);
	for (int i = 0; i < 15; i++) {
		if (i == step)
			pthread_cancel(pthread_self());
		switch (i) {
		case 0:
			channel = rdma_create_event_channel();
			break;
		case 1:
			rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP);
			rdma_create_id(channel, &id, NULL, RDMA_PS_TCP);
			break;
		case 2:
			rdma_bind_addr(listener, at_port(0));
			break;
		case 3:
			rdma_listen(listener, 0);
			break;
		case 4:
			rdma_resolve_addr(id, NULL, at_port(rdma_get_src_port(listener)), 2000);
			break;
		case 5:
			rdma_get_cm_event(channel, &event);
			rdma_ack_cm_event(event);
			break;
		case 6:
			rdma_resolve_route(id, 2000);
			break;
		case 7:
			rdma_get_cm_event(channel, &event);
			rdma_ack_cm_event(event);
			break;
		case 8:
			rdma_create_qp(id, NULL, &wish);
			break;
		case 9:
			rdma_connect(id, &param);
			break;
		case 10:
			rdma_destroy_qp(id);
			break;
		case 11:
			rdma_disconnect(id);
			break;
		case 12:
			rdma_destroy_id(id);
			break;
		case 13:
			rdma_destroy_id(listener);
			break;
		case 14:
			rdma_destroy_event_channel(channel);
			break;
		}
	}
	return NULL;
}

static void cancellation(void)
{
	struct rdma_event_channel *server = new_channel(), *client = new_channel();
	struct rdma_cm_id *listener = new_listener(server);
	cancel_in(wait_for_connection_event, server);
	struct rdma_cm_id *id = new_client(client, listener);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(id->verbs);
	CHECK(channel != NULL);
	cancel_in(wait_for_completion_event, channel);
	cancel_in(wait_for_asynchronous_event, id->verbs);
	/* Nothing is held. */
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	make_queue_pair(id);
	struct rdma_conn_param param = parameters();
	CHECK(rdma_connect(id, &param) == 0);
	struct rdma_cm_id *accepted = accept_next(server);
	CHECK(take(server, RDMA_CM_EVENT_ESTABLISHED) == accepted);
	CHECK(take(client, RDMA_CM_EVENT_ESTABLISHED) == id);
	for (int step = 0; step < 15; step++) {
		pthread_t thread;
		CHECK(pthread_create(&thread, NULL, everything, (void *)(intptr_t)step) == 0);
		void *result;
		CHECK(pthread_join(thread, &result) == 0);
		/* Waiting for an event is where it ends, and nowhere else. */
		CHECK(result == (step <= 7 ? PTHREAD_CANCELED : NULL));
	}
	end(accepted);
	CHECK(take(client, RDMA_CM_EVENT_DISCONNECTED) == id);
	end(id);
	end(listener);
	rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(client);
}

int main(int count, char **arguments)
{
	if (count != 2 || inet_pton(AF_INET, arguments[1], &address.sin_addr) != 1) {
		fprintf(stderr, "usage: %s ADDRESS\n", arguments[0]);
		return 2;
	}
	address.sin_family = AF_INET;
	alarm(PATIENCE_S);
	destruction();
	acknowledgement();
	/* On InfiniBand a program connects such a queue pair itself: infiniband.c does. */
	if (is_iwarp())
		own_queue_pairs(0);
	own_queue_pairs(1);
	destroyed_underneath();
	withdrawal();
	migration();
	bindings();
	synchronous();
	cancellation();
	printf("%d checks, all as the manual pages say\n", checks);
	return 0;
}
