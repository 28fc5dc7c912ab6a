/*
 * What the calls about memory answer: regions of all kinds and their changes, memory windows, advice, device memory, imports, and
 * allocators of the program for rings. One
 * process, with itself; on a device
 * that attributes connect, two queue pairs show what a key opens.
 *
 * usage: memory ADDRESS
 *
 * Built against the distribution's headers. Prints the number of checks.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 8192 };

#include "check.h"
#include "pair.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_device_attr_ex device;
static struct ibv_cq *cq;
static struct ibv_qp *qp, *peer;
static struct ibv_mr *mine;
static uint8_t bytes[LENGTH], own[LENGTH];

static void setup(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 }, .sq_sig_all = 1 };

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context && (pd = ibv_alloc_pd(context)));
	ibv_free_device_list(list);
	RETURNS(0, ibv_query_device_ex(context, NULL, &device));
	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	CHECK(cq);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(pd, &init);
	peer = ibv_create_qp(pd, &init);
	mine = ibv_reg_mr(pd, own, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	CHECK(qp && peer && mine);
}

/* Connects the two queue pairs, from the start, where attributes can. */
static int connect_both(const char *address)
{
	return connect_pair(context, qp, peer, address);
}

static enum ibv_wc_status operation(enum ibv_wr_opcode opcode, uint64_t address, uint32_t key, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)own, length, mine->lkey };
	struct ibv_send_wr wr = {
		.opcode = opcode, .sg_list = &sge, .num_sge = 1, .wr.rdma = { address, key },
	}, *bad;

	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	return completion(cq).status;
}

/* IB-MR-1 */
static void changes(const char *address)
{
	struct ibv_pd *second = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE);
	uint32_t key = mr ? mr->rkey : 0;

	CHECK(second && mr);
	RETURNS(0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL));
	CHECK(mr->rkey == key && mr->addr == bytes && mr->length == LENGTH && mr->pd == pd);
	RETURNS(0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, second, NULL, 0, 0));
	CHECK(mr->pd == second);
	RETURNS(EBUSY, ibv_dealloc_pd(second));
	errno = 0;
	RETURNS(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0));
	CHECK(errno == EINVAL && mr->pd == second);
	RETURNS(IBV_REREG_MR_ERR_CMD, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE));
	CHECK(errno == EINVAL);
	if (connect_both(address)) {
		CHECK(operation(IBV_WR_RDMA_READ, (uintptr_t)bytes, key, 8) == IBV_WC_REM_ACCESS_ERR);
		RETURNS(0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0));
		connect_both(address);
		CHECK(operation(IBV_WR_RDMA_READ, (uintptr_t)bytes, key, 8) == IBV_WC_SUCCESS);
	} else {
		RETURNS(0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, 0));
	}
	RETURNS(0, ibv_dealloc_pd(second));
	RETURNS(0, ibv_dereg_mr(mr));
}

