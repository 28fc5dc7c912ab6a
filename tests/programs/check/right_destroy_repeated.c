/* An owner tries to end its protection domain, hears EBUSY while a region is left, and succeeds after the region's end.
 * correct
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	static char bytes[4096];
	struct ibv_mr *mr = some(ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE));
	if (ibv_dealloc_pd(pd) != EBUSY)
		return 1;
	zero(ibv_dereg_mr(mr));
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
