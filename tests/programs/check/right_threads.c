/* Two threads post to a queue pair each and poll one completion queue, under a lock of their own.
 * only: roce0
 * correct
 */
#include "common.h"
#include <pthread.h>

static struct ibv_cq *cq;
static struct ibv_mr *mr;
static int done;

static void *work(void *argument)
{
	struct ibv_qp *qp = argument;
	struct ibv_sge list = piece(mr, 0, 8);
	for (int i = 0; i < 100; i++) {
		struct ibv_send_wr wr = one_sided(i, IBV_WR_RDMA_WRITE, &list, mr, 2048), *bad;
		zero(ibv_post_send(qp, &wr, &bad));
		wait_good(cq, 1);
	}
	__atomic_add_fetch(&done, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	struct ibv_qp *qp[2];
	pthread_t thread[2];
	cq = some(ibv_create_cq(context, 32, NULL, NULL, 0));
	mr = new_region(pd, 4096, REMOTE);
	for (int i = 0; i < 2; i++) {
		qp[i] = new_queue_pair(pd, cq, IBV_QPT_RC);
		to_ready(qp[i], 0);
		zero(pthread_create(&thread[i], NULL, work, qp[i]));
	}
	for (int i = 0; i < 2; i++)
		zero(pthread_join(thread[i], NULL));
	zero(ibv_destroy_qp(qp[0]));
	zero(ibv_destroy_qp(qp[1]));
	end_region(mr);
	zero(ibv_destroy_cq(cq));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return done == 2 ? 0 : 1;
}
