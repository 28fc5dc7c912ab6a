/* A server ends with receives posted: it destroys the queue pair first, then deregisters their memory.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 8; i++)
		post_receive(pair.b.qp, i, mr, 1024 + i * 64, 64);
	post_send(pair.a.qp, 1, mr, 0, 64);
	wait_good(pair.b.received, 1);
	wait_good(pair.a.sent, 1);
	zero(rdma_disconnect(pair.a.id));
	rdma_destroy_qp(pair.a.id);
	rdma_destroy_qp(pair.b.id);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
