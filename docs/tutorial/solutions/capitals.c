/* Exercise 1: the server answers a message in capital letters.
 *
 *   capitals serve PORT
 *   capitals ADDRESS PORT TEXT
 */
#include <ctype.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char out[64], in[64];

/* How often the device repeats a packet that nobody acknowledges (retry_count), and a message that
 * finds no receive (rnr_retry_count; 7: without end). With 0, the connection ends instead. */
static struct rdma_conn_param parameters = { .retry_count = 7, .rnr_retry_count = 7 };

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

static struct rdma_cm_id *endpoint(const char *address, const char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	struct ibv_qp_init_attr wanted = {
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;

	check(rdma_getaddrinfo(address, port, &hints, &found), "rdma_getaddrinfo");
	check(rdma_create_ep(&id, found, NULL, &wanted), "rdma_create_ep");
	rdma_freeaddrinfo(found);
	return id;
}

/* The one receive must be there before the other side can send. */
static struct ibv_mr *ready_to_receive(struct rdma_cm_id *id)
{
	struct ibv_mr *region = rdma_reg_msgs(id, in, sizeof in);

	check(!region, "rdma_reg_msgs");
	check(rdma_post_recv(id, NULL, in, sizeof in, region), "rdma_post_recv");
	return region;
}

static size_t received(struct rdma_cm_id *id)
{
	struct ibv_wc completion;

	check(rdma_get_recv_comp(id, &completion) != 1, "rdma_get_recv_comp");
	check_completion(&completion);
	return completion.byte_len;
}

static void send_out(struct rdma_cm_id *id, size_t length)
{
	struct ibv_mr *region = rdma_reg_msgs(id, out, sizeof out);
	struct ibv_wc completion;

	check(!region, "rdma_reg_msgs");
	check(rdma_post_send(id, NULL, out, length, region, 0), "rdma_post_send");
	check(rdma_get_send_comp(id, &completion) != 1, "rdma_get_send_comp");
	check_completion(&completion);
	rdma_dereg_mr(region);
}

/* Waits until the client has ended the connection: it has its completions by then. */
static void wait_for_end(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;

	check(rdma_get_cm_event(id->channel, &event), "rdma_get_cm_event");
	check(event->event != RDMA_CM_EVENT_DISCONNECTED, rdma_event_str(event->event));
	rdma_ack_cm_event(event);
}

static void end(struct rdma_cm_id *id, struct ibv_mr *region)
{
	rdma_disconnect(id);
	rdma_dereg_mr(region);
	rdma_destroy_ep(id);
}

static void serve(const char *port)
{
	struct rdma_cm_id *listener = endpoint(NULL, port, RAI_PASSIVE), *id;

	check(rdma_listen(listener, 1), "rdma_listen");
	printf("ready\n");
	fflush(stdout);
	check(rdma_get_request(listener, &id), "rdma_get_request");
	struct ibv_mr *region = ready_to_receive(id);
	check(rdma_accept(id, &parameters), "rdma_accept");
	size_t length = received(id);
	for (size_t i = 0; i < length; i++)
		out[i] = toupper((unsigned char)in[i]);
	send_out(id, length);
	wait_for_end(id);
	end(id, region);
	rdma_destroy_ep(listener);
}

static void ask(const char *address, const char *port, const char *text)
{
	struct rdma_cm_id *id = endpoint(address, port, 0);
	struct ibv_mr *region = ready_to_receive(id);
	size_t length = strnlen(text, sizeof out);

	memcpy(out, text, length);
	check(rdma_connect(id, &parameters), "rdma_connect");
	send_out(id, length);
	length = received(id);
	printf("%.*s\n", (int)length, in);
	end(id, region);
}

int main(int count, char **words)
{
	if (count == 3 && !strcmp(words[1], "serve"))
		serve(words[2]);
	else if (count == 4)
		ask(words[1], words[2], words[3]);
	else
		return fprintf(stderr, "usage: capitals serve PORT, or capitals ADDRESS PORT TEXT\n"), 2;
	return 0;
}
