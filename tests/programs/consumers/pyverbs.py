"""The package `ibverbs` for Python between two processes: a Send, a Write, a Read and atomics, every byte compared.

usage: pyverbs.py DEVICE PORT             waits for the other one
       pyverbs.py DEVICE PORT ADDRESS     works upon its memory
"""

import contextlib
import socket
import struct
import sys

import ibverbs as ib
import numpy as np

LENGTH = 1 << 20
EVERYTHING = ib.AccessFlags.LOCAL_WRITE | ib.AccessFlags.REMOTE_WRITE | ib.AccessFlags.REMOTE_READ | ib.AccessFlags.REMOTE_ATOMIC


def completed(queue):
    while not (found := queue.poll(1)):
        pass
    assert found[0].status == ib.WCStatus.SUCCESS, found[0]
    return found[0]


def received(connection, length):
    data = b""
    while len(data) < length:
        data += connection.recv(length - len(data)) or sys.exit("the other one has gone")
    return data


# PRACTICE-DEVICES-4
def kinds(context, device):
    """Whatever the table has, a file says its kind: NCCL ends without."""
    for index in range(context.query_port(1).gid_tbl_len):
        if any(context.query_gid(1, index).raw):
            with open(f"/sys/class/infiniband/{device}/ports/1/gid_attrs/types/{index}") as file:
                assert file.read() == "RoCE v2\n"


def meet(port, server):
    if server:
        return socket.create_connection((server, port))
    with socket.create_server(("0.0.0.0", port)) as listener:
        return listener.accept()[0]


def main(device, port, server=""):
    [found] = [found for found in ib.get_device_list() if found.name == device]
    context = found.open()
    kinds(context, device)
    domain, queue = context.alloc_pd(), context.create_cq(64)
    pair = domain.create_qp(
        ib.QPInitAttr(send_cq=queue, recv_cq=queue, qp_type=ib.QPType.RC, max_send_wr=16, max_recv_wr=16)
    )
    memory = np.zeros(LENGTH, dtype=np.uint8)
    region = domain.reg_mr(memory.ctypes.data, LENGTH, EVERYTHING)
    with contextlib.closing(meet(int(port), server)) as connection:
        here = ib.local_qp_info(pair, context.query_port(1), context.query_gid(1, 0), port=1, psn=0)
        place = struct.Struct("!QI")
        connection.sendall(here.to_bytes() + place.pack(memory.ctypes.data, region.rkey))
        told = received(connection, len(here.to_bytes()) + place.size)
        address, rkey = place.unpack(told[-place.size :])
        there = ib.QPInfo.from_bytes(told[: -place.size])
        ib.connect_rc(pair, there, port=1, sgid_index=0, access=EVERYTHING)
        if not server:
            pair.post_recv(ib.RecvWR(wr_id=1, sg_list=[ib.SGE(region, LENGTH)]))
        connection.sendall(b"c")
        received(connection, 1)
        (ask if server else answer)(connection, pair, queue, memory, region, address, rkey)
    print("every byte is right")


def answer(connection, pair, queue, memory, region, address, rkey):
    assert completed(queue).byte_len == LENGTH
    connection.sendall(b"r")
    received(connection, 1)
    assert memory[:8].view(np.uint64)[0] == 12 and (memory[8:] == 5).all()


def ask(connection, pair, queue, memory, region, address, rkey):
    def work(opcode, length=LENGTH, **more):
        request = ib.SendWR(
            wr_id=2, sg_list=[ib.SGE(region, length)], opcode=opcode, send_flags=ib.SendFlags.SIGNALED, **more
        )
        pair.post_send(request)
        completed(queue)

    remote = {"remote_addr": address, "rkey": rkey}
    sent = np.random.default_rng(1).integers(0, 256, LENGTH, dtype=np.uint8)
    memory[:] = sent
    work(ib.WROpcode.SEND)
    received(connection, 1)
    memory[:] = 0
    work(ib.WROpcode.RDMA_READ, **remote)
    assert (memory == sent).all()
    memory[:] = 5
    memory[:8] = 0
    work(ib.WROpcode.RDMA_WRITE, **remote)
    for expected in (0, 5):
        work(ib.WROpcode.ATOMIC_FETCH_AND_ADD, 8, compare_add=5, **remote)
        assert memory[:8].view(np.uint64)[0] == expected
    work(ib.WROpcode.ATOMIC_CMP_AND_SWP, 8, compare_add=10, swap=12, **remote)
    assert memory[:8].view(np.uint64)[0] == 10
    connection.sendall(b"d")


main(*sys.argv[1:])
