/*
 * librpma between two processes: a write, a flush and a read of remote memory, every byte compared.
 *
 * usage: rpma serve ADDRESS PORT
 *        rpma ask ADDRESS PORT
 */
#include <librpma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LENGTH = 4 << 20, HALF = LENGTH / 2 };

#define MUST(call) do { \
	int result = (call); \
	if (result) { \
		fprintf(stderr, "%s: %s\n", #call, rpma_err_2str(result)); \
		exit(1); \
	} \
} while (0)

static struct rpma_peer *peer;
static struct rpma_conn *connection;
static struct rpma_mr_local *region;
static unsigned char *memory;

static void expect(enum rpma_conn_event wanted)
{
	enum rpma_conn_event event;

	MUST(rpma_conn_next_event(connection, &event));
	if (event != wanted) {
		fprintf(stderr, "%s, not %s\n", rpma_utils_conn_event_2str(event), rpma_utils_conn_event_2str(wanted));
		exit(1);
	}
}

static void completed(void)
{
	struct rpma_cq *queue;
	struct ibv_wc wc;

	MUST(rpma_conn_get_cq(connection, &queue));
	MUST(rpma_cq_wait(queue));
	MUST(rpma_cq_get_wc(queue, 1, &wc, NULL));
	if (wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s\n", ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static void setup(const char *address, enum rpma_util_ibv_context_type side)
{
	struct ibv_context *context;

	MUST(rpma_utils_get_ibv_context(address, side, &context));
	MUST(rpma_peer_new(context, &peer));
	if (posix_memalign((void **)&memory, 4096, LENGTH))
		exit(1);
	memset(memory, 0, LENGTH);
	MUST(rpma_mr_reg(peer, memory, LENGTH, RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC |
		RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY, &region));
}

static void serve(const char *address, const char *port)
{
	struct rpma_conn_private_data told;
	struct rpma_conn_req *request;
	struct rpma_ep *endpoint;
	char descriptor[256];
	size_t size;

	setup(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
	MUST(rpma_mr_get_descriptor_size(region, &size));
	if (size > sizeof(descriptor))
		exit(1);
	MUST(rpma_mr_get_descriptor(region, descriptor));
	told = (struct rpma_conn_private_data){ descriptor, (uint8_t)size };
	MUST(rpma_ep_listen(peer, address, port, &endpoint));
	puts("ready");
	fflush(stdout);
	MUST(rpma_ep_next_conn_req(endpoint, NULL, &request));
	MUST(rpma_conn_req_connect(&request, &told, &connection));
	expect(RPMA_CONN_ESTABLISHED);
	expect(RPMA_CONN_CLOSED);
	for (int i = 0; i < HALF; i++)
		if (memory[i] != (unsigned char)(i * 7 + (i >> 8)))
			exit(1);
	MUST(rpma_conn_delete(&connection));
	MUST(rpma_ep_shutdown(&endpoint));
}

static void ask(const char *address, const char *port)
{
	struct rpma_conn_private_data told;
	struct rpma_conn_req *request;
	struct rpma_mr_remote *there;

	setup(address, RPMA_UTIL_IBV_CONTEXT_REMOTE);
	MUST(rpma_conn_req_new(peer, address, port, NULL, &request));
	MUST(rpma_conn_req_connect(&request, NULL, &connection));
	expect(RPMA_CONN_ESTABLISHED);
	MUST(rpma_conn_get_private_data(connection, &told));
	MUST(rpma_mr_remote_from_descriptor(told.ptr, told.len, &there));
	for (int i = 0; i < HALF; i++)
		memory[i] = (unsigned char)(i * 7 + (i >> 8));
	MUST(rpma_write(connection, there, 0, region, 0, HALF, RPMA_F_COMPLETION_ON_ERROR, NULL));
	MUST(rpma_flush(connection, there, 0, HALF, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, NULL));
	completed();
	MUST(rpma_read(connection, region, HALF, there, 0, HALF, RPMA_F_COMPLETION_ALWAYS, NULL));
	completed();
	if (memcmp(memory, memory + HALF, HALF))
		exit(1);
	MUST(rpma_conn_disconnect(connection));
	expect(RPMA_CONN_CLOSED);
	MUST(rpma_mr_remote_delete(&there));
	MUST(rpma_conn_delete(&connection));
	puts("every byte is right");
}

int main(int count, char **arguments)
{
	if (count != 4)
		return 2;
	(strcmp(arguments[1], "serve") ? ask : serve)(arguments[2], arguments[3]);
	MUST(rpma_mr_dereg(&region));
	MUST(rpma_peer_delete(&peer));
	free(memory);
	return 0;
}
