/*
 * Every operation of a reliable connection between two processes, every byte compared, every illegal access refused.
 *
 * usage: verify server|client ADDRESS PORT
 *
 * Both sides go through the same table of cases, each on a connection of its own: first with the client as the
 * initiator of the operations, then with the server, and each of these with the classic interface (ibv_post_send,
 * ibv_poll_cq) and the extended one (ibv_wr_*, ibv_start_poll). Built against the distribution's headers, it knows nothing
 * of the library that it will run on. The last line says how much was compared; status 0 means that all was as expected.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum {
	GUARD = 4096,                /* bytes before and after each region that nobody may touch */
	REGION = 3 * 1024 * 1024,    /* bytes of a region */
	SLOTS = 8,                   /* receives posted at any time */
	SLOT = 1280 * 1024,          /* bytes of a receive */
	DEPTH = 64,                  /* requests of a queue */
	ELEMENTS = 4,                /* scatter/gather elements of a request */
	INLINE = 64,                 /* inline data of a request */
	PATIENCE_S = 150,           /* the whole program ends after this long in any case */
	TIMEOUT_MS = 5000,
};

/* What a side lets the other one do. */
enum right { FULL, READ_ONLY, WRITE_ONLY, FOREIGN, STALE, ONCE, RIGHTS };

struct region {
	uint8_t *memory; /* with the guards */
	uint8_t *data;
	size_t size;
	struct ibv_mr *mr;
	uint32_t key; /* stays when the region is deregistered */
};

/* What the sides tell each other in the private data. */
struct __attribute__((packed)) introduction {
	uint32_t magic;
	struct __attribute__((packed)) {
		uint64_t address;
		uint32_t key;
	} region[RIGHTS];
};

struct connection {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	bool extended;
	bool ended;
	struct ibv_pd *pd, *other_pd;
	struct ibv_comp_channel *completions;
	struct ibv_cq *send_cq, *receive_cq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;
	struct region local;
	struct region inbox;
	struct region exposed[RIGHTS];
	struct introduction peer;
	int receives;  /* posted and not completed */
	uint64_t next; /* number of the next send request */
};

struct operation {
	enum ibv_wr_opcode opcode;
	unsigned int flags;
	struct ibv_sge *sges;
	int elements;
	uint64_t address;
	uint32_t key;
	uint32_t immediate; /* or the key to invalidate */
	uint64_t compare_add, swap;
};

struct completion {
	uint64_t wr_id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint32_t length;
	uint32_t immediate;
	unsigned int flags;
	uint32_t qp_num;
};

struct test {
	const char *name;
	void (*initiate)(struct connection *);
	void (*serve)(struct connection *);
	uint64_t needs; /* operations of the extended interface that the device must have, or the case does not apply */
	int variant;
};

static const struct test *current;
static bool initiator_is_client, use_extended, is_server;
static uint64_t compared, refused, operations_done;

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "verify: %s, %s (%s initiates, %s interface): ", is_server ? "server" : "client",
		current ? current->name : "start", initiator_is_client ? "client" : "server",
		use_extended ? "extended" : "classic");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

static void out_of_time(int signal)
{
	/* Whoever hangs holds no lock of stdio: nothing is printed while the other side is waited for. */
	(void)signal;
	fail("out of time");
}

/* ---- Bytes ---- */

/* The byte at `offset` of the pattern `seed`: two patterns differ in nearly every byte. */
static uint8_t pattern(uint32_t seed, size_t offset)
{
	uint32_t mixed = (uint32_t)offset * 2654435761u + seed * 40503u;

	mixed ^= mixed >> 15;
	mixed *= 2246822519u;
	return (uint8_t)(mixed >> 24);
}

static void fill(uint8_t *target, size_t length, uint32_t seed)
{
	for (size_t i = 0; i < length; i++)
		target[i] = pattern(seed, i);
}

static void check(const uint8_t *found, size_t length, uint32_t seed, const char *what)
{
	for (size_t i = 0; i < length; i++)
		if (found[i] != pattern(seed, i))
			fail("%s: byte %zu of %zu is %02x and should be %02x", what, i, length, found[i], pattern(seed, i));
	compared += length;
}

enum { BACKGROUND = 0xbac };

/* The bytes from `from` to `to` of the memory of a region, guards included, are as they were filled at first. */
static void check_untouched(const struct region *region, size_t from, size_t to, const char *what)
{
	for (size_t i = from; i < to; i++)
		if (region->memory[i] != pattern(BACKGROUND, i))
			fail("%s: byte %zu of the region was touched", what, i - GUARD);
	compared += to - from;
}

static void check_all_untouched(const struct region *region, const char *what)
{
	check_untouched(region, 0, region->size + 2 * GUARD, what);
}

static void restore_range(struct region *region, size_t from, size_t to)
{
	for (size_t i = from; i < to; i++)
		region->memory[i] = pattern(BACKGROUND, i);
}

static void restore(struct region *region)
{
	restore_range(region, 0, region->size + 2 * GUARD);
}

static void make_region(struct region *region, struct ibv_pd *pd, size_t size, int access)
{
	region->size = size;
	region->memory = malloc(size + 2 * GUARD);
	if (!region->memory)
		fail("no memory");
	region->data = region->memory + GUARD;
	restore(region);
	region->mr = ibv_reg_mr(pd, region->data, size, access);
	if (!region->mr)
		fail("ibv_reg_mr: %s", strerror(errno));
	region->key = region->mr->rkey;
}

static void end_region(struct region *region)
{
	int result = region->mr ? ibv_dereg_mr(region->mr) : 0;

	if (result)
		fail("ibv_dereg_mr: %s", strerror(result));
	free(region->memory);
	memset(region, 0, sizeof(*region));
}

static struct ibv_sge element(const struct region *region, size_t offset, size_t length)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)region->data + offset, .length = (uint32_t)length, .lkey = region->mr->lkey,
	};

	return sge;
}

/* ---- Posting and polling, through either interface ---- */

