/* Sends 16 bytes to rdma_server, a program of the package rdmacm-utils, and takes its 16 bytes. */
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>

/* Ends the program if a call has failed. */
static void check(const char *call, int failed)
{
	if (failed) {
		perror(call);
		exit(1);
	}
}

int main(int count, char **words)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *server;
	struct ibv_qp_init_attr wanted = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;
	struct ibv_mr *from, *to;
	struct ibv_wc done;
	char out[16] = "hello", in[16];

	if (count != 2) {
		fputs("usage: hello ADDRESS\n", stderr);
		return 2;
	}
	check("rdma_getaddrinfo", rdma_getaddrinfo(words[1], "7471", &hints, &server));
	check("rdma_create_ep", rdma_create_ep(&id, server, NULL, &wanted));
	check("rdma_reg_msgs", !(from = rdma_reg_msgs(id, out, 16)));
	check("rdma_reg_msgs", !(to = rdma_reg_msgs(id, in, 16)));

	check("rdma_post_recv", rdma_post_recv(id, NULL, in, 16, to));
	check("rdma_connect", rdma_connect(id, NULL));
	check("rdma_post_send", rdma_post_send(id, NULL, out, 16, from, 0));
	check("rdma_get_send_comp", rdma_get_send_comp(id, &done) != 1 || done.status);
	check("rdma_get_recv_comp", rdma_get_recv_comp(id, &done) != 1 || done.status);
	printf("%u bytes have come back\n", done.byte_len);

	rdma_disconnect(id);
	rdma_dereg_mr(from);
	rdma_dereg_mr(to);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(server);
	return 0;
}
