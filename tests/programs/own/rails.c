/* A program with a queue pair on each of several devices goes on when one of them is taken away, and uses it again when it is back.
 *
 * usage: rails serve SOCKET DEVICE...
 *        rails ask SOCKET TIMES DEVICE...
 *
 * The server has memory, registered at every device. The client writes pieces there, over every device at once, and reads each back. A piece whose
 * request fails is written once more, over any device that is left. The client leaves a device when its port goes down, or when a request
 * fails; and comes back with a new queue pair when the port is active. Both find each other by a Unix socket, whose name is SOCKET.
 *
 * Lines: what happens to ports, at both sides; "all devices carry", at the beginning and after each return; and, so many TIMES, "the others go on":
 * a device has been left, nothing of its requests is open, and each of the others has carried more since. */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DEMAND(condition, ...) \
	do { \
		if (!(condition)) { \
			printf("%s:%d: " #condition ": ", __func__, __LINE__); \
			printf(__VA_ARGS__); \
			printf(" (errno: %s)\n", strerror(errno)); \
			fflush(stdout); \
			_exit(1); \
		} \
	} while (0)

/* Of the places of a device, the last one is for a request that is posted when its port is known to be down. */
enum { MOST = 8, PLACES = 4, LATE = PLACES, ALL_PLACES, PIECE = 16 << 10, WORDS = PIECE / 4, ENOUGH = 50, MOST_FAILED = MOST * ALL_PLACES, ASK_AGAIN_MS = 100 };

/* One end of a queue pair, as the other one must know it. */
struct end {
	uint32_t device, number, rkey;
	uint64_t address;
	union ibv_gid gid;
};

enum step { IDLE, WRITES, READS };
enum state { CARRIES, LEAVES, GONE };

struct rail {
	const char *name;
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_mr *mr;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct end there;
	enum state state;
	bool is_down, has_failed;
	struct {
		enum step step;
		uint64_t piece;
	} places[ALL_PLACES];
	int open;
	/* Pieces: in all, and at the last milestone. */
	uint64_t carried, before;
};

static struct rail rails[MOST];
static int count;
/* At the client, what is written lies in the first half, and what is read back in the second one. */
static uint32_t memory[2][MOST][ALL_PLACES][WORDS];

static void open_rail(struct rail *rail, const char *name)
{
	int number;
	struct ibv_device **list = ibv_get_device_list(&number);
	DEMAND(list, "no list of devices");
	rail->name = name;
	for (int i = 0; i < number; i++)
		if (strcmp(ibv_get_device_name(list[i]), name) == 0)
			rail->context = ibv_open_device(list[i]);
	ibv_free_device_list(list);
	DEMAND(rail->context, "%s is not there", name);
	rail->pd = ibv_alloc_pd(rail->context);
	DEMAND(rail->pd, "%s", name);
	rail->mr = ibv_reg_mr(rail->pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	rail->channel = ibv_create_comp_channel(rail->context);
	DEMAND(rail->mr && rail->channel, "%s", name);
	rail->cq = ibv_create_cq(rail->context, 2 * ALL_PLACES, NULL, rail->channel, 0);
	DEMAND(rail->cq && ibv_req_notify_cq(rail->cq, 0) == 0, "%s", name);
	for (int i = 0; i < 2; i++) {
		int fd = i ? rail->channel->fd : rail->context->async_fd;
		DEMAND(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0, "%s", name);
	}
}

static enum ibv_port_state port_state(const struct rail *rail)
{
	struct ibv_port_attr port;
	DEMAND(ibv_query_port(rail->context, 1, &port) == 0, "%s", rail->name);
	return port.state;
}

/* A new queue pair in the place of the last one, and what the other side must know of it. */
static struct end new_end(struct rail *rail)
{
	struct ibv_qp_init_attr wanted = {
		.send_cq = rail->cq,
		.recv_cq = rail->cq,
		.cap = { .max_send_wr = ALL_PLACES, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ };
	struct end end = { .device = rail - rails, .rkey = rail->mr->rkey, .address = (uintptr_t)memory };

	DEMAND(!rail->qp || ibv_destroy_qp(rail->qp) == 0, "%s", rail->name);
	rail->qp = ibv_create_qp(rail->pd, &wanted);
	DEMAND(rail->qp, "%s", rail->name);
	DEMAND(ibv_modify_qp(rail->qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0, "%s", rail->name);
	end.number = rail->qp->qp_num;
	/* The address of an interface that is down is not there. */
	DEMAND(ibv_query_gid(rail->context, 1, 0, &end.gid) == 0 || port_state(rail) == IBV_PORT_DOWN, "%s", rail->name);
	return end;
}

/* False when the port has gone down meanwhile. */
static bool connect_end(struct rail *rail, const struct end *there)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = there->number,
		.max_dest_rd_atomic = ALL_PLACES,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = there->gid, .hop_limit = 64 } },
	};
	int error = ibv_modify_qp(rail->qp, &attr,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (!error) {
		attr.qp_state = IBV_QPS_RTS;
		attr.timeout = 16;
		attr.retry_cnt = attr.rnr_retry = 7;
		attr.max_rd_atomic = ALL_PLACES;
		error = ibv_modify_qp(rail->qp, &attr,
			IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
	}
	DEMAND(!error || port_state(rail) == IBV_PORT_DOWN, "%s: %s", rail->name, strerror(error));
	return !error;
}

static int unix_socket(const char *name, struct sockaddr_un *address)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	address->sun_family = AF_UNIX;
	DEMAND(fd >= 0 && strlen(name) < sizeof address->sun_path, "%s", name);
	strcpy(address->sun_path, name);
	return fd;
}

static const char *state_name(enum ibv_port_state state)
{
	return state == IBV_PORT_ACTIVE ? "active" : state == IBV_PORT_DOWN ? "down" : "?";
}

/* The next news of a device's port: PORT_ERR or PORT_ACTIVE; 0 when there is no more. Says what each port is now. */
static enum ibv_event_type news(struct rail *rail)
{
	struct ibv_async_event event;

	while (ibv_get_async_event(rail->context, &event) == 0) {
		ibv_ack_async_event(&event);
		if (event.event_type == IBV_EVENT_GID_CHANGE)
			continue;
		DEMAND(event.event_type == IBV_EVENT_PORT_ERR || event.event_type == IBV_EVENT_PORT_ACTIVE, "%s: %s", rail->name,
			ibv_event_type_str(event.event_type));
		DEMAND(event.element.port_num == 1, "%s", rail->name);
		printf("%s: %s;", rail->name, event.event_type == IBV_EVENT_PORT_ERR ? "PORT_ERR" : "PORT_ACTIVE");
		for (int i = 0; i < count; i++)
			printf(" %s %s", rails[i].name, state_name(port_state(&rails[i])));
		printf("\n");
		fflush(stdout);
		return event.event_type;
	}
	DEMAND(errno == EAGAIN, "%s", rail->name);
	return 0;
}

static void serve(const char *name)
{
	struct sockaddr_un address = { 0 };
	int listener = unix_socket(name, &address), peer;
	struct pollfd fds[MOST + 1];
	struct end end;

	DEMAND(bind(listener, (void *)&address, sizeof address) == 0 && listen(listener, 1) == 0, "%s", name);
	printf("ready\n");
	fflush(stdout);
	peer = accept(listener, NULL, NULL);
	DEMAND(peer >= 0, "%s", name);
	for (int i = 0; i < count; i++)
		fds[i] = (struct pollfd){ .fd = rails[i].context->async_fd, .events = POLLIN };
	fds[count] = (struct pollfd){ .fd = peer, .events = POLLIN };
	for (;;) {
		DEMAND(poll(fds, count + 1, -1) > 0, "poll");
		for (int i = 0; i < count; i++)
			while (news(&rails[i]))
				;
		if (!fds[count].revents)
			continue;
		ssize_t length = recv(peer, &end, sizeof end, 0);
		if (length == 0)
			return;
		DEMAND(length == sizeof end && end.device < (uint32_t)count, "a request");
		struct rail *rail = &rails[end.device];
		struct end here = new_end(rail);
		/* No queue pair: the client is to ask again. */
		if (!connect_end(rail, &end))
			here.number = 0;
		DEMAND(send(peer, &here, sizeof here, MSG_NOSIGNAL) == sizeof here, "an answer");
	}
}

/* Pieces whose requests have failed, and the number of the next new one. */
static uint64_t failed[MOST_FAILED], next_piece;
static int failures;
static bool ends;

static uint32_t word(uint64_t piece, int i)
{
	return piece * 2654435761u + i * 40503u + 1;
}

static void post(struct rail *rail, int place, enum step step)
{
	uint32_t *here = memory[step == READS][rail - rails][place];
	struct ibv_sge sge = { .addr = (uintptr_t)here, .length = PIECE, .lkey = rail->mr->lkey };
	struct ibv_send_wr *bad, request = {
		.wr_id = place,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = step == READS ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
		.wr.rdma = { .rkey = rail->there.rkey, .remote_addr = rail->there.address + ((char *)memory[0][rail - rails][place] - (char *)memory) },
	};
	for (int i = 0; i < WORDS; i++)
		here[i] = step == READS ? 0 : word(rail->places[place].piece, i);
	rail->places[place].step = step;
	rail->open++;
	DEMAND(ibv_post_send(rail->qp, &request, &bad) == 0, "%s", rail->name);
}

static void post_piece(struct rail *rail, int place)
{
	rail->places[place].piece = failures ? failed[--failures] : next_piece++;
	post(rail, place, WRITES);
}

static void leave(struct rail *rail)
{
	if (rail->state == CARRIES)
		for (int i = 0; i < count; i++)
			rails[i].before = rails[i].carried;
	rail->state = LEAVES;
}

static void take(struct rail *rail, const struct ibv_wc *wc)
{
	int place = wc->wr_id;
	enum step step = rail->places[place].step;

	DEMAND(wc->qp_num == rail->qp->qp_num && step != IDLE, "%s", rail->name);
	rail->places[place].step = IDLE;
	rail->open--;
	if (wc->status != IBV_WC_SUCCESS) {
		if (!rail->has_failed) {
			printf("%s: %s\n", rail->name, ibv_wc_status_str(wc->status));
			fflush(stdout);
		}
		DEMAND(wc->status == (rail->has_failed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_RETRY_EXC_ERR), "%s: %s", rail->name, ibv_wc_status_str(wc->status));
		rail->has_failed = true;
		leave(rail);
	} else {
		DEMAND(!rail->has_failed, "%s: a request succeeds behind one that has failed", rail->name);
		DEMAND(place != LATE, "%s: a request of a port that is down succeeds", rail->name);
	}
	if (wc->status == IBV_WC_SUCCESS && step == READS) {
		for (int i = 0; i < WORDS; i++)
			DEMAND(memory[1][rail - rails][place][i] == word(rail->places[place].piece, i), "%s: bytes are wrong", rail->name);
		rail->carried++;
	} else if (wc->status == IBV_WC_SUCCESS && rail->state == CARRIES) {
		post(rail, place, READS);
		return;
	} else {
		DEMAND(failures < MOST_FAILED, "too many");
		failed[failures++] = rail->places[place].piece;
	}
	if (rail->state == CARRIES && (!ends || failures))
		post_piece(rail, place);
}

static void take_all(struct rail *rail)
{
	struct ibv_cq *cq;
	void *context;
	struct ibv_wc wc;

	while (ibv_get_cq_event(rail->channel, &cq, &context) == 0) {
		ibv_ack_cq_events(cq, 1);
		DEMAND(ibv_req_notify_cq(cq, 0) == 0, "%s", rail->name);
	}
	DEMAND(errno == EAGAIN, "%s", rail->name);
	while (ibv_poll_cq(rail->cq, 1, &wc) == 1)
		take(rail, &wc);
}

/* A queue pair for the device, which is used from now on. */
static void join(struct rail *rail, int peer)
{
	struct end here = new_end(rail);

	DEMAND(send(peer, &here, sizeof here, MSG_NOSIGNAL) == sizeof here, "a request");
	DEMAND(recv(peer, &rail->there, sizeof rail->there, 0) == sizeof rail->there, "an answer");
	if (!rail->there.number || !connect_end(rail, &rail->there))
		return;
	rail->state = CARRIES;
	rail->has_failed = false;
	for (int place = 0; place < PLACES; place++)
		post_piece(rail, place);
}

static void heed_port(struct rail *rail)
{
	for (enum ibv_event_type type; (type = news(rail));) {
		rail->is_down = type == IBV_EVENT_PORT_ERR;
		/* The link may be up again already. */
		if (!rail->is_down || rail->state == GONE || port_state(rail) != IBV_PORT_DOWN)
			continue;
		leave(rail);
		if (rail->places[LATE].step == IDLE)
			post_piece(rail, LATE);
	}
}

static bool carry_more(bool even_gone)
{
	for (int i = 0; i < count; i++)
		if ((even_gone || rails[i].state == CARRIES) && (rails[i].state != CARRIES || rails[i].carried < rails[i].before + ENOUGH))
			return false;
	return true;
}

static void milestone(const char *what)
{
	printf("%s\n", what);
	fflush(stdout);
	for (int i = 0; i < count; i++)
		rails[i].before = rails[i].carried;
}

static void ask(const char *name, int times)
{
	struct sockaddr_un address = { 0 };
	int peer = unix_socket(name, &address);
	struct pollfd fds[2 * MOST];
	bool all = false;

	DEMAND(connect(peer, (void *)&address, sizeof address) == 0, "%s", name);
	for (int i = 0; i < count; i++) {
		rails[i].state = GONE;
		for (int j = 0; j < 2; j++)
			fds[2 * i + j] = (struct pollfd){ .fd = j ? rails[i].channel->fd : rails[i].context->async_fd, .events = POLLIN };
	}
	for (;;) {
		int gone = 0, open = 0, refused = 0;
		for (int i = 0; i < count; i++) {
			struct rail *rail = &rails[i];
			heed_port(rail);
			take_all(rail);
			if (rail->state == LEAVES && rail->open == 0)
				rail->state = GONE;
			if (rail->state == GONE && !rail->is_down)
				join(rail, peer);
			gone += rail->state == GONE;
			open += rail->state == LEAVES;
			refused += rail->state == GONE && !rail->is_down;
		}
		if (!all && carry_more(true)) {
			milestone("all devices carry");
			all = true;
			if (times-- == 0)
				break;
		} else if (all && gone == 1 && !open && carry_more(false)) {
			milestone("the others go on");
			all = false;
		}
		/* No event tells that the peer's port is up again. */
		DEMAND(poll(fds, 2 * count, refused ? ASK_AGAIN_MS : -1) >= 0, "poll");
	}
	ends = true;
	for (bool open = true; open;) {
		open = false;
		for (int i = 0; i < count; i++) {
			take_all(&rails[i]);
			open |= rails[i].open > 0;
		}
		DEMAND(!open || poll(fds, 2 * count, -1) > 0, "poll");
	}
	uint64_t carried = 0;
	for (int i = 0; i < count; i++)
		carried += rails[i].carried;
	DEMAND(carried == next_piece && !failures, "%lu of %lu pieces", (unsigned long)carried, (unsigned long)next_piece);
	printf("every byte is right\n");
}

int main(int number, char **words)
{
	bool asks = number > 1 && strcmp(words[1], "ask") == 0;
	int first = asks ? 4 : 3;

	DEMAND(number > first && number - first <= MOST, "usage: rails serve SOCKET DEVICE... | rails ask SOCKET TIMES DEVICE...");
	for (count = 0; count < number - first; count++)
		open_rail(&rails[count], words[first + count]);
	if (asks)
		ask(words[2], atoi(words[3]));
	else
		serve(words[2]);
	return 0;
}
