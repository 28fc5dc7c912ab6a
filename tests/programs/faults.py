"""Faults of the wire, the device and the process: what unmodified programs do then. Each is run twice with the same seed, and must have the same log."""

import collections
import contextlib
import os
import re
import shlex
import subprocess
import tempfile
import time

from harness.namespace import free_port, two_hosts
from harness.process import Process, expect_success, polling, serving, wait_until
from harness.report import Failed

LIMIT_S = 120
SERVER = "127.0.0.1"

Pair = collections.namedtuple("Pair", "device server client server_rule", defaults=[None])

PINGPONG = Pair("roce0", "ibv_rc_pingpong -g 0 -p {port} -n 30", "ibv_rc_pingpong -g 0 -p {port} -n 30 {server}")
UD_PINGPONG = Pair("roce0", "ibv_ud_pingpong -g 0 -p {port} -n 30", "ibv_ud_pingpong -g 0 -p {port} -n 30 {server}")
SRQ_PINGPONG = Pair("roce0", "ibv_srq_pingpong -g 0 -p {port} -n 30 -q 2", "ibv_srq_pingpong -g 0 -p {port} -n 30 -q 2 {server}")
RPING = Pair("roce0", "rping -s -a {server} -p {port} -C 10", "rping -c -v -a {server} -p {port} -C 10")
RPING_TCP = RPING._replace(device="iwarp0")
# The server stalls at its third message. The client's fifth completion is that of its third Send. Then the client only waits: no post can fail and
# end it before it sees the event.
RPING_WAITS = RPING._replace(server_rule="peer:stall@5posts")
RPING_TCP_WAITS = RPING_WAITS._replace(device="iwarp0")
WRITE_BW = Pair("roce0", "ib_write_bw -F -n 50 -p {port}", "ib_write_bw -F -n 50 -p {port} {server}")
READ_LAT = Pair("roce0", "ib_read_lat -F -n 20 -p {port}", "ib_read_lat -F -n 20 -p {port} {server}")
ATOMIC_LAT = Pair("roce0", "ib_atomic_lat -F -n 20 -p {port}", "ib_atomic_lat -F -n 20 -p {port} {server}")
TWO_BW = Pair("roce0", "ib_write_bw -F -n 50 -q 2 -p {port}", "ib_write_bw -F -n 50 -q 2 -p {port} {server}")
EVENTS = Pair("roce0", "ibv_rc_pingpong -e -g 0 -p {port} -n 30", "ibv_rc_pingpong -e -g 0 -p {port} -n 30 {server}")
SLOW_BW = Pair("roce0", "ib_write_bw -F -n 5 -p {port}", "ib_write_bw -F -n 5 -p {port} {server}")

