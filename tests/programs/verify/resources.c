/* What a connection needs on each side: queues, regions with every right, the first message. */
#include "verify.h"

enum { MAGIC = 0x76657269 };

static enum ibv_qp_type type_of(const struct connection *c)
{
	return c->service == UD ? IBV_QPT_UD : c->service == UC ? IBV_QPT_UC : IBV_QPT_RC;
}

/* The attributes do not say what a device can; creating a queue pair does. */
uint64_t operations_of(struct connection *c, uint64_t wanted)
{
	struct ibv_qp_init_attr_ex attr = {
		.send_cq = c->send_cq, .recv_cq = c->receive_cq, .qp_type = type_of(c), .pd = c->pd,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = wanted,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(c->verbs, &attr);

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
		struct ibv_cq_ex *extended = ibv_create_cq_ex(c->verbs, &attr);

		cq = extended ? ibv_cq_ex_to_cq(extended) : NULL;
	} else {
		cq = ibv_create_cq(c->verbs, 2 * DEPTH, c, c->completions, 0);
	}
	if (!cq)
		fail("creating a completion queue: %s", strerror(errno));
	return cq;
}

static void make_srq(struct connection *c)
{
	struct ibv_srq_init_attr attr = { .srq_context = c, .attr = { .max_wr = DEPTH, .max_sge = ELEMENTS } };

	c->srq = ibv_create_srq(c->pd, &attr);
	if (!c->srq)
		fail("ibv_create_srq: %s", strerror(errno));
	if (attr.attr.max_wr < DEPTH || attr.attr.max_sge < ELEMENTS)
		fail("the shared receive queue is smaller than asked for");
}

static void make_queue_pair(struct connection *c)
{
	struct ibv_qp_cap cap = {
		.max_send_wr = DEPTH, .max_recv_wr = c->srq ? 0 : DEPTH, .max_send_sge = ELEMENTS,
		.max_recv_sge = c->srq ? 0 : ELEMENTS, .max_inline_data = INLINE,
	};
	uint64_t offered = 0;

	if (c->extended) {
		for (int bit = 0; bit < 10; bit++)
			offered |= operations_of(c, 1ULL << bit);
		struct ibv_qp_init_attr_ex attr = {
			.send_cq = c->send_cq, .recv_cq = c->receive_cq, .srq = c->srq, .qp_type = type_of(c), .pd = c->pd,
			.cap = cap, .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.send_ops_flags = offered,
		};
		if (!c->id)
			c->qp = ibv_create_qp_ex(c->verbs, &attr);
		else if (rdma_create_qp_ex(c->id, &attr) == 0)
			c->qp = c->id->qp;
		cap = attr.cap;
	} else {
		struct ibv_qp_init_attr attr = {
			.send_cq = c->send_cq, .recv_cq = c->receive_cq, .srq = c->srq, .qp_type = type_of(c), .cap = cap,
		};
		if (!c->id)
			c->qp = ibv_create_qp(c->pd, &attr);
		else if (rdma_create_qp(c->id, c->pd, &attr) == 0)
			c->qp = c->id->qp;
		cap = attr.cap;
	}
	if (!c->qp)
		fail("creating a queue pair: %s", strerror(errno));
	if (c->extended && !(c->qpx = ibv_qp_to_qp_ex(c->qp)))
		fail("no extended queue pair");
	if (cap.max_send_wr < DEPTH || (!c->srq && cap.max_recv_sge < ELEMENTS) || cap.max_inline_data < INLINE)
		fail("the queue pair is smaller than asked for");
}

/* The kernel's rxe differs in a few things from what the standard says. */
bool is_rxe(const struct connection *c)
{
	return !strncmp(ibv_get_device_name(c->verbs->device), "rxe", 3);
}

static bool has_windows(struct connection *c)
{
	struct ibv_device_attr attr;

	if (ibv_query_device(c->verbs, &attr))
		fail("ibv_query_device failed");
	return c->service == RC_IB && attr.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B);
}

