/* How much of its stack a thread needs for each call, from opening a device to closing it: not more than the smallest stack that there is.
 * Each step is made by a thread of its own, on a stack that says afterwards how far down somebody has written, and some is to be spare for a signal. With "walk" as the third argument
 * the stacks really are that small.
 *
 * stacks ADDRESS verbs|rsockets|sockets [walk]
 *
 * verbs: two processes whose queue pairs attributes connect, of every service, where attributes can; then two ends of one process by rdma_cm.
 * rsockets: two processes by librdmacm's functions. sockets: the same by the C library's, in front of which librspreload.so is to stand.
 *
 * Prints how deep the deepest was, with what libc itself puts on a thread's stack; and with STACKS_SAY in its environment each step. */

#define _GNU_SOURCE

#include "check.h"
#include "pair.h"
#include <fcntl.h>
#include <limits.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <signal.h>
#include <unistd.h>

enum { ROOM = 1 << 20, BYTES = 1 << 20, PAINT = 0x5a, SPARE = 1024, QKEY = 0x1111, GRH = 40 };

static const char *address;
static int walks, deepest, most;
static struct rdma_event_channel *channel;
static struct rdma_cm_id *listener, *ends[2];
static struct ibv_comp_channel *completions[2];
static struct ibv_cq *cq[2];
static struct ibv_pd *pd[2];
static struct ibv_mr *mr[2];
static struct ibv_srq *srq;
static char *memory[2];
static int side;
static enum ibv_wr_opcode opcode;
static uint32_t length;

static void *start(void *step)
{
	((void (*)(void))step)();
	return NULL;
}

/* Takes the step in a thread of its own, and returns how many bytes of its stack were written. */
static int depth(void (*step)(void))
{
	pthread_attr_t attr;
	pthread_t thread;
	size_t room = walks ? PTHREAD_STACK_MIN : ROOM, untouched = 0;
	unsigned char *stack = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(stack != MAP_FAILED);
	if (!walks)
		memset(stack, PAINT, ROOM);
	else
		RETURNS(0, mprotect(stack, ROOM - room, PROT_NONE));
	RETURNS(0, pthread_attr_init(&attr));
	RETURNS(0, pthread_attr_setstack(&attr, stack + ROOM - room, room));
	RETURNS(0, pthread_create(&thread, &attr, start, step));
	RETURNS(0, pthread_join(thread, NULL));
	while (!walks && untouched < ROOM && stack[untouched] == PAINT)
		untouched++;
	munmap(stack, ROOM);
	return walks ? 0 : ROOM - untouched;
}

static void nothing(void) {}

static void take(const char *name, void (*step)(void))
{
	int bytes = depth(step);

	if (bytes > deepest)
		deepest = bytes;
	if (!walks && (bytes + SPARE > PTHREAD_STACK_MIN || getenv("STACKS_SAY")))
		fprintf(stderr, "%-30s %6d bytes\n", name, bytes);
}
#define TAKE(step) take(#step, step)

static void open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_device_attr attr;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	RETURNS(0, ibv_query_device(context, &attr));
	RETURNS(0, ibv_close_device(context));
	ibv_free_device_list(list);
}

static void name_of(struct sockaddr_in *name, int port)
{
	*name = (struct sockaddr_in){ .sin_family = AF_INET, .sin_port = htons(port) };
	CHECK(inet_pton(AF_INET, address, &name->sin_addr) == 1);
}

static void make_channel(void) { channel = rdma_create_event_channel(); CHECK(channel); }
static void make_ids(void)
{
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	CHECK(!rdma_create_id(channel, &ends[0], NULL, RDMA_PS_TCP));
}
static void listen_there(void)
{
	struct sockaddr_in name;

	name_of(&name, 0);
	CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&name));
	CHECK(!rdma_listen(listener, 4));
}
static void resolve_address(void)
{
	struct sockaddr_in name;

	name_of(&name, ntohs(rdma_get_src_port(listener)));
	CHECK(!rdma_resolve_addr(ends[0], NULL, (struct sockaddr *)&name, 2000));
}
static void resolve_route(void) { CHECK(!rdma_resolve_route(ends[0], 2000)); }

