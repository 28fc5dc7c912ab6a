/* How often a process sees its peer's message before the completion of what it sent at the same time.
 *
 * usage: early DEVICE GID-INDEX ROUNDS polls|sleeps|wakes
 *
 * Two processes with a queue pair each. In each round both have a receive, meet, send, and wait until they have the peer's message; then they look once more. They
 * poll; or sleep for events; or have a thread that does so, and wakes them, as gloo does.
 * Programs with symmetric exchanges destroy a queue pair as soon as they have the peer's message (gloo's older algorithms), which is right where
 * their own completion has mostly come by then. Every byte is compared. */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 64 };

struct address {
	uint32_t number;
	union ibv_gid gid;
};

/* What both see. */
static struct {
	struct address addresses[2];
	unsigned long early[2];
	/* How often each has come to a meeting. */
	unsigned long met[2];
	int failed;
} *both;

static int rank;

static void fail(const char *what)
{
	printf("rank %d: %s\n", rank, what);
	fflush(stdout);
	__atomic_store_n(&both->failed, 1, __ATOMIC_RELEASE);
	_exit(1);
}

static void check(int good, const char *what)
{
	if (!good)
		fail(what);
}

/* Both come here before either goes on. */
static void meet(void)
{
	unsigned long mine = __atomic_add_fetch(&both->met[rank], 1, __ATOMIC_ACQ_REL);

	while (__atomic_load_n(&both->met[!rank], __ATOMIC_ACQUIRE) < mine) {
		check(!__atomic_load_n(&both->failed, __ATOMIC_ACQUIRE), "the other has failed");
		sched_yield();
	}
}

static struct ibv_context *opened(const char *name)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count);

	for (int index = 0; list != NULL && index < count; index++)
		if (strcmp(ibv_get_device_name(list[index]), name) == 0)
			return ibv_open_device(list[index]);
	return NULL;
}

static void connect_to(struct ibv_qp *qp, const struct address *peer, int gid_index)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer->number,
		.rq_psn = 1,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = gid_index, .hop_limit = 64}},
	};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0, "RTR");
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 1, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	check(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) == 0, "RTS");
}

/* Takes a completion, if there is one: its number, or -1. */
static int taken(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count = ibv_poll_cq(cq, 1, &wc);

	check(count >= 0 && (count == 0 || wc.status == IBV_WC_SUCCESS), "a completion is bad");
	return count == 0 ? -1 : (int)wc.wr_id;
}

/* Waits for a completion, as a program that polls or as one that sleeps. */
static int awaited(struct ibv_cq *cq, struct ibv_comp_channel *channel)
{
	struct ibv_cq *of;
	void *nothing;
	int one;

	while ((one = taken(cq)) < 0) {
		check(!__atomic_load_n(&both->failed, __ATOMIC_ACQUIRE), "the other has failed");
		if (channel == NULL) {
			sched_yield();
			continue;
		}
		check(ibv_get_cq_event(channel, &of, &nothing) == 0, "no event");
		ibv_ack_cq_events(of, 1);
		check(ibv_req_notify_cq(cq, 0) == 0, "not armed");
	}
	return one;
}

enum { RECEIVE, SEND };

/* The completions that have come in a round; where there is a thread that takes them, it alone does. */
static struct {
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	struct ibv_cq *cq;
	struct ibv_comp_channel *channel;
	int has_thread;
	int has[2];
} taking = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static void *takes(void *unused)
{
	for (;;) {
		int one = awaited(taking.cq, taking.channel);

		pthread_mutex_lock(&taking.mutex);
		taking.has[one]++;
		pthread_cond_signal(&taking.changed);
		pthread_mutex_unlock(&taking.mutex);
	}
	return unused;
}

static void until_has(int which)
{
	if (taking.has_thread) {
		pthread_mutex_lock(&taking.mutex);
		while (!taking.has[which])
			pthread_cond_wait(&taking.changed, &taking.mutex);
		pthread_mutex_unlock(&taking.mutex);
	}
	while (!taking.has[which])
		taking.has[awaited(taking.cq, taking.channel)]++;
}

