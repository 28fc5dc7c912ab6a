/* Two parts of the program think that a region is theirs: both deregister it.
 * expects: object-destroyed-twice: region
 * remedy: once
 */
#include "common.h"

struct buffer {
	struct ibv_mr *mr;
};

static void release(struct buffer *buffer)
{
	ibv_dereg_mr(buffer->mr); /* here */
}

int main(void)
{
	struct ibv_context *context = open_device();
	struct ibv_pd *pd = some(ibv_alloc_pd(context));
	static char bytes[4096];
	struct buffer buffer = {some(ibv_reg_mr(pd, bytes, sizeof bytes, IBV_ACCESS_LOCAL_WRITE))};
	release(&buffer);
	release(&buffer);
	zero(ibv_dealloc_pd(pd));
	zero(ibv_close_device(context));
	return 0;
}
