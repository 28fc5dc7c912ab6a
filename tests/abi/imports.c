/*
 * What another process answers that imports a context, a domain and regions by the command descriptor of the process that opened them. On a device
 * that attributes connect, two queue pairs of the importer work with the exporter's memory. Pages are moved by the exporter's only thread while it
 * polls; where it does not, and where the system does not let them be moved, regions are refused, and that is what is looked for.
 *
 * usage: imports ADDRESS [stranger]
 *
 * With "stranger" the importer, which has to be root, becomes another user first: nothing is imported.
 *
 * Built against the distribution's headers. Prints the number of checks.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "pair.h"

enum { PAGE = 4096, LENGTH = 4 * PAGE };

/* What the exporter says of its objects. */
struct objects {
	uint32_t domain, first, second, odd, dm;
	uint64_t address, other;
};

static struct ibv_context *context;
static struct ibv_cq *cq;
static struct ibv_qp *qp, *peer;
static struct ibv_mr *mine;
static uint8_t own[PAGE];

static struct ibv_context *open_device(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *opened;

	CHECK(list && list[0] && (opened = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	return opened;
}

/* Of a child: nobody waits for it when the checks have failed. */
static void end_with_parent(void)
{
	alarm(60);
	RETURNS(0, prctl(PR_SET_PDEATHSIG, SIGKILL));
}

/* A message, and a descriptor with it. */
static void tell(int way, const void *bytes, size_t length, int descriptor)
{
	union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } control = {};
	struct iovec part = { (void *)bytes, length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };

	if (descriptor >= 0) {
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
		control.head = (struct cmsghdr) { CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
		memcpy(CMSG_DATA(&control.head), &descriptor, sizeof(int));
	}
	CHECK(sendmsg(way, &message, MSG_NOSIGNAL) == (ssize_t)length);
}

static int hear(int way, void *bytes, size_t length)
{
	union { struct cmsghdr head; char room[CMSG_SPACE(sizeof(int))]; } control = {};
	struct iovec part = { bytes, length };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control) };
	int descriptor = -1;

	CHECK(recvmsg(way, &message, 0) == (ssize_t)length);
	if (message.msg_controllen)
		memcpy(&descriptor, CMSG_DATA(&control.head), sizeof(int));
	return descriptor;
}

/* The process whose memory it is. It does as it is told, a letter at a time, and sleeps in between; or polls, once it has been told so. */
static void export(int way)
{
	struct ibv_pd *pd;
	struct ibv_mr *mr[3];
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm *dm;
	struct objects objects;
	struct pollfd told = { .fd = way, .events = POLLIN };
	struct ibv_wc wc;
	int polls = 0;
	uint8_t *bytes = mmap(NULL, 3 * LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char order;

	context = open_device();
	CHECK(bytes != MAP_FAILED && (pd = ibv_alloc_pd(context)) && (dm = ibv_alloc_dm(context, &attr)));
	memset(bytes, 'a', 3 * LENGTH);
	mr[0] = ibv_reg_mr(pd, bytes, LENGTH, ALL);
	mr[1] = ibv_reg_mr_iova(pd, bytes + LENGTH, LENGTH, 0x10000, ALL);
	mr[2] = ibv_reg_mr(pd, bytes + 2 * LENGTH + 8, PAGE, ALL);
	CHECK(mr[0] && mr[1] && mr[2]);
	objects = (struct objects) {
		pd->handle, mr[0]->handle, mr[1]->handle, mr[2]->handle, dm->handle, (uintptr_t)bytes, 0x10000,
	};
	tell(way, &objects, sizeof(objects), context->cmd_fd);
	CHECK((cq = ibv_create_cq(context, 1, NULL, NULL, 0)));
	for (;;) {
		while (polls && poll(&told, 1, 1) == 0)
			RETURNS(0, ibv_poll_cq(cq, 1, &wc));
		if (read(way, &order, 1) != 1)
			break;
		switch (order) {
		case 'p':
			polls = 1;
			break;
		case 'w':	/* The importer has written here, and reads what is written next. */
			CHECK(bytes[0] == 'b' && bytes[LENGTH - 1] == 'b' && bytes[LENGTH] == 'a');
			bytes[1] = 'c';
			break;
		case 'd':
			RETURNS(0, ibv_dereg_mr(mr[0]));
			CHECK(bytes[0] == 'b' && bytes[1] == 'c');
			memset(bytes, 'd', LENGTH);
			break;
		case 's':	/* Nothing that the importer has done since came here. */
			CHECK(bytes[0] == 'd' && bytes[LENGTH - 1] == 'd');
			break;
		}
		tell(way, &order, 1, -1);
	}
	_exit(0);
}

static void order(int way, char letter)
{
	char answer;

	tell(way, &letter, 1, -1);
	CHECK(read(way, &answer, 1) == 1 && answer == letter);
}

/* Whether the system lets pages be moved, and guarded. */
static int can_move(void)
{
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC | 1);
	int device = open("/dev/userfaultfd", O_RDWR | O_CLOEXEC);
	int can = faults >= 0 || device >= 0;

	close(faults);
	close(device);
	return can;
}

