/*
 * Traffic without end, every byte of it compared: each side sends messages to the other and reads the other's memory, where it
 * finds how many messages have been taken there: there is always a receive for the next one. Each says now and then how many
 * it has taken. SIGUSR1 leaves a child behind that has been forked, does nothing, and exits at SIGTERM.
 */
#include <sched.h>
#include <signal.h>
#include <time.h>

#include "verify.h"

enum {
	WINDOW = 4,         /* requests that have not completed */
	LONGEST = 16 * 1024,
	READ_EVERY = 4,     /* at least one request in so many is a read */
	COUNT = LONGEST,    /* where the count is behind the bytes that are read */
	TOLD_MS = 50,
	READ_SEED = 7,
};

/* Its peer may be stopped for as long as a busy machine takes over what the others do meanwhile: no request fails before 8 times 8 seconds are over. */
static const struct test stream_test = { .name = "stream", .services = RC, .timeout = 21 };

static volatile sig_atomic_t forks_wanted;

static void want_fork(int signal)
{
	(void)signal;
	forks_wanted = 1;
}

/* Forks a child that calls nothing of ours until it exits as programs do. */
static void leave_child(void)
{
	sigset_t end;
	pid_t child;
	int signal;

	forks_wanted = 0;
	sigemptyset(&end);
	sigaddset(&end, SIGTERM);
	fflush(stdout);
	sigprocmask(SIG_BLOCK, &end, NULL);
	child = fork();
	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (child == 0) {
		alarm(120);
		sigwait(&end, &signal);
		exit(0);
	}
	sigprocmask(SIG_UNBLOCK, &end, NULL);
	printf("child %d\n", (int)child);
}

static size_t length_of(uint64_t message)
{
	return 1 + message * 997 % LONGEST;
}

static uint64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

struct traffic {
	bool is_read[WINDOW]; /* of the requests that have not completed */
	uint64_t posted, completed; /* requests */
	uint64_t sent, taken_there, taken_here; /* messages */
};

static void post_one(struct connection *c, struct traffic *t)
{
	size_t slot = t->posted % WINDOW, place = slot * 2 * LONGEST;
	struct ibv_sge sge;
	struct operation o = { .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1 };

	t->is_read[slot] = t->posted % READ_EVERY == 0 || t->sent - t->taken_there == SLOTS;
	if (t->is_read[slot]) {
		o.opcode = IBV_WR_RDMA_READ;
		o.address = peer_address(c, READ_ONLY);
		o.key = peer_key(c, READ_ONLY);
		sge = element(&c->local, place, COUNT + sizeof(uint64_t));
	} else {
		o.opcode = IBV_WR_SEND;
		sge = element(&c->local, place, length_of(t->sent));
		fill(c->local.data + place, sge.length, (uint32_t)t->sent++);
	}
	post(c, &o, 1);
	t->posted++;
}

/* The peer has ended the connection, or somebody in its name: an event says so. */
__attribute__((noreturn)) static void end_by_event(struct connection *c)
{
	struct rdma_cm_event *event;

	if (rdma_get_cm_event(c->channel, &event))
		fail("rdma_get_cm_event: %s", strerror(errno));
	if (event->event != RDMA_CM_EVENT_DISCONNECTED)
		fail("%s in the middle of a stream", rdma_event_str(event->event));
	printf("disconnected\n");
	exit(0);
}

static void take_sent(struct connection *c, struct traffic *t, const struct completion *found)
{
	size_t slot = t->completed % WINDOW, place = slot * 2 * LONGEST;
	unsigned long long request = t->completed++;

	if (found->status == IBV_WC_WR_FLUSH_ERR && c->id)
		end_by_event(c);
	if (found->status != IBV_WC_SUCCESS)
		fail("request %llu: %s", request, ibv_wc_status_str(found->status));
	if (found->opcode != (t->is_read[slot] ? IBV_WC_RDMA_READ : IBV_WC_SEND))
		fail("request %llu completes with opcode %d", request, found->opcode);
	if (!t->is_read[slot])
		return;
	check(c->local.data + place, LONGEST, READ_SEED, "what was read");
	memcpy(&t->taken_there, c->local.data + place + COUNT, sizeof(t->taken_there));
	if (t->taken_there > t->sent)
		fail("%llu messages were taken of %llu", (unsigned long long)t->taken_there, (unsigned long long)t->sent);
}

static void take_message(struct connection *c, struct traffic *t, const struct completion *found)
{
	unsigned long long message = t->taken_here;

	if (found->status == IBV_WC_WR_FLUSH_ERR && c->id)
		end_by_event(c);
	if (found->status != IBV_WC_SUCCESS)
		fail("message %llu: %s", message, ibv_wc_status_str(found->status));
	if (found->length != length_of(message))
		fail("message %llu has %u bytes", message, found->length);
	check(payload_of(c, found), found->length, (uint32_t)message, "a message");
	post_receive(c, (int)found->wr_id);
	__atomic_store_n((uint64_t *)(c->exposed[READ_ONLY].data + COUNT), ++t->taken_here, __ATOMIC_RELEASE);
}

/* Sleeps until something completes; the first call only makes sure to be woken. */
static void sleep_for_event(struct connection *c)
{
	static bool armed;
	struct ibv_cq *cq;
	void *context;

	if (!armed) {
		if (ibv_req_notify_cq(c->send_cq, 0) || ibv_req_notify_cq(c->receive_cq, 0))
			fail("ibv_req_notify_cq failed");
		armed = true;
		return;
	}
	armed = false;
	if (ibv_get_cq_event(c->completions, &cq, &context) == 0)
		ibv_ack_cq_events(cq, 1);
	else if (errno != EINTR)
		fail("ibv_get_cq_event: %s", strerror(errno));
}

/* The server sleeps when there is nothing to do, the client polls. */
static void rest(struct connection *c)
{
	if (is_server)
		sleep_for_event(c);
	else
		sched_yield();
}

__attribute__((noreturn)) static void run(struct connection *c)
{
	struct traffic t = {};
	struct completion found;
	uint64_t told = 0;

	for (;;) {
		bool idle = true;

		while (t.posted - t.completed < WINDOW)
			post_one(c, &t);
		while (poll_once(c, c->send_cq, &found)) {
			take_sent(c, &t, &found);
			idle = false;
		}
		while (poll_once(c, c->receive_cq, &found)) {
			take_message(c, &t, &found);
			idle = false;
		}
		if (now_ms() - told >= TOLD_MS && !idle) {
			told = now_ms();
			printf("received %llu\n", (unsigned long long)t.taken_here);
		}
		if (forks_wanted)
			leave_child();
		if (idle)
			rest(c);
	}
}

void stream(struct sockaddr *server, bool by_exchange)
{
	struct connection c = {};
	struct sigaction action = { .sa_handler = want_fork };

	current = &stream_test;
	setvbuf(stdout, NULL, _IOLBF, 0);
	sigaction(SIGUSR1, &action, NULL);
	signal(SIGCHLD, SIG_IGN);
	if (by_exchange)
		exchange_open(&c);
	else
		cm_open(&c, server);
	fill(c.exposed[READ_ONLY].data, LONGEST, READ_SEED);
	memset(c.exposed[READ_ONLY].data + COUNT, 0, sizeof(uint64_t));
	introduce(&c);
	run(&c);
}