static int try_post(struct connection *c, struct operation *list, int count, int *bad)
{
	uint64_t first = c->next;

	*bad = 0;
	c->next += count;
	if (c->qpx) {
		struct ibv_qp_ex *qp = c->qpx;

		ibv_wr_start(qp);
		for (int i = 0; i < count; i++) {
			struct operation *o = &list[i];

			qp->wr_id = first + i;
			qp->wr_flags = o->flags & ~(unsigned int)IBV_SEND_INLINE;
			switch (o->opcode) {
			case IBV_WR_SEND: ibv_wr_send(qp); break;
			case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(qp, o->immediate); break;
			case IBV_WR_SEND_WITH_INV: ibv_wr_send_inv(qp, o->immediate); break;
			case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(qp, o->key, o->address); break;
			case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(qp, o->key, o->address, o->immediate); break;
			case IBV_WR_RDMA_READ: ibv_wr_rdma_read(qp, o->key, o->address); break;
			case IBV_WR_ATOMIC_CMP_AND_SWP:
				ibv_wr_atomic_cmp_swp(qp, o->key, o->address, o->compare_add, o->swap);
				break;
			case IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_atomic_fetch_add(qp, o->key, o->address, o->compare_add); break;
			case IBV_WR_LOCAL_INV: ibv_wr_local_inv(qp, o->immediate); continue;
			default: fail("opcode %d", o->opcode);
			}
			if (o->flags & IBV_SEND_INLINE) {
				struct ibv_data_buf buffers[ELEMENTS];

				for (int n = 0; n < o->elements; n++) {
					buffers[n].addr = (void *)(uintptr_t)o->sges[n].addr;
					buffers[n].length = o->sges[n].length;
				}
				if (o->elements == 1)
					ibv_wr_set_inline_data(qp, buffers[0].addr, buffers[0].length);
				else
					ibv_wr_set_inline_data_list(qp, o->elements, buffers);
			} else if (o->elements == 1) {
				ibv_wr_set_sge(qp, o->sges->lkey, o->sges->addr, o->sges->length);
			} else {
				ibv_wr_set_sge_list(qp, o->elements, o->sges);
			}
		}
		return ibv_wr_complete(qp);
	}

	struct ibv_send_wr requests[DEPTH], *refused_request = NULL;
	int result;

	memset(requests, 0, sizeof(requests));
	for (int i = 0; i < count; i++) {
		struct ibv_send_wr *wr = &requests[i];
		struct operation *o = &list[i];

		wr->wr_id = first + i;
		wr->next = i + 1 < count ? wr + 1 : NULL;
		wr->sg_list = o->sges;
		wr->num_sge = o->elements;
		wr->opcode = o->opcode;
		wr->send_flags = o->flags;
		wr->imm_data = o->immediate;
		if (o->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || o->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr->wr.atomic.remote_addr = o->address;
			wr->wr.atomic.rkey = o->key;
			wr->wr.atomic.compare_add = o->compare_add;
			wr->wr.atomic.swap = o->swap;
		} else {
			wr->wr.rdma.remote_addr = o->address;
			wr->wr.rdma.rkey = o->key;
		}
	}
	result = ibv_post_send(c->qp, requests, &refused_request);
	if (result)
		*bad = (int)(refused_request - requests);
	return result;
}

static void post(struct connection *c, struct operation *list, int count)
{
	int bad, result = try_post(c, list, count, &bad);

	if (result)
		fail("posting %d requests from opcode %d: %s", count, list->opcode, strerror(result));
	operations_done += count;
}

static void post_receive_list(struct connection *c, uint64_t wr_id, struct ibv_sge *sges, int count)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = sges, .num_sge = count }, *bad = NULL;
	int result = ibv_post_recv(c->qp, &wr, &bad);

	if (result)
		fail("ibv_post_recv: %s", strerror(result));
	c->receives++;
}

static void post_receive(struct connection *c, int slot)
{
	struct ibv_sge sge = element(&c->inbox, (size_t)slot * SLOT, SLOT);

	post_receive_list(c, slot, &sge, 1);
}

/* Takes one completion if there is one. */
static bool poll_once(struct connection *c, struct ibv_cq *cq, struct completion *found)
{
	if (c->extended) {
		struct ibv_cq_ex *queue = (struct ibv_cq_ex *)cq;
		struct ibv_poll_cq_attr attr = {};
		int result = ibv_start_poll(queue, &attr);

		if (result == ENOENT)
			return false;
		if (result)
			fail("ibv_start_poll: %s", strerror(result));
		memset(found, 0, sizeof(*found));
		found->wr_id = queue->wr_id;
		found->status = queue->status;
		found->qp_num = ibv_wc_read_qp_num(queue);
		if (!found->status) {
			found->opcode = ibv_wc_read_opcode(queue);
			found->length = ibv_wc_read_byte_len(queue);
			found->flags = ibv_wc_read_wc_flags(queue);
			found->immediate = ibv_wc_read_imm_data(queue);
		}
		ibv_end_poll(queue);
	} else {
		struct ibv_wc wc;
		int result = ibv_poll_cq(cq, 1, &wc);

		if (result < 0)
			fail("ibv_poll_cq: %d", result);
		if (result == 0)
			return false;
		found->wr_id = wc.wr_id;
		found->status = wc.status;
		found->qp_num = wc.qp_num;
		found->opcode = wc.opcode;
		found->length = wc.byte_len;
		found->flags = wc.wc_flags;
		found->immediate = wc.imm_data;
	}
	if (found->qp_num != c->qp->qp_num)
		fail("a completion of queue pair %x instead of %x", found->qp_num, c->qp->qp_num);
	return true;
}

static struct completion wait_for(struct connection *c, struct ibv_cq *cq)
{
	struct completion found;

	while (!poll_once(c, cq, &found))
		sched_yield();
	return found;
}

/* The next send request to complete is `wr_id`, and well. */
static void sent(struct connection *c, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct completion found = wait_for(c, c->send_cq);

	if (found.status != IBV_WC_SUCCESS)
		fail("request %llu: %s", (unsigned long long)found.wr_id, ibv_wc_status_str(found.status));
	if (found.wr_id != wr_id)
		fail("request %llu completed instead of %llu", (unsigned long long)found.wr_id, (unsigned long long)wr_id);
	if (found.opcode != opcode)
		fail("completion opcode %d instead of %d", found.opcode, opcode);
}

static struct completion received(struct connection *c)
{
	struct completion found = wait_for(c, c->receive_cq);

	c->receives--;
	if (found.status != IBV_WC_SUCCESS)
		fail("receive %llu: %s", (unsigned long long)found.wr_id, ibv_wc_status_str(found.status));
	return found;
}

static enum ibv_wc_opcode completion_of(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
	case IBV_WR_LOCAL_INV: return IBV_WC_LOCAL_INV;
	default: return IBV_WC_SEND;
	}
}

/* Posts one signalled request and waits until it is done. */
static void perform(struct connection *c, struct operation o)
{
	uint64_t number = c->next;

	o.flags |= IBV_SEND_SIGNALED;
	post(c, &o, 1);
	sent(c, number, completion_of(o.opcode));
}

/* A short message by which the sides keep in step, and its counterpart. Its bytes are at the end of the local region. */
static void tell(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, REGION - 16, 4);

	perform(c, (struct operation){ .opcode = IBV_WR_SEND, .sges = &sge, .elements = 1 });
}

static void hear(struct connection *c)
{
	struct completion found = received(c);

	if (found.opcode != IBV_WC_RECV || found.length != 4)
		fail("expected a word, got opcode %d with %u bytes", found.opcode, found.length);
	post_receive(c, (int)found.wr_id);
}

