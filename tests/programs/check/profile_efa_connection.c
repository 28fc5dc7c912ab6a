/* EFA has datagrams and a service of its own, but no reliable connections.
 * profile: efa
 * expects: not-on-efa: IBV_QPT_RC
 * remedy: efa
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp_init_attr attributes = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
	attributes.cap = (struct ibv_qp_cap){.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1};
	struct ibv_qp *qp = some(ibv_create_qp(pd, &attributes)); /* here */
	zero(ibv_destroy_qp(qp));
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
