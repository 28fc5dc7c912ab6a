"""One rank of NCCL's collectives, by PyTorch: every byte is compared. Usage: collectives.py RANK RANKS PORT

Ranks that share a GPU need names of hosts of their own (NCCL_HOSTID); NCCL then takes the network between them.
"""

import sys
import time

import torch
import torch.distributed as dist

RANK, RANKS, PORT = map(int, sys.argv[1:])
SIZES = [1, 2, 257, 4096, 100_003, 1 << 20, 1 << 24]
ROUNDS = 10


def values(count, seed):
    # Small whole numbers: sums are exact whatever their order.
    return (torch.arange(count, device="cuda", dtype=torch.int64).mul(seed * 7 + 3).remainder(1009)).to(torch.float32)


def same(got, wanted, what):
    if not torch.equal(got, wanted):
        at = int((got != wanted).nonzero()[0])
        sys.exit(f"rank {RANK}: {what}: element {at} is {got.view(-1)[at]} in place of {wanted.view(-1)[at]}")


def main():
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{PORT}", rank=RANK, world_size=RANKS)
    for count in SIZES:
        mine, total = values(count, RANK), sum(values(count, rank) for rank in range(RANKS))
        reduced = mine.clone()
        dist.all_reduce(reduced)
        same(reduced, total, f"all_reduce of {count}")
        parts = [torch.empty_like(mine) for _ in range(RANKS)]
        dist.all_gather(parts, mine)
        for rank, part in enumerate(parts):
            same(part, values(count, rank), f"all_gather of {count}")
        cast = mine.clone()
        dist.broadcast(cast, src=1)
        same(cast, values(count, 1), f"broadcast of {count}")
        got = torch.empty_like(mine)
        works = dist.batch_isend_irecv([
            dist.P2POp(dist.isend, mine, (RANK + 1) % RANKS),
            dist.P2POp(dist.irecv, got, (RANK - 1) % RANKS),
        ])
        for work in works:
            work.wait()
        same(got, values(count, (RANK - 1) % RANKS), f"send and receive of {count}")
    for count in (2, 1 << 14, 1 << 18, 1 << 24):
        data = torch.ones(count, device="cuda")
        for _ in range(3):
            dist.all_reduce(data)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(ROUNDS):
            dist.all_reduce(data)
        torch.cuda.synchronize()
        took = (time.perf_counter() - start) / ROUNDS
        if RANK == 0:
            bus = 2 * (RANKS - 1) / RANKS * count * 4 / took / 1e9
            print(f"all_reduce of {count * 4} bytes: {took * 1e6:.1f} us, {bus:.3f} GB/s on the bus", flush=True)
    dist.barrier()
    if RANK == 0:
        print(f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}: {len(SIZES)} sizes, 4 collectives: every element is right", flush=True)
    dist.destroy_process_group()


main()
