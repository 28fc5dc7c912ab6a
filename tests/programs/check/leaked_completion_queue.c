/* The program destroys its queue pairs, and forgets the completion queue that they shared.
 * expects: object-leaked: completion queue
 * remedy: destroy
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_cq *cq = some(ibv_create_cq(pair.context, 16, NULL, NULL, 0)); /* here */
	struct ibv_qp_init_attr attributes = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC};
	attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 4;
	attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
	for (int i = 0; i < 2; i++)
		zero(ibv_destroy_qp(some(ibv_create_qp(pair.pd, &attributes))));
	close_pair(&pair);
	return 0;
}