/* Whether a completion has come, at a look. */
static int has(int which)
{
	int one, is_there;

	if (!taking.has_thread && !taking.has[which] && (one = taken(taking.cq)) >= 0)
		taking.has[one]++;
	pthread_mutex_lock(&taking.mutex);
	is_there = taking.has[which];
	pthread_mutex_unlock(&taking.mutex);
	return is_there;
}

static void exchange(const char *name, int gid_index, unsigned long rounds, int sleeps, int wakes)
{
	pthread_t thread;
	struct ibv_context *context = opened(name);
	check(context != NULL, "there is no such device");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = sleeps ? ibv_create_comp_channel(context) : NULL;
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	unsigned char *memory = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_LOCAL_WRITE);
	struct ibv_qp_init_attr wanted = {
		.send_cq = cq,
		.recv_cq = cq,
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
		.cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1},
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &wanted);
	check(mr != NULL && qp != NULL, "no queue pair");
	check(!sleeps || ibv_req_notify_cq(cq, 0) == 0, "not armed");
	both->addresses[rank].number = qp->qp_num;
	check(ibv_query_gid(context, 1, gid_index, &both->addresses[rank].gid) == 0, "no GID");
	taking.cq = cq;
	taking.channel = channel;
	taking.has_thread = wakes;
	check(!wakes || pthread_create(&thread, NULL, takes, NULL) == 0, "no thread");
	meet();
	connect_to(qp, &both->addresses[!rank], gid_index);
	for (unsigned long round = 0; round < rounds; round++) {
		struct ibv_sge from = {(uintptr_t)memory, SIZE, mr->lkey}, to = {(uintptr_t)memory + 2048, SIZE, mr->lkey};
		struct ibv_send_wr send = {.wr_id = SEND, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
		struct ibv_recv_wr receive = {.wr_id = RECEIVE, .sg_list = &to, .num_sge = 1}, *bad_receive;

		memset(memory, (int)(round + rank * 7), SIZE);
		memset(memory + 2048, 0, SIZE);
		check(ibv_post_recv(qp, &receive, &bad_receive) == 0, "no receive");
		meet();
		check(ibv_post_send(qp, &send, &bad_send) == 0, "no send");
		until_has(RECEIVE);
		/* The program is done with its peer. */
		both->early[rank] += !has(SEND);
		until_has(SEND);
		pthread_mutex_lock(&taking.mutex);
		taking.has[RECEIVE] = taking.has[SEND] = 0;
		pthread_mutex_unlock(&taking.mutex);
		for (int at = 0; at < SIZE; at++)
			check(memory[2048 + at] == (unsigned char)(round + !rank * 7), "a byte is wrong");
	}
	meet();
	/* The thread sleeps until the process ends. */
	if (wakes)
		return;
	ibv_destroy_qp(qp);
	ibv_dereg_mr(mr);
	ibv_destroy_cq(cq);
	if (channel != NULL)
		ibv_destroy_comp_channel(channel);
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
}

int main(int count, char **arguments)
{
	unsigned long rounds = count > 3 ? strtoul(arguments[3], NULL, 10) : 0;
	int status = 1;
	pid_t child;

	if (rounds == 0 || count != 5) {
		fprintf(stderr, "usage: early DEVICE GID-INDEX ROUNDS polls|sleeps|wakes\n");
		return 2;
	}
	both = mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	child = fork();
	rank = child != 0;
	exchange(arguments[1], atoi(arguments[2]), rounds, strcmp(arguments[4], "polls") != 0, strcmp(arguments[4], "wakes") == 0);
	if (child == 0)
		return 0;
	if (waitpid(child, &status, 0) < 0 || status != 0)
		return 1;
	printf("every byte is right; early %lu and %lu of %lu\n", both->early[0], both->early[1], rounds);
	return 0;
}