static enum ibv_wc_status operation(enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t address, uint32_t key)
{
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1, .wr.rdma = { address, key } }, *bad;

	RETURNS(0, ibv_post_send(qp, &wr, &bad));
	return completion(cq).status;
}

/* The importer's queue pairs, in the imported domain. Returns whether attributes connect them. */
static int begin(struct ibv_pd *pd, const char *address)
{
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC, .cap = { 16, 16, 1, 1, 0 }, .sq_sig_all = 1 };

	cq = ibv_create_cq(context, 64, NULL, NULL, 0);
	init.send_cq = init.recv_cq = cq;
	CHECK(cq && (qp = ibv_create_qp(pd, &init)) && (peer = ibv_create_qp(pd, &init)));
	CHECK((mine = ibv_reg_mr(pd, own, PAGE, ALL)));
	return connect_pair(context, qp, peer, address);
}

/* A connection to the exporter, as its descriptor names it. */
static int reach(int descriptor)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	int length = snprintf(name.sun_path + 1, 16, "adverb/export/");
	int way = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	CHECK(way >= 0 && pread(descriptor, name.sun_path + 1 + length, 49, 0) == 48);
	RETURNS(0, connect(way, (struct sockaddr *)&name, offsetof(struct sockaddr_un, sun_path) + 1 + length + 32));
	return way;
}

/* A question that is answered, to a process of the same user. */
#define QUESTION "aex1\3                   "

/* What is no question is not answered. */
static void ask_nonsense(int descriptor)
{
	char answer[256];

	for (int i = 0; i < 3; i++) {
		int way = reach(descriptor);

		CHECK(i == 0 || send(way, i == 1 ? "x" : QUESTION, i == 1 ? 1 : 24, 0) > 0);
		if (i == 2)
			CHECK(recv(way, answer, sizeof(answer), 0) >= 40);
		if (i == 1)
			CHECK(recv(way, answer, sizeof(answer), 0) == 0);
		close(way);
	}
}

/* Another user knows what the descriptor says, and is told nothing; nor does it take an answer of the exporter's. */
static void ask_as_another_user(int descriptor)
{
	enum { DAEMON = 1 };
	char answer[256];
	int way;

	RETURNS(0, setresgid(DAEMON, DAEMON, DAEMON));
	RETURNS(0, setresuid(DAEMON, DAEMON, DAEMON));
	way = reach(descriptor);
	/* It may be closed before the question is out, or with the question unread. */
	send(way, QUESTION, 24, MSG_NOSIGNAL);
	CHECK(recv(way, answer, sizeof(answer), 0) <= 0);
	close(way);
	NO_OBJECT(EACCES, ibv_import_device(descriptor));
}

