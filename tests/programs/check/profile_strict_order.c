/* Two queue pairs write to the same bytes of the peer, and the program takes it that the second Write comes last.
 * profile: strict
 * expects: not-on-strict: no order across queue pairs
 * remedy: one queue pair
 * only: roce0
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_mr *mr = new_region(pd, 4096, REMOTE);
	struct ibv_qp *one = new_queue_pair(pd, cq, IBV_QPT_RC), *other = new_queue_pair(pd, cq, IBV_QPT_RC);
	struct ibv_gid_entry entry;
	zero(ibv_query_gid_ex(context, 1, 0, &entry, 0));
	to_ready(one, 0);
	to_ready(other, 0);
	struct ibv_sge old = piece(mr, 0, 64), new = piece(mr, 64, 64);
	struct ibv_send_wr first = one_sided(1, IBV_WR_RDMA_WRITE, &old, mr, 2048), *bad;
	struct ibv_send_wr second = one_sided(2, IBV_WR_RDMA_WRITE, &new, mr, 2048);
	zero(ibv_post_send(one, &first, &bad));
	zero(ibv_post_send(other, &second, &bad)); /* here */
	wait_good(cq, 2);
	zero(ibv_destroy_qp(one));
	zero(ibv_destroy_qp(other));
	end_region(mr);
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
