"""What traces say is what happened: packets and requests of unmodified programs under `adverb run --trace`, compared with the capture and with the summary of
the same run; rings; the page."""

import collections
import html.parser
import json
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import tempfile

import mpi
from harness import capture, mpa
from harness.namespace import free_port
from harness.process import Process, expect_success, serving, wait_until
from harness.report import Failed

LIMIT_S = 120
UCX = "--mca pml ucx --mca osc ucx -x UCX_TLS=rc,ud,self -x UCX_NET_DEVICES=roce0:1 --oversubscribe"


# What traces call the operations of iWARP.
KINDS = {0: "RDMA_WRITE", 1: "RDMA_READ", 2: "READ_RESPONSE", 7: "TERMINATE", 8: "IMMEDIATE", 9: "IMMEDIATE", 10: "ATOMIC", 11: "ATOMIC_RESPONSE"}


def run(adverb, *options, device="roce0"):
    return [adverb, "run", "--device", device, *options, "--"]


def merge(adverb, files, output, *options):
    result = subprocess.run([adverb, "trace", "merge", *files, *options, "-o", output], capture_output=True, text=True, timeout=LIMIT_S)
    if result.returncode != 0 or "missing" in result.stderr:
        raise Failed(result.stderr)


def objects(path):
    with open(path) as file:
        return [json.loads(line) for line in file]


def captured(folder):
    """The packets in the capture of each process."""
    found = {}
    for name in os.listdir(folder):
        match = re.fullmatch(r"packets-(\d+)\.pcapng", name)
        if not match:
            continue
        with open(os.path.join(folder, name), "rb") as file:
            text = file.read()
        at = count = 0
        while at < len(text):
            kind, length = struct.unpack_from("<II", text, at)
            count += kind == 6
            at += length
        if count:
            found[int(match[1])] = count
    return found


def address(packed, port):
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    text = socket.inet_ntop(family, packed)
    return f"{text}:{port}" if family == socket.AF_INET else f"[{text}]:{port}"


def captured_segments(folder):
    """The segments of iWARP in the capture of each process: stream, offset and kind."""
    found = {}
    for name in os.listdir(folder):
        match = re.fullmatch(r"packets-(\d+)\.pcapng", name)
        segments = [*capture.own_segments(os.path.join(folder, name))] if match else []
        if not segments:
            continue
        found[int(match[1])] = {
            (f"{address(*direction.flow[:2])}>{address(*direction.flow[2:])}", offset, KINDS.get(opcode, "SEND"))
            for direction in mpa.frames(segments)
            for offset, opcode in direction.frames
        }
    return found


def counted_packets(path):
    """How many packets or segments the run of a summary has sent and received."""
    with open(path) as file:
        devices = json.load(file)["devices"].values()
    return sum(device["counters"][key] for device in devices for key in ("tx_frames", "rx_frames"))


class Tables(html.parser.HTMLParser):
    """The tables of a page by their names: rows of cells, the head first."""

    def __init__(self, path):
        super().__init__()
        self.tables, self.table, self.cell = {}, None, None
        with open(path) as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        if tag == "table":
            self.table = self.tables[dict(attributes)["id"]] = []
        elif tag == "tr":
            self.table.append([])
        elif tag in ("td", "th"):
            self.cell = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.table[-1].append(self.cell)
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data

    def rows(self, name):
        head, *rows = self.tables[name]
        return [dict(zip(head, row)) for row in rows]

    def sum(self, name, column):
        return sum(int(row[column]) for row in self.rows(name))


def page(adverb, trace, folder):
    path = os.path.join(folder, "page.html")
    subprocess.run([adverb, "trace", "view", trace, "-o", path], check=True, timeout=LIMIT_S)
    return Tables(path)


