/*
 * What a device with InfiniBand's transport answers beside the moving of bytes: its names, port and GIDs, queue pairs that
 * the program connects itself, address handles, datagrams in both ways of posting, multicast. One process, with itself.
 *
 * usage: datagrams DEVICE ADDRESS
 *
 * Built against the distribution's headers, it knows nothing of the library that it will run on. Prints the number of checks.
 */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "gid.h"

enum { GRH = 40, QKEY = 0x11111111, ROOM = 8192, MULTICAST = 0xffffff };

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_port_attr port;
static union ibv_gid own;
static int own_index = -1;
static bool is_v4;
static uint8_t here[ROOM], there[ROOM];
static struct ibv_mr *here_mr, *there_mr;

int ibv_query_gid_type(struct ibv_context *context, uint8_t port, unsigned int index, unsigned int *type)
	__attribute__((weak));

static void device(const char *name, const char *address)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device_attr attr;
	int at = 0;

	CHECK(list);
	while (list[at] && strcmp(ibv_get_device_name(list[at]), name))
		at++;
	CHECK(list[at] && list[at]->node_type == IBV_NODE_CA && list[at]->transport_type == IBV_TRANSPORT_IB);
	CHECK(!strncmp(list[at]->dev_name, "uverbs", 6) && !strcmp(ibv_node_type_str(list[at]->node_type), "InfiniBand channel adapter"));
	context = ibv_open_device(list[at]);
	CHECK(context && (pd = ibv_alloc_pd(context)));
	ibv_free_device_list(list);
	RETURNS(0, ibv_query_device(context, &attr));
	CHECK(attr.max_ah > 0 && attr.max_srq > 0 && attr.max_qp_init_rd_atom > 0 && attr.max_mcast_grp > 0);
	CHECK(attr.device_cap_flags & IBV_DEVICE_RC_RNR_NAK_GEN);

	own_index = own_gid(context, address, &own);
	is_v4 = is_ipv4(&own);
	here_mr = ibv_reg_mr(pd, here, ROOM, IBV_ACCESS_LOCAL_WRITE);
	there_mr = ibv_reg_mr(pd, there, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC);
	CHECK(here_mr && there_mr);
}

static bool is_loopback(const union ibv_gid *gid)
{
	return is_ipv4(gid) ? gid->raw[12] == 127 : IN6_IS_ADDR_LOOPBACK((const struct in6_addr *)gid->raw);
}

/* ROCE-21, ROCE-24, ROCE-25 */
static void ports(void)
{
	struct ibv_gid_entry entry, table[256];
	union ibv_gid gid, none = {};
	bool leads_out = false, loopback = false;
	ssize_t entries, seen = 0;
	unsigned int type = 7;
	__be16 pkey = 0;

	RETURNS(0, ibv_query_port(context, 1, &port));
	CHECK(port.state == IBV_PORT_ACTIVE && port.link_layer == IBV_LINK_LAYER_ETHERNET && port.phys_state == 5);
	CHECK(port.active_mtu >= IBV_MTU_256 && port.active_mtu <= port.max_mtu && port.max_msg_sz >= 1 << 20);
	CHECK(port.gid_tbl_len > 0 && port.pkey_tbl_len == 1 && port.lid == 0);
	CHECK(port.port_cap_flags & IBV_PORT_IP_BASED_GIDS && port.port_cap_flags & IBV_PORT_CM_SUP);
	RETURNS(0, ibv_query_gid_ex(context, 1, 0, &entry, 0));
	CHECK(entry.gid_type == IBV_GID_TYPE_ROCE_V2 && entry.gid_index == 0 && entry.port_num == 1 && entry.ndev_ifindex > 0);
	RETURNS(0, ibv_query_gid_ex(context, 1, own_index, &entry, 0));
	CHECK(!memcmp(&entry.gid, &own, sizeof(own)));
	/* PRACTICE-DEVICES-4: every way of asking has the same entries. */
	entries = ibv_query_gid_table(context, table, 256, 0);
	CHECK(entries > 0);
	for (int i = 0; i < port.gid_tbl_len; i++) {
		bool listed = seen < entries && table[seen].gid_index == (uint32_t)i;

		RETURNS(listed ? 0 : ENODATA, ibv_query_gid_ex(context, 1, i, &entry, 0));
		CHECK(ibv_query_gid(context, 1, i, &gid) == 0);
		CHECK(!memcmp(&gid, listed ? &table[seen].gid : &none, sizeof(gid)));
		if (ibv_query_gid_type) {
			RETURNS(0, ibv_query_gid_type(context, 1, i, &type));
			CHECK(type == listed);
		}
		leads_out |= listed && !is_loopback(&gid) && !(gid.raw[0] == 0xfe && gid.raw[1] == 0x80);
		loopback |= listed && is_loopback(&gid);
		seen += listed;
	}
	CHECK(seen == entries && leads_out != loopback);
	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
}

