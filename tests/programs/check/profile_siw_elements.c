/* A message of eight elements: siw has six.
 * profile: siw
 * expects: not-on-siw: max_send_sge 8 ... at most 6
 * remedy: siw
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){.elements = 8});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_sge list[8];
	for (int i = 0; i < 8; i++)
		list[i] = piece(mr, 64 * i, 16);
	post_receive(pair.b.qp, 1, mr, 2048, 128);
	struct ibv_send_wr wr = request(1, IBV_WR_SEND, list, IBV_SEND_SIGNALED), *bad;
	wr.num_sge = 8;
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	wait_good(pair.a.sent, 1);
	wait_good(pair.b.received, 1);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
