/* Each message is written into the same buffer, after the completion of the one before.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 4; i++)
		post_receive(pair.b.qp, i, mr, 1024 + 64 * i, 64);
	for (int i = 0; i < 4; i++) {
		snprintf(mr->addr, 64, "message %d", i);
		post_send(pair.a.qp, i, mr, 0, 64);
		wait_good(pair.a.sent, 1);
	}
	wait_good(pair.b.received, 4);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
