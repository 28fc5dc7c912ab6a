/* With rnr_retry 2, a message that finds no receive is sent three times in half a second, and fails.
 * expects: retries-run-out: rnr_retry 2
 * remedy: rnr_retry 7 waits without end
 * also: no-receive
 * only: roce0
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_mr *mr = new_region(pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *qp = new_queue_pair(pd, cq, IBV_QPT_RC);
	// The queue pair is its own peer. It tells itself to wait for 160 ms: the check looks for messages more often than that.
	struct ibv_qp_attr attributes = attributes_for(context, IBV_QPS_INIT, qp->qp_num);
	zero(ibv_modify_qp(qp, &attributes, TO_INIT));
	attributes.qp_state = IBV_QPS_RTR;
	attributes.min_rnr_timer = 28;
	zero(ibv_modify_qp(qp, &attributes, TO_RTR));
	attributes.qp_state = IBV_QPS_RTS;
	attributes.rnr_retry = 2;
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
