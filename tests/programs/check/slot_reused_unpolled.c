/* Four signalled Sends fill the send queue. All have arrived, but the program has polled no completion and tries a fifth until it is taken.
 * expects: slot-reused: 4 ... 0x4
 * remedy: poll
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.depth = 4});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 4; i++)
		post_receive(pair.b.qp, i, mr, 2048 + i * 64, 64);
	for (int i = 0; i < 4; i++)
		post_send(pair.a.qp, i, mr, 0, 64);
	wait_good(pair.b.received, 4);
	post_receive(pair.b.qp, 4, mr, 2048, 64);
	struct ibv_sge list = piece(mr, 0, 64);
	struct ibv_send_wr wr = request(4, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
	int error, tries = 0;
	// A real adapter says ENOMEM for ever: only a poll frees a slot.
	while ((error = ibv_post_send(pair.a.qp, &wr, &bad)) == ENOMEM && tries++ < 1000) /* here */
		usleep(1000);
	if (!error)
		wait_good(pair.b.received, 1);
	struct ibv_wc wc[8];
	ibv_poll_cq(pair.a.sent, 8, wc);
	close_end(&pair.b);
	pair.b.id = NULL;
	end_region(mr);
	close_pair(&pair);
	return 0;
}
