/* The protection domain is deallocated before its region: EBUSY, which the program does not look at.
 * expects: destroy-refused: protection domain ... region
 * also: object-leaked
 * remedy: first
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	static char bytes[4096];
	struct ibv_mr *mr = some(ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE));
	ibv_dealloc_pd(pd); /* here */
	zero(ibv_dereg_mr(mr));
	zero(ibv_close_device(context));
	return 0;
}
