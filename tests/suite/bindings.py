"""The own tests of crates for RDMA (tests/programs/crates.py) on a device, and the document's table of them."""

import os
import re
import sys
from collections import Counter

import suite
from harness import document
from harness.process import Process
from harness.report import Failed

# Behind our own folder: several have a table of cases.
sys.path.append(os.path.join(os.path.dirname(suite.HERE), "programs"))
import crates  # noqa: E402

# Seconds that a program may take. On a driver that lacks what they need some wait for ever.
LIMIT_S = 20
PART = document.CRATES
# ibverbs' package has an example of its data path instead of tests. What is in a hurry is not compared.
COMPARED = [case for case in crates.ALONE if case.passed or case.crate == "ibverbs"]


def totals():
    """How many tests each crate has."""
    return Counter({name: sum(case.passed or 1 for case in COMPARED if case.crate == name) for name in crates.VERSIONS})


def column(start):
    """How many tests of each crate pass on a device. `start`: a program of theirs, on that device."""
    programs, passed = crates.programs(), Counter(dict.fromkeys(crates.VERSIONS, 0))
    for case in COMPARED:
        with start(programs[f"{case.crate} {case.program}"]) as process:
            status = process.wait(LIMIT_S + 10)
            # Of one that has not come to its end, what it has said before.
            lines = re.findall(r"^test .* \.\.\. ok$", process.output(), re.MULTILINE)
            passed[case.crate] += len(lines) if case.passed else status == 0
    return passed


def on_adverb(adverb, device):
    """The column of a device of ours."""
    run = [adverb, "run", "--device", device, "--", "timeout", str(LIMIT_S)]
    # In parallel also where there are fewer processors.
    return column(lambda program: Process([*run, program], {"RUST_TEST_THREADS": "8"}))


def say(counts):
    return ", ".join(f"{name} {counts[name]} of {total}" for name, total in totals().items())


def write(columns):
    """Puts the counts of all devices into docs/programs.md."""
    names = " | ".join(f"{name} {version}" for name, version in crates.VERSIONS.items())
    lines = [f"| passed of the own tests of | {names} |", "|---" * (1 + len(crates.VERSIONS)) + "|"]
    for key, row in suite.ROWS.items():
        cells = " | ".join(f"{columns[key][name]} of {total}" for name, total in totals().items())
        lines.append(f"| {row} | {cells} |")
    PART.write("".join(f"{line}\n" for line in lines))


def check(key, counts):
    """Fails if docs/programs.md says that more tests pass than these on ours, or fewer on the kernel's."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PART.text().splitlines()]
    cells = next(cells for cells in rows if cells[0] == suite.ROWS[key])
    told = Counter(dict(zip(crates.VERSIONS, (int(cell.split()[0]) for cell in cells[1:]))))
    better, worse = (counts, told) if key in ("rxe", "siw") else (told, counts)
    if any(better[name] > worse[name] for name in crates.VERSIONS):
        raise Failed(f"docs/programs.md says {say(told)} where there are {say(counts)}: tests/suite/run --document writes it anew")
    return say(counts)
