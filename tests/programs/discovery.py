"""Programs that look behind the library's back find what a kernel would show of an adapter at that place."""

import os
import re
import shlex
import subprocess
import tempfile

from bystanders import PLACED, raw
from harness.namespace import Namespace, free_port
from harness.process import Process, expect_success, serving, wait_until
from harness.report import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT_S = 60


def _lines(adverb, devices, *arguments):
    with tempfile.TemporaryDirectory(prefix="adverb-discovery-") as place:
        program = os.path.join(place, "discovery")
        subprocess.run(["cc", "-Wall", "-Werror", "-Wno-format-truncation", "-o", program, os.path.join(HERE, "discovery.c")], check=True)
        command = [os.path.abspath(adverb), "run", "--devices", devices, "--", program, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd="/")
    if result.returncode != 0 or result.stderr:
        raise Failed(f"$ {shlex.join(command)}\nstatus {result.returncode}\n{result.stdout}{result.stderr}")
    if re.search("adverb-files", result.stdout):
        raise Failed(f"the name of the folder shows:\n{result.stdout}")
    return dict(line.split(" ", 1) for line in result.stdout.splitlines())


def _expected(name, parent, bus, node):
    """What stands where, for a device that is part of `parent`."""
    x = f"/sys/class/infiniband/{name}"
    link = f"../..{parent.removeprefix('/sys')}/infiniband/{name}"
    gids = 1 if name == "iwarp0" else 128
    return {
        "two-above": parent,
        "two-above-name": os.path.basename(parent),
        "two-above-node": node,
        "device": parent,
        "node": node,
        "device-link": f"../../../{os.path.basename(parent)}",
        "link": link,
        "subsystem": f"/sys/bus/{bus}",
        "verbs": name,
        "verbs-device": parent,
        "at-link": link,
        "at-two-above-node": node,
        "glob-file": f"1 {x}/ports/1/link_layer",
        # One file has the name, and the table of GIDs has 128; or one.
        "fts": f"1 {x}/ports/1/link_layer, {gids} children, 0 wrong, in /",
        "fts-nochdir": f"1 {x}/ports/1/link_layer, {gids} children, 0 wrong, in /",
        "fts-link": f"1 {x}/node_type, {gids} children, 0 wrong, in /",
        "fts-counter": f"1 {x}/ports/1/counters/port_xmit_data, {gids} children, 0 wrong, in /",
        "fts-above": f"1 {x}/device/infiniband/{name}/node_guid, {gids} children, 0 wrong, in /",
        "fts-none": "0 nothing, 0 children, 0 wrong, in /",
        # A list of the folder above does not name the devices.
        "glob-parent": "nothing",
        "statfs": "1",
        "fstatfs": "1",
        "statfs-dev": "1",
        "statvfs": "1",
        "statfs-none": "-1",
        "faccessat": "0",
        "handle": "1",
        "at-statx": "1",
        "at-stat": "1",
        "descriptor": "/sys/class/infiniband",
        "from-root-node": node,
        "chdir": "0",
        "here": f"{parent}/infiniband/{name}",
        "here-glob": "1 ports/1/link_layer",
        "here-two-above-node": node,
        "up": "0",
        "here-above": parent,
        "far": "0",
        "from-class": parent,
        "child-ls": link,
        "child-cat": node,
        "child-readlink": parent,
        "child-cd": f"{parent}/infiniband/{name}",
        "child-stat": "sysfs",
        "child-find": f"{x}/node_guid",
    }


# List, name, its PCI address, its parent, bus and node.
PLACES = [
    ("roce0", "roce0", [], "/sys/devices/platform/adverb.0.auto", "platform", "-1"),
    ("iwarp0", "iwarp0", [], "/sys/devices/platform/adverb.0.auto", "platform", "-1"),
    (
        "mlx5_0@numa=1,pci=1000:d6:02.0/1000:d7:00.1,vendor=0x15b3,part=0x1021 mlx5_1@numa=1",
        "mlx5_0",
        ["1000:d7:00.1"],
        "/sys/devices/pci1000:d6/1000:d6:02.0/1000:d7:00.1",
        "pci",
        "1",
    ),
    ("rdmap0s6@pci=1000:d7:00.0", "rdmap0s6", ["1000:d7:00.0"], "/sys/devices/pci1000:d6/1000:d6:01.0/1000:d7:00.0", "pci", "-1"),
]


# PRACTICE-FILES-1, PRACTICE-FILES-2
def finds(adverb, place):
    devices, name, address, parent, bus, node = place
    found = _lines(adverb, devices, name, *address)
    expected = _expected(name, parent, bus, node)
    number = len(devices.split())
    expected |= {"scandir": f"{number} {name}", "scandirat": f"{number} {name}", "opendir": f"{number}", "fdopendir": f"{number}"}
    expected["glob"] = f"{number} /sys/class/infiniband/{name}"
    expected["vendor"] = "0x15b3" if "vendor" in devices else "0x0000" if bus == "pci" else "nothing"
    if address:
        expected |= {"by-bus": parent, "by-address": parent, "class": "0x020000"}
    # Whatever the machine has.
    if not re.fullmatch(r"[\d,-]+", found.pop("processors", "")):
        raise Failed("no processors are near the device")
    wrong = [f"{way}: expected {expected.get(way)}, found {found.get(way)}" for way in expected | found if expected.get(way) != found.get(way)]
    if wrong:
        raise Failed("\n".join(wrong))
    return f"{len(expected)} ways to {parent}"


