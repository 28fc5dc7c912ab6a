#!/usr/bin/env python3
"""Checks a solution of an exercise: check.py EXERCISE PROGRAM [ARGUMENT...]

It needs the command `adverb` in PATH, and takes the device `roce0`, or that of ADVERB_DEVICE. Exit status 0: the solution is right.
"""

import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile

LIMIT_S = 60
READY_S = 20


class Wrong(Exception):
    """The program does not do what the exercise wants."""


class Class:
    """Starts a program under adverb, as server and as client, and reads what adverb has counted."""

    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.environment = {**os.environ, "ADVERB_DEVICE": os.environ.get("ADVERB_DEVICE", "roce0"), "ADVERB_LOG": f"info:{folder}/log-%p"}
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = str(probe.getsockname()[1])

    def start(self, *arguments):
        command = ["adverb", "run", "--", *self.program, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=self.environment)

    def server(self, *arguments):
        """Started, and ready by its own word."""
        server = self.start("serve", self.port, *arguments)
        if not select.select([server.stdout], [], [], READY_S)[0]:
            end([server])
            raise Wrong(f"The server has not printed the line `ready` in {READY_S} s. Does it flush its output?")
        line = server.stdout.readline()
        if line != "ready\n":
            end([server])
            raise Wrong(f"The server has to print the line `ready` when it listens, and flush it. It printed {line!r}.")
        return server

    def counted(self, name):
        """The sum over all processes that have ended."""
        total = 0
        for file in os.listdir(self.folder):
            with open(os.path.join(self.folder, file)) as log:
                total += sum(int(number) for number in re.findall(rf"counters .*\b{name}=(\d+)", log.read()))
        return total


def end(processes):
    for process in processes:
        process.kill()
        process.wait()


def outputs(processes):
    """What they print, once all have ended with status 0."""
    try:
        texts = [process.communicate(timeout=LIMIT_S)[0] for process in processes]
    except subprocess.TimeoutExpired:
        raise Wrong(f"A program still runs after {LIMIT_S} s. Does each message have a receive, posted before it comes?") from None
    finally:
        end(processes)
    for process in processes:
        if process.returncode != 0:
            raise Wrong(f"{' '.join(process.args)} ended with status {process.returncode}.")
    return [text.strip() for text in texts]


def capitals(programs):
    """Exercise 1: the server answers a message in capital letters."""
    server = programs.server()
    client = programs.start("127.0.0.1", programs.port, "good morning")
    _, answer = outputs([server, client])
    if answer != "GOOD MORNING":
        raise Wrong(f"The client has to print GOOD MORNING. It printed {answer!r}.")
    if programs.counted("rx_sends") < 2:
        raise Wrong("The answer came, but not by Sends in both directions.")


def counter(programs):
    """Exercise 2: clients count in the server's memory by fetch-and-add."""
    counts = [100, 200, 300]
    server = programs.server(str(len(counts)))
    clients = [programs.start("127.0.0.1", programs.port, str(count)) for count in counts]
    total = outputs([server, *clients])[0]
    if total != str(sum(counts)):
        raise Wrong(f"The server has to print {sum(counts)}. It printed {total!r}.")
    atomics = programs.counted("rx_atomics") + programs.counted("tx_direct")
    if atomics < sum(counts):
        raise Wrong(f"The sum is right, but there were only {atomics} atomic operations.")


EXERCISES = {"1": capitals, "2": counter}


def missing(program):
    """What to say of a program that cannot be started; None if it can."""
    if shutil.which(program):
        return None
    if os.path.isfile(program) and os.sep not in program:
        return f"There is no command `{program}` in PATH. Did you mean ./{program}?"
    return f"There is no program `{program}` that can be started."


def main():
    if len(sys.argv) < 3 or sys.argv[1] not in EXERCISES:
        sys.exit(f"{__doc__}\nExercises: {', '.join(EXERCISES)}")
    if not shutil.which("adverb"):
        sys.exit("There is no command `adverb` in PATH.")
    if reason := missing(sys.argv[2]):
        sys.exit(reason)
    print(f"This takes up to {READY_S + LIMIT_S} s, if a program waits for ever.", flush=True)
    with tempfile.TemporaryDirectory(prefix="adverb-check-") as folder:
        try:
            EXERCISES[sys.argv[1]](Class(sys.argv[2:], folder))
        except Wrong as wrong:
            sys.exit(f"Not yet. {wrong}")
    print(f"Exercise {sys.argv[1]} is solved.")


main()