static uint64_t peer_address(const struct connection *c, enum right right)
{
	return c->peer.region[right].address;
}

static uint32_t peer_key(const struct connection *c, enum right right)
{
	return c->peer.region[right].key;
}

/* ---- Connections ---- */

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

static uint64_t operations_of(struct connection *c, uint64_t wanted)
{
	/* The attributes do not say what a device can; creating a queue pair does. */
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = c->send_cq, .recv_cq = c->receive_cq, .qp_type = IBV_QPT_RC, .pd = c->pd,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = wanted,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(c->id->verbs, &attr);

	if (!qp && errno != EOPNOTSUPP)
		fail("ibv_create_qp_ex: %s", strerror(errno));
	if (!qp)
		return 0;
	ibv_destroy_qp(qp);
	return wanted;
}

static struct ibv_cq *make_cq(struct connection *c)
{
	struct ibv_cq *cq;

	if (c->extended) {
		struct ibv_cq_init_attr_ex attr = {
			.cqe = 2 * DEPTH, .cq_context = c, .channel = c->completions, .wc_flags = IBV_WC_STANDARD_FLAGS,
		};
		struct ibv_cq_ex *extended = ibv_create_cq_ex(c->id->verbs, &attr);

		cq = extended ? ibv_cq_ex_to_cq(extended) : NULL;
	} else {
		cq = ibv_create_cq(c->id->verbs, 2 * DEPTH, c, c->completions, 0);
	}
	if (!cq)
		fail("creating a completion queue: %s", strerror(errno));
	return cq;
}

static void make_queue_pair(struct connection *c)
{
	struct ibv_qp_cap cap = {
		.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = ELEMENTS, .max_recv_sge = ELEMENTS,
		.max_inline_data = INLINE,
	};
	uint64_t offered = 0;

	if (c->extended) {
		for (int bit = 0; bit < 10; bit++)
			offered |= operations_of(c, 1ULL << bit);
		struct ibv_qp_init_attr_ex attr = {
			.send_cq = c->send_cq, .recv_cq = c->receive_cq, .qp_type = IBV_QPT_RC, .pd = c->pd, .cap = cap,
			.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = offered,
		};
		if (rdma_create_qp_ex(c->id, &attr))
			fail("rdma_create_qp_ex: %s", strerror(errno));
		c->qpx = ibv_qp_to_qp_ex(c->id->qp);
		if (!c->qpx)
			fail("no extended queue pair");
		cap = attr.cap;
	} else {
		struct ibv_qp_init_attr attr = {
			.send_cq = c->send_cq, .recv_cq = c->receive_cq, .qp_type = IBV_QPT_RC, .cap = cap,
		};
		if (rdma_create_qp(c->id, c->pd, &attr))
			fail("rdma_create_qp: %s", strerror(errno));
		cap = attr.cap;
	}
	if (cap.max_send_wr < DEPTH || cap.max_recv_sge < ELEMENTS || cap.max_inline_data < INLINE)
		fail("the queue pair is smaller than asked for");
	c->qp = c->id->qp;
}

