"""rdma-core's own tests: where they are, what a process says that runs them, and the document's table of them."""

import glob
import gzip
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter

from harness import document
from harness.report import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
# The interpreter that Debian's package is built for.
PYTHON = "/usr/bin/python3"
PACKAGE = "python3-pyverbs"
INSTALLED = "/usr/share/doc/rdma-core/tests"
# Seconds that all tests of a device may take together.
LIMIT_S = 240
EVENTS = ("passed", "skipped", "failed")
PART = document.SUITE
# The rows of the document.
ROWS = {"rxe": "Linux's rxe", "siw": "Linux's siw", "roce0": "adverb's `roce0`", "iwarp0": "adverb's `iwarp0`"}


def unpacked():
    """A folder with the suite; from the package itself where documentation is not installed (container images)."""
    folder = tempfile.mkdtemp(prefix="adverb-suite-")
    source = INSTALLED
    if not os.path.isdir(source):
        for step in (["apt-get", "-q", "download", PACKAGE], ["sh", "-c", f"dpkg-deb -x {PACKAGE}_*.deb ."]):
            subprocess.run(step, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        source = folder + INSTALLED
    tests = os.path.join(folder, "tests")
    shutil.copytree(source, tests)
    for packed in glob.glob(os.path.join(tests, "*.gz")):
        with gzip.open(packed) as file, open(packed[:-3], "wb") as out:
            shutil.copyfileobj(file, out)
        os.remove(packed)
    return folder


def driver(device, folder, names=(), place=HERE):
    """The command that runs the suite in `folder` on a device. `place`: the folder of this file, where the command runs."""
    return [PYTHON, os.path.join(place, "driver.py"), folder, *names, "--", "--dev", device]


def results(process, limit_s=LIMIT_S):
    """What the driver says, as it says it, until it ends; with what the tests printed since the last time."""
    end, read, printed = time.monotonic() + limit_s, 0, []
    while True:
        alive = process.status() is None
        lines = process.output().split("\n")
        for line in lines[read:-1]:
            if line.startswith("{"):
                yield {**json.loads(line), "printed": "\n".join(printed)}
                printed = []
            else:
                printed.append(line)
        read = len(lines) - 1
        if not alive:
            return
        if time.monotonic() > end:
            yield {"event": "late"}
            return
        process.wait(0.1)


def counted(process, limit_s=LIMIT_S):
    """How many tests passed, failed and were skipped, of a suite that comes to its end."""
    counts, complete = Counter(), False
    for result in results(process, limit_s):
        complete |= result["event"] == "complete"
        counts[result["event"]] += 1
    if not complete:
        raise Failed(f"the suite has not come to its end within {limit_s} s:\n{process.describe()}")
    return counts


def say(counts):
    return ", ".join(f"{counts[event]} {event}" for event in EVENTS)


def version():
    """Which version of rdma-core's tests there is."""
    asked = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", PACKAGE], capture_output=True, text=True, check=True)
    return asked.stdout.partition("-")[0]


def write(columns):
    """Puts the counts of all devices into docs/programs.md."""
    total = sum(columns["rxe"][event] for event in EVENTS)
    lines = [f"| the {total} tests of rdma-core {version()} | {' | '.join(EVENTS)} |", "|---|---|---|---|"]
    lines += [f"| {row} | {' | '.join(str(columns[key][event]) for event in EVENTS)} |" for key, row in ROWS.items()]
    PART.write("".join(f"{line}\n" for line in lines))


def flattered(key, counts):
    """What docs/programs.md says of a device, if by that more tests pass than these on ours, or fewer on the kernel's; else None."""
    table = PART.text()
    if f"rdma-core {version()} |" not in table:
        return None  # it speaks of other tests
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    told = next(dict(zip(EVENTS, map(int, cells[1:]))) for cells in rows if cells[0] == ROWS[key])
    better, worse = (counts, told) if key in ("rxe", "siw") else (told, counts)
    return told if better["passed"] > worse["passed"] else None
