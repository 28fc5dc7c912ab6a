"""Traces and faults: unmodified programs under `adverb run --trace` and `--fault`. What a trace says is compared with what the program did."""

import collections
import html.parser
import json
import mmap
import os
import re
import shlex
import signal
import subprocess
import tempfile

import traces
from harness.namespace import free_port
from harness.process import Process, expect_success, serving, wait_until
from harness.report import Failed

LIMIT_S = 120
LINE = re.compile(r"(\d+\.\d{9}) (\d+) (\w+)\((.*)\) = (.+) <(\d+\.\d{9})>(?: x(\d+))?")
ENDINGS = {"text": "txt", "json": "jsonl", "chrome": "json"}

Pair = collections.namedtuple("Pair", "name device server client")

# Each client ends as much as it begins.
BEGINS = ("ibv_alloc_pd", "ibv_reg_mr", "ibv_reg_mr_iova2", "ibv_create_qp", "ibv_create_qp_ex", "rdma_create_qp", "ibv_create_cq", "ibv_create_cq_ex")
ENDS = ("ibv_dealloc_pd", "ibv_dereg_mr", "ibv_destroy_qp", "rdma_destroy_qp", "ibv_destroy_cq")
PAIRS = [
    Pair("rc_pingpong", "roce0", "ibv_rc_pingpong -g 0 -p {port} -n 50", "ibv_rc_pingpong -g 0 -p {port} -n 50 {server}"),
    # Builders (ibv_wr_*), and polls entry by entry (ibv_start_poll).
    Pair("rc_pingpong_new", "roce0", "ibv_rc_pingpong -N -t -g 0 -p {port} -n 50", "ibv_rc_pingpong -N -t -g 0 -p {port} -n 50 {server}"),
    Pair("rping", "roce0", "rping -s -a {server} -p {port} -C 20", "rping -c -a {server} -p {port} -C 20"),
    Pair("rping", "iwarp0", "rping -s -a {server} -p {port} -C 20", "rping -c -a {server} -p {port} -C 20"),
    Pair("write_bw", "roce0", "ib_write_bw -F -n 50 -p {port}", "ib_write_bw -F -n 50 -p {port} {server}"),
]


def run(adverb, device, *options):
    return [adverb, "run", "--device", device, *options, "--"]


def both(adverb, pair, options, folder, expected=0, settings=None):
    """Runs server and client, the client with the options; returns the client. With None, the client may end as it likes, and so may the server."""
    port = free_port()
    place = {"port": port, "server": "127.0.0.1"}
    server = Process([*run(adverb, pair.device), *shlex.split(pair.server.format(**place))])
    with server:
        wait_until(serving(server, port), LIMIT_S, "the server serves")
        client = Process([*run(adverb, pair.device, *options), *shlex.split(pair.client.format(**place))], settings)
        with client:
            if expected == 0:
                expect_success([client, server], LIMIT_S)
            elif client.wait(LIMIT_S) is None:
                raise Failed(f"it does not end\n{client.describe()}")
            return client.status(), client.output()


def lines(path, is_killed=False):
    """The lines of a trace as text; all of them must be whole and of the form. Of a program that is killed, the last one may end with a page of the file, where the kernel ends its write."""
    with open(path) as file:
        text = file.read()
    if is_killed and len(text.encode()) % mmap.PAGESIZE == 0:
        text = text[: text.rfind("\n") + 1]
    if not text.endswith("\n"):
        raise Failed(f"the last line is cut: {text[-200:]!r}")
    found = []
    for line in text.splitlines():
        if line.startswith("# process "):
            continue
        match = LINE.fullmatch(line)
        if not match:
            raise Failed(f"no line of a trace: {line}")
        found.append(match)
    if not found:
        raise Failed(f"no calls: {text!r}")
    return found


def calls_of_text(path):
    """Name, result and arguments of each call."""
    return [(match[3], match[5], match[4]) for match in lines(path)]


def balanced(names):
    begun = sum(names[name] for name in BEGINS)
    ended = sum(names[name] for name in ENDS)
    if begun < 4 or begun != ended:
        raise Failed(f"{begun} objects begin, {ended} end: {names}")


