/* A Write with immediate data takes a receive, which the target has not posted.
 * expects: no-receive: receive
 * remedy: post receives
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	struct ibv_sge list = piece(mr, 0, 64);
	struct ibv_send_wr wr = one_sided(1, IBV_WR_RDMA_WRITE_WITH_IMM, &list, mr, 2048), *bad;
	wr.imm_data = htonl(42);
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	usleep(1700000);
	struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;
	zero(ibv_post_recv(pair.b.qp, &receive, &bad_receive));
	// Over iWARP, a message that waits for two seconds ends the connection. A program may come so late.
	wait_any(pair.b.received);
	wait_any(pair.a.sent);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
