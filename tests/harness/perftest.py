"""What programs of perftest print."""

import re


def figures(output):
    """The numbers of the one line of results: the size, the repetitions, and what the program measures."""
    [line] = [line for line in output.splitlines() if re.match(r"\s*\d+\s+\d+\s+\d", line)]
    return line.split()
