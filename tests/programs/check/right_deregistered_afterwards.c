/* A region for each message: registered, sent, completed, deregistered.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *into = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 16; i++) {
		char *text = some(malloc(64));
		snprintf(text, 64, "message %d", i);
		struct ibv_mr *mr = some(ibv_reg_mr(pair.pd, text, 64, IBV_ACCESS_LOCAL_WRITE));
		post_receive(pair.b.qp, i, into, 64 * i, 64);
		post_send(pair.a.qp, i, mr, 0, 64);
		wait_good(pair.a.sent, 1);
		zero(ibv_dereg_mr(mr));
		free(text);
	}
	wait_good(pair.b.received, 16);
	end_region(into);
	close_pair(&pair);
	return 0;
}
