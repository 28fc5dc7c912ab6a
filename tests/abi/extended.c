/*
 * Extended reliable connections (XRC): domains, shared receive queues that messages name, target queue pairs that several
 * hold. One process, with itself.
 *
 * usage: extended DEVICE ADDRESS
 *
 * Built against the distribution's headers, it knows nothing of the library that it will run on. Prints the number of checks.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ROOM = 8192 };

#include "check.h"
#include "gid.h"

/* A shared receive queue with a protection domain, a completion queue and memory of its own. */
struct queue {
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	uint32_t number;
	uint8_t memory[ROOM];
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *sends;
static struct ibv_mr *mr;
static uint8_t source[ROOM];
static union ibv_gid own;
static int own_index;
static struct queue first, second;

static void device(const char *name, const char *address)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_device_attr attr;
	int at = 0;

	CHECK(list);
	while (list[at] && strcmp(ibv_get_device_name(list[at]), name))
		at++;
	CHECK(list[at]);
	context = ibv_open_device(list[at]);
	CHECK(context && (pd = ibv_alloc_pd(context)) && (sends = ibv_create_cq(context, 16, NULL, NULL, 0)));
	ibv_free_device_list(list);
	RETURNS(0, ibv_query_device(context, &attr));
	CHECK(attr.device_cap_flags & IBV_DEVICE_XRC);
	CHECK(mr = ibv_reg_mr(pd, source, ROOM, IBV_ACCESS_LOCAL_WRITE));
	own_index = own_gid(context, address, &own);
}

static struct ibv_xrcd *open_domain(int fd, int oflags)
{
	struct ibv_xrcd_init_attr attr = {
		.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags,
	};

	return ibv_open_xrcd(context, &attr);
}

/* IB-XRC-10 */
static void domains(void)
{
	struct ibv_xrcd_init_attr attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD, .fd = -1, .oflags = O_CREAT };
	int file = memfd_create("domain", MFD_CLOEXEC), other = dup(file);
	struct ibv_xrcd *one, *same;

	CHECK(file >= 0 && other >= 0);
	NO_OBJECT(EINVAL, ibv_open_xrcd(context, &attr));
	attr.comp_mask = ~0u;
	NO_OBJECT(EOPNOTSUPP, ibv_open_xrcd(context, &attr));
	NO_OBJECT(EBADF, open_domain(9999, O_CREAT));
	NO_OBJECT(EINVAL, open_domain(file, O_APPEND));
	NO_OBJECT(EAGAIN, open_domain(file, 0));
	CHECK(one = open_domain(file, O_CREAT));
	NO_OBJECT(EINVAL, open_domain(other, O_CREAT | O_EXCL));
	CHECK(same = open_domain(other, 0));
	RETURNS(0, ibv_close_xrcd(one));
	RETURNS(0, ibv_close_xrcd(same));
	NO_OBJECT(EAGAIN, open_domain(file, 0));
	close(file);
	close(other);
}

/* IB-XRC-12 */
static void make_queue(struct queue *queue, struct ibv_xrcd *domain)
{
	struct ibv_srq_init_attr_ex attr = {
		.attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .xrcd = domain,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD,
	};

	CHECK(queue->pd = ibv_alloc_pd(context));
	CHECK(queue->cq = ibv_create_cq(context, 16, NULL, NULL, 0));
	CHECK(queue->mr = ibv_reg_mr(queue->pd, queue->memory, ROOM, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		IBV_ACCESS_REMOTE_READ));
	attr.pd = queue->pd;
	NO_OBJECT(EINVAL, ibv_create_srq_ex(context, &attr));
	attr.cq = queue->cq;
	attr.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
	CHECK(queue->srq = ibv_create_srq_ex(context, &attr));
	RETURNS(0, ibv_get_srq_num(queue->srq, &queue->number));
	RETURNS(EBUSY, ibv_destroy_cq(queue->cq));
}

