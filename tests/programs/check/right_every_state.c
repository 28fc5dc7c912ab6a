/* A queue pair goes from RESET to RTS, receives are posted in INIT, it goes to error and is drained, and begins anew.
 * only: roce0
 * correct
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 32, NULL, NULL, 0));
	struct ibv_qp *qp = new_queue_pair(pd, cq, IBV_QPT_RC);
	struct ibv_mr *mr = new_region(pd, 4096, REMOTE);
	for (int round = 0; round < 2; round++) {
		struct ibv_qp_attr attributes = attributes_for(context, IBV_QPS_INIT, qp->qp_num);
		zero(ibv_modify_qp(qp, &attributes, TO_INIT));
		post_receive(qp, 1, mr, 1024, 64);
		post_receive(qp, 2, mr, 2048, 64);
		attributes.qp_state = IBV_QPS_RTR;
		zero(ibv_modify_qp(qp, &attributes, TO_RTR));
		attributes.qp_state = IBV_QPS_RTS;
		zero(ibv_modify_qp(qp, &attributes, TO_RTS));
		post_send(qp, 3, mr, 0, 64);
		wait_good(cq, 2);
		attributes.qp_state = IBV_QPS_ERR;
		zero(ibv_modify_qp(qp, &attributes, IBV_QP_STATE));
		// The usual way to know that the queue pair is drained: a request of its own, which is flushed behind all others.
		post_send(qp, 4, mr, 0, 64);
		for (int i = 0; i < 2; i++)
			if (wait_any(cq).status != IBV_WC_WR_FLUSH_ERR)
				return 1;
		attributes.qp_state = IBV_QPS_RESET;
		zero(ibv_modify_qp(qp, &attributes, IBV_QP_STATE));
	}
	zero(ibv_destroy_qp(qp));
	end_region(mr);
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
