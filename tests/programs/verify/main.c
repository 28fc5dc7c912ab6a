/*
 * Every operation of every service type between two processes, every byte compared, every illegal access refused.
 *
 * usage: verify server|client ADDRESS PORT [OPTION...]
 *
 *   --service rc|uc|ud   service type (rc)
 *   --exchange           the sides exchange their queue pair numbers over TCP; otherwise rdma_cm connects them
 *   --srq                receives from shared receive queues
 *   --small              messages of at most 64 KiB, for slow machines
 *   --classic            without the extended interface, of which the library for the kernel's rxe has only a part
 *   --only CASE          one case of the table
 *   --rounds N           the whole table N times (1)
 *   --fork               a child without exec stays while the parent works
 *   --stream             instead of the table: traffic in both directions until the end (stream.c)
 *   --patience SECONDS   the whole program ends after this long in any case (150)
 *
 * Both sides, with the same options, go through the same table of cases, each on a connection of its own: first with the
 * client as the initiator of the operations, then with the server, and each of these with the classic interface
 * (ibv_post_send, ibv_poll_cq) and the extended one (ibv_wr_*, ibv_start_poll). The last line says how much was compared;
 * status 0 means that all was as expected.
 */
#include <getopt.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>

#include "verify.h"

const struct test *current;
bool initiator_is_client, use_extended, is_server, use_srq;
enum service service = RC;
size_t region_size = 3 * 1024 * 1024, slot_size = 1280 * 1024;
uint64_t compared, refused, operations_done;
static bool by_exchange, classic;

void fail(const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "verify: %s, %s (%s initiates, %s interface): ", is_server ? "server" : "client",
		current ? current->name : "start", initiator_is_client ? "client" : "server",
		use_extended ? "extended" : "classic");
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

static void out_of_time(int signal)
{
	/* Whoever hangs holds no lock of stdio: nothing is printed while the other side is waited for. */
	(void)signal;
	fail("out of time");
}

bool initiates(void)
{
	return is_server != initiator_is_client;
}

static void finish(struct connection *c, bool leads)
{
	if (c->id)
		cm_finish(c, leads);
	else
		exchange_finish(c);
	c->ended = true;
	while (!c->srq && c->receives > 0) {
		struct completion found = wait_for(c, c->receive_cq);

		if (found.status == IBV_WC_SUCCESS)
			fail("a message arrived at the end");
		c->receives--;
	}
}

/* Waits for the end of a connection that a refusal breaks: every receive that is left comes back flushed, each once. */
void wait_for_end(struct connection *c)
{
	finish(c, initiates());
}

static void close_connection(struct connection *c)
{
	if (!c->ended && c->service == RC_IWARP) {
		if (initiates() && rdma_disconnect(c->id))
			fail("rdma_disconnect: %s", strerror(errno));
		finish(c, initiates());
	} else if (!c->ended) {
		/* Whoever sent last leads, when that was acknowledged: an acknowledgement may get lost. */
		if (initiates())
			hear(c);
		else
			tell(c);
		finish(c, !initiates());
	}
	end_resources(c);
	if (c->id)
		cm_close(c);
}

/* Whether the case can be run at all, as both sides know without a connection. */
static bool applies(const struct test *test)
{
	if (!(test->services & service) || (test->own_exchange && !by_exchange) || (test->only_srq && !use_srq))
		return false;
	/* Over iWARP or not is known only with a connection; by exchange, it is not. */
	return !(use_srq && test->without_srq & service);
}

static int run_case(const struct test *test, struct sockaddr *server)
{
	struct connection c = {};
	bool possible;

	current = test;
	if (by_exchange)
		exchange_open(&c);
	else
		cm_open(&c, server);
	introduce(&c);
	possible = (test->services & c.service) && (!test->needs || operations_of(&c, test->needs));
	if (possible && initiates())
		test->initiate(&c);
	else if (possible)
		test->serve(&c);
	close_connection(&c);
	return !possible;
}

