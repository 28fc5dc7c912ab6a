/* What must be refused, with nothing touched. */
#include "verify.h"

/* The request fails where the initiator is told of a refusal; over iWARP, the end of the connection says it. */
static void expect_refusal(struct connection *c, uint64_t number, enum ibv_wc_status status)
{
	struct completion found;

	if (c->service != RC_IB)
		return;
	found = wait_for(c, c->send_cq);
	if (found.status != status || found.wr_id != number)
		fail("request %llu: %s instead of %s", (unsigned long long)found.wr_id, ibv_wc_status_str(found.status),
		     ibv_wc_status_str(status));
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
	expect_refusal(c, c->next - 1, IBV_WC_REM_ACCESS_ERR);
	wait_for_end(c);
	refused++;
}

static void serve_invalidate(struct connection *c)
{
	struct completion found = received(c);

	if (!(found.flags & (is_rxe(c) ? RXE_WITH_INV : IBV_WC_WITH_INV)) || found.immediate != c->exposed[ONCE].key)
		fail("flags %x, key %x invalidated instead of %x", found.flags, found.immediate, c->exposed[ONCE].key);
	check(payload_of(c, &found), 100, 3, "message");
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
	expect_refusal(c, c->next - 1, IBV_WC_REM_ACCESS_ERR);
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

/* Mistakes that the post itself refuses: nothing of them is sent, what stands before them is. */
static void initiate_bad_posts(struct connection *c)
{
	struct ibv_sge sges[ELEMENTS * 16];
	struct operation list[2];
	uint8_t buffer[4096] = {};
	int bad, result;

	for (size_t i = 0; i < LENGTH(sges); i++)
		sges[i] = element(&c->local, region_size - 16, i == 0 ? 4 : 0);
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
		if (!is_rxe(c) && try_post(c, &list[1], 1, &bad) == 0)
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
	ATOMIC_WITHOUT_RIGHT, ATOMIC_MISALIGNED,
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
	case READ_PAST_END: shift = region_size - length + 1; break;
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
	case ATOMIC_MISALIGNED:
		right = current->variant == ATOMIC_MISALIGNED ? FULL : READ_ONLY;
		shift = current->variant == ATOMIC_MISALIGNED ? 4 : 0;
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
	refused++;
	if (c->service == UC) {
		/* The target throws the message away, and the connection goes on. */
		perform(c, o);
		tell(c);
		return;
	}
	number = c->next;
	if (current->variant == ATOMIC_MISALIGNED && is_rxe(c) && !c->extended) {
		/* Its library refuses the request at once. */
		wait_for_end(c);
		return;
	}
	post(c, &o, 1);
	expect_refusal(c, number, current->variant == ATOMIC_MISALIGNED ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_ACCESS_ERR);
	if (read && c->service == RC_IWARP) {
		struct completion found = wait_for(c, c->send_cq);

		if (found.status == IBV_WC_SUCCESS || found.wr_id != number)
			fail("request %llu: %s", (unsigned long long)found.wr_id, ibv_wc_status_str(found.status));
	}
	if (read)
		check_all_untouched(&c->local, "the sink of a refused read");
	wait_for_end(c);
}

static void serve_offence(struct connection *c)
{
	tell(c);
	if (c->service == UC)
		hear(c);
	else
		wait_for_end(c);
	for (int right = 0; right < RIGHTS; right++)
		check_all_untouched(&c->exposed[right], "a refused access");
}

/* Requests that name local memory wrongly fail here, and the peer gets nothing of them. */
enum mistake { SEND_WRONG_KEY, SEND_PAST_END, READ_SINK_FOREIGN };

static void initiate_mistake(struct connection *c)
{
	/* One packet: of a longer message, the peer may have got the part before the mistake. */
	struct ibv_sge sge = element(&c->local, 0, 500);
	struct operation o = { .opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1 };
	struct completion found;

	switch ((enum mistake)current->variant) {
	case SEND_WRONG_KEY: sge.lkey ^= 0x00ff00; break;
	case SEND_PAST_END: sge.addr += region_size - 499; break;
	case READ_SINK_FOREIGN:
		sge = element(&c->exposed[FOREIGN], 0, 500);
		o.opcode = IBV_WR_RDMA_READ;
		o.address = peer_address(c, FULL);
		o.key = peer_key(c, FULL);
		break;
	}
	hear(c);
	post(c, &o, 1);
	found = wait_for(c, c->send_cq);
	if (found.status != IBV_WC_LOC_PROT_ERR && !(is_rxe(c) && found.status == IBV_WC_LOC_QP_OP_ERR))
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
	struct ibv_sge sge = element(&c->local, 0, slot_size + 1);
	struct operation o = { .opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1 };

	hear(c);
	post(c, &o, 1);
	expect_refusal(c, c->next - 1, c->peer.is_rxe ? IBV_WC_REM_OP_ERR : IBV_WC_REM_INV_REQ_ERR);
	wait_for_end(c);
	refused++;
}

static void serve_too_long(struct connection *c)
{
	struct completion found;

	tell(c);
	found = wait_for(c, c->receive_cq);
	c->receives--;
	if (found.status != (is_rxe(c) ? IBV_WC_LOC_QP_OP_ERR : IBV_WC_LOC_LEN_ERR) || found.wr_id != 1)
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

/* Nobody posts a receive, and the sender is to ask only once more. */
static void initiate_not_ready(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, 2000);
	struct operation o = { .opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1 };

	hear(c);
	for (int i = 0; i < SLOTS; i++)
		perform(c, o);
	post(c, &o, 1);
	expect_refusal(c, c->next - 1, IBV_WC_RNR_RETRY_EXC_ERR);
	wait_for_end(c);
	refused++;
}

static void serve_not_ready(struct connection *c)
{
	tell(c);
	for (int i = 0; i < SLOTS; i++)
		received(c);
	wait_for_end(c);
}

/* Nobody answers any more. */
static void initiate_silence(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, 4);
	struct operation o = { .opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1 };

	exchange_step();
	exchange_step();
	post(c, &o, 1);
	expect_refusal(c, c->next - 1, IBV_WC_RETRY_EXC_ERR);
	wait_for_end(c);
	refused++;
}

