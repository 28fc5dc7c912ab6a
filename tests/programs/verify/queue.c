/* Posting and polling, through either interface. */
#include <sched.h>

#include "verify.h"

int try_post(struct connection *c, struct operation *list, int count, int *bad)
{
	uint64_t first = c->next;

	*bad = 0;
	c->next += count;
	if (c->qpx) {
		struct ibv_qp_ex *qp = c->qpx;

		ibv_wr_start(qp);
		for (int i = 0; i < count; i++) {
			struct operation *o = &list[i];

			qp->wr_id = first + i;
			qp->wr_flags = o->flags & ~(unsigned int)IBV_SEND_INLINE;
			switch (o->opcode) {
			case IBV_WR_SEND: ibv_wr_send(qp); break;
			case IBV_WR_SEND_WITH_IMM: ibv_wr_send_imm(qp, o->immediate); break;
			case IBV_WR_SEND_WITH_INV: ibv_wr_send_inv(qp, o->immediate); break;
			case IBV_WR_RDMA_WRITE: ibv_wr_rdma_write(qp, o->key, o->address); break;
			case IBV_WR_RDMA_WRITE_WITH_IMM: ibv_wr_rdma_write_imm(qp, o->key, o->address, o->immediate); break;
			case IBV_WR_RDMA_READ: ibv_wr_rdma_read(qp, o->key, o->address); break;
			case IBV_WR_ATOMIC_CMP_AND_SWP:
				ibv_wr_atomic_cmp_swp(qp, o->key, o->address, o->compare_add, o->swap);
				break;
			case IBV_WR_ATOMIC_FETCH_AND_ADD: ibv_wr_atomic_fetch_add(qp, o->key, o->address, o->compare_add); break;
			case IBV_WR_LOCAL_INV: ibv_wr_local_inv(qp, o->immediate); continue;
			default: fail("opcode %d", o->opcode);
			}
			if (c->service == UD)
				ibv_wr_set_ud_addr(qp, c->ah, c->peer_qpn, c->peer_qkey);
			if (o->flags & IBV_SEND_INLINE) {
				struct ibv_data_buf buffers[ELEMENTS];

				for (int n = 0; n < o->elements; n++) {
					buffers[n].addr = (void *)(uintptr_t)o->sges[n].addr;
					buffers[n].length = o->sges[n].length;
				}
				if (o->elements == 1)
					ibv_wr_set_inline_data(qp, buffers[0].addr, buffers[0].length);
				else
					ibv_wr_set_inline_data_list(qp, o->elements, buffers);
			} else if (o->elements == 1) {
				ibv_wr_set_sge(qp, o->sges->lkey, o->sges->addr, o->sges->length);
			} else {
				ibv_wr_set_sge_list(qp, o->elements, o->sges);
			}
		}
		return ibv_wr_complete(qp);
	}

	struct ibv_send_wr requests[DEPTH], *refused_request = NULL;
	int result;

	memset(requests, 0, sizeof(requests));
	for (int i = 0; i < count; i++) {
		struct ibv_send_wr *wr = &requests[i];
		struct operation *o = &list[i];

		wr->wr_id = first + i;
		wr->next = i + 1 < count ? wr + 1 : NULL;
		wr->sg_list = o->sges;
		wr->num_sge = o->elements;
		wr->opcode = o->opcode;
		wr->send_flags = o->flags;
		wr->imm_data = o->immediate;
		if (c->service == UD) {
			wr->wr.ud.ah = c->ah;
			wr->wr.ud.remote_qpn = c->peer_qpn;
			wr->wr.ud.remote_qkey = c->peer_qkey;
		} else if (o->opcode == IBV_WR_ATOMIC_CMP_AND_SWP || o->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
			wr->wr.atomic.remote_addr = o->address;
			wr->wr.atomic.rkey = o->key;
			wr->wr.atomic.compare_add = o->compare_add;
			wr->wr.atomic.swap = o->swap;
		} else {
			wr->wr.rdma.remote_addr = o->address;
			wr->wr.rdma.rkey = o->key;
		}
	}
	result = ibv_post_send(c->qp, requests, &refused_request);
	if (result)
		*bad = (int)(refused_request - requests);
	return result;
}

void post(struct connection *c, struct operation *list, int count)
{
	int bad, result = try_post(c, list, count, &bad);

	if (result)
		fail("posting %d requests from opcode %d: %s", count, list->opcode, strerror(result));
	operations_done += count;
}

void post_receive_list(struct connection *c, uint64_t wr_id, struct ibv_sge *sges, int count)
{
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = sges, .num_sge = count }, *bad = NULL;
	int result = c->srq ? ibv_post_srq_recv(c->srq, &wr, &bad) : ibv_post_recv(c->qp, &wr, &bad);

	if (result)
		fail("posting a receive: %s", strerror(result));
	c->receives++;
}

void post_receive(struct connection *c, int slot)
{
	struct ibv_sge sge = element(&c->inbox, (size_t)slot * slot_size, slot_size);

	post_receive_list(c, slot, &sge, 1);
}

