"""Tables of docs/programs.md that a command writes: what lies between two lines of it. And the README's table of tests, which says the same."""

import os
import re

from harness.report import Failed

NAME = "docs/programs.md"
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
PATH = os.path.join(ROOT, NAME)
README = os.path.join(ROOT, "README.md")
# The devices of the README's table, in its order.
ROWS = ("adverb's `roce0`", "adverb's `iwarp0`", "Linux's rxe", "Linux's siw")
# The crate whose own tests have a column there.
CRATE = "ibverbs"


class Part:
    """What lies between the line `begin` and the line `end`, which stay."""

    def __init__(self, begin, end):
        self.begin, self.end = begin, end

    def _split(self):
        with open(PATH) as file:
            before, _, rest = file.read().partition(self.begin)
        present, end, after = rest.partition(self.end)
        if not end:
            raise Failed(f"{NAME} has no lines {self.begin!r} and {self.end!r}")
        return before, present, after

    def text(self):
        return self._split()[1]

    def holds(self, text):
        """Whether a text stands anywhere in the document, or in the page of what is compatible."""
        with open(os.path.join(os.path.dirname(PATH), "compatibility.md")) as file:
            return any(text in part for part in (*self._split(), file.read()))

    def write(self, text):
        before, _, after = self._split()
        with open(PATH, "w") as file:
            file.write(before + self.begin + text + self.end + after)


SUITE = Part("<!-- suite: written by `tests/suite/run --document` -->\n", "<!-- end of suite -->\n")
CRATES = Part("<!-- crates: written by `tests/suite/run --document` -->\n", "<!-- end of crates -->\n")


def rows(text):
    """The cells of tests in the rows of these devices."""
    cells = ([cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| "))
    return {first: rest for first, *rest in cells if first in ROWS}


def _of_readme():
    """The rows that the README must have, by docs/programs.md: rdma-core's tests that pass, fail and are skipped, and those of the crate that pass."""
    suite, crates = SUITE.text(), CRATES.text()
    [title] = [line for line in crates.splitlines() if line.startswith("| passed of the own tests of |")]
    [column] = [index for index, cell in enumerate(title.strip("|").split("|")[1:]) if cell.split()[0] == CRATE]
    crates, found = rows(crates), {}
    # The page has the skipped tests before the failed ones.
    for name, (passed, skipped, failed) in rows(suite).items():
        found[name] = [passed, failed, skipped, crates[name][column]]
    return found


def check_readme():
    """Fails unless the README says of tests what docs/programs.md says."""
    with open(README) as file:
        text = file.read()
    found, wanted = rows(text), _of_readme()
    if found != wanted or list(found) != list(ROWS):
        raise Failed(f"the README has {found}, {NAME} {wanted}: tests/suite/run --document writes both")
    return ", ".join(ROWS)


def write_readme():
    """Puts those rows into the README."""
    with open(README) as file:
        text = file.read()
    for name, cells in _of_readme().items():
        text = re.sub(rf"^\| {re.escape(name)} \|.*$", f"| {name} | {' | '.join(cells)} |", text, flags=re.MULTILINE)
    with open(README, "w") as file:
        file.write(text)
