/* Connections as most programs make them: the sides tell each other their queue pair numbers over a TCP socket. */
#include <sys/socket.h>

#include "verify.h"

enum { QKEY = 0x11223344, PORT = 1 };

static int peer = -1;
static struct ibv_context *verbs;
static union ibv_gid gid;
static uint8_t gid_index;

struct end {
	uint32_t qpn, psn, mtu;
	union ibv_gid gid;
};

static void swap_bytes(const void *mine, void *theirs, size_t length)
{
	if (send(peer, mine, length, MSG_NOSIGNAL) != (ssize_t)length)
		fail("telling the other side: %s", strerror(errno));
	if (recv(peer, theirs, length, MSG_WAITALL) != (ssize_t)length)
		fail("the other side is gone");
}

void exchange_step(void)
{
	char byte = 'x';

	swap_bytes(&byte, &byte, 1);
}

/* Whether an entry of a table is ours. For the loopback any of its family is: beside addresses that lead out, none of its own is there. */
static bool is_ours(const union ibv_gid *entry, const union ibv_gid *wanted)
{
	static const union ibv_gid mapped = { .raw = { [10] = 0xff, [11] = 0xff } }, none;
	bool is_v4 = !memcmp(wanted->raw, mapped.raw, 12);
	bool is_loopback = is_v4 ? wanted->raw[12] == 127 : IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)wanted->raw);

	if (!is_loopback)
		return !memcmp(entry, wanted, sizeof(*entry));
	return memcmp(entry, &none, sizeof(none)) && !memcmp(entry->raw, mapped.raw, 12) == is_v4 && !(entry->raw[0] == 0xfe && entry->raw[1] == 0x80);
}

/* Opens the device that has the address of our end of the socket. */
static void open_device(void)
{
	struct sockaddr_storage own;
	socklen_t length = sizeof(own);
	struct ibv_device **devices = ibv_get_device_list(NULL);

	if (!devices || getsockname(peer, (struct sockaddr *)&own, &length))
		fail("no device: %s", strerror(errno));
	if (own.ss_family == AF_INET) {
		memset(gid.raw, 0, sizeof(gid.raw));
		memset(gid.raw + 10, 0xff, 2);
		memcpy(gid.raw + 12, &((struct sockaddr_in *)&own)->sin_addr, 4);
	} else {
		memcpy(gid.raw, &((struct sockaddr_in6 *)&own)->sin6_addr, 16);
	}
	for (struct ibv_device **device = devices; *device && !verbs; device++) {
		struct ibv_port_attr port;

		verbs = ibv_open_device(*device);
		if (!verbs || ibv_query_port(verbs, PORT, &port))
			fail("opening %s: %s", ibv_get_device_name(*device), strerror(errno));
		for (int index = 0; index < port.gid_tbl_len; index++) {
			union ibv_gid found;

			if (ibv_query_gid(verbs, PORT, index, &found) == 0 && is_ours(&found, &gid)) {
				gid = found;
				gid_index = index;
				ibv_free_device_list(devices);
				return;
			}
		}
		ibv_close_device(verbs);
		verbs = NULL;
	}
	fail("no device has our address among its GIDs");
}

void exchange_start(struct sockaddr *address, socklen_t length)
{
	int one = 1, listener;

	if (is_server) {
		listener = socket(address->sa_family, SOCK_STREAM, 0);
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		if (bind(listener, address, length) || listen(listener, 1))
			fail("listening: %s", strerror(errno));
		peer = accept(listener, NULL, NULL);
		close(listener);
	} else {
		peer = socket(address->sa_family, SOCK_STREAM, 0);
		if (connect(peer, address, length))
			fail("connecting: %s", strerror(errno));
	}
	if (peer < 0)
		fail("no connection to the other side: %s", strerror(errno));
	open_device();
}

void exchange_init(struct connection *c)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .pkey_index = 0, .port_num = PORT, .qkey = QKEY,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   (c->service == RC_IB ? IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC : 0),
	};
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | (c->service == UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
	int result = ibv_modify_qp(c->qp, &attr, mask);

	if (result)
		fail("ibv_modify_qp to INIT: %s", strerror(result));
}

static void to_ready(struct connection *c, const struct end *theirs, uint32_t psn)
{
	struct ibv_ah_attr path = {
		.is_global = 1, .port_num = PORT,
		.grh = { .dgid = theirs->gid, .sgid_index = gid_index, .hop_limit = 64 },
	};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = theirs->mtu, .dest_qp_num = theirs->qpn, .rq_psn = theirs->psn,
		.max_dest_rd_atomic = 4, .min_rnr_timer = 12, .ah_attr = path,
	};
	int mask = IBV_QP_STATE, result;

	if (c->service != UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (c->service == RC_IB)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	result = ibv_modify_qp(c->qp, &attr, mask);
	if (result)
		fail("ibv_modify_qp to RTR: %s", strerror(result));
	attr.qp_state = IBV_QPS_RTS;
	attr.sq_psn = psn;
	attr.timeout = current->timeout ? current->timeout : 14;
	attr.retry_cnt = current->retries ? current->retries : 7; /* for the kernel's rxe, 7 is without end */
	attr.rnr_retry = current->rnr_retry ? current->rnr_retry : 7;
	attr.max_rd_atomic = 4;
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (c->service == RC_IB)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	result = ibv_modify_qp(c->qp, &attr, mask);
	if (result)
		fail("ibv_modify_qp to RTS: %s", strerror(result));
	if (c->service == UD) {
		c->ah = is_server ? NULL : ibv_create_ah(c->pd, &path);
		if (!is_server && !c->ah)
			fail("ibv_create_ah: %s", strerror(errno));
	}
}

void exchange_open(struct connection *c)
{
	struct end mine, theirs;

	c->verbs = verbs;
	c->service = service == RC ? RC_IB : service;
	make_resources(c);
	mine = (struct end){ .qpn = c->qp->qp_num, .psn = c->qp->qp_num * 2654435761u >> 8, .gid = gid };
	mine.mtu = (uint32_t)__builtin_ctzl(c->mtu) - 7;
	swap_bytes(&mine, &theirs, sizeof(mine));
	if (theirs.mtu > mine.mtu)
		theirs.mtu = mine.mtu;
	c->mtu = (size_t)128 << theirs.mtu;
	c->peer_qpn = theirs.qpn;
	c->peer_qkey = QKEY;
	to_ready(c, &theirs, mine.psn);
	exchange_step();
}

void exchange_finish(struct connection *c)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	exchange_step();
	if (ibv_modify_qp(c->qp, &attr, IBV_QP_STATE))
		fail("ibv_modify_qp to ERROR failed");
}

void exchange_end(void)
{
	if (verbs && ibv_close_device(verbs))
		fail("ibv_close_device failed");
	if (peer >= 0)
		close(peer);
}
