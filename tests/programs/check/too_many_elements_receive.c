/* A receive scatters into three elements, and the queue pair was created for two.
 * expects: too-many-elements: request 0x1 ... 3 scatter/gather elements ... max_recv_sge is 2
 * remedy: max_recv_sge
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.elements = 2});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge list[3] = {piece(mr, 0, 16), piece(mr, 1024, 64), piece(mr, 2048, 64)};
	struct ibv_recv_wr wr = {.wr_id = 1, .sg_list = list, .num_sge = 3}, *bad;
	if (ibv_post_recv(pair.b.qp, &wr, &bad)) /* here */
		puts("refused");
	end_region(mr);
	close_pair(&pair);
	return 0;
}