/* IB-MW-10, IB-MW-11, IB-MW-12 */
static void windows(const char *address)
{
	struct ibv_pd *second = ibv_alloc_pd(context);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mr *foreign = ibv_reg_mr(second, bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	struct ibv_mw_bind bind = {
		.wr_id = 5, .send_flags = IBV_SEND_SIGNALED, .bind_info = { mr, (uintptr_t)bytes + 16, 64, IBV_ACCESS_REMOTE_WRITE },
	};
	struct ibv_send_wr wr = { .wr_id = 6, .opcode = IBV_WR_BIND_MW, .bind_mw.bind_info = bind.bind_info }, *bad;
	uint32_t key;
	struct ibv_wc wc;

	CHECK(device.orig_attr.max_mw > 0);
	CHECK(device.orig_attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW);
	CHECK(device.orig_attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B);
	CHECK(one && two && one->pd == pd && one->context == context && one->type == IBV_MW_TYPE_1 && one->rkey != two->rkey);
	NO_OBJECT(EINVAL, ibv_alloc_mw(pd, 3));
	CHECK(second && mr && foreign);
	/* Each type has its way. */
	RETURNS(EINVAL, ibv_bind_mw(qp, two, &bind));
	if (!connect_both(address))
		goto end;
	wr.bind_mw.mw = one;
	wr.bind_mw.rkey = ibv_inc_rkey(one->rkey);
	RETURNS(EINVAL, ibv_post_send(peer, &wr, &bad));
	CHECK(bad == &wr);
	key = one->rkey;
	bind.bind_info.mr = foreign;
	RETURNS(EPERM, ibv_bind_mw(peer, one, &bind));
	bind.bind_info.mr = NULL;
	RETURNS(EINVAL, ibv_bind_mw(peer, one, &bind));
	CHECK(one->rkey == key);
	bind.bind_info.mr = mr;
	RETURNS(0, ibv_bind_mw(peer, one, &bind));
	CHECK(one->rkey == ibv_inc_rkey(key));
	wc = completion(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 5);
	RETURNS(EBUSY, ibv_dereg_mr(mr));
	memset(own, 7, LENGTH);
	memset(bytes, 0, LENGTH);
	CHECK(operation(IBV_WR_RDMA_WRITE, (uintptr_t)bytes + 16, one->rkey, 64) == IBV_WC_SUCCESS);
	CHECK(bytes[15] == 0 && bytes[16] == 7 && bytes[79] == 7 && bytes[80] == 0);
	CHECK(operation(IBV_WR_RDMA_READ, (uintptr_t)bytes + 16, one->rkey, 64) == IBV_WC_REM_ACCESS_ERR);

	/* Without a region and without bytes: nothing. */
	connect_both(address);
	key = one->rkey;
	bind.bind_info = (struct ibv_mw_bind_info){};
	RETURNS(0, ibv_bind_mw(peer, one, &bind));
	CHECK(completion(cq).status == IBV_WC_SUCCESS);
	CHECK(operation(IBV_WR_RDMA_WRITE, (uintptr_t)bytes + 16, key, 8) == IBV_WC_REM_ACCESS_ERR);

	connect_both(address);
	wr.bind_mw.mw = two;
	wr.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	wr.bind_mw.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	RETURNS(0, ibv_post_send(peer, &wr, &bad));
	wc = completion(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 6);
	memset(bytes, 0, LENGTH);
	CHECK(operation(IBV_WR_RDMA_WRITE, 8, wr.bind_mw.rkey, 8) == IBV_WC_SUCCESS);
	CHECK(bytes[23] == 0 && bytes[24] == 7 && bytes[31] == 7 && bytes[32] == 0);
	RETURNS(EBUSY, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dealloc_mw(two));
	CHECK(operation(IBV_WR_RDMA_WRITE, 8, wr.bind_mw.rkey, 8) == IBV_WC_REM_ACCESS_ERR);

	/* A bind that fails, and what follows it. */
	connect_both(address);
	two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(two);
	wr.bind_mw.mw = two;
	wr.bind_mw.rkey = ibv_inc_rkey(two->rkey);
	wr.bind_mw.bind_info.length = LENGTH;
	RETURNS(0, ibv_post_send(peer, &wr, &bad));
	CHECK(completion(cq).status == IBV_WC_MW_BIND_ERR);
	RETURNS(0, ibv_post_send(peer, &wr, &bad));
	CHECK(completion(cq).status == IBV_WC_WR_FLUSH_ERR);
end:
	RETURNS(0, ibv_dereg_mr(foreign));
	RETURNS(0, ibv_dealloc_pd(second));
	RETURNS(EBUSY, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_dealloc_mw(one));
	RETURNS(0, ibv_dealloc_mw(two));
	RETURNS(0, ibv_dereg_mr(mr));
}

static void paging(const char *address)
{
	uint8_t *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, pages, 3 * 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND);
	struct ibv_mr *constant = ibv_reg_mr(pd, bytes, LENGTH, 0);
	struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, ALL | IBV_ACCESS_ON_DEMAND);
	struct ibv_pd *second = ibv_alloc_pd(context);
	struct ibv_sge sge = { (uintptr_t)pages, 2 * 4096, mr ? mr->lkey : 0 };

	CHECK(device.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	CHECK(device.odp_caps.per_transport_caps.rc_odp_caps & IBV_ODP_SUPPORT_READ);
	CHECK(pages != MAP_FAILED && mr && constant && all && second);
	for (int flags = 0; flags <= IBV_ADVISE_MR_FLAG_FLUSH; flags++) {
		RETURNS(0, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, flags, &sge, 1));
		RETURNS(0, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, flags, &sge, 1));
		RETURNS(0, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, flags, &sge, 1));
	}
	RETURNS(EOPNOTSUPP, ibv_advise_mr(pd, 77, 0, &sge, 1));
	RETURNS(EINVAL, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 2, &sge, 1));
	RETURNS(EINVAL, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, NULL, 1));
	RETURNS(EINVAL, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0));
	RETURNS(EPERM, ibv_advise_mr(second, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
	sge.length = 3 * 4096 + 1;
	RETURNS(EFAULT, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1));
	sge = (struct ibv_sge){ (uintptr_t)bytes, 8, constant->lkey };
	RETURNS(EPERM, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1));
	munmap(pages, 3 * 4096);
	sge = (struct ibv_sge){ (uintptr_t)pages, 4096, mr->lkey };
	RETURNS(EFAULT, ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1));
	/* The whole address space is one region; what is not mapped fails the request that names it. */
	if (connect_both(address)) {
		memset(own, 9, LENGTH);
		CHECK(operation(IBV_WR_RDMA_WRITE, (uintptr_t)bytes + 5, all->rkey, 8) == IBV_WC_SUCCESS);
		CHECK(bytes[5] == 9 && bytes[12] == 9);
		CHECK(operation(IBV_WR_RDMA_WRITE, (uintptr_t)pages, all->rkey, 8) != IBV_WC_SUCCESS);
	}
	RETURNS(0, ibv_dereg_mr(all));
	RETURNS(0, ibv_dereg_mr(constant));
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dealloc_pd(second));
}

