/* A program's memory stays its own, whatever a peer may reach of it: nothing is lost, nothing old comes back, nothing else changes.
 *
 * The subject starts the peer, which writes and reads in the subject's registered regions when it is asked to. Between that, the
 * subject does with its memory what programs do: drops it, frees it, forks, moves it, has the kernel hold it, registers it again.
 * Each check prints a line; the last one is "all memory is right". usage: memory ADDRESS */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/io_uring.h>
#include <malloc.h>
#include <netinet/in.h>
#include <pthread.h>
#include <rdma/rdma_verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEMAND(condition, ...) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: " #condition ": ", __func__, __LINE__); \
			fprintf(stderr, __VA_ARGS__); \
			fprintf(stderr, " (errno: %s)\n", strerror(errno)); \
			_exit(1); \
		} \
	} while (0)
#define ALL_RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

enum { MIB = 1 << 20, PAGE = 4096, LONGEST = MIB };
enum what { WRITE = 1, READ, END };

/* What the subject asks the peer to do. The answer is the same, with the sum of what was read. */
struct request {
	uint64_t what, address, length, seed, sum;
	uint32_t rkey;
};

struct side {
	struct rdma_cm_id *id;
	struct request *out, *in;
	struct ibv_mr *out_mr, *in_mr;
};

static uint64_t next(uint64_t state)
{
	state ^= state << 13;
	state ^= state >> 7;
	return state ^ state << 17;
}

static void fill(void *memory, size_t length, uint64_t seed)
{
	uint64_t state = seed * 2654435761u + 1;
	for (size_t i = 0; i < length; i++) {
		if (i % 8 == 0)
			state = next(state);
		((uint8_t *)memory)[i] = state >> (i % 8 * 8);
	}
}

static uint64_t sum(const void *memory, size_t length)
{
	uint64_t total = 14695981039346656037u;
	for (size_t i = 0; i < length; i++)
		total = (total ^ ((const uint8_t *)memory)[i]) * 1099511628211u;
	return total;
}

static bool has(const void *memory, size_t length, uint64_t seed)
{
	uint8_t *wanted = malloc(length);
	fill(wanted, length, seed);
	bool same = memcmp(memory, wanted, length) == 0;
	free(wanted);
	return same;
}

static bool is_zero(const void *memory, size_t length)
{
	for (size_t i = 0; i < length; i++)
		if (((const uint8_t *)memory)[i])
			return false;
	return true;
}

static void *map(size_t length)
{
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	DEMAND(memory != MAP_FAILED, "%zu bytes", length);
	return memory;
}

/* Both sides: one message at a time in each direction. */

static void prepare(struct side *side)
{
	void *memory = map(2 * PAGE);
	side->out = memory;
	side->in = (void *)((char *)memory + PAGE);
	side->out_mr = rdma_reg_msgs(side->id, side->out, sizeof *side->out);
	side->in_mr = rdma_reg_msgs(side->id, side->in, sizeof *side->in);
	DEMAND(side->out_mr && side->in_mr, "messages");
	DEMAND(rdma_post_recv(side->id, NULL, side->in, sizeof *side->in, side->in_mr) == 0, "receive");
}

static void sent(struct side *side)
{
	struct ibv_wc wc;
	DEMAND(rdma_get_send_comp(side->id, &wc) == 1 && wc.status == 0, "%s", ibv_wc_status_str(wc.status));
}

static void say(struct side *side)
{
	DEMAND(rdma_post_send(side->id, NULL, side->out, sizeof *side->out, side->out_mr, IBV_SEND_SIGNALED) == 0, "send");
	sent(side);
}

static struct request hear(struct side *side)
{
	struct ibv_wc wc;
	DEMAND(rdma_get_recv_comp(side->id, &wc) == 1 && wc.status == 0, "%s", ibv_wc_status_str(wc.status));
	struct request heard = *side->in;
	DEMAND(rdma_post_recv(side->id, NULL, side->in, sizeof *side->in, side->in_mr) == 0, "receive");
	return heard;
}

static struct rdma_addrinfo *resolved(const char *address, const char *port, int flags)
{
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found = NULL;
	DEMAND(rdma_getaddrinfo(address, port, &hints, &found) == 0, "%s", address);
	return found;
}