void make_resources(struct connection *c)
{
	static const int access[RIGHTS] = {
		[FULL] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
		[READ_ONLY] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ,
		[WRITE_ONLY] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
		[FOREIGN] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		[STALE] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		[ONCE] = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	struct ibv_port_attr port;

	c->extended = use_extended;
	if (ibv_query_port(c->verbs, c->id ? c->id->port_num : 1, &port))
		fail("ibv_query_port failed");
	c->mtu = (size_t)128 << port.active_mtu;
	c->pd = ibv_alloc_pd(c->verbs);
	c->other_pd = ibv_alloc_pd(c->verbs);
	c->completions = ibv_create_comp_channel(c->verbs);
	if (!c->pd || !c->other_pd || !c->completions)
		fail("creating resources: %s", strerror(errno));
	c->send_cq = make_cq(c);
	c->receive_cq = make_cq(c);
	if (use_srq)
		make_srq(c);
	make_queue_pair(c);
	if (!c->id)
		exchange_init(c);
	make_region(&c->local, c->pd, region_size, IBV_ACCESS_LOCAL_WRITE);
	make_region(&c->inbox, c->pd, SLOTS * slot_size, IBV_ACCESS_LOCAL_WRITE);
	for (int right = 0; right < RIGHTS; right++)
		make_region(&c->exposed[right], right == FOREIGN ? c->other_pd : c->pd, right == FULL ? region_size : SMALL,
			    access[right] | (right == ONCE && has_windows(c) ? IBV_ACCESS_MW_BIND : 0));
	if (ibv_dereg_mr(c->exposed[STALE].mr))
		fail("ibv_dereg_mr failed");
	c->exposed[STALE].mr = NULL;
	for (int slot = 0; slot < SLOTS; slot++)
		post_receive(c, slot);
}

/* A device with memory windows may refuse to invalidate the key of a region (the kernel's rxe does): a window is opened. */
static void open_window(struct connection *c, struct region *region)
{
	struct ibv_send_wr *bad, wr = {
		.wr_id = c->next++, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED,
		.bind_mw.bind_info = {
			.mr = region->mr, .addr = (uintptr_t)region->data, .length = region->size,
			.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		},
	};
	int result;

	region->window = ibv_alloc_mw(c->pd, IBV_MW_TYPE_2);
	if (!region->window)
		fail("ibv_alloc_mw: %s", strerror(errno));
	wr.bind_mw.mw = region->window;
	wr.bind_mw.rkey = ibv_inc_rkey(region->window->rkey);
	result = ibv_post_send(c->qp, &wr, &bad);
	if (result)
		fail("binding a memory window: %s", strerror(result));
	sent(c, wr.wr_id, IBV_WC_BIND_MW);
	region->key = wr.bind_mw.rkey;
}

static void send_introduction(struct connection *c)
{
	struct introduction mine = { .magic = MAGIC };
	struct ibv_sge sge = element(&c->local, region_size - 16 - sizeof(mine), sizeof(mine));

	mine.is_rxe = is_rxe(c);
	for (int right = 0; right < RIGHTS; right++) {
		mine.region[right].address = (uintptr_t)c->exposed[right].data;
		mine.region[right].key = c->exposed[right].key;
	}
	memcpy(c->local.data + region_size - 16 - sizeof(mine), &mine, sizeof(mine));
	perform(c, (struct operation){ .opcode = IBV_WR_SEND, .sges = &sge, .elements = 1 });
	restore(&c->local);
}

static void take_introduction(struct connection *c)
{
	struct completion found = received(c);

	if (found.length != sizeof(c->peer))
		fail("a first message of %u bytes", found.length);
	memcpy(&c->peer, payload_of(c, &found), sizeof(c->peer));
	if (c->peer.magic != MAGIC)
		fail("a first message with magic %x", c->peer.magic);
	if (c->service == UD && is_server) {
		/* Answers go where the message came from, as the completion and the 40 bytes before the payload say. */
		struct ibv_wc wc = { .qp_num = c->qp->qp_num, .src_qp = found.source_qp, .wc_flags = found.flags };

		c->ah = ibv_create_ah_from_wc(c->pd, &wc, (struct ibv_grh *)(payload_of(c, &found) - GRH), 1);
		if (!c->ah)
			fail("ibv_create_ah_from_wc: %s", strerror(errno));
		c->peer_qpn = found.source_qp;
	}
	restore_range(&c->inbox, GUARD + found.wr_id * slot_size, GUARD + (found.wr_id + 1) * slot_size);
	post_receive(c, (int)found.wr_id);
}

/* The client speaks first: over iWARP, the server may not. */
void introduce(struct connection *c)
{
	if (current->needs & (IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_LOCAL_INV) && has_windows(c))
		open_window(c, &c->exposed[ONCE]);
	if (is_server)
		take_introduction(c);
	send_introduction(c);
	if (!is_server)
		take_introduction(c);
}

void end_resources(struct connection *c)
{
	int result = 0;

	/* Before the queue pair: the kernel's rxe waits for the windows of one that it destroys. */
	if (c->exposed[ONCE].window)
		result |= ibv_dealloc_mw(c->exposed[ONCE].window);
	check_untouched(&c->inbox, 0, GUARD, "before the receives");
	check_untouched(&c->inbox, GUARD + c->inbox.size, c->inbox.size + 2 * GUARD, "behind the receives");
	if (c->id)
		rdma_destroy_qp(c->id);
	else
		result |= ibv_destroy_qp(c->qp);
	if (c->srq)
		result |= ibv_destroy_srq(c->srq);
	if (c->ah)
		result |= ibv_destroy_ah(c->ah);
	result |= ibv_destroy_cq(c->send_cq);
	result |= ibv_destroy_cq(c->receive_cq);
	result |= ibv_destroy_comp_channel(c->completions);
	end_region(&c->local);
	end_region(&c->inbox);
	for (int right = 0; right < RIGHTS; right++)
		end_region(&c->exposed[right]);
	result |= ibv_dealloc_pd(c->pd);
	result |= ibv_dealloc_pd(c->other_pd);
	if (result)
		fail("something could not be destroyed: %s", strerror(result));
}