# A rule of the client, the programs, the client's status (None: any but 0, and no signal), words of its output, and words of its log.
Case = collections.namedtuple("Case", "name rule pair status says log")
DONE = r"\d+ iters in"
# Each of 30 messages is 20 ms late. The first one may be on its way before the client looks at the clock:
# then the time of 29 is divided by 30.
LATE_EACH_TIME = r"= (19\d{3}|[2-9]\d{4}|\d{6,})\.\d+ usec/iter"
CASES = [
    Case("loss", "wire:loss:direction=out:opcode=SEND@3", PINGPONG, 0, DONE, r"packet 3 to [\d.]+, SEND, is lost"),
    Case("loss_of_what_comes", "wire:loss:direction=in:opcode=SEND@3", PINGPONG, 0, DONE, r"packet 3 from [\d.]+, SEND, is lost"),
    Case("loss_of_answers", "wire:loss:opcode=READ_RESPONSE@5", READ_LAT, 0, "#bytes", r"READ_RESPONSE, is lost"),
    Case("loss_of_atomics", "wire:loss:opcode=ATOMIC@5", ATOMIC_LAT, 0, "#bytes", r"ATOMIC, is lost"),
    Case("loss_of_datagrams", "wire:loss:direction=out:opcode=CM@1", RPING, 0, "ping data", r"CM, is lost"),
    Case("loss_for_ever", "wire:loss:direction=out:opcode=SEND@5+", PINGPONG, None, r"transport retry counter exceeded \(12\)", r"packet 5 to"),
    Case("loss_on_tcp", "wire:loss:direction=out:opcode=SEND@2", RPING_TCP, 0, "ping data", r"SEND, comes 0.2 s later, as TCP repeats it"),
    Case("partition", "wire:partition:direction=out:opcode=SEND@9+", PINGPONG, None, r"transport retry counter exceeded \(12\)", r"is lost"),
    Case("partition_of_peer", "wire:partition:direction=out:peer=10.98.0.0/16:opcode=SEND@9+", PINGPONG, None, r"\(12\)", r"is lost"),
    Case("delay", "wire:delay=20ms:direction=out:opcode=SEND", PINGPONG, 0, LATE_EACH_TIME, r"SEND, waits"),
    Case("delay_on_tcp", "wire:delay=20ms:direction=in:opcode=SEND@1..5", RPING_TCP, 0, "ping data", r"packet 1 from 127.0.0.1, SEND, waits"),
    Case("jitter", "wire:delay=10ms:jitter=10ms:direction=out:opcode=SEND", PINGPONG, 0, r"= [1-9]\d{4,}\.\d+ usec/iter", r"SEND, waits"),
    Case("reorder", "wire:reorder=5ms:direction=out:opcode=RDMA_WRITE@40", WRITE_BW, 0, r"65536 +50", r"packet 40 to [\d.]+, RDMA_WRITE, waits"),
    Case("duplicate", "wire:duplicate:direction=out:opcode=SEND@3", PINGPONG, 0, DONE, r"comes twice"),
    Case("corrupt", "wire:corrupt:direction=out:opcode=SEND@3", PINGPONG, 0, DONE, r"is damaged"),
    Case("corrupt_what_comes", "wire:corrupt:direction=in:opcode=SEND@3", PINGPONG, 0, DONE, r"is damaged"),
    Case("corrupt_on_tcp", "wire:corrupt:direction=out:opcode=SEND@3", RPING_TCP, 0, r"(?s)MPA error: CRC error.*client DISCONNECT EVENT", r"is damaged"),
    Case("cut", "wire:cut:direction=out:opcode=SEND@3", RPING_TCP, 0, "client DISCONNECT EVENT", r"cuts the connection"),
    Case("rate", "wire:rate=10mbit:direction=out:opcode=RDMA_WRITE", SLOW_BW, 0, r"65536 +5 +[01]\.\d+", r"RDMA_WRITE, waits"),
    # Datagrams, which nobody repeats: the packets are the same in each run.
    Case("by_chance", "wire:delay=1ms:direction=out:opcode=SEND%20", UD_PINGPONG, 0, DONE, r"SEND, waits"),
    Case("datagrams_duplicated", "wire:duplicate:direction=out:opcode=SEND@7", UD_PINGPONG, 0, DONE, r"comes twice"),
    Case("loss_of_device", "wire:loss:device=roce0:direction=out:opcode=SEND@3", PINGPONG, 0, DONE, r"packet 3 to [\d.]+, SEND, is lost"),
    Case("post_fails_for_now", "ibv_post_send:EAGAIN@3", PINGPONG, None, "Couldn't post send", r"ibv_post_send, call 3, fails with EAGAIN"),
    Case("post_fails_on_one_queue_pair", "ibv_post_send:ENOMEM:qp=2@3", TWO_BW, None, r"(?i)couldn't post|failed", r"ibv_post_send, call 3, fails with ENOMEM"),
    Case("first_request_fails", "completion:LOC_PROT_ERR@1", PINGPONG, None, r"Failed status local protection error \(4\)", r"completion 1, of request 0x\w+, has IBV_WC_LOC_PROT_ERR"),
    Case("request_of_one_queue_pair_fails", "completion:RETRY_EXC_ERR:qp=2@3", TWO_BW, None, r"Failed status 12: wr_id 1 ", r"completion 3, of request 0x1, has IBV_WC_RETRY_EXC_ERR"),
    Case("late_completions", "completion:delay=20ms:opcode=RECV", PINGPONG, 0, LATE_EACH_TIME, r"completion 1, of request 0x1, comes late"),
    Case("late_completions_with_events", "completion:delay=20ms:opcode=RECV", EVENTS, 0, LATE_EACH_TIME, r"completion 1, of request 0x1, comes late"),
    Case("late_completions_by_chance", "completion:delay=5ms:jitter=5ms:opcode=RECV%20", PINGPONG, 0, DONE, r"of request 0x1, comes late"),
    Case("late_completions_on_tcp", "completion:delay=20ms:opcode=RECV@2", RPING_TCP, 0, "ping data", r"completion 2, of request 0x0, comes late"),
    Case("completions_in_another_order", "completion:reorder=20ms:opcode=RDMA_WRITE:qp=1@1..5", TWO_BW, 0, r"65536 +100", r"completion 1, of request 0x0, waits for one of another queue pair"),
    Case("device_cannot_be_opened", "ibv_open_device:ENODEV:device=roce0", PINGPONG, 1, "Couldn't get context for roce0", r"ibv_open_device, call 1, fails with ENODEV"),
    Case("device_removal", "device:gone@5completions", RPING_WAITS, None, "cma detected device removal!!!!", r"the device is gone"),
    Case("device_gone_at_resolve", "device:gone@0s", RPING, None, r"RDMA_CM_EVENT_ADDR_ERROR, error -19", r"the device is gone"),
    Case("device_removal_on_tcp", "device:gone@5completions", RPING_TCP_WAITS, None, "cma detected device removal!!!!", r"the device is gone"),
    Case("device_removal_on_fatal", "device:fatal@5completions", RPING_WAITS, None, "cma detected device removal!!!!", r"the device has failed"),
    Case("cut_queue_pair", "peer:cut@8posts", PINGPONG, None, r"Work Request Flushed Error|Couldn't post", r"queue pairs go into error"),
    Case("last_receive", "peer:cut@8posts", SRQ_PINGPONG, None, r"Work Request Flushed Error|Couldn't post", r"queue pairs go into error"),
    Case("kill", "peer:kill@8posts", PINGPONG, 137, "", r"the program is killed"),
    Case("kill_by_completions", "peer:kill@8completions", PINGPONG, 137, "", r"the program is killed"),
    Case("stall", "peer:stall=1s@8posts", PINGPONG, 0, DONE, r"the program stalls"),
    Case("device_fatal", "device:fatal@8posts", PINGPONG, None, r"Couldn't post|Work Request Flushed", r"the device has failed"),
    Case("port_down_under_way", "device:port_down@8posts", PINGPONG, None, r"transport retry counter exceeded \(12\)", r"the port is down"),
    Case("port_flaps", "device:port_down@8posts+100ms", PINGPONG, 0, DONE, r"fault of device:port_down@8posts\+100ms ends"),
    Case("port_flaps_on_tcp", "device:port_down@8posts+100ms", RPING_TCP, 0, "ping data", r"fault of device:port_down@8posts\+100ms ends"),
]


