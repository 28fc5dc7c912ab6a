"""Many processes of two users on one host, some of which are killed, stopped, or fork: the others do not notice."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time

from harness.namespace import AS_SECOND_USER, Namespace, free_port, require_second_user, two_hosts
from harness.process import Process, descendants, serving, wait_until
from harness.report import Failed

ROCE_PORT = 4791
# What is installed beside the command: its name in a build tree, and there.
LIBRARIES = [
    ("libibverbs.so", "libibverbs.so.1"),
    ("librdmacm.so", "librdmacm.so.1"),
    ("libadverb_preload.so", "libadverb_preload.so"),
    ("librspreload.so", "librspreload.so"),
]
# Bounds what hangs; nothing takes nearly as long.
LIMIT_S = 60


def install(adverb, programs, folder):
    """Copies the command, its libraries and other programs to where every user finds them. The new command's path."""
    built = os.path.dirname(os.path.realpath(adverb))
    for path in ("bin", "lib/adverb"):
        os.makedirs(os.path.join(folder, path), exist_ok=True)
    for path, name in [(adverb, "adverb"), *((program, os.path.basename(program)) for program in programs)]:
        shutil.copy(path, os.path.join(folder, "bin", name))
    for file, name in LIBRARIES:
        candidates = [os.path.join(built, file), os.path.join(built, "../lib/adverb", name)]
        shutil.copy(next(filter(os.path.exists, candidates)), os.path.join(folder, "lib/adverb", name))
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    return os.path.join(folder, "bin/adverb")


class Side:
    """A process that streams."""

    def __init__(self, command, is_second_user):
        self.is_second_user = is_second_user
        self.run = Process(command)
        self.child = None

    @property
    def pid(self):
        """The program itself; what we have started is the command that it runs under."""
        return wait_until(lambda: descendants(self.run.pid)[1:2], LIMIT_S, "the program starts")[0]

    def received(self):
        """Messages that have come."""
        if self.run.status() is not None:
            raise Failed(f"a bystander has ended:\n{self.run.describe()}")
        return int((re.findall(r"^received (\d+)$", self.run.output(), re.MULTILINE) or [0])[-1])

    def forks(self):
        """Has it fork a child that lives on and calls nothing."""
        known = self.run.output().count("child ")
        os.kill(self.pid, signal.SIGUSR1)
        wait_until(lambda: self.run.output().count("child ") > known, LIMIT_S, "a child of fork")
        self.child = int(re.findall(r"^child (\d+)$", self.run.output(), re.MULTILINE)[-1])

    def child_exits(self):
        os.kill(self.child, signal.SIGTERM)
        wait_until(lambda: state(self.child) in ("", "Z"), LIMIT_S, "the child of fork exits")

    def stops(self):
        os.kill(self.pid, signal.SIGSTOP)
        wait_until(lambda: state(self.pid) == "T", LIMIT_S, "a process stops")

    def goes_on(self):
        os.kill(self.pid, signal.SIGCONT)

    def is_killed(self):
        os.kill(self.pid, signal.SIGKILL)
        if self.run.wait(LIMIT_S) != 128 + signal.SIGKILL:
            raise Failed(f"it was killed:\n{self.run.describe()}")


class Stream:
    """Two processes that send each other messages and read each other's memory."""

    def __init__(self, prefix, folder, options, users):
        self._command, self._options, self._users = [*prefix], options, users
        self._bin = os.path.join(folder, "bin")
        self.sides = []
        self.start()

    def start(self):
        port = free_port()

        def side(role, is_second_user):
            user = AS_SECOND_USER if is_second_user else []
            program = [f"{self._bin}/verify", role, "127.0.0.1", str(port), "--stream", "--small", "--patience", "600"]
            run = [f"{self._bin}/adverb", "run", "--device", "roce0", "--"]
            return Side([*self._command, *user, *run, *program, *self._options], is_second_user)

        server = side("server", self._users[0])
        self.sides = [server]
        wait_until(serving(server.run, port), LIMIT_S, "a server listens")
        self.sides.append(side("client", self._users[1]))

    def end(self):
        for side in self.sides:
            side.run.__exit__()


