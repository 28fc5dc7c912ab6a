/* Which GID a program that connects to itself takes. Wants check.h, <arpa/inet.h> and <infiniband/verbs.h>. */

#include <stdbool.h>

static const unsigned char IPV4_MAPPED[12] = { [10] = 0xff, [11] = 0xff };

static bool is_ipv4(const union ibv_gid *gid)
{
	return !memcmp(gid->raw, IPV4_MAPPED, sizeof(IPV4_MAPPED));
}

/* The index of the GID of an address. PRACTICE-DEVICES-4: where the table lacks it, as it lacks the loopback beside addresses that lead out, that of
 * another one of its family, or else of any. */
static int own_gid(struct ibv_context *context, const char *address, union ibv_gid *own)
{
	struct ibv_port_attr port;
	union ibv_gid wanted = {}, found;
	int best = -1, how = 0;

	if (inet_pton(AF_INET, address, wanted.raw + 12) == 1)
		memcpy(wanted.raw, IPV4_MAPPED, sizeof(IPV4_MAPPED));
	else
		CHECK(inet_pton(AF_INET6, address, wanted.raw) == 1);
	RETURNS(0, ibv_query_port(context, 1, &port));
	for (int i = 0; i < port.gid_tbl_len; i++) {
		int fits;

		CHECK(ibv_query_gid(context, 1, i, &found) == 0);
		/* An empty entry, and link-local ones. */
		if (!memcmp(&found, &(union ibv_gid){}, sizeof(found)) || (found.raw[0] == 0xfe && found.raw[1] == 0x80))
			continue;
		fits = !memcmp(&found, &wanted, sizeof(found)) ? 3 : is_ipv4(&found) == is_ipv4(&wanted) ? 2 : 1;
		if (fits > how) {
			how = fits;
			best = i;
			*own = found;
		}
	}
	CHECK(best >= 0);
	return best;
}