static void make_resources(struct connection *c, struct introduction *mine)
{
	static const int access[RIGHTS] = {
		[FULL] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		[READ_ONLY] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
		[WRITE_ONLY] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
		[FOREIGN] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		[STALE] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		[ONCE] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	c->extended = use_extended;
	c->pd = ibv_alloc_pd(c->id->verbs);
	c->other_pd = ibv_alloc_pd(c->id->verbs);
	c->completions = ibv_create_comp_channel(c->id->verbs);
	if (!c->pd || !c->other_pd || !c->completions)
		fail("creating resources: %s", strerror(errno));
	c->send_cq = make_cq(c);
	c->receive_cq = make_cq(c);
	make_queue_pair(c);
	make_region(&c->local, c->pd, REGION, IBV_ACCESS_LOCAL_WRITE);
	make_region(&c->inbox, c->pd, (size_t)SLOTS * SLOT, IBV_ACCESS_LOCAL_WRITE);
	mine->magic = 0x76657269;
	for (int right = 0; right < RIGHTS; right++) {
		struct region *region = &c->exposed[right];

		make_region(region, right == FOREIGN ? c->other_pd : c->pd, right == FULL ? REGION : 64 * 1024, access[right]);
		mine->region[right].address = (uintptr_t)region->data;
		mine->region[right].key = region->key;
	}
	if (ibv_dereg_mr(c->exposed[STALE].mr))
		fail("ibv_dereg_mr failed");
	c->exposed[STALE].mr = NULL;
	for (int slot = 0; slot < SLOTS; slot++)
		post_receive(c, slot);
}

static void take_introduction(struct connection *c, const struct rdma_conn_param *from)
{
	if (from->private_data_len < sizeof(c->peer))
		fail("private data of %u bytes", from->private_data_len);
	memcpy(&c->peer, from->private_data, sizeof(c->peer));
	if (c->peer.magic != 0x76657269)
		fail("private data with magic %x", c->peer.magic);
}

static struct rdma_conn_param parameters(const struct introduction *mine)
{
	struct rdma_conn_param param = {
		.private_data = mine, .private_data_len = sizeof(*mine), .responder_resources = 4, .initiator_depth = 4,
		.retry_count = 7, .rnr_retry_count = 7,
	};

	return param;
}

static void accept_connection(struct connection *c, struct rdma_event_channel *channel)
{
	struct rdma_cm_event *event = next_event(channel);
	struct introduction mine = {};
	struct rdma_conn_param param = parameters(&mine);

	if (event->event != RDMA_CM_EVENT_CONNECT_REQUEST)
		fail("%s instead of a connection request", rdma_event_str(event->event));
	memset(c, 0, sizeof(*c));
	c->id = event->id;
	take_introduction(c, &event->param.conn);
	acknowledge(event);
	/* A channel of its own: the next request may overtake the end of this connection. */
	c->channel = rdma_create_event_channel();
	if (!c->channel || rdma_migrate_id(c->id, c->channel))
		fail("rdma_migrate_id: %s", strerror(errno));
	make_resources(c, &mine);
	if (rdma_accept(c->id, &param))
		fail("rdma_accept: %s", strerror(errno));
	expect_event(c->channel, RDMA_CM_EVENT_ESTABLISHED);
}

static void connect_to(struct connection *c, struct sockaddr *server)
{
	struct introduction mine = {};
	struct rdma_conn_param param = parameters(&mine);
	struct rdma_cm_event *event;

	memset(c, 0, sizeof(*c));
	c->channel = rdma_create_event_channel();
	if (!c->channel || rdma_create_id(c->channel, &c->id, c, RDMA_PS_TCP))
		fail("rdma_create_id: %s", strerror(errno));
	if (rdma_resolve_addr(c->id, NULL, server, TIMEOUT_MS))
		fail("rdma_resolve_addr: %s", strerror(errno));
	expect_event(c->channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	if (rdma_resolve_route(c->id, TIMEOUT_MS))
		fail("rdma_resolve_route: %s", strerror(errno));
	expect_event(c->channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
	make_resources(c, &mine);
	if (rdma_connect(c->id, &param))
		fail("rdma_connect: %s", strerror(errno));
	event = next_event(c->channel);
	if (event->event != RDMA_CM_EVENT_ESTABLISHED || event->status)
		fail("%s with status %d instead of a connection", rdma_event_str(event->event), event->status);
	take_introduction(c, &event->param.conn);
	acknowledge(event);
}

/* Waits for the end of the connection: every receive that is left comes back flushed, each once. */
static void wait_for_end(struct connection *c)
{
	expect_event(c->channel, RDMA_CM_EVENT_DISCONNECTED);
	c->ended = true;
	while (c->receives > 0) {
		struct completion found = wait_for(c, c->receive_cq);

		if (found.status == IBV_WC_SUCCESS)
			fail("a message arrived at the end");
		c->receives--;
	}
}

static void close_connection(struct connection *c)
{
	int result = 0;

	if (!c->ended) {
		if (rdma_disconnect(c->id))
			fail("rdma_disconnect: %s", strerror(errno));
		wait_for_end(c);
	}
	check_untouched(&c->inbox, 0, GUARD, "before the receives");
	check_untouched(&c->inbox, GUARD + c->inbox.size, c->inbox.size + 2 * GUARD, "behind the receives");
	rdma_destroy_qp(c->id);
	result |= ibv_destroy_cq(c->send_cq);
	result |= ibv_destroy_cq(c->receive_cq);
	result |= ibv_destroy_comp_channel(c->completions);
	end_region(&c->local);
	end_region(&c->inbox);
	for (int right = 0; right < RIGHTS; right++)
		end_region(&c->exposed[right]);
	result |= ibv_dealloc_pd(c->pd);
	result |= ibv_dealloc_pd(c->other_pd);
	result |= rdma_destroy_id(c->id);
	rdma_destroy_event_channel(c->channel);
	if (result)
		fail("something could not be destroyed: %s", strerror(result));
}

/* ---- Cases ---- */

static const size_t sizes[] = { 1, 2, 7, 8, 63, 64, 65, 511, 1460, 4095, 4096, 4097, 65535, 65536, 65537, 262147, 1048577 };

/* Splits `length` bytes at `offset` of a region into up to ELEMENTS pieces that are not equal, the first may be empty. */
static int split(const struct region *region, size_t offset, size_t length, int pieces, struct ibv_sge *sges)
{
	int count = 0;

	for (; count < pieces - 1; count++) {
		size_t part = count == 0 ? length / 5 : length / 3;

		sges[count] = element(region, offset, part);
		offset += part;
		length -= part;
	}
	sges[count++] = element(region, offset, length);
	return count;
}

static void initiate_send(struct connection *c)
{
	for (size_t i = 0; i < LENGTH(sizes); i++) {
		struct ibv_sge sges[ELEMENTS];
		int count = split(&c->local, i * 3, sizes[i], 1 + (int)i % ELEMENTS, sges);

		fill(c->local.data + i * 3, sizes[i], (uint32_t)i);
		perform(c, (struct operation){ .opcode = IBV_WR_SEND, .sges = sges, .elements = count });
		hear(c);
	}
	perform(c, (struct operation){ .opcode = IBV_WR_SEND });
	hear(c);
}

static void serve_send(struct connection *c)
{
	for (size_t i = 0; i <= LENGTH(sizes); i++) {
		size_t expected = i < LENGTH(sizes) ? sizes[i] : 0;
		struct completion found = received(c);
		size_t slot = found.wr_id;

		if (found.opcode != IBV_WC_RECV || found.length != expected || slot != i % SLOTS)
			fail("message %zu: opcode %d, %u bytes in receive %zu", i, found.opcode, found.length, slot);
		check(c->inbox.data + slot * SLOT, expected, (uint32_t)i, "message");
		check_untouched(&c->inbox, GUARD + slot * SLOT + expected, GUARD + (slot + 1) * SLOT, "behind a message");
		restore_range(&c->inbox, GUARD + slot * SLOT, GUARD + slot * SLOT + expected);
		post_receive(c, (int)slot);
		tell(c);
	}
}

/* Receives into several elements: they are filled in order. */
static void serve_scattered(struct connection *c)
{
	struct ibv_sge sges[ELEMENTS];
	int count = split(&c->exposed[FULL], 100, 5000, ELEMENTS, sges);

	for (int n = 0; n < count; n++)
		sges[n].lkey = c->exposed[FULL].mr->lkey;
	post_receive_list(c, SLOTS, sges, count);
	for (int i = 0; i < SLOTS; i++)
		hear(c);
	tell(c);
	struct completion found = received(c);
	if (found.wr_id != SLOTS || found.length != 4321)
		fail("%u bytes in receive %llu", found.length, (unsigned long long)found.wr_id);
	check(c->exposed[FULL].data + 100, 4321, 77, "scattered message");
	check_untouched(&c->exposed[FULL], 0, GUARD + 100, "before a scattered message");
	check_untouched(&c->exposed[FULL], GUARD + 100 + 4321, REGION + 2 * GUARD, "behind a scattered message");
	tell(c);
}

static void initiate_scattered(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, 4321);

	for (int i = 0; i < SLOTS; i++)
		tell(c);
	hear(c);
	fill(c->local.data, 4321, 77);
	perform(c, (struct operation){ .opcode = IBV_WR_SEND, .sges = &sge, .elements = 1 });
	hear(c);
}

static void initiate_write(struct connection *c)
{
	for (size_t i = 0; i < LENGTH(sizes); i++) {
		struct ibv_sge sges[ELEMENTS];
		int count = split(&c->local, i, sizes[i], 1 + (int)i % ELEMENTS, sges);

		fill(c->local.data + i, sizes[i], (uint32_t)i);
		perform(c, (struct operation){
			.opcode = IBV_WR_RDMA_WRITE, .sges = sges, .elements = count, .address = peer_address(c, FULL) + i * 5,
			.key = peer_key(c, FULL),
		});
		tell(c);
		hear(c);
	}
}

static void serve_write(struct connection *c)
{
	for (size_t i = 0; i < LENGTH(sizes); i++) {
		struct region *region = &c->exposed[FULL];

		hear(c);
		check(region->data + i * 5, sizes[i], (uint32_t)i, "written bytes");
		check_untouched(region, 0, GUARD + i * 5, "before written bytes");
		check_untouched(region, GUARD + i * 5 + sizes[i], REGION + 2 * GUARD, "behind written bytes");
		restore(region);
		tell(c);
	}
}

static void initiate_read(struct connection *c)
{
	for (size_t i = 0; i < LENGTH(sizes); i++) {
		struct ibv_sge sge = element(&c->local, i * 7, sizes[i]);

		hear(c);
		restore(&c->local);
		perform(c, (struct operation){
			.opcode = IBV_WR_RDMA_READ, .sges = &sge, .elements = 1, .address = peer_address(c, FULL) + i,
			.key = peer_key(c, FULL),
		});
		check(c->local.data + i * 7, sizes[i], (uint32_t)i + 1000, "read bytes");
		check_untouched(&c->local, 0, GUARD + i * 7, "before read bytes");
		check_untouched(&c->local, GUARD + i * 7 + sizes[i], REGION + 2 * GUARD, "behind read bytes");
		tell(c);
	}
}

static void serve_read(struct connection *c)
{
	for (size_t i = 0; i < LENGTH(sizes); i++) {
		fill(c->exposed[FULL].data + i, sizes[i], (uint32_t)i + 1000);
		tell(c);
		hear(c);
	}
}

/* Several reads at once, more than the connection allows outstanding, complete in order. */
static void initiate_many_reads(struct connection *c)
{
	struct operation list[32] = {};
	struct ibv_sge sges[32];
	uint64_t first = c->next;

	for (int i = 0; i < 32; i++) {
		sges[i] = element(&c->local, (size_t)i * 1000, 1000);
		list[i] = (struct operation){
			.opcode = IBV_WR_RDMA_READ, .flags = IBV_SEND_SIGNALED, .sges = &sges[i], .elements = 1,
			.address = peer_address(c, READ_ONLY) + i * 1000, .key = peer_key(c, READ_ONLY),
		};
	}
	hear(c);
	first = c->next;
	post(c, list, 32);
	for (int i = 0; i < 32; i++)
		sent(c, first + i, IBV_WC_RDMA_READ);
	check(c->local.data, 32000, 5, "bytes of many reads");
	tell(c);
}

static void serve_many_reads(struct connection *c)
{
	fill(c->exposed[READ_ONLY].data, 32000, 5);
	tell(c);
	hear(c);
}

static void initiate_immediate(struct connection *c)
{
	for (uint32_t i = 0; i < 8; i++) {
		struct ibv_sge sge = element(&c->local, 0, i * 500);

		fill(c->local.data, i * 500, i);
		perform(c, (struct operation){
			.opcode = current->variant, .sges = &sge, .elements = i > 0, .address = peer_address(c, FULL),
			.key = peer_key(c, FULL), .immediate = htonl(0xabcd0000 + i),
		});
		hear(c);
	}
}

static void serve_immediate(struct connection *c)
{
	bool write = current->variant == IBV_WR_RDMA_WRITE_WITH_IMM;

	for (uint32_t i = 0; i < 8; i++) {
		struct completion found = received(c);
		const uint8_t *bytes = write ? c->exposed[FULL].data : c->inbox.data + found.wr_id * SLOT;

		if (found.opcode != (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) || found.length != i * 500)
			fail("opcode %d with %u bytes", found.opcode, found.length);
		if (!(found.flags & IBV_WC_WITH_IMM) || found.immediate != htonl(0xabcd0000 + i))
			fail("immediate data %x, flags %x", ntohl(found.immediate), found.flags);
		check(bytes, i * 500, i, "bytes with immediate data");
		post_receive(c, (int)found.wr_id);
		tell(c);
	}
}

static void initiate_invalidate(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, 100);
	struct operation o = {
		.opcode = IBV_WR_RDMA_WRITE, .sges = &sge, .elements = 1, .address = peer_address(c, ONCE),
		.key = peer_key(c, ONCE),
	};

	fill(c->local.data, 100, 3);
	perform(c, o);
	perform(c, (struct operation){
		.opcode = IBV_WR_SEND_WITH_INV, .sges = &sge, .elements = 1, .immediate = peer_key(c, ONCE),
	});
	hear(c);
	/* The key is gone: a second write ends the connection. */
	fill(c->local.data, 100, 4);
	post(c, &o, 1);
	wait_for_end(c);
	refused++;
}

static void serve_invalidate(struct connection *c)
{
	struct completion found = received(c);

	if (!(found.flags & IBV_WC_WITH_INV) || found.immediate != c->exposed[ONCE].key)
		fail("flags %x, key %x invalidated instead of %x", found.flags, found.immediate, c->exposed[ONCE].key);
	check(c->inbox.data + found.wr_id * SLOT, 100, 3, "message");
	check(c->exposed[ONCE].data, 100, 3, "written bytes");
	post_receive(c, (int)found.wr_id);
	tell(c);
	wait_for_end(c);
	check(c->exposed[ONCE].data, 100, 3, "bytes after a refused write");
}

/* A key that its owner has invalidated lets nobody in any more. */
static void initiate_local_invalidate(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, 100);
	struct operation o = {
		.opcode = IBV_WR_RDMA_WRITE, .sges = &sge, .elements = 1, .address = peer_address(c, ONCE),
		.key = peer_key(c, ONCE),
	};

	hear(c);
	post(c, &o, 1);
	wait_for_end(c);
	refused++;
}

