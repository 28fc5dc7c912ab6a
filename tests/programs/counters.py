"""Counters that others read while programs run and afterwards: node_exporter, the summary of a run, `adverb top`, `rdma statistic` and `rdma resource`. All are compared with what perftest says."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
import urllib.request

from harness.namespace import free_port
from harness.process import Process, descendants, expect_success, listening, serving, wait_until
from harness.report import Failed

LIMIT_S = 120
EXPORTER = "prometheus-node-exporter"
SENT = "node_infiniband_port_data_transmitted_bytes_total"
PACKETS = "node_infiniband_port_packets_transmitted_total"


def command(adverb, options, program, **values):
    return [adverb, "run", *options, "--", *shlex.split(program.format(**values))]


# perftest sends 0.8 GB/s.
SLOW = "--rate_limit=8 --rate_limit_type=SW --burst_size=8"


class NoClock(Exception):
    """perftest could not find the rate of its clock, as it says itself: then it limits nothing, and sends all within one look."""


def expect_limit(text):
    """The limit of SLOW was one."""
    if "Correlation coefficient r^2" in text:
        raise NoClock(text)


def with_limit(run):
    """Calls it, anew where perftest had no limit, and returns what it returns."""
    for _ in range(3):
        try:
            return run()
        except NoClock as error:
            words = error
    raise Failed(f"perftest finds no rate of its clock:\n{words}")


def perftest_bytes(text):
    """Bytes that perftest says it sent: the size times the iterations of its table."""
    rows = re.findall(r"^ *(\d+) +(\d+)(?:[ \t]+[\d.]+){3}[ \t]*$", text, re.MULTILINE)
    if len(rows) != 1:
        raise Failed(f"no table of perftest:\n{text}")
    size, iterations = map(int, rows[0])
    return size * iterations


@contextlib.contextmanager
def exporter(folder):
    """A function that reads the metrics of node_exporter for the files in a folder. It is a Go program: it makes its own system calls."""
    port = free_port()
    options = ["--collector.disable-defaults", "--collector.infiniband", f"--path.sysfs={folder}/sys", f"--web.listen-address=127.0.0.1:{port}"]
    with Process([EXPORTER, *options]) as process:
        wait_until(lambda: listening(process.pid, port) or process.status() is not None, LIMIT_S, "node_exporter serves")
        if process.status() is not None:
            raise Failed(process.describe())

        def metrics():
            # Nobody's proxy is asked.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
                text = answer.read().decode()
            found = re.findall(r'^(node_infiniband_\w+)\{device="(\w+)",port="1"\} (\S+)$', text, re.MULTILINE)
            return {(name, device): float(value) for name, device, value in found}

        yield metrics


def node_exporter(adverb, device, local, messages):
    """The bytes grow while the program sends; afterwards they are those that perftest says, also when the run is over."""
    return with_limit(lambda: node_exporter_once(adverb, device, local, messages))


def node_exporter_once(adverb, device, local, messages):
    port = free_port()
    settings = {"ADVERB_LOCAL": local}
    # Without a limit, all may be sent within one look. node_exporter may wait for a processor, too.
    program = f"ib_write_bw -F -n {messages} -s 65536 {SLOW} {'-R' if device == 'iwarp0' else ''} -p {port}"
    with tempfile.TemporaryDirectory(prefix="adverb-counters-") as folder:
        options = ["--device", device]
        # node_exporter wants files when it starts.
        subprocess.run([adverb, "env", "--files", folder], stdout=subprocess.DEVNULL, check=True, timeout=LIMIT_S)
        server = Process(command(adverb, options, program), settings)
        with server, exporter(folder) as metrics:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process(command(adverb, [*options, "--files", folder], program + " 127.0.0.1"), settings) as client:
                there = os.path.join(folder, f"sys/class/infiniband/{device}/ports/1/counters/port_xmit_data")
                wait_until(lambda: os.path.exists(there) or client.status() is not None, LIMIT_S, "the files are there")
                seen = []
                while client.status() is None:
                    # The files of the run take the place of those before.
                    seen += [value for key, value in metrics().items() if key == (SENT, device)]
                expect_success([client, server], LIMIT_S)
                expect_limit(client.output())
                said = perftest_bytes(client.output())
            after = metrics()
        if (SENT, device) not in after:
            raise Failed(f"node_exporter knows no {device}: {after}")
        found = after[SENT, device]
        moving = sorted({value for value in seen if 0 < value < said})
        if not moving or seen != sorted(seen):
            raise Failed(f"it does not grow while {said} bytes are sent: {seen}")
        # With -R, perftest's own words go by a queue pair, too.
        if not said <= found <= said + (4096 if device == "iwarp0" else 0) or after[PACKETS, device] <= 0:
            raise Failed(f"perftest says {said} bytes, node_exporter {found}: {after}")
        return f"{said} bytes, {len(moving)} values on the way"


def summary(adverb, device, local):
    """The summary of a run has the bytes that perftest says, and says how they went; nothing of it is among the program's errors."""
    return with_limit(lambda: summary_once(adverb, device, local))


