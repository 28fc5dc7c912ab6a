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


def enter_private():
    """Starts this script again in a network namespace of its own; an ordinary user gets it in a user namespace."""
    if os.environ.get(INSIDE) == str(os.getpid()):
        command("ip link set lo up")
        return
    as_user = [] if os.geteuid() == 0 else ["--user", "--map-current-user", "--keep-caps"]
    probe = subprocess.run(["unshare", "--net", *as_user, "ip", "link", "set", "lo", "up"], capture_output=True, text=True)
    if probe.returncode != 0:
        sys.exit(
            f"cannot make a network namespace: {probe.stderr.strip()}\n"
            "Run as root, or allow user namespaces: sysctl user.max_user_namespaces=10000 and, on Ubuntu,\n"
            "sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        )
    os.environ[INSIDE] = str(os.getpid())  # exec keeps the process ID
    os.execvp("unshare", ["unshare", "--net", *as_user, sys.executable, *sys.argv])


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


class Neighbour:
    """A second namespace, joined to this one by a cable (veth): 10.98.0.1 and fd98::1 here, .2 and ::2 there."""

    def __init__(self):
        self._holder = Process(["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"])
        wait_until(lambda: "ready" in self._holder.output(), 10, "a second namespace")
        self.prefix = ["nsenter", "--target", str(self._holder.pid), "--net"]
        there = shlex.join(self.prefix)
        command(f"ip link add cable type veth peer name cable netns {self._holder.pid}")
        command("ip addr add 10.98.0.1/24 dev cable")
        command("ip addr add fd98::1/64 dev cable nodad")
        command("ip link set cable up")
        command(f"{there} ip link set lo up")
        command(f"{there} ip addr add 10.98.0.2/24 dev cable")
        command(f"{there} ip addr add fd98::2/64 dev cable nodad")
        command(f"{there} ip link set cable up")
