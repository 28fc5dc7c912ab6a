/* Shows what faults do to a program with queue pairs on several devices.
 *
 * usage: faults rounds N DEVICE...   N times: the devices that there are, each DEVICE's port, an RDMA Write over its queue pair, and its events
 *        faults order DEVICE         two queue pairs and one completion queue: whose completion comes first
 *        faults child DEVICE         a child of fork, whose parent has asked for the devices alone: the event that comes to it
 *        faults events N DEVICE      two queue pairs with a shared receive queue: the N events that come after a Send over each
 *
 * Each queue pair is connected with itself. Nothing is measured: a fault with a count of posts strikes in the same place each time. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 8, LONG_MS = 60000, SOON_MS = 50 };

struct rail {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_mr *mr;
	struct ibv_qp *qp[2];
	char memory[64];
};

static void need(int holds, const char *what)
{
	if (!holds) {
		printf("%s: %s\n", what, strerror(errno));
		exit(1);
	}
}

static struct ibv_context *opened(const char *name)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *context = NULL;
	need(list != NULL, "ibv_get_device_list");
	for (int place = 0; list[place]; place++)
		if (!strcmp(ibv_get_device_name(list[place]), name)) context = ibv_open_device(list[place]);
	ibv_free_device_list(list);
	need(context != NULL, name);
	need(!fcntl(context->async_fd, F_SETFL, O_NONBLOCK), "fcntl");
	return context;
}

/* The index of the first GID with an IPv4 address. */
static int index_of_gid(struct ibv_context *context, union ibv_gid *gid)
{
	static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
	struct ibv_port_attr port;
	need(!ibv_query_port(context, 1, &port), "ibv_query_port");
	for (int index = 0; index < port.gid_tbl_len; index++)
		if (!ibv_query_gid(context, 1, index, gid) && !memcmp(gid->raw, mapped, sizeof mapped)) return index;
	need(0, "no GID with an IPv4 address");
	return -1;
}

static struct ibv_qp *connected(struct rail *rail)
{
	struct ibv_qp_init_attr init = {
		.send_cq = rail->cq, .recv_cq = rail->cq, .srq = rail->srq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *qp = ibv_create_qp(rail->pd, &init);
	need(qp != NULL, "ibv_create_qp");
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE, .path_mtu = IBV_MTU_1024,
		.dest_qp_num = qp->qp_num, .max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 12,
		/* 67 ms, which adverb makes 0.3 s, three times: one thread may be without a processor for half of that. */
		.timeout = 14, .retry_cnt = 2, .rnr_retry = 7, .ah_attr = {.is_global = 1, .port_num = 1}};
	attr.ah_attr.grh.sgid_index = index_of_gid(rail->context, &attr.ah_attr.grh.dgid);
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");
	return qp;
}

