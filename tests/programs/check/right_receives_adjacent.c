/* Each receive begins where the one before ends.
 * correct
 */
#include "common.h"

#define LENGTH 128

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 8192, IBV_ACCESS_LOCAL_WRITE);
	for (int i = 0; i < 8; i++)
		post_receive(pair.b.qp, i, mr, 4096 + i * LENGTH, LENGTH);
	for (int i = 0; i < 8; i++)
		post_send(pair.a.qp, i, mr, 0, LENGTH);
	wait_good(pair.a.sent, 8);
	wait_good(pair.b.received, 8);
	end_region(mr);
	close_pair(&pair);
	return 0;
}