def run(adverb, device, *options):
    return [adverb, "run", "--device", device, *options, "--"]


def lines(text):
    """The log of the faults, without the numbers that the machine gives."""
    return [re.sub(r"adverb\[\d+\]|queue pair 0x\w+", "", line) for line in text.splitlines() if re.search(r" faults?( \d+)?:| fault of ", line)]


def once(adverb, case):
    """Runs both programs, the client with the fault: its log of faults, and all that it says."""
    port = free_port()
    place = {"port": port, "server": SERVER}
    rule = ["--fault", case.pair.server_rule] if case.pair.server_rule else []
    server = Process([*run(adverb, case.pair.device, *rule), *shlex.split(case.pair.server.format(**place))])
    with server:
        wait_until(serving(server, port), LIMIT_S, "the server serves")
        command = [*run(adverb, case.pair.device, "--fault", case.rule, "--seed", "7"), *shlex.split(case.pair.client.format(**place))]
        with Process(command, {"ADVERB_LOG": "warn"}) as client:
            status = client.wait(LIMIT_S)
            text = client.output()
            # 255 is rping's own; a signal would be 128 and its number.
            is_right = status == case.status if case.status is not None else status is not None and status > 0 and not 128 < status < 200
            if not is_right or not re.search(case.says, text) or not re.search(case.log, text):
                raise Failed(f"{client.describe()}\n{server.describe()}")
            if case.status == 0:
                expect_success([server], LIMIT_S)
    return lines(text), text


def meets(adverb, case):
    """The program meets the fault as on a network. Twice the same seed gives the same faults."""
    found = [once(adverb, case)[0] for _ in range(2)]
    if found[0] != found[1]:
        raise Failed(f"one run: {found[0]}\nanother: {found[1]}")
    return next(line.strip() for line in found[0] if re.search(case.log, line))


def repeats(adverb):
    """A lost packet is sent once more, and a damaged one is counted by the process that gets it."""
    port = free_port()
    place = {"port": port, "server": SERVER}
    counted = {}
    with tempfile.TemporaryDirectory(prefix="adverb-fault-") as folder:
        for kind in ("loss", "corrupt"):
            logs = [os.path.join(folder, f"{kind}-{side}") for side in ("server", "client")]
            rule = f"wire:{kind}:direction=out:opcode=SEND@3"
            with Process([*run(adverb, "roce0"), *shlex.split(PINGPONG.server.format(**place))], {"ADVERB_LOG": f"info:{logs[0]}"}) as server:
                wait_until(serving(server, port), LIMIT_S, "the server serves")
                command = [*run(adverb, "roce0", "--fault", rule), *shlex.split(PINGPONG.client.format(**place))]
                with Process(command, {"ADVERB_LOG": f"info:{logs[1]}"}) as client:
                    expect_success([client, server], LIMIT_S)
            for side, name in zip(("server", "client"), logs):
                with open(name) as file:
                    counted[kind, side] = dict(re.findall(r"(\w+)=(\d+)", next(line for line in file if " counters roce0" in line)))
    repeated = [int(counted[kind, "client"].get("tx_repeated", 0)) for kind in ("loss", "corrupt")]
    damaged = counted["corrupt", "server"].get("damaged")
    if min(repeated) < 1 or damaged != "1":
        raise Failed(f"repeated {repeated}, damaged {damaged}: {counted}")
    return f"repeated {repeated}, damaged {damaged}"


