"""What a start under `adverb run` costs: system calls, files, and time beside the start of another small program."""

import re
import shlex
import subprocess
import time

from harness.namespace import Namespace
from harness.report import Failed

LIMIT_S = 60

# Memory for files of its own: what others leave or have there is looked at, too.
PRIVATE = 'mount -t tmpfs none /dev/shm && exec "$@"'
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "TMPDIR": "/dev/shm"}
PROGRAM = ["/bin/true"]
OTHER = ["/usr/bin/python3", "-c", "pass"]

# Threads that wait for each other do so once or twice, as it happens.
WAITS = {"futex", "restart_syscall"}

# With one device, on a host of several addresses, a start took 1,325 system calls at first, then 1,191, and 1,084 since it asks for the addresses once.
# The namespace here has fewer addresses, so a start takes fewer.
# Options; at most so many system calls, files of their own and names of all; times the other program's start.
BOUNDS = {
    "one_device": ([], 1088, 32, 227, 3),
    "eight_devices": (["--profile", "dgx"], 5730, 105, 1916, 10),
}

STARTS = 15


def costs_no_more(adverb, name):
    """A start takes no more than it may; on a host of always the same addresses."""
    options, calls, files, names, times = BOUNDS[name]
    run = [adverb, "run", *options, "--"]
    with Namespace() as there:
        there.command("ip addr add 10.96.0.1/24 dev lo")
        ask = ["unshare", "--mount", "sh", "-c", PRIVATE, "sh"]

        def output(*command):
            command = [*there.prefix, *ask, *command]
            result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=ENVIRONMENT)
            if result.returncode != 0:
                raise Failed(f"$ {shlex.join(command)}\nstatus {result.returncode}\n{result.stdout}{result.stderr}")
            return result.stdout

        table = output("strace", "-f", "-c", "-qq", "-o", "/dev/stdout", *run, *PROGRAM)
        # Its own names are in the list, and the folder's; counters of the process are not.
        listed = output(*run, "find", "/dev/shm", "-mindepth", "2", "-not", "-path", "*/counted/*", "-printf", "%y %i\n").splitlines()
        ratio = _ratio(output, run)
    counts = {call: int(count) for count, call in re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", table, re.MULTILINE)}
    counts.pop("total", None)
    found = sum(count for call, count in counts.items() if call not in WAITS)
    own = {line for line in listed if line.startswith("f ")}
    if found < 100 or len(own) < 10:
        raise Failed(f"too few are counted: {found} system calls and {len(own)} files\n{table}")
    for what, is_there, most in (("system calls", found, calls), ("files of their own", len(own), files), ("names", len(listed), names)):
        if is_there > most:
            raise Failed(f"{is_there} {what}, at most {most} are allowed\n{table}")
    if ratio > times:
        raise Failed(f"a start takes {ratio:.1f} times as long as that of {shlex.join(OTHER)}")
    return f"{found} system calls, {len(own)} files with {len(listed)} names, {ratio:.2f} times the start of Python"


def _ratio(output, run):
    """How many times as long as the other program's start; both alternate, and the shortest of each counts, since others may want the processors."""
    shortest = {}
    for _ in range(STARTS):
        for command in ([*run, *PROGRAM], OTHER):
            begin = time.monotonic()
            output(*command)
            taken = time.monotonic() - begin
            key = shlex.join(command)
            shortest[key] = min(taken, shortest.get(key, taken))
    return shortest[shlex.join([*run, *PROGRAM])] / shortest[shlex.join(OTHER)]