# PRACTICE-DEVICES-1
def shows_eight(adverb):
    """A profile with eight adapters: verbs, UCX and `rdma` list them, each with its speed and node."""

    def ask(*command):
        result = subprocess.run([adverb, "run", "--profile", "dgx", "--", *command], capture_output=True, text=True, timeout=LIMIT_S)
        if result.returncode != 0:
            raise Failed(f"$ {shlex.join(command)}\n{result.stdout}{result.stderr}")
        return result.stdout

    names = [f"mlx5_{number}" for number in range(8)]
    listed = [line.split() for line in ask("ibv_devices").splitlines()[2:]]
    links = re.findall(r"link (\S+)/1 state ACTIVE", ask("sh", "-c", "rdma link"))
    nodes = ask("sh", "-c", "cat /sys/class/infiniband/mlx5_*/device/numa_node").split()
    rates = set(ask("sh", "-c", "cat /sys/class/infiniband/mlx5_*/ports/1/rate").splitlines())
    ucx = set(re.findall(r"System device: (\S+) ", ask("ucx_info", "-d")))
    guids = {guid for _, guid in listed}
    # NCCL tells adapters apart by the path of the PCI device, and by the digit of the function at its end.
    paths = ask("sh", "-c", "realpath /sys/class/infiniband/mlx5_*/device").split()
    functions = {path for path in paths if re.fullmatch(r"/sys/devices/pci[\da-f]{4}:[\da-f]{2}/.*/[\da-f]{4}:[\da-f]{2}:[\da-f]{2}\.0", path)}
    found = ([name for name, _ in listed], links, nodes, rates, names == sorted(ucx & set(names)), len(guids), len(functions))
    expected = (names, names, ["0"] * 4 + ["1"] * 4, {"400 Gb/sec (4X NDR)"}, True, 8, 8)
    if found != expected:
        raise Failed(f"expected {expected}, found {found}")
    return "eight adapters on two nodes"


# The devices of each profile, and their NUMA nodes.
PROFILES = {
    "dgx": {f"mlx5_{number}": f"{number // 4}" for number in range(8)},
    "cloud": {"rdmap16s27": "0", "rdmap32s27": "0", "rdmap144s27": "1", "rdmap160s27": "1"},
    "laptop": {"rxe0": "-1"},
}
NODES = 'for device in /sys/class/infiniband/*; do echo "${device##*/} $(cat $device/device/numa_node)"; done'


