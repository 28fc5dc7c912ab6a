/* Sends 16 bytes to rdma_server, a program of the package rdmacm-utils, and takes its 16 bytes. */
#include <rdma/rdma_verbs.h>
#include <stdio.h>

int main(int count, char **words)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *server;
	struct ibv_qp_init_attr wanted = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;
	struct ibv_wc done;
	char out[16] = "hello", in[16];

	if (count != 2 || rdma_getaddrinfo(words[1], "7471", &hints, &server) ||
	    rdma_create_ep(&id, server, NULL, &wanted))
		return perror("usage: hello ADDRESS"), 1;
	struct ibv_mr *from = rdma_reg_msgs(id, out, 16), *to = rdma_reg_msgs(id, in, 16);
	if (!from || !to || rdma_post_recv(id, NULL, in, 16, to) || rdma_connect(id, NULL) ||
	    rdma_post_send(id, NULL, out, 16, from, 0) ||
	    rdma_get_send_comp(id, &done) != 1 || rdma_get_recv_comp(id, &done) != 1 ||
	    done.status != IBV_WC_SUCCESS)
		return perror("hello"), 1;
	printf("%u bytes have come back\n", done.byte_len);
	rdma_disconnect(id);
	rdma_dereg_mr(from);
	rdma_dereg_mr(to);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(server);
	return 0;
}
