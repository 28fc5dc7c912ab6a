/*
 * Raw packet queue pairs and flow steering. One process, with itself, on the first interface of the device; it needs CAP_NET_RAW.
 *
 * usage: raw DEVICE
 *
 * Built against the distribution's headers, it knows nothing of the library that it will run on. Prints the number of checks.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROOM = 256, LENGTH = 64, PORT = 40 };

#include "check.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static uint8_t memory[4][ROOM];

struct end {
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint8_t *memory;
};

/* The rule with room for every condition behind it. */
struct rule {
	struct ibv_flow_attr attr;
	union {
		struct ibv_flow_spec_eth ethernet;
		struct ibv_flow_spec_tcp_udp ports;
		struct ibv_flow_spec_tunnel tunnel;
	} spec;
} __attribute__((packed));

static struct ibv_qp *make(enum ibv_qp_type type, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = type, .sq_sig_all = 1, .cap = { 4, 4, 1, 1, 0 },
	};

	return ibv_create_qp(pd, &attr);
}

static struct end open_end(int index)
{
	struct end end = { .memory = memory[index] };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_sge sge = { (uintptr_t)end.memory, ROOM, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;

	CHECK(end.channel = ibv_create_comp_channel(context));
	CHECK(end.cq = ibv_create_cq(context, 16, NULL, end.channel, 0));
	CHECK(end.qp = make(IBV_QPT_RAW_PACKET, end.cq));
	RETURNS(EINVAL, ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	RETURNS(0, ibv_modify_qp(end.qp, &attr, IBV_QP_STATE | IBV_QP_PORT));
	attr.qp_state = IBV_QPS_RTR;
	RETURNS(0, ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(0, ibv_modify_qp(end.qp, &attr, IBV_QP_STATE));
	for (int i = 0; i < 4; i++)
		RETURNS(0, ibv_post_recv(end.qp, &wr, &bad));
	return end;
}

static struct rule normal(uint16_t priority)
{
	struct rule rule = {
		.attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof(rule), .priority = priority, .port = 1 },
	};

	return rule;
}

/* Frames with this type. */
static struct rule of_type(uint16_t priority, uint16_t type)
{
	struct rule rule = normal(priority);

	rule.attr.num_of_specs = 1;
	rule.spec.ethernet = (struct ibv_flow_spec_eth){
		.type = IBV_FLOW_SPEC_ETH, .size = sizeof(rule.spec.ethernet), .val.ether_type = htons(type), .mask.ether_type = 0xffff,
	};
	return rule;
}

/* UDP datagrams to this port. */
static struct rule to_port(uint16_t priority, uint16_t port)
{
	struct rule rule = normal(priority);

