/* The queue pair was created without max_inline_data, and a Send of 512 bytes goes inline.
 * expects: inline-too-long: 512
 * remedy: max_inline_data
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_receive(pair.b.qp, 1, mr, 2048, 512);
	struct ibv_sge list = piece(mr, 0, 512);
	struct ibv_send_wr wr = request(1, IBV_WR_SEND, &list, IBV_SEND_SIGNALED | IBV_SEND_INLINE), *bad;
	if (ibv_post_send(pair.a.qp, &wr, &bad)) /* here */
		puts("refused");
	else
		wait_good(pair.b.received, 1);
	close_end(&pair.b);
	pair.b.id = NULL;
	end_region(mr);
	close_pair(&pair);
	return 0;
}
