/* The region permits remote Writes, but the queue pair was led to INIT without qp_access_flags.
 * only: roce0
 * expects: access-refused: qp_access_flags
 * remedy: qp_access_flags
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp *qp = new_queue_pair(pd, cq, IBV_QPT_RC);
	struct ibv_mr *mr = new_region(pd, 4096, REMOTE);
	struct ibv_qp_attr attributes = attributes_for(context, IBV_QPS_INIT, qp->qp_num);
	attributes.qp_access_flags = 0;
	zero(ibv_modify_qp(qp, &attributes, TO_INIT));
	attributes.qp_state = IBV_QPS_RTR;
	zero(ibv_modify_qp(qp, &attributes, TO_RTR));
	attributes.qp_state = IBV_QPS_RTS;
	zero(ibv_modify_qp(qp, &attributes, TO_RTS));
	struct ibv_sge list = piece(mr, 0, 64);
	struct ibv_send_wr wr = one_sided(1, IBV_WR_RDMA_WRITE, &list, mr, 2048), *bad;
	zero(ibv_post_send(qp, &wr, &bad)); /* here */
	wait_any(cq);
	zero(ibv_destroy_qp(qp));
	end_region(mr);
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