	rule.attr.num_of_specs = 1;
	rule.spec.ports = (struct ibv_flow_spec_tcp_udp){
		.type = IBV_FLOW_SPEC_UDP, .size = sizeof(rule.spec.ports), .val.dst_port = htons(port), .mask.dst_port = 0xffff,
	};
	return rule;
}

/* A frame of a type that nobody else sends; of IPv4 with a UDP datagram to this port. The host is not addressed. */
static void frame(uint8_t *at, uint16_t type, uint16_t port)
{
	static const uint8_t ip[20] = { 0x45, 0, 0, 50, 0, 0, 0x40, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2 };
	uint16_t value = htons(type), destination = htons(port);

	memset(at, 0x0e, LENGTH);
	at[0] = at[6] = 2;
	memcpy(at + 12, &value, 2);
	memcpy(at + 14, ip, sizeof(ip));
	memcpy(at + 36, &destination, 2);
}

/* Sends the frame and waits until the right one has it: by an event, as nobody polls meanwhile. */
static void goes_to(struct end *from, struct end *to, uint16_t type, uint16_t port)
{
	struct ibv_sge sge = { (uintptr_t)from->memory, LENGTH, mr->lkey }, place = { (uintptr_t)to->memory, ROOM, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;
	struct ibv_recv_wr again = { .wr_id = 1, .sg_list = &place, .num_sge = 1 }, *bad_receive;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *program;
	int count;

	frame(from->memory, type, port);
	memset(to->memory, 0, ROOM);
	RETURNS(0, ibv_req_notify_cq(to->cq, 0));
	RETURNS(0, ibv_post_send(from->qp, &wr, &bad));
	while ((count = ibv_poll_cq(from->cq, 1, &wc)) == 0)
		;
	CHECK(count == 1 && wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS);
	RETURNS(0, ibv_get_cq_event(to->channel, &cq, &program));
	CHECK(cq == to->cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(ibv_poll_cq(to->cq, 1, &wc) == 1 && wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV);
	CHECK(wc.byte_len == LENGTH && wc.qp_num == to->qp->qp_num && !memcmp(to->memory, from->memory, LENGTH));
	CHECK(ibv_poll_cq(to->cq, 1, &wc) == 0);
	RETURNS(0, ibv_post_recv(to->qp, &again, &bad_receive));
}

static void refusals(struct end *end)
{
	struct ibv_qp *other;
	struct rule rule = normal(0);

	rule.attr.port = 2;
	NO_OBJECT(EINVAL, ibv_create_flow(end->qp, &rule.attr));
	rule = normal(0);
	rule.attr.flags = 1 << 7;
	NO_OBJECT(EINVAL, ibv_create_flow(end->qp, &rule.attr));
	rule.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
	NO_OBJECT(EOPNOTSUPP, ibv_create_flow(end->qp, &rule.attr));
	rule.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
	rule.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
	NO_OBJECT(EINVAL, ibv_create_flow(end->qp, &rule.attr));
	rule = of_type(0, 1);
	rule.attr.type = IBV_FLOW_ATTR_SNIFFER;
	NO_OBJECT(EINVAL, ibv_create_flow(end->qp, &rule.attr));
	rule.attr.type = 9;
	NO_OBJECT(EINVAL, ibv_create_flow(end->qp, &rule.attr));
	rule = of_type(0, 1);
	rule.spec.ethernet.size = 4;
	NO_OBJECT(EINVAL, ibv_create_flow(end->qp, &rule.attr));
	rule.spec.ethernet.type = IBV_FLOW_SPEC_VXLAN_TUNNEL;
	NO_OBJECT(EOPNOTSUPP, ibv_create_flow(end->qp, &rule.attr));
	rule = of_type(0, 1);
	CHECK(other = make(IBV_QPT_RC, end->cq));
	NO_OBJECT(EINVAL, ibv_create_flow(other, &rule.attr));
	RETURNS(0, ibv_destroy_qp(other));
	CHECK(other = make(IBV_QPT_UD, end->cq));
	NO_OBJECT(EOPNOTSUPP, ibv_create_flow(other, &rule.attr));
	RETURNS(0, ibv_destroy_qp(other));
}

/* Without the right over the network namespace there is no raw packet queue pair. */
static void not_for_everybody(const char *name)
{
	pid_t child = fork();
	int status;

	CHECK(child >= 0);
	if (child == 0) {
		struct ibv_device **list;
		struct ibv_cq *cq;
		int at = 0;

		if (unshare(CLONE_NEWUSER))
			_exit(3);
		list = ibv_get_device_list(NULL);
		while (list[at] && strcmp(ibv_get_device_name(list[at]), name))
			at++;
		context = ibv_open_device(list[at]);
		pd = ibv_alloc_pd(context);
		cq = ibv_create_cq(context, 16, NULL, NULL, 0);
		_exit(make(IBV_QPT_RAW_PACKET, cq) ? 1 : errno == EPERM ? 0 : 2);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int argc, char **argv)
{
	struct ibv_device **list;
	struct ibv_flow *udp, *low, *rest;
	struct end from, a, b, c;
	struct rule rule;
	int at = 0;

	if (argc != 2)
		return 2;
	alarm(60);
	not_for_everybody(argv[1]);
	CHECK(list = ibv_get_device_list(NULL));
	while (list[at] && strcmp(ibv_get_device_name(list[at]), argv[1]))
		at++;
	CHECK(list[at] && (context = ibv_open_device(list[at])) && (pd = ibv_alloc_pd(context)));
	CHECK(mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE));
	from = open_end(0);
	a = open_end(1);
	b = open_end(2);
	c = open_end(3);
	refusals(&a);
	rule = to_port(1, PORT);
	CHECK(udp = ibv_create_flow(a.qp, &rule.attr));
	rule = of_type(5, 0x0800);
	CHECK(low = ibv_create_flow(b.qp, &rule.attr));
	rule = normal(0);
	rule.attr.type = IBV_FLOW_ATTR_ALL_DEFAULT;
	CHECK(rest = ibv_create_flow(c.qp, &rule.attr));
	goes_to(&from, &a, 0x0800, PORT);
	goes_to(&from, &b, 0x0800, PORT + 1);
	goes_to(&from, &c, 0x88b5, 0);
	RETURNS(EBUSY, ibv_destroy_qp(a.qp));
	RETURNS(0, ibv_destroy_flow(udp));
	goes_to(&from, &b, 0x0800, PORT);
	RETURNS(0, ibv_destroy_qp(a.qp));
	RETURNS(0, ibv_destroy_flow(low));
	goes_to(&from, &c, 0x0800, PORT);
	RETURNS(0, ibv_destroy_flow(rest));
	RETURNS(0, ibv_destroy_qp(b.qp));
	RETURNS(0, ibv_destroy_qp(c.qp));
	RETURNS(0, ibv_destroy_qp(from.qp));
	printf("%d checks\n", checks);
	return 0;
}