static struct ibv_ah_attr path(const union ibv_gid *gid)
{
	struct ibv_ah_attr attr = {
		.grh = { .dgid = *gid, .sgid_index = own_index, .hop_limit = 64, .traffic_class = 0x20 }, .is_global = 1, .port_num = 1,
	};

	return attr;
}

/* Polls until a completion is there; the alarm ends what takes too long. */
static struct ibv_wc wait_for(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(count == 1);
	return wc;
}

static struct ibv_qp *make(enum ibv_qp_type type, struct ibv_cq *cq, uint64_t operations)
{
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = type, .send_cq = cq, .recv_cq = cq, .pd = pd, .cap = { 8, 8, 2, 2, 64 }, .sq_sig_all = 1,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = operations,
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &attr);

	CHECK(qp && qp->qp_type == type && qp->qp_num > 1 && qp->qp_num <= 0xffffff);
	return qp;
}

static struct ibv_qp *make_datagrams(struct ibv_cq *cq)
{
	struct ibv_qp *qp = make(IBV_QPT_UD, cq, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM);
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY };
	struct ibv_qp_init_attr init;

	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT));
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.sq_psn = 0xffffff;
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	memset(&attr, 0, sizeof(attr));
	RETURNS(0, ibv_query_qp(qp, &attr, IBV_QP_QKEY, &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.cur_qp_state == IBV_QPS_RTS && attr.qkey == QKEY && attr.port_num == 1);
	CHECK(init.qp_type == IBV_QPT_UD && init.sq_sig_all && init.cap.max_send_wr >= 8 && init.cap.max_inline_data >= 64);
	return qp;
}

static void receive(struct ibv_qp *qp, uint64_t id, uint8_t *at, uint32_t length, uint32_t key)
{
	struct ibv_sge sge = { (uintptr_t)at, length, key };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	RETURNS(0, ibv_post_recv(qp, &wr, &bad));
}

static void handles(void)
{
	struct ibv_ah_attr attr = path(&own);
	union ibv_gid none = {};
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	uint8_t ethernet[6];
	uint16_t vlan;

	CHECK(ah && ah->context == context && ah->pd == pd);
	RETURNS(EBUSY, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_destroy_ah(ah));
	NO_OBJECT(EINVAL, ibv_create_ah(pd, NULL));
	attr.port_num = 2;
	NO_OBJECT(EINVAL, ibv_create_ah(pd, &attr));
	attr = path(&own);
	attr.is_global = 0;
	NO_OBJECT(EINVAL, ibv_create_ah(pd, &attr));
	attr = path(&own);
	attr.grh.sgid_index = 255;
	NO_OBJECT(EINVAL, ibv_create_ah(pd, &attr));
	attr = path(&none);
	NO_OBJECT(EINVAL, ibv_create_ah(pd, &attr));
	CHECK(inet_pton(AF_INET6, "ff05::1:2", attr.grh.dgid.raw) == 1);
	RETURNS(0, ibv_resolve_eth_l2_from_gid(context, &attr, ethernet, &vlan));
	CHECK(!memcmp(ethernet, "\x33\x33\0\1\0\2", 6));
}

