/* The program posts a receive for a header and one for a body. Both begin at the start of the buffer, so the body overwrites the header.
 * expects: receives-overlap: receive 0x1 ... receive 0x0 has 64 bytes
 * remedy: own
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_receive(pair.b.qp, 0, mr, 2048, 64);
	struct ibv_sge list = piece(mr, 2048, 1024);
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = &list, .num_sge = 1}, *bad;
	zero(ibv_post_recv(pair.b.qp, &wr, &bad)); /* here */
	post_send(pair.a.qp, 0, mr, 0, 64);
	post_send(pair.a.qp, 1, mr, 64, 1024);
	wait_good(pair.a.sent, 2);
	wait_good(pair.b.received, 2);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