def shown_on_wire(adverb):
    """The log of packets has what was on the wire: the first packet of a message is not there if it is lost, and each one twice if it is duplicated."""
    found = {}
    for kind in ("loss", "duplicate"):
        rule = f"wire:{kind}:direction=out:opcode=SEND" + ("@1" if kind == "loss" else "")
        with tempfile.TemporaryDirectory(prefix="adverb-fault-") as folder:
            log = os.path.join(folder, "packets")
            port = free_port()
            place = {"port": port, "server": SERVER}
            with Process([*run(adverb, "roce0"), *shlex.split(PINGPONG.server.format(**place))]) as server:
                wait_until(serving(server, port), LIMIT_S, "the server serves")
                command = [*run(adverb, "roce0", "--fault", rule), *shlex.split(PINGPONG.client.format(**place))]
                with Process(command, {"ADVERB_LOG": f"packets:{log}"}) as client:
                    expect_success([client, server], LIMIT_S)
            with open(log) as file:
                found[kind] = re.findall(r"packet: -> [\d.]+: Send (\w+) of .*PSN (\d+)", file.read())
    if not found["loss"] or found["loss"][0][0] == "First":
        raise Failed(f"the lost packet was sent: {found['loss'][:3]}")
    times = collections.Counter(number for _, number in found["duplicate"])
    if not times or any(count % 2 for count in times.values()):
        raise Failed(f"not each packet twice: {times}")
    return f"{len(found['loss'])} packets, and {len(found['duplicate'])}"


# A rule, what ibv_devinfo -v shows, and what it does not.
SHOWN = [
    ("port_not_active", "device:port_down@0s", r"state:\s+PORT_DOWN", r"PORT_ACTIVE \("),
    ("gid_added", "device:gid_added=10.7.7.7@0s", r"::ffff:10\.7\.7\.7", "no such"),
    ("gid_changed", "device:gid_changed=127.0.0.1/10.7.7.7@0s", r"::ffff:10\.7\.7\.7", r"::ffff:127\.0\.0\.1"),
    ("gid_removed", "device:gid_removed=127.0.0.1@0s", "hca_id", r"::ffff:127\.0\.0\.1"),
    ("speed", "device:speed=400@0s", r"active_speed:\s+100\.0 Gbps", "no such"),
    ("gone", "device:gone@0s", "No IB devices found", "hca_id"),
]


def shown(adverb, case):
    """What ibv_devinfo says of a device to which something has happened before it looked."""
    _, rule, there, missing = case
    found = []
    for _ in range(2):
        with Process([*run(adverb, "roce0", "--fault", rule), "ibv_devinfo", "-v"], {"ADVERB_LOG": "warn"}) as process:
            process.wait(LIMIT_S)
            text = process.output()
            if not re.search(there, text) or re.search(missing, re.sub(r"(?m)^adverb.*$", "", text)):
                raise Failed(process.describe())
            found.append(lines(text))
    if found[0] != found[1] or not found[0]:
        raise Failed(str(found))
    return re.search(there, text)[0]


