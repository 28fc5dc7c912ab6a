/* A Write ends one byte behind the peer's region: its length counts a terminating zero that the region has no room for.
 * expects: access-refused: 17 bytes ... 1 byte past the end
 * remedy: keep the address and the length within the region
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *from = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	char *bytes = some(calloc(1, 4096));
	struct ibv_mr *to = some(ibv_reg_mr(pair.pd, bytes, 16, REMOTE));
	strcpy(from->addr, "sixteen letters.");
	struct ibv_sge list = piece(from, 0, strlen(from->addr) + 1);
	struct ibv_send_wr wr = one_sided(1, IBV_WR_RDMA_WRITE, &list, to, 0), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	wait_any(pair.a.sent);
	wait_broken(&pair);
	end_region(from);
	zero(ibv_dereg_mr(to));
	free(bytes);
	close_pair(&pair);
	return 0;
}