static void serve_silence(struct connection *c)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	exchange_step();
	if (ibv_modify_qp(c->qp, &attr, IBV_QP_STATE))
		fail("ibv_modify_qp to ERROR failed");
	exchange_step();
	wait_for_end(c);
}

const struct test refusal_tests[] = {
	{ "send with invalidate", initiate_invalidate, serve_invalidate, .services = RC,
	  .needs = IBV_QP_EX_WITH_SEND_WITH_INV },
	{ "local invalidate", initiate_local_invalidate, serve_local_invalidate, .services = RC,
	  .needs = IBV_QP_EX_WITH_LOCAL_INV },
	{ "bad posts", initiate_bad_posts, serve_bad_posts, .services = CONNECTED },
	{ "write without the right", initiate_offence, serve_offence, .services = CONNECTED,
	  .variant = WRITE_WITHOUT_RIGHT, .without_srq = UC },
	{ "read without the right", initiate_offence, serve_offence, .services = RC, .variant = READ_WITHOUT_RIGHT },
	{ "write past the end", initiate_offence, serve_offence, .services = CONNECTED,
	  .variant = WRITE_PAST_END, .without_srq = UC },
	{ "read past the end", initiate_offence, serve_offence, .services = RC, .variant = READ_PAST_END },
	{ "write before the start", initiate_offence, serve_offence, .services = CONNECTED,
	  .variant = WRITE_BEFORE_START, .without_srq = UC },
	{ "read before the start", initiate_offence, serve_offence, .services = RC, .variant = READ_BEFORE_START },
	{ "write with a wrong key", initiate_offence, serve_offence, .services = CONNECTED,
	  .variant = WRITE_WRONG_KEY, .without_srq = UC },
	{ "read with a wrong key", initiate_offence, serve_offence, .services = RC, .variant = READ_WRONG_KEY },
	{ "write to a foreign domain", initiate_offence, serve_offence, .services = CONNECTED,
	  .variant = WRITE_FOREIGN, .without_srq = UC },
	{ "read from a foreign domain", initiate_offence, serve_offence, .services = RC, .variant = READ_FOREIGN },
	{ "write with a stale key", initiate_offence, serve_offence, .services = CONNECTED,
	  .variant = WRITE_STALE, .without_srq = UC },
	{ "read with a stale key", initiate_offence, serve_offence, .services = RC, .variant = READ_STALE },
	{ "write past the address space", initiate_offence, serve_offence, .services = CONNECTED,
	  .variant = WRITE_WRAPPING, .without_srq = UC },
	{ "read past the address space", initiate_offence, serve_offence, .services = RC, .variant = READ_WRAPPING },
	{ "atomic without the right", initiate_offence, serve_offence, .services = RC,
	  .needs = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, .variant = ATOMIC_WITHOUT_RIGHT },
	{ "atomic beside its word", initiate_offence, serve_offence, .services = RC_IB,
	  .needs = IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, .variant = ATOMIC_MISALIGNED },
	{ "send with a wrong local key", initiate_mistake, serve_mistake, .services = RC, .variant = SEND_WRONG_KEY },
	{ "send from past the end", initiate_mistake, serve_mistake, .services = RC, .variant = SEND_PAST_END },
	{ "read into a foreign domain", initiate_mistake, serve_mistake, .services = RC,
	  .variant = READ_SINK_FOREIGN },
	{ "message too long for its receive", initiate_too_long, serve_too_long, .services = RC },
	{ "flush", initiate_flush, serve_flush, .services = RC, .without_srq = RC },
	{ "receiver never ready", initiate_not_ready, serve_not_ready, .services = RC_IB,
	  .own_exchange = true, .rnr_retry = 1 },
	{ "silence", initiate_silence, serve_silence, .services = RC_IB, .own_exchange = true, .retries = 2 },
};
const size_t refusal_count = LENGTH(refusal_tests);