# Every event of a device, and every one of a queue pair with ibv_event_type_str's words for it.
OF_DEVICES = ["PORT_ERR", "PORT_ACTIVE", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE", "CLIENT_REREGISTER", "GID_CHANGE", "DEVICE_FATAL"]
OF_QUEUE_PAIRS = {
    "QP_FATAL": "local work queue catastrophic error",
    "QP_REQ_ERR": "invalid request local work queue error",
    "QP_ACCESS_ERR": "local access violation work queue error",
    "COMM_EST": "communication established",
    "SQ_DRAINED": "send queue drained",
    "PATH_MIG": "path migrated",
    "PATH_MIG_ERR": "path migration request error",
    "QP_LAST_WQE_REACHED": "last WQE reached",
}

# A rule, and the events that ibv_asyncwatch gets, in this order.
TOLD = [
    ("port_flap", "device:port_down@1.5s..1.6s", ["PORT_ERR", "PORT_ACTIVE"]),
    ("gid_change", "device:gid_added=10.7.7.7@1.5s", ["GID_CHANGE"]),
    ("gid_removed", "device:gid_removed=127.0.0.1@1.5s", ["GID_CHANGE"]),
    ("gid_changed", "device:gid_changed=127.0.0.1/10.7.7.7@1.5s", ["GID_CHANGE"]),
    ("every_event", ",".join(f"event:{name}@1.5s" for name in OF_DEVICES), OF_DEVICES),
    ("fatal", "device:fatal@1.5s", ["DEVICE_FATAL"]),
    ("gone", "device:gone@1.5s", ["DEVICE_FATAL"]),
    ("speed_without_event", "device:speed=400@1.5s,event:SM_CHANGE@1.7s", ["SM_CHANGE"]),
]


def told(adverb, case):
    """The events of a device to which something happens."""
    _, rule, events = case
    found = []
    for _ in range(2):
        with Process([*run(adverb, "roce0", "--fault", rule), "stdbuf", "-oL", "ibv_asyncwatch", "-d", "roce0"], {"ADVERB_LOG": "warn"}) as process:
            words = lambda: re.findall(r"event_type IBV_EVENT_(\w+)", process.output())
            wait_until(lambda: len(words()) >= len(events) or process.status() is not None, LIMIT_S, "the events come")
            if words() != events:
                raise Failed(process.describe())
            found.append(lines(process.output()))
    if found[0] != found[1]:
        raise Failed(str(found))
    return " then ".join(events)


# Rules with a device of two, and what ibv_devinfo says.
OF_ONE = [
    ("port_down", "device:port_down:device=mlx5_1@0s", {"mlx5_0": "PORT_ACTIVE", "mlx5_1": "PORT_DOWN"}),
    ("gone", "device:gone:device=mlx5_0@0s", {"mlx5_1": "PORT_ACTIVE"}),
]
TWO = ["mlx5_0@interface=one", "mlx5_1@interface=two"]


@contextlib.contextmanager
def two_devices():
    """A host with two interfaces, and the beginning of a command with a device on each."""
    here, there = two_hosts()
    with here, there:
        for number, name in enumerate(("one", "two"), 1):
            here.join(there, name, f"10.96.{number}.1/24", f"10.96.{number}.2/24")
        yield lambda adverb, *options: [*here.prefix, adverb, "run", "--devices", " ".join(TWO), *options, "--"]


def one_of_two(adverb, case):
    """What ibv_devinfo says of two devices, of which a rule names one."""
    _, rule, wanted = case
    with two_devices() as begin:
        found = []
        for _ in range(2):
            with Process([*begin(adverb, "--fault", rule), "ibv_devinfo"], {"ADVERB_LOG": "warn"}) as process:
                expect_success([process], LIMIT_S)
                text = process.output()
                said = dict(re.findall(r"hca_id:\s+(\S+)[^$]*?state:\s+(PORT_\w+)", text))
                if said != wanted:
                    raise Failed(f"{said}\n{process.describe()}")
                found.append(lines(text))
        if found[0] != found[1] or not found[0]:
            raise Failed(str(found))
    return str(wanted)


SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "own", "faults.c")
ROUNDS = "rounds 2 mlx5_0 mlx5_1"
BOTH = "2 devices: mlx5_0 mlx5_1"
# Programs of Debian have one device each, ask for no order, and are silent about most events: this one says what it sees.
OWN = [
    ("port_of_one_device", "device:port_down:device=mlx5_1@2posts..4posts", ROUNDS, [
        "round 1: mlx5_0: success; active",
        "round 1: mlx5_1: transport retry counter exceeded; down; port error",
        BOTH,
        "round 2: mlx5_0: success; active",
        "round 2: mlx5_1: Work Request Flushed Error; active; port active",
        BOTH,
    ]),
    ("list_of_devices", "device:gone:device=mlx5_1@2posts..4posts", ROUNDS, [
        "round 1: mlx5_0: success; active",
        "round 1: mlx5_1: post fails (Input/output error); Input/output error; local catastrophic error",
        "1 devices: mlx5_0",
        "round 2: mlx5_0: success; active",
        "round 2: mlx5_1: Work Request Flushed Error; active",
        BOTH,
    ]),
    ("device_that_comes_later", "device:gone:device=mlx5_1@0s..2posts", "rounds 2 mlx5_0", [
        "round 1: mlx5_0: success; active",
        "1 devices: mlx5_0",
        "round 2: mlx5_0: success; active",
        BOTH,
    ]),
    ("packets_of_one_device", "wire:loss:device=mlx5_1:opcode=RDMA_WRITE", "rounds 1 mlx5_0 mlx5_1", [
        "round 1: mlx5_0: success; active",
        "round 1: mlx5_1: transport retry counter exceeded; active",
        BOTH,
    ]),
    ("events_of_one_device", "event:LID_CHANGE:device=mlx5_1@1posts", "rounds 1 mlx5_0 mlx5_1", [
        "round 1: mlx5_0: success; active",
        "round 1: mlx5_1: success; active; LID change",
        BOTH,
    ]),
    ("completion_of_one_device", "completion:GENERAL_ERR:device=mlx5_1@1", "rounds 1 mlx5_0 mlx5_1", [
        "round 1: mlx5_0: success; active",
        "round 1: mlx5_1: general error; active",
        BOTH,
    ]),
    ("order", "completion:reorder=60s:qp=1@1", "order mlx5_0", ["queue pair 1 comes after queue pair 2"]),
    ("order_by_delay", "completion:delay=3s:qp=1@1", "order mlx5_0", ["queue pair 1 comes after queue pair 2"]),
    ("last_receive", "peer:cut:qp=2@1posts", "events 1 mlx5_0", ["event: last WQE reached of queue pair 2"]),
    ("child_of_fork", "event:SM_CHANGE:device=mlx5_0@2s", "child mlx5_0", [BOTH, "event: SM change", "the child ends with 0"]),
    (
        "every_event_of_a_queue_pair",
        ",".join(f"event:{name}:qp=2@1posts" for name in OF_QUEUE_PAIRS),
        f"events {len(OF_QUEUE_PAIRS)} mlx5_0",
        ["".join(f"event: {words} of queue pair 2" for words in OF_QUEUE_PAIRS.values())],
    ),
]
# Every status of a failed completion, with ibv_wc_status_str's words for it.
STATUSES = {
    "LOC_LEN_ERR": "local length error",
    "LOC_QP_OP_ERR": "local QP operation error",
    "LOC_PROT_ERR": "local protection error",
    "WR_FLUSH_ERR": "Work Request Flushed Error",
    "MW_BIND_ERR": "memory management operation error",
    "BAD_RESP_ERR": "bad response error",
    "LOC_ACCESS_ERR": "local access error",
    "REM_INV_REQ_ERR": "remote invalid request error",
    "REM_ACCESS_ERR": "remote access error",
    "REM_OP_ERR": "remote operation error",
    "RETRY_EXC_ERR": "transport retry counter exceeded",
    "RNR_RETRY_EXC_ERR": "RNR retry counter exceeded",
    "REM_ABORT_ERR": "aborted error",
    "FATAL_ERR": "fatal error",
    "RESP_TIMEOUT_ERR": "response timeout error",
    "GENERAL_ERR": "general error",
}
OWN += [
    (f"status_{name}", f"completion:{name}@1", "rounds 1 mlx5_0", [f"round 1: mlx5_0: {words}; active", BOTH])
    for name, words in STATUSES.items()
]


