/* A message by Send and receive.
 *
 *   message serve          waits for one message and prints it
 *   message ADDRESS TEXT   sends it
 */
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT "7471"

static char buffer[64];

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

/* ANCHOR: endpoint */
/* How often the device repeats a packet that nobody acknowledges (retry_count), and a message that
 * finds no receive (rnr_retry_count; 7: without end). With 0, the connection ends instead. */
static struct rdma_conn_param parameters = { .retry_count = 7, .rnr_retry_count = 7 };

/* A queue pair with room for one request in each direction, or a listener that makes such queue pairs. */
static struct rdma_cm_id *endpoint(const char *address, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr wanted = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	check(rdma_getaddrinfo(address, PORT, &hints, &found), "rdma_getaddrinfo");
	check(rdma_create_ep(&id, found, NULL, &wanted), "rdma_create_ep");
	rdma_freeaddrinfo(found);
	return id;
}
/* ANCHOR_END: endpoint */

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
	struct ibv_mr *region = rdma_reg_msgs(id, buffer, sizeof buffer);
	check(!region, "rdma_reg_msgs");
	check(rdma_post_recv(id, NULL, buffer, sizeof buffer, region), "rdma_post_recv");
	check(rdma_accept(id, &parameters), "rdma_accept");
	check(rdma_get_recv_comp(id, &completion) != 1, "rdma_get_recv_comp");
	check_completion(&completion);
	printf("%.*s\n", (int)completion.byte_len, buffer);
	wait_for_end(id);
	rdma_disconnect(id);
	rdma_dereg_mr(region);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
}
/* ANCHOR_END: serve */

/* ANCHOR: send */
static void send_text(const char *address, const char *text)
{
	struct rdma_cm_id *id = endpoint(address, 0);
	struct ibv_wc completion;
	size_t length = strnlen(text, sizeof buffer);

	memcpy(buffer, text, length);
	struct ibv_mr *region = rdma_reg_msgs(id, buffer, sizeof buffer);
	check(!region, "rdma_reg_msgs");
	check(rdma_connect(id, &parameters), "rdma_connect");
	check(rdma_post_send(id, NULL, buffer, length, region, 0), "rdma_post_send");
	check(rdma_get_send_comp(id, &completion) != 1, "rdma_get_send_comp");
	check_completion(&completion);
	rdma_disconnect(id);
	rdma_dereg_mr(region);
	rdma_destroy_ep(id);
}
/* ANCHOR_END: send */

int main(int count, char **words)
{
	if (count == 2 && !strcmp(words[1], "serve"))
		serve();
	else if (count == 3)
		send_text(words[1], words[2]);
	else
		return fprintf(stderr, "usage: message serve, or message ADDRESS TEXT\n"), 2;
	return 0;
}
