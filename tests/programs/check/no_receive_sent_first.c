/* The client sends, and the server posts its receive much too late.
 * expects: no-receive: receive
 * remedy: post receives
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge list = piece(mr, 0, 64);
	struct ibv_send_wr wr = request(1, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	usleep(1700000);
	post_receive(pair.b.qp, 1, mr, 2048, 64);
	// Over iWARP, a message that waits for two seconds ends the connection. A program may come so late.
	wait_any(pair.b.received);
	wait_any(pair.a.sent);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