def own(adverb, case):
    """A program that stands for those of users: what it sees, twice."""
    _, rule, options, wanted = case
    with two_devices() as begin, tempfile.TemporaryDirectory(prefix="adverb-fault-") as folder:
        program = os.path.join(folder, "faults")
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, SOURCE, "-libverbs"], check=True)
        found = []
        for _ in range(2):
            log = os.path.join(folder, "log")
            with Process([*begin(adverb, "--fault", rule, "--seed", "7"), program, *options.split()], {"ADVERB_LOG": f"warn:{log}"}) as process:
                expect_success([process], LIMIT_S)
                said = [line for line in process.output().splitlines() if not line.startswith("adverb")]
                if said != wanted:
                    raise Failed(process.describe())
            with open(log) as file:
                # Parent and child say the same.
                found.append(list(dict.fromkeys(lines(file.read()))))
            os.remove(log)
        if found[0] != found[1] or not found[0]:
            raise Failed(f"one run: {found[0]}\nanother: {found[1]}")
    return wanted[0]


# A rule of the client of raw_ethernet_lat, the smallest average that it may show in microseconds, and words of its log.
RAW = [
    ("delay", "wire:delay=20ms:direction=out", 10_000, r"packet 1 to [\d.]+, SEND, waits"),
    ("delay_of_what_comes", "wire:delay=20ms:direction=in", 10_000, r"packet 1 from [\d.]+, SEND, waits"),
    ("duplicate", "wire:duplicate:direction=out@5", 0, r"packet 5 to [\d.]+, SEND, comes twice"),
]


def raw(adverb, case):
    """Raw packets meet rules for packets, too."""
    _, rule, least, log = case
    here, there = two_hosts()
    with here, there:
        def address(host):
            text = subprocess.run([*host.prefix, "ip", "-br", "link", "show", "cable"], capture_output=True, text=True, check=True).stdout
            return text.split()[2]

        found = []
        for _ in range(2):
            command = ["stdbuf", "-oL", "raw_ethernet_lat", "-F", "-n", "20"]
            with Process([*there.prefix, *run(adverb, "roce0"), *command, "--server", "-B", address(there), "-E", address(here)]) as server:
                wait_until(lambda: "MAC attached" in server.output() or server.status() is not None, LIMIT_S, "the server serves")
                # It posts its receives after these words, and frames without a receive are lost.
                wait_until(polling(server), LIMIT_S, "the server polls")
                options = ["--client", "-B", address(here), "-E", address(there)]
                with Process([*here.prefix, *run(adverb, "roce0", "--fault", rule), *command, *options], {"ADVERB_LOG": "warn"}) as client:
                    expect_success([client], LIMIT_S)
                    text = client.output()
                    # Where perftest could not find its clock's rate, it says so, and its times are no numbers.
                    time = r"-?(?:[\d.]+|inf|nan)" if "Correlation coefficient r^2" in text else r"[\d.]+"
                    average = re.search(rf"(?m)^ \d+\s+20\s+{time}\s+{time}\s+{time}\s+({time})", text)
                    if not average or float(average[1]) < least or not re.search(log, text):
                        raise Failed(f"{client.describe()}\n{server.describe()}")
                    found.append(lines(text))
        if found[0] != found[1]:
            raise Failed(str(found))
    return f"{average[1]} us"