def agrees(adverb, folder, traces, summaries, device="roce0"):
    """The packets of each process are those of its capture, and the page says of requests and bytes what the summaries of the runs say."""
    both = os.path.join(folder, "both.jsonl")
    merge(adverb, traces, both)
    found = objects(both)
    times = [one["time"] for one in found if "time" in one]
    if times != sorted(times):
        raise Failed("the times are not in order")
    packets = collections.Counter(one["pid"] for one in found if "packet" in one)
    if device == "iwarp0":
        # A capture of TCP has other pieces. The segments in its streams are those of the trace, and have the same places.
        segments = collections.defaultdict(set)
        for one in found:
            if "packet" in one:
                segments[one["pid"]].add((one["stream"], one["offset"], one["kind"]))
        in_capture = captured_segments(folder)
        if segments != in_capture:
            raise Failed("; ".join(f"{pid}: {len(segments[pid])} segments, captured {len(in_capture.get(pid, ()))}: {sorted(segments[pid] ^ in_capture.get(pid, set()))[:5]}" for pid in {*segments, *in_capture}))
        if sorted(packets.values()) != sorted(map(counted_packets, summaries)):
            raise Failed(f"segments of the trace: {dict(packets)}, counted: {[*map(counted_packets, summaries)]}")
    elif not packets or packets != captured(folder):
        raise Failed(f"packets of the trace: {dict(packets)}, of the capture: {captured(folder)}")
    shown = page(adverb, both, folder)
    in_page = {int(re.search(r"\[(\d+)\]", row["process"])[1]): int(row["packets sent"]) + int(row["packets received"]) for row in shown.rows("processes")}
    if {pid: count for pid, count in in_page.items() if count} != packets:
        raise Failed(f"packets of the page: {in_page}, of the trace: {dict(packets)}")
    said = collections.Counter()
    for path in summaries:
        with open(path) as file:
            about = json.load(file)
        for device in about["devices"].values():
            said.update({key: device[key] for key in ("messages_sent", "bytes_sent", "queue_pairs")})
    counted = {
        "messages_sent": shown.sum("pairs", "requests"),
        # Those of Reads are sent by the target.
        "bytes_sent": shown.sum("pairs", "bytes sent") + shown.sum("pairs", "bytes read"),
    }
    if any(said[key] != counted[key] for key in counted):
        raise Failed(f"the page: {counted}, the summaries: {dict(said)}")
    completed = shown.sum("pairs", "completed")
    return found, shown, f"{sum(packets.values())} packets, {counted['messages_sent']} requests ({completed} completed), {counted['bytes_sent']} bytes"


def perftest(adverb, program, ending, device="roce0", *options):
    """Both ends of a perftest are traced, captured and summed up."""
    port = free_port()
    # On iwarp0, shared memory and operations in the peer's memory leave nothing in a capture of TCP.
    settings = {"ADVERB_LOCAL": "off"} if device == "iwarp0" else {}
    program += " -R" if device == "iwarp0" else ""
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        place = lambda name: os.path.join(folder, name)
        more = lambda side: ["--trace", place(f"{side}.{ending}"), "--pcap", place("packets-%p.pcapng"), "--summary", place(f"{side}-summary")]
        command = shlex.split(f"{program} -p {port}")
        with Process([*run(adverb, *more("server"), *options, device=device), *command], settings) as server:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process([*run(adverb, *more("client"), *options, device=device), *command, "127.0.0.1"], settings) as client:
                expect_success([client, server], LIMIT_S)
        traces = [place(f"{side}.{ending}") for side in ("server", "client")]
        summaries = [place(f"{side}-summary") for side in ("server", "client")]
        found, shown, text = agrees(adverb, folder, traces, summaries, device)
        client = next(row for row in shown.rows("pairs") if int(row["requests"]) > 0)
        if client["requests"] != client["completed"]:
            raise Failed(f"some requests are not complete: {client}")
        stages = {row["stage"] for row in shown.rows("stages")}
        wanted = {"post to first packet", "last packet to its arrival"}
        # Sends and Writes of iWARP are complete when they have left.
        answered = "its acknowledgement, or the answer, to the poll of the completion"
        is_answered = device == "roce0" or "read" in program
        wanted |= {answered if is_answered else "last packet to the poll of the completion, where nothing answers"}
        wanted |= {"arrival to the poll of the receive"} if "send" in program else set()
        wanted |= {"last packet to its acknowledgement, or the answer"} if "read" in program else set()
        if not wanted <= stages:
            raise Failed(f"stages {stages}")
        begun = [one for one in found if "begun" in one]
        if len(begun) != shown.sum("pairs", "requests") or any("request" not in one for one in begun):
            raise Failed(f"{len(begun)} requests begin")
        return text


