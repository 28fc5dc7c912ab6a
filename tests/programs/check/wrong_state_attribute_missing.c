/* The mask on the way to RTR lacks IBV_QP_MIN_RNR_TIMER.
 * only: roce0
 * expects: wrong-state: INIT to RTR ... MIN_RNR_TIMER
 * remedy: attributes
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp *qp = new_queue_pair(pd, cq, IBV_QPT_RC);
	struct ibv_qp_attr attributes = attributes_for(context, IBV_QPS_INIT, qp->qp_num);
	zero(ibv_modify_qp(qp, &attributes, TO_INIT));
	attributes.qp_state = IBV_QPS_RTR;
	if (ibv_modify_qp(qp, &attributes, TO_RTR & ~IBV_QP_MIN_RNR_TIMER)) /* here */
		puts("refused");
	zero(ibv_destroy_qp(qp));
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
