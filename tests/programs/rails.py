"""Programs with eight devices go on when one of them is taken away."""

import os
import re
import subprocess
import tempfile

import consumers
from harness.namespace import two_hosts
from harness.process import Process, expect_success, wait_until
from harness.report import Failed

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "own", "rails.c")
# Each with an interface of its own.
APART = "mlx5_[0-3]@numa=0,interface=rail[0-3] mlx5_[4-7]@numa=1,interface=rail[4-7]"
NAMES = [f"mlx5_{number}" for number in range(8)]
# Memory is near to the first four; one of those has an interface of its own.
ONE_APART = "mlx5_[0-2]@numa=0,interface=cable mlx5_3@numa=0,interface=spare mlx5_[4-7]@numa=1,interface=cable"
LIMIT_S = 240


def _start(command, ready, env=None):
    process = Process(command, env)
    _until(process, ready)
    return process


def _until(process, text, times=1):
    """The process says it so many times, or ends."""
    try:
        wait_until(lambda: process.output().count(text) >= times or process.status() is not None, LIMIT_S, text)
    except Failed as failure:
        raise Failed(f"{failure}\n{process.describe()}") from None


def _both(processes, text):
    for process in processes:
        _until(process, text)


def _port(event, name):
    """The line about a port, and about all ports at that time: the others are active."""
    states = (f" {other} {'down' if (other, event) == (name, 'PORT_ERR') else 'active'}" for other in NAMES)
    return f"{name}: {event};{''.join(states)}"


# PRACTICE-DEVICES-6
def program_goes_on_without_a_device(adverb):
    """A program that heeds the events of ports leaves a device whose interface goes down, at its own end or the peer's, and comes back to it."""
    here, there = two_hosts()
    with here, there, tempfile.TemporaryDirectory(prefix="adverb-rails-") as folder:
        program, socket = (os.path.join(folder, name) for name in ("rails", "socket"))
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE, "-libverbs"], check=True)
        for number in range(8):
            here.join(there, f"rail{number}", f"10.96.{number}.1/24", f"10.96.{number}.2/24")
        run = [adverb, "run", "--devices", APART, "--", program]
        with (
            _start([*there.prefix, *run, "serve", socket, *NAMES], "ready") as server,
            Process([*here.prefix, *run, "ask", socket, "2", *NAMES]) as client,
        ):
            for turn, (side, number) in enumerate(((here, 5), (there, 2)), 1):
                _until(client, "all devices carry", turn)
                side.command(f"ip link set rail{number} down")
                _until(client, "the others go on", turn)
                # The other end notices that the cable leads nowhere.
                _both((client, server), f"mlx5_{number}: PORT_ERR")
                side.command(f"ip link set rail{number} up")
                _both((client, server), f"mlx5_{number}: PORT_ACTIVE")
            expect_success([client, server], LIMIT_S)
            retried = "transport retry counter exceeded"
            for process in (client, server):
                _same(process, "PORT_", [_port(event, name) for name in ("mlx5_5", "mlx5_2") for event in ("PORT_ERR", "PORT_ACTIVE")])
            _same(client, retried, [f"mlx5_5: {retried}", f"mlx5_2: {retried}"])
            _same(client, "every", ["every byte is right"])
    return "eight devices, seven, eight, seven and eight"


# PRACTICE-DEVICES-6
def port_tells_of_its_cable(adverb, device):
    """Programs that wait for events of a device hear when the cable of its interface is pulled at the other end, and when it is back."""
    here, there = two_hosts()
    with here, there:
        here.join(there, "cable1", "10.96.0.1/24", "10.96.0.2/24")
        run = [*here.prefix, adverb, "run", "--devices", f"{device}@interface=cable1", "--"]
        with _start([*run, "stdbuf", "-oL", "ibv_asyncwatch", "-d", device], "FD") as watch:
            for state, event in (("down", "PORT_ERR"), ("up", "PORT_ACTIVE")):
                there.command(f"ip link set cable1 {state}")
                _until(watch, event)
            found = [line.split()[1] for line in watch.output().splitlines() if "PORT_" in line]
    if found != ["IBV_EVENT_PORT_ERR", "IBV_EVENT_PORT_ACTIVE"]:
        raise Failed(f"{found}:\n{watch.output()}")
    return ", ".join(found)


def _same(process, text, expected):
    """The lines with the text are these."""
    found = [line for line in process.output().splitlines() if text in line]
    if found != expected:
        raise Failed(f"expected {expected}, found {found}:\n{process.describe()}")


# PRACTICE-DEVICES-1, PRACTICE-DEVICES-6
def mooncake_goes_on_without_a_device(adverb):
    """Mooncake spreads over the devices near to its memory. The interface of one goes down; the transfers go on over the others, and come back to it."""
    here, there = two_hosts()
    with here, there, tempfile.TemporaryDirectory(prefix="adverb-rails-") as folder:
        here.join(there, "spare", "10.96.0.1/24", "10.96.0.2/24")
        place, gone = os.path.join(folder, "place"), os.path.join(folder, "gone")
        transfers = [adverb, "run", "--devices", ONE_APART, "--", *consumers.transfers_command()]
        with (
            _start([*there.prefix, *transfers, "serve", "10.97.0.2", place], "ready") as server,
            Process([*here.prefix, *transfers, "insist", "10.97.0.1", place, gone, "mlx5_3"], {"ADVERB_LOG": "info"}) as client,
        ):
            _until(client, "half is done")
            here.command("ip link set spare down")
            open(gone, "w").close()
            _until(client, "all is done")
            here.command("ip link set spare up")
            expect_success([client], LIMIT_S, [server])
            said = client.output()
            used = sorted(set(re.findall(r"counters (\S+): .*\btx_messages=", said)))
            events = re.findall(r"async event (port \w+) for context (\S+)", said)
            expected = [("port error", "mlx5_3"), ("port active", "mlx5_3")]
            if "every byte is right" not in said or used != NAMES[:4] or events != expected:
                raise Failed(f"{used} have sent something; events {events}:\n{client.describe()}")
    return "four devices, three, four"