static void device_memory(const char *address)
{
	struct ibv_alloc_dm_attr attr = { .length = 1024, .log_align_req = 6 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr), *whole;
	const int access = ALL | IBV_ACCESS_ZERO_BASED;
	struct ibv_mr *mr;
	uint8_t found[16];

	CHECK(device.max_dm_size >= 1 << 16 && dm && dm->context == context);
	attr.length = device.max_dm_size;
	NO_OBJECT(ENOMEM, ibv_alloc_dm(context, &attr));
	attr.length = device.max_dm_size - 1024;
	whole = ibv_alloc_dm(context, &attr);
	CHECK(whole);
	attr.length = 4;
	NO_OBJECT(ENOMEM, ibv_alloc_dm(context, &attr));
	RETURNS(0, ibv_free_dm(whole));
	attr.length = 0;
	NO_OBJECT(EINVAL, ibv_alloc_dm(context, &attr));
	attr = (struct ibv_alloc_dm_attr){ .length = 64, .comp_mask = 1 };
	NO_OBJECT(EINVAL, ibv_alloc_dm(context, &attr));

	RETURNS(0, ibv_memcpy_to_dm(dm, 1008, "sixteen letters", 16));
	RETURNS(0, ibv_memcpy_from_dm(found, dm, 1008, 16));
	CHECK(!memcmp(found, "sixteen letters", 16));
	RETURNS(EFAULT, ibv_memcpy_to_dm(dm, 1012, found, 16));
	RETURNS(EFAULT, ibv_memcpy_from_dm(found, dm, UINT64_MAX - 3, 8));
	RETURNS(EINVAL, ibv_memcpy_to_dm(dm, 2, found, 4));
	RETURNS(EINVAL, ibv_memcpy_from_dm(found, dm, 0, 6));

	NO_OBJECT(EINVAL, ibv_reg_dm_mr(pd, dm, 0, 1024, ALL));
	NO_OBJECT(EINVAL, ibv_reg_dm_mr(pd, dm, 8, 1024, access));
	NO_OBJECT(EINVAL, ibv_reg_dm_mr(pd, dm, 0, 1024, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED));
	mr = ibv_reg_dm_mr(pd, dm, 512, 512, access);
	CHECK(mr && mr->length == 512 && mr->pd == pd);
	RETURNS(EBUSY, ibv_free_dm(dm));
	if (connect_both(address)) {
		CHECK(operation(IBV_WR_RDMA_READ, 496, mr->rkey, 16) == IBV_WC_SUCCESS);
		CHECK(!memcmp(own, "sixteen letters", 16));
		CHECK(operation(IBV_WR_RDMA_WRITE, 0, mr->rkey, 16) == IBV_WC_SUCCESS);
		RETURNS(0, ibv_memcpy_from_dm(found, dm, 512, 16));
		CHECK(!memcmp(found, "sixteen letters", 16));
		CHECK(operation(IBV_WR_RDMA_READ, 504, mr->rkey, 16) == IBV_WC_REM_ACCESS_ERR);
	}
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_free_dm(dm));
}

