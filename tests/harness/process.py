"""Processes under test: bounded in time, their output kept for the report, never left behind."""

import ctypes
import os
import shlex
import signal
import subprocess
import tempfile
import time

from .report import Failed

PR_SET_PDEATHSIG = 1
POLL_S = 0.01
OUTPUT_SHOWN = 3000


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_until(condition, limit_s, what):
    """Waits until condition() gives something true, and returns it."""
    end = time.monotonic() + limit_s
    while not (result := condition()):
        if time.monotonic() > end:
            raise Failed(f"{what}: not within {limit_s} s")
        time.sleep(POLL_S)
    return result


class Process:
    """A running command. Use with `with`: at the end it is killed if it still runs."""

    def __init__(self, command, env=None):
        self.command = command if isinstance(command, list) else shlex.split(command)
        self._output = tempfile.TemporaryFile()
        self._child = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            preexec_fn=die_with_parent,
        )
        self.pid = self._child.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        self._output.close()

    def output(self):
        size = os.fstat(self._output.fileno()).st_size
        return os.pread(self._output.fileno(), size, 0).decode(errors="replace")

    def status(self):
        """The exit status, negative for a signal; None while it runs."""
        return self._child.poll()

    def signal(self, number):
        self._child.send_signal(number)

    def wait(self, limit_s):
        """Waits for the end. The exit status, or None when it runs longer than limit_s."""
        try:
            return self._child.wait(limit_s)
        except subprocess.TimeoutExpired:
            return None

    def describe(self):
        """The command, its status and the end of its output."""
        status, output = self.status(), self.output()
        state = "still running" if status is None else f"status {status}"
        shown = output if len(output) <= OUTPUT_SHOWN else "[...]\n" + output[-OUTPUT_SHOWN:]
        return f"$ {shlex.join(self.command)}\n{shown.rstrip()}\n[{state}]"


def expect_success(processes, limit_s, witnesses=()):
    """Waits until all have ended with status 0; raises Failed with everybody's output, and the witnesses', otherwise."""
    end = time.monotonic() + limit_s
    bad = False
    for process in processes:
        if process.wait(max(0.0, end - time.monotonic())) != 0:
            bad = True
            break
    if bad:
        # The other side usually ends soon, too, and its words explain more.
        for process in processes:
            process.wait(2)
        everybody = "\n".join(process.describe() for process in [*processes, *witnesses])
        raise Failed(f"not all succeeded within {limit_s} s:\n{everybody}")


def listening(pid, port):
    """Whether somebody listens on the TCP port in the network namespace of process pid."""
    wanted = f":{port:04X}"
    for table in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{table}") as file:
                for line in file:
                    fields = line.split()
                    if fields[1].endswith(wanted) and fields[3] == "0A":
                        return True
        except OSError:
            pass  # the process has just ended, or there is no IPv6
    return False


def descendants(pid):
    """The process and all that it has started, children after their parents."""
    found = [pid]
    for parent in found:
        try:
            with open(f"/proc/{parent}/task/{parent}/children") as file:
                found += [int(child) for child in file.read().split()]
        except OSError:
            pass  # it has just ended
    return found


def _udp_sockets(pid):
    """The UDP sockets of the network namespace of process pid, as the kernel's tables have them."""
    for table in ("udp", "udp6"):
        with open(f"/proc/{pid}/net/{table}") as file:
            yield from (line.split() for line in file.readlines()[1:])


def waits(pid):
    """Whether every thread of the process sleeps, and it has a UDP socket."""
    try:
        inodes = {f"socket:[{fields[9]}]" for fields in _udp_sockets(pid)}
        own = set()
        for descriptor in os.listdir(f"/proc/{pid}/fd"):
            try:
                own.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
            except OSError:
                pass  # closed meanwhile
        if not own & inodes:
            return False
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] != "S":
                    return False
        return True
    except OSError:
        return False


def polling(server):
    """A condition: since the first look the program has worked for a tenth of a second, as one that polls does, and one that starts does not.

    One that polls and yields comes to that late where others want the processor: it has been taken from it a hundred times.
    """
    pid, start, before = descendants(server.pid)[-1], None, None

    def condition():
        nonlocal start, before
        try:
            with open(f"/proc/{pid}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
            with open(f"/proc/{pid}/status") as file:
                switches = int(file.read().rpartition("nonvoluntary_ctxt_switches:")[2])
        except OSError:
            return True  # it has just ended
        worked = sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
        start = worked if start is None else start
        before = switches if before is None else before
        return worked - start > 0.1 or switches - before > 100 or server.status() is not None

    return condition


def _holds(pid, port):
    """Whether somebody in the network namespace of process pid holds the port of InfiniBand's connection manager, or the UDP port."""
    try:
        with open(f"/proc/{pid}/net/unix", errors="replace") as file:
            if any("@adverb/roce/port/" in line and line.rstrip().endswith(f"/{port}") for line in file):
                return True
        return any(fields[1].endswith(f":{port:04X}") for fields in _udp_sockets(pid))
    except OSError:
        return False  # the process has just ended


def serving(server, port, polls=False):
    """A condition: the server listens on the TCP port, or holds InfiniBand's and waits. Of a server without a port no table tells.

    One that `polls` never waits: it holds the port.
    """
    calm = 0

    def condition():
        nonlocal calm
        if polls and _holds(server.pid, port):
            return True
        calm = calm + 1 if waits(descendants(server.pid)[-1]) else 0
        # Between the port and rdma_listen a program works. One that holds none is long asleep.
        if calm > (3 if _holds(server.pid, port) else 100):
            return True
        return listening(server.pid, port) or server.status() is not None

    return condition
