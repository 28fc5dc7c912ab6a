/* The program posts until the queue says ENOMEM, polls one completion, and posts the same request again.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 4, .signal_all = 1});
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr made;
	zero(ibv_query_qp(pair.a.qp, &attributes, IBV_QP_CAP, &made));
	int places = made.cap.max_send_wr, under_way = 0;
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	struct ibv_sge list = piece(mr, 0, 8);
	for (int i = 0; i < 40;) {
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, mr, 2048), *bad;
		int error = under_way < places ? ibv_post_send(pair.a.qp, &wr, &bad) : ENOMEM;
		if (error == ENOMEM) {
			wait_good(pair.a.sent, 1);
			under_way--;
			continue;
		}
		if (error)
			return 1;
		under_way++;
		i++;
	}
	wait_good(pair.a.sent, under_way);
	wait_placed(&pair);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