static void datagrams(void)
{
	struct ibv_cq_init_attr_ex cq_attr = {
		.cqe = 32, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_SLID | IBV_WC_EX_WITH_SL | IBV_WC_EX_WITH_DLID_PATH_BITS |
			IBV_WC_EX_WITH_COMPLETION_TIMESTAMP,
	};
	struct ibv_cq_ex *cq_ex = ibv_create_cq_ex(context, &cq_attr);
	struct ibv_cq *sends = ibv_create_cq(context, 32, NULL, NULL, 0);
	struct ibv_qp *from, *to;
	struct ibv_qp_ex *builder;
	struct ibv_ah_attr attr = path(&own), back;
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_ah *ah = ibv_create_ah(pd, &attr), *reply, *foreign = other ? ibv_create_ah(other, &attr) : NULL;
	struct ibv_sge sge = { (uintptr_t)here, 100, here_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htonl(0x1234),
		.send_flags = IBV_SEND_SIGNALED,
	}, *bad = NULL;
	struct ibv_data_buf parts[2] = { { "in", 2 }, { "line", 4 } };
	struct ibv_poll_cq_attr poll_attr = {};
	struct ibv_wc wc;
	uint32_t number;

	CHECK(cq_ex && sends && ah && foreign);
	from = make_datagrams(sends);
	to = make_datagrams(ibv_cq_ex_to_cq(cq_ex));
	number = to->qp_num;
	for (int i = 0; i < 100; i++)
		here[i] = i ^ 0x5a;

	/* No address, a foreign one, or no datagram at all. */
	RETURNS(EINVAL, ibv_post_send(from, &wr, &bad));
	/* IB-QP-28 */
	CHECK(bad == &wr);
	/* IB-UD-8 */
	wr.wr.ud.ah = foreign;
	RETURNS(EINVAL, ibv_post_send(from, &wr, &bad));
	RETURNS(0, ibv_destroy_ah(foreign));
	RETURNS(0, ibv_dealloc_pd(other));
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = number;
	wr.wr.ud.remote_qkey = QKEY;
	wr.opcode = IBV_WR_RDMA_WRITE;
	CHECK(ibv_post_send(from, &wr, &bad) != 0);
	wr.opcode = IBV_WR_SEND_WITH_IMM;

	/* A list of requests. */
	receive(to, 11, there, ROOM, there_mr->lkey);
	RETURNS(0, ibv_post_send(from, &wr, &bad));
	wc = wait_for(sends);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.qp_num == from->qp_num);
	while (ibv_start_poll(cq_ex, &poll_attr) == ENOENT)
		;
	CHECK(cq_ex->wr_id == 11 && cq_ex->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq_ex) == IBV_WC_RECV);
	CHECK(ibv_wc_read_byte_len(cq_ex) == GRH + 100 && ibv_wc_read_imm_data(cq_ex) == htonl(0x1234));
	CHECK(ibv_wc_read_src_qp(cq_ex) == from->qp_num && ibv_wc_read_qp_num(cq_ex) == number);
	CHECK(ibv_wc_read_wc_flags(cq_ex) == (IBV_WC_GRH | IBV_WC_WITH_IMM));
	CHECK(ibv_wc_read_slid(cq_ex) == 0 && ibv_wc_read_dlid_path_bits(cq_ex) == 0);
	/* As adapters do: UDP (8) behind an IPv4 (2) or IPv6 (1) header. */
	CHECK(ibv_wc_read_sl(cq_ex) == (there[20] == 0x45 ? 8 | 2 : 8 | 1));
	CHECK(ibv_wc_read_completion_ts(cq_ex) > 0);
	wc = (struct ibv_wc){ .wc_flags = IBV_WC_GRH, .src_qp = ibv_wc_read_src_qp(cq_ex) };
	ibv_end_poll(cq_ex);
	CHECK(!memcmp(there + GRH, here, 100));

	/* The way back, from the header in front of the data. */
	/* IB-UD-18 */
	RETURNS(0, ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)there, &back));
	CHECK(back.is_global && !memcmp(&back.grh.dgid, &own, 16) && back.grh.sgid_index == own_index && back.port_num == 1);
	CHECK((back.grh.traffic_class & 0xfc) == 0x20);
	reply = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)there, 1);
	CHECK(reply);
	receive(from, 12, here + 200, 100, here_mr->lkey);
	builder = ibv_qp_to_qp_ex(to);
	CHECK(builder);
	ibv_wr_start(builder);
	builder->wr_id = 13;
	builder->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	ibv_wr_send(builder);
	ibv_wr_set_ud_addr(builder, reply, wc.src_qp, QKEY);
	ibv_wr_set_inline_data_list(builder, 2, parts);
	RETURNS(0, ibv_wr_complete(builder));
	wc = wait_for(sends);
	CHECK(wc.wr_id == 12 && wc.status == IBV_WC_SUCCESS && wc.src_qp == number && wc.byte_len == GRH + 6);
	CHECK(wc.wc_flags == IBV_WC_GRH && !memcmp(here + 200 + GRH, "inline", 6));
	while (ibv_start_poll(cq_ex, &poll_attr) == ENOENT)
		;
	CHECK(cq_ex->wr_id == 13 && cq_ex->status == IBV_WC_SUCCESS);
	ibv_end_poll(cq_ex);

	/* Builders without an address: all or nothing. */
	ibv_wr_start(builder);
	ibv_wr_send(builder);
	ibv_wr_set_ud_addr(builder, reply, from->qp_num, QKEY);
	ibv_wr_send_imm(builder, 5);
	RETURNS(EINVAL, ibv_wr_complete(builder));
	RETURNS(ENOENT, ibv_start_poll(cq_ex, &poll_attr));

	RETURNS(0, ibv_destroy_ah(reply));
	RETURNS(0, ibv_destroy_ah(ah));
	RETURNS(0, ibv_destroy_qp(from));
	RETURNS(0, ibv_destroy_qp(to));
	RETURNS(0, ibv_destroy_cq(sends));
	RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq_ex)));
}