/* A second context for the descriptor of the first, and what it can use. */
static void imports(const char *address)
{
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr), *same_dm;
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, LENGTH, ALL), *same;
	int descriptor = dup(context->cmd_fd);
	struct ibv_context *second;
	struct ibv_pd *domain;
	uint32_t word = 0;
	struct ibv_qp *old = qp;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 }, .sq_sig_all = 1 };
	struct ibv_cq *queue, *old_cq = cq;
	struct stat before, after;

	CHECK(dm && mr && descriptor >= 0);
	NO_OBJECT(EINVAL, ibv_import_device(0));
	NO_OBJECT(EINVAL, ibv_import_device(-1));
	second = ibv_import_device(descriptor);
	CHECK(second && second != context && second->cmd_fd == descriptor && second->device == context->device);
	NO_OBJECT(ENOENT, ibv_import_pd(second, pd->handle + 1000000));
	domain = ibv_import_pd(second, pd->handle);
	CHECK(domain && domain->context == second && domain->handle == pd->handle);
	NO_OBJECT(ENOENT, ibv_import_mr(domain, mr->handle + 256));
	same = ibv_import_mr(domain, mr->handle);
	CHECK(same && same->lkey == mr->lkey && same->rkey == mr->rkey && same->length == LENGTH && same->pd == domain);
	RETURNS(EINVAL, ibv_dereg_mr(same));
	NO_OBJECT(ENOENT, ibv_import_dm(second, dm->handle + 1000000));
	same_dm = ibv_import_dm(second, dm->handle);
	CHECK(same_dm && same_dm->context == second);
	RETURNS(0, ibv_memcpy_to_dm(dm, 8, "word", 4));
	RETURNS(0, ibv_memcpy_from_dm(&word, same_dm, 8, 4));
	CHECK(!memcmp(&word, "word", 4));
	ibv_unimport_dm(same_dm);

	/* A queue pair of the second context works with the memory of the first. */
	queue = ibv_create_cq(second, 16, NULL, NULL, 0);
	init.send_cq = init.recv_cq = queue;
	qp = ibv_create_qp(domain, &init);
	CHECK(queue && qp && qp->context == second);
	cq = queue;
	RETURNS(EBUSY, ibv_dealloc_pd(domain));
	if (connect_both(address)) {
		memset(own, 3, LENGTH);
		CHECK(operation(IBV_WR_RDMA_WRITE, (uintptr_t)bytes, mr->rkey, 16) == IBV_WC_SUCCESS && bytes[15] == 3);
	}
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_cq(queue));
	qp = old;
	cq = old_cq;
	ibv_unimport_mr(same);
	ibv_unimport_pd(domain);
	RETURNS(0, fstat(descriptor, &before));
	RETURNS(0, ibv_close_device(second));
	/* Another thread may have opened something else under the same number. */
	CHECK(fstat(descriptor, &after) || before.st_ino != after.st_ino || before.st_dev != after.st_dev);
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_free_dm(dm));
}

static void null_region(const char *address)
{
	struct ibv_mr *null = ibv_alloc_null_mr(pd), *mr = ibv_reg_mr(pd, bytes, LENGTH, ALL), *real = mine;

	CHECK(null && mr && null->pd == pd);
	RETURNS(IBV_REREG_MR_ERR_CMD, ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL));
	if (connect_both(address)) {
		/* Whatever address: zeros come out of it, and what goes in is gone. */
		memset(own, 5, LENGTH);
		memset(bytes, 6, LENGTH);
		mine = null;
		CHECK(operation(IBV_WR_RDMA_READ, (uintptr_t)bytes, mr->rkey, LENGTH) == IBV_WC_SUCCESS);
		CHECK(operation(IBV_WR_RDMA_WRITE, (uintptr_t)bytes, mr->rkey, LENGTH / 2) == IBV_WC_SUCCESS);
		mine = real;
		CHECK(own[0] == 5 && own[LENGTH - 1] == 5 && bytes[0] == 0 && bytes[LENGTH / 2 - 1] == 0 && bytes[LENGTH / 2] == 6);
		CHECK(operation(IBV_WR_RDMA_READ, 0, null->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	}
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dereg_mr(null));
}

