/* The sender of a datagram names another Q_Key than the receiver has set: nothing arrives.
 * only: roce0
 * expects: wrong-q-key: 0x4321 ... 0x1234
 * remedy: remote_qkey
 */
#include "common.h"

int main(void)
{
	struct datagrams between = open_datagrams();
	struct ibv_mr *mr = new_region(between.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_receive(between.to, 6, mr, 2048, 256 + sizeof(struct ibv_grh));
	struct ibv_sge list = piece(mr, 0, 256);
	struct ibv_send_wr wr = request(1, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
	wr.wr.ud.ah = between.way;
	wr.wr.ud.remote_qpn = between.to->qp_num;
	wr.wr.ud.remote_qkey = 0x4321;
	zero(ibv_post_send(between.from, &wr, &bad));
	wait_good(between.sent, 1);
	// A datagram behind it that arrives: the first has been there.
	send_datagram(&between, 2, mr, 256);
	wait_good(between.sent, 1);
	wait_good(between.received, 1);
	end_region(mr);
	close_datagrams(&between);
	return 0;
}
