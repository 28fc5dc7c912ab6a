/*
 * Stream sockets of rsocket(7) in one process: what they answer, what they carry, how they wait and end. Arguments: the
 * address to use. Prints the number of checks.
 */
#define _GNU_SOURCE
#include "check.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rsocket.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_storage address;
static socklen_t length;

static bool ready(int socket, short events, short expected, int timeout)
{
	struct pollfd entry = { .fd = socket, .events = events };

	return rpoll(&entry, 1, timeout) == (expected != 0) && entry.revents == expected;
}

/* A socket that listens; its address goes into `where`. */
static int server(struct sockaddr_storage *where)
{
	int socket = rsocket(address.ss_family, SOCK_STREAM, 0);
	socklen_t room = sizeof(*where);

	CHECK(socket >= 0);
	CHECK(rbind(socket, (struct sockaddr *)&address, length) == 0);
	CHECK(rlisten(socket, 5) == 0 && rlisten(socket, 5) == 0);
	CHECK(rgetsockname(socket, (struct sockaddr *)where, &room) == 0 && room == length);
	return socket;
}

/* Two sockets that are connected. */
static void connected(int *client, int *accepted)
{
	struct sockaddr_storage where, peer, own;
	socklen_t peer_length = sizeof(peer), own_length = sizeof(own);
	int listener = server(&where);

	*client = rsocket(address.ss_family, SOCK_STREAM, IPPROTO_TCP);
	CHECK(*client >= 0);
	FAILS(ENOTCONN, rgetpeername(*client, (struct sockaddr *)&peer, &peer_length));
	FAILS(ENOTCONN, rsend(*client, "x", 1, 0));
	CHECK(rconnect(*client, (struct sockaddr *)&where, length) == 0);
	CHECK(rconnect(*client, (struct sockaddr *)&where, length) == 0);
	CHECK(ready(listener, POLLIN, POLLIN, -1));
	*accepted = raccept(listener, (struct sockaddr *)&peer, &peer_length);
	CHECK(*accepted >= 0 && *accepted != *client && peer_length == length);
	CHECK(rgetsockname(*client, (struct sockaddr *)&own, &own_length) == 0);
	CHECK(!memcmp(&own, &peer, length));
	peer_length = sizeof(peer);
	CHECK(rgetpeername(*client, (struct sockaddr *)&peer, &peer_length) == 0 && !memcmp(&peer, &where, length));
	CHECK(rclose(listener) == 0);
}

