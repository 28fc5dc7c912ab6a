/* A Send is longer than its own region: it was registered with the length of the text, and sent with the size of the buffer.
 * expects: access-refused: 256 bytes ... 244 bytes past the end
 * remedy: keep the address and the length within the region
 */
#include "common.h"

int main(void)
{
	struct pair pair = connect_pair((struct settings){0});
	struct ibv_mr *into = new_region(pair.pd, 4096, IBV_ACCESS_LOCAL_WRITE);
	char text[256] = "a short text";
	struct ibv_mr *mr = some(ibv_reg_mr(pair.pd, text, strlen(text), IBV_ACCESS_LOCAL_WRITE));
	post_receive(pair.b.qp, 1, into, 0, 4096);
	struct ibv_sge list = piece(mr, 0, sizeof text);
	struct ibv_send_wr wr = request(2, IBV_WR_SEND, &list, IBV_SEND_SIGNALED), *bad;
	zero(ibv_post_send(pair.a.qp, &wr, &bad)); /* here */
	wait_any(pair.a.sent);
	close_end(&pair.b);
	pair.b.id = NULL;
	zero(ibv_dereg_mr(mr));
	end_region(into);
	close_pair(&pair);
	return 0;
}
