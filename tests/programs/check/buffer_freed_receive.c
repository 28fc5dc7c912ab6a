/* A function allocates a large buffer, posts a receive into it, and frees it before a message has come.
 * expects: buffer-freed: receive 0x5 ... 1048576 bytes
 * remedy: before its memory is freed
 */
#include "common.h"

#define LENGTH (1 << 20)

static struct ibv_mr *prepare(struct pair *pair)
{
	char *bytes = some(malloc(LENGTH));
	memset(bytes, 0, LENGTH);
	struct ibv_mr *mr = some(ibv_reg_mr(pair->pd, bytes, LENGTH, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_sge list = piece(mr, 0, LENGTH);
	struct ibv_recv_wr wr = {.wr_id = 5, .sg_list = &list, .num_sge = 1}, *bad;
	zero(ibv_post_recv(pair->b.qp, &wr, &bad)); /* here */
	free(bytes);
	return mr;
}

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *into = prepare(&pair);
	struct ibv_mr *from = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_send(pair.a.qp, 1, from, 0, 64);
	wait_any(pair.b.received);
	close_end(&pair.a);
	pair.a.id = NULL;
	zero(ibv_dereg_mr(into));
	end_region(from);
	close_pair(&pair);
	return 0;
}