def summary_once(adverb, device, local):
    port = free_port()
    settings = {"ADVERB_LOCAL": local}
    # The two processes meet, and pages move, while the first requests go by other ways: a second and a half is enough for that on a busy machine, too.
    size = f"-n 20000 {SLOW}" if local == "auto" else "-n 500"
    program = f"ib_write_bw -F {size} -s 65536 {'-R' if device == 'iwarp0' else ''} -p {port}"
    with tempfile.TemporaryDirectory(prefix="adverb-counters-") as folder:
        path = os.path.join(folder, "summary.json")
        with Process(command(adverb, ["--device", device], program), settings) as server:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process(command(adverb, ["--device", device, "--summary", path], program + " 127.0.0.1"), settings) as client:
                expect_success([client, server], LIMIT_S)
                expect_limit(client.output())
                said = perftest_bytes(client.output())
                if "adverb: " in client.output():
                    raise Failed(f"a line for people is among the program's errors\n{client.describe()}")
        with open(path) as file:
            about = json.load(file)
    used, ways = about["devices"][device], about["devices"][device]["ways"]
    if not said <= used["bytes_sent"] <= said + (4096 if device == "iwarp0" else 0) or used["counters"]["tx_bytes"] != used["bytes_sent"]:
        raise Failed(f"perftest says {said} bytes: {used}")
    if about["status"] != 0 or not about["counted"] or about["command"][0] != "ib_write_bw":
        raise Failed(str(about))
    straight = ways["mapped_memory_operations"] + ways["kernel_copy_operations"]
    if (local == "off" and (straight or ways["shared_memory_packets"] or not ways["network_packets"])) or (local == "auto" and not straight):
        raise Failed(f"{local}: {ways}")
    return f"{said} bytes, {ways}"


@contextlib.contextmanager
def terminal(arguments):
    """A command in a terminal of 200 columns: the process, a function that gives what it has written until now, and one that types."""
    control, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 200, 0, 0))
    own = lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    environment = {**os.environ, "TERM": "xterm"}
    child = subprocess.Popen(arguments, stdin=end, stdout=end, stderr=end, start_new_session=True, preexec_fn=own, env=environment)
    os.close(end)
    written = bytearray()

    def output():
        while select.select([control], [], [], 0)[0]:
            try:
                more = os.read(control, 65536)
            except OSError:
                # Nobody has the other end any more.
                break
            if not more:
                break
            written.extend(more)
        return written.decode(errors="replace")

    try:
        yield child, output, lambda text: os.write(control, text.encode())
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        os.close(control)


LINE = re.compile(r"adverb: 2 queue pairs, 31\.2 MiB sent, .* received: \d.*; .*\n")


def line(adverb):
    """On a terminal a line says what went how: once, if a program used verbs, and if it is wanted."""
    both = "ib_write_bw -F -n 500 -p {port} >/dev/null & until ib_write_bw -F -n 500 -p {port} 127.0.0.1 >/dev/null 2>&1; do :; done; wait"
    found = []
    for options, script, lines in (([], both, 1), (["--quiet"], both, 0), (["-q"], both, 0), ([], "ibv_devinfo -l >/dev/null", 0), ([], "true", 0)):
        # A client that finds no server has no queue pair.
        with terminal([adverb, "run", *options, "--", "sh", "-c", script.format(port=free_port())]) as (child, output, _):
            wait_until(lambda output=output, child=child: (output(), child.poll())[1] is not None, LIMIT_S, "it ends")
            text = output().replace("\r\n", "\n")
        if len(LINE.findall(text)) != lines or text.count("adverb: ") != lines or child.returncode != 0:
            raise Failed(f"{options} {script}: status {child.returncode}\n{text}")
        found += LINE.findall(text)
    return found[0].strip()


