/*
 * What vendor_err says of the mistakes of a program, as docs/errors.md has it; two queue pairs of one process.
 *
 * usage: causes ADDRESS
 *
 * Built against the distribution's headers. Prints the number of checks.
 */
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LENGTH = 8192, WR_ID = 0xabc };

#include "check.h"
#include "pair.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp, *peer;
static struct ibv_mr *mine, *theirs;
static uint8_t own[LENGTH], target[LENGTH];

static void setup(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 64 }, .sq_sig_all = 1 };

	CHECK(list && list[0] && (context = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK((pd = ibv_alloc_pd(context)) && (cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	init.send_cq = init.recv_cq = cq;
	CHECK((qp = ibv_create_qp(pd, &init)) && (peer = ibv_create_qp(pd, &init)));
	CHECK((mine = ibv_reg_mr(pd, own, LENGTH, IBV_ACCESS_LOCAL_WRITE)));
	CHECK((theirs = ibv_reg_mr(pd, target, LENGTH, ALL)));
}

/* A request with this element fails with this status and cause. */
static void fails(const char *address, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint32_t rkey,
	enum ibv_wc_status status, uint32_t cause)
{
	struct ibv_send_wr wr = {
		.wr_id = WR_ID, .opcode = opcode, .sg_list = &sge, .num_sge = 1, .wr.rdma = { (uintptr_t)target, rkey },
	}, *bad;
	struct ibv_wc wc;

	CHECK(connect_pair(context, qp, peer, address));
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	wc = completion(cq);
	CHECK(wc.wr_id == WR_ID && wc.status == status);
	if (wc.vendor_err != cause)
		fprintf(stderr, "vendor_err %#x instead of %#x\n", wc.vendor_err, cause);
	CHECK(wc.vendor_err == cause);
	/* What is posted behind it is flushed, and says so. */
	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	wc = completion(cq);
	CHECK(wc.status == IBV_WC_WR_FLUSH_ERR && wc.vendor_err == 0x001);
}

/* Connects to a queue pair that is not there, and gives up soon. */
static void hurried(const char *address, uint32_t destination)
{
	struct ibv_qp_attr attr = {
		.port_num = 1, .qp_access_flags = ALL, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 10, .retry_cnt = 1, .path_mtu = IBV_MTU_1024,
		.ah_attr = { .port_num = 1, .is_global = 1, .grh.hop_limit = 64 },
	};

	attr.ah_attr.grh.sgid_index = own_gid(context, address, &attr.ah_attr.grh.dgid);
	bring_up(qp, destination, attr);
	bring_up(peer, qp->qp_num, attr);
}

int main(int count, char **arguments)
{
	struct ibv_sge all = { (uintptr_t)own, 64 }, sge, gone;
	const char *address = arguments[1];
	struct ibv_pd *other;
	struct ibv_mr *mr;
	struct ibv_recv_wr receive = { .wr_id = WR_ID, .sg_list = &gone, .num_sge = 1 }, *bad;
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &all, .num_sge = 1 }, *bad_send;
	struct ibv_wc wc;
	struct ibv_mw *window;
	void *memory;

	CHECK(count == 2);
	alarm(60);
	setup();
	all.lkey = mine->lkey;

	/* It works, and then there is no cause. */
	CHECK(connect_pair(context, qp, peer, address));
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.remote_addr = (uintptr_t)target;
	wr.wr.rdma.rkey = theirs->rkey;
	RETURNS(0, ibv_post_send(qp, &wr, &bad_send));
	wc = completion(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.vendor_err == 0);

	/* A wrong key, a deregistered one, another domain's. */
	sge = all;
	sge.lkey = mine->lkey ^ 0x55;
	fails(address, IBV_WR_RDMA_WRITE, sge, theirs->rkey, IBV_WC_LOC_PROT_ERR, 0x101);
	CHECK((mr = ibv_reg_mr(pd, own, LENGTH, IBV_ACCESS_LOCAL_WRITE)));
	sge.lkey = mr->lkey;
	RETURNS(0, ibv_dereg_mr(mr));
	fails(address, IBV_WR_RDMA_WRITE, sge, theirs->rkey, IBV_WC_LOC_PROT_ERR, 0x101);
	CHECK((other = ibv_alloc_pd(context)) && (mr = ibv_reg_mr(other, own, LENGTH, IBV_ACCESS_LOCAL_WRITE)));
	sge.lkey = mr->lkey;
	fails(address, IBV_WR_RDMA_WRITE, sge, theirs->rkey, IBV_WC_LOC_PROT_ERR, 0x102);
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dealloc_pd(other));

	/* Past the end; a read into memory that may not be written. */
	sge = all;
	sge.addr += LENGTH - 8;
	fails(address, IBV_WR_RDMA_WRITE, sge, theirs->rkey, IBV_WC_LOC_PROT_ERR, 0x103);
	CHECK((mr = ibv_reg_mr(pd, own, LENGTH, 0)));
	sge = all;
	sge.lkey = mr->lkey;
	fails(address, IBV_WR_RDMA_READ, sge, theirs->rkey, IBV_WC_LOC_PROT_ERR, 0x104);
	RETURNS(0, ibv_dereg_mr(mr));

	/* Memory that is freed, and still registered: what is sent, and what is received into. */
	memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && (mr = ibv_reg_mr(pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE)));
	gone = (struct ibv_sge){ (uintptr_t)memory, 64, mr->lkey };
	RETURNS(0, munmap(memory, LENGTH));
	fails(address, IBV_WR_RDMA_WRITE, gone, theirs->rkey, IBV_WC_LOC_PROT_ERR, 0x105);
	CHECK(connect_pair(context, qp, peer, address));
	RETURNS(0, ibv_post_recv(peer, &receive, &bad));
	wr.opcode = IBV_WR_SEND;
	wr.wr_id = 7;
	RETURNS(0, ibv_post_send(qp, &wr, &bad_send));
	for (int i = 0; i < 2; i++) {
		wc = completion(cq);
		CHECK(wc.wr_id == 7 || wc.wr_id == WR_ID);
		CHECK(wc.status == (wc.wr_id == 7 ? IBV_WC_REM_OP_ERR : IBV_WC_LOC_PROT_ERR));
		CHECK(wc.vendor_err == (wc.wr_id == 7 ? 0x303 : 0x105));
	}
	RETURNS(0, ibv_dereg_mr(mr));

	/* Memory that may not be written any more: a read into it. */
	memory = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && (mr = ibv_reg_mr(pd, memory, LENGTH, IBV_ACCESS_LOCAL_WRITE)));
	gone = (struct ibv_sge){ (uintptr_t)memory, 64, mr->lkey };
	memset(memory, 1, LENGTH);
	RETURNS(0, mprotect(memory, LENGTH, PROT_READ));
	fails(address, IBV_WR_RDMA_READ, gone, theirs->rkey, IBV_WC_LOC_PROT_ERR, 0x105);
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, munmap(memory, LENGTH));

	/* A key that is not there is not taken away either. */
	CHECK(connect_pair(context, qp, peer, address));
	wr = (struct ibv_send_wr){ .wr_id = 10, .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = theirs->rkey ^ 0x55 };
	RETURNS(0, ibv_post_send(qp, &wr, &bad_send));
	wc = completion(cq);
	CHECK(wc.wr_id == 10 && wc.status == IBV_WC_LOC_QP_OP_ERR && wc.vendor_err == 0x107);
	wr = (struct ibv_send_wr){ .wr_id = 7, .sg_list = &all, .num_sge = 1 };

	/* An atomic is of 8 bytes. */
	sge = all;
	sge.length = 4;
	fails(address, IBV_WR_ATOMIC_FETCH_AND_ADD, sge, theirs->rkey, IBV_WC_LOC_LEN_ERR, 0x106);

	/* What the peer refuses. */
	fails(address, IBV_WR_RDMA_WRITE, all, theirs->rkey ^ 0x55, IBV_WC_REM_ACCESS_ERR, 0x302);

	/* A key of the peer's that it has not: the peer's receive says so, too. */
	CHECK(connect_pair(context, qp, peer, address));
	gone = (struct ibv_sge){ (uintptr_t)target, LENGTH, theirs->lkey };
	RETURNS(0, ibv_post_recv(peer, &receive, &bad));
	wr.opcode = IBV_WR_SEND_WITH_INV;
	wr.invalidate_rkey = theirs->rkey ^ 0x55;
	RETURNS(0, ibv_post_send(qp, &wr, &bad_send));
	for (int i = 0; i < 2; i++) {
		wc = completion(cq);
		if (wc.wr_id == WR_ID)
			CHECK(wc.vendor_err == 0x202);
		else
			CHECK(wc.wr_id == 7 && wc.status != IBV_WC_SUCCESS && wc.vendor_err >> 8 == 3);
	}

	/* A window of a region that permits none. */
	CHECK((mr = ibv_reg_mr(pd, own, LENGTH, IBV_ACCESS_LOCAL_WRITE)) && (window = ibv_alloc_mw(pd, IBV_MW_TYPE_2)));
	CHECK(connect_pair(context, qp, peer, address));
	wr = (struct ibv_send_wr){ .wr_id = 8, .opcode = IBV_WR_BIND_MW };
	wr.bind_mw.mw = window;
	wr.bind_mw.rkey = window->rkey;
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ mr, (uintptr_t)own, 64, IBV_ACCESS_REMOTE_WRITE };
	RETURNS(0, ibv_post_send(qp, &wr, &bad_send));
	wc = completion(cq);
	CHECK(wc.wr_id == 8 && wc.status == IBV_WC_MW_BIND_ERR && wc.vendor_err == 0x501);
	RETURNS(0, ibv_dealloc_mw(window));
	RETURNS(0, ibv_dereg_mr(mr));

	/* A peer without a receive, and one that does not answer. */
	wr = (struct ibv_send_wr){ .wr_id = 9, .sg_list = &all, .num_sge = 1, .opcode = IBV_WR_SEND };
	/* Its rnr_retry is 0. A queue pair in a hurry may give up before the answer is taken in. */
	CHECK(connect_pair(context, qp, peer, address));
	RETURNS(0, ibv_post_send(qp, &wr, &bad_send));
	wc = completion(cq);
	CHECK(wc.wr_id == 9 && wc.status == IBV_WC_RNR_RETRY_EXC_ERR && wc.vendor_err == 0x402);
	/* No queue pair has this number. */
	hurried(address, 0xfffffe);
	RETURNS(0, ibv_post_send(qp, &wr, &bad_send));
	wc = completion(cq);
	CHECK(wc.wr_id == 9 && wc.status == IBV_WC_RETRY_EXC_ERR && wc.vendor_err == 0x401);

	/* Two regions and two queue pairs are in the way. */
	RETURNS(EBUSY, ibv_dealloc_pd(pd));

	printf("%d checks\n", checks);
	return 0;
}
