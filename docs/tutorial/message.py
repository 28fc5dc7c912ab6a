"""A message by Send and receive.

    message.py serve          waits for one message and prints it
    message.py ADDRESS TEXT   sends it
"""

import sys

from pyverbs import cm_enums, enums
from pyverbs.cmid import CMID, AddrInfo, ConnParam
from pyverbs.qp import QPCap, QPInitAttr

PORT = "7471"
SIZE = 64


# ANCHOR: endpoint
def endpoint(address, flags=0):
    """A queue pair with room for one request in each direction, or a listener that makes such queue pairs."""
    source, target = (address, None) if flags else (None, address)
    source_port, target_port = (PORT, None) if flags else (None, PORT)
    found = AddrInfo(src=source, src_service=source_port, dst=target, dst_service=target_port,
                     port_space=cm_enums.RDMA_PS_TCP, flags=flags)
    return CMID(creator=found, qp_init_attr=QPInitAttr(cap=QPCap(max_send_wr=1, max_recv_wr=1), sq_sig_all=True))


def parameters():
    """How often the device repeats a packet that nobody acknowledges, and a message that finds no receive (7: without end)."""
    return ConnParam(retry=7, rnr_retry=7)
# ANCHOR_END: endpoint


def check(completion):
    if completion.status != enums.IBV_WC_SUCCESS:
        sys.exit(f"status {completion.status}, vendor_err {completion.vendor_err:#x}")
    return completion


# ANCHOR: serve
def serve():
    listener = endpoint("127.0.0.1", cm_enums.RAI_PASSIVE)
    listener.listen()
    connection = listener.get_request()
    region = connection.reg_msgs(SIZE)
    connection.post_recv(region)
    connection.accept(parameters())
    completion = check(connection.get_recv_comp())
    print(region.read(completion.byte_len, 0).decode())
    region.close()
    connection.close()
    listener.close()
# ANCHOR_END: serve


# ANCHOR: send
def send(address, text):
    connection = endpoint(address)
    text = text.encode()[:SIZE]
    region = connection.reg_msgs(len(text))
    region.write(text, len(text))
    connection.connect(parameters())
    connection.post_send(region)
    check(connection.get_send_comp())
    connection.disconnect()
    region.close()
    connection.close()
# ANCHOR_END: send


if sys.argv[1:] == ["serve"]:
    serve()
elif len(sys.argv) == 3:
    send(*sys.argv[1:])
else:
    sys.exit(__doc__)