static void serve_local_invalidate(struct connection *c)
{
	perform(c, (struct operation){ .opcode = IBV_WR_LOCAL_INV, .immediate = c->exposed[ONCE].key });
	tell(c);
	wait_for_end(c);
	check_all_untouched(&c->exposed[ONCE], "a region with an invalidated key");
}

/* Inline data may be overwritten as soon as the post returns. */
static void initiate_inline(struct connection *c)
{
	for (int length = 0; length <= INLINE; length++) {
		uint8_t buffer[INLINE];
		struct ibv_sge sges[2] = {
			{ .addr = (uintptr_t)buffer, .length = length / 2 },
			{ .addr = (uintptr_t)buffer + length / 2, .length = length - length / 2 },
		};
		struct operation o = {
			.opcode = length % 3 ? IBV_WR_SEND : IBV_WR_RDMA_WRITE, .flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
			.sges = sges, .elements = 2, .address = peer_address(c, FULL), .key = peer_key(c, FULL),
		};
		uint64_t number = c->next;

		fill(buffer, length, length);
		post(c, &o, 1);
		memset(buffer, 0xee, sizeof(buffer));
		sent(c, number, completion_of(o.opcode));
		if (o.opcode == IBV_WR_RDMA_WRITE)
			tell(c);
		hear(c);
	}
}

static void serve_inline(struct connection *c)
{
	for (int length = 0; length <= INLINE; length++) {
		if (length % 3) {
			struct completion found = received(c);

			if (found.length != (uint32_t)length)
				fail("%u bytes instead of %d", found.length, length);
			check(c->inbox.data + found.wr_id * SLOT, length, length, "inline message");
			post_receive(c, (int)found.wr_id);
		} else {
			hear(c);
			check(c->exposed[FULL].data, length, length, "inline write");
		}
		tell(c);
	}
}

