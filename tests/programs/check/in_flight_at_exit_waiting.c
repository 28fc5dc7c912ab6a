/* The peer has no receive for the message, which waits. The program does not: it ends.
 * expects: in-flight-at-exit: request 0x7 ... is under way when the program ends
 * remedy: poll the completions of all requests before the program ends
 * also: object-leaked no-receive
 * only: roce0
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *mr = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	post_send(pair.a.qp, 7, mr, 0, 64); /* here */
	return 0;
}
