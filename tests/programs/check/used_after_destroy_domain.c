/* The protection domain has gone when a late registration asks for it.
 * expects: object-used-after-destroy: protection domain
 * remedy: destroy
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	static char bytes[4096];
	zero(ibv_dealloc_pd(pd));
	struct ibv_mr *mr = ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE); /* here */
	if (mr)
		ibv_dereg_mr(mr);
	zero(ibv_close_device(context));
	return 0;
}
