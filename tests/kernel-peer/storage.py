"""The kernel's disks and ours: iSER and NVMe over RDMA, each side in the guest once where there are two, every byte compared.

What the guest does is in guest-storage; tgtd's script and the client of libiscsi are those of tests/programs/consumers.
"""

import os
import signal
import subprocess
import sys
import tempfile

import peer
import wire
from harness.namespace import free_port
from harness.pair import Pair
from harness.process import expect_success, wait_until
from harness.report import Failed

PROGRAMS = os.path.join(peer.ROOT, "tests/programs")
# Behind our own, which has a table of cases, too.
sys.path.append(PROGRAMS)
import consumers  # noqa: E402

MIB = 1 << 20
LIMIT_S = 120
ISER_INITIATOR = Pair("iser_initiator", "", "", connections=1, bytes=2 * 4 * MIB)
ISER_TARGET = Pair("iser_target", "", "", connections=1, bytes=2 * 3 * 2 * MIB)
NVME_TARGET = Pair("nvme_target", "", "", connections=2, bytes=2 * 2 * 4 * MIB)


def install():
    """What is from PyPI, where that can be reached."""
    consumers.install_wheels()


def tests(driver):
    yield from _test(driver, ISER_INITIATOR, iser_initiator)
    # Linux's iSER target listens for ordinary iSCSI on the same port, which over siw is one and the same.
    if driver != "siw":
        yield from _test(driver, ISER_TARGET, iser_target)
    yield from _test(driver, NVME_TARGET, nvme_target)


def _test(driver, pair, test):
    yield f"kernel_peer::{driver}_storage::{pair.name}_in_guest", on_wire, (driver, pair, test)


def on_wire(driver, pair, test):
    """The test succeeds, and the wire shows as much of the driver's protocol as the pair says."""
    port = free_port()
    if driver == "rxe":
        return wire.rxe(pair, 4, lambda: test(driver, port))
    peer.set_siw(crc=True)
    return wire.siw(pair, port, 4, True, lambda: test(driver, port))


def iser_initiator(driver, port):
    """The guest fills a disk of tgtd's, which runs on adverb, and reads it back; the disk's file has these bytes, too."""
    wanted = os.urandom(4 * MIB)
    with tempfile.NamedTemporaryFile() as data, peer.here(driver, f"{PROGRAMS}/consumers/tgt {port}") as target:
        data.write(wanted)
        data.flush()
        try:
            wait_until(lambda: "ready " in target.output() or target.status() is not None, 30, "tgtd is ready")
            with peer.in_guest(f"storage login {peer.OURS[4]} {port} {data.name}", LIMIT_S) as initiator:
                expect_success([initiator], LIMIT_S + 10, [target])
                succeeded_with_every_byte(initiator)
            disk = target.output().split("ready ")[1].split()[0]
            with open(disk, "rb") as file:
                if file.read(len(wanted)) != wanted:
                    raise Failed("the target's file has other bytes than the guest has written")
        finally:
            # Its script takes tgtd with it, which does not end by itself.
            target.signal(signal.SIGTERM)
            target.wait(20)


def iser_target(driver, port):
    """libiscsi on adverb fills a disk of the guest's, and reads it back."""
    peer.tool("run", "0", f"storage iscsi {peer.GUEST[4]} {port}")
    with tempfile.TemporaryDirectory(prefix="adverb-disk-") as folder:
        disk = f"{folder}/disk"
        subprocess.run(["cc", "-O1", "-o", disk, f"{PROGRAMS}/consumers/disk.c", "-liscsi"], check=True)
        run_here(driver, f"{disk} iser://{peer.GUEST[4]}:{port}/iqn.2026-01.test:disk/0 2")


def nvme_target(driver, port):
    """The initiator that PyPI has, on adverb, fills a disk of the guest's, and reads it back."""
    peer.tool("run", "0", f"storage nvme {peer.GUEST[4]} {port}")
    run_here(driver, f"{consumers.ENVIRONMENT}/bin/python {peer.HERE}/nvme.py {peer.GUEST[4]} {port}")


def run_here(driver, command):
    with peer.here(driver, command) as client:
        try:
            expect_success([client], LIMIT_S)
        except Failed as failure:
            raise Failed(f"{failure}\nthe guest's kernel says:\n{peer.tool('run', '0', 'dmesg | tail -n 20')}") from None
        succeeded_with_every_byte(client)


def succeeded_with_every_byte(process):
    if "every byte is right" not in process.output():
        raise Failed(f"nothing was compared:\n{process.describe()}")
