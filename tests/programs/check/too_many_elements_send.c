/* The message is a header and a payload in two elements, and the queue pair was created for one.
 * expects: too-many-elements: request 0x1 ... 2 scatter/gather elements ... max_send_sge is 1
 * remedy: max_send_sge
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge list[2] = {piece(mr, 0, 16), piece(mr, 1024, 64)};
	struct ibv_send_wr wr = request(1, IBV_WR_SEND, list, IBV_SEND_SIGNALED), *bad;
	wr.num_sge = 2;
	if (ibv_post_send(pair.a.qp, &wr, &bad)) /* here */
		puts("refused");
	end_region(mr);
	close_pair(&pair);
	return 0;
}
