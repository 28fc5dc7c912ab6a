"""Mooncake's transfer engine between two processes, which find their devices by themselves: every byte written is read back.

usage: transfers.py serve ADDRESS FILE          says in FILE where it is, and stays
       transfers.py transfer ADDRESS FILE       to the one that FILE names
       transfers.py insist ADDRESS FILE GONE DEVICE    the same in many pieces, as many again when the file GONE is there, and more until DEVICE carries some
"""

import ctypes
import os
import signal
import sys
import time

from mooncake.engine import TransferEngine

MIB = 1 << 20
HALF = 32 * MIB
# Each transfer takes a device.
PIECE = MIB
PIECES = 64


def pattern(factor):
    page = bytes((number * factor + (number >> 8)) & 255 for number in range(1 << 16))
    return page * (HALF // len(page))


def carried(device):
    """What a device has carried for this process so far."""
    names = (f"/sys/class/infiniband/{device}/ports/1/counters/port_{way}_data" for way in ("xmit", "rcv"))
    return sum(int(open(name).read()) for name in names)


def insist(engine, start, peer, there, gone, device):
    def piece(number):
        ctypes.memset(start, number & 255, PIECE)
        if engine.transfer_sync_write(peer, start, there, PIECE) or engine.transfer_sync_read(peer, start + HALF, there, PIECE):
            sys.exit("a transfer has failed")
        if ctypes.string_at(start + HALF, PIECE) != bytes([number & 255]) * PIECE:
            sys.exit("bytes are wrong")

    for number in range(PIECES):
        piece(number)
    print("half is done", flush=True)
    # What happens meanwhile happens beside transfers.
    while not os.path.exists(gone):
        piece(0)
    for number in range(PIECES):
        piece(number)
    before = carried(device)
    print("all is done", flush=True)
    # Mooncake comes back to a device half a minute after its port.
    while carried(device) == before:
        piece(0)
        time.sleep(0.2)


def main(role, address, file, *more):
    engine = TransferEngine()
    # An empty list of devices: all that there are.
    if engine.initialize(address, "P2PHANDSHAKE", "rdma", ""):
        sys.exit("the engine does not begin")
    memory = (ctypes.c_ubyte * (2 * HALF))()
    start = ctypes.addressof(memory)
    if engine.register_memory(start, 2 * HALF):
        sys.exit("the memory is not registered")
    if role == "serve":
        ctypes.memmove(start + HALF, pattern(7), HALF)
        with open(f"{file}.new", "w") as place:
            place.write(f"{address}:{engine.get_rpc_port()} {start}")
        os.rename(f"{file}.new", file)
        print("ready", flush=True)
        signal.pause()
    with open(file) as place:
        peer, there = place.read().split()
    if role == "insist":
        insist(engine, start, peer, int(there), *more)
        return print("every byte is right")
    ctypes.memmove(start, pattern(11), HALF)
    # To the first half over there, back into the second one here; then what lay in the second half over there.
    for transfer, here, offset, expected in (
        (engine.transfer_sync_write, start, 0, pattern(11)),
        (engine.transfer_sync_read, start + HALF, 0, pattern(11)),
        (engine.transfer_sync_read, start, HALF, pattern(7)),
    ):
        for piece in range(0, HALF, PIECE):
            if transfer(peer, here + piece, int(there) + offset + piece, PIECE):
                sys.exit("a transfer has failed")
        if ctypes.string_at(here, HALF) != expected:
            sys.exit("bytes are wrong")
    print("every byte is right")


main(*sys.argv[1:])
