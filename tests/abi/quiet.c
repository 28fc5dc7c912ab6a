/* Calls that succeed and neither post nor poll leave errno as it was, also in a process that has to do without what another one has: UDP port 4791.
 *
 * quiet ADDRESS. The child has it, or somebody before, as long as the parent makes its calls. */

#include "check.h"
#include <arpa/inet.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { UNTOUCHED = 1234, BYTES = 1 << 16, ALL = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };

/* A call that returns 0, and one that returns an object. */
#define SUCCEEDS(call) do { errno = UNTOUCHED; CHECK((call) == 0); CHECK(errno == UNTOUCHED); } while (0)
#define OBJECT(result, call) do { errno = UNTOUCHED; CHECK(((result) = (call)) != NULL); CHECK(errno == UNTOUCHED); } while (0)

static const char *address;

static void verbs(void)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_comp_channel *channel;
	struct ibv_device_attr limits;
	struct ibv_context *context;
	struct ibv_port_attr port;
	struct ibv_device **list;
	struct ibv_srq *srq;
	struct ibv_cq *cq;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_qp *qp;
	union ibv_gid gid;
	char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	OBJECT(list, ibv_get_device_list(NULL));
	OBJECT(context, ibv_open_device(list[0]));
	SUCCEEDS(ibv_query_device(context, &limits));
	SUCCEEDS(ibv_query_port(context, 1, &port));
	SUCCEEDS(ibv_query_gid(context, 1, 0, &gid));
	OBJECT(pd, ibv_alloc_pd(context));
	OBJECT(mr, ibv_reg_mr(pd, memory, BYTES, ALL));
	SUCCEEDS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_LOCAL_WRITE));
	OBJECT(channel, ibv_create_comp_channel(context));
	OBJECT(cq, ibv_create_cq(context, 16, NULL, channel, 0));
	SUCCEEDS(ibv_resize_cq(cq, 32));
	OBJECT(srq, ibv_create_srq(pd, &shared));
	init.send_cq = init.recv_cq = cq;
	OBJECT(qp, ibv_create_qp(pd, &init));
	if (context->device->transport_type == IBV_TRANSPORT_IB)
		SUCCEEDS(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	SUCCEEDS(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	SUCCEEDS(ibv_req_notify_cq(cq, 0));
	SUCCEEDS(ibv_destroy_qp(qp));
	SUCCEEDS(ibv_destroy_srq(srq));
	SUCCEEDS(ibv_destroy_cq(cq));
	SUCCEEDS(ibv_destroy_comp_channel(channel));
	SUCCEEDS(ibv_dereg_mr(mr));
	SUCCEEDS(ibv_dealloc_pd(pd));
	SUCCEEDS(ibv_close_device(context));
	ibv_free_device_list(list);
	munmap(memory, BYTES);
}

static void connections(void)
{
	struct sockaddr_in name = { .sin_family = AF_INET };
	struct rdma_event_channel *channel;
	struct rdma_cm_id *listener, *id;
	struct rdma_cm_event *event;

	CHECK(inet_pton(AF_INET, address, &name.sin_addr) == 1);
	OBJECT(channel, rdma_create_event_channel());
	SUCCEEDS(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	SUCCEEDS(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP));
	SUCCEEDS(rdma_bind_addr(listener, (struct sockaddr *)&name));
	SUCCEEDS(rdma_listen(listener, 4));
	SUCCEEDS(rdma_resolve_addr(id, NULL, (struct sockaddr *)&name, 2000));
	SUCCEEDS(rdma_get_cm_event(channel, &event));
	CHECK(event->event == RDMA_CM_EVENT_ADDR_RESOLVED);
	SUCCEEDS(rdma_ack_cm_event(event));
	SUCCEEDS(rdma_resolve_route(id, 2000));
	SUCCEEDS(rdma_get_cm_event(channel, &event));
	CHECK(event->event == RDMA_CM_EVENT_ROUTE_RESOLVED);
	SUCCEEDS(rdma_ack_cm_event(event));
	SUCCEEDS(rdma_destroy_id(id));
	SUCCEEDS(rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
}

int main(int argc, char **argv)
{
	int ready[2], done[2], status;
	char byte;
	pid_t child;

	alarm(120);
	CHECK(argc == 2);
	address = argv[1];
	CHECK(!pipe(ready) && !pipe(done));
	child = fork();
	CHECK(child >= 0);
	if (!child) {
		struct ibv_device **list = ibv_get_device_list(NULL);
		struct ibv_context *context = ibv_open_device(list[0]);
		struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { .max_send_wr = 1, .max_send_sge = 1 } };

		close(done[1]);
		init.send_cq = init.recv_cq = ibv_create_cq(context, 1, NULL, NULL, 0);
		CHECK(ibv_create_qp(ibv_alloc_pd(context), &init));
		CHECK(write(ready[1], "", 1) == 1);
		CHECK(!read(done[0], &byte, 1));
		return 0;
	}
	close(ready[1]);
	CHECK(read(ready[0], &byte, 1) == 1);
	verbs();
	connections();
	close(done[1]);
	CHECK(waitpid(child, &status, 0) == child && !status);
	printf("%d checks\n", checks);
	return 0;
}
