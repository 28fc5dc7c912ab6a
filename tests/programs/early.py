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
# The largest part of the receives that may be early. The acknowledgement is the peer's own work. On one processor, the second of the two posts finds the first
# one's message there, and has no acknowledgement before the first one runs again: that is half of all receives. The first one is early, too, where its peer has
# posted before it has taken the message in. So the bound is half, and half of the rest. Nearly all are early where acknowledgements wait for something else: a
# timer, or the next message.
MOST = 0.75
# A rule that makes them wait, longer than a busy machine takes a processor away, in rounds of which so many are early at least: the bound above is between what
# is right and what is not.
LATE = ("--fault", "wire:reorder=100ms:direction=out:opcode=ACK")
LATE_ROUNDS, LEAST = 30, 0.9


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
    """Every exchange ends with the right bytes, in each way of waiting, and is not early more often than one processor makes it; with late acknowledgements it is."""
    *run, separator = adverb
    with tempfile.TemporaryDirectory(prefix="adverb-early-") as folder:
        program = compiled(folder)

        def exchange(way, rounds, options=()):
            command = [*run, *options, separator, program, "roce0", "0", str(rounds), way]
            with Process(command, {"ADVERB_LOCAL": local}) as process:
                expect_success([process], LIMIT_S)
                return part(process.output())

        parts = {way: exchange(way, ROUNDS) for way in WAYS}
        late = exchange(WAYS[0], LATE_ROUNDS, LATE)
    said = "early: " + ", ".join(f"{part:.1%} ({way})" for way, part in parts.items())
    if max(parts.values()) > MOST:
        raise Failed(f"{said}; at most {MOST:.0%} are allowed")
    if late < LEAST:
        raise Failed(f"with late acknowledgements {late:.1%} are early: expected at least {LEAST:.0%}")
    return f"{said}; {late:.1%} with late acknowledgements"
