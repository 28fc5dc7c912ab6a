"""A program's own memory, while a peer reaches it: nothing is lost, and nothing old comes back. own/memory.c has the checks."""

import glob
import os
import re
import subprocess
import tempfile

import isolation
from harness.namespace import require_second_user
from harness.process import Process, expect_success
from harness.report import Failed

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "own", "memory.c")
LIMIT_S = 240
# Not nobody: that is whom a namespace shows for users that it does not know, and nothing is shared with them.
AS_USER = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "--"]
# Name, device, whether an ordinary user runs it, and the allocator that stands in for the C library's.
CASES = [
    ("roce0::host_auto::own_memory", "roce0", False, None),
    ("roce0::host_auto::own_memory_of_a_user", "roce0", True, None),
    ("roce0::host_auto::own_memory_with_jemalloc", "roce0", False, "libjemalloc.so.2"),
    ("roce0::host_auto::own_memory_with_mimalloc", "roce0", False, "libmimalloc.so"),
    ("iwarp0::loopback::own_memory", "iwarp0", False, None),
]


def keeps(adverb, case):
    """The program finds its memory as it must be."""
    _, device, as_user, allocator = case
    with tempfile.TemporaryDirectory(prefix="adverb-installed-") as folder:
        program = os.path.join(folder, "memory")
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE, "-lrdmacm", "-libverbs", "-pthread"], check=True)
        command = [isolation.install(adverb, [program], folder), "run", "--device", device, "--", os.path.join(folder, "bin/memory"), "127.0.0.1"]
        if as_user:
            require_second_user()
            command = [*AS_USER, *command]
        settings = {"ADVERB_LOCAL": "auto", "ADVERB_LOG": "info"}
        if allocator:
            settings["LD_PRELOAD"] = _library(allocator)
        with Process(command, settings) as process:
            expect_success([process], LIMIT_S)
            said = process.output()
            if "all memory is right" not in said:
                raise Failed(process.describe())
    return f"{said.count(': right')} checks; pages of {len(re.findall('its pages are moved, peers map them', said))} regions were moved"


def _library(name):
    found = glob.glob(f"/usr/lib/*/{name}*")
    if not found:
        raise Failed(f"{name} is not installed")
    return found[0]