static struct rdma_cm_event *event;
static void get_event(void) { CHECK(!rdma_get_cm_event(channel, &event)); }
static void ack_event(void) { CHECK(!rdma_ack_cm_event(event)); }
/* Waits without a call of the library, so that the background thread does what there is to do, and takes the event. */
static void expect(enum rdma_cm_event_type type)
{
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };

	CHECK(poll(&readable, 1, -1) == 1);
	TAKE(get_event);
	CHECK(event->event == type);
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
		ends[1] = event->id;
	TAKE(ack_event);
}

static void make_queues(void)
{
	completions[side] = ibv_create_comp_channel(ends[side]->verbs);
	pd[side] = ibv_alloc_pd(ends[side]->verbs);
	cq[side] = ibv_create_cq(ends[side]->verbs, 64, NULL, completions[side], 0);
	CHECK(completions[side] && pd[side] && cq[side]);
}
static void register_memory(void)
{
	memory[side] = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory[side] != MAP_FAILED);
	mr[side] = ibv_reg_mr(pd[side], memory[side], BYTES, ALL);
	CHECK(mr[side]);
}
static void make_shared_queue(void)
{
	struct ibv_srq_init_attr attr = { .attr = { .max_wr = 16, .max_sge = 1 } };

	srq = ibv_create_srq(pd[1], &attr);
	CHECK(srq);
	RETURNS(0, ibv_destroy_srq(srq));
}
static void make_queue_pair(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq[side], .recv_cq = cq[side], .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	CHECK(!rdma_create_qp(ends[side], pd[side], &attr));
}
static void post_receive(void)
{
	struct ibv_sge piece = { (uintptr_t)memory[side], BYTES / 2, mr[side]->lkey };
	struct ibv_recv_wr wr = { .sg_list = &piece, .num_sge = 1 }, *bad;

	RETURNS(0, ibv_post_recv(ends[side]->qp, &wr, &bad));
}
static void connect_there(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };

	CHECK(!rdma_connect(ends[0], &param));
}
static void accept_there(void)
{
	struct rdma_conn_param param = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7 };

	CHECK(!rdma_accept(ends[1], &param));
}
static void post_send(void)
{
	struct ibv_sge piece = { (uintptr_t)memory[side], length, mr[side]->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &piece, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)memory[!side], .rkey = mr[!side]->rkey },
	}, *bad;

	RETURNS(0, ibv_post_send(ends[side]->qp, &wr, &bad));
}
static void arm(void) { RETURNS(0, ibv_req_notify_cq(cq[side], 0)); }
static int polled, flushes;
static void poll_once(void)
{
	struct ibv_wc wc;
	int count = ibv_poll_cq(cq[side], 1, &wc);

	CHECK(count >= 0);
	CHECK(!count || flushes || wc.status == IBV_WC_SUCCESS);
	polled += count;
}
/* Polls both sides until so many completions have come. */
static void complete(int completions)
{
	for (polled = 0; polled < completions; side = !side)
		TAKE(poll_once);
}
static void get_completion_event(void)
{
	struct ibv_cq *which;
	void *context;

	CHECK(!ibv_get_cq_event(completions[side], &which, &context));
	ibv_ack_cq_events(which, 1);
}
static void disconnect(void) { CHECK(!rdma_disconnect(ends[side])); }
static void destroy_queue_pair(void) { rdma_destroy_qp(ends[side]); }
static void destroy(void)
{
	RETURNS(0, ibv_destroy_cq(cq[side]));
	RETURNS(0, ibv_destroy_comp_channel(completions[side]));
	RETURNS(0, ibv_dereg_mr(mr[side]));
	RETURNS(0, ibv_dealloc_pd(pd[side]));
	CHECK(!rdma_destroy_id(ends[side]));
}
static void end(void)
{
	CHECK(!rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
}

/* Messages of every length, by each operation, both ways. */
static void transfer(void)
{
	static const enum ibv_wr_opcode all[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	static const uint32_t lengths[] = { 8, 4096, 100000, BYTES / 2 };

	for (unsigned i = 0; i < sizeof(all) / sizeof(*all) * 4 * 2 * 8; i++) {
		side = i & 1;
		opcode = all[i / 2 % 3];
		length = lengths[i / 6 % 4];
		if (opcode == IBV_WR_SEND) {
			side = !side;
			TAKE(post_receive);
			side = !side;
		}
		TAKE(post_send);
		complete(opcode == IBV_WR_SEND ? 2 : 1);
	}
	/* Somebody sleeps. */
	for (int i = 0; i < 8; i++) {
		opcode = IBV_WR_SEND;
		length = 64;
		side = 1;
		TAKE(post_receive);
		TAKE(arm);
		side = 0;
		TAKE(post_send);
		side = 1;
		TAKE(get_completion_event);
		complete(2);
	}
}

/* What two processes tell each other. */
struct card { uint32_t connected, unreliable, initiator, target, shared, datagrams, rkey; uint64_t address; };
static struct card here, there;
static int to_peer, from_peer;
static struct ibv_context *context;
/* Of each service. A reliable connection that shares its receives has two ends that differ, of which each process has both. */
static struct ibv_qp *connected, *unreliable, *initiator, *target, *datagrams;
static struct ibv_xrcd *xrc_domain;
static struct ibv_srq *xrc_receives;
static struct ibv_ah *handle;

static void say(void) { CHECK(write(to_peer, &here, sizeof(here)) == sizeof(here)); }
static void hear(void) { CHECK(read(from_peer, &there, sizeof(there)) == sizeof(there)); }

static void open_apart(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);

	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
}
static void make_apart(void)
{
	struct ibv_qp_init_attr attr = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 } };

	CHECK((pd[0] = ibv_alloc_pd(context)) && (cq[0] = ibv_create_cq(context, 64, NULL, NULL, 0)));
	attr.send_cq = attr.recv_cq = cq[0];
	CHECK((connected = ibv_create_qp(pd[0], &attr)));
	attr.qp_type = IBV_QPT_UC;
	CHECK((unreliable = ibv_create_qp(pd[0], &attr)));
	attr.qp_type = IBV_QPT_UD;
	CHECK((datagrams = ibv_create_qp(pd[0], &attr)));
}
static void make_xrc(void)
{
	struct ibv_xrcd_init_attr domain = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_srq_init_attr_ex receives = {
		.attr = { .max_wr = 16, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd[0], .cq = cq[0],
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
	};
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq[0], .recv_cq = cq[0], .pd = pd[0], .cap = { .max_send_wr = 16, .max_send_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
	};

	CHECK((receives.xrcd = xrc_domain = ibv_open_xrcd(context, &domain)));
	CHECK((xrc_receives = ibv_create_srq_ex(context, &receives)));
	CHECK((initiator = ibv_create_qp_ex(context, &attr)));
	attr = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrc_domain, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	CHECK((target = ibv_create_qp_ex(context, &attr)));
	RETURNS(0, ibv_get_srq_num(xrc_receives, &here.shared));
}
static struct ibv_qp_attr path(void)
{
	struct ibv_qp_attr attr = {
		.port_num = 1, .qp_access_flags = ALL, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
		.path_mtu = IBV_MTU_1024, .qkey = QKEY, .ah_attr = { .port_num = 1, .is_global = 1, .grh.hop_limit = 64 },
	};

	attr.ah_attr.grh.sgid_index = own_gid(context, address, &attr.ah_attr.grh.dgid);
	return attr;
}
static void connect_apart(void) { bring_up(connected, there.connected, path()); }
static void connect_xrc(void)
{
	bring_up(initiator, there.target, path());
	bring_up(target, there.initiator, path());
}
static void connect_unreliable(void)
{
	struct ibv_qp_attr attr = path();

	attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	attr.qp_state = IBV_QPS_INIT;
	RETURNS(0, ibv_modify_qp(unreliable, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.dest_qp_num = there.unreliable;
	RETURNS(0, ibv_modify_qp(unreliable, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN));
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(0, ibv_modify_qp(unreliable, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
}
static void begin_datagrams(void)
{
	struct ibv_qp_attr attr = path();

	attr.qp_state = IBV_QPS_INIT;
	RETURNS(0, ibv_modify_qp(datagrams, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	RETURNS(0, ibv_modify_qp(datagrams, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(0, ibv_modify_qp(datagrams, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	CHECK((handle = ibv_create_ah(pd[0], &attr.ah_attr)));
}
static struct ibv_qp *which;
static void receive_apart(void)
{
	struct ibv_sge piece = { (uintptr_t)memory[0], BYTES / 2, mr[0]->lkey };
	struct ibv_recv_wr wr = { .sg_list = &piece, .num_sge = 1 }, *bad;

	if (which == initiator)
		RETURNS(0, ibv_post_srq_recv(xrc_receives, &wr, &bad));
	else
		RETURNS(0, ibv_post_recv(which, &wr, &bad));
}
static void send_apart(void)
{
	struct ibv_sge piece = { (uintptr_t)memory[0], length, mr[0]->lkey };
	struct ibv_send_wr wr = { .sg_list = &piece, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;

	if (which == datagrams) {
		wr.wr.ud.ah = handle;
		wr.wr.ud.remote_qpn = there.datagrams;
		wr.wr.ud.remote_qkey = QKEY;
	} else {
		wr.wr.rdma.remote_addr = there.address;
		wr.wr.rdma.rkey = there.rkey;
		wr.qp_type.xrc.remote_srqn = there.shared;
	}
	RETURNS(0, ibv_post_send(which, &wr, &bad));
}
static void finish(void)
{
	for (side = 0, polled = 0; !polled;)
		TAKE(poll_once);
}
static void destroy_apart(void)
{
	RETURNS(0, ibv_destroy_ah(handle));
	RETURNS(0, ibv_destroy_qp(connected));
	RETURNS(0, ibv_destroy_qp(unreliable));
	RETURNS(0, ibv_destroy_qp(initiator));
	RETURNS(0, ibv_destroy_qp(target));
	RETURNS(0, ibv_destroy_srq(xrc_receives));
	RETURNS(0, ibv_close_xrcd(xrc_domain));
	RETURNS(0, ibv_destroy_qp(datagrams));
	RETURNS(0, ibv_destroy_cq(cq[0]));
	RETURNS(0, ibv_dereg_mr(mr[0]));
	RETURNS(0, ibv_dealloc_pd(pd[0]));
	RETURNS(0, ibv_close_device(context));
}
/* Messages of one queue pair between two processes, by so many of the operations; "passive" only receives. */
static void transfer_by(struct ibv_qp *pair, int operations, int passive)
{
	static const enum ibv_wr_opcode all[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	static const uint32_t lengths[] = { 8, 4096, 100000, BYTES / 2 };

	which = pair;
	for (int i = 0; i < operations * 4 * 8; i++) {
		opcode = all[i % operations];
		length = pair == datagrams ? 512 : lengths[i / operations % 4];
		if (passive && opcode == IBV_WR_SEND) {
			TAKE(receive_apart);
			say();
			finish();
		} else if (!passive) {
			if (opcode == IBV_WR_SEND)
				hear();
			TAKE(send_apart);
			finish();
		}
	}
}
static void transfer_apart(int passive)
{
	transfer_by(connected, 3, passive);
	transfer_by(unreliable, 2, passive);
	transfer_by(initiator, 3, passive);
	transfer_by(datagrams, 1, passive);
	/* Whoever is last is waited for. */
	if (passive)
		hear();
	else
		say();
}
/* Two ends in two processes, where attributes can connect: the other one is a child that began before there was an engine. */
static void apart(int passive)
{
	TAKE(open_apart);
	if (context->device->transport_type != IBV_TRANSPORT_IB) {
		RETURNS(0, ibv_close_device(context));
		return;
	}
	side = 0;
	TAKE(make_apart);
	TAKE(make_xrc);
	TAKE(register_memory);
	here = (struct card){
		connected->qp_num, unreliable->qp_num, initiator->qp_num, target->qp_num, here.shared, datagrams->qp_num, mr[0]->rkey, (uintptr_t)memory[0],
	};
	say();
	hear();
	TAKE(connect_apart);
	TAKE(connect_unreliable);
	TAKE(connect_xrc);
	TAKE(begin_datagrams);
	say();
	hear();
	transfer_apart(passive);
	TAKE(destroy_apart);
}

/* What sockets are made of: functions of librdmacm, or of the C library. */
struct calls {
	int (*socket)(int, int, int), (*listen)(int, int), (*shutdown)(int, int), (*close)(int);
	int (*bind)(int, const struct sockaddr *, socklen_t), (*connect)(int, const struct sockaddr *, socklen_t);
	int (*accept)(int, struct sockaddr *, socklen_t *), (*name)(int, struct sockaddr *, socklen_t *), (*peer)(int, struct sockaddr *, socklen_t *);
	int (*set)(int, int, int, const void *, socklen_t), (*get)(int, int, int, void *, socklen_t *);
	int (*poll)(struct pollfd *, nfds_t, int), (*select)(int, fd_set *, fd_set *, fd_set *, struct timeval *), (*fcntl)(int, int, ...);
	ssize_t (*send)(int, const void *, size_t, int), (*recv)(int, void *, size_t, int);
	ssize_t (*write)(int, const void *, size_t), (*read)(int, void *, size_t);
	ssize_t (*writev)(int, const struct iovec *, int), (*readv)(int, const struct iovec *, int);
	ssize_t (*sendmsg)(int, const struct msghdr *, int), (*recvmsg)(int, struct msghdr *, int);
	ssize_t (*sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t), (*recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
};
static const struct calls *by, with_r = {
	.socket = rsocket, .listen = rlisten, .shutdown = rshutdown, .close = rclose, .bind = rbind, .connect = rconnect, .accept = raccept,
	.name = rgetsockname, .peer = rgetpeername, .set = rsetsockopt, .get = rgetsockopt, .poll = rpoll, .select = rselect, .fcntl = rfcntl,
	.send = rsend, .recv = rrecv, .write = rwrite, .read = rread, .writev = rwritev, .readv = rreadv,
	.sendmsg = rsendmsg, .recvmsg = rrecvmsg, .sendto = rsendto, .recvfrom = rrecvfrom,
}, plain = {
	.socket = socket, .listen = listen, .shutdown = shutdown, .close = close, .bind = bind, .connect = connect, .accept = accept,
	.name = getsockname, .peer = getpeername, .set = setsockopt, .get = getsockopt, .poll = poll, .select = select, .fcntl = fcntl,
	.send = send, .recv = recv, .write = write, .read = read, .writev = writev, .readv = readv,
	.sendmsg = sendmsg, .recvmsg = recvmsg, .sendto = sendto, .recvfrom = recvfrom,
};
static int at_home = -1, stream = -1, datagram = -1, watched = -1;
static struct sockaddr_in own, others;
static char *bytes;
static off_t window;

/* Parts of memory that the peer may write to by librdmacm. */
static int windows = 1;
static void make_socket(void)
{
	CHECK((at_home = by->socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(!by->set(at_home, SOL_RDMA, RDMA_IOMAPSIZE, &windows, sizeof(windows)));
}
static void make_stream(void)
{
	int value = 0, one = 1;
	socklen_t room = sizeof(value);

	CHECK((stream = by->socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(!by->set(stream, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)));
	CHECK(!by->set(stream, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)));
	/* A socket of the kernel does not know these. */
	CHECK(!by->set(stream, SOL_RDMA, RDMA_IOMAPSIZE, &windows, sizeof(windows)));
	CHECK(!by->get(stream, SOL_RDMA, RDMA_SQSIZE, &value, &room) && value > 0);
}
static void bind_there(void)
{
	socklen_t room = sizeof(own);

	name_of(&own, 0);
	CHECK(!by->bind(at_home, (struct sockaddr *)&own, sizeof(own)));
	CHECK(!by->listen(at_home, 4));
	CHECK(!by->name(at_home, (struct sockaddr *)&own, &room));
}
static void accept_stream(void)
{
	struct sockaddr_in name;
	socklen_t room = sizeof(name);

	CHECK((stream = by->accept(at_home, (struct sockaddr *)&name, &room)) >= 0);
	CHECK(!by->peer(stream, (struct sockaddr *)&name, &room));
}
static void connect_stream(void) { CHECK(!by->connect(stream, (struct sockaddr *)&others, sizeof(others))); }
static void wait_stream(void)
{
	struct pollfd entry = { .fd = stream, .events = POLLIN };

	CHECK(by->poll(&entry, 1, -1) == 1);
}
static void select_stream(void)
{
	fd_set readable;

	FD_ZERO(&readable);
	FD_SET(stream, &readable);
	CHECK(by->select(stream + 1, &readable, NULL, NULL, NULL) == 1);
}
static size_t done;
static void wrote(ssize_t count) { CHECK(count > 0); done += count; }
static void send_stream(void) { wrote(by->send(stream, bytes + done, length - done, 0)); }
static void write_stream(void) { wrote(by->write(stream, bytes + done, length - done)); }
static void writev_stream(void) { wrote(by->writev(stream, &(struct iovec){ bytes + done, length - done }, 1)); }
static void sendmsg_stream(void)
{
	wrote(by->sendmsg(stream, &(struct msghdr){ .msg_iov = &(struct iovec){ bytes + done, length - done }, .msg_iovlen = 1 }, 0));
}
static void recv_stream(void) { wrote(by->recv(stream, bytes + done, length - done, 0)); }
static void read_stream(void) { wrote(by->read(stream, bytes + done, length - done)); }
static void readv_stream(void) { wrote(by->readv(stream, &(struct iovec){ bytes + done, length - done }, 1)); }
static void recvmsg_stream(void)
{
	wrote(by->recvmsg(stream, &(struct msghdr){ .msg_iov = &(struct iovec){ bytes + done, length - done }, .msg_iovlen = 1 }, 0));
}
static void end_stream(void) { CHECK(!by->shutdown(stream, SHUT_WR)); }
static void find_end(void) { CHECK(by->recv(stream, bytes, 1, 0) == 0); }
static void close_stream(void) { CHECK(!by->close(stream)); }
static void close_home(void) { CHECK(!by->close(at_home)); }
static void do_not_wait(void) { CHECK(!by->fcntl(stream, F_SETFL, O_NONBLOCK) && by->recv(stream, bytes, 1, 0) < 0 && errno == EAGAIN && !by->fcntl(stream, F_SETFL, 0)); }
/* Datagrams of librdmacm need a device with such queue pairs; other programs have those of the kernel. */
static int has_datagrams(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	int has;

	CHECK(list && list[0]);
	has = by == &plain || list[0]->transport_type == IBV_TRANSPORT_IB;
	ibv_free_device_list(list);
	return has;
}
static void refuse_datagram(void) { FAILS(EOPNOTSUPP, by->socket(AF_INET, SOCK_DGRAM, 0)); }
static void make_datagram(void)
{
	socklen_t room = sizeof(own);

	CHECK((datagram = by->socket(AF_INET, SOCK_DGRAM, 0)) >= 0);
	name_of(&own, 0);
	CHECK(!by->bind(datagram, (struct sockaddr *)&own, sizeof(own)) && !by->name(datagram, (struct sockaddr *)&own, &room));
}
static void send_datagram(void) { CHECK(by->sendto(datagram, bytes, 512, 0, (struct sockaddr *)&others, sizeof(others)) == 512); }
static void receive_datagram(void)
{
	socklen_t room = sizeof(others);

	CHECK(by->recvfrom(datagram, bytes, 512, 0, (struct sockaddr *)&others, &room) == 512);
}
static void close_datagram(void) { CHECK(!by->close(datagram)); }
/* By librdmacm alone. */
static void open_window(void) { CHECK((window = riomap(stream, bytes, BYTES, PROT_WRITE, 0, -1)) >= 0); }
static void write_window(void) { CHECK(riowrite(stream, bytes, 4096, window, 0) == 4096); }
static void close_window(void) { RETURNS(0, riounmap(stream, bytes, BYTES)); }
/* By librspreload.so alone. */
static void watch_stream(void)
{
	struct epoll_event wanted = { .events = EPOLLIN };

	CHECK((watched = epoll_create1(0)) >= 0 && !epoll_ctl(watched, EPOLL_CTL_ADD, stream, &wanted));
}
static void wait_watched(void)
{
	struct epoll_event found;

	CHECK(epoll_wait(watched, &found, 1, -1) == 1 && found.events & EPOLLIN);
}
static void close_watched(void) { CHECK(!close(watched)); }

/* One end's part: bytes of every length by each call, first from the one that has connected. */
static void talk(int passive)
{
	static void (*const sends[])(void) = { send_stream, write_stream, writev_stream, sendmsg_stream };
	static void (*const receives[])(void) = { recv_stream, read_stream, readv_stream, recvmsg_stream };
	static const uint32_t lengths[] = { 8, 4096, 100000, BYTES / 2 };

	for (int i = 0; i < 4 * 4 * 2; i++) {
		int sender = (i & 1) == !!passive;

		length = lengths[i / 2 % 4];
		if (!sender && watched >= 0)
			TAKE(wait_watched);
		else if (!sender)
			take("wait", i & 2 ? wait_stream : select_stream);
		for (done = 0; done < length;)
			take(sender ? "send" : "receive", (sender ? sends : receives)[i / 8]);
	}
}
static void tell(void) { CHECK(write(to_peer, &own, sizeof(own)) == sizeof(own)); }
static void learn(void) { CHECK(read(from_peer, &others, sizeof(others)) == sizeof(others)); }
/* Further streams are made while messages come in on the first: a thread that connects or accepts meets packets of other queue pairs, and acknowledgements that they are to send. */
static int other = -1;
static void make_other(void) { CHECK((other = by->socket(AF_INET, SOCK_STREAM, 0)) >= 0); }
static void connect_other(void) { CHECK(!by->connect(other, (struct sockaddr *)&others, sizeof(others))); }
static void close_other(void) { CHECK(!by->close(other)); }
static void accept_at_once(void) { CHECK(!by->fcntl(at_home, F_SETFL, O_NONBLOCK)); }
static void accept_other(void)
{
	other = by->accept(at_home, NULL, NULL);
	CHECK(other >= 0 || errno == EAGAIN);
}
static uint32_t sent;
static void send_some(void)
{
	for (int i = 0; i < 100 && sent + 64 <= BYTES; i++) {
		ssize_t count = by->send(stream, bytes, 64, MSG_DONTWAIT);

		CHECK(count > 0 || errno == EAGAIN);
		if (count <= 0)
			return;
		sent += count;
	}
}
static void meet(int passive)
{
	if (passive)
		TAKE(accept_at_once);
	for (int i = 0; i < 16; i++) {
		if (passive) {
			learn();
			for (sent = 0, other = -1; other < 0;) {
				TAKE(send_some);
				TAKE(accept_other);
			}
			CHECK(write(to_peer, &sent, sizeof(sent)) == sizeof(sent));
			learn();
		} else {
			TAKE(make_other);
			tell();
			TAKE(connect_other);
			CHECK(read(from_peer, &length, sizeof(length)) == sizeof(length));
			for (done = 0; done < length;)
				TAKE(recv_stream);
			tell();
		}
		TAKE(close_other);
	}
}
/* Sockets of two processes: a stream, and datagrams. */
static void sockets_apart(int passive)
{
	bytes = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(bytes != MAP_FAILED);
	if (passive) {
		TAKE(make_socket);
		TAKE(bind_there);
		tell();
		TAKE(accept_stream);
	} else {
		TAKE(make_stream);
		learn();
		TAKE(connect_stream);
	}
	TAKE(do_not_wait);
	if (by == &plain)
		TAKE(watch_stream);
	/* Nothing is sent before the other end has found nothing. */
	tell();
	learn();
	talk(passive);
	meet(passive);
	if (by == &with_r) {
		done = 0;
		length = 1;
		if (passive) {
			TAKE(open_window);
			/* The word of it goes before the next bytes. */
			TAKE(send_stream);
			CHECK(write(to_peer, &window, sizeof(window)) == sizeof(window));
			learn();
			TAKE(close_window);
		} else {
			TAKE(recv_stream);
			CHECK(read(from_peer, &window, sizeof(window)) == sizeof(window));
			TAKE(write_window);
			tell();
		}
	}
	TAKE(end_stream);
	TAKE(find_end);
	if (watched >= 0)
		TAKE(close_watched);
	TAKE(close_stream);
	if (passive)
		TAKE(close_home);
	if (!has_datagrams()) {
		TAKE(refuse_datagram);
		return;
	}
	TAKE(make_datagram);
	tell();
	learn();
	for (int i = 0; i < 8; i++) {
		if (!passive)
			TAKE(send_datagram);
		TAKE(receive_datagram);
		if (passive)
			TAKE(send_datagram);
	}
	TAKE(close_datagram);
}

/* Two ends of one process. */
static void together(void)
{
	TAKE(open_device);
	TAKE(make_channel);
	TAKE(make_ids);
	TAKE(listen_there);
	TAKE(resolve_address);
	expect(RDMA_CM_EVENT_ADDR_RESOLVED);
	TAKE(resolve_route);
	expect(RDMA_CM_EVENT_ROUTE_RESOLVED);
	side = 0;
	TAKE(make_queues);
	TAKE(register_memory);
	TAKE(make_queue_pair);
	TAKE(connect_there);
	expect(RDMA_CM_EVENT_CONNECT_REQUEST);
	side = 1;
	TAKE(make_queues);
	TAKE(register_memory);
	TAKE(make_shared_queue);
	TAKE(make_queue_pair);
	TAKE(accept_there);
	expect(RDMA_CM_EVENT_ESTABLISHED);
	expect(RDMA_CM_EVENT_ESTABLISHED);
	transfer();
	side = 0;
	TAKE(post_receive);
	flushes = 1;
	TAKE(disconnect);
	expect(RDMA_CM_EVENT_DISCONNECTED);
	expect(RDMA_CM_EVENT_DISCONNECTED);
	complete(1);
	for (side = 0; side < 2; side++) {
		TAKE(destroy_queue_pair);
		TAKE(destroy);
	}
	TAKE(end);
}

int main(int argc, char **argv)
{
	int base, forth[2], back[2], status;
	pid_t other;

	alarm(120);
	address = argv[1];
	CHECK(argc > 2);
	walks = argc > 3;
	by = strcmp(argv[2], "verbs") == 0 ? NULL : strcmp(argv[2], "rsockets") == 0 ? &with_r : &plain;
	base = depth(nothing);
	RETURNS(0, pipe(forth));
	RETURNS(0, pipe(back));
	CHECK((other = fork()) >= 0);
	if (!other) {
		RETURNS(0, prctl(PR_SET_PDEATHSIG, SIGKILL));
		close(forth[1]);
		close(back[0]);
		to_peer = back[1];
		from_peer = forth[0];
		by ? sockets_apart(1) : apart(1);
		exit(!walks && deepest + SPARE > PTHREAD_STACK_MIN);
	}
	close(forth[0]);
	close(back[1]);
	to_peer = forth[1];
	from_peer = back[0];
	by ? sockets_apart(0) : apart(0);
	CHECK(waitpid(other, &status, 0) == other && status == 0);
	if (!by)
		together();
	CHECK(walks || deepest + SPARE <= PTHREAD_STACK_MIN);
	if (!walks)
		printf("deepest %d of %ld, libc %d\n", deepest, (long)PTHREAD_STACK_MIN, base);
	printf("%d checks\n", checks);
	return 0;
}
