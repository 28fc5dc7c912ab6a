/* Every operation, every byte. */
#include "verify.h"

static const size_t sizes[] = { 1, 2, 7, 8, 63, 64, 65, 511, 1460, 4095, 4096, 4097, 65535, 65536, 65537, 262147, 1048577 };

/* How many of the sizes a connection carries. A longer message may overrun the receiver's socket where nothing holds back. */
static size_t size_count(const struct connection *c)
{
	size_t largest = c->service == UD ? c->mtu : c->service == UC ? 65537 : slot_size, count = 0;

	while (count < LENGTH(sizes) && sizes[count] <= largest)
		count++;
	return count;
}

static void initiate_send(struct connection *c)
{
	for (size_t i = 0; i < size_count(c); i++) {
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
	for (size_t i = 0; i <= size_count(c); i++) {
		size_t expected = i < size_count(c) ? sizes[i] : 0;
		struct completion found = received(c);
		size_t slot = found.wr_id;

		if (found.opcode != IBV_WC_RECV || found.length != expected || slot != (i + 1) % SLOTS)
			fail("message %zu: opcode %d, %u bytes in receive %zu", i, found.opcode, found.length, slot);
		size_t end = GUARD + (size_t)(payload_of(c, &found) - c->inbox.data) + expected;

		check(payload_of(c, &found), expected, (uint32_t)i, "message");
		check_untouched(&c->inbox, end, GUARD + (slot + 1) * slot_size, "behind a message");
		restore_range(&c->inbox, GUARD + slot * slot_size, end);
		post_receive(c, (int)slot);
		tell(c);
	}
}

/* Receives into several elements: they are filled in order. */
static size_t scattered_length(const struct connection *c)
{
	return c->service == UD ? 777 : 4321;
}

static void serve_scattered(struct connection *c)
{
	struct ibv_sge sges[ELEMENTS];
	int count = split(&c->exposed[FULL], 100, 5000, ELEMENTS, sges);
	size_t from = 100 + (c->service == UD ? GRH : 0), length;

	for (int n = 0; n < count; n++)
		sges[n].lkey = c->exposed[FULL].mr->lkey;
	post_receive_list(c, SLOTS, sges, count);
	tell(c);
	for (int i = 0; i < SLOTS; i++)
		hear(c);
	tell(c);
	struct completion found = received(c);
	length = scattered_length(c);
	if (found.wr_id != SLOTS || found.length != length)
		fail("%u bytes in receive %llu", found.length, (unsigned long long)found.wr_id);
	check(c->exposed[FULL].data + from, length, 77, "scattered message");
	check_untouched(&c->exposed[FULL], 0, GUARD + 100, "before a scattered message");
	check_untouched(&c->exposed[FULL], GUARD + from + length, region_size + 2 * GUARD, "behind a scattered message");
	tell(c);
}

static void initiate_scattered(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, scattered_length(c));

	hear(c);
	for (int i = 0; i < SLOTS; i++)
		tell(c);
	hear(c);
	fill(c->local.data, scattered_length(c), 77);
	perform(c, (struct operation){ .opcode = IBV_WR_SEND, .sges = &sge, .elements = 1 });
	hear(c);
}

