// What a traced program may do beside its calls: fork, handle signals, write files with a limit, poll several queues in turn. Its argument says which.
#define _GNU_SOURCE
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static struct ibv_context *context;
static struct ibv_cq *queues[4];

static void fail(const char *what)
{
	perror(what);
	_exit(1);
}

static void query(void)
{
	struct ibv_port_attr port;
	if (ibv_query_port(context, 1, &port))
		fail("ibv_query_port");
}

static void poll_all(void)
{
	struct ibv_wc wc;
	for (int i = 0; i < 4; i++)
		if (ibv_poll_cq(queues[i], 1, &wc))
			fail("ibv_poll_cq");
}

static void ends(int signal)
{
	(void)signal;
	exit(3);
}

static void every(int microseconds, void (*handler)(int))
{
	struct itimerval timer = {{0, microseconds}, {0, microseconds}};
	signal(SIGALRM, handler);
	setitimer(ITIMER_REAL, &timer, NULL);
}

int main(int count, char **arguments)
{
	const char *mode = count > 1 ? arguments[1] : "";
	struct ibv_device **devices = ibv_get_device_list(NULL);
	if (!devices || !devices[0] || !(context = ibv_open_device(devices[0])))
		fail("ibv_open_device");
	for (int i = 0; i < 4; i++)
		if (!(queues[i] = ibv_create_cq(context, 16, NULL, NULL, 0)))
			fail("ibv_create_cq");
	if (!strcmp(mode, "fork")) {
		// The thread that writes the trace waits for more by now.
		for (int i = 0; i < 100; i++) {
			query();
			usleep(1000);
		}
		pid_t child = fork();
		if (!child) {
			for (int i = 0; i < 200; i++) {
				query();
				usleep(1000);
			}
			exit(0);
		}
		int status;
		if (waitpid(child, &status, 0) != child || status)
			fail("the child");
	} else if (!strcmp(mode, "exit")) {
		every(20000, ends);
		for (;;) {
			query();
			poll_all();
		}
	} else if (!strcmp(mode, "limit")) {
		struct rlimit limit = {1 << 16, 1 << 16};
		if (setrlimit(RLIMIT_FSIZE, &limit))
			fail("setrlimit");
		for (int i = 0; i < 5000; i++)
			query();
	} else if (!strcmp(mode, "turns")) {
		for (int i = 0; i < 5000; i++)
			poll_all();
	} else if (!strcmp(mode, "killed")) {
		struct timeval begin, now;
		gettimeofday(&begin, NULL);
		do {
			poll_all();
			gettimeofday(&now, NULL);
		} while (now.tv_sec - begin.tv_sec < 3);
		kill(getpid(), SIGKILL);
	} else
		return 2;
	puts("done");
	return 0;
}