static void begin(struct rail *rail, const char *name, int pairs, int is_shared)
{
	rail->context = opened(name);
	need((rail->pd = ibv_alloc_pd(rail->context)) != NULL, "ibv_alloc_pd");
	need((rail->cq = ibv_create_cq(rail->context, 64, NULL, NULL, 0)) != NULL, "ibv_create_cq");
	if (is_shared) {
		struct ibv_srq_init_attr init = {.attr = {.max_wr = 16, .max_sge = 1}};
		need((rail->srq = ibv_create_srq(rail->pd, &init)) != NULL, "ibv_create_srq");
	}
	rail->mr = ibv_reg_mr(rail->pd, rail->memory, sizeof rail->memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	need(rail->mr != NULL, "ibv_reg_mr");
	for (int place = 0; place < pairs; place++) rail->qp[place] = connected(rail);
}

/* Half of the memory is written to the other half. Returns what the call answers. */
static int writes(struct rail *rail, int place, enum ibv_wr_opcode opcode)
{
	struct ibv_sge sge = {.addr = (uintptr_t)rail->memory, .length = 8, .lkey = rail->mr->lkey};
	struct ibv_send_wr wr = {.wr_id = place, .sg_list = &sge, .num_sge = 1, .opcode = opcode}, *bad = NULL;
	wr.wr.rdma.remote_addr = (uintptr_t)rail->memory + 32;
	wr.wr.rdma.rkey = rail->mr->rkey;
	int answer = ibv_post_send(rail->qp[place], &wr, &bad);
	if (answer && bad != &wr) printf("bad_wr is wrong\n");
	return answer;
}

/* Whether a completion has come meanwhile. */
static int comes(struct rail *rail, struct ibv_wc *wc, int milliseconds)
{
	int count;
	while (!(count = ibv_poll_cq(rail->cq, 1, wc)) && milliseconds-- > 0) poll(NULL, 0, 1);
	need(count >= 0, "ibv_poll_cq");
	return count;
}

static int is_of_pair(enum ibv_event_type type)
{
	return type <= IBV_EVENT_PATH_MIG_ERR ? type != IBV_EVENT_CQ_ERR : type == IBV_EVENT_QP_LAST_WQE_REACHED;
}

static int events(struct rail *rail, const char *between)
{
	struct ibv_async_event event;
	int count = 0;
	while (!ibv_get_async_event(rail->context, &event)) {
		printf("%s%s", between, ibv_event_type_str(event.event_type));
		if (is_of_pair(event.event_type)) printf(" of queue pair %d", event.element.qp == rail->qp[1] ? 2 : 1);
		ibv_ack_async_event(&event);
		count++;
	}
	return count;
}

static void show_devices(void)
{
	int count = -1;
	struct ibv_device **list = ibv_get_device_list(&count);
	need(list != NULL, "ibv_get_device_list");
	printf("%d devices:", count);
	for (int place = 0; list[place]; place++) printf(" %s", ibv_get_device_name(list[place]));
	printf("\n");
	ibv_free_device_list(list);
}

static void in_rounds(int rounds, char **names)
{
	static struct rail rails[MOST];
	int count = 0;
	for (; names[count] && count < MOST; count++) begin(&rails[count], names[count], 1, 0);
	for (int round = 1; round <= rounds; round++) {
		for (int place = 0; place < count; place++) {
			struct rail *rail = &rails[place];
			struct ibv_wc wc;
			int answer = writes(rail, 0, IBV_WR_RDMA_WRITE);
			printf("round %d: %s: ", round, names[place]);
			if (answer) printf("post fails (%s)", strerror(answer));
			else if (comes(rail, &wc, LONG_MS)) printf("%s", ibv_wc_status_str(wc.status));
			else printf("no completion");
			while (comes(rail, &wc, 0)) printf(", %s", ibv_wc_status_str(wc.status));
			struct ibv_port_attr port;
			answer = ibv_query_port(rail->context, 1, &port);
			printf("; %s", answer ? strerror(answer) : ibv_port_state_str(port.state));
			events(rail, "; ");
			printf("\n");
		}
		show_devices();
	}
}

static void in_order(const char *name)
{
	static struct rail rail;
	begin(&rail, name, 2, 0);
	struct ibv_wc wc;
	/* The second queue pair goes on until the first one's completion is there. */
	need(!writes(&rail, 0, IBV_WR_RDMA_WRITE), "ibv_post_send");
	int others = 0;
	for (int tries = 0; tries < LONG_MS / SOON_MS; tries++) {
		need(!writes(&rail, 1, IBV_WR_RDMA_WRITE), "ibv_post_send");
		while (comes(&rail, &wc, SOON_MS)) {
			need(wc.status == IBV_WC_SUCCESS, ibv_wc_status_str(wc.status));
			if (wc.wr_id == 0) {
				printf("queue pair 1 %s\n", others ? "comes after queue pair 2" : "comes first");
				return;
			}
			others++;
		}
	}
	printf("no completion\n");
}

static void show_events(int wanted, const char *name)
{
	static struct rail rail;
	begin(&rail, name, 2, 1);
	for (int place = 0; place < 2; place++) {
		struct ibv_sge sge = {.addr = (uintptr_t)rail.memory, .length = 8, .lkey = rail.mr->lkey};
		struct ibv_recv_wr receive = {.sg_list = &sge, .num_sge = 1}, *bad;
		need(!ibv_post_srq_recv(rail.srq, &receive, &bad), "ibv_post_srq_recv");
		int answer = writes(&rail, place, IBV_WR_SEND);
		if (answer) printf("post fails (%s)\n", strerror(answer));
	}
	for (int tries = 0; wanted > 0 && tries < LONG_MS; tries++) {
		int count = events(&rail, "event: ");
		if (count) printf("\n");
		wanted -= count;
		poll(NULL, 0, 1);
	}
}

static void in_child(const char *name)
{
	static struct rail rail;
	int status;
	show_devices();
	fflush(stdout);
	pid_t child = fork();
	need(child >= 0, "fork");
	if (child) {
		need(waitpid(child, &status, 0) == child, "waitpid");
		printf("the child ends with %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
		fflush(stdout);
		/* Its own faults may strike or not. */
		_exit(0);
	}
	rail.context = opened(name);
	for (int tries = 0; tries < LONG_MS; tries++) {
		if (events(&rail, "event: ")) {
			printf("\n");
			return;
		}
		poll(NULL, 0, 1);
	}
	printf("no event\n");
}

int main(int count, char **arguments)
{
	if (count > 3 && !strcmp(arguments[1], "rounds")) in_rounds(atoi(arguments[2]), arguments + 3);
	else if (count == 3 && !strcmp(arguments[1], "order")) in_order(arguments[2]);
	else if (count == 3 && !strcmp(arguments[1], "child")) in_child(arguments[2]);
	else if (count == 4 && !strcmp(arguments[1], "events")) show_events(atoi(arguments[2]), arguments[3]);
	else return 2;
	return 0;
}
