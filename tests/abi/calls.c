/*
 * What single calls of libibverbs and librdmacm answer: to good arguments, to bad ones, to null and foreign handles, for
 * what the device does not have, after fork, and to a cancelled thread. No peer is needed. Prints the number of checks.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static struct ibv_context *context;
static struct ibv_pd *pd;

static struct ibv_qp_init_attr small_pair(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr attr = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	return attr;
}

static void versions(void)
{
	static const char *const names[] = {
		"ibv_get_device_list", "ibv_open_device", "ibv_reg_mr", "ibv_create_cq", "ibv_create_qp", "ibv_modify_qp",
		"ibv_query_port", "ibv_event_type_str", "ibv_fork_init",
	};
	void *library = dlopen("libibverbs.so", RTLD_NOW);
	struct ibv_device **(*old_list)(int *);
	int count = 7;

	CHECK(library);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		CHECK(dlvsym(library, names[i], "IBVERBS_1.1"));
	CHECK(dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.8"));
	CHECK(!dlvsym(library, "ibv_reg_mr_iova2", "IBVERBS_1.1"));
	/* What the providers of Ubuntu 20.04, Debian 11 and newer distributions are linked with. */
	CHECK(dlvsym(library, "verbs_register_driver_25", "IBVERBS_PRIVATE_25"));
	CHECK(dlvsym(library, "ibv_cmd_query_device_ex", "IBVERBS_PRIVATE_25"));
	CHECK(dlvsym(library, "verbs_register_driver_33", "IBVERBS_PRIVATE_33"));
	CHECK(dlvsym(library, "ibv_cmd_create_qp_ex", "IBVERBS_PRIVATE_33"));
	CHECK(dlvsym(library, "verbs_register_driver_34", "IBVERBS_PRIVATE_34"));
	CHECK(dlvsym(library, "ibv_query_gid_type", "IBVERBS_PRIVATE_65"));
	old_list = (struct ibv_device **(*)(int *))dlvsym(library, "ibv_get_device_list", "IBVERBS_1.0");
	CHECK(old_list);
	NO_OBJECT(ENOSYS, old_list(&count));
	CHECK(count == 0);
}

static void devices(void)
{
	int count;
	struct ibv_device **list = ibv_get_device_list(&count), *device;
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex extended;

	CHECK(list && count == 1 && list[1] == NULL);
	device = list[0];
	CHECK(!strcmp(ibv_get_device_name(device), "iwarp0") && !strcmp(device->name, "iwarp0"));
	CHECK(device->node_type == IBV_NODE_RNIC && device->transport_type == IBV_TRANSPORT_IWARP);
	CHECK(ibv_get_device_guid(device) != 0);
	CHECK(ibv_get_device_index(device) == -1);
	context = ibv_open_device(device);
	CHECK(context && context->device == device && context->async_fd >= 0 && context->num_comp_vectors >= 1);
	ibv_free_device_list(list);
	CHECK(!strcmp(ibv_get_device_name(context->device), "iwarp0"));
	RETURNS(0, ibv_query_device(context, &attr));
	CHECK(attr.phys_port_cnt == 1 && attr.max_qp > 0 && attr.max_qp_wr >= 16 && attr.max_sge >= 4 && attr.max_mr > 0);
	CHECK(attr.node_guid == ibv_get_device_guid(context->device));
	RETURNS(0, ibv_query_device_ex(context, NULL, &extended));
	CHECK(!memcmp(&extended.orig_attr, &attr, sizeof(attr)));
	RETURNS(EINVAL, ibv_query_device(context, NULL));
	RETURNS(EINVAL, ibv_query_device(NULL, &attr));
	NO_OBJECT(EINVAL, ibv_open_device(NULL));
	/* PRACTICE-CALL-2: of a copy, behind which nothing else of the device's lies. */
	struct ibv_device *copy = malloc(sizeof(*copy)), other;
	struct ibv_context *again;
	memcpy(copy, device, sizeof(*copy));
	CHECK(!strcmp(ibv_get_device_name(copy), device->name) && ibv_get_device_guid(copy) == ibv_get_device_guid(device));
	CHECK(ibv_get_device_index(copy) == ibv_get_device_index(device) && copy->node_type == device->node_type);
	again = ibv_open_device(copy);
	CHECK(again && again->device == device);
	RETURNS(0, ibv_close_device(again));
	memcpy(&other, copy, sizeof(other));
	free(copy);
	strcpy(other.name, "nobody0");
	CHECK(ibv_get_device_name(&other) == other.name && ibv_get_device_guid(&other) == 0);
	NO_OBJECT(EINVAL, ibv_open_device(&other));
	CHECK(ibv_get_device_name(NULL) == NULL && ibv_get_device_guid(NULL) == 0);
}