def mpi_job(adverb):
    """The same of a job of MPI, whose processes all write into one ring."""
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        place = lambda name: os.path.join(folder, name)
        program = mpi.compile_check(folder, "openmpi")
        more = ["--trace", place("job.ring"), "--trace-size", "256", "--pcap", place("packets-%p.pcapng"), "--summary", place("summary")]
        command = [*run(adverb, *more), "mpirun.openmpi", "-n", "2", *shlex.split(UCX), program]
        with Process(command, mpi.ENVIRONMENT) as process:
            expect_success([process], LIMIT_S)
            if "2 ranks: all well" not in process.output():
                raise Failed(process.describe())
        return agrees(adverb, folder, [place("job.ring")], [place("summary")])[2]


def one_flow(adverb, device):
    """In the picture, arrows lead from the post to its packet, on to where the packet arrives, and to the poll of the receive; and back to the poll of the completion."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        files = [os.path.join(folder, f"{side}.ring") for side in ("server", "client")]
        summaries = [os.path.join(folder, f"{side}-summary") for side in ("server", "client")]
        options = lambda side: ["--trace", files[side], "--summary", summaries[side]]
        command = shlex.split(f"ib_send_lat -F -s 8 -n 50 -p {port}" + (" -R" if device == "iwarp0" else ""))
        with Process([*run(adverb, *options(0), device=device), *command]) as server:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process([*run(adverb, *options(1), device=device), *command, "127.0.0.1"]) as client:
                expect_success([client, server], LIMIT_S)
        both = os.path.join(folder, "both.json")
        merge(adverb, files, both)
        with open(both) as file:
            events = json.load(file)
        flows = collections.defaultdict(dict)
        # A packet that goes out again, since the peer had no processor, has the arrows of the first one.
        for event in sorted(events, key=lambda event: event.get("ts", 0)):
            if event["ph"] in "stf" and "id" in event:
                flows[event["cat"], event["id"]].setdefault(event["ph"], event)
        requests = [flow for (category, _), flow in flows.items() if category == "request" and set(flow) == {"s", "t", "f"}]
        # Packets that leave in one turn have one time.
        packets = collections.defaultdict(list)
        for (category, _), flow in flows.items():
            if category == "packet" and set(flow) == {"s", "f"}:
                packets[flow["s"]["pid"], flow["s"]["ts"]].append(flow["f"])
        arrivals = {(flow["s"]["pid"], flow["s"]["ts"]): flow["f"] for (category, _), flow in flows.items() if category == "arrival" and set(flow) == {"s", "f"}}
        chains = 0
        for flow in requests:
            ends = [(end, arrivals.get((end["pid"], end["ts"]))) for end in packets.get((flow["t"]["pid"], flow["t"]["ts"]), [])]
            arrived, polled = next(((arrived, polled) for arrived, polled in ends if polled), (None, None))
            if not polled:
                continue
            if arrived["pid"] == flow["s"]["pid"] or not flow["s"]["ts"] <= flow["t"]["ts"] <= arrived["ts"] <= polled["ts"]:
                raise Failed(f"{flow}, {arrived}, {polled}")
            chains += 1
        # Each side sends 50 messages. With -R, perftest's own words are messages, too.
        wanted = 100 if device == "roce0" else max(100, len(requests))
        if chains != wanted:
            raise Failed(f"{len(requests)} requests, {len(packets)} packets, {len(arrivals)} arrivals: {chains} from end to end")
        ways = collections.Counter(event["args"]["by"] for event in events if event.get("cat") == "packet" and event["ph"] == "X")
        if device == "iwarp0" and sum(ways.values()) != sum(map(counted_packets, summaries)):
            raise Failed(f"{ways} in the trace, counted: {[*map(counted_packets, summaries)]}")
        return f"{chains} messages from end to end, packets by {dict(ways)}"


def ring_is_fixed(adverb):
    """A ring keeps its size, and its last calls, however much is written; of a killed program, too."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        path = os.path.join(folder, "calls.ring")
        command = shlex.split(f"ib_write_bw -F -D 600 -p {port}")
        with Process([*run(adverb), *command]) as server:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process([*run(adverb, "--trace", path, "--trace-size", "1"), *command, "127.0.0.1"]) as client:
                # The chunk that is next in turn: the ring has come round.
                turns = lambda: struct.unpack_from("<Q", open(path, "rb").read(24), 16)[0] if os.path.exists(path) and os.path.getsize(path) else 0
                wait_until(lambda: turns() > 100, LIMIT_S, "the ring comes round")
                with open(path, "rb") as file:
                    file.seek(512)
                    pid = struct.unpack("<Q", file.read(8))[0]
                os.kill(pid, signal.SIGKILL)
                if client.wait(LIMIT_S) is None:
                    raise Failed(client.describe())
        if os.path.getsize(path) != 1 << 20:
            raise Failed(f"{os.path.getsize(path)} bytes")
        text = os.path.join(folder, "calls.txt")
        merge(adverb, [path], text)
        with open(text) as file:
            lines = [line for line in file if not line.startswith("#")]
        names = collections.Counter(re.match(r"\S+ \d+ (\w+)\(", line)[1] for line in lines)
        if names["ibv_post_send"] < 100 or names["ibv_open_device"]:
            raise Failed(str(names))
        shown = page(adverb, path, folder)
        if shown.sum("processes", "calls") < len(lines):
            raise Failed(f"{len(lines)} lines, {shown.rows('processes')}")
        return f"{len(lines)} calls of the last"


