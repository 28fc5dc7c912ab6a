/* A program that uses a device of the host's beside one of adverb's: every call gets to the side that has the object.
 *
 * hosts both|ours|refused: whether the host's device is there, was not asked for, or could not be had. */

#include "check.h"
#include <infiniband/verbs.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

static struct ibv_pd *hosts_pd;

static void *registers(void *unused)
{
	struct ibv_mr *mr = ibv_reg_mr(hosts_pd, &mr, 1, 0);

	CHECK(mr != NULL && mr->context == hosts_pd->context && mr->lkey == 1);
	RETURNS(0, ibv_dereg_mr(mr));
	return NULL;
}

static void *waits(void *channel)
{
	struct ibv_cq *cq;
	void *of_cq;

	ibv_get_cq_event(channel, &cq, &of_cq);
	return NULL;
}

/* Calls for ours and for the host's in turns; `round` counts from 1. */
static void both_sides(struct ibv_device *our_device, struct ibv_device *their_device, int round)
{
	struct ibv_context *ours = ibv_open_device(our_device), *theirs = ibv_open_device(their_device);
	struct ibv_cq_init_attr_ex extended = { .cqe = 1 };
	struct ibv_async_event event = { .event_type = IBV_EVENT_QP_FATAL };
	struct ibv_pd *our_pd = ibv_alloc_pd(ours), *their_pd = hosts_pd = ibv_alloc_pd(theirs);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(theirs);
	struct ibv_cq *our_cq = ibv_create_cq(ours, 7, NULL, NULL, 0), *their_cq = ibv_create_cq(theirs, 7, &extended, channel, 3), *cq;
	struct ibv_device_attr attr;
	char byte;
	struct ibv_mr *our_mr = ibv_reg_mr(our_pd, &byte, 1, 0), *their_mr = ibv_reg_mr(their_pd, &byte, 1, 0);
	struct ibv_wc wc;
	pthread_t thread;
	void *of_cq;

	CHECK(ours && theirs && our_pd && their_pd && channel && our_cq && their_cq && our_mr && their_mr);
	CHECK(our_pd->context == ours && their_pd->context == theirs);
	CHECK(their_cq->cqe == 10 && their_cq->cq_context == &extended && their_cq->channel == channel);
	CHECK(ibv_poll_cq(our_cq, 1, &wc) == 0 && ibv_poll_cq(their_cq, 1, &wc) == 2);
	FAILS(ENOSPC, ibv_rereg_mr(their_mr, 1, our_pd, &wc, 3, 4));
	CHECK(their_mr->lkey == 1 && their_mr->pd == our_pd && their_mr->addr == &wc && their_mr->length == 3 && their_mr->rkey == 4);
	NO_OBJECT(ENOLINK, (struct ibv_cq *)ibv_create_cq_ex(theirs, &extended));
	cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(ours, &extended));
	CHECK(cq != NULL);
	RETURNS(0, ibv_destroy_cq(cq));
	/* The host's library is older. */
	NO_OBJECT(EOPNOTSUPP, ibv_import_pd(theirs, 1));
	RETURNS(0, pthread_create(&thread, NULL, registers, NULL));
	RETURNS(0, pthread_join(thread, NULL));

	CHECK(write(channel->refcnt, &their_cq, sizeof(their_cq)) == sizeof(their_cq));
	RETURNS(0, ibv_get_cq_event(channel, &cq, &of_cq));
	CHECK(cq == their_cq && of_cq == &extended);
	ibv_ack_cq_events(their_cq, 5);
	event.element.cq = their_cq;
	ibv_ack_async_event(&event);
	event.event_type = IBV_EVENT_PORT_ACTIVE;
	ibv_ack_async_event(&event);
	RETURNS(0, ibv_query_device(theirs, &attr));
	CHECK(attr.max_cq == 5 * round && attr.max_srq == round);
	RETURNS(0, ibv_query_device(ours, &attr));
	CHECK(attr.max_cq > 5 * round);
	/* A thread that waits in the host's library can be cancelled. */
	RETURNS(0, pthread_create(&thread, NULL, waits, channel));
	RETURNS(0, pthread_cancel(thread));
	RETURNS(0, pthread_join(thread, &of_cq));
	CHECK(of_cq == PTHREAD_CANCELED);

	RETURNS(0, ibv_dereg_mr(our_mr));
	RETURNS(0, ibv_dereg_mr(their_mr));
	RETURNS(0, ibv_destroy_cq(our_cq));
	RETURNS(0, ibv_destroy_cq(their_cq));
	RETURNS(0, ibv_destroy_comp_channel(channel));
	RETURNS(0, ibv_dealloc_pd(our_pd));
	RETURNS(EBUSY, ibv_dealloc_pd(their_pd));
	RETURNS(0, ibv_close_device(ours));
	RETURNS(0, ibv_close_device(theirs));
	RETURNS(EINVAL, ibv_query_device(NULL, &attr));
}

int main(int count, char **arguments)
{
	int both = !strcmp(arguments[1], "both"), found, number;
	struct ibv_device **list, **again;
	pthread_key_t keys[2];

	for (number = 0; number < 2; number++) {
		RETURNS(0, pthread_key_create(&keys[number], NULL));
		RETURNS(0, pthread_setspecific(keys[number], &keys[number]));
	}
	errno = 0;
	list = ibv_get_device_list(&found);
	CHECK(errno == 0 && list != NULL && found == 1 + both && list[found] == NULL);
	again = ibv_get_device_list(&found);
	CHECK(found == 1 + both && again[0] == list[0] && again[both] == list[both]);
	ibv_free_device_list(again);
	CHECK(!strcmp(ibv_get_device_name(list[0]), "roce0") && !strcmp(list[0]->dev_name, strcmp(arguments[1], "ours") ? "uverbs1024" : "uverbs0"));
	CHECK(ibv_get_device_guid(list[0]) != 0x77);
	RETURNS(both ? ENOSYS : 0, ibv_fork_init());
	if (both) {
		CHECK(!strcmp(ibv_get_device_name(list[1]), "host0") && ibv_get_device_guid(list[1]) == 0x77);
		for (number = 1; number <= 2; number++)
			both_sides(list[0], list[1], number);
	}
	ibv_free_device_list(list);
	for (number = 0; number < 2; number++)
		CHECK(pthread_getspecific(keys[number]) == &keys[number]);
	printf("%d checks\n", checks);
	return 0;
}
