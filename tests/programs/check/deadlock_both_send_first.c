/* Client and server begin with a Send, and post their receives after its completion: each waits for the other.
 * expects: deadlock: wait for each other ... request 0x1
 * remedy: post receives before the first send
 * also: no-receive
 * only: roce0
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_processes((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	char ready = 1;
	tell(&pair, &ready, 1);
	hear(&pair, &ready, 1);
	post_send(mine(&pair)->qp, 1, mr, 0, 64);
	struct ibv_wc wc;
	if (comes(mine(&pair)->sent, &wc, 4000)) {
		post_receive(mine(&pair)->qp, 2, mr, 2048, 64);
		wait_good(mine(&pair)->received, 1);
	}
	tell(&pair, &ready, 1);
	hear(&pair, &ready, 1);
	rdma_destroy_qp(mine(&pair)->id);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
