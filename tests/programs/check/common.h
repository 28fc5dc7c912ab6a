// What the programs of this folder share: two connected queue pairs in one process, or one in each of two processes. Calls that must succeed are
// checked, and each wait has a bound.
#ifndef COMMON_H
#define COMMON_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// Of a completion that must come, on a busy machine, too; and of one that a bug keeps away.
#define LONG_MS 60000
#define SHORT_MS 300

#define REMOTE (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static inline void fail(const char *what)
{
	perror(what);
	exit(1);
}

// A call that must answer 0, and one that must answer an object.
#define zero(call)                                                                                                     \
	do {                                                                                                           \
		if (call)                                                                                              \
			fail(#call);                                                                                   \
	} while (0)
#define some(call)                                                                                                     \
	({                                                                                                             \
		__typeof__(call) made_ = (call);                                                                       \
		if (!made_)                                                                                            \
			fail(#call);                                                                                   \
		made_;                                                                                                 \
	})

struct settings {
	int depth;          // requests in each queue, 16 unless given
	int elements;       // for each request, 1 unless given
	int inline_bytes;   // 0 unless given
	int entries;        // of each completion queue, 64 unless given
	int signal_all;     // each send has a completion
	int with_events;    // the queue of received messages has a completion channel
	int with_srq;       // receives come from a shared receive queue
};

struct end {
	struct rdma_cm_id *id;
	struct ibv_qp *qp;
	struct ibv_cq *sent, *received;
};

struct pair {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *events;
	struct ibv_srq *srq;
	struct end a, b; // the client, and the server
	pid_t child;
	int words; // to the other process
};

static inline struct rdma_cm_id *expect_event(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;
	zero(rdma_get_cm_event(channel, &event));
	struct rdma_cm_id *id = event->id;
	if (event->event != wanted) {
		fprintf(stderr, "%s, not %s\n", rdma_event_str(event->event), rdma_event_str(wanted));
		exit(1);
	}
	zero(rdma_ack_cm_event(event));
	return id;
}

static inline void make_pair(struct pair *pair, struct end *end, struct settings settings)
{
	int entries = settings.entries ? settings.entries : 64;
	pair->context = end->id->verbs;
	if (!pair->pd)
		pair->pd = some(ibv_alloc_pd(pair->context));
	if (settings.with_events && !pair->events)
		pair->events = some(ibv_create_comp_channel(pair->context));
	end->sent = some(ibv_create_cq(pair->context, entries, NULL, NULL, 0));
	end->received = some(ibv_create_cq(pair->context, entries, NULL, pair->events, 0));
	struct ibv_qp_init_attr attributes = {.send_cq = end->sent, .recv_cq = end->received, .qp_type = IBV_QPT_RC};
	attributes.sq_sig_all = settings.signal_all;
	attributes.cap.max_send_wr = attributes.cap.max_recv_wr = settings.depth ? settings.depth : 16;
	attributes.cap.max_send_sge = attributes.cap.max_recv_sge = settings.elements ? settings.elements : 1;
	attributes.cap.max_inline_data = settings.inline_bytes;
	if (settings.with_srq) {
		struct ibv_srq_init_attr shared = {.attr = {.max_wr = attributes.cap.max_recv_wr, .max_sge = 1}};
		if (!pair->srq)
			pair->srq = some(ibv_create_srq(pair->pd, &shared));
		attributes.srq = pair->srq;
	}
	zero(rdma_create_qp(end->id, pair->pd, &attributes));
	end->qp = end->id->qp;
}

static inline struct sockaddr_in local_address(int port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return address;
}

static inline int listen_somewhere(struct pair *pair)
{
	struct sockaddr_in address = local_address(0);
	zero(rdma_create_id(pair->channel, &pair->listener, NULL, RDMA_PS_TCP));
	zero(rdma_bind_addr(pair->listener, (struct sockaddr *)&address));
	zero(rdma_listen(pair->listener, 4));
	return ntohs(rdma_get_src_port(pair->listener));
}

static inline struct rdma_conn_param connection(void)
{
	return (struct rdma_conn_param){.responder_resources = 4, .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7};
}

static inline void begin_client(struct pair *pair, int port, struct settings settings)
{
	struct sockaddr_in address = local_address(port);
	zero(rdma_create_id(pair->channel, &pair->a.id, NULL, RDMA_PS_TCP));
	zero(rdma_resolve_addr(pair->a.id, NULL, (struct sockaddr *)&address, LONG_MS));
	expect_event(pair->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	zero(rdma_resolve_route(pair->a.id, LONG_MS));
	expect_event(pair->channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_pair(pair, &pair->a, settings);
	struct rdma_conn_param parameters = connection();
	zero(rdma_connect(pair->a.id, &parameters));
}

static inline void begin_server(struct pair *pair, struct settings settings)
{
	pair->b.id = expect_event(pair->channel, RDMA_CM_EVENT_CONNECT_REQUEST);
	make_pair(pair, &pair->b, settings);
	struct rdma_conn_param parameters = connection();
	zero(rdma_accept(pair->b.id, &parameters));
}

// Two connected queue pairs of this process.
static inline struct pair connect_pair(struct settings settings)
{
	struct pair pair = {.channel = some(rdma_create_event_channel())};
	begin_client(&pair, listen_somewhere(&pair), settings);
	begin_server(&pair, settings);
	expect_event(pair.channel, RDMA_CM_EVENT_ESTABLISHED);
	expect_event(pair.channel, RDMA_CM_EVENT_ESTABLISHED);
	return pair;
}

// The end of this process.
static inline struct end *mine(struct pair *pair)
{
	return pair->child ? &pair->b : &pair->a;
}

static inline void tell(struct pair *pair, const void *bytes, size_t length)
{
	if (write(pair->words, bytes, length) != (ssize_t)length)
		fail("write");
}

static inline void hear(struct pair *pair, void *bytes, size_t length)
{
	if (recv(pair->words, bytes, length, MSG_WAITALL) != (ssize_t)length)
		fail("recv");
}

// The server is the parent, and the client is a child that was forked before any call of verbs.
static inline struct pair connect_processes(struct settings settings)
{
	struct pair pair = {0};
	int words[2], port;
	zero(socketpair(AF_UNIX, SOCK_STREAM, 0, words));
	pair.child = fork();
	if (pair.child < 0)
		fail("fork");
	pair.words = words[!pair.child];
	close(words[!!pair.child]);
	pair.channel = some(rdma_create_event_channel());
	if (pair.child) {
		port = listen_somewhere(&pair);
		tell(&pair, &port, sizeof port);
		begin_server(&pair, settings);
	} else {
		hear(&pair, &port, sizeof port);
		begin_client(&pair, port, settings);
	}
	expect_event(pair.channel, RDMA_CM_EVENT_ESTABLISHED);
	return pair;
}

static inline void close_end(struct end *end)
{
	if (!end->id)
		return;
	if (end->id->qp)
		rdma_destroy_qp(end->id);
	zero(rdma_destroy_id(end->id));
	zero(ibv_destroy_cq(end->sent));
	zero(ibv_destroy_cq(end->received));
}

// All regions have been deregistered before.
static inline void close_pair(struct pair *pair)
{
	if (pair->a.id)
		rdma_disconnect(pair->a.id);
	close_end(&pair->a);
	close_end(&pair->b);
	if (pair->srq)
		zero(ibv_destroy_srq(pair->srq));
	if (pair->events)
		zero(ibv_destroy_comp_channel(pair->events));
	zero(ibv_dealloc_pd(pair->pd));
	if (pair->listener)
		zero(rdma_destroy_id(pair->listener));
	rdma_destroy_event_channel(pair->channel);
	if (pair->words)
		close(pair->words);
	int status = 0;
	if (pair->child && (waitpid(pair->child, &status, 0) != pair->child || status))
		fail("the client");
}

static inline struct ibv_context *open_device(void)
{
	struct ibv_device **devices = some(ibv_get_device_list(NULL));
	struct ibv_context *context = some(ibv_open_device(some(devices[0])));
	ibv_free_device_list(devices);
	return context;
}

static inline struct ibv_mr *new_region(struct ibv_pd *pd, size_t length, int access)
{
	char *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (bytes == MAP_FAILED)
		fail("mmap");
	return some(ibv_reg_mr(pd, bytes, length, access));
}

static inline void end_region(struct ibv_mr *mr)
{
	void *bytes = mr->addr;
	size_t length = mr->length;
	zero(ibv_dereg_mr(mr));
	munmap(bytes, length);
}

static inline struct ibv_sge piece(struct ibv_mr *mr, size_t offset, size_t length)
{
	return (struct ibv_sge){.addr = (uintptr_t)mr->addr + offset, .length = length, .lkey = mr->lkey};
}

static inline struct ibv_send_wr request(uint64_t wr_id, enum ibv_wr_opcode opcode, struct ibv_sge *list, unsigned flags)
{
	return (struct ibv_send_wr){.wr_id = wr_id, .opcode = opcode, .sg_list = list, .num_sge = 1, .send_flags = flags};
}

// A Write, a Read or an atomic operation on bytes of a region.
static inline struct ibv_send_wr one_sided(uint64_t wr_id, enum ibv_wr_opcode opcode, struct ibv_sge *list, struct ibv_mr *target, size_t offset)
{
	struct ibv_send_wr wr = request(wr_id, opcode, list, IBV_SEND_SIGNALED);
	wr.wr.rdma.remote_addr = (uintptr_t)target->addr + offset;
	wr.wr.rdma.rkey = target->rkey;
	return wr;
}

static inline void post_send(struct ibv_qp *qp, uint64_t wr_id, struct ibv_mr *mr, size_t offset, size_t length)
{
	struct ibv_sge list = piece(mr, offset, length);
	struct ibv_send_wr wr = request(wr_id, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
	zero(ibv_post_send(qp, &wr, &bad));
}

static inline void post_receive(struct ibv_qp *qp, uint64_t wr_id, struct ibv_mr *mr, size_t offset, size_t length)
{
	struct ibv_sge list = piece(mr, offset, length);
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &list, .num_sge = 1}, *bad;
	zero(ibv_post_recv(qp, &wr, &bad));
}

static inline long now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Whether a completion comes in time.
static inline int comes(struct ibv_cq *cq, struct ibv_wc *wc, long limit_ms)
{
	long end = now_ms() + limit_ms;
	do {
		int count = ibv_poll_cq(cq, 1, wc);
		if (count < 0)
			fail("ibv_poll_cq");
		if (count)
			return 1;
		usleep(100);
	} while (now_ms() < end);
	return 0;
}

// The next completion, of any status.
static inline struct ibv_wc wait_any(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	if (!comes(cq, &wc, LONG_MS)) {
		fprintf(stderr, "no completion comes\n");
		exit(1);
	}
	return wc;
}

// As many completions, all of success.
static inline struct ibv_wc wait_good(struct ibv_cq *cq, int count)
{
	struct ibv_wc wc = {0};
	for (int i = 0; i < count; i++) {
		wc = wait_any(cq);
		if (wc.status != IBV_WC_SUCCESS) {
			fprintf(stderr, "request %#lx: %s\n", (long)wc.wr_id, ibv_wc_status_str(wc.status));
			exit(1);
		}
	}
	return wc;
}

static inline void post_empty_receive(struct ibv_qp *qp)
{
	struct ibv_recv_wr wr = {.wr_id = 99}, *bad;
	zero(ibv_post_recv(qp, &wr, &bad));
}

// A message behind all Writes of the client: when it has arrived, so have they. Over iWARP their completions do not say so.
static inline void wait_placed(struct pair *pair)
{
	struct ibv_send_wr wr = {.wr_id = 99, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
	post_empty_receive(pair->b.qp);
	zero(ibv_post_send(pair->a.qp, &wr, &bad));
	wait_good(pair->a.sent, 1);
	wait_good(pair->b.received, 1);
}

// A Read behind all messages of the client: when it is done, they have arrived. The server's region permits Reads.
static inline void wait_arrived(struct pair *pair, struct ibv_mr *mr)
{
	struct ibv_sge list = piece(mr, 0, 0);
	struct ibv_send_wr wr = one_sided(99, IBV_WR_RDMA_READ, &list, mr, 0), *bad;
	zero(ibv_post_send(pair->a.qp, &wr, &bad));
	while (wait_good(pair->a.sent, 1).wr_id != 99)
		;
}

// The end of a connection that a refused request breaks: a receive of the client is flushed.
static inline void wait_broken(struct pair *pair)
{
	post_empty_receive(pair->a.qp);
	wait_any(pair->a.received);
}

// The attributes that lead a reliable connection of RoCE from one state to the next, without rdma_cm.
#define TO_INIT (IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
#define TO_RTR (IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER)
#define TO_RTS (IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC)

static inline struct ibv_ah_attr address_of(struct ibv_context *context)
{
	struct ibv_ah_attr attributes = {.is_global = 1, .port_num = 1, .grh = {.hop_limit = 64}};
	zero(ibv_query_gid(context, 1, 0, &attributes.grh.dgid));
	return attributes;
}

static inline struct ibv_qp_attr attributes_for(struct ibv_context *context, enum ibv_qp_state state, uint32_t peer)
{
	return (struct ibv_qp_attr){
		.qp_state = state,
		.port_num = 1,
		.qp_access_flags = REMOTE,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.max_dest_rd_atomic = 4,
		.max_rd_atomic = 4,
		.min_rnr_timer = 12,
		.timeout = 14,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.ah_attr = address_of(context),
	};
}

// A queue pair that is connected with nobody yet, and its completion queue.
static inline struct ibv_qp *new_queue_pair(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr attributes = {.send_cq = cq, .recv_cq = cq, .qp_type = type};
	attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 16;
	attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
	return some(ibv_create_qp(pd, &attributes));
}

// Leads a queue pair to RTS, as its own peer if no other is named.
static inline void to_ready(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attributes = attributes_for(qp->context, IBV_QPS_INIT, peer ? peer : qp->qp_num);
	zero(ibv_modify_qp(qp, &attributes, TO_INIT));
	attributes.qp_state = IBV_QPS_RTR;
	zero(ibv_modify_qp(qp, &attributes, TO_RTR));
	attributes.qp_state = IBV_QPS_RTS;
	zero(ibv_modify_qp(qp, &attributes, TO_RTS));
}

// A work queue for frames, not ready yet.
static inline struct ibv_wq *new_work_queue(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_wq_init_attr attributes = {.wq_type = IBV_WQT_RQ, .max_wr = 16, .max_sge = 1, .pd = pd, .cq = cq};
	return some(ibv_create_wq(context, &attributes));
}

static inline void ready_work_queue(struct ibv_wq *wq)
{
	struct ibv_wq_attr attributes = {.attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_RDY};
	zero(ibv_modify_wq(wq, &attributes));
}

static inline void post_frame(struct ibv_wq *wq, uint64_t wr_id, struct ibv_mr *mr, size_t offset, size_t length)
{
	struct ibv_sge list = piece(mr, offset, length);
	struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = &list, .num_sge = 1}, *bad;
	zero(ibv_post_wq_recv(wq, &wr, &bad));
}

// Two queue pairs for datagrams, ready, and how each is reached.
struct datagrams {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *sent, *received;
	struct ibv_qp *from, *to;
	struct ibv_ah *way;
};

static inline void ready_datagrams(struct ibv_qp *qp)
{
	struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234};
	zero(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attributes.qp_state = IBV_QPS_RTR;
	zero(ibv_modify_qp(qp, &attributes, IBV_QP_STATE));
	attributes.qp_state = IBV_QPS_RTS;
	zero(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_SQ_PSN));
}

static inline struct datagrams open_datagrams(void)
{
	struct datagrams made = {.context = open_device()};
	made.pd = some(ibv_alloc_pd(made.context));
	made.sent = some(ibv_create_cq(made.context, 64, NULL, NULL, 0));
	made.received = some(ibv_create_cq(made.context, 64, NULL, NULL, 0));
	made.from = new_queue_pair(made.pd, made.sent, IBV_QPT_UD);
	made.to = new_queue_pair(made.pd, made.received, IBV_QPT_UD);
	ready_datagrams(made.from);
	ready_datagrams(made.to);
	struct ibv_ah_attr address = address_of(made.context);
	made.way = some(ibv_create_ah(made.pd, &address));
	return made;
}

static inline void send_datagram(struct datagrams *between, uint64_t wr_id, struct ibv_mr *mr, size_t length)
{
	struct ibv_sge list = piece(mr, 0, length);
	struct ibv_send_wr wr = request(wr_id, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
	wr.wr.ud.ah = between->way;
	wr.wr.ud.remote_qpn = between->to->qp_num;
	wr.wr.ud.remote_qkey = 0x1234;
	zero(ibv_post_send(between->from, &wr, &bad));
}

static inline void close_datagrams(struct datagrams *made)
{
	zero(ibv_destroy_ah(made->way));
	zero(ibv_destroy_qp(made->from));
	if (made->to)
		zero(ibv_destroy_qp(made->to));
	zero(ibv_destroy_cq(made->sent));
	zero(ibv_destroy_cq(made->received));
	zero(ibv_dealloc_pd(made->pd));
	zero(ibv_close_device(made->context));
}

#endif
