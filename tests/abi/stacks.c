/* How much of its stack a thread needs for each call, from opening a device to closing it: not more than the smallest stack that there is.
 * Each step is made by a thread of its own, on a stack that says afterwards how far down somebody has written, and some is to be spare for a signal. With "walk" as the second argument
 * the stacks really are that small. First two ends of one process are connected by rdma_cm; then those of two processes by attributes, which use datagrams, too.
 *
 * stacks ADDRESS [walk]. Prints how deep the deepest was, with what libc itself puts on a thread's stack; and with STACKS_SAY in its environment each step. */

#include "check.h"
#include "pair.h"
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
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
struct card { uint32_t number, datagrams, rkey; uint64_t address; };
static struct card here, there;
static int to_peer, from_peer;
static struct ibv_context *context;
static struct ibv_qp *connected, *datagrams;
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
	attr.qp_type = IBV_QPT_UD;
	CHECK((datagrams = ibv_create_qp(pd[0], &attr)));
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
static void connect_apart(void) { bring_up(connected, there.number, path()); }
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
	RETURNS(0, ibv_destroy_qp(datagrams));
	RETURNS(0, ibv_destroy_cq(cq[0]));
	RETURNS(0, ibv_dereg_mr(mr[0]));
	RETURNS(0, ibv_dealloc_pd(pd[0]));
	RETURNS(0, ibv_close_device(context));
}
/* Messages between two processes; "passive" only receives. */
static void transfer_apart(int passive)
{
	static const enum ibv_wr_opcode all[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	static const uint32_t lengths[] = { 8, 4096, 100000, BYTES / 2 };

	for (unsigned i = 0; i < sizeof(all) / sizeof(*all) * 4 * 8 + 8; i++) {
		which = i < sizeof(all) / sizeof(*all) * 4 * 8 ? connected : datagrams;
		opcode = which == datagrams ? IBV_WR_SEND : all[i % 3];
		length = which == datagrams ? 512 : lengths[i / 3 % 4];
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
	TAKE(register_memory);
	here = (struct card){ connected->qp_num, datagrams->qp_num, mr[0]->rkey, (uintptr_t)memory[0] };
	say();
	hear();
	TAKE(connect_apart);
	TAKE(begin_datagrams);
	say();
	hear();
	transfer_apart(passive);
	TAKE(destroy_apart);
}

int main(int argc, char **argv)
{
	int base, forth[2], back[2], status;
	pid_t other;

	alarm(120);
	address = argv[1];
	walks = argc > 2;
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
		apart(1);
		exit(!walks && deepest + SPARE > PTHREAD_STACK_MIN);
	}
	close(forth[0]);
	close(back[1]);
	to_peer = forth[1];
	from_peer = back[0];
	apart(0);
	CHECK(waitpid(other, &status, 0) == other && status == 0);
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
	CHECK(walks || deepest + SPARE <= PTHREAD_STACK_MIN);
	if (!walks)
		printf("deepest %d of %ld, libc %d\n", deepest, (long)PTHREAD_STACK_MIN, base);
	printf("%d checks\n", checks);
	return 0;
}
