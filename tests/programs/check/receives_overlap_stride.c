/* Receives of 128 bytes each begin 64 bytes apart: the end of each is the beginning of the next.
 * expects: receives-overlap: they share 64 bytes
 * remedy: own
 */
#include "common.h"

#define STRIDE 64
#define LENGTH 128

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 8192, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge list[8];
	struct ibv_recv_wr wr[8], *bad;
	for (int i = 0; i < 8; i++) {
		list[i] = piece(mr, 4096 + i * STRIDE, LENGTH);
		wr[i] = (struct ibv_recv_wr){.wr_id = i, .sg_list = &list[i], .num_sge = 1, .next = i < 7 ? &wr[i + 1] : NULL};
	}
	zero(ibv_post_recv(pair.b.qp, wr, &bad)); /* here */
	for (int i = 0; i < 8; i++)
		post_send(pair.a.qp, i, mr, 0, LENGTH);
	wait_good(pair.a.sent, 8);
	wait_good(pair.b.received, 8);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
