/* A datagram arrives behind 40 bytes for the global route header. The receive has room for the payload alone.
 * only: roce0
 * expects: receive-too-small: 0x6 ... 256 bytes
 * remedy: receives
 */
#include "common.h"

int main(void)
{
	struct datagrams between = open_datagrams();
	struct ibv_mr *mr = new_region(between.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_receive(between.to, 6, mr, 2048, 256);
	send_datagram(&between, 1, mr, 256);
	wait_good(between.sent, 1);
	wait_any(between.received);
	zero(ibv_destroy_qp(between.to));
	between.to = NULL;
	end_region(mr);
	close_datagrams(&between);
	return 0;
}
