"""Fills an NVMe disk over RDMA in requests of many lengths, and reads it back by others: every byte, twice over.

usage: nvme.py ADDRESS PORT [SOURCE]
"""

import random
import sys

import nvmeof

NAME = "iqn.2026-01.test:disk"
PIECE = 64  # blocks at most


def pieces(blocks, seed):
    """Parts of the disk, in any order: where they begin, and how long they are."""
    dice, at, found = random.Random(seed), 0, []
    while at < blocks:
        length = min(dice.randrange(1, 2 * PIECE), blocks - at)
        found.append((at, length))
        at += length
    dice.shuffle(found)
    return found


def main():
    address, port = sys.argv[1], int(sys.argv[2])
    for round in range(2):
        with nvmeof.Controller.connect(address, NAME, port=port) as controller:
            disk = controller.namespace(1)
            block = disk.lba_size
            wanted = random.Random(round).randbytes(disk.info.size_lbas * block)
            with controller.allocate(2 * PIECE * block) as buffer:
                for at, length in pieces(disk.info.size_lbas, round):
                    buffer.write(wanted[at * block : (at + length) * block])
                    disk.write(buffer, at, length)
                disk.flush()
                for at, length in pieces(disk.info.size_lbas, ~round):
                    disk.read(buffer, at, length)
                    if buffer.read(length * block) != wanted[at * block : (at + length) * block]:
                        sys.exit(f"round {round}: {length} blocks at {at} are not what was written")
    print("every byte is right")


main()
