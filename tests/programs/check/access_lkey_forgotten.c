/* The program fills address and length of the element and forgets the key.
 * expects: access-refused: lkey 0x0 ... request 0x1 ... key 0x0
 * remedy: lkey
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge list = {.addr = (uintptr_t)mr->addr, .length = 64};
	struct ibv_send_wr wr = request(1, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	wait_any(pair.a.sent);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