/* Exporters that lie: each import fails, and nothing else happens. */
static void believe_nobody(const char *device)
{
	static const char digits[] = "0123456789abcdef0123456789abcdef0123456789abcdef";
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	char text[64];
	int descriptor = memfd_create("adverb-context", MFD_CLOEXEC), listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	int length, status;
	pid_t liar;
	struct ibv_context *imported;
	struct ibv_pd *pd;

	CHECK(descriptor >= 0 && listener >= 0);
	NO_OBJECT(EINVAL, ibv_import_device(descriptor));
	/* Digits of our own, so that nobody else listens there. */
	snprintf(text, sizeof(text), "%08x%s", getpid(), digits + 8);
	CHECK(pwrite(descriptor, text, 48, 0) == 48);
	NO_OBJECT(EOPNOTSUPP, ibv_import_device(descriptor));
	length = snprintf(name.sun_path + 1, sizeof(name.sun_path) - 1, "adverb/export/%.32s", text);
	RETURNS(0, bind(listener, (struct sockaddr *)&name, offsetof(struct sockaddr_un, sun_path) + 1 + length));
	RETURNS(0, listen(listener, 8));
	liar = fork();
	CHECK(liar >= 0);
	for (int i = 0; liar == 0; i++) {
		struct { char magic[4]; int32_t errnum; uint32_t access, pad; uint64_t iova, length, offset; char text[16]; } lie = { .magic = "aex1" };
		int way = accept(listener, NULL, NULL), memory = -1;
		char question[64];

		end_with_parent();
		CHECK(way >= 0 && recv(way, question, sizeof(question), 0) == 24);
		if (i == 1)
			strcpy(lie.text, "nowhere0");
		if (i == 2 || i == 3)
			strncpy(lie.text, device, sizeof(lie.text));
		if (i >= 4) {
			lie.access = i == 4 ? ~0u : ALL;
			lie.length = i == 5 ? 100 : i == 6 ? UINT64_MAX : PAGE;
			lie.offset = i == 7 ? UINT64_MAX - PAGE + 1 : 0;
			memory = memfd_create("memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
			RETURNS(0, ftruncate(memory, PAGE));
			if (i != 8)
				RETURNS(0, fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK));
		}
		if (i == 9)
			close(way);
		else
			tell(way, &lie, i == 0 ? 12 : offsetof(typeof(lie), text) + strlen(lie.text), i == 10 ? -1 : memory);
		close(memory);
		if (i < 9)
			close(way);
		if (i == 10)
			_exit(0);
	}
	close(listener);
	NO_OBJECT(EINVAL, ibv_import_device(descriptor));
	NO_OBJECT(ENODEV, ibv_import_device(descriptor));
	imported = ibv_import_device(descriptor);
	CHECK(imported && (pd = ibv_import_pd(imported, 1)));
	for (int i = 4; i < 11; i++)
		NO_OBJECT(i == 9 ? ECONNRESET : EINVAL, ibv_import_mr(pd, 77));
	CHECK(waitpid(liar, &status, 0) == liar && status == 0);
	NO_OBJECT(EOPNOTSUPP, ibv_import_mr(pd, 77));
	ibv_unimport_pd(pd);
	RETURNS(0, ibv_close_device(imported));
}

/* The exporter's program has three seconds to answer: where it gets no processor for so long, it is asked again. A refusal comes sooner, and stays one. */
static struct ibv_mr *imported(struct ibv_pd *pd, uint32_t number)
{
	struct ibv_mr *mr = NULL;
	struct timespec before, after;

	for (int i = 0; i < 3 && !mr; i++) {
		clock_gettime(CLOCK_MONOTONIC, &before);
		mr = ibv_import_mr(pd, number);
		clock_gettime(CLOCK_MONOTONIC, &after);
		if (!mr && (errno != EOPNOTSUPP || after.tv_sec - before.tv_sec < 2))
			break;
	}
	return mr;
}