# An event of a queue pair, and UCX's words for it.
OF_PAIRS = [
    ("QP_FATAL", "local work queue catastrophic error on QPN"),
    ("QP_REQ_ERR", "invalid request local work queue error on QPN"),
    ("PATH_MIG", "path migrated on QPN"),
    ("PATH_MIG_ERR", "path migration request error on QPN"),
]


def of_pair(adverb, case):
    """The queue pair that posts has the event: UCX says so."""
    event, words = case
    port = free_port()
    settings = {"UCX_NET_DEVICES": "roce0:1", "UCX_TLS": "rc_verbs,ud_verbs:aux,self", "ADVERB_LOG": "warn"}
    command = ["ucx_perftest", "-f", "-p", str(port), "-t", "tag_lat", "-n", "200"]
    found = []
    for _ in range(2):
        with Process([*run(adverb, "roce0"), *command], settings) as server:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process([*run(adverb, "roce0", "--fault", f"event:{event}@20posts"), *command, SERVER], settings) as client:
                client.wait(LIMIT_S)
                if words not in client.output():
                    raise Failed(client.describe())
                found.append(lines(client.output()))
    if found[0] != found[1] or not found[0]:
        raise Failed(str(found))
    return words


def starts_again(adverb):
    """A program that restarts begins from the start, with the same process ID and without the rule."""
    with Process([*run(adverb, "roce0", "--fault", "peer:restart@1.5s"), "stdbuf", "-oL", "ibv_asyncwatch", "-d", "roce0"], {"ADVERB_LOG": "warn"}) as process:
        wait_until(lambda: process.output().count("FD") >= 2 or process.status() is not None, LIMIT_S, "it starts again")
        text = process.output()
        if process.status() is not None or text.count("starts again") != 1:
            raise Failed(process.describe())
    return f"{text.count('FD')} starts"


def server_starts_again(adverb):
    """A server that restarts serves the next client, though it had a connection."""
    port = free_port()
    with Process([*run(adverb, "roce0", "--fault", "peer:restart@3completions"), "rping", "-s", "-a", SERVER, "-p", str(port), "-C", "5"], {"ADVERB_LOG": "warn"}) as server:
        answers = []
        for _ in range(2):
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process([*run(adverb, "roce0"), "rping", "-c", "-v", "-a", SERVER, "-p", str(port), "-C", "5"]) as client:
                client.wait(LIMIT_S)
                answers.append(client.output().count("ping data"))
        if answers[0] >= 5 or answers[1] != 5 or server.output().count("starts again") != 1:
            raise Failed(f"{answers}\n{server.describe()}")
        expect_success([server], LIMIT_S)
    return f"one client gets {answers[0]} answers of 5, the next one all"


def stalls(adverb):
    """A program that stalls for a second takes a second longer, and its peer waits."""
    case = next(case for case in CASES if case.name == "stall")
    begin = time.monotonic()
    once(adverb, case)
    if time.monotonic() - begin < 1:
        raise Failed("it did not stall")
    return f"{time.monotonic() - begin:.1f} s"


def partition_ends(adverb, device):
    """A partition at the start: connections wait, and come to stand when it is over."""
    port = free_port()
    with Process([*run(adverb, device), "rping", "-s", "-a", SERVER, "-p", str(port), "-C", "5"]) as server:
        wait_until(serving(server, port), LIMIT_S, "the server serves")
        begin = time.monotonic()
        command = [*run(adverb, device, "--fault", "wire:partition@0s..1s"), "rping", "-c", "-a", SERVER, "-p", str(port), "-C", "5"]
        with Process(command, {"ADVERB_LOG": "warn"}) as client:
            expect_success([client, server], LIMIT_S)
            if time.monotonic() - begin < 1 or "wire:partition" not in client.output():
                raise Failed(client.describe())
    return f"{time.monotonic() - begin:.1f} s"


def never_struck(adverb):
    """A rule that nothing was about is said at the end."""
    with Process([*run(adverb, "roce0", "--fault", "ibv_reg_mr:ENOMEM@3,wire:loss"), "ibv_devinfo"], {"ADVERB_LOG": "warn"}) as process:
        expect_success([process], LIMIT_S)
        said = [line for line in process.output().splitlines() if "has never struck" in line]
    if len(said) != 2 or "rule 1, ibv_reg_mr:ENOMEM@3" not in said[0] or "calls so far: 0" not in said[0]:
        raise Failed(str(said))
    return said[0]


FILE = """
seed = 5
[[fault]]
rule = "wire:delay=1ms"
direction = "out"
opcode = "SEND"
when = "%20"
"""