def trace_text(adverb, pair):
    """Every line can be read, what begins ends, and nothing that succeeds is called a failure."""
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        path = os.path.join(folder, "calls.txt")
        both(adverb, pair, ["--trace", path], folder)
        calls = calls_of_text(path)
        names = collections.Counter(name for name, result, _ in calls if not re.match(r"NULL E|-?\d+ E", result))
        balanced(names)
        completions = sum(arguments.count("status=IBV_WC_SUCCESS") for _, _, arguments in calls)
        completions += sum("status=IBV_WC_SUCCESS" in result for _, result, _ in calls)
        if completions == 0:
            raise Failed(f"no completions: {names}")
        times = [float(match[1]) for match in lines(path)]
        if max(times) > LIMIT_S:
            raise Failed(f"times do not count from the start of the run: {times[:3]}")
        return f"{len(calls)} lines, {completions} completions"


def trace_json(adverb, pair):
    """Every line is an object, and each completion is that of one request, which was posted before and had no other."""
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        path = os.path.join(folder, "calls.jsonl")
        both(adverb, pair, ["--trace", path], folder)
        with open(path) as file:
            objects = [json.loads(line) for line in file]
        process, calls = objects[0], [one for one in objects[1:] if "call" in one]
        if shlex.split(pair.client)[0] not in process["command"] or any(call["pid"] != process["process"] for call in calls):
            raise Failed(f"another process: {process}")
        balanced(collections.Counter(call["call"] for call in calls if "errno" not in call))
        posted, done = set(), []
        for call in sorted(calls, key=lambda call: call["time"]):
            requests = call.get("requests", [])
            if "post" in call["call"] or call["call"] == "ibv_wr_complete":
                posted.update(requests)
            else:
                done += requests
        if not done or None in done or len(set(done)) != len(done) or not set(done) <= posted:
            raise Failed(f"completions {done} of {sorted(posted)}")
        return f"{len(calls)} calls, {len(posted)} requests, {len(done)} completions"


def trace_chrome(adverb, pair):
    """The file is a list of events. Each posted request begins a flow inside of its call, and each completion ends one inside of its own."""
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        path = os.path.join(folder, "calls.json")
        both(adverb, pair, ["--trace", path], folder)
        with open(path) as file:
            events = json.load(file)
        slices = [event for event in events if event["ph"] == "X" and event["cat"] != "packet"]
        begins = {event["id"]: event for event in events if event["ph"] == "s" and event["cat"] == "request"}
        ends = {event["id"]: event for event in events if event["ph"] == "f" and event["cat"] == "request"}
        messages = sum(len(event["args"].get("requests", [])) for event in slices if "post" in event["name"] or event["name"] == "ibv_wr_complete")
        if not begins or len(begins) != messages or not ends or not ends.keys() <= begins.keys():
            raise Failed(f"{messages} requests, {len(begins)} flows begin, {len(ends)} end")
        for event in [*begins.values(), *ends.values()]:
            inside = [s for s in slices if s["tid"] == event["tid"] and s["ts"] <= event["ts"] <= s["ts"] + s["dur"]]
            if not inside:
                raise Failed(f"a flow in no call: {event}")
        late = [key for key, event in ends.items() if event["ts"] < begins[key]["ts"]]
        if late:
            raise Failed(f"flows that end before they begin: {late}")
        sends = [key for key, event in begins.items() if event["name"] != "receive"]
        if not set(sends) <= ends.keys():
            raise Failed(f"sends without an end: {set(sends) - ends.keys()}")
        return f"{len(slices)} calls, {len(begins)} flows, {len(ends)} to their end"


def several_processes(adverb):
    """Processes of a run append whole lines to one file, or have files of their own."""
    script = "for i in 1 2 3 4; do ibv_devinfo >/dev/null & done; wait"
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        shared = os.path.join(folder, "shared.txt")
        # The file of an earlier run is not appended to.
        with open(shared, "w") as file:
            file.write("an old trace\n")
        for path in (shared, os.path.join(folder, "events.json"), os.path.join(folder, "own-%p.json")):
            with Process([*run(adverb, "roce0", "--trace", path), "sh", "-c", script]) as process:
                expect_success([process], LIMIT_S)
        threads = {match[2] for match in lines(shared)}
        own = [name for name in os.listdir(folder) if name.startswith("own-")]
        files = [os.path.join(folder, name) for name in ("events.json", *own)]
        heads = 0
        for name in files:
            with open(name) as file:
                heads += sum(event["ph"] == "M" for event in json.load(file))
        if len(threads) != 4 or len(own) != 4 or heads != 8:
            raise Failed(f"{len(threads)} threads, {len(own)} files, {heads} processes")
        return f"{len(lines(shared))} lines of 4 processes in one file, and 4 files"