#undef ibv_query_port
static void ports(void)
{
	struct { struct ibv_port_attr attr; uint8_t behind[64]; } port;
	struct ibv_gid_entry entries[64];
	union ibv_gid gid;
	__be16 pkey;

	memset(&port, 0x55, sizeof(port));
	RETURNS(0, ___ibv_query_port(context, 1, &port.attr));
	CHECK(port.attr.state == IBV_PORT_ACTIVE && port.attr.link_layer == IBV_LINK_LAYER_ETHERNET);
	CHECK(port.behind[0] == 0x55);
	/* The exported function of that name knows the structure of older headers only. */
	memset(&port, 0x55, sizeof(port));
	RETURNS(0, ibv_query_port(context, 1, (struct _compat_ibv_port_attr *)&port.attr));
	CHECK(port.attr.state == IBV_PORT_ACTIVE && port.attr.port_cap_flags2 == 0x5555);
	RETURNS(EINVAL, ___ibv_query_port(context, 2, &port.attr));
	RETURNS(EINVAL, ___ibv_query_port(context, 0, &port.attr));
	FAILS(EINVAL, ibv_query_gid(context, 1, 100000, &gid));
	FAILS(EINVAL, ibv_query_gid(context, 1, -1, &gid));
	FAILS(EINVAL, ibv_query_gid(context, 3, 0, &gid));
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	CHECK(ibv_query_gid_table(context, entries, 64, 0) >= 0);
	CHECK(ibv_query_gid_table(context, entries, 64, 1) == -EOPNOTSUPP);
	RETURNS(EINVAL, ibv_query_gid_ex(context, 1, 100000, entries, 0));
	CHECK(ibv_query_pkey(context, 1, 0, &pkey) == 0 && pkey == 0xffff);
	CHECK(ibv_get_pkey_index(context, 1, 0xffff) == 0);
	CHECK(ibv_get_pkey_index(context, 1, htons(0x1234)) == -1);
	FAILS(EINVAL, ibv_query_pkey(context, 1, 9999, &pkey));
}

static void memory(void)
{
	static uint8_t bytes[8192];
	struct ibv_pd *second = ibv_alloc_pd(context);
	uint8_t *hole = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr, *other;
	uint32_t key;

	CHECK(second && hole != MAP_FAILED);
	mr = ibv_reg_mr(second, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mr && mr->context == context && mr->pd == second && mr->addr == bytes && mr->length == sizeof(bytes));
	other = ibv_reg_mr_iova(second, bytes, 100, 0x1000, IBV_ACCESS_LOCAL_WRITE);
	CHECK(other && other->lkey != mr->lkey);
	RETURNS(EBUSY, ibv_dealloc_pd(second));
	RETURNS(0, ibv_dereg_mr(other));
	key = mr->rkey;
	RETURNS(0, ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, bytes + 4096, 4096, 0));
	CHECK(mr->addr == bytes + 4096 && mr->length == 4096 && mr->rkey == key);
	errno = 0;
	RETURNS(IBV_REREG_MR_ERR_INPUT, ibv_rereg_mr(mr, 1 << 9, NULL, NULL, 0, 0));
	CHECK(errno == EINVAL);
	RETURNS(0, ibv_dereg_mr(mr));
	NO_OBJECT(EINVAL, ibv_reg_mr(second, bytes, 0, IBV_ACCESS_LOCAL_WRITE));
	NO_OBJECT(EINVAL, ibv_reg_mr(second, bytes, 100, IBV_ACCESS_REMOTE_WRITE));
	NO_OBJECT(EINVAL, ibv_reg_mr(second, (void *)-4096L, 8192, IBV_ACCESS_LOCAL_WRITE));
	NO_OBJECT(EINVAL, ibv_reg_mr(NULL, bytes, 100, IBV_ACCESS_LOCAL_WRITE));
	munmap(hole, 65536);
	NO_OBJECT(EFAULT, ibv_reg_mr(second, hole, 65536, IBV_ACCESS_LOCAL_WRITE));
	/* A relaxed ordering flag is optional: it may be ignored, not refused. */
	mr = ibv_reg_mr(second, bytes, 100, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING);
	CHECK(mr);
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dealloc_pd(second));
	RETURNS(EINVAL, ibv_dealloc_pd(NULL));
	RETURNS(EINVAL, ibv_dereg_mr(NULL));
}

