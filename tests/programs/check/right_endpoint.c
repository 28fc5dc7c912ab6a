/* An endpoint of rdma_create_ep: its service is that of the addresses, and not of the attributes.
 * profile: strict
 * correct
 */
#include "common.h"

int main(void)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *found;
	struct ibv_qp_init_attr wanted = {.cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
	struct rdma_cm_id *id;
	zero(rdma_getaddrinfo("127.0.0.1", "0", &hints, &found));
	zero(rdma_create_ep(&id, found, NULL, &wanted));
	rdma_freeaddrinfo(found);
	zero(rdma_listen(id, 1));
	rdma_destroy_ep(id);
	return 0;
}