static void multicast(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 32, NULL, NULL, 0);
	struct ibv_qp *from = make_datagrams(cq), *member = make_datagrams(cq), *reliable = make(IBV_QPT_RC, cq, 0);
	union ibv_gid group = {}, none = {};
	struct ibv_ah_attr attr;
	struct ibv_ah *ah;
	struct ibv_sge sge = { (uintptr_t)here, 8, here_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	if (is_v4) {
		group.raw[10] = group.raw[11] = 0xff;
		memcpy(group.raw + 12, "\xef\x81\x02\x04", 4);
	} else {
		CHECK(inet_pton(AF_INET6, "ff05::8102:4", group.raw) == 1);
	}
	RETURNS(EINVAL, ibv_attach_mcast(reliable, &group, 0));
	RETURNS(EINVAL, ibv_attach_mcast(member, &own, 0));
	RETURNS(EINVAL, ibv_detach_mcast(member, &group, 0));
	RETURNS(0, ibv_attach_mcast(member, &group, 0));
	RETURNS(0, ibv_attach_mcast(member, &group, 0));
	/* IB-UD-27 */
	RETURNS(EBUSY, ibv_destroy_qp(member));
	attr = path(&group);
	/* From the first address of the family: some loopbacks have no multicast. */
	for (int i = 0; i < port.gid_tbl_len; i++) {
		union ibv_gid gid;

		CHECK(ibv_query_gid(context, 1, i, &gid) == 0);
		if (memcmp(&gid, &none, sizeof(gid)) && is_v4 == is_ipv4(&gid)) {
			attr.grh.sgid_index = i;
			break;
		}
	}
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = MULTICAST;
	wr.wr.ud.remote_qkey = QKEY;
	receive(member, 2, there, 100, there_mr->lkey);
	/* The network may lose it, while another process of the host comes or goes: once more then, every now and then. */
	for (bool arrived = false, sent = true; !arrived || !sent;) {
		time_t until = time(NULL) + 2;

		if (sent)
			RETURNS(0, ibv_post_send(from, &wr, &bad));
		for (sent = false; time(NULL) < until && (!arrived || !sent);) {
			struct ibv_wc wc;
			int count = ibv_poll_cq(cq, 1, &wc);

			if (count == 0)
				continue;
			CHECK(count == 1 && wc.status == IBV_WC_SUCCESS && (wc.wr_id == 1 || wc.wr_id == 2));
			CHECK(wc.wr_id == 1 || (wc.src_qp == from->qp_num && wc.byte_len == GRH + 8));
			sent |= wc.wr_id == 1;
			arrived |= wc.wr_id == 2;
		}
	}
	CHECK(!memcmp(there + GRH, here, 8));
	RETURNS(0, ibv_detach_mcast(member, &group, 0));
	RETURNS(EINVAL, ibv_detach_mcast(member, &group, 0));
	RETURNS(0, ibv_destroy_ah(ah));
	RETURNS(0, ibv_destroy_qp(from));
	RETURNS(0, ibv_destroy_qp(member));
	RETURNS(0, ibv_destroy_qp(reliable));
	RETURNS(0, ibv_destroy_cq(cq));
}

enum { TO_RTR = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN };

static void connect_to(struct ibv_qp *qp, uint32_t number, bool reliable)
{
	int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access, .path_mtu = IBV_MTU_256, .dest_qp_num = number,
		.ah_attr = path(&own), .rq_psn = 77, .sq_psn = 77, .max_rd_atomic = 1, .max_dest_rd_atomic = 2, .min_rnr_timer = 12,
		.timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
	}, wrong;
	int to_rtr = TO_RTR | (reliable ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0);
	int to_rts = IBV_QP_STATE | IBV_QP_SQ_PSN |
		(reliable ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0);

	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	for (int i = 0; i < 6; i++) {
		wrong = attr;
		if (i == 0)
			wrong.path_mtu = 0;
		else if (i == 1)
			wrong.path_mtu = 6;
		else if (i == 2)
			wrong.dest_qp_num = 1 << 24;
		else if (i == 3)
			wrong.ah_attr.is_global = 0;
		else if (i == 4)
			wrong.ah_attr.grh.sgid_index = 255;
		else
			wrong.ah_attr.port_num = 9;
		RETURNS(EINVAL, ibv_modify_qp(qp, &wrong, to_rtr));
	}
	RETURNS(EINVAL, ibv_modify_qp(qp, &attr, to_rtr & ~IBV_QP_AV));
	RETURNS(0, ibv_modify_qp(qp, &attr, to_rtr));
	attr.qp_state = IBV_QPS_RTS;
	if (reliable) {
		wrong = attr;
		wrong.retry_cnt = 8;
		RETURNS(EINVAL, ibv_modify_qp(qp, &wrong, to_rts));
		wrong = attr;
		wrong.timeout = 32;
		RETURNS(EINVAL, ibv_modify_qp(qp, &wrong, to_rts));
	}
	RETURNS(0, ibv_modify_qp(qp, &attr, to_rts));
	CHECK(qp->state == IBV_QPS_RTS);
}

static void connected(void)
{
	uint64_t operations = IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
		IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_SEND;
	struct ibv_cq *sends = ibv_create_cq(context, 32, NULL, NULL, 0), *receives = ibv_create_cq(context, 32, NULL, NULL, 0);
	struct ibv_qp *client = make(IBV_QPT_RC, sends, operations), *server = make(IBV_QPT_RC, receives, operations);
	struct ibv_qp_ex *builder = ibv_qp_to_qp_ex(client);
	struct ibv_qp_attr attr, change = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ibv_qp_init_attr init;
	struct ibv_async_event event;
	struct ibv_wc wc;
	uint64_t *counter = (uint64_t *)there;

	CHECK(sends && receives && builder);
	connect_to(client, server->qp_num, true);
	connect_to(server, client->qp_num, true);
	RETURNS(0, ibv_query_qp(client, &attr, IBV_QP_AV, &init));
	CHECK(attr.qp_state == IBV_QPS_RTS && attr.path_mtu == IBV_MTU_256 && attr.dest_qp_num == server->qp_num);
	CHECK(attr.ah_attr.is_global && !memcmp(&attr.ah_attr.grh.dgid, &own, 16) && attr.ah_attr.grh.sgid_index == own_index);
	CHECK(attr.timeout == 14 && attr.retry_cnt == 7 && attr.rnr_retry == 7 && attr.min_rnr_timer == 12);
	CHECK(attr.max_rd_atomic == 1 && attr.max_dest_rd_atomic == 2 && attr.sq_psn == 77 && !attr.sq_draining);
	CHECK(init.send_cq == sends && init.cap.max_send_wr >= 8);

	*counter = 40;
	memset(here, 0x77, 64);
	receive(server, 1, there + 100, 8, there_mr->lkey);
	ibv_wr_start(builder);
	builder->wr_flags = IBV_SEND_SIGNALED;
	builder->wr_id = 1;
	ibv_wr_atomic_fetch_add(builder, there_mr->rkey, (uintptr_t)counter, 2);
	ibv_wr_set_sge(builder, here_mr->lkey, (uintptr_t)here, 8);
	builder->wr_id = 2;
	ibv_wr_atomic_cmp_swp(builder, there_mr->rkey, (uintptr_t)counter, 42, 43);
	ibv_wr_set_sge(builder, here_mr->lkey, (uintptr_t)(here + 8), 8);
	builder->wr_id = 3;
	ibv_wr_rdma_write_imm(builder, there_mr->rkey, (uintptr_t)(there + 200), htonl(9));
	ibv_wr_set_sge(builder, here_mr->lkey, (uintptr_t)(here + 16), 16);
	RETURNS(0, ibv_wr_complete(builder));
	for (uint64_t id = 1; id <= 3; id++) {
		wc = wait_for(sends);
		CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS);
	}
	CHECK(((uint64_t *)here)[0] == 40 && ((uint64_t *)here)[1] == 42 && *counter == 43);
	wc = wait_for(receives);
	CHECK(wc.wr_id == 1 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htonl(9) && wc.byte_len == 16);
	CHECK(there[200] == 0x77 && there[215] == 0x77);

	/* The send queue drains, and says so. */
	RETURNS(0, ibv_modify_qp(client, &change, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY));
	CHECK(ibv_get_async_event(context, &event) == 0);
	/* IB-QP-7 */
	CHECK(event.event_type == IBV_EVENT_SQ_DRAINED && event.element.qp == client);
	ibv_ack_async_event(&event);
	RETURNS(0, ibv_query_qp(client, &attr, IBV_QP_STATE, &init));
	CHECK(attr.qp_state == IBV_QPS_SQD && !attr.sq_draining && client->state == IBV_QPS_SQD);
	change.qp_state = IBV_QPS_RTS;
	RETURNS(0, ibv_modify_qp(client, &change, IBV_QP_STATE));
	change.path_mig_state = IBV_MIG_REARM;
	RETURNS(EINVAL, ibv_modify_qp(client, &change, IBV_QP_PATH_MIG_STATE));
	change.cur_qp_state = IBV_QPS_RTR;
	/* IB-QP-12 */
	RETURNS(EINVAL, ibv_modify_qp(client, &change, IBV_QP_STATE | IBV_QP_CUR_STATE));
	RETURNS(0, ibv_destroy_qp(client));
	RETURNS(0, ibv_destroy_qp(server));

	/* Unreliable: a failed send stops the send queue alone. */
	client = make(IBV_QPT_UC, sends, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE);
	server = make(IBV_QPT_UC, receives, IBV_QP_EX_WITH_SEND);
	connect_to(client, server->qp_num, false);
	connect_to(server, client->qp_num, false);
	builder = ibv_qp_to_qp_ex(client);
	for (int good = 0; good < 2; good++) {
		receive(server, 5, there, 100, there_mr->lkey);
		ibv_wr_start(builder);
		builder->wr_id = 4;
		builder->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_send(builder);
		ibv_wr_set_sge(builder, good ? here_mr->lkey : ~here_mr->lkey, (uintptr_t)here, 8);
		RETURNS(0, ibv_wr_complete(builder));
		wc = wait_for(sends);
		CHECK(wc.wr_id == 4 && wc.status == (good ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR));
		RETURNS(0, ibv_query_qp(client, &attr, IBV_QP_STATE, &init));
		CHECK(attr.qp_state == (good ? IBV_QPS_RTS : IBV_QPS_SQE));
		change.qp_state = IBV_QPS_RTS;
		if (!good)
			RETURNS(0, ibv_modify_qp(client, &change, IBV_QP_STATE));
	}
	wc = wait_for(receives);
	CHECK(wc.wr_id == 5 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 8);
	RETURNS(0, ibv_destroy_qp(client));
	RETURNS(0, ibv_destroy_qp(server));
	RETURNS(0, ibv_destroy_cq(sends));
	RETURNS(0, ibv_destroy_cq(receives));
}

