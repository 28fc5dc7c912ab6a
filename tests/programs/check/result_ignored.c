/* A receive is refused (EINVAL, two elements). The program does not look, and waits for a message that nothing can take.
 * expects: result-ignored: ibv_post_recv
 * also: too-many-elements
 * remedy: result
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge list[2] = {piece(mr, 0, 64), piece(mr, 64, 64)};
	struct ibv_recv_wr wr = {.wr_id = 2, .sg_list = list, .num_sge = 2}, *bad;
	ibv_post_recv(pair.b.qp, &wr, &bad); /* here */
	struct ibv_wc wc;
	comes(pair.b.received, &wc, SHORT_MS);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