def chosen_calls(adverb):
    """Only the calls that were asked for are in the file."""
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        path = os.path.join(folder, "calls.txt")
        with Process([*run(adverb, "roce0", "--trace", path, "--trace-only", "ibv_query_*,ibv_open_device"), "ibv_devinfo"]) as process:
            expect_success([process], LIMIT_S)
        names = {name for name, _, _ in calls_of_text(path)}
        if "ibv_open_device" not in names or not all(name == "ibv_open_device" or name.startswith("ibv_query_") for name in names):
            raise Failed(str(names))
        return ", ".join(sorted(names))


class Page(html.parser.HTMLParser):
    """What is in a page, whose elements must end as they begin."""

    def __init__(self, text):
        super().__init__()
        self.open, self.counts, self.words = [], collections.Counter(), []
        self.feed(text)
        if self.open:
            raise Failed(f"elements that do not end: {self.open}")

    def handle_starttag(self, tag, attributes):
        self.counts[tag] += 1
        if any(name in ("src", "href") for name, _ in attributes):
            raise Failed(f"the page needs something else: {attributes}")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.counts[tag] += 1

    def handle_endtag(self, tag):
        if self.open.pop() != tag:
            raise Failed(f"{tag} ends where another element is open")

    def handle_data(self, data):
        self.words.append(data)


def merged(adverb, pair, name):
    """Files of two runs become one in the order of time, and a page that shows both ends of each message."""
    port = free_port()
    place = {"port": port, "server": "127.0.0.1"}
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        files = [os.path.join(folder, f"{side}.{ENDINGS[name]}") for side in ("server", "client")]
        with Process([*run(adverb, pair.device, "--trace", files[0]), *shlex.split(pair.server.format(**place))]) as server:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process([*run(adverb, pair.device, "--trace", files[1]), *shlex.split(pair.client.format(**place))]) as client:
                expect_success([client, server], LIMIT_S)
        both = os.path.join(folder, f"both.{ENDINGS[name]}")
        subprocess.run([adverb, "trace", "merge", *reversed(files), "-o", both], check=True, timeout=LIMIT_S)
        if name == "text":
            times = [float(match[1]) for match in lines(both)]
            if times != sorted(times) or len(times) != sum(len(lines(file)) for file in files):
                raise Failed(f"{len(times)} lines, in order: {times == sorted(times)}")
            refused = subprocess.run([adverb, "trace", "view", both], capture_output=True, text=True, timeout=LIMIT_S)
            if refused.returncode == 0 or ".jsonl" not in refused.stderr:
                raise Failed(refused.stderr)
            return f"{len(times)} lines"
        with open(both) as file:
            objects = json.load(file) if name == "chrome" else [json.loads(line) for line in file]
        times = [one[key] for one in objects for key in ("time", "ts") if key in one]
        pids = {one["pid"] for one in objects if "pid" in one}
        if times != sorted(times) or len(pids) != 2:
            raise Failed(f"{len(times)} times, processes {pids}")
        page = os.path.join(folder, "page.html")
        subprocess.run([adverb, "trace", "view", both, "-o", page], check=True, timeout=LIMIT_S)
        with open(page) as file:
            shown = Page(file.read())
        arrows = shown.counts["line"] - 2
        labels = sum(bool(re.fullmatch(r"(SEND|RDMA_\w+)\w*, \d+ bytes", word)) for word in shown.words)
        if arrows < 20 or labels != arrows or shown.counts["rect"] == 0:
            raise Failed(f"{arrows} arrows, {labels} labels, {shown.counts}")
        return f"{len(times)} calls, {arrows} arrows"


def full_disk(adverb):
    """A trace that cannot be written ends with one line, and the program goes on."""
    with Process([*run(adverb, "roce0", "--trace", "/dev/full", "--trace-format", "text"), "ibv_devinfo"]) as process:
        expect_success([process], LIMIT_S)
        said = [line for line in process.output().splitlines() if "the trace ends here" in line]
        if len(said) != 1 or "No space left" not in said[0]:
            raise Failed(process.describe())
        return said[0]