static void bad_calls(void)
{
	struct sockaddr_storage where;
	struct sockaddr_un_like { sa_family_t family; char rest[20]; } odd = { .family = AF_UNIX };
	struct iovec part = { .iov_base = &odd, .iov_len = 1 };
	struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = &odd, .msg_controllen = 8 };
	int socket, value = 1;
	socklen_t size = sizeof(value);

	FAILS(ENOTSUP, rsocket(AF_UNIX, SOCK_STREAM, 0));
	FAILS(ENOTSUP, rsocket(AF_INET, SOCK_RAW, 0));
	FAILS(ENOTSUP, rsocket(AF_INET, SOCK_STREAM, IPPROTO_UDP));
	for (int number = -1; number <= 0; number++) {
		FAILS(EBADF, rbind(number, (struct sockaddr *)&address, length));
		FAILS(EBADF, rlisten(number, 1));
		FAILS(EBADF, raccept(number, NULL, NULL));
		FAILS(EBADF, rconnect(number, (struct sockaddr *)&address, length));
		FAILS(EBADF, rshutdown(number, SHUT_RDWR));
		FAILS(EBADF, rclose(number));
		FAILS(EBADF, rsend(number, "x", 1, 0));
		FAILS(EBADF, rrecv(number, &value, 1, 0));
		FAILS(EBADF, rfcntl(number, F_GETFL));
		FAILS(EBADF, rgetsockopt(number, SOL_SOCKET, SO_ERROR, &value, &size));
		FAILS(EBADF, rsetsockopt(number, SOL_SOCKET, SO_KEEPALIVE, &value, size));
		FAILS(EBADF, riomap(number, &value, 1, PROT_WRITE, 0, -1));
		FAILS(EBADF, riounmap(number, &value, 1));
	}
	socket = rsocket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	CHECK(socket >= 0 && rfcntl(socket, F_GETFL) == O_NONBLOCK && rfcntl(socket, F_GETFD) == FD_CLOEXEC);
	FAILS(ENOTSUP, rfcntl(socket, F_DUPFD, 0));
	FAILS(EFAULT, rbind(socket, NULL, length));
	FAILS(EINVAL, rbind(socket, (struct sockaddr *)&address, length - 1));
	FAILS(EAFNOSUPPORT, rconnect(socket, (struct sockaddr *)&odd, sizeof(odd)));
	FAILS(EINVAL, raccept(socket, NULL, NULL));
	FAILS(ENOTCONN, rshutdown(socket, SHUT_WR));
	FAILS(EINVAL, rshutdown(socket, 9));
	FAILS(ENOTCONN, rrecv(socket, &value, 1, 0));
	FAILS(ENOTSUP, rsendmsg(socket, &message, 0));
	FAILS(ENOTSUP, rrecvmsg(socket, &message, 0));
	FAILS(EISCONN, rsendto(socket, "x", 1, 0, (struct sockaddr *)&address, length));
	FAILS(EINVAL, riomap(socket, &value, 1, PROT_WRITE, 0, -1));
	CHECK(rclose(socket) == 0);
	FAILS(EBADF, rclose(socket));

	/* Nobody listens there any more. */
	CHECK(rclose(server(&where)) == 0);
	socket = rsocket(address.ss_family, SOCK_STREAM, 0);
	FAILS(ECONNREFUSED, rconnect(socket, (struct sockaddr *)&where, length));
	CHECK(ready(socket, POLLOUT, POLLOUT | POLLERR, 0));
	CHECK(rgetsockopt(socket, SOL_SOCKET, SO_ERROR, &value, &size) == 0 && value == ECONNREFUSED);
	CHECK(rgetsockopt(socket, SOL_SOCKET, SO_ERROR, &value, &size) == 0 && value == 0);
	FAILS(ENOTCONN, rconnect(socket, (struct sockaddr *)&where, length));
	CHECK(rclose(socket) == 0);
}

static int option(int socket, int level, int name)
{
	int value = -1;
	socklen_t size = sizeof(value);

	CHECK(rgetsockopt(socket, level, name, &value, &size) == 0 && size == sizeof(value));
	return value;
}

