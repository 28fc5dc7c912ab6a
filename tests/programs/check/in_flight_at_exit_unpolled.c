/* The program sends its last message and ends, without a poll of the completion: it does not know whether the message has arrived.
 * expects: in-flight-at-exit: request 0x7 ... program ends
 * remedy: poll the completions of all requests before the program ends
 * also: object-leaked
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_receive(pair.b.qp, 1, mr, 2048, 64);
	post_send(pair.a.qp, 7, mr, 0, 64); /* here */
	wait_good(pair.b.received, 1);
	return 0;
}
