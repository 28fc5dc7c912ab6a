/* A worker process is forked with an open device, and polls the completion queue of its parent.
 * expects: used-in-child: completion queue ... of 16 entries ... child of fork
 * remedy: the process that made the objects
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_cq *cq = some(ibv_create_cq(context, 16, NULL, NULL, 0));
	pid_t child = fork();
	if (!child) {
		struct ibv_wc wc;
		ibv_poll_cq(cq, 1, &wc); /* here */
		_exit(0);
	}
	int status;
	waitpid(child, &status, 0);
	zero(ibv_destroy_cq(cq));
	zero(ibv_close_device(context));
	return 0;
}
