"""rdma-core's tests on the kernel's drivers, in a guest of tests/kernel-peer."""

import os
import shlex
import subprocess
import tempfile

import peer
import suite
from harness.process import Process


def prepare():
    """What a guest is made of, where the packages can be reached."""
    subprocess.run([peer.TOOL, "build"], stdin=subprocess.DEVNULL, check=True)


def column(driver, folder):
    """What becomes of the tests in `folder` on a driver, in the guest that is up."""
    peer.tool("share", "0", suite.HERE, "driver")
    peer.tool("share", "0", folder, "suite")
    command = shlex.join(suite.driver(f"{driver}0", "/run/suite", place="/run/driver"))
    limits = {"KP_TIMEOUT": str(suite.LIMIT_S + 10)}
    with Process([peer.TOOL, "machine", "0", f"timeout {suite.LIMIT_S} {command}"], limits) as process:
        return suite.counted(process)


def columns(folder):
    """All of the kernel's columns, each in a guest of its own."""
    with tempfile.TemporaryDirectory(prefix="adverb-kernel-peer-") as notes:
        os.environ.update(KP_HERE="1", KP_RUN=notes)
        try:
            return {driver: _fresh_column(driver, folder) for driver in peer.DEVICE}
        finally:
            peer.tool("down")


def _fresh_column(driver, folder):
    peer.fresh_guest(driver)
    return column(driver, folder)