def ring_as_lines(adverb):
    """What is made of a ring is what a trace of the other formats says: calls, arguments and results of a program that does the same each time."""
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        found = {}
        for ending in ("jsonl", "ring"):
            path = os.path.join(folder, f"calls.{ending}")
            with Process([*run(adverb, "--trace", path), "ibv_devinfo", "-v"]) as process:
                expect_success([process], LIMIT_S)
            if ending == "ring":
                merge(adverb, [path], path + ".jsonl")
                path += ".jsonl"
            calls = [one for one in objects(path) if "call" in one]
            for one in calls:
                for key in ("time", "pid", "tid", "duration"):
                    del one[key]
            # Addresses and identifiers are of each process.
            found[ending] = [re.sub(r'"0x[0-9a-f]{8,}"', '"0x"', json.dumps(one, sort_keys=True)) for one in calls]
        if found["jsonl"] != found["ring"] or len(found["ring"]) < 10:
            different = [pair for pair in zip(found["jsonl"], found["ring"]) if pair[0] != pair[1]]
            raise Failed(f"{len(found['jsonl'])} and {len(found['ring'])} calls; {different[:3]}")
        return f"{len(found['ring'])} calls"


def ring_of_forks(adverb):
    """Processes of a run share a ring, children of fork, too."""
    script = "for i in 1 2 3 4; do ibv_devinfo >/dev/null & done; wait"
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        path = os.path.join(folder, "calls.ring")
        with Process([*run(adverb, "--trace", path, "--trace-size", "4"), "sh", "-c", script]) as process:
            expect_success([process], LIMIT_S)
        text = path + ".jsonl"
        merge(adverb, [path], text)
        found = objects(text)
        commands = [one["command"] for one in found if "process" in one]
        calls = collections.Counter(one["pid"] for one in found if "call" in one)
        if commands != ["ibv_devinfo"] * 4 or len(calls) != 4 or len(set(calls.values())) != 1:
            raise Failed(f"{commands}, {calls}")
        return f"{calls}"


def no_room(adverb):
    """A ring that finds no room ends with one line, and the program goes on."""
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        path = os.path.join(folder, "calls.ring")
        script = f"ulimit -f 20000; exec {shlex.join(run(adverb, '--trace', path))} ibv_devinfo"
        with Process(["bash", "-c", script]) as process:
            expect_success([process], LIMIT_S)
            said = [line for line in process.output().splitlines() if "cannot be written" in line]
            if len(said) != 1 or "hca_id" not in process.output():
                raise Failed(process.describe())
            return said[0]


