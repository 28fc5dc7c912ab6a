/*
 * Two processes that do a little of everything and clean up behind themselves, for memory checkers and sanitizers: whatever those report of it is
 * a mistake of the libraries.
 *
 * usage: checked none|leak
 *
 * With "leak" it makes two mistakes of its own: it loses memory, and two of its threads write one variable at once.
 *
 * Built against the distribution's headers. Prints the number of checks. In the end it waits for its other process.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 65536, MESSAGES = 50 };

#include "check.h"

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

struct end {
	uint32_t number, key;
	uint64_t address;
	union ibv_gid gid;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct ibv_mr *mr;
static uint8_t *bytes;
static int to_peer;

static void exchange(void *ours, void *theirs, size_t size)
{
	CHECK(write(to_peer, ours, size) == (ssize_t)size);
	CHECK(recv(to_peer, theirs, size, MSG_WAITALL) == (ssize_t)size);
}

static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int count;

	while ((count = ibv_poll_cq(cq, 1, &wc)) == 0)
		usleep(100);
	CHECK(count == 1 && wc.status == IBV_WC_SUCCESS);
	return wc;
}

static void *poster(void *opcode)
{
	struct end *peer = ((void **)opcode)[1];
	struct ibv_sge sge = { (uintptr_t)bytes, 4096, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = (uintptr_t)((void **)opcode)[0], .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { peer->address + LENGTH / 2, peer->key },
	}, *bad;

	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	return NULL;
}

static void setup(struct end *peer)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 64, 64, 1, 1, 0 } };
	/* Below valgrind on a busy machine, the peer answers after seconds: it has half a minute. */
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 20,
		.retry_cnt = 7, .rnr_retry = 7, .min_rnr_timer = 1, .ah_attr = { .port_num = 1, .is_global = 1, .grh.hop_limit = 64 },
	};
	struct ibv_port_attr port;
	struct end own;

	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK((pd = ibv_alloc_pd(context)) && (channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 128, NULL, channel, 0)));
	init.send_cq = init.recv_cq = cq;
	CHECK((qp = ibv_create_qp(pd, &init)));
	CHECK(!posix_memalign((void **)&bytes, 4096, LENGTH));
	memset(bytes, 1, LENGTH);
	CHECK((mr = ibv_reg_mr(pd, bytes, LENGTH, ALL)));
	memset(&own, 0, sizeof(own));
	own = (struct end){ qp->qp_num, mr->rkey, (uintptr_t)bytes };
	RETURNS(0, ibv_query_gid(context, 1, 0, &own.gid));
	RETURNS(0, ibv_query_port(context, 1, &port));
	exchange(&own, peer, sizeof(own));
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = port.active_mtu;
	attr.dest_qp_num = peer->number;
	attr.ah_attr.grh.dgid = peer->gid;
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

static int contended;

static void *racer(void *nothing)
{
	for (int i = 0; i < 1000; i++)
		contended += i;
	return nothing;
}

static void make_mistakes(void)
{
	pthread_t threads[2];
	char *volatile lost;

	/* Many, since what lies about by chance, in a register or on a stack, may name one of them. */
	for (int i = 0; i < 64; i++)
		memset(lost = malloc(1000), 1, 1000);
	lost = NULL;
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&threads[i], NULL, racer, NULL));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_join(threads[i], NULL));
}

int main(int count, char **arguments)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	struct ibv_sge sge;
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct end peer;
	int pair[2], status = 0;
	char ours = 1, theirs;
	pid_t child;

	CHECK(count == 2);
	if (!strcmp(arguments[1], "leak"))
		make_mistakes();
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	CHECK((child = fork()) >= 0);
	to_peer = pair[child == 0];
	CHECK(!close(pair[child != 0]));
	alarm(300);
	setup(&peer);
	sge = (struct ibv_sge){ (uintptr_t)bytes, LENGTH / 4, mr->lkey };
	for (int i = 0; i < MESSAGES; i++)
		RETURNS(0, ibv_post_recv(qp, &receive, &bad));
	exchange(&ours, &theirs, 1);
	/* From another thread each time: what the program's own threads have to do with each other is in order. */
	for (int i = 0; i < 3 * MESSAGES; i++) {
		void *what[] = { (void *)(uintptr_t)opcodes[i % 3], &peer };
		pthread_t thread;

		CHECK(!pthread_create(&thread, NULL, poster, what) && !pthread_join(thread, NULL));
		while (completion().opcode == IBV_WC_RECV)
			;
	}
	exchange(&ours, &theirs, 1);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_dereg_mr(mr));
	free(bytes);
	RETURNS(0, ibv_destroy_cq(cq));
	RETURNS(0, ibv_destroy_comp_channel(channel));
	RETURNS(0, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_close_device(context));
	CHECK(!close(to_peer));
	if (!child)
		return 0;
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	printf("%d checks\n", checks);
	return 0;
}
