/* The calls of the extended interface: requests are built between ibv_wr_start and ibv_wr_complete, and completions read under a cursor.
 * only: roce0
 * correct
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq_init_attr_ex of_queue = {.cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_cq_ex *cq = some(ibv_create_cq_ex(context, &of_queue));
	struct ibv_qp_init_attr_ex of_pair = {.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC, .pd = pd};
	of_pair.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	of_pair.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	of_pair.cap = (struct ibv_qp_cap){.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1};
	struct ibv_qp *qp = some(ibv_create_qp_ex(context, &of_pair));
	struct ibv_qp_ex *extended = ibv_qp_to_qp_ex(qp);
	struct ibv_mr *mr = new_region(pd, 4096, REMOTE);
	to_ready(qp, 0);
	for (int i = 0; i < 8; i++) {
		ibv_wr_start(extended);
		extended->wr_id = i;
		extended->wr_flags = IBV_SEND_SIGNALED;
		ibv_wr_rdma_write(extended, mr->rkey, (uintptr_t)mr->addr + 2048);
		ibv_wr_set_sge(extended, mr->lkey, (uintptr_t)mr->addr, 64);
		zero(ibv_wr_complete(extended));
		struct ibv_poll_cq_attr none = {0};
		long end = now_ms() + LONG_MS;
		while (ibv_start_poll(cq, &none) == ENOENT)
			if (now_ms() > end)
				return 1;
		if (cq->status != IBV_WC_SUCCESS || cq->wr_id != (uint64_t)i)
			return 1;
		ibv_end_poll(cq);
	}
	zero(ibv_destroy_qp(qp));
	end_region(mr);
	zero(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