static void options(void)
{
	static const struct { int level, name, set, get; } list[] = {
		{ SOL_SOCKET, SO_RCVBUF, 100000, 200000 }, { SOL_SOCKET, SO_SNDBUF, 50000, 100000 },
		{ SOL_SOCKET, SO_SNDBUF, 1, 4096 }, { SOL_SOCKET, SO_REUSEADDR, 1, 1 },
		{ SOL_SOCKET, SO_OOBINLINE, 1, 1 }, { IPPROTO_TCP, TCP_NODELAY, 1, 1 }, { IPPROTO_TCP, TCP_NODELAY, 0, 0 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, 77, 77 }, { SOL_RDMA, RDMA_SQSIZE, 100, 100 }, { SOL_RDMA, RDMA_RQSIZE, 50, 50 },
		{ SOL_RDMA, RDMA_INLINE, 32, 32 }, { SOL_RDMA, RDMA_IOMAPSIZE, 8, 8 }, { SOL_SOCKET, SO_KEEPALIVE, 1, 1 },
		{ SOL_SOCKET, SO_KEEPALIVE, 0, 0 },
	};
	struct linger linger;
	socklen_t size = sizeof(linger);
	int socket = rsocket(address.ss_family, SOCK_STREAM, 0), zero = 0, client, accepted;

	CHECK(option(socket, SOL_RDMA, RDMA_SQSIZE) == 384 && option(socket, SOL_RDMA, RDMA_RQSIZE) == 384);
	CHECK(option(socket, SOL_RDMA, RDMA_INLINE) == 64 && option(socket, SOL_RDMA, RDMA_IOMAPSIZE) == 0);
	CHECK(option(socket, SOL_SOCKET, SO_RCVBUF) == 1 << 19 && option(socket, SOL_SOCKET, SO_SNDBUF) == 1 << 19);
	for (size_t n = 0; n < sizeof(list) / sizeof(*list); n++) {
		CHECK(rsetsockopt(socket, list[n].level, list[n].name, &list[n].set, sizeof(int)) == 0);
		CHECK(option(socket, list[n].level, list[n].name) == list[n].get);
	}
	CHECK(rgetsockopt(socket, SOL_SOCKET, SO_LINGER, &linger, &size) == 0 && linger.l_onoff == 1);
	FAILS(EINVAL, rsetsockopt(socket, IPPROTO_TCP, TCP_KEEPIDLE, &zero, sizeof(zero)));
	FAILS(EINVAL, rsetsockopt(socket, SOL_RDMA, RDMA_SQSIZE, &zero, 1));
	FAILS(EFAULT, rsetsockopt(socket, SOL_SOCKET, SO_LINGER, NULL, 4));
	FAILS(ENOTSUP, rsetsockopt(socket, SOL_SOCKET, 999, &zero, sizeof(zero)));
	FAILS(ENOTSUP, rgetsockopt(socket, SOL_RDMA, 999, &zero, &size));
	CHECK(rclose(socket) == 0);
	connected(&client, &accepted);
	FAILS(EINVAL, rsetsockopt(client, SOL_RDMA, RDMA_SQSIZE, &zero, sizeof(zero)));
	CHECK(option(client, IPPROTO_TCP, TCP_MAXSEG) >= 1024);
	CHECK(rclose(client) == 0 && rclose(accepted) == 0);
}

#define WHOLE (3 << 20)

static uint8_t pattern(size_t at)
{
	return (uint8_t)(at * 31 + (at >> 12));
}

static void *send_whole(void *argument)
{
	int socket = *(int *)argument;
	uint8_t *data = malloc(WHOLE);
	size_t done = 0;

	for (size_t at = 0; at < WHOLE; at++)
		data[at] = pattern(at);
	/* Pieces of all sizes, in one part and in two. */
	for (size_t size = 1; done < WHOLE; size = size * 3 % 300007 + 1) {
		size_t now = size < WHOLE - done ? size : WHOLE - done;
		struct iovec parts[2] = {
			{ .iov_base = data + done, .iov_len = now / 3 },
			{ .iov_base = data + done + now / 3, .iov_len = now - now / 3 },
		};
		ssize_t sent = size % 2 ? rsend(socket, data + done, now, 0) : rwritev(socket, parts, 2);

		CHECK(sent == (ssize_t)now);
		done += now;
	}
	free(data);
	return NULL;
}

static void *receive_whole(void *argument)
{
	int socket = *(int *)argument;
	uint8_t *data = malloc(WHOLE);
	size_t done = 0;

	for (size_t size = 7; done < WHOLE; size = size * 5 % 200003 + 1) {
		size_t now = size < WHOLE - done ? size : WHOLE - done;
		struct iovec parts[2] = {
			{ .iov_base = data + done, .iov_len = now / 2 },
			{ .iov_base = data + done + now / 2, .iov_len = now - now / 2 },
		};
		ssize_t received = size % 2 ? rreadv(socket, parts, 2) : rrecv(socket, data + done, now, MSG_WAITALL);

		CHECK(received > 0 && (size % 2 || received == (ssize_t)now));
		done += received;
	}
	for (size_t at = 0; at < WHOLE; at++)
		if (data[at] != pattern(at)) {
			fprintf(stderr, "byte %zu is wrong\n", at);
			exit(1);
		}
	free(data);
	return NULL;
}