def killed_program(adverb):
    """The file of a program that is killed in the middle has all lines but its last ones."""
    pair = next(pair for pair in PAIRS if pair.name == "write_bw")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        path = os.path.join(folder, "calls.txt")
        command = f"ib_write_bw -F -D 600 -p {port}"
        with Process([*run(adverb, pair.device), *shlex.split(command)]) as server:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process([*run(adverb, pair.device, "--trace", path), *shlex.split(command), "127.0.0.1"]) as client:
                # Some hundred posts are in the file.
                wait_until(lambda: os.path.exists(path) and os.path.getsize(path) > 1 << 20, LIMIT_S, "it posts")
                with open(path) as file:
                    pid = int(re.match(r"# process (\d+):", file.readline())[1])
                os.kill(pid, signal.SIGKILL)
                if client.wait(LIMIT_S) is None:
                    raise Failed(client.describe())
        found = lines(path, is_killed=True)
        if not any(match[3] == "ibv_post_send" for match in found):
            raise Failed("no posts are in the file")
        return f"{len(found)} whole lines"


def small_files(adverb):
    """A limit on the size of files ends no run: neither the command nor the program makes a larger one."""
    said = subprocess.run(["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *run(adverb, "roce0"), "ibv_devinfo"], capture_output=True, text=True, timeout=LIMIT_S)
    if said.returncode or "roce0" not in said.stdout:
        raise Failed(f"status {said.returncode}: {said.stdout}{said.stderr}")
    return "the device is there"


def page_in_place(adverb):
    """A page that would take the place of the trace is refused, and the trace stays."""
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        path, link = os.path.join(folder, "calls.jsonl"), os.path.join(folder, "link.html")
        subprocess.run([*run(adverb, "roce0", "--trace", path), "ibv_devinfo"], check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
        os.symlink(path, link)
        with open(path) as file:
            before = file.read()
        for output in (path, link):
            said = subprocess.run([adverb, "trace", "view", path, "-o", output], capture_output=True, text=True, timeout=LIMIT_S)
            if said.returncode == 0 or "one of the files that are read" not in said.stderr:
                raise Failed(f"status {said.returncode}: {said.stderr}")
        with open(path) as file:
            if not before or file.read() != before:
                raise Failed("the trace has changed")
        return "refused"


# What watch.c does, and how it ends.
BESIDES = [("fork", 0), ("exit", 3), ("limit", 0), ("turns", 0), ("killed", 128 + signal.SIGKILL)]


def besides(adverb, mode, expected):
    """A traced program forks, handles signals and has limits as it does untraced."""
    with tempfile.TemporaryDirectory(prefix="adverb-trace-") as folder:
        program, path = os.path.join(folder, "watch"), os.path.join(folder, "calls.txt")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "watch.c")
        subprocess.run(["cc", "-O1", "-Wall", "-Wextra", "-Werror", "-o", program, source, "-libverbs"], check=True)
        with Process([*run(adverb, "roce0", "--trace", path), program, mode]) as process:
            if process.wait(LIMIT_S) is None or process.status() not in (expected, 128 - expected if expected > 128 else expected):
                raise Failed(f"status {process.status()}, not {expected}\n{process.describe()}")
            output = process.output()
        found = lines(path, is_killed=mode == "killed")
        polls = [int(match[7] or 1) for match in found if match[3] == "ibv_poll_cq"]
        if mode == "limit" and "the trace ends here" not in output:
            raise Failed(f"the limit is not said: {output}")
        if mode == "turns" and (len(polls) > 100 or sum(polls) != 20000):
            raise Failed(f"{len(polls)} lines of {sum(polls)} polls")
        if mode == "killed" and not polls:
            raise Failed("no polls are in the file")
        return f"{len(found)} lines"


# Rules, the program that meets them, and what the program says then.
PINGPONG = PAIRS[0]
NEW_PINGPONG = PAIRS[1]
FAULTS = [
    ("call_once", "ibv_post_send:ENOMEM@3", PINGPONG, "Couldn't post send"),
    ("call_by_chance", "ibv_post_send:ENOMEM%20", PINGPONG, "Couldn't post send"),
    ("builders", "ibv_wr_complete:ENOMEM@3", NEW_PINGPONG, "Couldn't post send"),
    ("poll", "ibv_poll_cq:EIO@3", PINGPONG, "poll CQ failed"),
    ("completion", "completion:RETRY_EXC_ERR@10", PINGPONG, r"Failed status transport retry counter exceeded \(12\)"),
    ("completion_of_sends", "completion:RNR_RETRY_EXC_ERR:opcode=SEND@5", PINGPONG, r"Failed status RNR retry counter exceeded \(13\)"),
    ("completion_under_cursor", "completion:REM_ACCESS_ERR:opcode=SEND@5", NEW_PINGPONG, r"Failed status remote access error \(10\)"),
    ("route", "rdma_resolve_route:ENETUNREACH", PAIRS[2], "rdma_resolve_route: Network is unreachable"),
    ("address", "rdma_resolve_addr:ENODEV@1", PAIRS[2], "rdma_resolve_addr: No such device"),
    ("completion_of_rping", "completion:RETRY_EXC_ERR:opcode=SEND@3", PAIRS[2], "cq completion failed"),
    ("completion_of_write_bw", "completion:GENERAL_ERR@7", PAIRS[4], r"Failed status 21"),
]


def fault_lines(text):
    """The log of the faults, without the numbers that the machine gives."""
    return [re.sub(r"adverb\[\d+\]|queue pair 0x\w+", "", line) for line in text.splitlines() if " fault " in line]


def faults(adverb, case):
    """The program meets the fault and ends with its own error. Twice the same seed gives the same faults."""
    _, rule, pair, says = case
    found = []
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="adverb-fault-") as folder:
            status, text = both(adverb, pair, ["--fault", rule, "--seed", "7"], folder, expected=None, settings={"ADVERB_LOG": "warn"})
        # 255 is rping's own; a signal would be 128 and its number.
        if status <= 0 or 128 < status < 200 or not re.search(says, text):
            raise Failed(f"status {status}\n{text}")
        found.append(fault_lines(text))
    if not found[0] or found[0] != found[1]:
        raise Failed(f"one run: {found[0]}\nanother: {found[1]}")
    return found[0][0].strip()


def flush_follows(adverb):
    """After a completion with a fault, all later ones of the queue pair are flushed."""
    pair = PAIRS[4]
    with tempfile.TemporaryDirectory(prefix="adverb-fault-") as folder:
        path = os.path.join(folder, "calls.txt")
        both(adverb, pair, ["--trace", path, "--fault", "completion:RETRY_EXC_ERR@10"], folder, expected=None)
        statuses = re.findall(r"status=IBV_WC_(\w+)", "\n".join(arguments for _, _, arguments in calls_of_text(path)))
        first = statuses.index("RETRY_EXC_ERR")
        if statuses[:first] != ["SUCCESS"] * 9 or not set(statuses[first + 1 :]) <= {"WR_FLUSH_ERR"}:
            raise Failed(str(statuses))
        return f"{first} succeeded, one failed, {len(statuses) - first - 1} were flushed"


# Every object that ibv_rc_pingpong makes, in its order, and what it says without it.
ALLOCATIONS = [
    ("ibv_get_device_list", "Failed to get IB devices list"),
    ("ibv_open_device", "Couldn't get context"),
    ("ibv_create_comp_channel", "Couldn't create completion channel"),
    ("ibv_alloc_pd", "Couldn't allocate PD"),
    ("ibv_reg_mr", "Couldn't register MR"),
    ("ibv_create_cq", "Couldn't create CQ"),
    ("ibv_create_qp", "Couldn't create QP"),
    ("ibv_modify_qp", "Failed to modify QP"),
    ("ibv_post_recv", "Couldn't post receive"),
    ("ibv_query_port", "Couldn't get port info"),
]


def allocations(adverb):
    """One after the other fails; the program ends with its own error each time."""
    for call, says in ALLOCATIONS:
        for errno in ("ENOMEM", "EPERM"):
            # A server: what fails, fails before anybody connects.
            command = [*run(adverb, "roce0", "--fault", f"{call}:{errno}@1"), "ibv_rc_pingpong", "-e", "-g", "0", "-p", str(free_port())]
            with Process(command, {"ADVERB_LOG": "warn"}) as process:
                if process.wait(LIMIT_S) != 1 or says not in process.output() or f"fails with {errno}" not in process.output():
                    raise Failed(process.describe())
    return f"{len(ALLOCATIONS)} calls, each with two error numbers"


def event(adverb):
    """A port event comes at its time, to a program that waits for nothing else."""
    with Process([*run(adverb, "roce0", "--fault", "event:PORT_ERR@1.5s,event:PORT_ACTIVE@1.6s"), "stdbuf", "-oL", "ibv_asyncwatch", "-d", "roce0"]) as process:
        wait_until(lambda: "IBV_EVENT_PORT_ACTIVE" in process.output() or process.status() is not None, LIMIT_S, "the events come")
        words = re.findall(r"IBV_EVENT_\w+", process.output())
        if words != ["IBV_EVENT_PORT_ERR", "IBV_EVENT_PORT_ACTIVE"]:
            raise Failed(process.describe())
        return " then ".join(words)


def log_on_full_disk(adverb):
    """A log that finds no room is told of once, on standard error, and the program goes on."""
    for options, settings in ((["--log", "info:/dev/full"], {}), ([], {"ADVERB_LOG": "info:/dev/full"})):
        command = [*run(adverb, "roce0", *options), "sh", "-c", "ibv_devinfo -v >/dev/null"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **settings})
        lines = [line for line in result.stderr.splitlines() if "/dev/full cannot be written: No space left on device" in line]
        if result.returncode != 0 or len(lines) != 1 or result.stderr.count("\n") != 1:
            raise Failed(f"{options} {settings}: status {result.returncode}\n{result.stderr}")
    return "one line"


