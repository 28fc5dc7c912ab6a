/*
 * What librdmacm does on InfiniBand alone: queue pairs that the program manages itself, unreliable connections, datagrams looked
 * up by port, multicast, the path of a route. One process, which talks to itself.
 *
 * usage: managers ADDRESS GROUP
 *
 * Built against the distribution's headers, it knows nothing of the library that it will run on. Status 0 means that all was
 * as expected.
 */
#include "events.h"

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATIENCE_S = 60, QKEY = 0x01234567, GRH = 40 };

static struct sockaddr_storage address, group;

static void parse(const char *text, struct sockaddr_storage *into)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST}, *found;
	CHECK(getaddrinfo(text, NULL, &hints, &found) == 0);
	memcpy(into, found->ai_addr, found->ai_addrlen);
	freeaddrinfo(found);
}

static struct sockaddr *at_port(uint16_t port)
{
	static struct sockaddr_storage it;
	it = address;
	if (it.ss_family == AF_INET)
		((struct sockaddr_in *)&it)->sin_port = port;
	else
		((struct sockaddr_in6 *)&it)->sin6_port = port;
	return (struct sockaddr *)&it;
}

/* The GID of an address. */
static union ibv_gid gid_of(const struct sockaddr_storage *of)
{
	union ibv_gid gid = {.raw = {[10] = 0xff, [11] = 0xff}};
	if (of->ss_family == AF_INET)
		memcpy(gid.raw + 12, &((struct sockaddr_in *)of)->sin_addr, 4);
	else
		memcpy(gid.raw, &((struct sockaddr_in6 *)of)->sin6_addr, 16);
	return gid;
}

static int same_gid(const union ibv_gid *one, const struct sockaddr_storage *other)
{
	union ibv_gid gid = gid_of(other);
	return memcmp(one, &gid, sizeof(gid)) == 0;
}

static struct rdma_cm_id *listen_in(struct rdma_event_channel *channel, enum rdma_port_space space)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, space) == 0);
	CHECK(rdma_bind_addr(id, at_port(0)) == 0 && rdma_listen(id, 8) == 0);
	/* A loopback address tells no device. */
	CHECK(id->verbs == NULL && id->port_num == 0 && id->pd == NULL);
	return id;
}

static struct rdma_cm_id *resolve(struct rdma_event_channel *channel, struct rdma_cm_id *listener)
{
	struct rdma_cm_id *id;
	CHECK(rdma_create_id(channel, &id, NULL, listener->ps) == 0);
	CHECK(rdma_resolve_addr(id, NULL, at_port(rdma_get_src_port(listener)), 2000) == 0);
	CHECK(take(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == id);
	CHECK(same_gid(&id->route.addr.addr.ibaddr.dgid, &address));
	CHECK(id->route.addr.addr.ibaddr.pkey == 0xffff);
	CHECK(rdma_resolve_route(id, 2000) == 0);
	CHECK(take(channel, RDMA_CM_EVENT_ROUTE_RESOLVED) == id);
	CHECK(id->route.num_paths == 1 && id->route.path_rec != NULL);
	CHECK(same_gid(&id->route.path_rec->dgid, &address) && same_gid(&id->route.path_rec->sgid, &address));
	CHECK(id->route.path_rec->mtu >= IBV_MTU_256 && id->route.path_rec->mtu <= IBV_MTU_4096);
	return id;
}

static struct ibv_qp_init_attr wish(struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1};
	attr.cap = (struct ibv_qp_cap){.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1};
	return attr;
}