def in_browser(adverb):
    """A browser opens the page, and has in it what the file says."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        place = lambda name: os.path.join(folder, name)
        command = shlex.split(f"ib_write_bw -F -s 65536 -n 20 -p {port}")
        settings = {"ADVERB_LOCAL": "off"}
        with Process([*run(adverb, "--trace", place("server.ring")), *command], settings) as server:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process([*run(adverb, "--trace", place("client.ring")), *command, "127.0.0.1"], settings) as client:
                expect_success([client, server], LIMIT_S)
        merge(adverb, [place("server.ring"), place("client.ring")], place("perftest.jsonl"))
        program = mpi.compile_check(folder, "openmpi")
        job = [*run(adverb, "--trace", place("job.ring"), "--trace-size", "256"), "mpirun.openmpi", "-n", "2", *shlex.split(UCX), program]
        with Process(job, mpi.ENVIRONMENT) as process:
            expect_success([process], LIMIT_S)
        merge(adverb, [place("job.ring")], place("mpi.jsonl"))
        told = []
        for name in ("perftest", "mpi"):
            # The title is the name of the file, and the folder is no other's affair.
            subprocess.run([adverb, "trace", "view", f"{name}.jsonl", "-o", place(f"{name}.html")], check=True, timeout=LIMIT_S, cwd=folder)
            written = Tables(place(f"{name}.html"))
            browser = ["chromium-headless-shell", "--no-sandbox", "--disable-gpu", "--window-size=1180,1500", f"--user-data-dir={place('browser')}"]
            address = f"file://{place(name)}.html"
            shown = subprocess.run([*browser, "--dump-dom", address], capture_output=True, text=True, check=True, timeout=LIMIT_S)
            with open(place(f"{name}-shown.html"), "w") as file:
                file.write(shown.stdout)
            if Tables(place(f"{name}-shown.html")).tables != written.tables or written.sum("pairs", "requests") == 0:
                raise Failed(f"{name}: the browser shows other tables")
            picture = os.path.join(os.environ.get("TEST_PICTURES", folder), f"trace-{name}.png")
            subprocess.run([*browser, f"--screenshot={picture}", "--hide-scrollbars", address], capture_output=True, check=True, timeout=LIMIT_S)
            with open(picture, "rb") as file:
                head = file.read(24)
            if head[:8] != b"\x89PNG\r\n\x1a\n" or struct.unpack(">II", head[16:]) != (1180, 1500):
                raise Failed(f"{name}: no picture")
            told.append(f"{name}: {written.sum('pairs', 'requests')} requests")
        return ", ".join(told)


def tests(adverb):
    """Name, function and arguments of each."""
    found = []
    for program, ending in (
        ("ib_write_bw -F -s 65536 -n 100", "ring"),
        ("ib_write_bw -F -s 65536 -n 100", "jsonl"),
        ("ib_send_bw -F -s 4096 -n 100", "ring"),
        ("ib_read_bw -F -s 65536 -n 50", "ring"),
    ):
        name = f"watch::agrees_{program.split()[0]}_{ending}"
        found += [(name, perftest, (adverb, program, ending)), (f"{name}_iwarp0", perftest, (adverb, program, ending, "iwarp0"))]
    # A part of an answer goes out twice: bytes of a Read count once.
    lossy = ("--fault", "wire:loss:direction=out:opcode=READ_RESPONSE@20")
    found.append(("watch::agrees_although_packets_are_lost", perftest, (adverb, "ib_read_bw -F -s 65536 -n 50", "ring", "roce0", *lossy)))
    found += [("watch::one_flow", one_flow, (adverb, "roce0")), ("watch::one_flow_iwarp0", one_flow, (adverb, "iwarp0"))]
    for name, test in (
        ("agrees_mpi", mpi_job),
        ("ring_is_fixed", ring_is_fixed),
        ("ring_as_lines", ring_as_lines),
        ("ring_of_forks", ring_of_forks),
        ("ring_no_room", no_room),
    ):
        found.append((f"watch::{name}", test, (adverb,)))
    return found