# What is wrong, and what the answer says of it.
WRONG = [
    (["--fault", "ibv_regmr:ENOMEM"], {}, "rule 1, letter 1: .*ibv_reg_mr"),
    (["--fault", "ibv_reg_mr:ENOMEM,completion:OK"], {}, "rule 2, letter 30: .*RETRY_EXC_ERR"),
    (["--fault", "ibv_reg_mr:ENOMEM@x"], {}, "rule 1, letter 18: .*@N"),
    (["--trace", "calls.txt", "--trace-only", "ibv_poll"], {}, "ibv_poll_cq"),
    (["--trace-format", "json"], {}, "--trace"),
    (["--trace", "/nowhere/calls.txt", "--trace-size", "16"], {}, "--trace-size 16: only a ring .*calls.txt is text; .*FILE.ring"),
    (["--trace", "/nowhere/calls.ring", "--trace-format", "chrome", "--trace-size", "16"], {}, "--trace-size 16: .* is chrome"),
    (["--seed", "7"], {}, "--seed 7: there are no faults .*--fault RULES"),
    (["--seed", "7"], {"ADVERB_FAULT": " "}, "--seed 7: there are no faults"),
    ([], {"ADVERB_FAULT": "nothing:EIO"}, "ADVERB_FAULT=nothing:EIO: rule 1, letter 1"),
    ([], {"ADVERB_SEED": "x"}, "ADVERB_SEED=x"),
    ([], {"ADVERB_TRACE_ONLY": "ibv_nothing"}, "there is no call ibv_nothing"),
]


