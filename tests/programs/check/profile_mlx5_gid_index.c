/* GID 0 of adverb is one of RoCE v2. That of an adapter of mlx5 is one of RoCE v1, which does not pass a router.
 * profile: mlx5
 * expects: not-on-mlx5: sgid_index 0
 * remedy: ibv_query_gid_ex
 * only: roce0
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_qp *qp = new_queue_pair(pd, cq, IBV_QPT_RC);
	struct ibv_qp_attr attributes = attributes_for(context, IBV_QPS_INIT, qp->qp_num);
	zero(ibv_modify_qp(qp, &attributes, TO_INIT));
	attributes.qp_state = IBV_QPS_RTR;
	zero(ibv_modify_qp(qp, &attributes, TO_RTR)); /* here */
	zero(ibv_destroy_qp(qp));
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
