/* The memory of frames goes before the work queue whose receives point there.
 * expects: region-in-use: receive 0x1 of a work queue
 * remedy: completion
 * only: roce0
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_mr *mr = new_region(pd, 8192, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_wq *wq = new_work_queue(context, pd, cq);
	ready_work_queue(wq);
	post_frame(wq, 1, mr, 0, 2048);
	end_region(mr); /* here */
	zero(ibv_destroy_wq(wq));
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