static void operations(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_UD, .send_cq = cq, .recv_cq = cq, .pd = pd, .cap = { 1, 1, 1, 1, 0 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
	};

	CHECK(cq);
	attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	NO_OBJECT(EOPNOTSUPP, ibv_create_qp_ex(context, &attr));
	attr.qp_type = IBV_QPT_UC;
	attr.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
	NO_OBJECT(EOPNOTSUPP, ibv_create_qp_ex(context, &attr));
	attr.qp_type = IBV_QPT_DRIVER;
	attr.send_ops_flags = 0;
	NO_OBJECT(EOPNOTSUPP, ibv_create_qp_ex(context, &attr));
	RETURNS(0, ibv_destroy_cq(cq));
}

static void too_late(int signal)
{
	char text[64];
	int length = snprintf(text, sizeof(text), "nothing more happens behind line %d\n", last_line);

	(void)signal;
	if (write(2, text, length) != length)
		_exit(4);
	_exit(3);
}

int main(int count, char **arguments)
{
	if (count != 3) {
		fprintf(stderr, "usage: datagrams DEVICE ADDRESS\n");
		return 2;
	}
	signal(SIGALRM, too_late);
	alarm(60);
	device(arguments[1], arguments[2]);
	ports();
	handles();
	operations();
	datagrams();
	multicast();
	connected();
	RETURNS(0, ibv_dereg_mr(here_mr));
	RETURNS(0, ibv_dereg_mr(there_mr));
	RETURNS(0, ibv_dealloc_pd(pd));
	CHECK(ibv_close_device(context) == 0);
	printf("%d checks\n", checks);
	return 0;
}
