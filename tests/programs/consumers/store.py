"""Mooncake's store: objects that one process puts into the memory of another one, and gets back, every byte compared.

usage: store.py serve ADDRESS PORT           its master at that port, and memory for objects
       store.py ask ADDRESS PORT MASTER      the master's address
"""

import ctypes
import os
import random
import signal
import subprocess
import sys

from mooncake.store import MooncakeDistributedStore

MIB = 1 << 20
LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def begin_master(port):
    command = os.path.join(os.path.dirname(sys.executable), "mooncake_master")
    arguments = [command, f"-rpc_port={port}", f"-metrics_port={int(port) + 1}"]
    master = subprocess.Popen(arguments, preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))

    def end(number, _):
        master.kill()
        master.wait()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, end)


def main(role, address, port, master=""):
    if role == "serve":
        begin_master(port)
    store = MooncakeDistributedStore()
    room = 64 * MIB if role == "serve" else 0
    # An empty list of devices: all that there are.
    if store.setup(address, "P2PHANDSHAKE", room, 64 * MIB, "rdma", "", f"{master or address}:{port}"):
        sys.exit("the store does not begin")
    if role == "serve":
        print("objects may come", flush=True)
        while True:
            signal.pause()
    objects = {f"object {number}": random.Random(number).randbytes(length) for number, length in enumerate((1, 4096, MIB, 8 * MIB))}
    for name, data in objects.items():
        if store.put(name, data):
            sys.exit(f"{name} is not put")
    for name, data in objects.items():
        if store.get(name) != data:
            sys.exit(f"{name} is wrong")
    print("every byte is right")


main(*sys.argv[1:])
