/* Each side has two receives, and sends three messages before it looks at what it has received: neither posts the receive that the other waits for.
 * expects: deadlock: wait for each other ... request 0x3
 * remedy: post receives before the first send, keep some free for the peer's answers
 * also: no-receive
 * only: roce0
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_processes((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	char ready = 1;
	for (int i = 0; i < 2; i++)
		post_receive(mine(&pair)->qp, i, mr, 2048 + i * 64, 64);
	tell(&pair, &ready, 1);
	hear(&pair, &ready, 1);
	for (int i = 1; i <= 3; i++)
		post_send(mine(&pair)->qp, i, mr, i * 64, 64); /* here */
	wait_good(mine(&pair)->sent, 2);
	struct ibv_wc wc;
	int is_sent = comes(mine(&pair)->sent, &wc, 4000);
	post_receive(mine(&pair)->qp, 2, mr, 3072, 64);
	if (!is_sent)
		wait_good(mine(&pair)->sent, 1);
	wait_good(mine(&pair)->received, 3);
	tell(&pair, &ready, 1);
	hear(&pair, &ready, 1);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
