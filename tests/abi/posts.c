/*
 * Requests that are refused when they are posted, each once; two queue pairs of one process. What the log says of them is for who runs this.
 *
 * usage: posts ADDRESS
 *
 * Built against the distribution's headers. Prints the number of checks.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdint.h>
#include <unistd.h>

enum { LENGTH = 8192, SENDS = 16 };

#include "check.h"
#include "pair.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t bytes[LENGTH];
static struct ibv_sge sges[8];

static struct ibv_qp *make(enum ibv_qp_type type, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr_ex init = {
		.qp_type = type, .send_cq = cq, .recv_cq = cq, .srq = srq, .cap = { SENDS, 16, 2, 2, 32 }, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | (type == IBV_QPT_RC ? IBV_QP_EX_WITH_RDMA_READ : 0),
	};
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);

	CHECK(qp && init.cap.max_send_sge == 2 && init.cap.max_inline_data == 32);
	return qp;
}

static void refuses_send(struct ibv_qp *qp, int error, struct ibv_send_wr wr)
{
	struct ibv_send_wr *bad = NULL;

	RETURNS(error, ibv_post_send(qp, &wr, &bad));
	CHECK(bad == &wr);
}

static void refuses_receive(struct ibv_qp *qp, struct ibv_recv_wr wr)
{
	struct ibv_recv_wr *bad = NULL;

	RETURNS(EINVAL, ibv_post_recv(qp, &wr, &bad));
	CHECK(bad == &wr);
}

static void sends(struct ibv_qp *qp)
{
	struct ibv_sge *list = sges;

	refuses_send(qp, EINVAL, (struct ibv_send_wr){ .wr_id = 0x101, .sg_list = list, .num_sge = 3, .opcode = IBV_WR_SEND });
	refuses_send(qp, EINVAL, (struct ibv_send_wr){
		.wr_id = 0x102, .sg_list = list, .num_sge = 5, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE });
	refuses_send(qp, EINVAL, (struct ibv_send_wr){ .wr_id = 0x103, .sg_list = list, .num_sge = 1, .opcode = 99 });
	refuses_send(qp, EINVAL, (struct ibv_send_wr){ .wr_id = 0x104, .sg_list = list, .num_sge = -1, .opcode = IBV_WR_SEND });
	refuses_send(qp, EINVAL, (struct ibv_send_wr){ .wr_id = 0x105, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE });
	refuses_send(qp, EINVAL, (struct ibv_send_wr){
		.wr_id = 0x106, .sg_list = list, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_INLINE });
	refuses_send(qp, EINVAL, (struct ibv_send_wr){ .wr_id = 0x108, .opcode = IBV_WR_BIND_MW });
}

static void built(struct ibv_qp *qp)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);

	ibv_wr_start(ex);
	ex->wr_id = 0x201;
	ibv_wr_send(ex);
	ibv_wr_set_inline_data(ex, bytes, 33);
	RETURNS(EINVAL, ibv_wr_complete(ex));

	ibv_wr_start(ex);
	ex->wr_id = 0x202;
	ibv_wr_rdma_read(ex, 1, 1);
	ibv_wr_set_sge_list(ex, 3, sges);
	RETURNS(EINVAL, ibv_wr_complete(ex));

	ibv_wr_start(ex);
	ex->wr_id = 0x203;
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)bytes, 8);
	RETURNS(EINVAL, ibv_wr_complete(ex));

	ibv_wr_start(ex);
	ex->wr_id = 0x204;
	ibv_wr_send(ex);
	ibv_wr_set_ud_addr(ex, NULL, 1, 1);
	RETURNS(EINVAL, ibv_wr_complete(ex));
}

int main(int count, char **arguments)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 16, .max_sge = 2 } };
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_send_wr wr = { .wr_id = 0x301, .sg_list = sges, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr receive = { .sg_list = sges, .num_sge = 3 }, *bad = NULL;
	struct ibv_qp *qp, *peer, *sharing, *datagrams;
	struct ibv_qp_ex *ex;
	struct ibv_srq *srq;
	struct ibv_ah_attr way = { .port_num = 1, .is_global = 1, .grh.hop_limit = 64 };
	struct ibv_ah *handle;

	CHECK(count == 2);
	alarm(60);
	CHECK(devices && devices[0] && (context = ibv_open_device(devices[0])));
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 256, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, bytes, LENGTH, ALL)) && (srq = ibv_create_srq(pd, &shared)));
	for (int i = 0; i < 8; i++)
		sges[i] = (struct ibv_sge){ (uintptr_t)bytes, 8, mr->lkey };
	qp = make(IBV_QPT_RC, NULL);
	peer = make(IBV_QPT_RC, NULL);
	sharing = make(IBV_QPT_RC, srq);
	datagrams = make(IBV_QPT_UD, NULL);

	/* In a state that does not take them. */
	receive.num_sge = 1;
	receive.wr_id = 0x401;
	refuses_receive(qp, receive);
	RETURNS(0, ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	refuses_send(qp, EINVAL, wr);
	ex = ibv_qp_to_qp_ex(qp);
	ibv_wr_start(ex);
	ex->wr_id = 0x302;
	ibv_wr_send(ex);
	ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)bytes, 8);
	RETURNS(EINVAL, ibv_wr_complete(ex));

	/* Receives that are none. */
	CHECK(connect_pair(context, qp, peer, arguments[1]));
	receive.num_sge = 3;
	receive.wr_id = 0x402;
	refuses_receive(qp, receive);
	receive.num_sge = -2;
	receive.wr_id = 0x403;
	refuses_receive(qp, receive);
	RETURNS(0, ibv_modify_qp(sharing, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	receive.num_sge = 1;
	receive.wr_id = 0x404;
	refuses_receive(sharing, receive);
	receive.num_sge = 3;
	receive.wr_id = 0x405;
	RETURNS(EINVAL, ibv_post_srq_recv(srq, &receive, &bad));
	CHECK(bad == &receive);

	sends(qp);
	built(qp);

	/* A datagram without an address. */
	init.qkey = 1;
	RETURNS(0, ibv_modify_qp(datagrams, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	init.qp_state = IBV_QPS_RTR;
	RETURNS(0, ibv_modify_qp(datagrams, &init, IBV_QP_STATE));
	init.qp_state = IBV_QPS_RTS;
	RETURNS(0, ibv_modify_qp(datagrams, &init, IBV_QP_STATE | IBV_QP_SQ_PSN));
	CHECK(!ibv_query_gid(context, 1, 0, &way.grh.dgid) && (handle = ibv_create_ah(pd, &way)));
	refuses_send(datagrams, EOPNOTSUPP, (struct ibv_send_wr){
		.wr_id = 0x107, .sg_list = sges, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.ud = { handle, 1, 1 } });
	wr.wr_id = 0x303;
	refuses_send(datagrams, EINVAL, wr);

	/* A full queue is ordinary: the log does not speak of it. Nothing leaves in SQD. */
	init.qp_state = IBV_QPS_SQD;
	RETURNS(0, ibv_modify_qp(qp, &init, IBV_QP_STATE));
	for (int i = 0; i < SENDS; i++)
		RETURNS(0, ibv_post_send(qp, &wr, &bad_send));
	RETURNS(ENOMEM, ibv_post_send(qp, &wr, &bad_send));

	printf("%d checks\n", checks);
	return 0;
}
