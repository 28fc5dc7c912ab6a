/*
 * Memory that is freed while it is registered, in threads to which the faults of their instructions must not come: workers that block all signals, and
 * a program whose own handler, made later, passes nothing on. Each time it is a completion error.
 *
 * usage: faults ADDRESS
 *
 * Built against the distribution's headers. Prints the number of checks.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LENGTH = 8192 };

#include "check.h"
#include "pair.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp, *peer;
static struct ibv_mr *mine;
static uint8_t own[LENGTH];
static const char *address;

static void *freed(struct ibv_mr **mr)
{
	void *memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED && (*mr = ibv_reg_mr(pd, memory, LENGTH, ALL)));
	/* Not unmapped: something else might come to lie there. */
	RETURNS(0, mprotect(memory, LENGTH, PROT_NONE));
	return memory;
}

/* A request from and to freed memory fails as it should, of either side. */
static void transfer(enum ibv_wr_opcode opcode, uint32_t length, enum ibv_wc_status status, int from_freed)
{
	struct ibv_mr *mr;
	struct ibv_sge gone = { 0, length, 0 }, there = { (uintptr_t)own, length, mine->lkey };
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = from_freed ? &there : &gone, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr wr = { .wr_id = 1, .opcode = opcode, .sg_list = from_freed ? &gone : &there, .num_sge = 1 }, *bad;
	struct ibv_wc wc;

	gone.addr = (uintptr_t)freed(&mr);
	gone.lkey = mr->lkey;
	CHECK(connect_pair(context, qp, peer, address));
	if (opcode == IBV_WR_SEND)
		RETURNS(0, ibv_post_recv(peer, &receive, &bad_receive));
	wr.wr.rdma.remote_addr = from_freed ? (uintptr_t)own : gone.addr;
	wr.wr.rdma.rkey = from_freed ? mine->rkey : mr->rkey;
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	do
		wc = completion(cq);
	while (wc.wr_id != 1);
	if (wc.status != status)
		fprintf(stderr, "operation %d of %u bytes: %s\n", opcode, length, ibv_wc_status_str(wc.status));
	CHECK(wc.status == status);
	/* The connection is made anew: what is left of this one goes. */
	while (ibv_poll_cq(cq, 1, &wc) > 0)
		;
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, munmap((void *)(uintptr_t)gone.addr, LENGTH));
}

static void *work(void *nothing)
{
	static const uint32_t lengths[] = { 8, 64, 5000 };

	for (unsigned i = 0; i < sizeof(lengths) / sizeof(*lengths); i++) {
		transfer(IBV_WR_SEND, lengths[i], IBV_WC_LOC_PROT_ERR, 1);
		transfer(IBV_WR_SEND, lengths[i], IBV_WC_REM_OP_ERR, 0);
		transfer(IBV_WR_RDMA_WRITE, lengths[i], IBV_WC_LOC_PROT_ERR, 1);
		transfer(IBV_WR_RDMA_WRITE, lengths[i], IBV_WC_REM_ACCESS_ERR, 0);
	}
	return nothing;
}

static void *blocking(void *nothing)
{
	sigset_t all;

	sigfillset(&all);
	RETURNS(0, pthread_sigmask(SIG_SETMASK, &all, NULL));
	return work(nothing);
}

static void *in_order(void *nothing) { return work(nothing); }

static void gives_up(int signal)
{
	static const char text[] = "a fault came to the program's own handler\n";

	CHECK(write(2, text, sizeof(text) - 1) > 0);
	_exit(3);
}

static void take(void *(*how)(void *))
{
	pthread_t thread;

	RETURNS(0, pthread_create(&thread, NULL, how, NULL));
	RETURNS(0, pthread_join(thread, NULL));
}

int main(int count, char **arguments)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 64 }, .sq_sig_all = 1 };
	struct sigaction action = { .sa_handler = gives_up };

	CHECK(count == 2);
	alarm(60);
	address = arguments[1];
	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = cq;
	CHECK((qp = ibv_create_qp(pd, &init)) && (peer = ibv_create_qp(pd, &init)));
	CHECK((mine = ibv_reg_mr(pd, own, LENGTH, ALL)));

	take(in_order);
	take(blocking);
	RETURNS(0, sigaction(SIGSEGV, &action, NULL));
	RETURNS(0, sigaction(SIGBUS, &action, NULL));
	take(in_order);
	take(blocking);
	printf("%d checks\n", checks);
	return 0;
}
