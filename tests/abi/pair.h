/* Two queue pairs of one process, connected by attributes through an address of this host, and what completes. After check.h. */

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include "gid.h"

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

/* Takes a queue pair from the start to RTS, with this peer. */
static void bring_up(struct ibv_qp *which, uint32_t destination, struct ibv_qp_attr attr)
{
	attr.qp_state = IBV_QPS_RESET;
	RETURNS(0, ibv_modify_qp(which, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_INIT;
	RETURNS(0, ibv_modify_qp(which, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.dest_qp_num = destination;
	RETURNS(0, ibv_modify_qp(which, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(0, ibv_modify_qp(which, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Connects two queue pairs of one process, from the start, where attributes can. */
static int connect_pair(struct ibv_context *context, struct ibv_qp *qp, struct ibv_qp *peer, const char *address)
{
	struct ibv_qp_attr attr = {
		.port_num = 1, .qp_access_flags = ALL, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 14, .retry_cnt = 7,
		.ah_attr = { .port_num = 1, .is_global = 1, .grh.hop_limit = 64 },
	};
	struct ibv_port_attr port;

	if (context->device->transport_type != IBV_TRANSPORT_IB)
		return 0;
	RETURNS(0, ibv_query_port(context, 1, &port));
	attr.ah_attr.grh.sgid_index = own_gid(context, address, &attr.ah_attr.grh.dgid);
	attr.path_mtu = port.active_mtu;
	bring_up(qp, peer->qp_num, attr);
	bring_up(peer, qp->qp_num, attr);
	return 1;
}

/* Polls until a completion is there; the alarm ends what takes too long. */
static struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(count == 1);
	return wc;
}