/* Memory behind a descriptor. */
static void descriptors(const char *address)
{
	int descriptor = memfd_create("buffer", 0);
	struct ibv_mr *mr;
	uint8_t found[8] = {};
	int ends[2];

	CHECK(descriptor >= 0 && ftruncate(descriptor, 3 * 4096) == 0);
	/* PRACTICE-CALL-3: the first is what programs ask with whether the device takes memory of GPUs. */
	NO_OBJECT(EOPNOTSUPP, ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0));
	NO_OBJECT(EOPNOTSUPP, ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 9999, ALL));
	RETURNS(0, pipe(ends));
	NO_OBJECT(EOPNOTSUPP, ibv_reg_dmabuf_mr(pd, 0, 4096, 0, ends[0], ALL));
	close(ends[0]);
	close(ends[1]);
	NO_OBJECT(EINVAL, ibv_reg_dmabuf_mr(pd, 4096, 2 * 4096 + 1, 0, descriptor, ALL));
	NO_OBJECT(EINVAL, ibv_reg_dmabuf_mr(pd, UINT64_MAX, 4096, 0, descriptor, ALL));
	NO_OBJECT(EINVAL, ibv_reg_dmabuf_mr(pd, 0, 0, 0, descriptor, ALL));
	NO_OBJECT(EINVAL, ibv_reg_dmabuf_mr(pd, 0, 4096, 0, descriptor, IBV_ACCESS_REMOTE_WRITE));
	mr = ibv_reg_dmabuf_mr(pd, 4100, 4096, 0x10000, descriptor, ALL);
	CHECK(mr && mr->length == 4096 && mr->addr == (void *)4100);
	if (connect_both(address)) {
		memset(own, 8, LENGTH);
		CHECK(operation(IBV_WR_RDMA_WRITE, 0x10000 + 4088, mr->rkey, 8) == IBV_WC_SUCCESS);
		CHECK(pread(descriptor, found, 8, 4100 + 4088) == 8 && found[0] == 8 && found[7] == 8);
		CHECK(operation(IBV_WR_RDMA_WRITE, 0x10000 + 4089, mr->rkey, 8) == IBV_WC_REM_ACCESS_ERR);
	}
	close(descriptor);
	RETURNS(0, ibv_dereg_mr(mr));
}

/* What an allocator has given. Each piece is a mapping of its own, so that whoever uses it too long is not forgiven. */
static struct { uint8_t *at; size_t size; uint64_t type; } given[32];
static size_t pieces, asked;
static struct ibv_pd *allocating;
static enum { PAGES, DEFAULT, NONE, ODD } answer;

