/* The program leads a queue pair to its peer by ibv_modify_qp: on siw, rdma_cm alone connects queue pairs.
 * only: roce0
 * profile: siw
 * expects: not-on-siw: address vector
 * remedy: siw
 */
#include "common.h"

int main(void)
{
	struct ibv_device **devices = some(ibv_get_device_list(NULL));
	struct ibv_context *context = some(ibv_open_device(devices[0]));
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp_init_attr wanted = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
	wanted.cap = (struct ibv_qp_cap){.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
	struct ibv_qp *qp = some(ibv_create_qp(pd, &wanted));
	struct ibv_qp_attr attributes = {.qp_state = IBV_QPS_INIT, .port_num = 1};
	zero(ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attributes = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qp->qp_num};
	attributes.max_dest_rd_atomic = 1;
	attributes.min_rnr_timer = 12;
	attributes.ah_attr.port_num = 1;
	attributes.ah_attr.is_global = 1;
	zero(ibv_query_gid(context, 1, 0, &attributes.ah_attr.grh.dgid));
	zero(ibv_modify_qp(qp, &attributes, /* here */
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
				   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	zero(ibv_destroy_qp(qp));
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	ibv_free_device_list(devices);
	return 0;
}