def from_file(adverb):
    """A file of rules does the same as the rules, which the log has, with the seed."""
    with tempfile.TemporaryDirectory(prefix="adverb-fault-") as folder:
        path = os.path.join(folder, "faults.toml")
        with open(path, "w") as file:
            file.write(FILE)
        case = next(case for case in CASES if case.name == "by_chance")
        # --seed says another one than the file.
        rule = "wire:delay=1ms:opcode=SEND:direction=out%20"
        logs = [once(adverb, case._replace(rule=rule))[0] for rule in (path, rule)]
    if logs[0] != logs[1]:
        raise Failed(f"{logs[0]}\n{logs[1]}")
    if f"faults: {rule}, seed 7" not in logs[0][0]:
        raise Failed(logs[0][0])
    return logs[0][0].strip()


# What is wrong, and what the answer says of it.
WRONG = [
    ("wire:lose", "rule 1, letter 6: .*partition"),
    ("wire:loss:opcode=WRITE", "letter 18: .*RDMA_WRITE"),
    ("wire:delay", "letter 11: .*delay=5ms"),
    ("device:port_down", "letter 17: .*@2s"),
    ("peer:kill@3", "letter 10: .*@100posts"),
    ("ibv_reg_mr:ENOMEM,event:NOTHING@1s", "rule 2, letter 25: .*PORT_ERR"),
    ("device:gone:device=mlx5_7@1s", "rule 1, letter 20: .*device mlx5_7; it sees roce0"),
    ("completion:delay=5ms:qp=0", "letter 25: .*qp=2"),
    ("rdma_listen:EIO:qp=1", "letter 17: .*no options"),
    ("wire:loss,wire:cut@3", "rule 2, letter 11: wire:cut@3 can do nothing on roce0: .* for devices of iWARP"),
    ("wire:loss:opcode=TERMINATE", "can do nothing on roce0"),
    ("/no/such/file.toml", "No such file"),
    ("ibv_reg_mr", "letter 11: the name of an error number is missing here.* ibv_reg_mr:ENOMEM@3"),
    ("wrong.toml", r"wrong\.toml:3: \"percent\" is no key of a fault.* when;"),
    ("rule.toml", r"rule\.toml:2: wire:lose: letter 6: .*partition"),
]


def refused(adverb):
    """Wrong rules are refused before the program starts, with the place and what is allowed."""
    with tempfile.TemporaryDirectory(prefix="adverb-fault-") as folder:
        for name, text in (("wrong.toml", '[[fault]]\nrule = "wire:loss"\npercent = 5\n'), ("rule.toml", '\n[[fault]]\nrule = "wire:lose"\n')):
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        for rule, says in WRONG:
            result = subprocess.run([*run(adverb, "roce0", "--fault", rule), "echo", "started"], capture_output=True, text=True, timeout=LIMIT_S, cwd=folder)
            if result.returncode != 2 or "started" in result.stdout or not re.search(says, result.stderr):
                raise Failed(f"{rule}: status {result.returncode}\n{result.stdout}{result.stderr}")
    return f"{len(WRONG)} mistakes"


def leaves_memory(adverb):
    """A rule with a time has a thread of the engine's, which keeps no pages of the program from being moved for its peers."""
    found = {}
    for name, options in (("without", ()), ("with", ("--fault", "event:PORT_ERR@600s"))):
        port, settings = free_port(), {"ADVERB_LOCAL": "auto", "ADVERB_LOG": "info"}
        program = ["ib_write_bw", "-F", "--run_infinitely", "-D", "1", "-p", str(port)]
        moved = lambda: server.output().count("its pages are moved, peers map them")
        with Process([*run(adverb, "roce0", *options), *program], settings) as server:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process([*run(adverb, "roce0"), *program, SERVER], settings) as client:
                wait_until(lambda: moved() or client.status() is not None, LIMIT_S, f"pages are moved, {name} a rule")
            found[name] = moved()
    if not found["without"] == found["with"] == 1:
        raise Failed(f"moved regions: {found}")
    return "1 region"


def tests(adverb):
    """Name, function and arguments of each."""
    found = [(f"faults::{case.name}", meets, (adverb, case)) for case in CASES]
    found += [(f"faults::shown_{case[0]}", shown, (adverb, case)) for case in SHOWN]
    found += [(f"faults::told_{case[0]}", told, (adverb, case)) for case in TOLD]
    found += [(f"faults::one_of_two_{case[0]}", one_of_two, (adverb, case)) for case in OF_ONE]
    found += [(f"faults::own_{case[0]}", own, (adverb, case)) for case in OWN]
    found += [(f"faults::raw_{case[0]}", raw, (adverb, case)) for case in RAW]
    found += [(f"faults::of_pair_{case[0]}", of_pair, (adverb, case)) for case in OF_PAIRS]
    found += [(f"faults::partition_ends_{device}", partition_ends, (adverb, device)) for device in ("roce0", "iwarp0")]
    for test in (repeats, shown_on_wire, starts_again, server_starts_again, stalls, never_struck, from_file, leaves_memory, refused):
        found.append((f"faults::{test.__name__}", test, (adverb,)))
    return found