/* Both directions at once, with two threads on each socket. */
static void data(void)
{
	pthread_t threads[4];
	uint8_t bytes[8];
	int client, accepted;

	connected(&client, &accepted);
	CHECK(pthread_create(&threads[0], NULL, send_whole, &client) == 0);
	CHECK(pthread_create(&threads[1], NULL, receive_whole, &client) == 0);
	CHECK(pthread_create(&threads[2], NULL, send_whole, &accepted) == 0);
	CHECK(pthread_create(&threads[3], NULL, receive_whole, &accepted) == 0);
	for (int n = 0; n < 4; n++)
		CHECK(pthread_join(threads[n], NULL) == 0);
	FAILS(EAGAIN, rrecv(client, bytes, 1, MSG_DONTWAIT));
	FAILS(EFAULT, rsend(client, (void *)8, 1000, 0));
	FAILS(EFAULT, rsend(client, (void *)8, 4, 0));
	CHECK(rsend(client, "abcdef", 6, 0) == 6);
	CHECK(ready(accepted, POLLIN, POLLIN, -1));
	FAILS(EFAULT, rrecv(accepted, (void *)8, 4, 0));
	CHECK(rrecv(accepted, bytes, 4, MSG_PEEK) == 4 && !memcmp(bytes, "abcd", 4));
	CHECK(rread(accepted, bytes, 2) == 2 && !memcmp(bytes, "ab", 2));
	CHECK(rrecvfrom(accepted, bytes, 8, 0, NULL, NULL) == 4 && !memcmp(bytes, "cdef", 4));
	CHECK(rsend(client, "", 0, 0) == 0 && rrecv(accepted, bytes, 0, 0) == 0);
	CHECK(rclose(client) == 0 && rclose(accepted) == 0);
}

static void waiting(void)
{
	struct sockaddr_storage where;
	struct timeval no_time = { 0 };
	struct pollfd list[4] = { 0 };
	fd_set readable, writable;
	int listener, client, accepted, pipe_ends[2], value;
	static char bytes[1 << 20];
	ssize_t sent, received;

	listener = server(&where);
	CHECK(rfcntl(listener, F_SETFL, O_NONBLOCK) == 0);
	FAILS(EAGAIN, raccept(listener, NULL, NULL));
	CHECK(ready(listener, POLLIN, 0, 0) && ready(listener, POLLIN, 0, 10));
	client = rsocket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK, 0);
	value = rconnect(client, (struct sockaddr *)&where, length);
	CHECK(value == 0 || errno == EINPROGRESS);
	CHECK(ready(client, POLLOUT, POLLOUT, -1) && option(client, SOL_SOCKET, SO_ERROR) == 0);
	CHECK(ready(listener, POLLIN, POLLIN, -1));
	accepted = raccept(listener, NULL, NULL);
	CHECK(accepted >= 0 && rfcntl(accepted, F_GETFL) == 0);
	FAILS(EAGAIN, rrecv(client, bytes, 1, 0));

	/* With an ordinary descriptor, with one that is none, and with one to be passed over. */
	CHECK(pipe(pipe_ends) == 0);
	list[0] = (struct pollfd){ .fd = accepted, .events = POLLIN };
	list[1] = (struct pollfd){ .fd = pipe_ends[0], .events = POLLIN };
	list[2] = (struct pollfd){ .fd = -1, .events = POLLIN };
	CHECK(rpoll(list, 3, 0) == 0);
	CHECK(write(pipe_ends[1], "x", 1) == 1);
	CHECK(rpoll(list, 3, -1) == 1 && list[1].revents == POLLIN && !list[0].revents && !list[2].revents);
	CHECK(read(pipe_ends[0], bytes, 1) == 1);
	CHECK(rsend(client, "y", 1, 0) == 1);
	CHECK(rpoll(list, 3, -1) == 1 && list[0].revents == POLLIN && !list[1].revents);
	FD_ZERO(&readable);
	FD_ZERO(&writable);
	FD_SET(accepted, &readable);
	FD_SET(pipe_ends[0], &readable);
	FD_SET(client, &writable);
	CHECK(rselect(1000, &readable, &writable, NULL, NULL) == 2);
	CHECK(FD_ISSET(accepted, &readable) && !FD_ISSET(pipe_ends[0], &readable) && FD_ISSET(client, &writable));
	CHECK(rrecv(accepted, bytes, 1, 0) == 1);
	CHECK(rselect(accepted + 1, &readable, NULL, NULL, &no_time) == 0 && !FD_ISSET(accepted, &readable));
	close(pipe_ends[0]);
	close(pipe_ends[1]);

	/* A peer that does not read, and then does. */
	sent = 0;
	do {
		while ((value = rsend(client, bytes, sizeof(bytes), 0)) > 0)
			sent += value;
		CHECK(value == -1 && errno == EAGAIN);
	} while (ready(client, POLLOUT, POLLOUT, 100));
	CHECK(sent >= 1 << 15);
	for (received = 0; received < sent; received += value) {
		value = rrecv(accepted, bytes, sizeof(bytes), 0);
		CHECK(value > 0);
	}
	CHECK(ready(client, POLLOUT, POLLOUT, -1));
	CHECK(rclose(client) == 0 && rclose(accepted) == 0 && rclose(listener) == 0);
}

