/* Receives are posted to a new queue pair, before INIT.
 * only: roce0
 * expects: wrong-state: RESET
 * remedy: INIT
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp *qp = new_queue_pair(pd, cq, IBV_QPT_RC);
	struct ibv_mr *mr = new_region(pd, 4096, REMOTE);
	struct ibv_sge list = piece(mr, 0, 64);
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &list, .num_sge = 1}, *bad;
	if (ibv_post_recv(qp, &wr, &bad)) /* here */
		puts("refused");
	zero(ibv_destroy_qp(qp));
	end_region(mr);
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