static void step(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state, int expected)
{
	struct ibv_qp_attr attr = {.qp_state = state};
	int mask = 0;
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == 0);
	CHECK(mask == expected);
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static void to_init(struct rdma_cm_id *id, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
	int mask;
	step(id, qp, IBV_QPS_INIT, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	attr.qp_state = IBV_QPS_SQD;
	CHECK(rdma_init_qp_attr(id, &attr, &mask) == -1 && errno == EINVAL);
}

static void to_rts(struct rdma_cm_id *id, struct ibv_qp *qp)
{
	int both = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	step(id, qp, IBV_QPS_RTR, both | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	both = IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
	step(id, qp, IBV_QPS_RTS, both | IBV_QP_MAX_QP_RD_ATOMIC);
}

/* Sends an empty message from one queue pair to the other and polls both completions. */
static void exchange(struct ibv_qp *from, struct ibv_qp *to, struct ibv_cq *cq)
{
	struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;
	struct ibv_send_wr send = {.wr_id = 2, .opcode = IBV_WR_SEND}, *bad_send;
	struct ibv_wc wc;
	int polled, completed = 0;
	CHECK(ibv_post_recv(to, &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(from, &send, &bad_send) == 0);
	while (completed < 2) {
		CHECK((polled = ibv_poll_cq(cq, 1, &wc)) >= 0);
		if (polled)
			CHECK(wc.status == IBV_WC_SUCCESS);
		completed += polled;
	}
}

/* rdma_init_qp_attr(3), rdma_establish(3): the program takes both queue pairs to RTS. */
static void own_queue_pairs(void)
{
	struct rdma_event_channel *server = rdma_create_event_channel(), *client = rdma_create_event_channel();
	struct rdma_cm_id *listener = listen_in(server, RDMA_PS_TCP), *id = resolve(client, listener);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	CHECK(cq != NULL);
	struct ibv_qp_init_attr attr = wish(cq, IBV_QPT_RC);
	struct ibv_qp *mine = ibv_create_qp(id->pd, &attr), *theirs = ibv_create_qp(id->pd, &attr);
	CHECK(mine != NULL && theirs != NULL);
	to_init(id, mine);
	struct rdma_conn_param param = {.responder_resources = 3, .initiator_depth = 2, .retry_count = 7};
	param.rnr_retry_count = 7;
	CHECK(rdma_connect(id, &param) == -1 && errno == EINVAL);
	param.qp_num = mine->qp_num;
	CHECK(rdma_establish(id) == -1 && errno == EINVAL);
	CHECK(rdma_connect(id, &param) == 0);

	struct rdma_cm_event *request = next(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *accepted = request->id;
	CHECK(request->param.conn.qp_num == mine->qp_num && request->param.conn.private_data_len == 56);
	CHECK(request->param.conn.responder_resources == 2 && request->param.conn.initiator_depth == 3);
	CHECK(rdma_ack_cm_event(request) == 0);
	to_init(accepted, theirs);
	to_rts(accepted, theirs);
	param.responder_resources = 2;
	param.initiator_depth = 3;
	param.qp_num = theirs->qp_num;
	CHECK(rdma_accept(accepted, &param) == 0);

	struct rdma_cm_event *response = next(client, RDMA_CM_EVENT_CONNECT_RESPONSE);
	CHECK(response->id == id && response->param.conn.qp_num == theirs->qp_num);
	CHECK(response->param.conn.private_data_len == 196 && response->status == 0);
	CHECK(rdma_ack_cm_event(response) == 0);
	to_rts(id, mine);
	CHECK(rdma_establish(id) == 0);
	CHECK(take(server, RDMA_CM_EVENT_ESTABLISHED) == accepted);
	CHECK(rdma_notify(accepted, IBV_EVENT_COMM_EST) == 0);
	CHECK(rdma_notify(accepted, IBV_EVENT_PORT_ERR) == -1 && errno == EINVAL);
	exchange(mine, theirs, cq);
	exchange(theirs, mine, cq);
	CHECK(rdma_disconnect(id) == 0);
	CHECK(take(client, RDMA_CM_EVENT_DISCONNECTED) == id);
	CHECK(take(server, RDMA_CM_EVENT_DISCONNECTED) == accepted);
	CHECK(take(client, RDMA_CM_EVENT_TIMEWAIT_EXIT) == id);
	CHECK(take(server, RDMA_CM_EVENT_TIMEWAIT_EXIT) == accepted);
	CHECK(ibv_destroy_qp(mine) == 0 && ibv_destroy_qp(theirs) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(rdma_destroy_id(accepted) == 0 && rdma_destroy_id(id) == 0 && rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(client);
}

/* Datagrams: rdma_connect(3) asks for the queue pair, rdma_accept(3) names it. */
static void datagrams(void)
{
	struct rdma_event_channel *server = rdma_create_event_channel(), *client = rdma_create_event_channel();
	struct rdma_cm_id *listener = listen_in(server, RDMA_PS_UDP), *id = resolve(client, listener);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	CHECK(cq != NULL && id->qp_type == IBV_QPT_UD);
	struct ibv_qp_init_attr attr = wish(cq, IBV_QPT_UD);
	CHECK(rdma_create_qp(id, NULL, &attr) == 0 && id->qp->state == IBV_QPS_RTS);
	char data[180] = "which?";
	struct rdma_conn_param param = {.private_data = data, .private_data_len = 181};
	CHECK(rdma_connect(id, &param) == -1 && errno == EINVAL);
	param.private_data_len = 180;
	CHECK(rdma_connect(id, &param) == 0);

	struct rdma_cm_event *request = next(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	struct rdma_cm_id *asked = request->id;
	CHECK(request->listen_id == listener && request->param.ud.private_data_len == 180);
	CHECK(strcmp(request->param.ud.private_data, "which?") == 0);
	CHECK(rdma_ack_cm_event(request) == 0);
	attr = wish(cq, IBV_QPT_UD);
	CHECK(rdma_create_qp(asked, NULL, &attr) == 0 && asked->qp->state == IBV_QPS_RTS);
	param = (struct rdma_conn_param){.private_data = "this", .private_data_len = 4};
	CHECK(rdma_accept(asked, &param) == 0);

	struct rdma_cm_event *found = next(client, RDMA_CM_EVENT_ESTABLISHED);
	CHECK(found->id == id && found->param.ud.qp_num == asked->qp->qp_num && found->param.ud.qkey == QKEY);
	CHECK(found->param.ud.private_data_len == 136 && strcmp(found->param.ud.private_data, "this") == 0);
	CHECK(found->param.ud.ah_attr.is_global == 1 && found->param.ud.ah_attr.port_num == 1);
	CHECK(same_gid(&found->param.ud.ah_attr.grh.dgid, &address));
	struct ibv_ah *ah = ibv_create_ah(id->pd, &found->param.ud.ah_attr);
	CHECK(ah != NULL && rdma_ack_cm_event(found) == 0);

	static char buffer[GRH];
	struct ibv_mr *mr = ibv_reg_mr(asked->pd, buffer, sizeof(buffer), IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr != NULL);
	struct ibv_sge sge = {.addr = (uintptr_t)buffer, .length = GRH, .lkey = mr->lkey};
	struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = &sge, .num_sge = 1}, *bad_receive;
	struct ibv_send_wr send = {.wr_id = 2, .opcode = IBV_WR_SEND}, *bad_send;
	send.wr.ud.ah = ah;
	send.wr.ud.remote_qpn = asked->qp->qp_num;
	send.wr.ud.remote_qkey = QKEY;
	CHECK(ibv_post_recv(asked->qp, &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(id->qp, &send, &bad_send) == 0);
	struct ibv_wc wc;
	int polled, completed = 0;
	while (completed < 2) {
		CHECK((polled = ibv_poll_cq(cq, 1, &wc)) >= 0);
		if (polled)
			CHECK(wc.status == IBV_WC_SUCCESS);
		completed += polled;
	}
	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_ah(ah) == 0);

	/* One that refuses, and one that is not there. */
	struct rdma_cm_id *second = resolve(client, listener);
	CHECK(rdma_connect(second, NULL) == 0);
	struct rdma_cm_id *refused = take(server, RDMA_CM_EVENT_CONNECT_REQUEST);
	CHECK(rdma_reject(refused, "no", 2) == 0);
	struct rdma_cm_event *none = next(client, RDMA_CM_EVENT_UNREACHABLE);
	CHECK(none->id == second && none->status != 0 && rdma_ack_cm_event(none) == 0);

	rdma_destroy_qp(id);
	rdma_destroy_qp(asked);
	CHECK(ibv_destroy_cq(cq) == 0 && rdma_destroy_id(refused) == 0 && rdma_destroy_id(second) == 0);
	CHECK(rdma_destroy_id(asked) == 0 && rdma_destroy_id(id) == 0 && rdma_destroy_id(listener) == 0);
	rdma_destroy_event_channel(server);
	rdma_destroy_event_channel(client);
}

static struct rdma_cm_id *endpoint(int flags, uint16_t port, struct ibv_qp_init_attr *attr)
{
	struct rdma_addrinfo hints = {.ai_flags = flags | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_UDP}, *info;
	char host[NI_MAXHOST], service[8];
	socklen_t length = address.ss_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
	CHECK(getnameinfo((struct sockaddr *)&address, length, host, sizeof(host), NULL, 0, NI_NUMERICHOST) == 0);
	snprintf(service, sizeof(service), "%d", ntohs(port));
	CHECK(rdma_getaddrinfo(host, service, &hints, &info) == 0 && info->ai_qp_type == IBV_QPT_UD);
	struct rdma_cm_id *id;
	CHECK(rdma_create_ep(&id, info, NULL, attr) == 0);
	rdma_freeaddrinfo(info);
	return id;
}

static void *ask(void *port)
{
	struct ibv_qp_init_attr attr = wish(NULL, IBV_QPT_UD);
	struct rdma_cm_id *id = endpoint(0, (uint16_t)(uintptr_t)port, &attr);
	CHECK(id->qp != NULL && rdma_connect(id, NULL) == 0);
	CHECK(id->event != NULL && id->event->event == RDMA_CM_EVENT_ESTABLISHED);
	uint32_t number = id->event->param.ud.qp_num;
	CHECK(id->event->param.ud.qkey == QKEY);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, NULL) == -1 && errno == EINVAL);
	rdma_destroy_ep(id);
	return (void *)(uintptr_t)number;
}

/* rdma_create_ep(3), rdma_get_request(3): calls that wait for what comes, and for nothing else. */
static void synchronous(void)
{
	struct ibv_qp_init_attr attr = wish(NULL, IBV_QPT_UD);
	struct rdma_cm_id *listener = endpoint(RAI_PASSIVE, 0, &attr), *request;
	CHECK(rdma_listen(listener, 0) == 0);
	pthread_t thread;
	void *found;
	CHECK(pthread_create(&thread, NULL, ask, (void *)(uintptr_t)rdma_get_src_port(listener)) == 0);
	CHECK(rdma_get_request(listener, &request) == 0 && request->qp != NULL);
	CHECK(rdma_accept(request, NULL) == 0);
	CHECK(pthread_join(thread, &found) == 0 && (uintptr_t)found == request->qp->qp_num);
	rdma_destroy_ep(request);
	rdma_destroy_ep(listener);
}

/* rdma_join_multicast(3), rdma_join_multicast_ex(3), rdma_leave_multicast(3). */
static void multicast(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id, *tcp;
	int mark;
	CHECK(rdma_create_id(channel, &tcp, NULL, RDMA_PS_TCP) == 0 && rdma_bind_addr(tcp, at_port(0)) == 0);
	CHECK(rdma_join_multicast(tcp, (struct sockaddr *)&group, &mark) == -1 && errno == EINVAL);
	CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, &mark) == -1 && errno == EINVAL);
	CHECK(rdma_bind_addr(id, at_port(0)) == 0);
	CHECK(rdma_join_multicast(id, at_port(0), &mark) == -1 && errno == EINVAL);
	/* Nor without a device. */
	CHECK(rdma_join_multicast(id, (struct sockaddr *)&group, &mark) == -1 && errno == EINVAL);
	CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&group, TIMEOUT_MS) == 0);
	CHECK(take(channel, RDMA_CM_EVENT_ADDR_RESOLVED) == id && id->verbs != NULL);
	CHECK(rdma_leave_multicast(id, (struct sockaddr *)&group) == -1 && errno == EADDRNOTAVAIL);
	struct ibv_cq *cq = ibv_create_cq(id->verbs, 16, NULL, NULL, 0);
	CHECK(cq != NULL);
	struct ibv_qp_init_attr attr = wish(cq, IBV_QPT_UD);
	CHECK(rdma_create_qp(id, NULL, &attr) == 0);
	for (int extended = 0; extended < 2; extended++) {
		struct rdma_cm_join_mc_attr_ex join = {.addr = (struct sockaddr *)&group};
		join.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
		join.join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER;
		CHECK((extended ? rdma_join_multicast_ex(id, &join, &mark)
				: rdma_join_multicast(id, (struct sockaddr *)&group, &mark)) == 0);
		struct rdma_cm_event *joined = next(channel, RDMA_CM_EVENT_MULTICAST_JOIN);
		CHECK(joined->id == id && joined->param.ud.private_data == &mark);
		CHECK(joined->param.ud.qp_num == 0xffffff && joined->param.ud.qkey == QKEY);
		CHECK(same_gid(&joined->param.ud.ah_attr.grh.dgid, &group));
		CHECK(rdma_ack_cm_event(joined) == 0);
		CHECK(rdma_leave_multicast(id, (struct sockaddr *)&group) == 0);
	}
	rdma_destroy_qp(id);
	CHECK(ibv_destroy_cq(cq) == 0 && rdma_destroy_id(id) == 0 && rdma_destroy_id(tcp) == 0);
	rdma_destroy_event_channel(channel);
}

int main(int count, char **arguments)
{
	if (count != 3) {
		fprintf(stderr, "usage: %s ADDRESS GROUP\n", arguments[0]);
		return 2;
	}
	parse(arguments[1], &address);
	parse(arguments[2], &group);
	alarm(PATIENCE_S);
	own_queue_pairs();
	datagrams();
	synchronous();
	multicast();
	printf("%d checks, all as the manual pages say\n", checks);
	return 0;
}