/* Of many requests only the signalled ones are reported. */
static void initiate_unsignalled(struct connection *c)
{
	for (int round = 0; round < 20; round++) {
		struct operation list[16] = {};
		struct ibv_sge sges[16];
		uint64_t first = c->next;
		struct completion found;

		fill(c->local.data, 16 * 100, round);
		for (int i = 0; i < 16; i++) {
			sges[i] = element(&c->local, (size_t)i * 100, 100);
			list[i] = (struct operation){
				.opcode = IBV_WR_RDMA_WRITE, .flags = i % 8 == 7 ? IBV_SEND_SIGNALED : 0, .sges = &sges[i],
				.elements = 1, .address = peer_address(c, WRITE_ONLY) + i * 100, .key = peer_key(c, WRITE_ONLY),
			};
		}
		post(c, list, 16);
		sent(c, first + 7, IBV_WC_RDMA_WRITE);
		sent(c, first + 15, IBV_WC_RDMA_WRITE);
		if (poll_once(c, c->send_cq, &found))
			fail("request %llu was reported", (unsigned long long)found.wr_id);
		tell(c);
		hear(c);
	}
}

static void serve_unsignalled(struct connection *c)
{
	for (int round = 0; round < 20; round++) {
		hear(c);
		check(c->exposed[WRITE_ONLY].data, 16 * 100, round, "written bytes");
		check_untouched(&c->exposed[WRITE_ONLY], GUARD + 1600, GUARD + 64 * 1024 + GUARD, "behind written bytes");
		tell(c);
	}
}

/* A fenced write sends back what the read before it has just brought. */
static void initiate_fence(struct connection *c)
{
	for (int round = 0; round < 50; round++) {
		struct ibv_sge sge = element(&c->local, 0, 4096);
		uint64_t first = c->next;
		struct operation list[2] = {
			{ .opcode = IBV_WR_RDMA_READ, .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1,
			  .address = peer_address(c, READ_ONLY), .key = peer_key(c, READ_ONLY) },
			{ .opcode = IBV_WR_RDMA_WRITE, .flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE, .sges = &sge, .elements = 1,
			  .address = peer_address(c, WRITE_ONLY), .key = peer_key(c, WRITE_ONLY) },
		};

		hear(c);
		restore(&c->local);
		first = c->next;
		post(c, list, 2);
		sent(c, first, IBV_WC_RDMA_READ);
		sent(c, first + 1, IBV_WC_RDMA_WRITE);
		tell(c);
	}
}

static void serve_fence(struct connection *c)
{
	for (int round = 0; round < 50; round++) {
		fill(c->exposed[READ_ONLY].data, 4096, round + 1);
		tell(c);
		hear(c);
		check(c->exposed[WRITE_ONLY].data, 4096, round + 1, "bytes that came back");
	}
}

static bool event_waits(struct connection *c)
{
	struct pollfd descriptor = { .fd = c->completions->fd, .events = POLLIN };

	return poll(&descriptor, 1, 0) == 1;
}

/* A queue armed for solicited completions sleeps through the others. */
static void initiate_solicited(struct connection *c)
{
	for (int round = 0; round < 10; round++) {
		struct ibv_sge sge = element(&c->local, 0, 4);
		struct operation plain = { .opcode = IBV_WR_SEND, .sges = &sge, .elements = 1 };
		struct operation solicited = plain;

		solicited.flags = IBV_SEND_SOLICITED;
		hear(c);
		perform(c, plain);
		hear(c);
		perform(c, solicited);
	}
	hear(c);
}

static void serve_solicited(struct connection *c)
{
	for (int round = 0; round < 10; round++) {
		struct ibv_cq *cq;
		void *context;

		if (ibv_req_notify_cq(c->receive_cq, 1))
			fail("ibv_req_notify_cq failed");
		tell(c);
		hear(c);
		if (event_waits(c))
			fail("an event for a message that was not solicited");
		tell(c);
		if (ibv_get_cq_event(c->completions, &cq, &context))
			fail("ibv_get_cq_event: %s", strerror(errno));
		if (cq != c->receive_cq || context != c)
			fail("an event of another queue");
		ibv_ack_cq_events(cq, 1);
		hear(c);
	}
	tell(c);
}

/* Sleeping for every message. */
static void initiate_events(struct connection *c)
{
	for (int round = 0; round < 100; round++) {
		tell(c);
		hear(c);
	}
}

static void serve_events(struct connection *c)
{
	unsigned int events = 0;

	for (int round = 0; round < 100; round++) {
		struct completion found;

		while (!poll_once(c, c->receive_cq, &found)) {
			struct ibv_cq *cq;
			void *context;

			if (ibv_req_notify_cq(c->receive_cq, 0))
				fail("ibv_req_notify_cq failed");
			if (poll_once(c, c->receive_cq, &found))
				break;
			if (ibv_get_cq_event(c->completions, &cq, &context))
				fail("ibv_get_cq_event: %s", strerror(errno));
			events++;
		}
		c->receives--;
		if (found.status || found.length != 4)
			fail("receive: %s", ibv_wc_status_str(found.status));
		post_receive(c, (int)found.wr_id);
		tell(c);
	}
	ibv_ack_cq_events(c->receive_cq, events);
}

static uint64_t *word(const struct region *region, int index)
{
	return (uint64_t *)(void *)region->data + index;
}

static void initiate_atomics(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 8, 8);
	uint64_t *result = word(&c->local, 1), expected = 1000;
	struct operation o = { .sges = &sge, .elements = 1, .address = peer_address(c, FULL) + 16, .key = peer_key(c, FULL) };

	hear(c);
	for (uint64_t i = 1; i <= 100; i++) {
		o.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		o.compare_add = i * 0x100000001ULL;
		perform(c, o);
		if (*result != expected)
			fail("fetch and add found %llx", (unsigned long long)*result);
		expected += o.compare_add;
	}
	o.opcode = IBV_WR_ATOMIC_CMP_AND_SWP;
	o.compare_add = expected + 1;
	o.swap = 7;
	perform(c, o);
	if (*result != expected)
		fail("a compare and swap that does not match found %llx", (unsigned long long)*result);
	o.compare_add = expected;
	o.swap = 0x123456789abcdef0ULL;
	perform(c, o);
	if (*result != expected)
		fail("a compare and swap that matches found %llx", (unsigned long long)*result);
	compared += 102 * 8;
	tell(c);
	hear(c);
}

static void serve_atomics(struct connection *c)
{
	*word(&c->exposed[FULL], 2) = 1000;
	tell(c);
	hear(c);
	if (*word(&c->exposed[FULL], 2) != 0x123456789abcdef0ULL)
		fail("the word is %llx", (unsigned long long)*word(&c->exposed[FULL], 2));
	check_untouched(&c->exposed[FULL], 0, GUARD + 16, "before an atomic word");
	check_untouched(&c->exposed[FULL], GUARD + 24, REGION + 2 * GUARD, "behind an atomic word");
	tell(c);
}

