/* Memory that a GPU's driver has pinned, while a peer of the same host writes and reads it by RDMA: GPU, program and peer see the same bytes.
 *
 * One process has the GPU (libcuda.so.1, found at run time), and registers its memory with verbs and with CUDA, in either order. Its child is the peer.
 * Each round, the peer writes, and the GPU must find the bytes by its own access to memory (DMA); then the GPU writes, and program and peer must find those.
 */
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 4 << 20, ROUNDS = 24 };

#define MUST(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s: %m\n", __FILE__, __LINE__, #condition); \
			exit(1); \
		} \
	} while (0)

/* CUDA's driver: what is used of it. */
static struct {
	int (*init)(unsigned);
	int (*retain)(void **, int);
	int (*set_current)(void *);
	int (*allocate)(uint64_t *, size_t);
	int (*host_register)(void *, size_t, unsigned);
	int (*host_unregister)(void *);
	int (*to_device)(uint64_t, const void *, size_t);
	int (*to_host)(void *, uint64_t, size_t);
	int (*set)(uint64_t, unsigned char, size_t);
} cuda;

static uint64_t on_gpu;

static void open_gpu(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW), *context;

	if (driver == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
#define FIND(member, name) MUST((*(void **)&cuda.member = dlsym(driver, name)) != NULL)
	FIND(init, "cuInit");
	FIND(retain, "cuDevicePrimaryCtxRetain");
	FIND(set_current, "cuCtxSetCurrent");
	FIND(allocate, "cuMemAlloc_v2");
	FIND(host_register, "cuMemHostRegister_v2");
	FIND(host_unregister, "cuMemHostUnregister");
	FIND(to_device, "cuMemcpyHtoD_v2");
	FIND(to_host, "cuMemcpyDtoH_v2");
	FIND(set, "cuMemsetD8_v2");
	MUST(cuda.init(0) == 0);
	MUST(cuda.retain(&context, 0) == 0);
	MUST(cuda.set_current(context) == 0);
	MUST(cuda.allocate(&on_gpu, LENGTH) == 0);
}

struct order {
	char kind;
	unsigned char byte;
};

struct place {
	uint64_t address;
	uint32_t key;
};

/* The peer: writes or reads all of the memory when it is told, in pieces of several lengths. */
static int peer(int orders, const char *address, const char *port)
{
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *found;
	struct ibv_qp_init_attr attributes = {.cap = {8, 8, 1, 1, 0}, .sq_sig_all = 1};
	struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7};
	static const size_t pieces[] = {64, 4096, 65536, 1 << 20};
	unsigned char *buffer = aligned_alloc(4096, LENGTH);
	struct rdma_cm_id *id;
	struct place place;
	struct order order;
	struct ibv_mr *region;
	struct ibv_wc done;

	MUST(rdma_getaddrinfo(address, port, &hints, &found) == 0);
	MUST(rdma_create_ep(&id, found, NULL, &attributes) == 0);
	MUST((region = rdma_reg_msgs(id, buffer, LENGTH)) != NULL);
	MUST(rdma_connect(id, &parameters) == 0);
	memcpy(&place, id->event->param.conn.private_data, sizeof place);
	for (int turn = 0; read(orders, &order, sizeof order) == sizeof order; turn++) {
		char answer = 'y';

		if (order.kind == 'w')
			memset(buffer, order.byte, LENGTH);
		else
			memset(buffer, ~order.byte, LENGTH);
		for (size_t at = 0; at < LENGTH;) {
			size_t length = pieces[turn++ % 4];

			if (at + length > LENGTH)
				length = LENGTH - at;
			if (order.kind == 'w')
				MUST(rdma_post_write(id, NULL, buffer + at, length, region, 0, place.address + at, place.key) == 0);
			else
				MUST(rdma_post_read(id, NULL, buffer + at, length, region, 0, place.address + at, place.key) == 0);
			MUST(rdma_get_send_comp(id, &done) == 1 && done.status == IBV_WC_SUCCESS);
			at += length;
		}
		for (size_t at = 0; at < LENGTH; at++)
			if (buffer[at] != order.byte)
				answer = 'n';
		MUST(write(orders, &answer, 1) == 1);
	}
	rdma_disconnect(id);
	return 0;
}

