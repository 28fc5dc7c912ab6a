/* A device that is closed right after a process of the same host has written into memory of it: everything goes, time and again.
 * Two processes; each opens the device, connects, and closes it again, so many times as the first argument says. */

#include "check.h"
#include <arpa/inet.h>
#include <dirent.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "gid.h"

enum { ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ, BYTES = 1 << 16, DESCRIPTORS = 128 };

struct side { uint32_t number, key; uint64_t address; union ibv_gid gid; };

static int descriptors(void)
{
	DIR *all = opendir("/proc/self/fd");
	int count = 0;

	CHECK(all);
	while (readdir(all))
		count++;
	closedir(all);
	return count;
}

static struct side exchange(int other, struct side mine)
{
	struct side theirs;

	CHECK(write(other, &mine, sizeof(mine)) == sizeof(mine));
	CHECK(read(other, &theirs, sizeof(theirs)) == sizeof(theirs));
	return theirs;
}

static void wait_for(int other)
{
	char byte = 1;

	CHECK(write(other, &byte, 1) == 1);
	CHECK(read(other, &byte, 1) == 1);
}

static void connect_to(struct ibv_qp *qp, struct side peer, int gid_index, enum ibv_mtu mtu)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .timeout = 14,
		.retry_cnt = 7, .rnr_retry = 7, .path_mtu = mtu, .dest_qp_num = peer.number,
		.ah_attr = { .port_num = 1, .is_global = 1, .grh = { .hop_limit = 64, .sgid_index = gid_index, .dgid = peer.gid } },
	};

	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr.qp_state = IBV_QPS_RTR;
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	attr.qp_state = IBV_QPS_RTS;
	RETURNS(0, ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

/* One life of a context: one side writes into the other's memory, and both close at once. */
static void cycle(int other, int writes)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context;
	struct ibv_port_attr port;
	struct ibv_wc wc;
	struct side mine, theirs;
	struct ibv_sge piece;
	char *memory;
	int found;

	CHECK(list && list[0]);
	context = ibv_open_device(list[0]);
	CHECK(context);
	ibv_free_device_list(list);
	RETURNS(0, ibv_query_port(context, 1, &port));
	found = own_gid(context, "127.0.0.1", &mine.gid);
	CHECK(!posix_memalign((void **)&memory, 4096, BYTES));
	memset(memory, 0, BYTES);

	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, BYTES, ALL);
	CHECK(pd && channel && cq && mr);
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	CHECK(qp);
	mine.number = qp->qp_num;
	mine.key = mr->rkey;
	mine.address = (uintptr_t)memory;
	theirs = exchange(other, mine);
	connect_to(qp, theirs, found, port.active_mtu);
	wait_for(other);
	piece = (struct ibv_sge){ .addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey };
	for (int i = 1; i <= 8; i++) {
		struct ibv_send_wr wr = {
			.wr_id = i, .sg_list = &piece, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = theirs.address, .rkey = theirs.key },
		}, *bad;

		if (writes) {
			memory[0] = i;
			RETURNS(0, ibv_post_send(qp, &wr, &bad));
			while (ibv_poll_cq(cq, 1, &wc) == 0)
				;
			CHECK(wc.status == IBV_WC_SUCCESS);
		} else {
			while (((volatile char *)memory)[0] < i)
				ibv_poll_cq(cq, 1, &wc);
		}
	}
	wait_for(other);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_cq(cq));
	RETURNS(0, ibv_destroy_comp_channel(channel));
	RETURNS(0, ibv_dereg_mr(mr));
	RETURNS(0, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_close_device(context));
	free(memory);
}

int main(int argc, char **argv)
{
	int ends[2], cycles = atoi(argv[1]), before = 0, status;
	struct rlimit limit;
	pid_t child;

	alarm(300);
	RETURNS(0, getrlimit(RLIMIT_NOFILE, &limit));
	limit.rlim_cur = DESCRIPTORS;
	RETURNS(0, setrlimit(RLIMIT_NOFILE, &limit));
	RETURNS(0, socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	child = fork();
	CHECK(child >= 0);
	close(ends[child != 0]);
	for (int i = 0; i < cycles; i++) {
		cycle(ends[child == 0], child == 0);
		if (i == 20)
			before = descriptors();
	}
	/* A thread of the engine closes some of them, a moment later where others want the processor. */
	for (int waits = 0; descriptors() > before + 16 && waits < 3000; waits++)
		usleep(10000);
	CHECK(descriptors() <= before + 16);
	if (child == 0)
		return 0;
	close(ends[0]);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	printf("%d checks\n", checks);
	return 0;
}
