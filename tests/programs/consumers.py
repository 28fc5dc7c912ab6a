"""What people bring: storage, benchmarks and collectives above verbs, as a table (harness/pair.py says what the fields mean).

Their own programs and ours in the folder consumers, which check every byte; {folder} is where the latter are compiled to.
"""

import dataclasses
import functools
import os
import re
import shlex
import subprocess
import sys
import threading

import crates
import rust
from harness.alone import alone
from harness.pair import Pair
from harness.report import Failed

MIB = 1 << 20
SOURCES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "consumers")

_ISER = "iser://{server}:{port}/iqn.2026-01.test:disk/1"


def _iser(name, client, needs=(), **more):
    return Pair(name, f"{SOURCES}/tgt {{port}}", client, ipv6=False, endless=True, ready="ready", needs=("tgtd", *needs), **more)


def _compared(name, server, client, **more):
    """Programs of ours, which know IPv4 only and say that all bytes were right."""
    return Pair(name, server, client, expect=["every byte is right"], ipv6=False, **more)


def _fio(verb):
    # The server is whoever reads. Sends are left out: fio permits no wait for a receive.
    common = "fio --name=job --ioengine=rdma --port={port} --bs=4k --iodepth=16 --size=8m"
    client = f"{common} --rw=write --hostname={{server}} --verb={verb}"
    return Pair(f"fio_{verb}", f"{common} --rw=read", client, 1, 8 * MIB, expect=["Run status"], ipv6=False)


_QPERF = "rc_bi_bw rc_bw rc_lat rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_bw rc_rdma_write_lat rc_rdma_write_poll_lat"

# Sends, Writes and Reads, each with its contents verified, by two threads with two connections each.
_DAPL = f"env DAT_OVERRIDE={SOURCES}/dat.conf stdbuf -oL dapltest"
_TRANSACTIONS = " ".join(f"{side} {kind} 4096" for kind in ("SR", "RW", "RR") for side in ("client", "server"))

# On every device.
EVERYWHERE = [
    _iser(
        "iser_hundred_logins",
        f"bash -c 'for i in $(seq 100); do iscsi-inq -i iqn.2026-01.test:initiator {_ISER} || exit; done'",
        connections=100,
        expect=["Version Descriptor"],
    ),
    _iser("iser_disk", f"{{folder}}/disk {_ISER} 16", ("libiscsi.so.7",), bytes=2 * 3 * 16 * MIB, expect=["every byte is right"]),
    _fio("write"),
    _fio("read"),
    Pair(
        "qperf",
        "qperf --listen_port {port}",
        f"qperf {{server}} --listen_port {{port}} -cm1 --time 1 {_QPERF}",
        connections=len(_QPERF.split()),
        bytes=20 * MIB,
        expect=[f"{test}:" for test in _QPERF.split()],
        ipv6=False,
        endless=True,
        any_port=True,
    ),
    *rust.EVERYWHERE,
]
# uDAPL and librpma open a device by an address that fixes one, which the loopback does not.
ON_CABLE = [
    _compared(
        "librpma",
        "{folder}/rpma serve {server} {port}",
        "{folder}/rpma ask {server} {port}",
        bytes=4 * MIB,
        ready="ready",
        needs=("librpma.so.0",),
    ),
    Pair(
        "dapltest",
        f"{_DAPL} -T S -D cable",
        f"{_DAPL} -T T -D cable -s {{server}} -i 100 -t 2 -w 2 -V {_TRANSACTIONS}",
        connections=4,
        bytes=4 * 100 * 6 * 4096,
        expect=["End of Work"],
        ipv6=False,
        endless=True,
        ready="Service Point Ready",
        any_port=True,
        needs=("libdaplofa.so.2",),
    ),
]
# What is installed from PyPI, by pip.
WHEELS = ("mooncake-transfer-engine-non-cuda==0.3.13.post1", "ibverbs==2026.10.22", "nvmeof==2026.10.22", "numpy==2.4.6")
# It asks for PyTorch, which it needs for tensors alone.
WHEELS_ALONE = ("nixl-cu12==1.5.1",)
ENVIRONMENT = os.path.join(os.environ.get("CARGO_TARGET_DIR") or os.path.join(SOURCES, "../../../target"), "wheels")

_TRANSFERS = f"{{python}} {SOURCES}/transfers.py"