/* Mistakes that the post itself refuses: nothing of them is sent, what stands before them is. */
static void initiate_bad_posts(struct connection *c)
{
	struct ibv_sge sges[ELEMENTS * 16];
	struct operation list[2];
	uint8_t buffer[4096] = {};
	int bad, result;

	for (size_t i = 0; i < LENGTH(sges); i++)
		sges[i] = element(&c->local, REGION - 16, i == 0 ? 4 : 0);
	list[0] = (struct operation){ .opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED, .sges = sges, .elements = 1 };
	list[1] = list[0];
	list[1].elements = LENGTH(sges);
	if (!c->qpx) {
		uint64_t first = c->next;

		result = try_post(c, list, 2, &bad);
		if (result != EINVAL && result != ENOMEM)
			fail("too many elements: %d", result);
		if (bad != 1)
			fail("request %d was called the bad one", bad);
		sent(c, first, IBV_WC_SEND);
		list[1] = list[0];
		list[1].opcode = 77;
		result = try_post(c, &list[1], 1, &bad);
		if (result == 0)
			fail("opcode 77 was accepted");
	} else {
		result = try_post(c, list, 2, &bad);
		if (result != EINVAL && result != ENOMEM)
			fail("too many elements: %d", result);
		tell(c);
	}
	struct ibv_sge inline_sge = { .addr = (uintptr_t)buffer, .length = sizeof(buffer) };
	list[0] = (struct operation){
		.opcode = IBV_WR_SEND, .flags = IBV_SEND_INLINE, .sges = &inline_sge, .elements = 1,
	};
	result = try_post(c, list, 1, &bad);
	if (result != EINVAL && result != ENOMEM)
		fail("too much inline data: %d", result);
	refused += 2;
	hear(c);
}

static void serve_bad_posts(struct connection *c)
{
	hear(c);
	tell(c);
}

/* Accesses that the target refuses. It ends the connection, and not a byte has changed. */
enum offence {
	WRITE_WITHOUT_RIGHT, READ_WITHOUT_RIGHT, WRITE_PAST_END, READ_PAST_END, WRITE_BEFORE_START, READ_BEFORE_START,
	WRITE_WRONG_KEY, READ_WRONG_KEY, WRITE_FOREIGN, READ_FOREIGN, WRITE_STALE, READ_STALE, WRITE_WRAPPING, READ_WRAPPING,
	ATOMIC_WITHOUT_RIGHT,
};

static void initiate_offence(struct connection *c)
{
	size_t length = 3000;
	bool read = current->variant % 2;
	enum right right = FULL;
	uint64_t shift = 0;
	uint32_t twist = 0;
	struct operation o = { .opcode = read ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, .flags = IBV_SEND_SIGNALED };
	struct ibv_sge sge;
	uint64_t number;

	switch ((enum offence)current->variant) {
	case WRITE_WITHOUT_RIGHT: right = READ_ONLY; break;
	case READ_WITHOUT_RIGHT: right = WRITE_ONLY; break;
	case WRITE_PAST_END:
	case READ_PAST_END: shift = REGION - length + 1; break;
	case WRITE_BEFORE_START:
	case READ_BEFORE_START: shift = -(uint64_t)1; break;
	case WRITE_WRONG_KEY:
	case READ_WRONG_KEY: twist = 0x00ff00; break;
	case WRITE_FOREIGN:
	case READ_FOREIGN: right = FOREIGN; break;
	case WRITE_STALE:
	case READ_STALE: right = STALE; break;
	case WRITE_WRAPPING:
	case READ_WRAPPING: shift = -(uint64_t)100 - peer_address(c, FULL); break;
	case ATOMIC_WITHOUT_RIGHT:
		right = READ_ONLY;
		length = 8;
		read = true;
		o.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		o.compare_add = 1;
		break;
	}
	sge = element(&c->local, 0, length);
	o.sges = &sge;
	o.elements = 1;
	o.address = peer_address(c, right) + shift;
	o.key = peer_key(c, right) ^ twist;
	hear(c);
	if (!read)
		fill(c->local.data, length, 9);
	number = c->next;
	post(c, &o, 1);
	if (read) {
		struct completion found = wait_for(c, c->send_cq);

		if (found.status == IBV_WC_SUCCESS || found.wr_id != number)
			fail("request %llu: %s", (unsigned long long)found.wr_id, ibv_wc_status_str(found.status));
		check_all_untouched(&c->local, "the sink of a refused read");
	}
	wait_for_end(c);
	refused++;
}

static void serve_offence(struct connection *c)
{
	tell(c);
	wait_for_end(c);
	for (int right = 0; right < RIGHTS; right++)
		check_all_untouched(&c->exposed[right], "a refused access");
}

/* Requests that name local memory wrongly fail here, and the peer gets nothing of them. */
enum mistake { SEND_WRONG_KEY, SEND_PAST_END, READ_SINK_FOREIGN };

static void initiate_mistake(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, 2000);
	struct operation o = { .opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1 };
	struct completion found;

	switch ((enum mistake)current->variant) {
	case SEND_WRONG_KEY: sge.lkey ^= 0x00ff00; break;
	case SEND_PAST_END: sge.addr += REGION - 1999; break;
	case READ_SINK_FOREIGN:
		sge = element(&c->exposed[FOREIGN], 0, 2000);
		o.opcode = IBV_WR_RDMA_READ;
		o.address = peer_address(c, FULL);
		o.key = peer_key(c, FULL);
		break;
	}
	hear(c);
	post(c, &o, 1);
	found = wait_for(c, c->send_cq);
	if (found.status != IBV_WC_LOC_PROT_ERR)
		fail("%s instead of a local protection error", ibv_wc_status_str(found.status));
	wait_for_end(c);
	check_all_untouched(&c->local, "the local region");
	check_all_untouched(&c->exposed[FOREIGN], "a region of another domain");
	refused++;
}

static void serve_mistake(struct connection *c)
{
	tell(c);
	wait_for_end(c);
	check_all_untouched(&c->inbox, "the receives");
}

/* A message longer than the receive that it meets. */
static void initiate_too_long(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, SLOT + 1);
	struct operation o = { .opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1 };

	hear(c);
	post(c, &o, 1);
	wait_for_end(c);
	refused++;
}

static void serve_too_long(struct connection *c)
{
	struct completion found;

	tell(c);
	found = wait_for(c, c->receive_cq);
	c->receives--;
	if (found.status != IBV_WC_LOC_LEN_ERR || found.wr_id != 0)
		fail("receive %llu: %s instead of a length error", (unsigned long long)found.wr_id,
		     ibv_wc_status_str(found.status));
	wait_for_end(c);
}

