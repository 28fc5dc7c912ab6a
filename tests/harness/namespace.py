"""Network namespaces for tests: no root needed, nothing left behind, every port and address free."""

import os
import random
import shlex
import socket
import subprocess
import sys

from .process import Process, wait_until
from .report import Failed

INSIDE = "ADVERB_TEST_NAMESPACE"


def is_private():
    """Whether this script is in a network namespace of its own already."""
    return os.environ.get(INSIDE) == str(os.getpid())


def enter_private(as_root=False):
    """Starts this script again in a network namespace of its own; an ordinary user gets it in a user namespace, and there is called root if so asked."""
    if is_private():
        command("ip link set lo up")
        return
    unshare = ["unshare", "--net"]
    if os.geteuid() != 0:
        unshare += ["--user", "--map-root-user" if as_root else "--map-current-user", "--keep-caps"]
        # With IDs of other users, too, where the user has been given some.
        if _try([*unshare, "--map-auto"]).returncode == 0:
            unshare.append("--map-auto")
    probe = _try(unshare)
    if probe.returncode != 0:
        sys.exit(
            f"cannot make a network namespace: {probe.stderr.strip()}\n"
            "Run as root, or allow user namespaces: sysctl user.max_user_namespaces=10000 and, on Ubuntu,\n"
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    os.environ[INSIDE] = str(os.getpid())  # exec keeps the process ID
    os.execvp("unshare", [*unshare, sys.executable, *sys.argv])


def _try(unshare):
    return subprocess.run([*unshare, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)


def command(text):
    """Runs a command that must succeed."""
    result = subprocess.run(shlex.split(text), capture_output=True, text=True)
    if result.returncode != 0:
        raise Failed(f"$ {text}\n{result.stdout}{result.stderr}")


def free_port():
    """A TCP port that nobody uses, below those that the kernel gives to clients."""
    while True:
        port = random.randrange(10_000, 30_000)
        with socket.socket(socket.AF_INET6) as probe:
            try:
                probe.bind(("::", port))
                return port
            except OSError:
                continue


class Namespace:
    """A network namespace of its own; `prefix` runs a command in it. At the end of a `with` it goes.

    `named`: `ip netns add` in it makes names that others do not see: it has a folder /run of its own.
    """

    def __init__(self, named=False):
        kinds, before = ["--net"], ""
        if named:
            kinds, before = ["--net", "--mount"], "mount -t tmpfs tmpfs /run && "
        self._holder = Process(["unshare", *kinds, "sh", "-c", f"{before}ip link set lo up && echo ready && exec sleep infinity"])
        wait_until(lambda: "ready" in self._holder.output(), 60, "another network namespace")
        self.pid = self._holder.pid
        self.prefix = ["nsenter", "--target", str(self.pid), *kinds]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._holder.__exit__()

    def command(self, text):
        """Runs a command in it that must succeed."""
        command(f"{shlex.join(self.prefix)} {text}")

    def add_cable(self, interface, *addresses, name="cable", has_link_local=True):
        """Gives it an interface, with addresses, that was made in this namespace."""
        command(f"ip link set {interface} netns {self.pid} name {name}")
        if not has_link_local:
            self.command(f"ip link set {name} addrgenmode none")
        for address in addresses:
            self.command(f"ip addr add {address} dev {name}{' nodad' if ':' in address else ''}")
        self.command(f"ip link set {name} up")

    def join(self, other, name, here, there):
        """A cable of this name between it and another one, with an address at each end."""
        # Names of interfaces are few letters long, and other tests make cables, too.
        ends = [f"{name[:4]}{side}{self.pid}" for side in "ab"]
        command(f"ip link add {ends[0]} type veth peer name {ends[1]}")
        # Link-local addresses come at a time of their own, and programs are told of them.
        self.add_cable(ends[0], here, name=name, has_link_local=False)
        other.add_cable(ends[1], there, name=name, has_link_local=False)


def two_hosts():
    """Two namespaces that a cable joins: 10.97.0.1 and 10.97.0.2."""
    hosts = [Namespace(), Namespace()]
    hosts[0].join(hosts[1], "cable", "10.97.0.1/24", "10.97.0.2/24")
    return hosts


class Neighbour(Namespace):
    """A second namespace, joined to this one by a cable (veth): 10.98.0.1 and fd98::1 here, .2 and ::2 there."""

    # Locally administered.
    MAC_HERE, MAC_THERE = "02:ad:7b:00:00:01", "02:ad:7b:00:00:02"

    def __init__(self):
        super().__init__()
        command(f"ip link add cable address {self.MAC_HERE} type veth peer name far address {self.MAC_THERE}")
        self.add_cable("far", "10.98.0.2/24", "fd98::2/64")
        command("ip addr add 10.98.0.1/24 dev cable")
        command("ip addr add fd98::1/64 dev cable nodad")
        command("ip link set cable up")


# Whom programs are run as where two users are needed: nobody.
SECOND_USER = 65534
AS_SECOND_USER = ["setpriv", f"--reuid={SECOND_USER}", f"--regid={SECOND_USER}", "--clear-groups", "--"]


def require_second_user():
    """Fails where there is one user only."""
    probe = subprocess.run([*AS_SECOND_USER, "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        raise Failed(
            f"this test needs a second user, and cannot be one: {probe.stderr.strip()}\n"
            "Run as root, or give yourself subordinate IDs (as root, once):\n"
            "usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER"
        )
