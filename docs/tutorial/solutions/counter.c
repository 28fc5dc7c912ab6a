/* Exercise 2: clients count in the server's memory by fetch-and-add.
 *
 *   counter serve PORT CLIENTS
 *   counter ADDRESS PORT COUNT
 */
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_CLIENTS 64

struct token {
	uint64_t address;
	uint32_t key;
};

/* An atomic operation needs an address that is a multiple of 8. */
static uint64_t counter, before;

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

/* Waits until the client has ended the connection: it has its completions by then. */
static void wait_for_end(struct rdma_cm_id *id)
{
	struct rdma_cm_event *event;

	check(rdma_get_cm_event(id->channel, &event), "rdma_get_cm_event");
	check(event->event != RDMA_CM_EVENT_DISCONNECTED, rdma_event_str(event->event));
	rdma_ack_cm_event(event);
}

static void serve(const char *port, int clients)
{
	struct rdma_cm_id *listener = endpoint(NULL, port, RAI_PASSIVE), *ids[MOST_CLIENTS];
	struct ibv_mr *regions[MOST_CLIENTS];
	struct ibv_wc completion;

	check(clients < 1 || clients > MOST_CLIENTS, "CLIENTS");
	check(rdma_listen(listener, clients), "rdma_listen");
	printf("ready\n");
	fflush(stdout);
	for (int i = 0; i < clients; i++) {
		check(rdma_get_request(listener, &ids[i]), "rdma_get_request");
		regions[i] = ibv_reg_mr(ids[i]->pd, &counter, sizeof counter,
					IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
		check(!regions[i], "ibv_reg_mr");
		struct token token = { .address = (uintptr_t)&counter, .key = regions[i]->rkey };
		struct rdma_conn_param parameters = {
			.private_data = &token, .private_data_len = sizeof token,
			.responder_resources = 1, .initiator_depth = 1,
			/* How often the device repeats a packet that nobody acknowledges (retry_count), and a message that
			 * finds no receive (rnr_retry_count; 7: without end). With 0, the connection ends instead. */
			.retry_count = 7, .rnr_retry_count = 7,
		};
		check(rdma_post_recvv(ids[i], NULL, NULL, 0), "rdma_post_recvv");
		check(rdma_accept(ids[i], &parameters), "rdma_accept");
	}
	/* An empty message says that a client is done. */
	for (int i = 0; i < clients; i++) {
		check(rdma_get_recv_comp(ids[i], &completion) != 1, "rdma_get_recv_comp");
		check_completion(&completion);
		wait_for_end(ids[i]);
		rdma_disconnect(ids[i]);
	}
	printf("%llu\n", (unsigned long long)counter);
	for (int i = 0; i < clients; i++) {
		rdma_dereg_mr(regions[i]);
		rdma_destroy_ep(ids[i]);
	}
	rdma_destroy_ep(listener);
}

static void done(struct rdma_cm_id *id)
{
	struct ibv_wc completion;

	check(rdma_get_send_comp(id, &completion) != 1, "rdma_get_send_comp");
	check_completion(&completion);
}

static void visit(const char *address, const char *port, int count)
{
	struct rdma_cm_id *id = endpoint(address, port, 0);
	struct rdma_conn_param parameters = {
		.responder_resources = 1, .initiator_depth = 1,
		/* How often the device repeats a packet that nobody acknowledges (retry_count), and a message that
		 * finds no receive (rnr_retry_count; 7: without end). With 0, the connection ends instead. */
		.retry_count = 7, .rnr_retry_count = 7,
	};
	struct ibv_mr *region = rdma_reg_msgs(id, &before, sizeof before);
	struct token token;

	check(!region, "rdma_reg_msgs");
	check(rdma_connect(id, &parameters), "rdma_connect");
	check(id->event->param.conn.private_data_len < sizeof token, "the server's token");
	memcpy(&token, id->event->param.conn.private_data, sizeof token);
	struct ibv_sge bytes = { .addr = (uintptr_t)&before, .length = sizeof before, .lkey = region->lkey };
	struct ibv_send_wr *bad, request = {
		.sg_list = &bytes, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.wr.atomic = { .remote_addr = token.address, .compare_add = 1, .rkey = token.key },
	};
	for (int i = 0; i < count; i++) {
		check(ibv_post_send(id->qp, &request, &bad), "ibv_post_send");
		done(id);
	}
	check(rdma_post_sendv(id, NULL, NULL, 0, 0), "rdma_post_sendv");
	done(id);
	rdma_disconnect(id);
	rdma_dereg_mr(region);
	rdma_destroy_ep(id);
}

int main(int count, char **words)
{
	if (count == 4 && !strcmp(words[1], "serve"))
		serve(words[2], atoi(words[3]));
	else if (count == 4)
		visit(words[1], words[2], atoi(words[3]));
	else
		return fprintf(stderr, "usage: counter serve PORT CLIENTS, or counter ADDRESS PORT COUNT\n"), 2;
	return 0;
}
