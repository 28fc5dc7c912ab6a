"""rdma-core's tests, and those of crates, on the kernel's drivers, in a guest of tests/kernel-peer."""

import os
import shlex
import subprocess
import tempfile

import bindings
import crates
import peer
import suite
from harness.process import Process


def prepare():
    """What a guest is made of, where the packages can be reached."""
    subprocess.run([peer.TOOL, "build"], stdin=subprocess.DEVNULL, check=True)


def column(driver, folder):
    """What becomes of the tests in `folder` on a driver, in the guest that is up."""
    return in_guest(f"{driver}0", folder)


def in_guest(device, folder, before=(), limit_s=suite.LIMIT_S):
    """What becomes of them on a device of the guest. `before`: the words in front of the command."""
    peer.tool("share", "0", suite.HERE, "driver")
    peer.tool("share", "0", folder, "suite")
    command = shlex.join(["timeout", str(limit_s), *before, *suite.driver(device, "/run/suite", place="/run/driver")])
    with Process([peer.TOOL, "machine", "0", f"cd /tmp; {command}"], {"KP_TIMEOUT": str(limit_s + 10)}) as process:
        return suite.counted(process, limit_s + 20)


def crates_column():
    """How many tests of crates pass on the driver of the guest that is up."""
    peer.tool("share", "0", crates.FOLDER, "crates")

    def start(program):
        place = os.path.join("/run/crates", os.path.relpath(program, crates.FOLDER))
        command = f"RUST_TEST_THREADS=8 timeout {bindings.LIMIT_S} {place}"
        return Process([peer.TOOL, "machine", "0", command], {"KP_TIMEOUT": str(bindings.LIMIT_S + 10)})

    return bindings.column(start)


def columns(folder):
    """All of the kernel's columns, of rdma-core's tests and of those of crates, each driver in a guest of its own."""
    with tempfile.TemporaryDirectory(prefix="adverb-kernel-peer-") as notes:
        os.environ.update(KP_HERE="1", KP_RUN=notes)
        try:
            both = {driver: _fresh_columns(driver, folder) for driver in peer.DEVICE}
            return tuple({driver: columns[table] for driver, columns in both.items()} for table in range(2))
        finally:
            peer.tool("down")


def _fresh_columns(driver, folder):
    peer.fresh_guest(driver)
    return column(driver, folder), crates_column()
