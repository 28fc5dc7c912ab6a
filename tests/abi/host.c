/* A libibverbs of a host, with one device that does nothing but answer. It says by its answers what has reached it.
 *
 * It is older than ours: it has no ibv_import_pd. */

#include <ctype.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#undef ibv_query_port
#undef ibv_reg_mr

static struct ibv_device device = { .node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .name = "host0", .dev_name = "uverbs0" };
static pthread_key_t key;
/* How many events of completion queues, and others, were acknowledged. */
static int completions, others;

struct ibv_device **ibv_get_device_list(int *count)
{
	struct ibv_device **list = calloc(2, sizeof(*list));

	list[0] = &device;
	*count = 1;
	errno = EXDEV;
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
__be64 ibv_get_device_guid(struct ibv_device *given) { return given == &device ? 0x77 : 0; }

static struct ibv_cq_ex *create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *attr)
{
	errno = ENOLINK;
	return NULL;
}

static int poll_cq(struct ibv_cq *cq, int most, struct ibv_wc *wc) { return most + 1; }

struct ibv_context *ibv_open_device(struct ibv_device *given)
{
	struct verbs_context *context = calloc(1, sizeof(*context));

	pthread_key_create(&key, NULL);
	pthread_setspecific(key, context);
	context->sz = sizeof(*context);
	context->create_cq_ex = create_cq_ex;
	context->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	context->context.device = given;
	context->context.ops.poll_cq = poll_cq;
	return &context->context;
}

int ibv_close_device(struct ibv_context *context)
{
	free((char *)context - offsetof(struct verbs_context, context));
	return 0;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	attr->max_cq = completions;
	attr->max_srq = others;
	return context->device == &device ? 0 : EINVAL;
}

/* 6 arguments, of which the program sees each again. */
int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access)
{
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = flags;
	mr->rkey = access;
	errno = ENOSPC;
	return -1;
}

/* Looks at a table that every thread must have. */
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	mr->context = pd->context;
	mr->lkey = isdigit('7') != 0;
	return mr;
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return EBUSY;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct ibv_comp_channel *channel = calloc(1, sizeof(*channel));
	int ends[2];

	pipe(ends);
	channel->context = context;
	channel->fd = ends[0];
	channel->refcnt = ends[1];
	return channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	close(channel->refcnt);
	free(channel);
	return 0;
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int entries, void *cq_context, struct ibv_comp_channel *channel, int vector)
{
	struct ibv_cq *cq = calloc(1, sizeof(*cq));

	cq->context = context;
	cq->cqe = entries + vector;
	cq->cq_context = cq_context;
	cq->channel = channel;
	return cq;
}

int ibv_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

/* Waits for a pointer to the queue, which the program writes. */
int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
{
	if (read(channel->fd, cq, sizeof(*cq)) != sizeof(*cq))
		return -1;
	*cq_context = (*cq)->cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int events) { completions += events; }
void ibv_ack_async_event(struct ibv_async_event *event) { others++; }
int ibv_fork_init(void) { return ENOSYS; }
