/* The queue pair of an identifier is destroyed by ibv_destroy_qp, and then again by rdma_destroy_qp.
 * expects: object-destroyed-twice: queue pair
 * remedy: once
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	zero(ibv_destroy_qp(pair.a.qp));
	rdma_destroy_qp(pair.a.id); /* here */
	close_pair(&pair);
	return 0;
}