# PRACTICE-DEVICES-1
def shows_the_profile(adverb, profile):
    """`ibv_devinfo` and `rdma link` list the devices of a profile in its order, each with an active port; the files have their nodes."""

    def ask(script):
        result = subprocess.run([adverb, "run", "--profile", profile, "--", "sh", "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
        if result.returncode != 0 or result.stderr:
            raise Failed(f"$ {script}\n{result.stdout}{result.stderr}")
        return result.stdout

    told = ask("ibv_devinfo")
    names, states = re.findall(r"^hca_id:\s*(\S+)", told, re.MULTILINE), re.findall(r"state:\s*(\S+)", told)
    links = re.findall(r"^link (\S+)/1 state (\S+)", ask("rdma link"), re.MULTILINE)
    nodes = dict(line.split() for line in ask(NODES).splitlines())
    wanted = PROFILES[profile]
    found, expected = (names, states, links, nodes), (list(wanted), ["PORT_ACTIVE"] * len(wanted), [(name, "ACTIVE") for name in wanted], wanted)
    if found != expected:
        raise Failed(f"expected {expected}, found {found}")
    return f"{len(wanted)} devices"


def _as_nccl(name, speed, bus, root, node, real=0):
    """The line of an adapter: where it is, with the functions of one adapter in one place, and what is above it."""
    slot, root = f"1000:{bus:02x}", f"1000:{root:02x}"
    link = "32.0 GT/s PCIe x16"
    place = f"/sys/devices/pci{root}/{root}:01.0/{slot}:00.0"
    return f"{name} speed {speed} layer 2 at {place} port {real} class 0x020000 near {node} link {link} port {link} above {root}:01.0 (0x060400) pci{root}"


# NCCL takes an adapter of two functions for one with two ports; what is on no bus has the function's digit replaced, too.
AS_NCCL = {
    ("--profile", "dgx"): [
        # Each has a root of its own: the next number below that no other bus has.
        *[_as_nccl(f"mlx5_{number}", 400_000, 0x18 + number, 0x17 - number, 0) for number in range(4)],
        *[_as_nccl(f"mlx5_{number + 4}", 400_000, 0x98 + number, 0x97 - number, 1) for number in range(4)],
    ],
    ("--devices", "m[0-1]@pci=1000:27:00.[0-1],numa=1,rate=100 down@interface=none0 x@rate=25"): [
        _as_nccl("m0", 100_000, 0x27, 0x26, 1),
        _as_nccl("m1", 100_000, 0x27, 0x26, 1, real=1),
        "x speed 25000 layer 2 at /sys/devices/platform/adverb.3.aut0 port 0 class none near -1 link none xnone port none xnone above platform",
    ],
}


# PRACTICE-DEVICES-1, PRACTICE-FILES-1
def found_as_nccl_does(adverb, options):
    """A program that goes from verbs to the place on the bus, and up from there, as NCCL does before it uses adapters."""
    with tempfile.TemporaryDirectory(prefix="adverb-nccl-") as place:
        program = os.path.join(place, "nccl")
        subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", program, os.path.join(HERE, "nccl.c"), "-libverbs"], check=True)
        result = subprocess.run([adverb, "run", *options, "--", program], capture_output=True, text=True, timeout=LIMIT_S)
    expected = "\n".join(AS_NCCL[options]) + "\n"
    if result.returncode != 0 or result.stdout != expected:
        raise Failed(f"status {result.returncode}, expected\n{expected}found\n{result.stdout}{result.stderr}")
    return f"{len(AS_NCCL[options])} adapters"


# PRACTICE-DEVICES-2
def connects_by_address(adverb, transport, server_address):
    """rdma_cm takes the device that has the address, on both sides, and none where none has it."""
    port = free_port()
    devices = f"far0@transport={transport},address=::1 near0@transport={transport},address=127.0.0.1"
    run = [adverb, "run", "--devices", devices, "--"]
    log = {"ADVERB_LOG": "info"}
    with Process([*run, "rping", "-s", "-a", server_address, "-p", str(port), "-C", "3"], log) as server:
        wait_until(serving(server, port), 30, "the server listens")
        with Process([*run, "rping", "-c", "-a", "127.0.0.1", "-p", str(port), "-C", "3"], log) as client:
            expect_success([client, server], LIMIT_S)
            for side in (server, client):
                used = re.findall(r"counters (\S+): queue_pairs=1 connections=1 ", side.output())
                if used != ["near0"]:
                    raise Failed(f"expected the device near0 alone:\n{side.describe()}")
    alone = [adverb, "run", "--devices", f"far0@transport={transport},address=::1", "--"]
    # 19 is ENODEV.
    for command, says in [
        (["rping", "-c", "-a", "127.0.0.1", "-p", str(port)], "RDMA_CM_EVENT_ADDR_ERROR, error -19"),
        (["ucmatose", "-b", "10.98.0.1"], "No such device"),
    ]:
        result = subprocess.run([*alone, *command], capture_output=True, text=True, timeout=LIMIT_S)
        if result.returncode == 0 or says not in result.stdout + result.stderr:
            raise Failed(f"$ {shlex.join(command)}\nexpected {says}, status {result.returncode}:\n{result.stdout}{result.stderr}")
    return f"{transport}, a server on {server_address}"


# PRACTICE-DEVICES-3
def refuses_at_other_addresses(adverb, transport, devices):
    """Who listens on all addresses takes requests for the addresses of his devices, and refuses those for others of the host."""
    port = free_port()
    server = [adverb, "run", "--devices", devices.format(transport=transport), "--", "rping", "-s", "-p", str(port), "-C", "3"]
    client = [adverb, "run", "--devices", f"any0@transport={transport}", "--", "rping", "-c", "-p", str(port), "-C", "3"]
    with Process(server, {"ADVERB_LOG": "info"}) as server:
        wait_until(serving(server, port), 30, "the server listens")
        with Process([*client, "-a", "127.0.0.1"]) as refused:
            refused.wait(LIMIT_S)
            if "RDMA_CM_EVENT_REJECTED" not in refused.output():
                raise Failed(f"expected a refusal:\n{refused.describe()}\n{server.describe()}")
        with Process([*client, "-a", "10.98.0.1"]) as taken:
            expect_success([taken, server], LIMIT_S)
        used = re.findall(r"counters (\S+): queue_pairs=1 connections=1 ", server.output())
        if used != ["near0"]:
            raise Failed(f"expected the device near0 alone:\n{server.describe()}")
    return devices.format(transport=transport)


COUNTERS = """
set -e
cd /sys/class/infiniband/x_1/ports/1
cat counters/port_xmit_data hw_counters/sent_pkts
ib_$OPERATION -d x_1 -x $INDEX -p $PORT -s 4096 -n 500 >/dev/null & server=$!
# A server that does not listen yet refuses.
until ib_$OPERATION -d x_1 -x $INDEX -p $PORT -s 4096 -n 500 127.0.0.1 >/dev/null 2>&1; do kill -0 $server; sleep 0.1; done
wait $server
"""

# Ways to one file: all of one process or another that has not used the device.
READERS = """
import os, subprocess, sys
port, file = "/sys/class/infiniband/x_1/ports/1", "port_xmit_data"
whole = f"{port}/counters/{file}"
def run(*command): return subprocess.run(command, capture_output=True, text=True, check=True).stdout
print(open(whole).read().strip(), run("cat", whole).strip(), run("sh", "-c", f"cat < {whole}").strip())
folder = os.open(f"{port}/counters", os.O_RDONLY)
print(os.read(os.open(file, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder), 99).decode().strip())
os.fchdir(folder); print(open(file).read().strip()); os.chdir(f"{port}/.."); print(open(f"1/counters/{file}").read().strip())
print(run("grep", "-rh", ".", f"{port}/counters", "--include", file).strip(), run("find", f"{port}/counters", "-name", file, "-exec", "cat", "{}", ";").strip())
# A process that may not write files is not ended by the signal for it: it sees what was counted when somebody looked last.
print(run("sh", "-c", f"ulimit -f 0; exec cat {whole}").strip())
run("sh", "-c", "unset ADVERB_LOG; ulimit -f 0; exec ibv_devinfo -d x_0")
# Who makes system calls himself sees what was counted when somebody looked last.
print(open(os.environ["ADVERB_FILES"] + whole).read().strip())
for path in ("hw_counters/sent_pkts", "counters/port_rcv_data", "counters/port_rcv_packets"): print(open(f"{port}/{path}").read().strip())
print(*sorted(os.listdir(f"{port}/counters"))); print(open(f"/sys/class/infiniband/x_0/ports/1/counters/{file}").read().strip())
"""


# So many ways.
WAYS = 10
LATE_FRAMES = 64


# PRACTICE-FILES-3
def counts(adverb, operation, local):
    """The files of counters say what all processes of a run have counted, also those that have ended."""
    with tempfile.TemporaryDirectory(prefix="adverb-counters-") as place:
        log = os.path.join(place, "log")
        env = {**os.environ, "PORT": str(free_port()), "OPERATION": operation, "ADVERB_LOCAL": local, "ADVERB_LOG": f"info:{log}-%p", "INDEX": "0"}
        script = f"{COUNTERS}\n/usr/bin/python3 -c {shlex.quote(READERS)}"
        command = [adverb, "run", "--devices", "x_[0-1]@address=127.0.0.1", "--", "bash", "-c", script]
        result = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
        if result.returncode != 0:
            raise Failed(f"status {result.returncode}\n{result.stdout}{result.stderr}")
        logs = [os.path.join(place, name) for name in os.listdir(place)]
        words = "".join(line for name in logs for line in open(name) if "counters x_1:" in line)
    total = {name: sum(int(count) for count in re.findall(rf"\b{name}=(\d+)", words)) for name in ("tx_bytes", "rx_bytes", "tx_frames", "rx_frames", "tx_direct")}
    logged = [total["tx_bytes"] // 4, total["tx_frames"] + total["tx_direct"], total["rx_bytes"] // 4, total["rx_frames"]]
    lines = result.stdout.splitlines()
    if lines[:2] != ["0", "0"] or lines[-1] != "0" or "symbol_error" not in lines[-2]:
        raise Failed(f"expected zeros at the beginning and the end, and names, found\n{result.stdout}")
    # The processes have ended, so that all ways lead to one number.
    *ways, packets, received, frames = map(int, " ".join(lines[2:-2]).split())
    counted = [ways[0], packets, received, frames]
    if len(ways) != WAYS or len(set(ways)) != 1:
        raise Failed(f"expected one number {WAYS} times, found\n{result.stdout}")
    # A process that has written its line may still get a repeated frame, and acknowledge it.
    late = [LATE_FRAMES * 4096 // 4, LATE_FRAMES] * 2
    if not all(low <= found <= low + more for low, found, more in zip(logged, counted, late)):
        raise Failed(f"expected {logged}, and for late frames at most {late} more, found {counted}\n{result.stdout}\n{words}")
    # 500 messages, one way alone where the bytes are those of reads.
    way = "rx_bytes" if local == "auto" and "read" in operation else "tx_bytes"
    if not 500 * 4096 <= total[way] < 2 * 500 * 4096:
        raise Failed(f"500 messages of 4096 bytes, and {words}")
    return f"{operation}: {ways[0]} words of data in {packets} packets"


# PRACTICE-DEVICES-1
def follows_the_namespace(adverb, transport):
    """A device stands on the interface of the network namespace that the program is in; where there is none, its port is down."""
    with Namespace() as there:
        there.command("ip link add far0 type veth peer name far1")
        there.command("ip addr add 10.96.0.1/24 dev far0")
        there.command("ip link set far0 up")
        there.command("ip link set far1 up")
        run = [adverb, "run", "--devices", f"x@transport={transport},interface=far0", "--"]
        for prefix, state in (([], "PORT_DOWN"), (there.prefix, "PORT_ACTIVE")):
            result = subprocess.run([*run, *prefix, "ibv_devinfo", "-v", "-d", "x"], capture_output=True, text=True, timeout=LIMIT_S)
            gids = result.stdout.count("10.96.0.1")
            warnings = result.stderr.splitlines()
            if result.returncode != 0 or state not in result.stdout or transport == "roce" and gids != bool(prefix):
                raise Failed(f"expected {state}:\n{result.stdout}{result.stderr}")
            if len(warnings) != 1 or not warnings[0].startswith("adverb: warning: x: interface=far0: no such interface is up"):
                raise Failed(f"expected one warning:\n{result.stderr}")
        # Who starts adverb there is shown what is there, by the files, too.
        files = "cat /sys/class/infiniband/x/ports/1/state; ls /sys/class/infiniband/x/device/net"
        for prefix, shown in (([], "1: DOWN"), (there.prefix, "4: ACTIVE\nfar0")):
            result = subprocess.run([*prefix, *run, "sh", "-c", files], capture_output=True, text=True, timeout=LIMIT_S)
            if result.stdout.strip() != shown:
                raise Failed(f"expected {shown}:\n{result.stdout}{result.stderr}")
    return transport


# What verbs and files must say together, in the end: who writes the files hears of changes a moment later.
FOLLOW = """
until_is() {
  deadline=$((SECONDS + 40))
  until found=$("$PROGRAM" 2>"$PLACE/why") && [ "$found" = "$1" ]; do
    if [ $SECONDS -gt $deadline ]; then printf 'expected\\n%s\\nfound\\n%s\\n' "$1" "$found"; cat "$PLACE/why"; exit 1; fi
    sleep 0.1
  done
}
until_unnamed() {
  deadline=$((SECONDS + 40))
  until [ -z "$(cd /sys/class/infiniband && ls x/parent x/device/net y/parent y/device/net 2>/dev/null | grep -v :)" ]; do
    if [ $SECONDS -gt $deadline ]; then echo "the interface still has its name there"; exit 1; fi
    sleep 0.1
  done
}
cd /sys/class/infiniband/roce0/ports/1
until_is "roce0 4 10.96.0.1
iwarp0 4
x 4 10.96.0.1
y 4
z 4 127.0.0.1
w 4 127.0.0.1 at 1000:17:00.0 near 0 by 15b3
v 4 127.0.0.1 at 1000:18:00.0 near 0 by 0000"; ls ../../device/net; cat state; exec 5<state
ip link set far0 down
until_is "roce0 4 127.0.0.1
iwarp0 4
x 1
y 1
z 4 127.0.0.1
w 4 127.0.0.1 at 1000:17:00.0 near 0 by 15b3
v 4 127.0.0.1 at 1000:18:00.0 near 0 by 0000"; ls ../../device/net; cat <&5
ip link set lo down; ip link set far1 down
until_is "roce0 1
iwarp0 1
x 1
y 1
z 1
w 1 at 1000:17:00.0 near 0 by 15b3
v 1 at 1000:18:00.0 near 0 by 0000"; (cd /sys/class/infiniband && ls x/parent x/device/net y/parent y/device/net); cat state phys_state gids/0; cat "$ADVERB_FILES$PWD/state"; ls gid_attrs/types
ip link set lo up; ip link set far1 up; ip link set far0 up
until_is "roce0 4 10.96.0.1
iwarp0 4
x 4 10.96.0.1
y 4
z 4 127.0.0.1
w 4 127.0.0.1 at 1000:17:00.0 near 0 by 15b3
v 4 127.0.0.1 at 1000:18:00.0 near 0 by 0000"; cat state
ip addr add 10.96.0.9/32 dev far0
until_is "roce0 4 10.96.0.1 10.96.0.9
iwarp0 4
x 4 10.96.0.1 10.96.0.9
y 4
z 4 127.0.0.1
w 4 127.0.0.1 at 1000:17:00.0 near 0 by 15b3
v 4 127.0.0.1 at 1000:18:00.0 near 0 by 0000"; stat -L -c %a gids/1 gid_attrs/types/1; ip addr del 10.96.0.9/32 dev far0
until_is "roce0 4 10.96.0.1
iwarp0 4
x 4 10.96.0.1
y 4
z 4 127.0.0.1
w 4 127.0.0.1 at 1000:17:00.0 near 0 by 15b3
v 4 127.0.0.1 at 1000:18:00.0 near 0 by 0000"; ip link set far1 down
until_is "roce0 4 10.96.0.1
iwarp0 4
x 1 10.96.0.1
y 1
z 4 127.0.0.1
w 4 127.0.0.1 at 1000:17:00.0 near 0 by 15b3
v 4 127.0.0.1 at 1000:18:00.0 near 0 by 0000"; cat /sys/class/infiniband/x/ports/1/state; ls -A "$ADVERB_FILES"
ip link del far0
until_is "roce0 4 127.0.0.1
iwarp0 4
x 1
y 1
z 4 127.0.0.1
w 4 127.0.0.1 at 1000:17:00.0 near 0 by 15b3
v 4 127.0.0.1 at 1000:18:00.0 near 0 by 0000"; until_unnamed
"""

FOLLOWED = """\
far0
4: ACTIVE
lo
4: ACTIVE
x/parent
y/parent

x/device/net:
far0

y/device/net:
far0
1: DOWN
3: Disabled
0000:0000:0000:0000:0000:0000:0000:0000
1: DOWN
4: ACTIVE
444
444
1: DOWN
bin
counted
dev
known
sys
"""

FOLLOWING = "roce0 iwarp0 x@interface=far0,rate=400 y@interface=far0,transport=iwarp,rate=25 z@address=127.0.0.1,rate=10"
# Adapters at places, one of them of another vendor.
FOLLOWING += " w@address=127.0.0.1,pci=1000:17:00.0,numa=0,vendor=0x15b3,part=0x1021 v@address=127.0.0.1,pci=1000:18:00.0,numa=0"


# PRACTICE-FILES-4
def follows_the_addresses(adverb, mask):
    """Each file says what verbs say, also when an interface goes down or its cable is pulled, and when an address comes and goes. The files name a device's own interface until that is removed. `mask`: the umask of who starts."""
    with Namespace() as there, tempfile.TemporaryDirectory(prefix="adverb-attributes-") as place:
        program = os.path.join(place, "attributes")
        subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", program, os.path.join(HERE, "attributes.c"), "-libverbs"], check=True)
        there.command("ip link add far0 type veth peer name far1")
        for end in ("far0", "far1"):
            # Link-local addresses come at a time of their own.
            there.command(f"ip link set {end} addrgenmode none")
            there.command(f"ip link set {end} up")
        there.command("ip addr add 10.96.0.1/24 dev far0")
        script = f"umask {mask}; exec \"$@\""
        run = ["sh", "-c", script, "sh", adverb, "run", "--devices", FOLLOWING, "--", "bash", "-c", FOLLOW]
        env = {**os.environ, "PROGRAM": program, "PLACE": place, "TMPDIR": "/dev/shm"}
        result = subprocess.run([*there.prefix, *run], capture_output=True, text=True, timeout=6 * LIMIT_S, env=env)
        if result.returncode != 0 or result.stdout != FOLLOWED:
            raise Failed(f"status {result.returncode}\n{result.stdout}{result.stderr}")
    return "seven devices"


# PRACTICE-FILES-1, PRACTICE-FILES-2
def has_a_stable_path(adverb, folder, compiled=raw):
    """Programs that make system calls themselves find the whole tree below $ADVERB_FILES, with the links of sysfs. `compiled`: makes one of them."""
    script = f"cd $ADVERB_FILES && {compiled(folder)} sys dev"
    result = subprocess.run([adverb, "run", "--devices", PLACED, "--", "sh", "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
    lines = result.stdout.splitlines()
    adapter = "sys/devices/pci1000:16/1000:16:02.0/1000:17:00.0"
    for expected in [
        f"sys/class/infiniband/mlx5_0 -> ../../devices/{adapter.removeprefix('sys/devices/')}/infiniband/mlx5_0",
        f"{adapter}/infiniband/mlx5_0/device -> ../../../1000:17:00.0",
        f"sys/bus/pci/devices/1000:17:00.0 -> ../../../devices/{adapter.removeprefix('sys/devices/')}",
        f"{adapter}/numa_node: 2 0",
        f"{adapter}/vendor: 7 0x15b3",
        f"{adapter}/infiniband/mlx5_0/ports/1/state: 10 4: ACTIVE",
        f"{adapter}/infiniband/mlx5_0/ports/1/counters/port_xmit_data: 2 0",
        "dev/infiniband/uverbs2 -> /dev/null",
    ]:
        if expected not in lines:
            raise Failed(f"{expected} is not among\n{result.stdout}{result.stderr}")
    return f"{len(lines)} lines"


# What a machine with an adapter of its own has, in a mount namespace; and then a command.
HOST = """
set -e
mount -t tmpfs none "$PLACE"; cd "$PLACE"; mkdir -p class/net class/infiniband/mlx5_9/ports/1 class/infiniband_verbs/uverbs9 dev/shm dev/infiniband
cp -a /sys/class/net/. class/net/; echo 6 >class/infiniband_verbs/abi_version; echo mlx5_9 >class/infiniband_verbs/uverbs9/ibdev
echo 1: CA >class/infiniband/mlx5_9/node_type; echo 4: ACTIVE >class/infiniband/mlx5_9/ports/1/state; echo 0:0:0:9 >class/infiniband/mlx5_9/node_guid
for device in null zero full random urandom infiniband/uverbs9; do touch dev/$device; mount --bind /dev/$(basename $device | sed s/uverbs9/null/) dev/$device; done
mount --bind /dev/shm dev/shm; ln -s /proc/self/fd dev/fd; mount --rbind class /sys/class; mount --rbind dev /dev; cd /
exec "$@"
"""

LOOK = """
ibv_devices; rdma link; ls /sys/class/infiniband /sys/class/infiniband_verbs /dev/infiniband; echo /sys/class/infiniband/* /dev/infiniband/*
cat /sys/class/infiniband/*/node_guid /sys/class/infiniband_verbs/*/ibdev; find /sys/class/infiniband_verbs /dev/infiniband; cd /sys/class && ls net/../infiniband
cat /sys/class/infiniband/mlx5_9/node_type 2>/dev/null || echo none; python3 -c 'import os; print(os.listdir("/sys/class/infiniband"), os.path.exists("/dev/infiniband/uverbs9"))'
"""


def hides_the_hosts_adapters(adverb, folder):
    """The machine's own adapters are neither among the devices nor among their files."""
    with tempfile.TemporaryDirectory(prefix="adverb-host-") as place:

        def ask(*command):
            command = ["unshare", "--mount", "sh", "-c", HOST, "sh", *command]
            result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "PLACE": place})
            if result.returncode != 0:
                raise Failed(f"$ {shlex.join(command)}\nstatus {result.returncode}\n{result.stdout}{result.stderr}")
            return result.stdout

        files = "cat /sys/class/infiniband/*/node_guid; ls /dev/infiniband"
        if ask("sh", "-c", files).split() != ["0:0:0:9", "uverbs9"]:
            raise Failed("the adapter of the machine is not there without adverb")
        # Who makes system calls himself is not reached, and has a path of his own.
        stable = f'{raw(folder)} /sys/class/infiniband/mlx5_9/node_guid; {raw(folder)} "$ADVERB_FILES"'
        seen = ask(adverb, "run", "--", "sh", "-c", stable)
        if "node_guid: 8 0:0:0:9" not in seen or "mlx5_9" in seen.split("\n", 2)[2]:
            raise Failed(f"a static program sees\n{seen}")
        seen = ask(adverb, "run", "--devices", "near0@address=127.0.0.1", "--", "bash", "-c", LOOK)
    if re.search("mlx5_9|uverbs9|0:0:0:9", seen) or "['near0'] False" not in seen or "\nnone\n" not in seen:
        raise Failed(f"seen is\n{seen}")
    return "by verbs, rdma, shells and Python"


# The same with links into a tree of devices, as the kernel has them.
LINKED_HOST = """
set -e
mount -t tmpfs none "$PLACE"; cd "$PLACE"
mkdir -p virtual/net virtual/infiniband/mlx5_9/ports/1 virtual/infiniband_verbs/uverbs0 class/net class/infiniband class/infiniband_verbs dev/shm dev/infiniband
mount --rbind /sys/devices/virtual/net virtual/net; cp -a /sys/class/net/. class/net/; echo 6 >class/infiniband_verbs/abi_version
echo 1: CA >virtual/infiniband/mlx5_9/node_type; echo 4: ACTIVE >virtual/infiniband/mlx5_9/ports/1/state; echo mlx5_9 >virtual/infiniband_verbs/uverbs0/ibdev
for entry in infiniband/mlx5_9 infiniband_verbs/uverbs0; do ln -s ../../devices/virtual/$entry class/$entry; done
for device in null zero full random urandom; do touch dev/$device; mount --bind /dev/$device dev/$device; done
touch dev/infiniband/uverbs0 dev/infiniband/rdma_cm; mount --bind /dev/full dev/infiniband/uverbs0; mount --bind /dev/zero dev/infiniband/rdma_cm
mount --bind /dev/shm dev/shm; ln -s /proc/self/fd dev/fd
mount --rbind class /sys/class; mount --rbind virtual /sys/devices/virtual; mount --rbind dev /dev; cd /
exec "$@"
"""

LOOK_BESIDE = """
for d in /sys/class/infiniband/*; do echo "$d is $(realpath $d), $(cat $d/ports/1/state), $(cat $d/../../infiniband/${d##*/}/node_type)"; done
for d in /sys/class/infiniband_verbs/uverbs*; do echo "${d##*/} is $(cat $d/ibdev), $(stat -L -c %t:%T /dev/infiniband/${d##*/})"; done
stat -L -c "rdma_cm %t:%T" /dev/infiniband/rdma_cm; cat $ADVERB_FILES/sys/class/infiniband/mlx5_9/node_type
cd /sys/class/infiniband/mlx5_9 && cat ../mlx5_9/ports/1/state; python3 -c 'import os; print(os.readlink("/sys/class/infiniband/mlx5_9"))'
"""

SEEN_BESIDE = """\
/sys/class/infiniband/mlx5_9 is /sys/devices/virtual/infiniband/mlx5_9, 4: ACTIVE, 1: CA
/sys/class/infiniband/roce0 is /sys/devices/platform/adverb.0.auto/infiniband/roce0, 4: ACTIVE, 1: CA
uverbs0 is mlx5_9, 1:7
uverbs1024 is roce0, 1:3
rdma_cm 1:3
1: CA
4: ACTIVE
../../devices/virtual/infiniband/mlx5_9
"""


def shows_the_hosts_adapters(adverb):
    """With the option, each file of the machine's adapter leads to where it leads without adverb, beside ours; also below another `adverb run`."""
    with tempfile.TemporaryDirectory(prefix="adverb-host-") as place:

        def ask(*command):
            command = ["unshare", "--mount", "sh", "-c", LINKED_HOST, "sh", adverb, "run", "--with-host-devices", *command]
            return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, "PLACE": place})

        for command in (["bash", "-c", LOOK_BESIDE], [adverb, "run", "--", "bash", "-c", LOOK_BESIDE]):
            result = ask("--", *command)
            if result.returncode != 0 or result.stdout != SEEN_BESIDE:
                raise Failed(f"expected\n{SEEN_BESIDE}\nfound\n{result.stdout}{result.stderr}")
        # One name for two devices: said before the program starts.
        result = ask("--devices", "mlx5_9@transport=roce", "--", "echo", "started")
        if result.returncode != 2 or result.stdout or "has a device mlx5_9, too; give adverb's another name: --devices" not in result.stderr:
            raise Failed(f"status {result.returncode}\n{result.stdout}{result.stderr}")
    return "by shells and Python"


INSIDE = """
#include <infiniband/verbs.h>
int main(void) { int count = -1; return ibv_get_device_list(&count) == 0 || count != 0; }
"""

# Debian's static library cannot be linked into a shared one, so this does what it does.
INSIDE_LIBRARY = """
#include <dirent.h>
const char words[] = "libibverbs: Warning: no userspace device-specific driver found for %s";
int main(void) { DIR *folder = opendir("/sys/class/infiniband_verbs"); return folder == 0 || closedir(folder); }
"""

# The same by netlink, and by a library for it: all that rdma-core asks where the kernel's RDMA core is there and has no device.
INSIDE_NETLINK = """
#include <netlink/netlink.h>
const char words[] = "libibverbs: Warning: no userspace device-specific driver found for %s";
int main(void) { struct nl_sock *asked = nl_socket_alloc(); nl_connect(asked, NETLINK_RDMA); nl_socket_free(asked); return 0; }
"""


# A copy of a libibverbs of others, as wheels bring one; it has no device.
RENAMED = """
#include <dirent.h>
#include <stddef.h>
const char words[] = "libibverbs: Warning: no userspace device-specific driver found for %s";
void *ibv_get_device_list(int *count) { DIR *folder = opendir("/sys/class/infiniband_verbs"); if (folder != NULL) closedir(folder); *count = 0; return NULL; }
void ibv_free_device_list(void *list) { (void)list; }
const char *ibv_get_device_name(void *device) { return device ? "a device" : NULL; }
"""
# By the linker, and by dlopen(3) as libraries do that can live without.
LISTS = """
#include <dlfcn.h>
#include <stdio.h>
extern void **ibv_get_device_list(int *);
extern const char *ibv_get_device_name(void *);
int main(int arguments, char **names) {
  void *loaded = arguments > 1 ? dlopen(names[1], RTLD_NOW) : NULL;
  void **(*list)(int *) = loaded ? (void **(*)(int *))dlsym(loaded, "ibv_get_device_list") : ibv_get_device_list;
  int count = -1;
  void **found = list(&count);
  printf("%d %s\\n", count, count > 0 ? ibv_get_device_name(found[0]) : "none");
  return arguments > 1 && loaded == NULL;
}
"""


def reaches_renamed_copies(adverb):
    """A program that is linked to a copy under another name has adverb's devices, and nobody is warned. A copy that the program itself opens is named."""
    with tempfile.TemporaryDirectory(prefix="adverb-renamed-") as place:
        copy, program, versions = (os.path.join(place, name) for name in ("libibverbs-6be0c7a1.so.1.14.44", "lists", "versions"))
        with open(versions, "w") as file:
            file.write("IBVERBS_1.1 { global: *; };")
        for name, source, options in (
            (copy, RENAMED, ["-shared", "-fPIC", f"-Wl,-soname,{os.path.basename(copy)},--version-script,{versions}"]),
            (program, LISTS, [copy, f"-Wl,-rpath,{place}"]),
        ):
            subprocess.run(["cc", "-x", "c", "-", "-o", name, "-x", "none", *options], input=source, text=True, check=True)
        warning = f"adverb: warning: {copy} has a libibverbs of its own inside"
        for before, arguments, expected, says in (
            ([], [], "0 none", ""),
            ([adverb, "run", "--"], [], "1 roce0", ""),
            ([adverb, "run", "--"], [copy], "0 none", warning),
            ([adverb, "run", "--"], ["libibverbs.so.1"], "1 roce0", ""),
        ):
            command = [*before, program, *arguments]
            result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
            is_said = result.stderr.startswith(says) and len(result.stderr.splitlines()) == bool(says)
            if result.returncode != 0 or result.stdout.strip() != expected or not is_said:
                raise Failed(f"$ {shlex.join(command)}\nexpected {expected} {says}, status {result.returncode}\n{result.stdout}{result.stderr}")
    return "by the linker and by name"


def says_what_is_inside(adverb):
    """A program and a library with libibverbs linked into them are named, once; programs that only list the folder are not."""
    static = ["-Wl,-Bstatic", "-libverbs", "-Wl,-Bdynamic", "-lnl-route-3", "-lnl-3"]
    with tempfile.TemporaryDirectory(prefix="adverb-inside-") as place:
        program, library, asks, host = (os.path.join(place, name) for name in ("inside", "inside.so", "asks", "libibverbs.so.1.14"))
        netlink = ["-I/usr/include/libnl3", "-lnl-3"]
        shared = ["-shared", "-fPIC"]
        for name, source, options in ((program, INSIDE, static), (library, INSIDE_LIBRARY, shared), (asks, INSIDE_NETLINK, netlink), (host, INSIDE_NETLINK, shared + netlink)):
            subprocess.run(["cc", "-x", "c", "-", "-o", name, *options], input=source, text=True, check=True)
        load = f"import ctypes; print(ctypes.CDLL({library!r}).main())"
        load_host = f"import ctypes; print(ctypes.CDLL({host!r}).main())"
        for command, named in [
            (f"{program} && {program}", program),
            (f"python3 -c {shlex.quote(load)}", library),
            (f"{asks} && {asks}", asks),
            # The host's, which is asked for.
            (f"ADVERB_HOST_DEVICES={host} python3 -c {shlex.quote(load_host)}", None),
            (f"python3 -c {shlex.quote(load_host)}", host),
            ("ls /sys/class/infiniband_verbs; cat /sys/class/infiniband_verbs/abi_version; ibv_devices", None),
        ]:
            result = subprocess.run([adverb, "run", "--", "sh", "-c", command], capture_output=True, text=True, timeout=LIMIT_S)
            expected = f"adverb: warning: {named} has a libibverbs of its own inside" if named else ""
            lines = result.stderr.splitlines()
            if result.returncode != 0 or len(lines) != bool(named) or expected not in result.stderr:
                raise Failed(f"$ {command}\nstatus {result.returncode}\n{result.stdout}{result.stderr}")
    return "two programs and two libraries"