static struct ibv_qp_init_attr queues(void)
{
	struct ibv_qp_init_attr attributes = { .sq_sig_all = 0, .qp_type = IBV_QPT_RC };
	attributes.cap.max_send_wr = attributes.cap.max_recv_wr = 16;
	attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
	return attributes;
}

static int peer(const char *address, int pipe)
{
	struct rdma_cm_id *listener;
	struct side side;
	struct ibv_qp_init_attr attributes = queues();
	DEMAND(rdma_create_ep(&listener, resolved(address, NULL, RAI_PASSIVE), NULL, &attributes) == 0, "listener");
	DEMAND(rdma_listen(listener, 1) == 0, "listen");
	uint16_t port = ntohs(rdma_get_src_port(listener));
	DEMAND(write(pipe, &port, sizeof port) == sizeof port, "port");
	DEMAND(rdma_get_request(listener, &side.id) == 0, "request");
	prepare(&side);
	DEMAND(rdma_accept(side.id, NULL) == 0, "accept");
	char *buffer = map(LONGEST);
	struct ibv_mr *mr = ibv_reg_mr(side.id->pd, buffer, LONGEST, ALL_RIGHTS);
	DEMAND(mr, "buffer");
	for (;;) {
		struct request request = hear(&side);
		if (request.what == WRITE) {
			fill(buffer, request.length, request.seed);
			DEMAND(rdma_post_write(side.id, NULL, buffer, request.length, mr, IBV_SEND_SIGNALED, request.address, request.rkey) == 0, "write");
			sent(&side);
		} else if (request.what == READ) {
			memset(buffer, 0xee, request.length);
			DEMAND(rdma_post_read(side.id, NULL, buffer, request.length, mr, IBV_SEND_SIGNALED, request.address, request.rkey) == 0, "read");
			sent(&side);
			request.sum = sum(buffer, request.length);
		}
		*side.out = request;
		say(&side);
		if (request.what == END)
			return 0;
	}
}

/* The subject. */

static struct side me;

static struct request ask(enum what what, struct ibv_mr *mr, void *at, size_t length, uint64_t seed)
{
	*me.out = (struct request){ .what = what, .address = (uintptr_t)at, .length = length, .seed = seed, .rkey = mr ? mr->rkey : 0 };
	say(&me);
	return hear(&me);
}

/* The peer writes bytes that follow from the seed, and they are there. */
static void written(struct ibv_mr *mr, void *at, size_t length, uint64_t seed)
{
	ask(WRITE, mr, at, length, seed);
	DEMAND(has(at, length, seed), "%zu bytes that the peer has written, seed %lu", length, (unsigned long)seed);
}

/* The peer reads what is there. */
static void read_back(struct ibv_mr *mr, void *at, size_t length)
{
	uint64_t wanted = sum(at, length);
	DEMAND(ask(READ, mr, at, length, 0).sum == wanted, "%zu bytes that the peer reads", length);
}

static struct ibv_mr *registered(void *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(me.id->pd, memory, length, ALL_RIGHTS);
	DEMAND(mr, "%zu bytes", length);
	return mr;
}

static void deregistered(struct ibv_mr *mr)
{
	DEMAND(ibv_dereg_mr(mr) == 0, "region");
}

/* Long enough that the engine does what it does with memory that is used much. */
static void much_used(struct ibv_mr *mr, void *at, size_t length)
{
	for (uint64_t round = 0; round < 40; round++) {
		size_t here = round % 4 == 3 ? length : PAGE / 2;
		written(mr, at, here, round);
		read_back(mr, at, here);
		memset(at, round, here);
		read_back(mr, at, here);
	}
}

