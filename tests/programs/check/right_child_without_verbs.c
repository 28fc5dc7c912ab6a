/* A child of fork starts another program, or ends at once, and touches nothing of the device.
 * correct
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, REMOTE);
	for (int i = 0; i < 2; i++) {
		pid_t child = fork();
		if (!child && i)
			execlp("true", "true", NULL);
		if (!child)
			_exit(0);
		int status;
		if (waitpid(child, &status, 0) != child || status)
			fail("the child");
	}
	struct ibv_sge list = piece(mr, 0, 64);
	struct ibv_send_wr wr = one_sided(1, IBV_WR_RDMA_WRITE, &list, mr, 2048), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad));
	wait_good(pair.a.sent, 1);
	wait_placed(&pair);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