static void tell(int orders, char kind, unsigned char byte)
{
	struct order order = {kind, byte};
	char answer;

	MUST(write(orders, &order, sizeof order) == sizeof order);
	MUST(read(orders, &answer, 1) == 1);
	if (answer != 'y') {
		fprintf(stderr, "the peer's Read does not bring 0x%02x\n", byte);
		exit(1);
	}
}

static void expect(const unsigned char *bytes, unsigned char byte, const char *who, int round)
{
	for (size_t at = 0; at < LENGTH; at++)
		if (bytes[at] != byte) {
			fprintf(stderr, "round %d: %s finds 0x%02x in place of 0x%02x at byte %zu\n", round, who, bytes[at], byte, at);
			exit(1);
		}
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *found;
	struct ibv_qp_init_attr attributes = {.cap = {8, 8, 1, 1, 0}, .sq_sig_all = 1};
	struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1, .rnr_retry_count = 7};
	unsigned char *memory, *copy = malloc(LENGTH);
	struct rdma_cm_id *listener, *id;
	struct place place;
	struct ibv_mr *region;
	int orders[2], ports[2], status, late, is_pinned;
	char port[8] = "";
	pid_t child;

	if (argc != 3) {
		fprintf(stderr, "usage: pins ADDRESS early|late|reopened\n");
		return 2;
	}
	late = strcmp(argv[2], "early") != 0;
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, orders) == 0 && pipe(ports) == 0);
	child = fork();
	if (child == 0) {
		close(orders[0]);
		MUST(read(ports[0], port, sizeof port) > 0);
		return peer(orders[1], argv[1], port);
	}
	close(orders[1]);
	memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	MUST(memory != MAP_FAILED);
	memset(memory, 0x11, LENGTH);
	is_pinned = !late;
	if (!late) {
		open_gpu();
		MUST(cuda.host_register(memory, LENGTH, 0) == 0);
	}
	MUST(rdma_getaddrinfo(argv[1], "0", &hints, &found) == 0);
	MUST(rdma_create_ep(&listener, found, NULL, &attributes) == 0);
	MUST(rdma_listen(listener, 1) == 0);
	snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listener)));
	MUST(write(ports[1], port, sizeof port) == sizeof port);
	MUST(rdma_get_request(listener, &id) == 0);
	region = ibv_reg_mr(id->pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	MUST(region != NULL);
	place = (struct place){(uintptr_t)memory, region->rkey};
	parameters.private_data = &place;
	parameters.private_data_len = sizeof place;
	MUST(rdma_accept(id, &parameters) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		unsigned char from_peer = 0x20 + round, from_gpu = 0xe0 - round;

		/* The peer has reached the memory already when CUDA pins it. */
		if (late && round == 4) {
			open_gpu();
			MUST(cuda.host_register(memory, LENGTH, 0) == 0);
			is_pinned = 1;
		}
		if (strcmp(argv[2], "reopened") == 0 && round > 4 && round % 4 == 0) {
			MUST(cuda.host_unregister(memory) == 0);
			MUST(cuda.host_register(memory, LENGTH, 0) == 0);
		}
		tell(orders[0], 'w', from_peer);
		expect(memory, from_peer, "the program", round);
		if (is_pinned) {
			MUST(cuda.to_device(on_gpu, memory, LENGTH) == 0);
			memset(copy, 0, LENGTH);
			MUST(cuda.to_host(copy, on_gpu, LENGTH) == 0);
			expect(copy, from_peer, "the GPU", round);
			MUST(cuda.set(on_gpu, from_gpu, LENGTH) == 0);
			MUST(cuda.to_host(memory, on_gpu, LENGTH) == 0);
		} else {
			memset(memory, from_gpu, LENGTH);
		}
		expect(memory, from_gpu, "the program", round);
		tell(orders[0], 'r', from_gpu);
	}
	MUST(ibv_dereg_mr(region) == 0);
	if (is_pinned) {
		/* Pinned still, and the program's alone. */
		memset(memory, 0x77, LENGTH);
		MUST(cuda.to_device(on_gpu, memory, LENGTH) == 0);
		MUST(cuda.to_host(copy, on_gpu, LENGTH) == 0);
		expect(copy, 0x77, "the GPU, after the deregistration,", ROUNDS);
		MUST(cuda.host_unregister(memory) == 0);
	}
	close(orders[0]);
	MUST(waitpid(child, &status, 0) == child && status == 0);
	printf("%d rounds: GPU, program and peer agree\n", ROUNDS);
	return 0;
}
