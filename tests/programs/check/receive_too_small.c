/* A message of 200 bytes meets a receive of 64.
 * expects: receive-too-small: 0x6 ... 64 bytes
 * remedy: receive
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_receive(pair.b.qp, 6, mr, 2048, 64);
	post_send(pair.a.qp, 1, mr, 0, 200);
	wait_any(pair.b.received);
	wait_any(pair.a.sent);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