class Streams:
    """Three streams between six processes of two users, in a network namespace of their own."""

    KINDS = [(["--exchange"], (False, False)), ([], (True, True)), ([], (False, True))]

    def __init__(self, folder):
        self.folder = folder
        self._namespace = Namespace()
        self.streams = []

    def __enter__(self):
        for options, users in self.KINDS:
            self.add(options, users)
        self.progress()
        return self

    def __exit__(self, *_):
        for stream in self.streams:
            stream.end()
        self._namespace.__exit__()

    def add(self, options, users):
        stream = Stream(self._namespace.prefix, self.folder, options, users)
        self.streams.append(stream)
        return stream

    def sides(self):
        return [side for stream in self.streams for side in stream.sides]

    def stream_of(self, side):
        return next(stream for stream in self.streams if side in stream.sides)

    def holder(self):
        """Who holds UDP port 4791; somebody does, soon."""
        return wait_until(self._holder, LIMIT_S, "somebody holds UDP port 4791")

    def _holder(self):
        inodes = set()
        for table in ("udp", "udp6"):
            with open(f"/proc/{self._namespace.pid}/net/{table}") as file:
                rows = [line.split() for line in file.readlines()[1:]]
            inodes |= {f"socket:[{row[9]}]" for row in rows if row[1].endswith(f":{ROCE_PORT:04X}")}
        return next((side for side in self.sides() if side.run.status() is None and inodes & sockets(side.pid)), None)

    def progress(self, without=()):
        """Messages go on coming to all sides, but to those without."""
        sides = [side for side in self.sides() if side not in without]
        # What is said first may have come before.
        for _ in range(2):
            for side, before in [(side, side.received()) for side in sides]:
                try:
                    wait_until(lambda side=side, before=before: side.received() > before, LIMIT_S, "messages come")
                except Failed as failure:
                    everybody = "\n".join(side.run.describe() for side in self.sides())
                    raise Failed(f"{failure}\nto {side.run.command}\n{everybody}") from None


def state(pid):
    """The letter that the kernel has for the state of a process; empty when there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def sockets(pid):
    found = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            found.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
        except OSError:
            pass  # closed meanwhile
    return found


def test_six_processes(folder):
    """Whoever forks, is stopped or killed: the others go on, and a new pair takes the place of those who are gone."""
    require_second_user()
    with Streams(folder) as streams:
        for choose in (holder, same_user, other_user, holder):
            victim = choose(streams)
            stream = streams.stream_of(victim)
            victim.forks()
            streams.progress()
            victim.stops()
            streams.progress(without=stream.sides)
            victim.goes_on()
            streams.progress()
            victim.is_killed()
            streams.progress(without=stream.sides)
            victim.child_exits()
            streams.progress(without=stream.sides)
            stream.end()
            stream.start()
            streams.progress()


def test_killed_server(folder, hosts, limit_s, start):
    """The client of a server that is killed under `adverb run` gets its disconnect event soon, whoever started the server."""
    with contextlib.ExitStack() as stack:
        namespaces = [stack.enter_context(namespace) for namespace in hosts()]
        server_host, client_host = namespaces[0], namespaces[-1]
        address = "10.97.0.1" if len(namespaces) > 1 else "127.0.0.1"
        for first in ("server", "client"):
            # Who comes first to a host holds its UDP port 4791.
            took_s = _kill_server(folder, server_host, client_host, address, first, start)
            if took_s > limit_s:
                raise Failed(f"the disconnect event came {took_s:.2f} s after the end of the server (the {first} came first)")
        return f"{took_s * 1000:.0f} ms"


def _kill_server(folder, server_host, client_host, address, first, start):
    port = free_port()
    run = [os.path.join(folder, "bin/adverb"), "run", "--device", "roce0", "--"]
    verify = os.path.join(folder, "bin/verify")
    with contextlib.ExitStack() as stack:
        if first == "client":
            bystander = [*client_host.prefix, *run, verify, "server", address if server_host is client_host else "127.0.0.1"]
            other = free_port()
            holder = stack.enter_context(Process([*bystander, str(other), "--stream", "--small"]))
            wait_until(serving(holder, other), LIMIT_S, "a bystander listens")
        program = f"{verify} server {address} {port} --stream --small"
        server = stack.enter_context(Process([*server_host.prefix, *run, *start(program)]))
        wait_until(serving(server, port), LIMIT_S, "the server listens")
        client = Process([*client_host.prefix, *run, verify, "client", address, str(port), "--stream", "--small"])
        stack.enter_context(client)
        wait_until(lambda: "received" in client.output() or client.status() is not None, LIMIT_S, "messages come")
        victim = next((pid for pid in descendants(server.pid) if name_of(pid) == "verify"), None)
        if not victim:
            raise Failed(f"no server:\n{server.describe()}\n{client.describe()}")
        killed = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: "disconnected" in client.output() or client.status() is not None, LIMIT_S, "the client hears of it")
        took_s = time.monotonic() - killed
        if "disconnected" not in client.output():
            raise Failed(f"no disconnect event:\n{client.describe()}")
        return took_s


def name_of(pid):
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _itself(program):
    return program.split()


def _a_grandchild(program):
    """The shell lives on, and does not look after it."""
    return ["sh", "-c", f"{program} & kill -STOP $$"]


# What the goodbye of a killed server is tested with: names, hosts, seconds, and how it is started.
KILLED_SERVERS = [
    (f"killed_server{suffix}::{place}", hosts, limit_s, start)
    for suffix, start in (("", _itself), ("_that_is_a_grandchild", _a_grandchild))
    for place, hosts, limit_s in (("one_host", lambda: [Namespace()], 3), ("two_hosts", two_hosts, 5))
]


def holder(streams):
    return streams.holder()


def same_user(streams):
    return _beside(streams, True)


def other_user(streams):
    return _beside(streams, False)


def _beside(streams, same):
    """A process that does not hold the port."""
    holder = streams.holder()
    others = [side for side in streams.sides() if side is not holder]
    return next(side for side in others if (side.is_second_user == holder.is_second_user) == same)