static void receive(struct queue *queue, uint64_t id)
{
	struct ibv_sge sge = { (uintptr_t)queue->memory, ROOM, queue->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 }, *bad;

	RETURNS(0, ibv_post_srq_recv(queue->srq, &wr, &bad));
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

/* Takes a queue pair to RTS with the attributes of RC: those without a meaning for it are not looked at (IB-XRC-9). */
static void connect_to(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};

	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = peer;
	attr.rq_psn = attr.sq_psn = 77;
	attr.max_dest_rd_atomic = attr.max_rd_atomic = 4;
	attr.min_rnr_timer = 1;
	attr.ah_attr = (struct ibv_ah_attr){
		.grh = { .dgid = own, .sgid_index = own_index, .hop_limit = 64 }, .is_global = 1, .port_num = 1,
	};
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = attr.rnr_retry = 7;
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

/* IB-XRC-7 */
static struct ibv_qp *initiator(void)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = sends, .qp_type = IBV_QPT_XRC_SEND, .sq_sig_all = 1, .cap = { .max_send_wr = 4, .max_send_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	struct ibv_recv_wr wr = { .num_sge = 0 }, *bad;

	CHECK(qp && !qp->recv_cq && attr.cap.max_recv_wr == 0);
	CHECK(ibv_post_recv(qp, &wr, &bad) == EINVAL && bad == &wr);
	return qp;
}

/* IB-XRC-8 */
static struct ibv_qp *target(struct ibv_xrcd *domain)
{
	struct ibv_qp_init_attr_ex attr = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD };
	struct ibv_qp *qp;

	NO_OBJECT(EINVAL, ibv_create_qp_ex(context, &attr));
	attr.xrcd = domain;
	CHECK(qp = ibv_create_qp_ex(context, &attr));
	CHECK(qp->qp_type == IBV_QPT_XRC_RECV && !qp->pd && !qp->send_cq && !qp->recv_cq && qp->context == context);
	return qp;
}

static struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *sge, uint32_t queue)
{
	struct ibv_send_wr wr = {
		.sg_list = sge, .num_sge = 1, .opcode = opcode, .imm_data = htonl(queue), .qp_type.xrc.remote_srqn = queue,
	};

	return wr;
}

static void post(struct ibv_qp *qp, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad;

	RETURNS(0, ibv_post_send(qp, &wr, &bad));
}

/* IB-XRC-1, IB-XRC-2, IB-XRC-3, IB-XRC-6 */
static void traffic(struct ibv_qp *qp, uint32_t target_number)
{
	struct queue *const queues[] = { &first, &second, &second, &first };
	struct ibv_sge sge = { (uintptr_t)source, ROOM, mr->lkey };

	for (int i = 0; i < 4; i++) {
		struct queue *queue = queues[i];
		struct ibv_send_wr wr = request(IBV_WR_SEND_WITH_IMM, &sge, queue->number);
		struct ibv_wc wc;

		memset(source, 'a' + i, ROOM);
		receive(queue, 40 + i);
		post(qp, wr);
		CHECK(wait_for(sends).status == IBV_WC_SUCCESS);
		wc = wait_for(queue->cq);
		CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 40u + i && wc.byte_len == ROOM && wc.qp_num == target_number);
		CHECK(wc.imm_data == htonl(queue->number) && !memcmp(queue->memory, source, ROOM));

		/* Keys are those of the protection domain of the queue that the request names. */
		memset(source, 'A' + i, ROOM);
		wr = request(IBV_WR_RDMA_WRITE_WITH_IMM, &sge, queue->number);
		wr.wr.rdma.remote_addr = (uintptr_t)queue->memory;
		wr.wr.rdma.rkey = queue->mr->rkey;
		receive(queue, 50 + i);
		post(qp, wr);
		CHECK(wait_for(sends).status == IBV_WC_SUCCESS);
		wc = wait_for(queue->cq);
		CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wr_id == 50u + i && !memcmp(queue->memory, source, ROOM));
		memset(source, 0, ROOM);
		wr.opcode = IBV_WR_RDMA_READ;
		post(qp, wr);
		CHECK(wait_for(sends).status == IBV_WC_SUCCESS);
		CHECK(!memcmp(queue->memory, source, ROOM));
	}
}

