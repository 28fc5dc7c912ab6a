"""Tables of README.md that a command writes: what lies between two lines of it."""

import os

from harness.report import Failed

README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "README.md")


class Part:
    """What lies between the line `begin` and the line `end`, which stay."""

    def __init__(self, begin, end):
        self.begin, self.end = begin, end

    def _split(self):
        with open(README) as file:
            before, _, rest = file.read().partition(self.begin)
        present, end, after = rest.partition(self.end)
        if not end:
            raise Failed(f"README.md has no lines {self.begin!r} and {self.end!r}")
        return before, present, after

    def text(self):
        return self._split()[1]

    def write(self, text):
        before, _, after = self._split()
        with open(README, "w") as file:
            file.write(before + self.begin + text + self.end + after)