def _mooncake(name, **more):
    return _compared(
        name,
        f"{_TRANSFERS} serve {{server}} {{folder}}/{{port}}",
        f"{_TRANSFERS} transfer {{client}} {{folder}}/{{port}}",
        bytes=3 * 32 * MIB,
        endless=True,
        ready="ready",
        needs=("mooncake",),
        **more,
    )


ON_ROCE = [
    _mooncake("mooncake"),
    # Each process has eight devices; memory is near to four of them.
    _mooncake("mooncake_eight_devices", connections=4, devices=("--profile", "dgx"), rails=4),
    _compared(
        "mooncake_store",
        f"{{python}} {SOURCES}/store.py serve {{server}} {{port}}",
        f"{{python}} {SOURCES}/store.py ask {{client}} {{port}} {{server}}",
        bytes=2 * 9 * MIB,
        endless=True,
        ready="objects may come",
        needs=("mooncake",),
    ),
    _compared(
        "nixl",
        f"env UCX_TLS=rc,self {{python}} {SOURCES}/agents.py serve {{folder}}/{{port}}",
        f"env UCX_TLS=rc,self {{python}} {SOURCES}/agents.py transfer {{folder}}/{{port}}",
        bytes=2 * 32 * MIB,
        endless=True,
        ready="ready",
        needs=("nixl",),
    ),
    _compared(
        "python_ibverbs",
        f"{{python}} {SOURCES}/pyverbs.py roce0 {{port}}",
        f"{{python}} {SOURCES}/pyverbs.py roce0 {{port}} {{server}}",
        bytes=3 * MIB,
        needs=("ibverbs",),
    ),
    Pair(
        "gloo",
        "{folder}/gloo 0 2 {folder}/{port} roce0",
        "{folder}/gloo 1 2 {folder}/{port} roce0",
        connections=2 * 10,
        bytes=40 * MIB,
        expect=["rank 1 of 2: all well"],
        ready="rank 0 begins",
        needs=("libgloo.so.0",),
        ipv6=False,
    ),
    *crates.PAIRS,
    *rust.ON_ROCE,
]


# A guest that moves; migration.py has the commands.
GUEST = Pair("qemu_migration", "qemu-system-x86_64", "qemu-system-x86_64", bytes=48 * MIB)


PREPARING = threading.Lock()


def prepared(pair, folder):
    """The pair with the paths of our programs, which are compiled once, and of the Python that has the wheels."""
    with PREPARING:
        compile_all(folder)
    paths = {"folder": folder, "examples": crates.EXAMPLES, "rust": rust.PROGRAMS, "python": python() if "{python}" in pair.client else ""}
    sides = {side: re.sub(r"\{(folder|examples|rust|python)\}", lambda name: paths[name[1]], getattr(pair, side)) for side in ("server", "client")}
    return dataclasses.replace(pair, **sides)


def python():
    """The Python that has the wheels."""
    if not os.path.exists(_installed()):
        raise Failed("wheels are missing: tests/programs/run --prepare installs them")
    return os.path.join(ENVIRONMENT, "bin", "python")


def transfers_command():
    return [python(), os.path.join(SOURCES, "transfers.py")]


def install_wheels():
    """Makes the environment of Python that the wheels are in, if it is not there."""
    with alone(ENVIRONMENT):
        if not os.path.exists(_installed()):
            succeed([sys.executable, "-m", "venv", "--clear", ENVIRONMENT])
            succeed([f"{ENVIRONMENT}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", *WHEELS])
            succeed([f"{ENVIRONMENT}/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps", *WHEELS_ALONE])
            os.mkdir(_installed())


def _installed():
    """What is there when everything has been installed, in these versions."""
    return os.path.join(ENVIRONMENT, "_".join(WHEELS + WHEELS_ALONE))


@functools.cache
def compile_all(folder):
    succeed(["cc", "-O1", "-Wall", "-Wextra", "-o", f"{folder}/disk", f"{SOURCES}/disk.c", "-liscsi"])
    succeed(["cc", "-O1", "-Wall", "-Wextra", "-o", f"{folder}/rpma", f"{SOURCES}/rpma.c", "-lrpma", "-libverbs"])
    succeed(["c++", "-O1", "-std=c++14", "-o", f"{folder}/gloo", f"{SOURCES}/gloo.cc", "-lgloo", "-libverbs", "-pthread"])


def succeed(command):
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise Failed(f"$ {shlex.join(command)}\n{result.stdout}{result.stderr}")