int main(int argc, char **argv)
{
	struct objects objects;
	struct ibv_mr *mr, *second;
	struct ibv_sge local, there;
	struct ibv_context *plain;
	struct ibv_pd *pd;
	int ways[2], descriptor, status, connected;
	pid_t exporter;

	CHECK(argc == 2 || argc == 3);
	alarm(60);
	RETURNS(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ways));
	exporter = fork();
	CHECK(exporter >= 0);
	if (exporter == 0) {
		end_with_parent();
		close(ways[0]);
		export(ways[1]);
	}
	close(ways[1]);
	descriptor = hear(ways[0], &objects, sizeof(objects));
	CHECK(descriptor >= 0);
	if (getenv("ADVERB_LOCAL") && strcmp(getenv("ADVERB_LOCAL"), "auto")) {
		/* The exporter lets nobody in. */
		NO_OBJECT(EOPNOTSUPP, ibv_import_device(descriptor));
		printf("%d checks\n", checks);
		return 0;
	}
	ask_nonsense(descriptor);
	if (argc == 3) {
		ask_as_another_user(descriptor);
		printf("%d checks\n", checks);
		return 0;
	}
	plain = open_device();
	believe_nobody(plain->device->name);
	context = ibv_import_device(descriptor);
	CHECK(context && context->cmd_fd == descriptor && context->device == plain->device);
	NO_OBJECT(ENOENT, ibv_import_pd(context, objects.domain + 1000));
	pd = ibv_import_pd(context, objects.domain);
	CHECK(pd && pd->context == context && pd->handle == objects.domain);
	NO_OBJECT(ENOENT, ibv_import_mr(pd, objects.first + 256));
	NO_OBJECT(EOPNOTSUPP, ibv_import_dm(context, objects.dm));
	connected = begin(pd, argv[1]);
	/* It sleeps. */
	NO_OBJECT(EOPNOTSUPP, ibv_import_mr(pd, objects.first));
	order(ways[0], 'p');
	NO_OBJECT(EOPNOTSUPP, ibv_import_mr(pd, objects.odd));
	if (!can_move()) {
		NO_OBJECT(EOPNOTSUPP, ibv_import_mr(pd, objects.first));
		printf("%d checks\n", checks);
		return 0;
	}
	mr = imported(pd, objects.first);
	second = imported(pd, objects.second);
	CHECK(mr && second && mr->addr == NULL && mr->length == LENGTH && mr->handle == objects.first && mr->pd == pd);
	CHECK(mr->lkey != second->lkey);
	RETURNS(EBUSY, ibv_dealloc_pd(pd));
	local = (struct ibv_sge) { (uintptr_t)own, PAGE, mine->lkey };
	if (connected) {
		memset(own, 'b', PAGE);
		/* To the exporter's memory, by the exporter's addresses, as remote and as local side. */
		CHECK(operation(IBV_WR_RDMA_WRITE, local, objects.address, mr->rkey) == IBV_WC_SUCCESS);
		there = (struct ibv_sge) { objects.address + LENGTH - PAGE, PAGE, mr->lkey };
		CHECK(operation(IBV_WR_RDMA_READ, there, (uintptr_t)own, mine->rkey) == IBV_WC_SUCCESS);
		order(ways[0], 'w');
		CHECK(operation(IBV_WR_RDMA_READ, local, objects.address, mr->rkey) == IBV_WC_SUCCESS && own[0] == 'b' && own[1] == 'c');
		CHECK(operation(IBV_WR_RDMA_READ, local, objects.other, second->rkey) == IBV_WC_SUCCESS && own[1] == 'a');
		CHECK(operation(IBV_WR_RDMA_READ, local, objects.address + LENGTH - 8, mr->rkey) == IBV_WC_REM_ACCESS_ERR);
		connect_pair(context, qp, peer, argv[1]);
		/* Deregistered there, the key is dead here before long. */
		order(ways[0], 'd');
		do
			status = operation(IBV_WR_RDMA_READ, local, objects.address, mr->rkey);
		while (status == IBV_WC_SUCCESS);
		CHECK(status == IBV_WC_REM_ACCESS_ERR);
		connect_pair(context, qp, peer, argv[1]);
		there = (struct ibv_sge) { objects.address, 8, mr->lkey };
		CHECK(operation(IBV_WR_RDMA_READ, there, (uintptr_t)own, mine->rkey) == IBV_WC_LOC_PROT_ERR);
		order(ways[0], 's');
		connect_pair(context, qp, peer, argv[1]);
	} else {
		order(ways[0], 's' + 1);
	}
	ibv_unimport_mr(mr);
	/* Its process is killed: the pages stay. */
	RETURNS(0, kill(exporter, SIGKILL));
	CHECK(waitpid(exporter, &status, 0) == exporter && WIFSIGNALED(status));
	if (connected) {
		memset(own, 'e', PAGE);
		CHECK(operation(IBV_WR_RDMA_WRITE, local, objects.other, second->rkey) == IBV_WC_SUCCESS);
		memset(own, 0, PAGE);
		CHECK(operation(IBV_WR_RDMA_READ, local, objects.other, second->rkey) == IBV_WC_SUCCESS && own[PAGE - 1] == 'e');
	}
	NO_OBJECT(EOPNOTSUPP, ibv_import_mr(pd, objects.second));
	NO_OBJECT(EOPNOTSUPP, ibv_import_pd(context, objects.domain));
	ibv_unimport_mr(second);
	RETURNS(0, ibv_destroy_qp(qp));
	RETURNS(0, ibv_destroy_qp(peer));
	RETURNS(0, ibv_dereg_mr(mine));
	RETURNS(0, ibv_destroy_cq(cq));
	RETURNS(0, ibv_dealloc_pd(pd));
	RETURNS(0, ibv_close_device(context));
	RETURNS(0, ibv_close_device(plain));
	printf("%d checks\n", checks);
	return 0;
}