static void queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 10, &checks, channel, 0);
	struct ibv_modify_cq_attr moderation = { IBV_CQ_ATTR_MODERATE, { .cq_count = 5, .cq_period = 100 } };
	struct ibv_qp_init_attr attr = small_pair(cq), found_init;
	struct ibv_qp_attr change = { .qp_state = IBV_QPS_INIT, .port_num = 1 }, found;
	struct ibv_sge sge = { 0 };
	struct ibv_send_wr send[2] = { { .next = &send[1], .sg_list = &sge, .opcode = IBV_WR_SEND }, { .opcode = IBV_WR_SEND } };
	struct ibv_send_wr *bad_send = NULL;
	struct ibv_recv_wr receive = { .wr_id = 5 }, *bad_receive = NULL;
	struct ibv_qp *qp;
	struct ibv_cq *event_cq;
	struct ibv_wc wc[4];
	void *event_context;

	CHECK(channel && cq && cq->channel == channel && cq->cq_context == &checks && cq->cqe >= 10);
	NO_OBJECT(EINVAL, ibv_create_cq(context, 0, NULL, NULL, 0));
	NO_OBJECT(EINVAL, ibv_create_cq(context, -1, NULL, NULL, 0));
	NO_OBJECT(EINVAL, ibv_create_cq(context, 1 << 30, NULL, NULL, 0));
	NO_OBJECT(EINVAL, ibv_create_cq(context, 10, NULL, NULL, 99));
	NO_OBJECT(EINVAL, ibv_create_cq(NULL, 10, NULL, NULL, 0));
	RETURNS(EBUSY, ibv_destroy_comp_channel(channel));
	RETURNS(0, ibv_resize_cq(cq, 100));
	CHECK(cq->cqe >= 100);
	RETURNS(EINVAL, ibv_resize_cq(cq, 0));
	RETURNS(0, ibv_modify_cq(cq, &moderation));
	moderation.moderate = (struct ibv_moderate_cq){};
	RETURNS(0, ibv_modify_cq(cq, &moderation));
	moderation.attr_mask = 2;
	RETURNS(EOPNOTSUPP, ibv_modify_cq(cq, &moderation));
	qp = ibv_create_qp(pd, &attr);
	CHECK(qp && qp->state == IBV_QPS_RESET && qp->pd == pd && qp->send_cq == cq && attr.cap.max_send_wr >= 4);
	CHECK(ibv_qp_to_qp_ex(qp) == NULL);
	RETURNS(EBUSY, ibv_destroy_cq(cq));
	RETURNS(EINVAL, ibv_post_send(qp, send, &bad_send));
	/* IB-QP-28 */
	CHECK(bad_send == send);
	RETURNS(EINVAL, ibv_post_recv(qp, &receive, &bad_receive));
	CHECK(bad_receive == &receive);
	change.qp_state = IBV_QPS_RTS;
	RETURNS(EINVAL, ibv_modify_qp(qp, &change, IBV_QP_STATE));
	change.qp_state = IBV_QPS_INIT;
	RETURNS(EINVAL, ibv_modify_qp(qp, &change, IBV_QP_STATE | 1 << 30));
	RETURNS(0, ibv_modify_qp(qp, &change, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	CHECK(qp->state == IBV_QPS_INIT);
	RETURNS(0, ibv_query_qp(qp, &found, IBV_QP_STATE, &found_init));
	CHECK(found.qp_state == IBV_QPS_INIT && found_init.send_cq == cq && found_init.cap.max_send_wr == attr.cap.max_send_wr);

	/* In error a receive comes back flushed at once, and the armed queue says so. */
	CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	FAILS(EAGAIN, ibv_get_cq_event(channel, &event_cq, &event_context));
	RETURNS(0, ibv_req_notify_cq(cq, 0));
	change.qp_state = IBV_QPS_ERR;
	RETURNS(0, ibv_modify_qp(qp, &change, IBV_QP_STATE));
	RETURNS(0, ibv_post_recv(qp, &receive, &bad_receive));
	CHECK(ibv_get_cq_event(channel, &event_cq, &event_context) == 0);
	CHECK(event_cq == cq && event_context == &checks);
	CHECK(ibv_poll_cq(cq, 4, wc) == 1);
	CHECK(wc[0].wr_id == 5 && wc[0].status == IBV_WC_WR_FLUSH_ERR && wc[0].qp_num == qp->qp_num);
	CHECK(ibv_poll_cq(cq, 4, wc) == 0);
	CHECK(ibv_poll_cq(cq, -1, wc) < 0);
	ibv_ack_cq_events(cq, 1);
	RETURNS(0, ibv_destroy_qp(qp));

	attr = small_pair(cq);
	attr.cap.max_send_wr = 1 << 30;
	NO_OBJECT(EINVAL, ibv_create_qp(pd, &attr));
	attr = small_pair(cq);
	attr.cap.max_recv_sge = 1 << 20;
	NO_OBJECT(EINVAL, ibv_create_qp(pd, &attr));
	attr = small_pair(cq);
	attr.qp_type = IBV_QPT_UD;
	NO_OBJECT(EOPNOTSUPP, ibv_create_qp(pd, &attr));
	attr = small_pair(NULL);
	NO_OBJECT(EINVAL, ibv_create_qp(pd, &attr));
	attr = small_pair(cq);
	NO_OBJECT(EINVAL, ibv_create_qp(NULL, &attr));
	RETURNS(0, ibv_destroy_cq(cq));
	RETURNS(0, ibv_destroy_comp_channel(channel));
}

/* Destroying an object waits for the acknowledgement of its events. */
static atomic_bool acknowledged;

static void *destroy_later(void *cq)
{
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(atomic_load(&acknowledged));
	return NULL;
}

/* IB-QP-41 */
static void events(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = small_pair(cq);
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	struct ibv_qp_attr change = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr receive = {}, *bad;
	struct ibv_async_event event;
	pthread_t thread;

	CHECK(cq && qp);
	RETURNS(0, ibv_modify_qp(qp, &change, IBV_QP_STATE));
	for (int i = 0; i <= cq->cqe; i++)
		RETURNS(0, ibv_post_recv(qp, &receive, &bad));
	CHECK(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq);
	CHECK(!strcmp(ibv_event_type_str(event.event_type), "CQ error"));
	RETURNS(0, ibv_destroy_qp(qp));
	CHECK(pthread_create(&thread, NULL, destroy_later, cq) == 0);
	atomic_store(&acknowledged, true);
	ibv_ack_async_event(&event);
	CHECK(pthread_join(thread, NULL) == 0);
}

/* Threads that wait in the library can be cancelled. */
static void *wait_for_completion(void *channel)
{
	struct ibv_cq *cq;
	void *data;

	ibv_get_cq_event(channel, &cq, &data);
	return NULL;
}

static void *wait_for_async(void *unused)
{
	struct ibv_async_event event;

	(void)unused;
	ibv_get_async_event(context, &event);
	return NULL;
}

static void *wait_for_connection(void *channel)
{
	struct rdma_cm_event *event;

	rdma_get_cm_event(channel, &event);
	return NULL;
}

static void *wait_for_poll(void *unused)
{
	int pipe_ends[2];
	struct pollfd descriptor = { .events = POLLIN };

	(void)unused;
	CHECK(pipe(pipe_ends) == 0);
	descriptor.fd = pipe_ends[0];
	rpoll(&descriptor, 1, -1);
	return NULL;
}

static void do_nothing(int signal)
{
	(void)signal;
}

static void cancellation(void)
{
	struct ibv_comp_channel *completions = ibv_create_comp_channel(context);
	struct rdma_event_channel *connections = rdma_create_event_channel();
	struct { void *(*wait)(void *); void *argument; } waits[] = {
		{ wait_for_completion, completions }, { wait_for_async, NULL }, { wait_for_connection, connections },
		{ wait_for_poll, NULL },
	};
	struct sigaction nothing = { .sa_handler = do_nothing };
	pthread_t late;
	void *result;

	CHECK(completions && connections);
	for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
		pthread_t thread;

		CHECK(pthread_create(&thread, NULL, waits[i].wait, waits[i].argument) == 0);
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0);
		CHECK(result == PTHREAD_CANCELED);
	}
	RETURNS(0, ibv_destroy_comp_channel(completions));
	rdma_destroy_event_channel(connections);
	/* rping destroys the channel while a thread of it may be about to wait there: it waits as if it had come earlier. */
	CHECK(pthread_create(&late, NULL, wait_for_connection, connections) == 0);
	CHECK(pthread_cancel(late) == 0);
	CHECK(pthread_join(late, &result) == 0);
	CHECK(result == PTHREAD_CANCELED);
	/* A signal handler ends that wait as every other one. */
	CHECK(sigaction(SIGUSR1, &nothing, NULL) == 0);
	CHECK(pthread_create(&late, NULL, wait_for_connection, connections) == 0);
	while (pthread_tryjoin_np(late, &result)) {
		pthread_kill(late, SIGUSR1);
		sched_yield();
	}
	CHECK(result == NULL);
}

