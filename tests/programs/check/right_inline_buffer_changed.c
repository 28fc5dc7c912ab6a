/* Inline data is copied by ibv_post_send: the buffer, on the stack and in no region, may change at once.
 * correct
 */
#include "common.h"

static void say(struct pair *pair, int number)
{
	char text[32];
	snprintf(text, sizeof text, "message %d", number);
	struct ibv_sge list = {.addr = (uintptr_t)text, .length = sizeof text};
	struct ibv_send_wr wr = request(number, IBV_WR_SEND, &list, IBV_SEND_SIGNALED | IBV_SEND_INLINE), *bad;
	zero(ibv_post_send(pair->a.qp, &wr, &bad));
	memset(text, 0, sizeof text);
}

int main(void)
{
	struct pair pair = connect_pair((struct settings){.inline_bytes = 32});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 4; i++)
		post_receive(pair.b.qp, i, mr, 64 * i, 64);
	for (int i = 0; i < 4; i++)
		say(&pair, i);
	wait_good(pair.a.sent, 4);
	wait_good(pair.b.received, 4);
	if (strcmp(mr->addr, "message 0"))
		return 1;
	end_region(mr);
	close_pair(&pair);
	return 0;
}