def program(run, name):
    """The number of the program that a run has started, once it is there."""

    def found():
        pid = descendants(run.pid)[-1]
        with contextlib.suppress(OSError), open(f"/proc/{pid}/comm") as file:
            return file.read().strip() == name and pid

    return wait_until(lambda: found() or run.status() is not None, LIMIT_S, f"{name} runs")


@contextlib.contextmanager
def streaming(adverb, device):
    """A server and a client that writes to it, until they are killed: the numbers of both programs."""
    port = free_port()
    line = f"ib_write_bw -F -D 600 {'-R' if device == 'iwarp0' else ''} -p {port}"
    with Process(command(adverb, ["--device", device], line)) as server:
        wait_until(serving(server, port), LIMIT_S, "the server serves")
        with Process(command(adverb, ["--device", device], line + " 127.0.0.1")) as client:
            yield [program(run, "ib_write_bw") for run in (server, client)]


def output_of(*arguments):
    result = subprocess.run(arguments, capture_output=True, text=True, timeout=LIMIT_S)
    if result.returncode != 0:
        raise Failed(f"$ {shlex.join(arguments)}\nstatus {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stdout


def top(adverb, device):
    """The client's bytes move, each side's queue pair names the other's, and nothing is there of programs that have ended."""
    look = [adverb, "top", "--once", "--interval", "0.2", "--filter", device]
    with streaming(adverb, device) as pids:

        def seen():
            uses = {use["process"]: use for use in json.loads(output_of(*look, "--json"))["uses"]}
            sides = [uses.get(pid) for pid in pids]
            if not all(sides) or not sides[1]["bytes_sent"]["per_second"] > 0:
                return None
            pairs = [[pair for pair in side["queue_pairs"] if pair["state"] == "RTS" or pair["state"] == "RTR"] for side in sides]
            # Over rdma_cm, perftest has a queue pair more for its own words, and makes the other one later.
            if any(len(side) != (2 if device == "iwarp0" else 1) for side in pairs):
                return None
            pairs = [sorted(side, key=lambda pair: pair["requests"]["per_second"], reverse=True) for side in pairs]
            return (sides, pairs) if pairs[1][0]["requests"]["per_second"] > 0 else None

        (_, client_side), (server_pairs, client_pairs) = wait_until(seen, LIMIT_S, "adverb top shows both sides")
        pair, peer = client_pairs[0], server_pairs[0]
        if device == "roce0" and (pair["peer"] != peer["number"] or peer["peer"] != pair["number"]):
            raise Failed(f"{pair}\n{peer}")
        queue = pair["send_queue"]
        if not 0 < queue["room"] or not 0 <= queue["waiting"] <= queue["room"] or pair["send_completion_queue"]["room"] < 1:
            raise Failed(str(pair))
        table = output_of(*look)
        if not re.search(rf"^ *{pids[1]} +ib_write_bw +{device} +{len(client_side['queue_pairs'])} ", table, re.MULTILINE) or str(pair["number"]) not in table:
            raise Failed(table)
        os.kill(pids[0], signal.SIGSTOP)
        try:
            stopped = next(use for use in json.loads(output_of(*look, "--json"))["uses"] if use["process"] == pids[0])
        finally:
            os.kill(pids[0], signal.SIGCONT)
        if stopped["answers"] or stopped["queue_pairs"]:
            raise Failed(f"a process that is stopped: {stopped}")
    # They are killed, and end when they next have a processor.
    are_gone = lambda: not any(use["process"] in pids for use in json.loads(output_of(*look, "--json"))["uses"])
    wait_until(are_gone, LIMIT_S, "nothing is shown of programs that have ended")
    return f"{client_side['bytes_sent']['per_second']:.0f} bytes in a second, {pair['send_queue']}"


def top_live(adverb):
    """In a terminal the view shows the programs, filters, and leaves the terminal as it was."""
    with streaming(adverb, "roce0") as (_, pid):
        # The view writes only letters that change: from RTR to RTS, a single one.
        is_ready = lambda: re.search(rf"^ *{pid} .*\n.* RTS ", output_of(adverb, "top", "--once", "--interval", "0"), re.MULTILINE)
        wait_until(is_ready, LIMIT_S, "the queue pair is ready")
        with terminal([adverb, "top", "--interval", "0.2"]) as (child, output, type_in):

            def shows(*words):
                return lambda: all(word in output() for word in words) or child.poll() is not None

            wait_until(shows(str(pid), "RTS", "LAST ERROR", "adverb top"), LIMIT_S, "the programs are there")
            type_in("/no such program\r")
            wait_until(shows("leaves"), LIMIT_S, "the filter works")
            type_in("q")
            wait_until(lambda: (output(), child.poll())[1] is not None, LIMIT_S, "the view ends")
            text = output()
        # It leaves the other screen, and shows the cursor.
        if child.returncode != 0 or "\x1b[?1049l" not in text or not text.rfind("\x1b[?25h") > text.rfind("\x1b[?25l"):
            raise Failed(f"status {child.returncode}\n{text[-2000:]!r}")
        with terminal([adverb, "top", "--interval", "0.2"]) as (child, output, _):
            wait_until(lambda: "LAST ERROR" in output() or child.poll() is not None, LIMIT_S, "the view is there")
            child.send_signal(signal.SIGTERM)
            wait_until(lambda: (output(), child.poll())[1] is not None, LIMIT_S, "the view ends by a signal")
            # Else the shell would find the other screen, and a terminal without echo.
            if child.returncode != -signal.SIGTERM or "\x1b[?1049l" not in output():
                raise Failed(f"SIGTERM: status {child.returncode}\n{output()[-2000:]!r}")
    result = subprocess.run([adverb, "top"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_S)
    if result.returncode != 2 or "--once" not in result.stderr:
        raise Failed(f"without a terminal: status {result.returncode}\n{result.stderr}")
    return "shown, filtered, ended"


def rdma(adverb):
    """`rdma resource` names the queue pairs of both sides and their processes; `rdma statistic` says what the files say."""
    rdma = [adverb, "run", "--", "rdma"]
    with streaming(adverb, "roce0") as pids:

        def pairs():
            rows = json.loads(output_of(*rdma, "-j", "resource", "show", "qp"))
            found = [next((row for row in rows if row["pid"] == pid and row["state"] in ("RTR", "RTS")), None) for pid in pids]
            # The client goes on to RTS.
            return found if all(found) and found[1]["state"] == "RTS" else None

        one, other = wait_until(pairs, LIMIT_S, "both queue pairs are there")
        if one["rqpn"] != other["lqpn"] or other["rqpn"] != one["lqpn"] or {one["type"], other["type"]} != {"RC"} or one["comm"] != "ib_write_bw":
            raise Failed(f"{one}\n{other}")
        text = output_of(*rdma, "resource", "show", "qp", "link", "roce0/1", "lqpn", str(other["lqpn"]))
        if not re.fullmatch(rf"link roce0/1 lqpn {other['lqpn']} rqpn {one['lqpn']} type RC state RTS rq-psn \d+ sq-psn \d+ path-mig-state MIGRATED pdn \d+ pid {pids[1]} comm ib_write_bw ?\n", text):
            raise Failed(text)
        for kind, keys in (("cq", {"cqn", "cqe", "users"}), ("mr", {"mrn", "rkey", "lkey", "iova", "mrlen", "pdn"}), ("pd", {"pdn", "users"})):
            rows = json.loads(output_of(*rdma, "-j", "resource", "show", kind))
            of_both = [row for row in rows if row["pid"] in pids]
            if {row["pid"] for row in of_both} != set(pids) or not all(keys <= row.keys() for row in of_both):
                raise Failed(f"{kind}: {rows}")
        summary = json.loads(output_of(*rdma, "-j", "resource"))
        if summary[0]["ifname"] != "roce0" or min(summary[0][key] for key in ("qp", "cq", "pd", "mr", "ctx")) < 2:
            raise Failed(str(summary))
        statistics = output_of(*rdma, "statistic", "qp", "show")
        if f"LQPN: <{other['lqpn']}>" not in statistics:
            raise Failed(statistics)
    port = free_port()
    both = f"ib_write_bw -F -n 50 -p {port} >&2 & until ib_write_bw -F -n 50 -p {port} 127.0.0.1 >&2; do :; done; wait; rdma -j statistic; cat /sys/class/infiniband/roce0/ports/1/hw_counters/sent_pkts"
    *row, file = output_of(adverb, "run", "--", "sh", "-c", both).splitlines()
    row = json.loads("".join(row))
    if row[0]["ifname"] != "roce0" or row[0]["sent_pkts"] != int(file) or int(file) < 50:
        raise Failed(f"{row}: the file says {file}")
    return f"{len(row[0]) - 2} counters"


# More regions than an answer has room for, and behind them a queue pair.
MANY_REGIONS = """
import ctypes, sys
verbs = ctypes.CDLL("libibverbs.so.1")
pointer, u32, integer = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int
class Wanted(ctypes.Structure):
    _fields_ = [(name, pointer) for name in ("context", "send", "receive", "shared")]
    _fields_ += [(name, u32) for name in ("sends", "receives", "send_elements", "receive_elements", "inline")] + [("service", integer), ("signals", integer)]
def call(name, *arguments):
    function = getattr(verbs, name)
    function.restype = pointer
    return function(*arguments) or sys.exit(f"{name} fails")
devices = ctypes.cast(call("ibv_get_device_list", None), ctypes.POINTER(pointer))
context = pointer(call("ibv_open_device", pointer(devices[0])))
domain = pointer(call("ibv_alloc_pd", context))
memory = ctypes.create_string_buffer(4096)
for _ in range(4000):
    call("ibv_reg_mr", domain, memory, ctypes.c_size_t(4096), 1)
queue = call("ibv_create_cq", context, 16, None, None, 0)
call("ibv_create_qp", domain, ctypes.byref(Wanted(None, queue, queue, None, 1, 1, 1, 1, 0, 2, 0)))
print("ready", flush=True)
sys.stdin.readline()
"""


def many_regions(adverb):
    """Regions push no queue pair out of an answer; where not all are in it, nobody takes them for all."""
    with subprocess.Popen([adverb, "run", "--", "python3", "-c", MANY_REGIONS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        if run.stdout.readline() != "ready\n":
            raise Failed(f"status {run.wait(LIMIT_S)}")
        pid = descendants(run.pid)[-1]
        uses = json.loads(output_of(adverb, "top", "--once", "--interval", "0", "--json"))["uses"]
        use = next(use for use in uses if use["process"] == pid)
        regions = subprocess.run([adverb, "run", "--", "rdma", "-j", "resource", "show", "mr"], capture_output=True, text=True, timeout=LIMIT_S)
        pairs = json.loads(output_of(adverb, "run", "--", "rdma", "-j", "resource", "show", "qp"))
        run.communicate("\n", timeout=LIMIT_S)
    if len(use["queue_pairs"]) != 1 or not use["has_all_queue_pairs"] or [row["pid"] for row in pairs].count(pid) != 1:
        raise Failed(f"{use}\n{pairs}")
    if regions.returncode == 0 and len([row for row in json.loads(regions.stdout) if row["pid"] == pid]) != 4000:
        raise Failed("rdma shows a part of the regions as if there were no more")
    return f"regions: status {regions.returncode} {regions.stderr.strip()}"


def read(path):
    """What a file says, by a program that is told nothing of adverb."""
    return int(output_of("cat", path))


def named_folder(adverb):
    """Programs in the run and outside of it read the same, by the C library and by system calls of their own, one after the other, also while one keeps a file open."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="adverb-counters-") as place:
        folder = os.path.join(place, "files")
        inside = "/sys/class/infiniband/roce0/ports/1/counters/port_xmit_data"
        outside = folder + inside
        write = f"ib_write_bw -F -n 50 -p {port} >/dev/null & until ib_write_bw -F -n 50 -p {port} 127.0.0.1 >/dev/null 2>&1; do :; done; wait"
        # It says when it is done, and goes on when it is told so.
        script = f"for i in 1 2 3; do {write}; cat {inside}; {write}; echo; read line || :; done"
        unit = 50 * 65536 // 4
        with contextlib.ExitStack() as open_files, subprocess.Popen([adverb, "run", "--files", folder, "--", "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
            seen = []
            for at in range(3):
                said = int(run.stdout.readline())
                run.stdout.readline()
                # A program in the run has read the file, and then more was sent.
                seen.append([said + unit, read(outside), read(outside)])
                # Nobody who keeps the file open holds up those who come later.
                held = open_files.enter_context(open(outside))
                seen[-1] += [read(outside), int(held.read())]
                if at < 2:
                    run.stdin.write("\n")
                    run.stdin.flush()
            # The first run lives: its script waits for the end of its input.
            refused = subprocess.run([adverb, "run", "--files", folder, "--", "true"], capture_output=True, text=True, timeout=LIMIT_S)
            run.stdin.close()
            if run.wait(LIMIT_S) != 0:
                raise Failed(f"status {run.returncode}")
        if refused.returncode != 125:
            raise Failed(f"another run in the same folder: {refused.returncode} {refused.stderr}")
        if any(value != 2 * unit * (at + 1) for at, values in enumerate(seen) for value in values):
            raise Failed(f"{seen}, not multiples of {unit}")
        if read(outside) != 6 * unit:
            raise Failed("the values do not stay")
        output_of(adverb, "run", "--files", folder, "--", "true")
        if read(outside) != 0:
            raise Failed("the next run does not begin at 0")
    return f"{seen[-1][0]} units; another run at the same time: {refused.returncode}"


def stopped_run(adverb):
    """While a run is stopped as by Ctrl-Z, nobody waits for it who reads its files; afterwards they are served again."""
    with tempfile.TemporaryDirectory(prefix="adverb-counters-") as folder:
        path = f"{folder}/sys/class/infiniband/roce0/ports/1/counters/port_xmit_data"
        # A shell with job control: the kernel stops nothing in a group that has no parent in its session.
        script = shlex.join([adverb, "run", "--files", folder, "--", "sleep", "600"]) + "; sleep 600"
        with terminal(["sh", "-mc", script]) as (shell, _, _):

            def state(pid):
                with open(f"/proc/{pid}/stat") as file:
                    return file.read().rsplit(") ", 1)[1][0]

            def runs():
                # One that is stopped before it has its program keeps adverb run waiting for that.
                all = descendants(shell.pid)
                with contextlib.suppress(OSError):
                    return len(all) == 3 and os.path.exists(path) and os.readlink(f"/proc/{all[-1]}/exe") == os.path.realpath(shutil.which("sleep"))

            wait_until(runs, LIMIT_S, "the program runs")
            _, run, program = descendants(shell.pid)
            os.kill(program, signal.SIGTSTP)
            wait_until(lambda: state(run) == "T", LIMIT_S, "the run stops")
            begun = time.monotonic()
            read(path)
            # The kernel would let a reader go on by itself after 45 s.
            if time.monotonic() - begun > 40:
                raise Failed("a reader has waited for a run that is stopped")
            os.kill(run, signal.SIGCONT)
            wait_until(lambda: state(run) != "T", LIMIT_S, "the run goes on")
            read(path)
            os.kill(run, signal.SIGKILL)
    return "read while it was stopped"


def tests(adverb):
    """Name, function and arguments of each."""
    found = []
    for device, local, messages in (("roce0", "auto", 60_000), ("roce0", "off", 30_000), ("iwarp0", "auto", 60_000), ("iwarp0", "off", 30_000)):
        found.append((f"counters::node_exporter_{device}_{local}", node_exporter, (adverb, device, local, messages)))
        found.append((f"counters::summary_{device}_{local}", summary, (adverb, device, local)))
    found += [(f"counters::top_{device}", top, (adverb, device)) for device in ("roce0", "iwarp0")]
    for name, test in (("line", line), ("top_live", top_live), ("rdma", rdma), ("many_regions", many_regions), ("named_folder", named_folder), ("stopped_run", stopped_run)):
        found.append((f"counters::{name}", test, (adverb,)))
    return found
