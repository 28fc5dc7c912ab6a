/* Each side takes its own first PSN for both directions. A request with a higher PSN than rq_psn looks like one behind a loss.
 * only: roce0
 * expects: wrong-psn: PSN 0x201000 ... 0x1000 ... lost
 * remedy: rq_psn of each side must be sq_psn of the other
 * also: retries-run-out
 */
#include "common.h"

static void connect_to(struct ibv_qp *qp, const struct ibv_qp *peer, uint32_t psn)
{
	struct ibv_qp_attr attributes = attributes_for(qp->context, IBV_QPS_INIT, peer->qp_num);
	zero(ibv_modify_qp(qp, &attributes, TO_INIT));
	attributes.qp_state = IBV_QPS_RTR;
	// That of the peer belongs here.
	attributes.rq_psn = psn;
	zero(ibv_modify_qp(qp, &attributes, TO_RTR));
	attributes.qp_state = IBV_QPS_RTS;
	attributes.sq_psn = psn;
	attributes.timeout = 8;
	attributes.retry_cnt = 2;
	zero(ibv_modify_qp(qp, &attributes, TO_RTS));
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_cq *cq = some(ibv_create_cq(context, 64, NULL, NULL, 0)), *received = some(ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_mr *mr = new_region(pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *from = new_queue_pair(pd, cq, IBV_QPT_RC), *to = new_queue_pair(pd, received, IBV_QPT_RC);
	connect_to(from, to, 0x201000);
	connect_to(to, from, 0x1000);
	post_receive(to, 6, mr, 2048, 64);
	post_send(from, 5, mr, 0, 64);
	wait_any(cq);
	zero(ibv_destroy_qp(from));
	zero(ibv_destroy_qp(to));
	end_region(mr);
	zero(ibv_destroy_cq(cq));
	zero(ibv_destroy_cq(received));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
