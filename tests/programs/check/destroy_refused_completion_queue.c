/* The completion queue is destroyed before the queue pair that uses it.
 * expects: destroy-refused: completion queue ... queue pair
 * also: object-leaked
 * remedy: first
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	ibv_destroy_cq(pair.a.sent); /* here */
	rdma_destroy_qp(pair.a.id);
	zero(rdma_destroy_id(pair.a.id));
	zero(ibv_destroy_cq(pair.a.received));
	pair.a.id = NULL;
	close_pair(&pair);
	return 0;
}
