/* A Write into the server's memory, and a Read out of it. The server's program takes no part in either.
 *
 *   memory serve           offers 64 bytes, and prints them when the client says so
 *   memory ADDRESS TEXT    writes the text there, reads it back, and prints what it has read
 */
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT "7471"
#define SIZE 64

/* ANCHOR: token */
/* What a peer has to know of memory. It travels as private data of the connection. */
struct token {
	uint64_t address;
	uint32_t key;
};
/* ANCHOR_END: token */

static char memory[SIZE], copy[SIZE];

static void check(int failed, const char *what)
{
	if (failed) {
		perror(what);
		exit(1);
	}
}

/* A completion has its own status; errno says nothing of it. */
static void check_completion(const struct ibv_wc *completion)
{
	if (completion->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "completion: %s (vendor_err %#x)\n",
			ibv_wc_status_str(completion->status), completion->vendor_err);
		exit(1);
	}
}

static struct rdma_cm_id *endpoint(const char *address, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr wanted = {
		.cap = { .max_send_wr = 3, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	check(rdma_getaddrinfo(address, PORT, &hints, &found), "rdma_getaddrinfo");
	check(rdma_create_ep(&id, found, NULL, &wanted), "rdma_create_ep");
	rdma_freeaddrinfo(found);
	return id;
}

/* ANCHOR: serve */
/* Waits until the client has ended the connection: it has its completions by then. */
static void wait_for_end(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;

	check(rdma_get_cm_event(id->channel, &event), "rdma_get_cm_event");
	check(event->event != RDMA_CM_EVENT_DISCONNECTED, rdma_event_str(event->event));
	rdma_ack_cm_event(event);
}

static void serve(void)
{
	struct rdma_cm_id *listener = endpoint(NULL, RAI_PASSIVE), *id;
	struct ibv_wc completion;

	check(rdma_listen(listener, 1), "rdma_listen");
	check(rdma_get_request(listener, &id), "rdma_get_request");
	/* A peer may write here and read here. */
	struct ibv_mr *region = ibv_reg_mr(id->pd, memory, SIZE,
					   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	check(!region, "ibv_reg_mr");
	struct token token = { .address = (uintptr_t)memory, .key = region->rkey };
	struct rdma_conn_param parameters = {
		.private_data = &token, .private_data_len = sizeof token,
		.responder_resources = 1, .initiator_depth = 1,
		/* How often the device repeats a packet that nobody acknowledges (retry_count), and a message that
		 * finds no receive (rnr_retry_count; 7: without end). With 0, the connection ends instead. */
		.retry_count = 7, .rnr_retry_count = 7,
	};
	/* For the client's last word. Until then this program sleeps. */
	check(rdma_post_recvv(id, NULL, NULL, 0), "rdma_post_recvv");
	check(rdma_accept(id, &parameters), "rdma_accept");
	check(rdma_get_recv_comp(id, &completion) != 1, "rdma_get_recv_comp");
	check_completion(&completion);
	printf("%s\n", memory);
	wait_for_end(id);
	rdma_disconnect(id);
	rdma_dereg_mr(region);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}
/* ANCHOR_END: serve */

/* ANCHOR: visit */
static void visit(const char *address, const char *text)
{
	struct rdma_cm_id *id = endpoint(address, 0);
	struct rdma_conn_param parameters = {
		.responder_resources = 1, .initiator_depth = 1,
		/* How often the device repeats a packet that nobody acknowledges (retry_count), and a message that
		 * finds no receive (rnr_retry_count; 7: without end). With 0, the connection ends instead. */
		.retry_count = 7, .rnr_retry_count = 7,
	};
	struct ibv_wc completion;
	struct token token;

	strncpy(memory, text, SIZE - 1);
	struct ibv_mr *from = rdma_reg_msgs(id, memory, SIZE), *to = rdma_reg_msgs(id, copy, SIZE);
	check(!from || !to, "rdma_reg_msgs");
	check(rdma_connect(id, &parameters), "rdma_connect");
	check(id->event->param.conn.private_data_len < sizeof token, "the server's token");
	memcpy(&token, id->event->param.conn.private_data, sizeof token);
	/* The Read begins behind the Write, so it finds the text. */
	check(rdma_post_write(id, NULL, memory, SIZE, from, 0, token.address, token.key), "rdma_post_write");
	check(rdma_post_read(id, NULL, copy, SIZE, to, 0, token.address, token.key), "rdma_post_read");
	check(rdma_post_sendv(id, NULL, NULL, 0, 0), "rdma_post_sendv");
	for (int i = 0; i < 3; i++) {
		check(rdma_get_send_comp(id, &completion) != 1, "rdma_get_send_comp");
		check_completion(&completion);
	}
	printf("%s\n", copy);
	rdma_disconnect(id);
	rdma_dereg_mr(from);
	rdma_dereg_mr(to);
	rdma_destroy_ep(id);
}
/* ANCHOR_END: visit */

int main(int count, char **words)
{
	if (count == 2 && !strcmp(words[1], "serve"))
		serve();
	else if (count == 3)
		visit(words[1], words[2]);
	else
		return fprintf(stderr, "usage: memory serve, or memory ADDRESS TEXT\n"), 2;
	return 0;
}
