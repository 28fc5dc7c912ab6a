/* Two queue pairs share one completion queue, whose size was computed for one of them.
 * only: roce0
 * expects: completion-queue-overrun: 8 entries
 * remedy: completion queue
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 8, NULL, NULL, 0));
	struct ibv_qp *qp[2];
	struct ibv_mr *mr = new_region(pd, 4096, REMOTE);
	struct ibv_sge list = piece(mr, 0, 8);
	for (int i = 0; i < 2; i++) {
		qp[i] = new_queue_pair(pd, cq, IBV_QPT_RC);
		to_ready(qp[i], 0);
	}
	for (int i = 0; i < 16; i++) {
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, mr, 2048), *bad;
		zero(ibv_post_send(qp[i % 2], &wr, &bad));
	}
	struct ibv_wc wc;
	for (int i = 0; i < 16 && comes(cq, &wc, SHORT_MS); i++)
		;
	zero(ibv_destroy_qp(qp[0]));
	zero(ibv_destroy_qp(qp[1]));
	end_region(mr);
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
