"""The guest, and programs that run in it and here."""

import os
import shlex
import subprocess

from harness.process import Process, wait_until
from harness.report import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
ADVERB = os.environ.get("ADVERB", os.path.join(ROOT, "target/release/adverb"))
TOOL = os.path.join(HERE, "kernel-peer")
OURS = {4: "10.99.0.1", 6: "fd99::1"}
GUEST = {4: "10.99.0.2", 6: "fd99::2"}
# The device that speaks with each of the kernel's drivers.
DEVICE = {"siw": "iwarp0", "rxe": "roce0"}
# In the tables of GIDs, rxe's and ours: IPv4 comes behind the link-local address there, and first here.
GUEST_GID, OUR_GID = 1, 0
MTU, LARGE_MTU = 1500, 4200


def tool(*arguments):
    result = subprocess.run([TOOL, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    if result.returncode != 0:
        raise Failed(f"kernel-peer {shlex.join(arguments)}: status {result.returncode}\n{result.stdout}")
    return result.stdout


def succeeds(command):
    """Whether the guest answers, and the command has status 0 there."""
    run = [TOOL, "run", "0", command]
    env = {**os.environ, "KP_TIMEOUT": "5"}
    return subprocess.run(run, stdin=subprocess.DEVNULL, capture_output=True, env=env).returncode == 0


def guest_lives():
    """Whether the guest still answers and its kernel has found no fault in itself."""
    return succeeds("! dmesg | grep -q -e 'kernel BUG' -e 'Oops'")


def in_guest(command, limit_s):
    """A process that runs the command in the guest and has its output and status."""
    return Process([TOOL, "run", "0", f"timeout {limit_s} {command}"], {"KP_TIMEOUT": str(limit_s + 10)})


def here(driver, command):
    """A process that runs the command on adverb."""
    return Process([ADVERB, "run", "--device", DEVICE[driver], "--", *shlex.split(command)], {"ADVERB_LOG": "info"})


def set_siw(crc, peer_to_peer=False):
    """Tells siw in the guest, and programs that run here on adverb, whether connections have checksums."""
    tool("siw", "0", "mpa_crc_required", "1" if crc else "0")
    tool("siw", "0", "peer_to_peer", "1" if peer_to_peer else "0")
    os.environ["ADVERB_CRC"] = "on" if crc else "off"  # one side that asks is enough, so both are told


def fresh_guest(driver, mtu=MTU):
    """A guest in place of the one before; its cable and the bridge go with that one. With one driver, or with two processors and none."""
    tool("down")
    for name in ("port0", "br0"):
        subprocess.run(["ip", "link", "del", name], capture_output=True)
    os.environ.update(KP_MTU=str(mtu), KP_CPUS="1" if driver else "2")
    tool("up", "1")
    # It says that it is up a moment before it listens.
    wait_until(lambda: succeeds("true"), 30, "the guest answers")
    if driver:
        tool("only", "0", driver)
    else:
        # As long as it is loaded, rdma_rxe holds RoCE's UDP port.
        tool("run", "0", "rdma link del rxe0 && rdma link del siw0 && rmmod rdma_rxe siw")
