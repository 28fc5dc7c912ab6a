/* What datagrams have beyond messages: keys of queues, and the header before the payload. */
#include "verify.h"

/* A datagram with a wrong key for the queue pair is dropped, and the next one arrives. */
static void initiate_wrong_key(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, 100);
	uint32_t right = c->peer_qkey;

	for (uint32_t i = 0; i < 10; i++) {
		struct operation o = { .opcode = IBV_WR_SEND, .sges = &sge, .elements = 1 };

		fill(c->local.data, 100, 1000);
		c->peer_qkey = right + 1 + i;
		perform(c, o);
		fill(c->local.data, 100, i);
		c->peer_qkey = right;
		perform(c, o);
		hear(c);
		refused++;
	}
}

static void serve_wrong_key(struct connection *c)
{
	for (uint32_t i = 0; i < 10; i++) {
		struct completion found = received(c);

		if (found.length != 100 || found.source_qp != c->peer_qpn)
			fail("%u bytes from %x", found.length, found.source_qp);
		check(payload_of(c, &found), 100, i, "datagram");
		post_receive(c, (int)found.wr_id);
		tell(c);
	}
}

/* A datagram for a queue pair that does not exist is dropped. */
static void initiate_nobody(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, 0, 100);
	uint32_t right = c->peer_qpn;

	c->peer_qpn = (right ^ 0x5000) & 0xffffff;
	fill(c->local.data, 100, 1000);
	perform(c, (struct operation){ .opcode = IBV_WR_SEND, .sges = &sge, .elements = 1 });
	c->peer_qpn = right;
	tell(c);
	refused++;
}

static void serve_nobody(struct connection *c)
{
	hear(c);
}

static uint16_t checksum(const uint8_t *bytes, size_t length)
{
	uint32_t sum = 0;

	for (size_t i = 0; i < length; i += 2)
		sum += (uint32_t)bytes[i] << 8 | bytes[i + 1];
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return (uint16_t)~sum;
}

/* The 40 bytes before the payload: an IPv6 header, or an IPv4 header in the last 20. */
static void initiate_header(struct connection *c)
{
	tell(c);
}

static void serve_header(struct connection *c)
{
	struct completion found = received(c);
	const uint8_t *header = payload_of(c, &found) - GRH;

	if (header[20] == 0x45 && header[0] >> 4 != 6) {
		if (checksum(header + 20, 20))
			fail("the header's checksum is wrong");
		if (header[29] != 17 && header[29] != 0)
			fail("protocol %u in the header", header[29]);
	} else if (header[0] >> 4 == 6) {
		size_t length = (size_t)header[4] << 8 | header[5];

		if (length < found.length)
			fail("payload length %zu in the header of a datagram of %u bytes", length, found.length);
	} else {
		fail("no IP header before the payload: %02x, %02x", header[0], header[20]);
	}
	compared += GRH;
	post_receive(c, (int)found.wr_id);
}

const struct test datagram_tests[] = {
	{ "wrong key of the queue", initiate_wrong_key, serve_wrong_key, .services = UD },
	{ "nobody there", initiate_nobody, serve_nobody, .services = UD },
	{ "header of a datagram", initiate_header, serve_header, .services = UD },
};
const size_t datagram_count = LENGTH(datagram_tests);
