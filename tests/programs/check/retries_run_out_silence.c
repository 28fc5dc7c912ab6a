/* The queue pair is led to the number of one that the peer has destroyed: nobody answers, and two retries do not help.
 * expects: retries-run-out: retry_cnt
 * remedy: see that the peer lives
 * only: roce0
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_mr *mr = new_region(pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *gone = new_queue_pair(pd, cq, IBV_QPT_RC), *qp = new_queue_pair(pd, cq, IBV_QPT_RC);
	struct ibv_qp_attr attributes = attributes_for(context, IBV_QPS_INIT, gone->qp_num);
	zero(ibv_destroy_qp(gone));
	zero(ibv_modify_qp(qp, &attributes, TO_INIT));
	attributes.qp_state = IBV_QPS_RTR;
	zero(ibv_modify_qp(qp, &attributes, TO_RTR));
	attributes.qp_state = IBV_QPS_RTS;
	attributes.timeout = 8;
	attributes.retry_cnt = 2;
	zero(ibv_modify_qp(qp, &attributes, TO_RTS));
	post_send(qp, 5, mr, 0, 64); /* here */
	wait_any(cq);
	zero(ibv_destroy_qp(qp));
	end_region(mr);
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
