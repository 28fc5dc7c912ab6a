/*
 * Every operation of every service type between two processes, every byte compared, every illegal access refused.
 * main.c has the usage. Built against the distribution's headers, it knows nothing of the library that it will run on.
 */
#ifndef VERIFY_H
#define VERIFY_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

enum {
	GUARD = 4096,       /* bytes before and after each region that nobody may touch */
	SLOTS = 8,          /* receives posted at any time */
	DEPTH = 64,         /* requests of a queue */
	ELEMENTS = 4,       /* scatter/gather elements of a request */
	INLINE = 64,        /* inline data of a request */
	SMALL = 64 * 1024,  /* bytes of the regions that the peer may use in one way only */
	GRH = 40,           /* bytes before the payload of a datagram */
	RXE_WITH_INV = 4,   /* what the kernel's rxe gives for IBV_WC_WITH_INV */
	TIMEOUT_MS = 5000,
};

/* Service types, as sets. RC_IWARP: over iWARP, whose peers learn of a refusal by the end of the connection alone. */
enum service { RC_IB = 1, RC_IWARP = 2, UC = 4, UD = 8, RC = RC_IB | RC_IWARP, CONNECTED = RC | UC, ALL = RC | UC | UD };

/* What a side lets the other one do. */
enum right { FULL, READ_ONLY, WRITE_ONLY, FOREIGN, STALE, ONCE, RIGHTS };

struct region {
	uint8_t *memory; /* with the guards */
	uint8_t *data;
	size_t size;
	struct ibv_mr *mr;
	struct ibv_mw *window;
	uint32_t key; /* stays when the region is deregistered */
};

/* What the sides tell each other in the first message. */
struct __attribute__((packed)) introduction {
	uint32_t magic;
	uint8_t is_rxe;
	struct __attribute__((packed)) {
		uint64_t address;
		uint32_t key;
	} region[RIGHTS];
};

struct connection {
	struct ibv_context *verbs;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id; /* NULL when the sides exchange queue pair numbers themselves */
	enum service service;  /* one of them */
	bool extended;
	bool ended;
	struct ibv_pd *pd, *other_pd;
	struct ibv_comp_channel *completions;
	struct ibv_cq *send_cq, *receive_cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_qp_ex *qpx;
	struct ibv_ah *ah; /* where datagrams go */
	uint32_t peer_qpn, peer_qkey;
	size_t mtu;
	struct region local;
	struct region inbox;
	struct region exposed[RIGHTS];
	struct introduction peer;
	int receives;  /* posted and not completed */
	uint64_t next; /* number of the next send request */
};

struct operation {
	enum ibv_wr_opcode opcode;
	unsigned int flags;
	struct ibv_sge *sges;
	int elements;
	uint64_t address;
	uint32_t key;
	uint32_t immediate; /* or the key to invalidate */
	uint64_t compare_add, swap;
};

struct completion {
	uint64_t wr_id;
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
	uint32_t length; /* of the payload */
	uint32_t immediate;
	unsigned int flags;
	uint32_t qp_num, source_qp;
};

struct test {
	const char *name;
	void (*initiate)(struct connection *);
	void (*serve)(struct connection *);
	int services;   /* to which it applies */
	uint64_t needs; /* operations of the extended interface that the device must have, or the case does not apply */
	int variant;
	int without_srq;    /* services to which it does not apply with a shared receive queue */
	bool only_srq;
	bool own_exchange;  /* applies only where the sides exchange queue pair numbers themselves */
	uint8_t rnr_retry;  /* if not 7, without end */
	uint8_t retries;    /* if not as many as there can be */
	uint8_t timeout;    /* of acknowledgements, if not the usual one */
};

/* main.c */
extern const struct test *current;
extern bool initiator_is_client, use_extended, is_server, use_srq;
extern enum service service;
extern size_t region_size, slot_size; /* bytes of the region for everything, and of a receive */
extern uint64_t compared, refused, operations_done;
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
bool initiates(void);
void wait_for_end(struct connection *c);

/* bytes.c */
void fill(uint8_t *target, size_t length, uint32_t seed);
void check(const uint8_t *found, size_t length, uint32_t seed, const char *what);
void check_untouched(const struct region *region, size_t from, size_t to, const char *what);
void check_all_untouched(const struct region *region, const char *what);
void restore_range(struct region *region, size_t from, size_t to);
void restore(struct region *region);
void make_region(struct region *region, struct ibv_pd *pd, size_t size, int access);
void end_region(struct region *region);
struct ibv_sge element(const struct region *region, size_t offset, size_t length);
int split(const struct region *region, size_t offset, size_t length, int pieces, struct ibv_sge *sges);

/* queue.c */
int try_post(struct connection *c, struct operation *list, int count, int *bad);
void post(struct connection *c, struct operation *list, int count);
void post_receive_list(struct connection *c, uint64_t wr_id, struct ibv_sge *sges, int count);
void post_receive(struct connection *c, int slot);
uint8_t *payload_of(struct connection *c, const struct completion *found);
bool poll_once(struct connection *c, struct ibv_cq *cq, struct completion *found);
struct completion wait_for(struct connection *c, struct ibv_cq *cq);
void sent(struct connection *c, uint64_t wr_id, enum ibv_wc_opcode opcode);
struct completion received(struct connection *c);
enum ibv_wc_opcode completion_of(enum ibv_wr_opcode opcode);
void perform(struct connection *c, struct operation o);
void tell(struct connection *c);
void hear(struct connection *c);
uint64_t peer_address(const struct connection *c, enum right right);
uint32_t peer_key(const struct connection *c, enum right right);
void expect_async(struct connection *c, enum ibv_event_type expected);

/* resources.c */
uint64_t operations_of(struct connection *c, uint64_t wanted);
bool is_rxe(const struct connection *c);
void make_resources(struct connection *c);
void introduce(struct connection *c);
void end_resources(struct connection *c);

/* connection.c: by the connection manager; exchange.c: by the two sides themselves, over a TCP socket */
void cm_listen(struct sockaddr *address);
void cm_open(struct connection *c, struct sockaddr *server);
void cm_finish(struct connection *c, bool leads);
void cm_close(struct connection *c);
void cm_end(void);
void exchange_start(struct sockaddr *address, socklen_t length);
void exchange_open(struct connection *c);
void exchange_init(struct connection *c);
void exchange_step(void);
void exchange_finish(struct connection *c);
void exchange_end(void);

/* stream.c */
__attribute__((noreturn)) void stream(struct sockaddr *server, bool by_exchange);

/* data.c, refusals.c, datagrams.c */
extern const struct test data_tests[], refusal_tests[], datagram_tests[];
extern const size_t data_count, refusal_count, datagram_count;

#endif
