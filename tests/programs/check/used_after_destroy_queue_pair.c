/* A thread of the program still holds a queue pair that another part has destroyed, and posts to it.
 * expects: object-used-after-destroy: queue pair
 * remedy: destroy
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp *old = pair.a.qp;
	rdma_destroy_qp(pair.a.id);
	struct ibv_qp_attr attributes;
	struct ibv_qp_init_attr begun;
	if (!ibv_query_qp(old, &attributes, IBV_QP_STATE, &begun)) /* here */
		puts("it answers");
	end_region(mr);
	close_pair(&pair);
	return 0;
}