static void *give(struct ibv_pd *domain, void *program, size_t size, size_t alignment, uint64_t type)
{
	size_t place = 0;

	asked++;
	CHECK(domain == allocating && program == &pieces && size && alignment && !(size % alignment) && 4096 % alignment == 0);
	if (answer == NONE)
		return NULL;
	if (answer == DEFAULT)
		return IBV_ALLOCATOR_USE_DEFAULT;
	while (given[place].at)
		place++;
	CHECK(place < 31);
	given[place].size = size;
	given[place].type = type;
	given[place].at = mmap(NULL, size + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(given[place].at != MAP_FAILED);
	memset(given[place].at, 0xff, size);
	pieces++;
	return given[place].at + (answer == ODD);
}

static void take(struct ibv_pd *domain, void *program, void *at, uint64_t type)
{
	size_t place = 0;

	CHECK(domain == allocating && program == &pieces);
	while (given[place].at != (uint8_t *)at - (answer == ODD))
		CHECK(++place < 32);
	CHECK(given[place].type == type);
	RETURNS(0, munmap(given[place].at, given[place].size + 4096));
	given[place].at = NULL;
	pieces--;
}

/* Whether a number stands in what was given for such objects. */
static int is_given(uint64_t number, uint64_t type)
{
	for (size_t place = 0; place < 32; place++)
		for (size_t word = 0; given[place].at && given[place].type == type && word < given[place].size / 8; word++)
			if (((uint64_t *)given[place].at)[word] == number)
				return 1;
	return 0;
}

/* The rings of queues in a parent domain lie in memory of the program, which has it back when they are destroyed. */
static void allocators(const char *address)
{
	enum { QP = 1, SRQ = 4, CQ = 5 };
	struct ibv_parent_domain_init_attr attr = {
		.pd = pd, .alloc = give, .free = take, .pd_context = &pieces,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
	};
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 2, 2, 64 }, .sq_sig_all = 1 };
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr more = { .max_wr = 64 };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	struct ibv_cq_init_attr_ex cq_init = {
		.cqe = 32, .wc_flags = IBV_WC_STANDARD_FLAGS, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = parent,
	};
	struct ibv_sge sge = { (uintptr_t)own, 8, mine->lkey };
	struct ibv_recv_wr receive = { .wr_id = 0x1122334455667788, .sg_list = &sge, .num_sge = 1 }, *bad_receive;
	struct ibv_send_wr send = { .wr_id = 0x8877665544332211, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_qp *old_qp = qp, *old_peer = peer;
	struct ibv_cq *old_cq = cq;
	struct ibv_qp_attr begin = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_srq *srq;
	size_t before;

	allocating = parent;
	CHECK(parent && parent->handle == pd->handle);
	cq_init.parent_domain = pd;
	NO_OBJECT(EINVAL, ibv_create_cq_ex(context, &cq_init));
	cq_init.parent_domain = parent;
	answer = NONE;
	NO_OBJECT(ENOMEM, ibv_create_cq_ex(context, &cq_init));
	init.send_cq = init.recv_cq = cq;
	NO_OBJECT(ENOMEM, ibv_create_qp(parent, &init));
	NO_OBJECT(ENOMEM, ibv_create_srq(parent, &srq_init));
	answer = ODD;
	NO_OBJECT(ENOMEM, ibv_create_qp(parent, &init));
	CHECK(pieces == 0 && asked >= 4);
	answer = DEFAULT;
	qp = ibv_create_qp(parent, &init);
	CHECK(qp && pieces == 0);
	RETURNS(0, ibv_destroy_qp(qp));

	answer = PAGES;
	cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &cq_init));
	CHECK(cq && pieces == 1);
	RETURNS(0, ibv_resize_cq(cq, 100));
	CHECK(pieces == 1);
	init.send_cq = init.recv_cq = cq;
	qp = ibv_create_qp(parent, &init);
	before = pieces;
	peer = ibv_create_qp(parent, &init);
	CHECK(qp && peer && before > 1 && pieces == 2 * before - 1);
	RETURNS(EBUSY, ibv_dealloc_pd(parent));
	if (connect_both(address)) {
		RETURNS(0, ibv_post_recv(peer, &receive, &bad_receive));
		CHECK(is_given(receive.wr_id, QP) && !is_given(receive.wr_id, CQ));
		RETURNS(0, ibv_post_send(qp, &send, &bad_send));
		for (int i = 0; i < 2; i++) {
			struct ibv_wc wc = completion(cq);
			CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id == send.wr_id || wc.wr_id == receive.wr_id));
		}
		CHECK(is_given(send.wr_id, QP) && is_given(send.wr_id, CQ) && is_given(receive.wr_id, CQ));
		CHECK(operation(IBV_WR_RDMA_READ, sge.addr, mine->lkey, 8) == IBV_WC_REM_ACCESS_ERR);
		connect_both(address);
		/* Destroyed with requests under way that nobody answers, and with receives. */
		RETURNS(0, ibv_post_recv(qp, &receive, &bad_receive));
		RETURNS(0, ibv_destroy_qp(peer));
		for (int i = 0; i < 8; i++)
			RETURNS(0, ibv_post_send(qp, &send, &bad_send));
	} else {
		RETURNS(0, ibv_modify_qp(qp, &begin, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
		RETURNS(0, ibv_post_recv(qp, &receive, &bad_receive));
		CHECK(is_given(receive.wr_id, QP));
		RETURNS(0, ibv_destroy_qp(peer));
	}
	CHECK(pieces == before);
	RETURNS(0, ibv_destroy_qp(qp));
	CHECK(pieces == 1);

	if (device.orig_attr.max_srq) {
		srq = ibv_create_srq(parent, &srq_init);
		CHECK(srq && pieces > 1);
		RETURNS(0, ibv_post_srq_recv(srq, &receive, &bad_receive));
		CHECK(is_given(receive.wr_id, SRQ));
		before = pieces;
		answer = NONE;
		RETURNS(ENOMEM, ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR));
		CHECK(pieces == before);
		answer = PAGES;
		RETURNS(0, ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR));
		CHECK(pieces > before);
		init.srq = srq;
		qp = ibv_create_qp(parent, &init);
		peer = ibv_create_qp(parent, &init);
		CHECK(qp && peer);
		if (connect_both(address)) {
			RETURNS(0, ibv_post_send(qp, &send, &bad_send));
			for (int i = 0; i < 2; i++)
				CHECK(completion(cq).status == IBV_WC_SUCCESS);
		}
		RETURNS(0, ibv_destroy_qp(qp));
		RETURNS(0, ibv_destroy_qp(peer));
		RETURNS(0, ibv_destroy_srq(srq));
	}
	CHECK(pieces == 1);
	RETURNS(0, ibv_destroy_cq(cq));
	CHECK(pieces == 0);
	RETURNS(0, ibv_dealloc_pd(parent));

	/* One without the other is none. */
	attr.free = NULL;
	asked = 0;
	allocating = parent = ibv_alloc_parent_domain(context, &attr);
	init.send_cq = init.recv_cq = old_cq;
	init.srq = NULL;
	qp = ibv_create_qp(parent, &init);
	CHECK(parent && qp && !asked);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_dealloc_pd(parent));
	qp = old_qp;
	peer = old_peer;
	cq = old_cq;
}

