/* The program leads a new queue pair to RTR at once, without INIT.
 * only: roce0
 * expects: wrong-state: RESET ... RTR
 * remedy: INIT
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp *qp = new_queue_pair(pd, cq, IBV_QPT_RC);
	struct ibv_qp_attr attributes = attributes_for(context, IBV_QPS_RTR, qp->qp_num);
	if (ibv_modify_qp(qp, &attributes, TO_RTR)) /* here */
		puts("refused");
	zero(ibv_destroy_qp(qp));
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
