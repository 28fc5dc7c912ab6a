/* One buffer that nobody changes is sent several times at once: only receives must not share bytes.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	strcpy(mr->addr, "for everybody");
	for (int i = 0; i < 8; i++)
		post_receive(pair.b.qp, i, mr, 1024 + 64 * i, 64);
	for (int i = 0; i < 8; i++)
		post_send(pair.a.qp, i, mr, 0, 64);
	wait_good(pair.a.sent, 8);
	wait_good(pair.b.received, 8);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