static void endings(void)
{
	char byte;
	int client, accepted;

	connected(&client, &accepted);
	CHECK(rsend(client, "last", 4, 0) == 4);
	CHECK(rshutdown(client, SHUT_WR) == 0);
	FAILS(ECONNRESET, rsend(client, "x", 1, 0));
	for (int n = 0; n < 4; n++)
		CHECK(rrecv(accepted, &byte, 1, 0) == 1 && byte == "last"[n]);
	CHECK(rrecv(accepted, &byte, 1, 0) == 0);
	CHECK(rsend(accepted, "z", 1, 0) == 1);
	CHECK(rrecv(client, &byte, 1, 0) == 1 && byte == 'z');
	CHECK(rclose(accepted) == 0);
	CHECK(rrecv(client, &byte, 1, 0) == 0);
	CHECK(ready(client, POLLIN, POLLIN | POLLHUP, -1));
	CHECK(rclose(client) == 0);

	connected(&client, &accepted);
	CHECK(rsend(client, "q", 1, 0) == 1 && rclose(client) == 0);
	CHECK(ready(accepted, POLLIN, POLLIN, -1) || ready(accepted, POLLIN, POLLIN | POLLHUP, -1));
	CHECK(rrecv(accepted, &byte, 1, 0) == 1 && byte == 'q');
	CHECK(rrecv(accepted, &byte, 1, 0) == 0);
	FAILS(ECONNRESET, rsend(accepted, "x", 1, 0));
	CHECK(rclose(accepted) == 0);
}

