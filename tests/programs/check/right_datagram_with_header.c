/* The receive has room for the payload and the 40 bytes of the global route header.
 * only: roce0
 * correct
 */
#include "common.h"

int main(void)
{
	struct datagrams between = open_datagrams();
	struct ibv_mr *mr = new_region(between.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_receive(between.to, 6, mr, 2048, 256 + sizeof(struct ibv_grh));
	send_datagram(&between, 1, mr, 256);
	wait_good(between.sent, 1);
	struct ibv_wc wc = wait_good(between.received, 1);
	if (wc.byte_len != 256 + sizeof(struct ibv_grh))
		return 1;
	end_region(mr);
	close_datagrams(&between);
	return 0;
}