def refused(adverb):
    """Wrong rules are refused before the program starts, with the place and what is allowed."""
    for options, settings, says in WRONG:
        result = subprocess.run([*run(adverb, "roce0", *options), "echo", "started"], capture_output=True, text=True, timeout=LIMIT_S, env={**os.environ, **settings})
        if result.returncode != 2 or "started" in result.stdout or not re.search(says, result.stderr):
            raise Failed(f"{options} {settings}: status {result.returncode}\n{result.stdout}{result.stderr}")
    return f"{len(WRONG)} mistakes"


def tests(adverb):
    """Name, function and arguments of each."""
    found = []
    for pair in PAIRS:
        for name, test in (("text", trace_text), ("json", trace_json), ("chrome", trace_chrome)):
            found.append((f"watch::trace_{name}_{pair.device}_{pair.name}", test, (adverb, pair)))
    for name in ENDINGS:
        # Queue pairs that the program connects itself, and such that rdma_cm connects.
        found += [(f"watch::merged_{name}_{pair.device}_{pair.name}", merged, (adverb, pair, name)) for pair in (PAIRS[0], PAIRS[2], PAIRS[3])]
    for name, test in (
        ("several_processes", several_processes),
        ("chosen_calls", chosen_calls),
        ("full_disk", full_disk),
        ("log_on_full_disk", log_on_full_disk),
        ("killed_program", killed_program),
        ("small_files", small_files),
        ("page_in_place", page_in_place),
        ("flush_follows", flush_follows),
        ("allocations", allocations),
        ("event", event),
        ("refused", refused),
    ):
        found.append((f"watch::{name}", test, (adverb,)))
    found += [(f"watch::besides_{mode}", besides, (adverb, mode, expected)) for mode, expected in BESIDES]
    found += [(f"watch::fault_{case[0]}", faults, (adverb, case)) for case in FAULTS]
    found += traces.tests(adverb)
    return found