static void mappings(void)
{
	struct sockaddr_storage where;
	static char memory[100000], text[100000];
	int listener = server(&where), client, accepted, entries = 2;
	char byte;

	CHECK(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)) == 0);
	CHECK(rclose(listener) == 0);
	listener = rsocket(address.ss_family, SOCK_STREAM, 0);
	CHECK(rsetsockopt(listener, SOL_RDMA, RDMA_IOMAPSIZE, &entries, sizeof(entries)) == 0);
	CHECK(rbind(listener, (struct sockaddr *)&address, length) == 0 && rlisten(listener, 1) == 0);
	CHECK(rgetsockname(listener, (struct sockaddr *)&where, &(socklen_t){ sizeof(where) }) == 0);
	client = rsocket(address.ss_family, SOCK_STREAM, 0);
	CHECK(rconnect(client, (struct sockaddr *)&where, length) == 0);
	accepted = raccept(listener, NULL, NULL);
	CHECK(accepted >= 0);
	for (size_t at = 0; at < sizeof(text); at++)
		text[at] = (char)pattern(at);

	FAILS(EINVAL, riomap(client, memory, sizeof(memory), PROT_READ, 0, -1));
	CHECK(riomap(client, memory, sizeof(memory), PROT_WRITE, 0, 5000) == 5000);
	CHECK(riomap(client, text, 10, PROT_NONE, 0, -1) == (off_t)(uintptr_t)text);
	CHECK(riomap(client, text, 10, PROT_WRITE, 0, 1 << 30) == 1 << 30);
	FAILS(ENOMEM, riomap(client, text, 20, PROT_WRITE, 0, 0));
	/* This side has given no entries to its peer. */
	FAILS(ENOMEM, riomap(accepted, text, 20, PROT_WRITE, 0, 0));
	CHECK(rsend(client, "m", 1, 0) == 1);
	CHECK(rrecv(accepted, &byte, 1, 0) == 1);
	CHECK(riowrite(accepted, text, 10, 4000, 0) == 0);
	CHECK(riowrite(accepted, text, sizeof(text), 5000, 0) == sizeof(text));
	CHECK(riowrite(accepted, text, 10, 5000 + sizeof(text) - 4, 0) == 4);
	CHECK(rsend(accepted, "w", 1, 0) == 1);
	CHECK(rrecv(client, &byte, 1, 0) == 1 && byte == 'w');
	CHECK(!memcmp(memory, text, sizeof(text) - 4) && !memcmp(memory + sizeof(text) - 4, text, 4));
	CHECK(riounmap(client, memory, sizeof(memory)) == 0);
	FAILS(EINVAL, riounmap(client, memory, sizeof(memory)));
	CHECK(riomap(client, memory, 64, PROT_WRITE, 0, 0) == 0);
	CHECK(rclose(client) == 0 && rclose(accepted) == 0 && rclose(listener) == 0);
}

/* A child of fork has none of its parent's sockets, and may have its own. */
static void forking(void)
{
	char byte;
	int client, accepted, status;
	pid_t child;

	connected(&client, &accepted);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		int own_client, own_accepted;

		FAILS(EBADF, rsend(client, "x", 1, 0));
		FAILS(EBADF, rclose(accepted));
		connected(&own_client, &own_accepted);
		CHECK(rsend(own_client, "c", 1, 0) == 1 && rrecv(own_accepted, &byte, 1, 0) == 1);
		CHECK(rclose(own_client) == 0 && rclose(own_accepted) == 0);
		exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(rsend(client, "p", 1, 0) == 1 && rrecv(accepted, &byte, 1, 0) == 1 && byte == 'p');
	CHECK(rclose(client) == 0 && rclose(accepted) == 0);
}

static void *wait_for_data(void *argument)
{
	char byte;

	rrecv(*(int *)argument, &byte, 1, 0);
	return NULL;
}

static void *wait_for_peer(void *argument)
{
	raccept(*(int *)argument, NULL, NULL);
	return NULL;
}

/* Calls that wait are cancellation points, and leave the socket as it was. */
static void cancellation(void)
{
	struct sockaddr_storage where;
	pthread_t thread;
	char byte;
	int listener = server(&where), client, accepted;

	CHECK(pthread_create(&thread, NULL, wait_for_peer, &listener) == 0);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(rclose(listener) == 0);
	connected(&client, &accepted);
	CHECK(pthread_create(&thread, NULL, wait_for_data, &client) == 0);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, NULL) == 0);
	CHECK(rsend(accepted, "n", 1, 0) == 1 && rrecv(client, &byte, 1, 0) == 1 && byte == 'n');
	CHECK(rclose(client) == 0 && rclose(accepted) == 0);
}

int main(int count, char **arguments)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST }, *found;

	if (count != 2 || getaddrinfo(arguments[1], NULL, &hints, &found) != 0)
		return 2;
	memcpy(&address, found->ai_addr, found->ai_addrlen);
	length = found->ai_addrlen;
	freeaddrinfo(found);
	bad_calls();
	options();
	data();
	waiting();
	endings();
	mappings();
	forking();
	cancellation();
	printf("%d\n", checks);
	return 0;
}
