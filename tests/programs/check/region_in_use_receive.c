/* The server deregisters its buffers first, while receives into them are posted and the client still sends.
 * expects: region-in-use: receive 0x1
 * remedy: destroy the queue pair
 * also: access-refused
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *from = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_mr *into = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 2; i++)
		post_receive(pair.b.qp, i, into, i * 64, 64);
	post_send(pair.a.qp, 0, from, 0, 64);
	wait_good(pair.b.received, 1);
	wait_good(pair.a.sent, 1);
	void *bytes = into->addr;
	zero(ibv_dereg_mr(into)); /* here */
	post_send(pair.a.qp, 1, from, 0, 64);
	struct ibv_wc wc;
	comes(pair.b.received, &wc, LONG_MS);
	comes(pair.a.sent, &wc, LONG_MS);
	munmap(bytes, 4096);
	end_region(from);
	close_pair(&pair);
	return 0;
}