/* What was not done when the connection ends is flushed, in order. */
static void initiate_flush(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, 4);
	struct operation o = { .opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1 };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	uint64_t first;

	hear(c);
	if (ibv_modify_qp(c->qp, &attr, IBV_QP_STATE))
		fail("ibv_modify_qp to ERROR failed");
	first = c->next;
	for (int i = 0; i < 10; i++)
		post(c, &o, 1);
	for (int i = 0; i < 10; i++) {
		struct completion found = wait_for(c, c->send_cq);

		if (found.status != IBV_WC_WR_FLUSH_ERR || found.wr_id != first + i)
			fail("request %llu: %s instead of flushed", (unsigned long long)found.wr_id,
			     ibv_wc_status_str(found.status));
	}
	wait_for_end(c);
}

static void serve_flush(struct connection *c)
{
	tell(c);
	wait_for_end(c);
}

static const struct test tests[] = {
	{ "send", initiate_send, serve_send, 0, 0 },
	{ "scattered receive", initiate_scattered, serve_scattered, 0, 0 },
	{ "write", initiate_write, serve_write, 0, 0 },
	{ "read", initiate_read, serve_read, 0, 0 },
	{ "many reads", initiate_many_reads, serve_many_reads, 0, 0 },
	{ "write with immediate", initiate_immediate, serve_immediate, IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM,
	  IBV_WR_RDMA_WRITE_WITH_IMM },
	{ "send with immediate", initiate_immediate, serve_immediate, IBV_QP_EX_WITH_SEND_WITH_IMM, IBV_WR_SEND_WITH_IMM },
	{ "send with invalidate", initiate_invalidate, serve_invalidate, IBV_QP_EX_WITH_SEND_WITH_INV, 0 },
	{ "local invalidate", initiate_local_invalidate, serve_local_invalidate, IBV_QP_EX_WITH_LOCAL_INV, 0 },
	{ "inline", initiate_inline, serve_inline, 0, 0 },
	{ "unsignalled", initiate_unsignalled, serve_unsignalled, 0, 0 },
	{ "fence", initiate_fence, serve_fence, 0, 0 },
	{ "solicited", initiate_solicited, serve_solicited, 0, 0 },
	{ "events", initiate_events, serve_events, 0, 0 },
	{ "atomics", initiate_atomics, serve_atomics,
	  IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, 0 },
	{ "bad posts", initiate_bad_posts, serve_bad_posts, 0, 0 },
	{ "write without the right", initiate_offence, serve_offence, 0, WRITE_WITHOUT_RIGHT },
	{ "read without the right", initiate_offence, serve_offence, 0, READ_WITHOUT_RIGHT },
	{ "write past the end", initiate_offence, serve_offence, 0, WRITE_PAST_END },
	{ "read past the end", initiate_offence, serve_offence, 0, READ_PAST_END },
	{ "write before the start", initiate_offence, serve_offence, 0, WRITE_BEFORE_START },
	{ "read before the start", initiate_offence, serve_offence, 0, READ_BEFORE_START },
	{ "write with a wrong key", initiate_offence, serve_offence, 0, WRITE_WRONG_KEY },
	{ "read with a wrong key", initiate_offence, serve_offence, 0, READ_WRONG_KEY },
	{ "write to a foreign domain", initiate_offence, serve_offence, 0, WRITE_FOREIGN },
	{ "read from a foreign domain", initiate_offence, serve_offence, 0, READ_FOREIGN },
	{ "write with a stale key", initiate_offence, serve_offence, 0, WRITE_STALE },
	{ "read with a stale key", initiate_offence, serve_offence, 0, READ_STALE },
	{ "write past the address space", initiate_offence, serve_offence, 0, WRITE_WRAPPING },
	{ "read past the address space", initiate_offence, serve_offence, 0, READ_WRAPPING },
	{ "atomic without the right", initiate_offence, serve_offence, IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD,
	  ATOMIC_WITHOUT_RIGHT },
	{ "send with a wrong local key", initiate_mistake, serve_mistake, 0, SEND_WRONG_KEY },
	{ "send from past the end", initiate_mistake, serve_mistake, 0, SEND_PAST_END },
	{ "read into a foreign domain", initiate_mistake, serve_mistake, 0, READ_SINK_FOREIGN },
	{ "message too long for its receive", initiate_too_long, serve_too_long, 0, 0 },
	{ "flush", initiate_flush, serve_flush, 0, 0 },
};

/* Goes through the table. Returns how many cases did not apply to the device. */
static int run_all(struct rdma_event_channel *channel, struct sockaddr *server)
{
	int skipped = 0;

	for (int round = 0; round < 4; round++) {
		initiator_is_client = round % 2 == 0;
		use_extended = round >= 2;
		for (size_t i = 0; i < LENGTH(tests); i++) {
			struct connection c;
			bool applies;

			current = &tests[i];
			if (is_server)
				accept_connection(&c, channel);
			else
				connect_to(&c, server);
			applies = !current->needs || operations_of(&c, current->needs);
			if (!applies)
				skipped++;
			else if (is_server != initiator_is_client)
				current->initiate(&c);
			else
				current->serve(&c);
			/* The side that began the case also ends it. */
			if (!c.ended && is_server == initiator_is_client)
				wait_for_end(&c);
			close_connection(&c);
		}
	}
	return skipped;
}

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *address;
	struct rdma_event_channel *channel = NULL;
	struct rdma_cm_id *listener = NULL;
	int skipped, result;

	if (argc != 4 || (strcmp(argv[1], "server") && strcmp(argv[1], "client"))) {
		fprintf(stderr, "usage: verify server|client ADDRESS PORT\n");
		return 2;
	}
	is_server = !strcmp(argv[1], "server");
	signal(SIGALRM, out_of_time);
	alarm(PATIENCE_S);
	result = getaddrinfo(argv[2], argv[3], &hints, &address);
	if (result)
		fail("%s: %s", argv[2], gai_strerror(result));
	if (is_server) {
		channel = rdma_create_event_channel();
		if (!channel || rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP))
			fail("rdma_create_id: %s", strerror(errno));
		if (rdma_bind_addr(listener, address->ai_addr) || rdma_listen(listener, 4))
			fail("listening on port %s: %s", argv[3], strerror(errno));
	}
	skipped = run_all(channel, address->ai_addr);
	current = NULL;
	if (listener && rdma_destroy_id(listener))
		fail("rdma_destroy_id: %s", strerror(errno));
	if (channel)
		rdma_destroy_event_channel(channel);
	freeaddrinfo(address);
	if (!compared || !refused)
		fail("nothing was compared");
	printf("verify: %zu cases, %d do not apply to this device; %llu operations, %llu bytes compared, %llu refusals: "
	       "all as expected\n", LENGTH(tests) * 4, skipped, (unsigned long long)operations_done,
	       (unsigned long long)compared, (unsigned long long)refused);
	return 0;
}
