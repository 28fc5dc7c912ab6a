/* Header and payload leave from two elements and arrive in two, as many as the queue pair was created for.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.elements = 2});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge from[2] = {piece(mr, 0, 16), piece(mr, 512, 64)}, into[2] = {piece(mr, 1024, 16), piece(mr, 2048, 64)};
	struct ibv_recv_wr receive = {.wr_id = 1, .sg_list = into, .num_sge = 2}, *bad_receive;
	struct ibv_send_wr wr = request(1, IBV_WR_SEND, from, IBV_SEND_SIGNALED), *bad;
	wr.num_sge = 2;
	zero(ibv_post_recv(pair.b.qp, &receive, &bad_receive));
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	wait_good(pair.a.sent, 1);
	wait_good(pair.b.received, 1);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