/* Goes through the table. Returns how many cases did not apply to the device. */
static int run_all(struct sockaddr *server, const char *only, int *run)
{
	static const struct {
		const struct test *tests;
		const size_t *count;
	} tables[] = { { data_tests, &data_count }, { refusal_tests, &refusal_count }, { datagram_tests, &datagram_count } };
	int skipped = 0;

	for (int round = 0; round < (classic ? 2 : 4); round++) {
		initiator_is_client = round % 2 == 0;
		use_extended = round >= 2;
		for (size_t table = 0; table < LENGTH(tables); table++) {
			for (size_t i = 0; i < *tables[table].count; i++) {
				const struct test *test = &tables[table].tests[i];

				if ((only && strcmp(only, test->name)) || !applies(test))
					continue;
				skipped += run_case(test, server);
				++*run;
			}
		}
	}
	return skipped;
}

static void leave_child(void)
{
	pid_t parent = getpid(), child = fork();

	if (child < 0)
		fail("fork: %s", strerror(errno));
	if (child > 0)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	while (getppid() == parent)
		pause();
	_exit(0);
}

static const struct option options[] = {
	{ "service", required_argument, NULL, 's' }, { "exchange", no_argument, NULL, 'x' }, { "srq", no_argument, NULL, 'q' },
	{ "small", no_argument, NULL, 'm' }, { "classic", no_argument, NULL, 'c' }, { "only", required_argument, NULL, 'o' },
	{ "rounds", required_argument, NULL, 'r' }, { "fork", no_argument, NULL, 'f' }, { "stream", no_argument, NULL, 't' },
	{ "patience", required_argument, NULL, 'p' }, {},
};

int main(int argc, char **argv)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *address;
	int skipped = 0, run = 0, rounds = 1, patience = 150, option, result;
	const char *only = NULL;
	bool forks = false, streams = false;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 's': service = !strcmp(optarg, "ud") ? UD : !strcmp(optarg, "uc") ? UC : RC; break;
		case 'x': by_exchange = true; break;
		case 'q': use_srq = true; break;
		case 'm': region_size = 256 * 1024, slot_size = 80 * 1024; break;
		case 'c': classic = true; break;
		case 'o': only = optarg; break;
		case 'r': rounds = atoi(optarg); break;
		case 'f': forks = true; break;
		case 't': streams = true; break;
		case 'p': patience = atoi(optarg); break;
		default: return 2;
		}
	}
	if (argc - optind != 3 || (strcmp(argv[optind], "server") && strcmp(argv[optind], "client"))) {
		fprintf(stderr, "usage: verify server|client ADDRESS PORT [OPTION...]\n");
		return 2;
	}
	is_server = !strcmp(argv[optind], "server");
	signal(SIGALRM, out_of_time);
	alarm(patience);
	result = getaddrinfo(argv[optind + 1], argv[optind + 2], &hints, &address);
	if (result)
		fail("%s: %s", argv[optind + 1], gai_strerror(result));
	if (by_exchange)
		exchange_start(address->ai_addr, address->ai_addrlen);
	else if (is_server)
		cm_listen(address->ai_addr);
	if (streams)
		stream(address->ai_addr, by_exchange);
	for (int round = 0; round < rounds; round++) {
		skipped += run_all(address->ai_addr, only, &run);
		if (forks)
			leave_child();
		forks = false;
	}
	current = NULL;
	if (by_exchange)
		exchange_end();
	else
		cm_end();
	freeaddrinfo(address);
	if (!compared || run == skipped)
		fail("nothing was compared");
	printf("verify: %d cases, %d do not apply to this device; %llu operations, %llu bytes compared, %llu refusals: "
	       "all as expected\n", run, skipped, (unsigned long long)operations_done,
	       (unsigned long long)compared, (unsigned long long)refused);
	return 0;
}