/* IB-XRC-11, IB-XRC-13 */
static struct ibv_qp *shared(struct ibv_xrcd *domain, struct ibv_qp *creator, struct ibv_qp *sender)
{
	struct ibv_qp_open_attr attr = {
		.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_CONTEXT,
		.qp_num = creator->qp_num, .xrcd = domain, .qp_context = source, .qp_type = IBV_QPT_XRC_RECV,
	};
	struct ibv_qp *opened;

	NO_OBJECT(EINVAL, ibv_open_qp(context, &attr));
	attr.comp_mask |= IBV_QP_OPEN_ATTR_TYPE;
	attr.qp_num = sender->qp_num;
	NO_OBJECT(EINVAL, ibv_open_qp(context, &attr));
	attr.qp_num = creator->qp_num;
	CHECK(opened = ibv_open_qp(context, &attr));
	CHECK(opened != creator && opened->qp_num == creator->qp_num && opened->qp_context == source);
	RETURNS(0, ibv_destroy_qp(creator));
	traffic(sender, opened->qp_num);
	RETURNS(EBUSY, ibv_close_xrcd(domain));
	return opened;
}

/* IB-XRC-4, IB-XRC-14: a queue that is gone is refused like one that never was. */
static void refused(struct ibv_qp *sender, struct ibv_qp *receiver)
{
	struct ibv_sge sge = { (uintptr_t)source, 64, mr->lkey };
	struct ibv_async_event event;
	uint32_t number = second.number;

	RETURNS(0, ibv_destroy_srq(second.srq));
	post(sender, request(IBV_WR_SEND, &sge, number));
	CHECK(wait_for(sends).status == IBV_WC_REM_INV_REQ_ERR);
	RETURNS(0, ibv_get_async_event(context, &event));
	CHECK(event.event_type == IBV_EVENT_QP_REQ_ERR && event.element.qp == receiver);
	ibv_ack_async_event(&event);
}

/* A key of another protection domain than that of the queue. IB-XRC-6 */
static void foreign_key(struct ibv_xrcd *domain)
{
	struct ibv_qp *sender = initiator(), *receiver = target(domain);
	struct ibv_sge sge = { (uintptr_t)source, 64, mr->lkey };
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge, first.number);

	connect_to(sender, receiver->qp_num);
	connect_to(receiver, sender->qp_num);
	wr.wr.rdma.remote_addr = (uintptr_t)second.memory;
	wr.wr.rdma.rkey = second.mr->rkey;
	post(sender, wr);
	CHECK(wait_for(sends).status == IBV_WC_REM_ACCESS_ERR);
	RETURNS(0, ibv_destroy_qp(sender));
	RETURNS(0, ibv_destroy_qp(receiver));
}

int main(int argc, char **argv)
{
	struct ibv_xrcd *domain;
	struct ibv_qp *sender, *receiver;

	if (argc != 3)
		return 2;
	alarm(60);
	device(argv[1], argv[2]);
	domains();
	CHECK(domain = open_domain(-1, O_CREAT));
	make_queue(&first, domain);
	make_queue(&second, domain);
	CHECK(first.number != second.number);
	sender = initiator();
	receiver = target(domain);
	connect_to(sender, receiver->qp_num);
	connect_to(receiver, sender->qp_num);
	traffic(sender, receiver->qp_num);
	receiver = shared(domain, receiver, sender);
	foreign_key(domain);
	refused(sender, receiver);
	RETURNS(0, ibv_destroy_qp(sender));
	RETURNS(0, ibv_destroy_qp(receiver));
	RETURNS(EBUSY, ibv_close_xrcd(domain));
	RETURNS(0, ibv_destroy_srq(first.srq));
	RETURNS(0, ibv_close_xrcd(domain));
	RETURNS(0, ibv_destroy_cq(first.cq));
	RETURNS(0, ibv_destroy_cq(second.cq));
	printf("%d checks\n", checks);
	return 0;
}