static void dropped(void)
{
	char *memory = map(MIB);
	struct ibv_mr *mr = registered(memory, MIB);
	much_used(mr, memory, MIB);
	fill(memory, MIB, 5);
	DEMAND(madvise(memory + 16 * PAGE, 32 * PAGE, MADV_DONTNEED) == 0, "madvise");
	DEMAND(is_zero(memory + 16 * PAGE, 32 * PAGE), "dropped pages have old bytes");
	written(mr, memory + 16 * PAGE, 32 * PAGE, 6);
	read_back(mr, memory, MIB);
	deregistered(mr);
	DEMAND(has(memory + 16 * PAGE, 32 * PAGE, 6), "a deregistration changes bytes");
	DEMAND(madvise(memory, MIB, MADV_DONTNEED) == 0, "madvise");
	DEMAND(is_zero(memory, MIB), "pages that were dropped after the deregistration have old bytes");
	fill(memory, MIB, 7);
	DEMAND(has(memory, MIB, 7), "the memory cannot be used again");
	DEMAND(munmap(memory, MIB) == 0, "munmap");
	char *again = mmap(memory, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	DEMAND(again == memory && is_zero(again, MIB), "new memory in the same place has old bytes");
	munmap(memory, MIB);
}

static void freed(void)
{
	for (size_t round = 0; round < 100; round++) {
		size_t length = 64 * 1024 + round * 7919;
		char *memory = malloc(length);
		struct ibv_mr *mr = registered(memory, length);
		for (size_t turn = 0; turn < 4; turn++)
			written(mr, memory, turn == 3 ? length : 100, round + turn);
		deregistered(mr);
		DEMAND(has(memory, length, round + 3), "a deregistration changes bytes");
		free(memory);
		malloc_trim(0);
		char *zeros = calloc(1, length);
		DEMAND(is_zero(zeros, length), "calloc(3) gives old bytes");
		free(zeros);
	}
}

static void again_and_again(void)
{
	char *memory = map(4 * MIB), line[512];
	fill(memory, 4 * MIB, 8);
	uint64_t wanted = sum(memory, MIB);
	int mappings[2] = { 0 };
	for (size_t round = 0; round < 10000; round++) {
		size_t offset = round * 4099 % (3 * MIB), length = 1 + round * 6151 % LONGEST;
		struct ibv_mr *mr = registered(memory + offset, length);
		if (round % 50 == 0) {
			written(mr, memory + offset, length, round);
			fill(memory, 4 * MIB, 8);
			read_back(mr, memory + offset, length);
		}
		deregistered(mr);
		if (round == 500 || round == 9999) {
			FILE *maps = fopen("/proc/self/maps", "r");
			while (fgets(line, sizeof line, maps))
				mappings[round != 500]++;
			fclose(maps);
		}
	}
	DEMAND(sum(memory, MIB) == wanted, "registrations change bytes");
	DEMAND(has(memory, 4 * MIB, 8), "registrations change bytes");
	DEMAND(mappings[1] <= mappings[0] + 100, "mappings grow from %d to %d", mappings[0], mappings[1]);
	munmap(memory, 4 * MIB);
}

static void moved(void)
{
	char *memory = map(MIB);
	struct ibv_mr *mr = registered(memory, MIB);
	much_used(mr, memory, MIB);
	written(mr, memory, MIB, 9);
	deregistered(mr);
	char *elsewhere = mremap(memory, MIB, 2 * MIB, MREMAP_MAYMOVE);
	DEMAND(elsewhere != MAP_FAILED, "mremap");
	DEMAND(has(elsewhere, MIB, 9), "mremap(2) loses bytes");
	DEMAND(is_zero(elsewhere + MIB, MIB), "what mremap(2) adds has old bytes");
	mr = registered(elsewhere, MIB);
	written(mr, elsewhere, MIB, 10);
	deregistered(mr);
	munmap(elsewhere, 2 * MIB);
}

/* Waits for a child, which must say that all is right. */
static void child_agrees(pid_t child, const char *about)
{
	int status;
	DEMAND(waitpid(child, &status, 0) == child, "%s", about);
	DEMAND(WIFEXITED(status) && WEXITSTATUS(status) == 0, "%s: the child says %#x", about, status);
}

static void forked(void)
{
	char *memory = map(MIB);
	struct ibv_mr *mr = registered(memory, MIB);
	much_used(mr, memory, MIB);
	for (uint64_t round = 0; round < 10; round++) {
		int go[2];
		char byte = 0;
		DEMAND(pipe(go) == 0, "pipe");
		written(mr, memory, MIB, round);
		pid_t child = fork();
		DEMAND(child >= 0, "fork");
		if (child == 0) {
			bool before = has(memory, MIB, round);
			if (read(go[0], &byte, 1) != 1)
				_exit(2);
			bool after = has(memory, MIB, round);
			memset(memory, 0x77, MIB);
			_exit(!before || !after);
		}
		written(mr, memory, MIB, round + 100);
		DEMAND(write(go[1], &byte, 1) == 1, "pipe");
		child_agrees(child, "a fork");
		DEMAND(has(memory, MIB, round + 100), "the child changes the parent's bytes");
		close(go[0]);
		close(go[1]);
	}
	deregistered(mr);
	munmap(memory, MIB);
}

/* Two words that are the same whenever nobody has the lock. */
static struct {
	pthread_mutex_t lock;
	volatile uint64_t *words;
	volatile bool ends;
} counter = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void *count(void *unused)
{
	while (!counter.ends) {
		pthread_mutex_lock(&counter.lock);
		counter.words[0]++;
		counter.words[1000]++;
		pthread_mutex_unlock(&counter.lock);
	}
	return unused;
}

static void forked_beside_a_thread(void)
{
	char *memory = map(MIB);
	struct ibv_mr *mr = registered(memory, MIB);
	much_used(mr, memory + MIB / 2, MIB / 2);
	counter.words = (void *)memory;
	pthread_t thread;
	DEMAND(pthread_create(&thread, NULL, count, NULL) == 0, "thread");
	for (uint64_t round = 0; round < 20; round++) {
		written(mr, memory + MIB / 2, MIB / 2, round);
		pthread_mutex_lock(&counter.lock);
		uint64_t counted = counter.words[0];
		pid_t child = fork();
		DEMAND(child >= 0, "fork");
		if (child == 0) {
			bool right = counter.words[0] == counted && counter.words[1000] == counted && has(memory + MIB / 2, MIB / 2, round);
			_exit(!right);
		}
		pthread_mutex_unlock(&counter.lock);
		child_agrees(child, "a fork beside a thread");
	}
	pthread_mutex_lock(&counter.lock);
	uint64_t before = counter.words[0];
	DEMAND(before == counter.words[1000], "counts are lost");
	pthread_mutex_unlock(&counter.lock);
	counter.ends = true;
	pthread_join(thread, NULL);
	DEMAND(counter.words[0] >= before && counter.words[0] == counter.words[1000], "counts are lost");
	deregistered(mr);
	munmap(memory, MIB);
}

static bool is_mapped(void *page)
{
	return msync(page, PAGE, MS_ASYNC) == 0;
}

/* `advice` is given before the registration, or when the peer has used the memory; it holds in the end. */
static void advised(int advice, bool late)
{
	char *memory = map(MIB);
	fill(memory, MIB, 11);
	if (!late)
		DEMAND(madvise(memory, MIB, advice) == 0, "madvise %d", advice);
	struct ibv_mr *mr = registered(memory, MIB);
	much_used(mr, memory, MIB);
	/* Shared memory does not know MADV_WIPEONFORK, and says so; of MADV_DONTFORK it is left that a child's memory is its own (SECURITY.md). */
	bool is_taken = !late || madvise(memory, MIB, advice) == 0;
	DEMAND(is_taken || (advice == MADV_WIPEONFORK && errno == EINVAL), "madvise %d", advice);
	written(mr, memory, MIB, 12);
	if (advice == MADV_DONTDUMP) {
		char line[512];
		bool here = false, is_left_out = false;
		FILE *maps = fopen("/proc/self/smaps", "r");
		while (fgets(line, sizeof line, maps)) {
			unsigned long from, to;
			if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
				here = from <= (uintptr_t)memory && (uintptr_t)memory < to;
			is_left_out |= here && !strncmp(line, "VmFlags:", 8) && strstr(line, " dd ");
		}
		fclose(maps);
		DEMAND(is_left_out, "MADV_DONTDUMP is forgotten");
	} else if (is_taken) {
		pid_t child = fork();
		DEMAND(child >= 0, "fork");
		if (child == 0)
			_exit(advice == MADV_WIPEONFORK ? !is_zero(memory, MIB) : is_mapped(memory) && !(late && has(memory, MIB, 12)));
		child_agrees(child, advice == MADV_WIPEONFORK ? "MADV_WIPEONFORK" : "MADV_DONTFORK");
	}
	DEMAND(has(memory, MIB, 12), "advice changes bytes");
	deregistered(mr);
	munmap(memory, MIB);
}

/* The kernel holds the pages for io_uring, from before the registration or from after it on; files and program have the same bytes. */
static bool held(bool late)
{
	struct io_uring_params parameters = { 0 };
	int ring = syscall(SYS_io_uring_setup, 4, &parameters);
	if (ring < 0 && (errno == EPERM || errno == ENOSYS || errno == EACCES))
		return false;
	DEMAND(ring >= 0, "io_uring");
	DEMAND(parameters.features & IORING_FEAT_SINGLE_MMAP, "io_uring");
	size_t length = parameters.sq_off.array + parameters.sq_entries * 4, other = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
	char *rings = mmap(NULL, length > other ? length : other, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
	struct io_uring_sqe *entries = mmap(NULL, parameters.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQES);
	DEMAND(rings != MAP_FAILED && (void *)entries != MAP_FAILED, "io_uring");
	char *memory = map(MIB), *copy = malloc(MIB);
	fill(memory, MIB, 13);
	struct iovec whole = { memory, MIB };
	struct ibv_mr *mr = NULL;
	if (late) {
		mr = registered(memory, MIB);
		much_used(mr, memory, MIB);
	}
	DEMAND(syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &whole, 1) == 0, "registering a buffer with io_uring");
	if (!late) {
		mr = registered(memory, MIB);
		much_used(mr, memory, MIB);
	}
	int file = memfd_create("file", 0);
	for (uint64_t round = 0; round < 8; round++) {
		bool to_file = round % 2;
		if (to_file) {
			written(mr, memory, MIB, round + 20);
		} else {
			fill(copy, MIB, round + 20);
			DEMAND(pwrite(file, copy, MIB, 0) == MIB, "file");
		}
		uint32_t *tail = (void *)(rings + parameters.sq_off.tail), *array = (void *)(rings + parameters.sq_off.array);
		uint32_t *head = (void *)(rings + parameters.cq_off.head);
		uint32_t at = *tail % parameters.sq_entries;
		entries[at] = (struct io_uring_sqe){ .opcode = to_file ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED, .fd = file, .addr = (uintptr_t)memory, .len = MIB };
		array[at] = at;
		__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
		DEMAND(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1, "io_uring");
		struct io_uring_cqe *done = (void *)(rings + parameters.cq_off.cqes);
		int result = done[*head % parameters.cq_entries].res;
		__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
		DEMAND(result == MIB, "io_uring: %d", result);
		DEMAND(has(memory, MIB, round + 20), "what io_uring has read is not there");
		DEMAND(pread(file, copy, MIB, 0) == MIB && has(copy, MIB, round + 20), "io_uring writes other bytes than the program has");
		read_back(mr, memory, MIB);
	}
	deregistered(mr);
	close(ring);
	close(file);
	munmap(memory, MIB);
	free(copy);
	return true;
}

static void passed(const char *check)
{
	printf("%s: right\n", check);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	if (argc == 3)
		return peer(argv[1], atoi(argv[2]));
	DEMAND(argc == 2, "usage: memory ADDRESS");
	int ends[2];
	char end[16], port[16];
	uint16_t number;
	DEMAND(pipe(ends) == 0, "pipe");
	snprintf(end, sizeof end, "%d", ends[1]);
	pid_t child = fork();
	if (child == 0) {
		execl("/proc/self/exe", argv[0], argv[1], end, NULL);
		_exit(127);
	}
	close(ends[1]);
	DEMAND(read(ends[0], &number, sizeof number) == sizeof number, "the peer's port");
	snprintf(port, sizeof port, "%u", number);
	struct ibv_qp_init_attr attributes = queues();
	DEMAND(rdma_create_ep(&me.id, resolved(argv[1], port, 0), NULL, &attributes) == 0, "connection");
	prepare(&me);
	DEMAND(rdma_connect(me.id, NULL) == 0, "connect");

	dropped(), passed("dropped");
	freed(), passed("freed");
	again_and_again(), passed("registered 10,000 times");
	moved(), passed("remapped");
	forked(), passed("forked");
	for (int late = 0; late < 2; late++) {
		advised(MADV_WIPEONFORK, late), passed(late ? "WIPEONFORK while shared" : "WIPEONFORK before");
		advised(MADV_DONTFORK, late), passed(late ? "DONTFORK while shared" : "DONTFORK before");
		advised(MADV_DONTDUMP, late), passed(late ? "DONTDUMP while shared" : "DONTDUMP before");
	}
	forked_beside_a_thread(), passed("forked beside a thread");
	/* The last ones: a process that has had io_uring is treated with more care. */
	for (int late = 1; late >= 0; late--)
		if (held(late))
			passed(late ? "held by io_uring while shared" : "held by io_uring before");
		else
			printf("io_uring is not permitted here\n");
	dropped(), passed("dropped, at the end");
	ask(END, NULL, NULL, 0, 0);
	child_agrees(child, "the peer");
	printf("all memory is right\n");
	return 0;
}
