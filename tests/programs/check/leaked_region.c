/* A region is registered for each message, and never deregistered.
 * expects: object-leaked: region
 * remedy: destroy
 */
#include "common.h"

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	static char bytes[3][4096];
	for (int i = 0; i < 3; i++)
		some(ibv_reg_mr(pd, bytes[i], sizeof bytes[i], IBV_ACCESS_LOCAL_WRITE)); /* here */
	return 0;
}