static void initiate_write(struct connection *c)
{
	for (size_t i = 0; i < size_count(c); i++) {
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
	for (size_t i = 0; i < size_count(c); i++) {
		struct region *region = &c->exposed[FULL];

		hear(c);
		check(region->data + i * 5, sizes[i], (uint32_t)i, "written bytes");
		check_untouched(region, 0, GUARD + i * 5, "before written bytes");
		check_untouched(region, GUARD + i * 5 + sizes[i], region_size + 2 * GUARD, "behind written bytes");
		restore(region);
		tell(c);
	}
}

static void initiate_read(struct connection *c)
{
	for (size_t i = 0; i < size_count(c); i++) {
		struct ibv_sge sge = element(&c->local, i * 7, sizes[i]);

		hear(c);
		restore(&c->local);
		perform(c, (struct operation){
			.opcode = IBV_WR_RDMA_READ, .sges = &sge, .elements = 1, .address = peer_address(c, FULL) + i,
			.key = peer_key(c, FULL),
		});
		check(c->local.data + i * 7, sizes[i], (uint32_t)i + 1000, "read bytes");
		check_untouched(&c->local, 0, GUARD + i * 7, "before read bytes");
		check_untouched(&c->local, GUARD + i * 7 + sizes[i], region_size + 2 * GUARD, "behind read bytes");
		tell(c);
	}
}

static void serve_read(struct connection *c)
{
	for (size_t i = 0; i < size_count(c); i++) {
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

/* Several packets, if a message may have them. */
static uint32_t immediate_length(const struct connection *c, uint32_t i)
{
	return i * (c->service == UD ? 140 : 500);
}

static void initiate_immediate(struct connection *c)
{
	for (uint32_t i = 0; i < 8; i++) {
		struct ibv_sge sge = element(&c->local, 0, immediate_length(c, i));

		fill(c->local.data, immediate_length(c, i), i);
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
		const uint8_t *bytes = write ? c->exposed[FULL].data : payload_of(c, &found);

		if (found.opcode != (write ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV) || found.length != immediate_length(c, i))
			fail("opcode %d with %u bytes", found.opcode, found.length);
		if (!(found.flags & IBV_WC_WITH_IMM) || found.immediate != htonl(0xabcd0000 + i))
			fail("immediate data %x, flags %x", ntohl(found.immediate), found.flags);
		check(bytes, immediate_length(c, i), i, "bytes with immediate data");
		post_receive(c, (int)found.wr_id);
		tell(c);
	}
}

static enum ibv_wr_opcode inline_opcode(const struct connection *c, int length)
{
	return length % 3 || c->service == UD ? IBV_WR_SEND : IBV_WR_RDMA_WRITE;
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
			.opcode = inline_opcode(c, length), .flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED,
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
		if (inline_opcode(c, length) == IBV_WR_SEND) {
			struct completion found = received(c);

			if (found.length != (uint32_t)length)
				fail("%u bytes instead of %d", found.length, length);
			check(payload_of(c, &found), length, length, "inline message");
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
		check_untouched(&c->exposed[WRITE_ONLY], GUARD + 1600, GUARD + SMALL + GUARD, "behind written bytes");
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
		if (found.status || found.length != 4 + (c->service == UD ? GRH : 0))
			fail("receive of %u bytes: %s", found.length, ibv_wc_status_str(found.status));
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
	check_untouched(&c->exposed[FULL], GUARD + 24, region_size + 2 * GUARD, "behind an atomic word");
	tell(c);
}

/* A message for which no receive is there is sent again until there is one. */
static void initiate_late(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, 2000);
	struct operation list[SLOTS + 2];
	struct completion early;
	uint64_t first = c->next;

	fill(c->local.data, 2000, 6);
	for (size_t i = 0; i < LENGTH(list); i++)
		list[i] = (struct operation){
			.opcode = IBV_WR_SEND, .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1,
		};
	post(c, list, LENGTH(list));
	for (size_t i = 0; i < LENGTH(list); i++) {
		if (i == SLOTS) {
			/* The others have been under way as long, and the peer offers nothing to receive them until this step. */
			if (poll_once(c, c->send_cq, &early))
				fail("request %llu is complete without a receive", (unsigned long long)early.wr_id);
			exchange_step();
		}
		sent(c, first + i, IBV_WC_SEND);
	}
	hear(c);
}

static void serve_late(struct connection *c)
{
	struct completion found[SLOTS + 2];

	for (size_t i = 0; i < LENGTH(found); i++) {
		found[i] = received(c);
		check(payload_of(c, &found[i]), 2000, 6, "message");
		if (i == SLOTS - 1) {
			exchange_step();
			for (size_t slot = 0; slot < SLOTS; slot++)
				post_receive(c, (int)slot);
		}
	}
	for (size_t i = SLOTS; i < LENGTH(found); i++)
		post_receive(c, (int)found[i].wr_id);
	tell(c);
}

/* Few receives left in the shared queue: one event, and none before. */
static void initiate_limit(struct connection *c)
{
	hear(c);
	for (int i = 0; i < SLOTS - 2; i++) {
		tell(c);
		hear(c);
	}
}

static void serve_limit(struct connection *c)
{
	struct ibv_srq_attr attr = { .srq_limit = 4 };
	struct pollfd descriptor = { .fd = c->verbs->async_fd, .events = POLLIN };
	struct completion found[SLOTS - 2];

	if (ibv_modify_srq(c->srq, &attr, IBV_SRQ_LIMIT))
		fail("ibv_modify_srq: %s", strerror(errno));
	tell(c);
	for (size_t i = 0; i < LENGTH(found); i++) {
		found[i] = received(c);
		if (i < SLOTS - 4 && poll(&descriptor, 1, 0) != 0)
			fail("an event with %zu receives taken", i + 1);
		if (i + 1 == LENGTH(found)) {
			/* Now, since behind the last word the peer ends the connection, which is an event, too. */
			expect_async(c, IBV_EVENT_SRQ_LIMIT_REACHED);
			if (poll(&descriptor, 1, 0) != 0)
				fail("a second event");
		}
		tell(c);
	}
	for (size_t i = 0; i < LENGTH(found); i++)
		post_receive(c, (int)found[i].wr_id);
}

const struct test data_tests[] = {
	{ "send", initiate_send, serve_send, .services = ALL },
	{ "scattered receive", initiate_scattered, serve_scattered, .services = ALL },
	{ "write", initiate_write, serve_write, .services = CONNECTED },
	{ "read", initiate_read, serve_read, .services = RC },
	{ "many reads", initiate_many_reads, serve_many_reads, .services = RC },
	{ "write with immediate", initiate_immediate, serve_immediate, .services = CONNECTED,
	  .needs = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, .variant = IBV_WR_RDMA_WRITE_WITH_IMM },
	{ "send with immediate", initiate_immediate, serve_immediate, .services = ALL,
	  .needs = IBV_QP_EX_WITH_SEND_WITH_IMM, .variant = IBV_WR_SEND_WITH_IMM },
	{ "inline", initiate_inline, serve_inline, .services = ALL },
	{ "unsignalled", initiate_unsignalled, serve_unsignalled, .services = CONNECTED },
	{ "fence", initiate_fence, serve_fence, .services = RC },
	{ "solicited", initiate_solicited, serve_solicited, .services = ALL },
	{ "events", initiate_events, serve_events, .services = ALL },
	{ "atomics", initiate_atomics, serve_atomics, .services = RC,
	  .needs = IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD },
	{ "receiver late", initiate_late, serve_late, .services = RC_IB, .own_exchange = true },
	{ "shared receive limit", initiate_limit, serve_limit, .services = ALL, .only_srq = true },
};
const size_t data_count = LENGTH(data_tests);