/* Takes one completion if there is one. */
bool poll_once(struct connection *c, struct ibv_cq *cq, struct completion *found)
{
	if (c->extended) {
		struct ibv_cq_ex *queue = (struct ibv_cq_ex *)cq;
		struct ibv_poll_cq_attr attr = {};
		int result = ibv_start_poll(queue, &attr);

		if (result == ENOENT)
			return false;
		if (result)
			fail("ibv_start_poll: %s", strerror(result));
		memset(found, 0, sizeof(*found));
		found->wr_id = queue->wr_id;
		found->status = queue->status;
		found->qp_num = ibv_wc_read_qp_num(queue);
		if (!found->status) {
			found->opcode = ibv_wc_read_opcode(queue);
			found->length = ibv_wc_read_byte_len(queue);
			found->flags = ibv_wc_read_wc_flags(queue);
			found->immediate = ibv_wc_read_imm_data(queue);
			found->source_qp = ibv_wc_read_src_qp(queue);
		}
		ibv_end_poll(queue);
	} else {
		struct ibv_wc wc;
		int result = ibv_poll_cq(cq, 1, &wc);

		if (result < 0)
			fail("ibv_poll_cq: %d", result);
		if (result == 0)
			return false;
		found->wr_id = wc.wr_id;
		found->status = wc.status;
		found->qp_num = wc.qp_num;
		found->opcode = wc.opcode;
		found->length = wc.byte_len;
		found->flags = wc.wc_flags;
		found->immediate = wc.imm_data;
		found->source_qp = wc.src_qp;
	}
	if (found->qp_num != c->qp->qp_num)
		fail("a completion of queue pair %x instead of %x", found->qp_num, c->qp->qp_num);
	return true;
}

struct completion wait_for(struct connection *c, struct ibv_cq *cq)
{
	struct completion found;

	while (!poll_once(c, cq, &found))
		sched_yield();
	return found;
}

/* The next send request to complete is `wr_id`, and well. */
void sent(struct connection *c, uint64_t wr_id, enum ibv_wc_opcode opcode)
{
	struct completion found = wait_for(c, c->send_cq);

	if (found.status != IBV_WC_SUCCESS)
		fail("request %llu: %s", (unsigned long long)found.wr_id, ibv_wc_status_str(found.status));
	if (found.wr_id != wr_id)
		fail("request %llu completed instead of %llu", (unsigned long long)found.wr_id, (unsigned long long)wr_id);
	if (found.opcode != opcode)
		fail("completion opcode %d instead of %d", found.opcode, opcode);
}

struct completion received(struct connection *c)
{
	struct completion found = wait_for(c, c->receive_cq);

	c->receives--;
	if (found.status != IBV_WC_SUCCESS)
		fail("receive %llu: %s", (unsigned long long)found.wr_id, ibv_wc_status_str(found.status));
	if (c->service == UD) {
		if (!(found.flags & IBV_WC_GRH) || found.length < GRH)
			fail("a datagram of %u bytes with flags %x", found.length, found.flags);
		found.length -= GRH;
	}
	return found;
}

/* The payload of the message in a receive of one element. */
uint8_t *payload_of(struct connection *c, const struct completion *found)
{
	return c->inbox.data + found->wr_id * slot_size + (c->service == UD ? GRH : 0);
}

enum ibv_wc_opcode completion_of(enum ibv_wr_opcode opcode)
{
	switch (opcode) {
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
	case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
	case IBV_WR_LOCAL_INV: return IBV_WC_LOCAL_INV;
	default: return IBV_WC_SEND;
	}
}

/* Posts one signalled request and waits until it is done. */
void perform(struct connection *c, struct operation o)
{
	uint64_t number = c->next;

	o.flags |= IBV_SEND_SIGNALED;
	post(c, &o, 1);
	sent(c, number, completion_of(o.opcode));
}

/* A short message by which the sides keep in step, and its counterpart. Its bytes are at the end of the local region. */
void tell(struct connection *c)
{
	struct ibv_sge sge = element(&c->local, region_size - 16, 4);

	perform(c, (struct operation){ .opcode = IBV_WR_SEND, .sges = &sge, .elements = 1 });
}

void hear(struct connection *c)
{
	struct completion found = received(c);

	if (found.opcode != IBV_WC_RECV || found.length != 4)
		fail("expected a word, got opcode %d with %u bytes", found.opcode, found.length);
	post_receive(c, (int)found.wr_id);
}

uint64_t peer_address(const struct connection *c, enum right right)
{
	return c->peer.region[right].address;
}

uint32_t peer_key(const struct connection *c, enum right right)
{
	return c->peer.region[right].key;
}


/* The next asynchronous event, which must concern this connection. */
void expect_async(struct connection *c, enum ibv_event_type expected)
{
	struct ibv_async_event event;

	if (ibv_get_async_event(c->verbs, &event))
		fail("ibv_get_async_event: %s", strerror(errno));
	if (event.event_type != expected)
		fail("event %s instead of %s", ibv_event_type_str(event.event_type), ibv_event_type_str(expected));
	if (expected == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq != c->srq)
		fail("an event of another queue");
	ibv_ack_async_event(&event);
}
