/* The program posts a Send right after INIT, as it does with receives.
 * only: roce0
 * expects: wrong-state: INIT
 * remedy: RTS
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
	zero(ibv_modify_qp(qp, &attributes, TO_INIT));
	struct ibv_sge list = piece(mr, 0, 64);
	struct ibv_send_wr wr = request(8, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
	if (ibv_post_send(qp, &wr, &bad)) /* here */
		puts("refused");
	zero(ibv_destroy_qp(qp));
	end_region(mr);
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
