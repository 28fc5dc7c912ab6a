/* One completion queue for thousands of queue pairs: Linux's rxe has 32,767 entries.
 * profile: rxe
 * expects: not-on-rxe: cqe 100000 ... at most 32767
 * remedy: rxe
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_cq *cq = some(ibv_create_cq(context, 100000, NULL, NULL, 0)); /* here */
	zero(ibv_destroy_cq(cq));
	zero(ibv_close_device(context));
	return 0;
}
