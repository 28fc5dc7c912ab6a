"""Tables of docs/programs.md that a command writes: what lies between two lines of it."""

import os

from harness.report import Failed

NAME = "docs/programs.md"
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", NAME)


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
