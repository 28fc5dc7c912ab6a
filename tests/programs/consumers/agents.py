"""NIXL's agents between two processes, over UCX: what is written is read back, every byte.

usage: agents.py serve FILE       says in FILE where it is, and stays
       agents.py transfer FILE    to the one that FILE names
"""

import ctypes
import os
import signal
import sys

from nixl_cu12._api import nixl_agent, nixl_agent_config

HALF = 32 << 20


def main(role, file):
    agent = nixl_agent(role, nixl_agent_config(backends=["UCX"]))
    memory = (ctypes.c_ubyte * (2 * HALF))()
    start = ctypes.addressof(memory)
    agent.register_memory([(start, 2 * HALF, 0, "")], "DRAM")
    if role == "serve":
        with open(f"{file}.new", "wb") as place:
            place.write(start.to_bytes(8, "little") + agent.get_agent_metadata())
        os.rename(f"{file}.new", file)
        print("ready", flush=True)
        signal.pause()
    with open(file, "rb") as place:
        there, peer = int.from_bytes(place.read(8), "little"), agent.add_remote_agent(place.read())
    sent = bytes((number * 11 + (number >> 8)) & 255 for number in range(1 << 16)) * (HALF >> 16)
    ctypes.memmove(start, sent, HALF)
    for operation, here in (("WRITE", start), ("READ", start + HALF)):
        own, others = (agent.get_xfer_descs([(address, HALF, 0)], "DRAM") for address in (here, there))
        transfer = agent.initialize_xfer(operation, own, others, peer)
        state = agent.transfer(transfer)
        while state == "PROC":
            state = agent.check_xfer_state(transfer)
        if state != "DONE":
            sys.exit(f"{operation}: {state}")
        agent.release_xfer_handle(transfer)
    if ctypes.string_at(start + HALF, HALF) != sent:
        sys.exit("bytes are wrong")
    print("every byte is right")


main(*sys.argv[1:])