static void extended(void)
{
	struct ibv_cq_init_attr_ex cq_attr = { .cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &cq_attr);
	struct ibv_poll_cq_attr poll_attr = {};
	struct ibv_qp_init_attr_ex attr = {
		.qp_type = IBV_QPT_RC, .pd = pd, .cap = { 4, 4, 1, 1, 0 },
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;

	CHECK(cq);
	attr.send_cq = attr.recv_cq = ibv_cq_ex_to_cq(cq);
	RETURNS(ENOENT, ibv_start_poll(cq, &poll_attr));
	poll_attr.comp_mask = 1;
	RETURNS(EINVAL, ibv_start_poll(cq, &poll_attr));
	qp = ibv_create_qp_ex(context, &attr);
	CHECK(qp);
	qpx = ibv_qp_to_qp_ex(qp);
	CHECK(qpx && (void *)qpx == (void *)qp);
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	RETURNS(EINVAL, ibv_wr_complete(qpx));
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_abort(qpx);
	ibv_wr_start(qpx);
	RETURNS(EINVAL, ibv_wr_complete(qpx));
	RETURNS(0, ibv_destroy_qp(qp));
	attr.send_ops_flags = IBV_QP_EX_WITH_TSO;
	NO_OBJECT(EOPNOTSUPP, ibv_create_qp_ex(context, &attr));
	attr.comp_mask |= IBV_QP_INIT_ATTR_RX_HASH;
	NO_OBJECT(EOPNOTSUPP, ibv_create_qp_ex(context, &attr));
	RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	cq_attr.wc_flags = IBV_WC_EX_WITH_CVLAN;
	NO_OBJECT(EOPNOTSUPP, ibv_create_cq_ex(context, &cq_attr));
}

static uint64_t now(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	RETURNS(0, ibv_query_rt_values_ex(context, &values));
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	return values.raw_clock.tv_nsec;
}

/* Completions that carry the time of their report, on the clock of the device and on that of the wall. */
static void clocks(void)
{
	struct ibv_cq_init_attr_ex attr = {
		.cqe = 16, .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	struct ibv_qp_init_attr pair = small_pair(cq ? ibv_cq_ex_to_cq(cq) : NULL);
	struct ibv_qp_attr change = { .qp_state = IBV_QPS_ERR };
	struct ibv_recv_wr receive = { .wr_id = 8 }, *bad;
	struct ibv_poll_cq_attr poll_attr = {};
	struct ibv_device_attr_ex device;
	struct ibv_values_ex values = { .comp_mask = ~0u };
	struct ibv_qp *qp;
	struct timespec wall;
	uint64_t before, after, stamp, wall_ns;

	RETURNS(0, ibv_query_device_ex(context, NULL, &device));
	CHECK(device.completion_timestamp_mask == UINT64_MAX && device.hca_core_clock > 0);
	RETURNS(0, ibv_query_rt_values_ex(context, &values));
	CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	CHECK(cq);
	qp = ibv_create_qp(pd, &pair);
	CHECK(qp);
	before = now();
	RETURNS(0, ibv_modify_qp(qp, &change, IBV_QP_STATE));
	RETURNS(0, ibv_post_recv(qp, &receive, &bad));
	after = now();
	CHECK(before <= after);
	RETURNS(0, ibv_start_poll(cq, &poll_attr));
	CHECK(cq->wr_id == 8 && cq->status == IBV_WC_WR_FLUSH_ERR && ibv_wc_read_qp_num(cq) == qp->qp_num);
	stamp = ibv_wc_read_completion_ts(cq);
	CHECK(before <= stamp && stamp <= after);
	clock_gettime(CLOCK_REALTIME, &wall);
	wall_ns = wall.tv_sec * 1000000000ull + wall.tv_nsec;
	CHECK(ibv_wc_read_completion_wallclock_ns(cq) <= wall_ns);
	CHECK(ibv_wc_read_completion_wallclock_ns(cq) > wall_ns - 60 * 1000000000ull);
	CHECK(ibv_wc_read_slid(cq) == 0 && ibv_wc_read_sl(cq) == 0 && ibv_wc_read_dlid_path_bits(cq) == 0);
	RETURNS(ENOENT, ibv_next_poll(cq));
	ibv_end_poll(cq);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

static void *destroy_shared_later(void *srq)
{
	CHECK(ibv_destroy_srq(srq) == 0);
	CHECK(atomic_load(&acknowledged));
	return NULL;
}

static void shared_receives(void)
{
	struct ibv_device_attr device;
	struct ibv_srq_init_attr attr = { .srq_context = &checks, .attr = { .max_wr = 5, .max_sge = 2, .srq_limit = 3 } };
	struct ibv_srq_init_attr_ex extended = {
		.attr = { .max_wr = 4, .max_sge = 1 }, .comp_mask = IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE,
		.srq_type = IBV_SRQT_BASIC, .pd = pd,
	};
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr pair = small_pair(cq), found_init;
	struct ibv_qp_attr change = { .qp_state = IBV_QPS_ERR }, found;
	struct ibv_recv_wr receives[3] = { { .wr_id = 1, .next = &receives[1] }, { .wr_id = 2, .next = &receives[2] } }, *bad;
	struct ibv_sge sges[3] = {};
	struct ibv_async_event event;
	struct ibv_srq_attr now = {};
	struct ibv_srq *srq, *other;
	struct ibv_qp *qp;
	struct ibv_wc wc;
	pthread_t thread;
	uint32_t number = 0;

	RETURNS(0, ibv_query_device(context, &device));
	CHECK(cq && device.max_srq > 0 && device.max_srq_wr >= 16 && device.max_srq_sge >= 2);
	srq = ibv_create_srq(pd, &attr);
	CHECK(srq && srq->context == context && srq->pd == pd && srq->srq_context == &checks);
	CHECK(attr.attr.max_wr >= 5 && attr.attr.max_sge >= 2);
	RETURNS(0, ibv_query_srq(srq, &now));
	CHECK(now.max_wr == attr.attr.max_wr && now.max_sge == attr.attr.max_sge && now.srq_limit == 0);
	RETURNS(0, ibv_get_srq_num(srq, &number));
	attr.attr.max_wr = 0;
	NO_OBJECT(EINVAL, ibv_create_srq(pd, &attr));
	attr.attr.max_wr = device.max_srq_wr + 1;
	NO_OBJECT(EINVAL, ibv_create_srq(pd, &attr));
	attr.attr.max_wr = 1;
	attr.attr.max_sge = device.max_srq_sge + 1;
	NO_OBJECT(EINVAL, ibv_create_srq(pd, &attr));
	NO_OBJECT(EINVAL, ibv_create_srq(NULL, &attr));
	NO_OBJECT(EINVAL, ibv_create_srq(pd, NULL));
	other = ibv_create_srq_ex(context, &extended);
	CHECK(other && other->pd == pd);
	/* IB-SRQ-6 */
	CHECK(device.device_cap_flags & IBV_DEVICE_SRQ_RESIZE);
	RETURNS(0, ibv_post_srq_recv(other, receives + 1, &bad));
	attr.attr.max_wr = 1;
	RETURNS(EINVAL, ibv_modify_srq(other, &attr.attr, IBV_SRQ_MAX_WR));
	attr.attr.max_wr = 100;
	RETURNS(EINVAL, ibv_modify_srq(other, &attr.attr, IBV_SRQ_MAX_WR | 1 << 9));
	RETURNS(0, ibv_modify_srq(other, &attr.attr, IBV_SRQ_MAX_WR));
	RETURNS(0, ibv_query_srq(other, &attr.attr));
	CHECK(attr.attr.max_wr >= 100);
	for (uint32_t i = 2; i < attr.attr.max_wr; i++)
		RETURNS(0, ibv_post_srq_recv(other, receives + 2, &bad));
	RETURNS(ENOMEM, ibv_post_srq_recv(other, receives + 2, &bad));
	RETURNS(0, ibv_destroy_srq(other));
	extended.srq_type = IBV_SRQT_XRC;
	NO_OBJECT(EOPNOTSUPP, ibv_create_srq_ex(context, &extended));

	/* A list is posted up to the first bad request. */
	receives[2].sg_list = sges;
	receives[2].num_sge = 3;
	RETURNS(EINVAL, ibv_post_srq_recv(srq, receives, &bad));
	CHECK(bad == &receives[2]);
	receives[2].num_sge = 0;
	for (uint32_t i = 2; i < now.max_wr; i++)
		RETURNS(0, ibv_post_srq_recv(srq, &receives[2], &bad));
	RETURNS(ENOMEM, ibv_post_srq_recv(srq, receives, &bad));
	CHECK(bad == receives);

	/* The limit. Too late is not too late: the event comes at once. */
	now.srq_limit = now.max_wr + 1;
	RETURNS(EINVAL, ibv_modify_srq(srq, &now, IBV_SRQ_LIMIT));
	RETURNS(EINVAL, ibv_modify_srq(srq, &now, 1 << 9));
	now.srq_limit = now.max_wr;
	RETURNS(0, ibv_modify_srq(srq, &now, IBV_SRQ_LIMIT));
	RETURNS(0, ibv_query_srq(srq, &now));
	CHECK(now.srq_limit == now.max_wr);

	/* Its queue pairs have no receive queue; in error they leave its receives alone. */
	pair.srq = srq;
	qp = ibv_create_qp(pd, &pair);
	CHECK(qp && qp->srq == srq && pair.cap.max_recv_wr == 0);
	RETURNS(0, ibv_query_qp(qp, &found, IBV_QP_STATE, &found_init));
	CHECK(found_init.srq == srq);
	RETURNS(EBUSY, ibv_destroy_srq(srq));
	RETURNS(0, ibv_modify_qp(qp, &change, IBV_QP_STATE));
	RETURNS(EINVAL, ibv_post_recv(qp, receives, &bad));
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp);
	ibv_ack_async_event(&event);
	RETURNS(0, ibv_destroy_qp(qp));
	pair.srq = (struct ibv_srq *)cq;
	NO_OBJECT(EINVAL, ibv_create_qp(pd, &pair));

	RETURNS(0, ibv_destroy_srq(srq));
	attr.attr.max_wr = attr.attr.max_sge = 1;
	srq = ibv_create_srq(pd, &attr);
	CHECK(srq);
	now.srq_limit = 1;
	RETURNS(0, ibv_modify_srq(srq, &now, IBV_SRQ_LIMIT));
	CHECK(ibv_get_async_event(context, &event) == 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	atomic_store(&acknowledged, false);
	CHECK(pthread_create(&thread, NULL, destroy_shared_later, srq) == 0);
	atomic_store(&acknowledged, true);
	ibv_ack_async_event(&event);
	CHECK(pthread_join(thread, NULL) == 0);
	RETURNS(0, ibv_destroy_cq(cq));
}

/* What the device does not have says so, and nothing crashes. */
static void unsupported(void)
{
	struct ibv_xrcd_init_attr xrcd = {};
	struct ibv_counters_init_attr counters = {};
	struct ibv_flow_attr flow = {};
	struct ibv_wq_init_attr wq = {};
	struct ibv_ah_attr ah = { .port_num = 1 };
	struct ibv_qp qp = { .context = context };
	struct ibv_td_init_attr td_attr = {};
	struct ibv_td *td = ibv_alloc_td(context, &td_attr);
	struct ibv_parent_domain_init_attr parent_attr = { .pd = pd, .td = td };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &parent_attr);
	struct ibv_parent_domain_init_attr unknown_attr = { .pd = pd, .comp_mask = 1u << 31 };

	NO_OBJECT(EOPNOTSUPP, ibv_open_xrcd(context, &xrcd));
	NO_OBJECT(EOPNOTSUPP, ibv_create_counters(context, &counters));
	NO_OBJECT(EOPNOTSUPP, ibv_create_flow(&qp, &flow));
	NO_OBJECT(EOPNOTSUPP, ibv_create_wq(context, &wq));
	NO_OBJECT(EOPNOTSUPP, ibv_create_ah(pd, &ah));
	/* PRACTICE-CALL-4 */
	NO_OBJECT(EOPNOTSUPP, ibv_alloc_parent_domain(context, &unknown_attr));
	CHECK(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
	CHECK(td && parent && parent != pd);
	RETURNS(EBUSY, ibv_dealloc_pd(pd));
	RETURNS(EBUSY, ibv_dealloc_td(td));
	RETURNS(0, ibv_dealloc_pd(parent));
	RETURNS(0, ibv_dealloc_td(td));
	CHECK(ibv_rate_to_mbps(IBV_RATE_100_GBPS) == 103125 && mbps_to_ibv_rate(2500) == IBV_RATE_2_5_GBPS);
	CHECK(!strcmp(ibv_wc_status_str(IBV_WC_REM_ACCESS_ERR), "remote access error"));
	CHECK(!strcmp(ibv_wc_status_str(999), "unknown") && !strcmp(ibv_node_type_str(-1), "unknown"));
	CHECK(!strcmp(ibv_node_type_str(IBV_NODE_RNIC), "iWARP NIC"));
}

/* Handles that are none: memory that looks like nothing of ours. */
static void foreign(void)
{
	static _Alignas(64) uint8_t zero[8192], ones[8192];

	memset(ones, 0xff, sizeof(ones));
	for (int i = 0; i < 4; i++) {
		void *none = i == 0 ? NULL : i == 1 ? zero + 4096 : i == 2 ? ones + 4096 : zero + 4097;
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT };
		struct ibv_qp_init_attr init = {};
		struct ibv_port_attr port;

		RETURNS(EINVAL, ibv_destroy_qp(none));
		RETURNS(EINVAL, ibv_modify_qp(none, &attr, IBV_QP_STATE));
		RETURNS(EINVAL, ibv_query_qp(none, &attr, 0, &init));
		RETURNS(EINVAL, ibv_destroy_cq(none));
		RETURNS(EINVAL, ibv_resize_cq(none, 5));
		RETURNS(EINVAL, ibv_dealloc_pd(none));
		RETURNS(EINVAL, ibv_dereg_mr(none));
		RETURNS(EINVAL, ibv_destroy_comp_channel(none));
		RETURNS(EINVAL, ibv_destroy_srq(none));
		RETURNS(EINVAL, ibv_modify_srq(none, NULL, 0));
		RETURNS(EINVAL, ibv_query_srq(none, NULL));
		RETURNS(EINVAL, ibv_destroy_ah(none));
		NO_OBJECT(EINVAL, ibv_create_ah(none, NULL));
		RETURNS(EINVAL, ibv_attach_mcast(none, NULL, 0));
		RETURNS(EINVAL, ibv_detach_mcast(none, NULL, 0));
		RETURNS(EINVAL, context->ops.post_srq_recv(none, NULL, NULL));
		RETURNS(EINVAL, ibv_query_port(none, 1, (void *)&port));
		NO_OBJECT(EINVAL, ibv_alloc_pd(none));
		NO_OBJECT(EINVAL, ibv_create_comp_channel(none));
		CHECK(ibv_close_device(none) == -1);
		CHECK(ibv_qp_to_qp_ex(none) == NULL);
		ibv_ack_cq_events(none, 1);
		ibv_ack_async_event(i ? NULL : none);
		RETURNS(EINVAL, context->ops.post_send(none, NULL, NULL));
		RETURNS(EINVAL, context->ops.post_recv(none, NULL, NULL));
		RETURNS(-EINVAL, context->ops.poll_cq(none, 1, NULL));
		RETURNS(EINVAL, context->ops.req_notify_cq(none, 0));
		FAILS(EINVAL, rdma_destroy_id(none));
		FAILS(EINVAL, rdma_bind_addr(none, NULL));
		FAILS(EINVAL, rdma_listen(none, 1));
		FAILS(EINVAL, rdma_connect(none, NULL));
		FAILS(EINVAL, rdma_accept(none, NULL));
		FAILS(EINVAL, rdma_reject(none, NULL, 0));
		FAILS(EINVAL, rdma_disconnect(none));
		FAILS(EINVAL, rdma_create_qp(none, NULL, &init));
		FAILS(EINVAL, rdma_ack_cm_event(none));
		rdma_destroy_qp(none);
		rdma_destroy_ep(none);
		rdma_destroy_event_channel(none);
	}
}

static void connection_manager(void)
{
	struct rdma_event_channel *channel = rdma_create_event_channel(), *second = rdma_create_event_channel();
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr odd = { .sa_family = AF_UNIX };
	struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *info;
	struct rdma_cm_id *id, *other;
	struct rdma_cm_event *event;
	struct ibv_context **list;
	int count, on = 1;
	uint8_t tos = 8;

	list = rdma_get_devices(&count);
	CHECK(list && count == 1 && list[1] == NULL);
	CHECK(channel && second && fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
	FAILS(EAGAIN, rdma_get_cm_event(channel, &event));
	FAILS(EINVAL, rdma_create_id(channel, &id, NULL, 0x9999));
	CHECK(rdma_create_id(channel, &id, &checks, RDMA_PS_TCP) == 0);
	CHECK(id->context == &checks && id->channel == channel && id->ps == RDMA_PS_TCP && id->qp_type == IBV_QPT_RC);
	FAILS(EINVAL, rdma_bind_addr(id, &odd));
	FAILS(EINVAL, rdma_resolve_addr(id, NULL, &odd, 100));
	FAILS(EINVAL, rdma_resolve_route(id, 100));
	FAILS(EINVAL, rdma_disconnect(id));
	FAILS(ENOSYS, rdma_set_option(id, 9, 9, &on, sizeof(on)));
	FAILS(EINVAL, rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &on, sizeof(on)));
	CHECK(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &tos, sizeof(tos)) == 0);
	CHECK(rdma_bind_addr(id, (struct sockaddr *)&any) == 0);
	/* As with a wildcard address, no device is known yet. */
	CHECK(!id->verbs && !id->pd && id->port_num == 0);
	CHECK(rdma_get_src_port(id) != 0);
	CHECK(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_port == rdma_get_src_port(id));
	CHECK(rdma_listen(id, 3) == 0);
	any.sin_port = rdma_get_src_port(id);
	CHECK(rdma_create_id(channel, &other, NULL, RDMA_PS_TCP) == 0);
	FAILS(EADDRINUSE, rdma_bind_addr(other, (struct sockaddr *)&any));
	CHECK(rdma_resolve_addr(other, NULL, (struct sockaddr *)&any, 1000) == 0);
	CHECK(rdma_get_cm_event(channel, &event) == 0);
	CHECK(event->id == other && event->event == RDMA_CM_EVENT_ADDR_RESOLVED && event->status == 0);
	CHECK(other->verbs == list[0] && rdma_get_dst_port(other) == any.sin_port);
	CHECK(rdma_ack_cm_event(event) == 0);
	/* An event that waits goes along to another channel. */
	CHECK(rdma_resolve_route(other, 1000) == 0);
	CHECK(rdma_migrate_id(other, second) == 0 && other->channel == second);
	FAILS(EAGAIN, rdma_get_cm_event(channel, &event));
	CHECK(rdma_get_cm_event(second, &event) == 0);
	CHECK(event->event == RDMA_CM_EVENT_ROUTE_RESOLVED && rdma_ack_cm_event(event) == 0);
	CHECK(rdma_destroy_id(other) == 0 && rdma_destroy_id(id) == 0);
	rdma_destroy_event_channel(channel);
	rdma_destroy_event_channel(second);
	rdma_free_devices(list);

	/* Without a channel each call waits for its outcome. */
	CHECK(rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) == 0);
	CHECK(id->channel && rdma_resolve_addr(id, NULL, (struct sockaddr *)&any, 1000) == 0);
	CHECK(id->event && id->event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	FAILS(EINVAL, rdma_migrate_id(id, NULL));
	CHECK(rdma_destroy_id(id) == 0);

	FAILS(EINVAL, rdma_getaddrinfo(NULL, NULL, NULL, &info));
	CHECK(rdma_getaddrinfo("127.0.0.1", "7174", &hints, &info) == 0);
	CHECK(info->ai_src_len == sizeof(any) && info->ai_qp_type == IBV_QPT_RC && !info->ai_dst_addr);
	CHECK(rdma_create_ep(&id, info, NULL, NULL) == 0);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(info);
	CHECK(!strcmp(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED"));
	CHECK(!strcmp(rdma_event_str(999), "UNKNOWN EVENT"));
}

/* The child has none of its parent's objects: they answer with an error, can be destroyed, and it may begin anew. */
static void child_of_fork(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr attr = small_pair(cq);
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	static uint8_t bytes[64];
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &shared);
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof(bytes), IBV_ACCESS_LOCAL_WRITE);
	int status;
	pid_t child;

	CHECK(cq && qp && mr && srq);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		struct ibv_recv_wr receive = {}, *bad;
		struct ibv_device **list;
		struct ibv_context *own;
		struct ibv_wc wc;

		NO_OBJECT(ENODEV, ibv_alloc_pd(context));
		CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
		RETURNS(ENODEV, ibv_post_recv(qp, &receive, &bad));
		RETURNS(ENODEV, ibv_post_srq_recv(srq, &receive, &bad));
		RETURNS(ENODEV, ibv_modify_srq(srq, &shared.attr, IBV_SRQ_LIMIT));
		NO_OBJECT(ENODEV, ibv_create_srq(pd, &shared));
		RETURNS(0, ibv_dereg_mr(mr));
		RETURNS(0, ibv_destroy_srq(srq));
		RETURNS(0, ibv_destroy_qp(qp));
		RETURNS(0, ibv_destroy_cq(cq));
		RETURNS(0, ibv_dealloc_pd(pd));
		CHECK(ibv_close_device(context) == 0);
		list = ibv_get_device_list(NULL);
		CHECK(list && list[0]);
		own = ibv_open_device(list[0]);
		CHECK(own);
		cq = ibv_create_cq(own, 4, NULL, NULL, 0);
		CHECK(cq && ibv_destroy_cq(cq) == 0 && ibv_close_device(own) == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_srq(srq));
	RETURNS(0, ibv_destroy_cq(cq));
	RETURNS(0, ibv_dereg_mr(mr));
}

int main(void)
{
	alarm(60);
	versions();
	devices();
	pd = ibv_alloc_pd(context);
	CHECK(pd && pd->context == context);
	ports();
	memory();
	queues();
	events();
	cancellation();
	extended();
	clocks();
	shared_receives();
	unsupported();
	foreign();
	connection_manager();
	child_of_fork();
	RETURNS(0, ibv_dealloc_pd(pd));
	CHECK(ibv_close_device(context) == 0);
	printf("%d checks\n", checks);
	return 0;
}
