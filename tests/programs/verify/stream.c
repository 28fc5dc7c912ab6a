/*
 * Traffic without end, every byte of it compared: each side sends messages to the other and reads the other's memory, and says
 * now and then how much has come. SIGUSR1 leaves a child behind that has been forked, does nothing, and exits at SIGTERM.
 */
#include <sched.h>
#include <signal.h>
#include <time.h>

#include "verify.h"

enum {
	WINDOW = 4,         /* requests that have not completed */
	LONGEST = 16 * 1024,
	READ_EVERY = 4,     /* one request in so many is a read */
	TOLD_MS = 50,
	READ_SEED = 7,
};

/* Its peer may be stopped for a while: no request fails before 8 times 2 seconds are over. */
static const struct test stream_test = { .name = "stream", .services = RC, .timeout = 19 };

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

/* Posts request number `request`; returns whether it is a message. */
static bool post_one(struct connection *c, uint64_t request, uint64_t message)
{
	size_t place = request % WINDOW * LONGEST;
	struct ibv_sge sge;
	struct operation o = { .flags = IBV_SEND_SIGNALED, .sges = &sge, .elements = 1 };

	if (request % READ_EVERY == READ_EVERY - 1) {
		o.opcode = IBV_WR_RDMA_READ;
		o.address = peer_address(c, READ_ONLY);
		o.key = peer_key(c, READ_ONLY);
		sge = element(&c->local, place, LONGEST);
	} else {
		o.opcode = IBV_WR_SEND;
		sge = element(&c->local, place, length_of(message));
		fill(c->local.data + place, sge.length, (uint32_t)message);
	}
	post(c, &o, 1);
	return o.opcode == IBV_WR_SEND;
}

static void take_sent(struct connection *c, const struct completion *found, uint64_t request)
{
	bool read = request % READ_EVERY == READ_EVERY - 1;

	if (found->status != IBV_WC_SUCCESS)
		fail("request %llu: %s", (unsigned long long)request, ibv_wc_status_str(found->status));
	if (found->opcode != (read ? IBV_WC_RDMA_READ : IBV_WC_SEND))
		fail("request %llu completes with opcode %d", (unsigned long long)request, found->opcode);
	if (read)
		check(c->local.data + request % WINDOW * LONGEST, LONGEST, READ_SEED, "what was read");
}

static void take_message(struct connection *c, const struct completion *found, uint64_t message)
{
	if (found->status != IBV_WC_SUCCESS)
		fail("message %llu: %s", (unsigned long long)message, ibv_wc_status_str(found->status));
	if (found->length != length_of(message))
		fail("message %llu has %u bytes", (unsigned long long)message, found->length);
	check(payload_of(c, found), found->length, (uint32_t)message, "a message");
	post_receive(c, (int)found->wr_id);
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
	uint64_t posted = 0, completed = 0, sent_messages = 0, received_messages = 0, told = 0;
	struct completion found;

	for (;;) {
		bool idle = true;

		while (posted - completed < WINDOW)
			sent_messages += post_one(c, posted++, sent_messages);
		while (poll_once(c, c->send_cq, &found)) {
			take_sent(c, &found, completed++);
			idle = false;
		}
		while (poll_once(c, c->receive_cq, &found)) {
			take_message(c, &found, received_messages++);
			idle = false;
		}
		if (now_ms() - told >= TOLD_MS && !idle) {
			told = now_ms();
			printf("received %llu\n", (unsigned long long)received_messages);
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
	introduce(&c);
	run(&c);
}