/* Parent domains are there as long as their queues, whoever gave the memory, and do not keep each other. */
static void domains(void)
{
	struct ibv_td_init_attr td_init = { .comp_mask = 1 };
	struct ibv_pd *root = ibv_alloc_pd(context), *first, *second;
	struct ibv_parent_domain_init_attr attr = { .pd = root };
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 4, 4, 1, 1, 0 }, .send_cq = cq, .recv_cq = cq };
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 4, .wc_flags = IBV_WC_STANDARD_FLAGS, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD };
	struct ibv_context *other = ibv_open_device(context->device);
	struct ibv_qp *pair;
	struct ibv_srq *srq;
	struct ibv_cq_ex *queue;
	int status;
	pid_t child;

	CHECK(root && other);
	NO_OBJECT(EINVAL, ibv_alloc_td(context, &td_init));
	td_init.comp_mask = 0;
	attr.td = ibv_alloc_td(context, &td_init);
	NO_OBJECT(EINVAL, ibv_alloc_parent_domain(other, &attr));
	attr.comp_mask = 1 << 2;
	NO_OBJECT(EOPNOTSUPP, ibv_alloc_parent_domain(context, &attr));
	attr.comp_mask = 0;

	first = ibv_alloc_parent_domain(context, &attr);
	attr.pd = first;
	second = ibv_alloc_parent_domain(context, &attr);
	CHECK(attr.td && first && second && second->handle == root->handle);
	RETURNS(0, ibv_dealloc_pd(first));
	/* In the place of the first, if something is written there. */
	first = ibv_alloc_pd(context);
	CHECK(first);
	RETURNS(EBUSY, ibv_dealloc_pd(root));
	RETURNS(EBUSY, ibv_dealloc_td(attr.td));
	pair = ibv_create_qp(second, &init);
	CHECK(pair && pair->pd == second);
	RETURNS(EBUSY, ibv_dealloc_pd(second));
	RETURNS(0, ibv_destroy_qp(pair));
	if (device.orig_attr.max_srq) {
		srq = ibv_create_srq(second, &srq_init);
		CHECK(srq);
		RETURNS(EBUSY, ibv_dealloc_pd(second));
		RETURNS(0, ibv_destroy_srq(srq));
	}
	cq_init.parent_domain = second;
	queue = ibv_create_cq_ex(context, &cq_init);
	CHECK(queue);
	RETURNS(EBUSY, ibv_dealloc_pd(second));
	RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(queue)));
	/* No domain is refused in a child, so the order is its own. */
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		if (ibv_dealloc_pd(root) || ibv_dealloc_pd(second) || ibv_dealloc_td(attr.td))
			_exit(1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	RETURNS(0, ibv_dealloc_pd(second));
	RETURNS(0, ibv_dealloc_td(attr.td));
	RETURNS(0, ibv_dealloc_pd(root));
	RETURNS(0, ibv_dealloc_pd(first));
	RETURNS(0, ibv_close_device(other));
}

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	alarm(60);
	setup();
	changes(argv[1]);
	windows(argv[1]);
	paging(argv[1]);
	device_memory(argv[1]);
	imports(argv[1]);
	null_region(argv[1]);
	descriptors(argv[1]);
	allocators(argv[1]);
	domains();
	RETURNS(0, ibv_dereg_mr(mine));
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_qp(peer));
	RETURNS(0, ibv_destroy_cq(cq));
	RETURNS(0, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_close_device(context));
	printf("%d checks\n", checks);
	return 0;
}
