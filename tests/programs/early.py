"""How often a program sees its peer's message before the completion of what it sent at the same time (consumers/early.c)."""

import os
import re
import subprocess
import tempfile

from harness.process import Process, expect_success
from harness.report import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 300
ROUNDS = 2000
# How the program waits.
WAYS = ("polls", "sleeps", "wakes")


def compiled(folder):
    program = os.path.join(folder, "early")
    source = os.path.join(HERE, "consumers/early.c")
    subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, source, "-libverbs"], check=True)
    return program


def part(words):
    """The part of the receives that were early, of both sides, by what the program has printed."""
    found = re.search(r"every byte is right; early (\d+) and (\d+) of (\d+)", words)
    if not found:
        raise Failed(words)
    one, other, rounds = map(int, found.groups())
    return (one + other) / (2 * rounds)


def on_host(adverb, local):
    """Every exchange ends with the right bytes, in each way of waiting. How often it is early depends on the processors, and on who else wants them."""
    parts = []
    with tempfile.TemporaryDirectory(prefix="adverb-early-") as folder:
        program = compiled(folder)
        for way in WAYS:
            with Process([*adverb, program, "roce0", "0", str(ROUNDS), way], {"ADVERB_LOCAL": local}) as process:
                expect_success([process], LIMIT_S)
                parts.append(f"{part(process.output()):.1%} ({way})")
    return f"early: {', '.join(parts)}"
