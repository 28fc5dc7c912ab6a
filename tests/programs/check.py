"""`adverb run --check`: programs with one bug each are told what is wrong, and correct ones nothing. The first comment of each says which is which."""

import collections
import functools
import glob
import json
import os
import re
import shlex
import subprocess
import tempfile
import threading

import mpi
from harness.namespace import free_port
from harness.process import Process, expect_success, serving, wait_until
from harness.report import Failed

HERE = os.path.dirname(os.path.abspath(__file__))
FOLDER = os.path.join(HERE, "check")
PAGE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "docs/how-to/check.md")
BEGIN, END = "<!-- check: written by `tests/programs/run --document` -->\n", "<!-- end of check -->\n"
LIMIT_S = 120
DEVICES = ("roce0", "iwarp0")

# The names of all findings, and what each is about, for the page.
NAMES = {
    "slot-reused": "a slot of the send queue is used again before a polled completion has freed it",
    "unsignalled-forever": "no request in the slots of the send queue is signalled, so no slot is ever free again",
    "completion-queue-overrun": "more completions than the program asked the queue for",
    "completion-missed": "a wait for an event that no completion will cause",
    "event-not-acknowledged": "an event without its acknowledgement, for which the end of the object waits",
    "buffer-changed": "the program changes a buffer between post and completion",
    "buffer-freed": "a buffer goes back to the system between post and completion",
    "receives-overlap": "two posted receives point at the same bytes",
    "region-in-use": "a region is deregistered while requests use it",
    "window-in-use": "a memory window ends while requests use it",
    "access-refused": "key, address, length or rights of an access do not fit the region",
    "no-receive": "a message waits for a receive for more than a second",
    "deadlock": "messages of both directions wait for receives",
    "retries-run-out": "a request is sent for the last time, and the peer does not answer",
    "receive-too-small": "a message is longer than the receive that it takes",
    "wrong-q-key": "a datagram whose Q_Key is not that of its destination",
    "wrong-psn": "the two sides have not agreed on the first packet sequence numbers",
    "in-flight-at-exit": "the program ends, and does not know whether its requests have succeeded",
    "object-leaked": "an object is never destroyed",
    "object-destroyed-twice": "an object is destroyed a second time",
    "object-used-after-destroy": "an object is used after its end",
    "destroy-refused": "an object is destroyed while others need it",
    "used-in-child": "a child of fork uses its parent's objects",
    "wrong-state": "a call that the state of the queue pair does not allow",
    "result-ignored": "a call fails, and the program goes on as if it had not",
    "inline-too-long": "inline data that is longer than `max_inline_data`",
    "too-many-elements": "more scatter/gather elements than the queue was made for",
}
# Findings of `--check=PROFILE`.
PROFILES = {
    "not-on-mlx5": "more than adapters of mlx5 offer",
    "not-on-efa": "more than EFA offers",
    "not-on-rxe": "more than Linux's rxe offers",
    "not-on-siw": "more than Linux's siw offers",
    "not-on-strict": "more than every one of mlx5, rxe and siw offers, or an order that no standard promises",
}
ALL = NAMES | PROFILES


class Program:
    """One of the programs: its title, and what is expected of it."""

    FIELD = re.compile(r"^ \* (only|profile|expects|also|remedy|correct)\b:? ?(.*)$", re.MULTILINE)

    def __init__(self, path):
        self.path, self.name = path, os.path.basename(path)[:-2]
        with open(path) as file:
            text = file.read()
        comment = re.match(r"/\* (.*?)\n \*/\n", text, re.DOTALL)
        if not comment:
            raise Failed(f"{self.name} does not begin with a comment")
        fields = dict(self.FIELD.findall(comment[1]))
        self.title = comment[1].partition("\n")[0]
        self.devices = (fields["only"],) if "only" in fields else DEVICES
        self.correct = "correct" in fields
        self.profile = fields.get("profile")
        self.finding, _, self.words = fields.get("expects", "").partition(": ")
        self.remedy = fields.get("remedy", "")
        # What else follows from the one bug.
        self.also = fields.get("also", "").split()
        if self.correct == bool(self.finding) or self.finding and (self.finding not in ALL or not self.words or not self.remedy):
            raise Failed(f"{self.name}: the first comment does not say what is expected")
        # Where the bug is.
        self.lines = {number for number, line in enumerate(text.splitlines(), 1) if "/* here */" in line}


def programs():
    return [Program(path) for path in sorted(glob.glob(os.path.join(FOLDER, "*.c")))]


COMPILING = collections.defaultdict(threading.Lock)


def compiled(name, folder):
    """The program, which one test compiles for all."""
    with COMPILING[name]:
        return compile_once(name, folder)


@functools.cache
def compile_once(name, folder):
    out = os.path.join(folder, f"check-{name}")
    command = ["cc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-unused-result", "-pthread", "-o", out]
    result = subprocess.run([*command, os.path.join(FOLDER, f"{name}.c"), "-lrdmacm", "-libverbs"], capture_output=True, text=True)
    if result.returncode != 0:
        raise Failed(f"{name} does not compile:\n{result.stderr}")
    return out


Finding = collections.namedtuple("Finding", "name sentence remedy places")

HEAD = re.compile(r"^adverb check: ([a-z0-9-]+): (.*)$")
SUMMARY = re.compile(r"^adverb check: (?:(\d+) findings? \(.*\)|no findings) in process \d+ \(.*?\)(?:[,;] .*)?$", re.MULTILINE)
PLACE = re.compile(r"\(([^()]*):(\d+)\)")


def findings(output):
    """What a run has found: each with its remedy, and the places in the source, as (file, line)."""
    found = []
    for line in output.splitlines():
        head = HEAD.match(line)
        if head:
            found.append(Finding(head[1], head[2], [], []))
        elif found and line.startswith("    remedy: "):
            found[-1].remedy.append(line[len("    remedy: ") :])
        elif found and line.startswith("    "):
            found[-1].places.extend((os.path.basename(file), int(number)) for file, number in PLACE.findall(line))
        elif found and not line.startswith("adverb check:"):
            continue
    return found


def says(sentence, words):
    """Whether all words stand in a sentence, in their order. Three dots stand for anything, a bar between two means either."""
    either = (".*".join(re.escape(part.strip()) for part in one.split("...")) for one in words.split(" | "))
    return re.search("|".join(either), sentence) is not None


def run(adverb, device, command, *options):
    """The output of a program that ends well."""
    with Process([adverb, "run", "--device", device, *options, "--", *command]) as process:
        expect_success([process], LIMIT_S)
        return process.output(), process.describe()


def check(adverb, device, command, option):
    """The findings of a run. Its summaries must speak of as many."""
    output, described = run(adverb, device, command, option)
    found = findings(output)
    summaries = SUMMARY.findall(output)
    # A child of fork has no summary.
    count = len([finding for finding in found if finding.name != "used-in-child"])
    if not summaries or count != sum(int(number or 0) for number in summaries):
        raise Failed(f"{count} findings, and the summary says {summaries}:\n{described}")
    return found, described


def program_test(adverb, folder, program, device):
    """A program runs to its end without checks and with them, and is told what its comment says."""
    command = [compiled(program.name, folder)]
    _, described = run(adverb, device, command)
    if "adverb check" in described:
        raise Failed(f"nobody has asked for checks:\n{described}")
    if program.profile:
        found, described = check(adverb, device, command, "--check")
        if found:
            raise Failed(f"nobody has asked for the profile:\n{described}")
    found, described = check(adverb, device, command, f"--check={program.profile}" if program.profile else "--check")
    if program.correct:
        if found:
            raise Failed(f"a false alarm:\n{described}")
        return "no findings"
    others = {finding.name for finding in found} - {program.finding, *program.also}
    right = [finding for finding in found if finding.name == program.finding]
    if not right or others:
        raise Failed(f"expected {program.finding} alone:\n{described}")
    if not any(says(finding.sentence, program.words) for finding in right):
        raise Failed(f"no sentence has the words {program.words!r}:\n{described}")
    if not all(finding.remedy for finding in found) or not any(says(finding.remedy[0], program.remedy) for finding in right):
        raise Failed(f"no remedy has the words {program.remedy!r}:\n{described}")
    places = {line for finding in right for file, line in finding.places if file == f"{program.name}.c"}
    # Over iWARP, the target alone knows of a refused Write, and no call of it is to blame.
    at_target = device == "iwarp0" and any("the peer's" in finding.sentence and not finding.places for finding in right)
    if program.lines and not places & program.lines and not at_target:
        raise Failed(f"the bug is in line {program.lines} of {program.name}.c, the finding names {places}:\n{described}")
    return program.finding


# Programs of others: no finding, but for objects that they leave to the end of the process. Each is a server and a client, or alone.
Other = collections.namedtuple("Other", "name devices server client left", defaults=("",))
BOTH, ROCE = DEVICES, ("roce0",)
# Sends of perftest's clients make a completion queue for receives, and only servers destroy theirs (perftest_resources.c, destroy_ctx).
QUEUE = "completion queue"
# With rdma_cm, perftest leaves the device open, and the identifier of the server listening.
MANAGER = "open device|event channel|identifier"


def _pairs(programs, options):
    """Programs with options of their own: name, options, and what they leave."""
    for name, own, left in programs:
        server = f"{name}{own} {options}"
        yield Other(f"{name}{own.replace(' -', '_').replace(' ', '_')}", ROCE, server, server + " {server}", left)


UCX = "env UCX_TLS=ib UCX_NET_DEVICES=roce0:1 ucx_perftest -p {port}"
OTHERS = [
    *_pairs(
        [
            ("ib_write_bw", "", ""),
            ("ib_write_bw", " -R", MANAGER),
            ("ib_write_lat", "", ""),
            ("ib_send_lat", "", ""),
            ("ib_send_bw", " -b", ""),
            ("ib_send_bw", " -e", ""),
            ("ib_read_bw", "", ""),
            ("ib_atomic_bw", "", ""),
            ("ib_send_bw", " -c UD", QUEUE),
            ("ib_send_bw", " -c UC", QUEUE),
            ("ib_send_bw", " -r 16", QUEUE),
        ],
        "-F -n 200 -p {port}",
    ),
    *_pairs(
        [
            ("ibv_rc_pingpong", "", ""),
            ("ibv_rc_pingpong", " -e", ""),
            ("ibv_rc_pingpong", " -N", ""),
            ("ibv_ud_pingpong", "", ""),
            ("ibv_uc_pingpong", "", ""),
            ("ibv_srq_pingpong", "", ""),
            ("ibv_xsrq_pingpong", "", ""),
        ],
        "-g 0 -p {port} -n 200",
    ),
    Other("rping", BOTH, "rping -s -a {server} -p {port} -C 20", "rping -c -a {server} -p {port} -C 20 -V"),
    Other("rdma_client", BOTH, "rdma_server -s {server} -p {port}", "rdma_client -s {server} -p {port}"),
    Other("ucmatose", BOTH, "ucmatose -b {server} -p {port} -c 4", "ucmatose -p {port} -c 4 -s {server}"),
    Other("rdma_xclient", ROCE, "rdma_xserver -p {port} -c x", "rdma_xclient -s {server} -p {port} -c x"),
    Other("udaddy", ROCE, "udaddy -b {server} -c 2", "udaddy -s {server} -c 2"),
    Other("ucx_perftest", ROCE, UCX, UCX + " -t tag_bw -n 100 -w 10 -s 65536 {server}"),
    Other("ibv_devinfo", BOTH, "", "ibv_devinfo -v"),
]


def no_alarm(adverb, device, other):
    """A program of others, both sides with checks, has no finding but for objects that it leaves."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="adverb-check-") as folder:
        path = os.path.join(folder, "findings")
        run = [adverb, "run", "--device", device, "--check", "--check-file", path, "--"]
        server, client = ([*run, *shlex.split(side.format(port=port, server="127.0.0.1"))] for side in (other.server, other.client))
        if not other.server:
            with Process(client) as alone:
                expect_success([alone], LIMIT_S)
                output = alone.describe()
        else:
            with Process(server) as listening:
                wait_until(serving(listening, port), LIMIT_S, "the server serves")
                with Process(client) as asking:
                    expect_success([asking, listening], LIMIT_S)
                    output = listening.describe() + asking.describe()
        with open(path) as file:
            words = file.read()
    sides = len(SUMMARY.findall(words))
    alarms = [finding for finding in findings(words) if finding.name != "object-leaked" or not other.left or not re.search(other.left, finding.sentence)]
    if alarms or sides != (2 if other.server else 1):
        raise Failed(f"{len(alarms)} findings and {sides} summaries:\n{words}\n{output}")
    return "no findings" if not other.left else f"leaves: {other.left}"


# Over datagrams, UCX gives a message's buffer back when its peer says that it has come, before any completion of it is polled (uct/ib/ud/base/ud_ep.c,
# uct_ud_ep_window_release). What its pool writes there is found.
MPI = {"openmpi": "buffer-changed libuct_ib", "mpich": "buffer-changed libuct_ib"}
UCX_OF_MPI = {"UCX_NET_DEVICES": "roce0:1", "UCX_TLS": "rc,ud,self"}


def mpi_job(adverb, folder, kind):
    """Two ranks of MPI over UCX have no findings but those that are known of UCX."""
    program, count = mpi.compile_check(folder, kind), 2
    known, module = MPI[kind].split()
    with tempfile.TemporaryDirectory(prefix="adverb-check-") as own:
        path = os.path.join(own, "findings")
        if kind == "openmpi":
            words = [word for name in ("LD_PRELOAD", "LD_LIBRARY_PATH", *UCX_OF_MPI) for word in ("-x", name)]
            start = ["mpirun.openmpi", "--oversubscribe", *words, "--mca", "pml", "ucx", "--mca", "osc", "ucx"]
        else:
            start = ["mpiexec.hydra"]
        command = [adverb, "run", "--check", "--check-file", path, "--", *start, "-n", str(count), program]
        with Process(command, {**mpi.ENVIRONMENT, **UCX_OF_MPI}) as process:
            expect_success([process], LIMIT_S)
            output = process.describe()
        with open(path) as file:
            words = file.read()
    found = findings(words)
    blocks = re.split(r"(?m)^(?=adverb check: )", words)
    wrong = [block for block in blocks if HEAD.match(block.partition("\n")[0]) and not (block.startswith(f"adverb check: {known}:") and module in block)]
    if wrong or len(SUMMARY.findall(words)) < count:
        raise Failed(f"{len(wrong)} unknown findings of {len(found)}:\n{words}\n{output}")
    return f"{len(found)} findings of UCX"


DAEMON = """
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <unistd.h>
int main(int count, char **words)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct ibv_context *context = ibv_open_device(devices[0]);
	close(2);
	if (count != 2 || open(words[1], O_WRONLY | O_CREAT, 0600) != 2 || !ibv_alloc_pd(context))
		return 1;
	return write(2, "data", 4) != 4;
}
"""


def no_data_changes(adverb, folder):
    """A program closes its standard error, and a file of its data has that number: no finding goes there, and all are in the file for them."""
    program = os.path.join(folder, "check-daemon")
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-x", "c", "-", "-o", program, "-x", "none", "-libverbs"], input=DAEMON, text=True, check=True)
    with tempfile.TemporaryDirectory(prefix="adverb-check-") as own:
        data, found = os.path.join(own, "data"), os.path.join(own, "findings")
        run(adverb, "roce0", [program, data], "--check")
        with open(data) as file:
            if (text := file.read()) != "data":
                raise Failed(f"the program's file says {text!r}")
        os.remove(data)
        run(adverb, "roce0", [program, data], "--check", "--check-file", found)
        with open(found) as file:
            if "object-leaked" not in (text := file.read()):
                raise Failed(f"the file for findings says {text!r}")
    return "the data is as it was"


def findings_name_their_process(adverb, folder):
    """Two processes share a file of findings: each finding and each summary says whose it is."""
    program = compiled("too_many_elements_send", folder)
    with tempfile.TemporaryDirectory(prefix="adverb-check-") as own:
        path = os.path.join(own, "findings")
        run(adverb, "roce0", ["sh", "-c", '"$0" & "$0"; wait', program], "--check", "--check-file", path)
        with open(path) as file:
            text = file.read()
    name = re.escape(os.path.basename(program))
    found = re.findall(rf"^    in process (\d+) \({name}\)$", text, re.MULTILINE)
    ended = re.findall(rf"^adverb check: 1 finding \(too-many-elements\) in process (\d+) \({name}\)$", text, re.MULTILINE)
    if len(set(found)) != 2 or sorted(found) != sorted(ended):
        raise Failed(f"processes {found} have findings, and {ended} have ended:\n{text}")
    return f"processes {' and '.join(sorted(found))}"


def leaks_are_suppressed(adverb, folder):
    """A line of the file silences what was left by where it was made: in a function, or in one that it calls."""
    program = compiled("leaked_region", folder)
    with tempfile.TemporaryDirectory(prefix="adverb-check-") as own:
        path = os.path.join(own, "known")
        # Its device, its protection domain, and three regions of one place.
        for rule, wanted in (("other", 3), ("open_device", 2), ("open_*", 2), ("main", 0), ("libother.so*", 3)):
            with open(path, "w") as file:
                file.write(f"object-leaked * {rule}\n")
            output, described = run(adverb, "roce0", [program], "--check", "--check-suppress", path)
            if len(findings(output)) != wanted:
                raise Failed(f"{rule}: {wanted} findings were expected:\n{described}")
    return "by function, by its caller, and not by another library"


def in_json(adverb, folder, name):
    """The lines of JSON about a program with findings, and its process."""
    with Process([adverb, "run", "--device", "roce0", "--check", "--check-format", "json", "--", compiled(name, folder)]) as process:
        expect_success([process], LIMIT_S)
        return [json.loads(line) for line in process.output().splitlines() if line.startswith("{")]


def json_has_numbers(adverb, folder):
    """Findings as JSON have the numbers that their sentences have: of the queue pair, the request and the completion queue."""
    [finding, _] = in_json(adverb, folder, "too_many_elements_send")
    pair, wr_id = (int(finding.get(name, 0)) for name in ("queue_pair", "wr_id"))
    if not pair or f"request {wr_id:#x} of queue pair {pair:#x} " not in finding["text"] or "completion_queue" in finding:
        raise Failed(f"queue pair or request: {finding}")
    [finding, summary] = in_json(adverb, folder, "leaked_completion_queue")
    if not finding.get("completion_queue") or f"completion queue {finding['completion_queue']} of " not in finding["text"]:
        raise Failed(f"completion queue: {finding}")
    if "queue_pair" in finding or "wr_id" in finding or (finding["process"], finding["program"]) != (summary["process"], summary["program"]):
        raise Failed(f"{finding}, and the summary {summary}")
    return "queue pair, request, completion queue"


def json_says_whether_leaks_were_looked_for(adverb, folder):
    """A handler of a signal ends the program amid ibv_destroy_cq: what is left is no finding, and the last object says so. A program that returns from main has such findings."""
    for name, wanted in (("event_not_acknowledged", False), ("leaked_completion_queue", True)):
        *_, summary = in_json(adverb, folder, name)
        if summary.get("leaks_looked_for") is not wanted:
            raise Failed(f"{name}: {summary}")
    return "false and true"


GAVE_UP = re.compile(r"^adverb check: no findings in process \d+ \(.*?\); the program ended with status 1,", re.MULTILINE)
FAULTS = (
    "completion:REM_ACCESS_ERR@1",
    "completion:RETRY_EXC_ERR@1",
    "completion:RNR_RETRY_EXC_ERR@1",
    "completion:LOC_PROT_ERR@1",
    "ibv_post_send:ENOMEM@1",
    "ibv_post_send:EINVAL@1",
    "ibv_dereg_mr:EBUSY@1",
    "rdma_create_qp:EINVAL@1",
)


def faults_are_no_findings(adverb, folder):
    """What a fault of the run does is no bug of the program, which sees it and gives up."""
    command = [compiled("right_two_buffers", folder)]
    for rule in FAULTS:
        with Process([adverb, "run", "--device", "roce0", "--check", "--fault", rule, "--", *command]) as process:
            status = process.wait(LIMIT_S)
            output = process.describe()
        if not status or findings(output) or not GAVE_UP.search(output) or "fault 1: " not in output:
            raise Failed(f"{rule}: status {status}\n{output}")
    return f"{len(FAULTS)} faults"


def table():
    """What the page says of the programs. A test compares each program with its own comment."""
    every = programs()
    wrong = [program for program in every if not program.correct]
    right = [program for program in every if program.correct]
    lines = [f"### {len(wrong)} programs with a bug\n\n", "| finding | program | the bug |\n", "|---|---|---|\n"]
    order = {name: place for place, name in enumerate(ALL)}
    for program in sorted(wrong, key=lambda program: (order[program.finding], program.name)):
        lines.append(f"| `{program.finding}` | {link(program)} | {program.title} |\n")
    lines += [f"\n### {len(right)} correct programs\n\n", "None of them has a finding.\n\n", "| program | |\n", "|---|---|\n"]
    lines += [f"| {link(program)} | {program.title} |\n" for program in right]
    return "".join(lines)


def link(program):
    only = f" ({program.devices[0]})" if len(program.devices) == 1 else ""
    return f"[{program.name}](../../tests/programs/check/{program.name}.c){only}"


def parts():
    with open(PAGE) as file:
        before, begin, rest = file.read().partition(BEGIN)
    present, end, after = rest.partition(END)
    if not begin or not end:
        raise Failed(f"{PAGE} has no lines {BEGIN!r} and {END!r}")
    return before, present, after


def write():
    before, _, after = parts()
    with open(PAGE, "w") as file:
        file.write(before + BEGIN + table() + END + after)


def document():
    """The page has every program, and there are as many as promised, with each finding among them."""
    before, present, after = parts()
    if present != table():
        raise Failed("the page is not as the programs are: tests/programs/run --document")
    every = programs()
    missing = set(ALL) - {program.finding for program in every}
    if missing or len([program for program in every if program.correct]) < 25:
        raise Failed(f"no program for {missing}")
    unsaid = [name for name in ALL if f"`{name}`" not in before + after]
    if unsaid:
        raise Failed(f"the page does not explain {unsaid}")
    return f"{len(every)} programs"


def tests(adverb, folder):
    """Name, function and arguments of each."""
    found = []
    for program in programs():
        found += [(f"check::{program.name}::{device}", program_test, (adverb, folder, program, device)) for device in program.devices]
    for other in OTHERS:
        found += [(f"check::others::{other.name}::{device}", no_alarm, (adverb, device, other)) for device in other.devices]
    found += [(f"check::others::{kind}::roce0", mpi_job, (adverb, folder, kind)) for kind in MPI]
    found.append(("check::standard_error_closed", no_data_changes, (adverb, folder)))
    found.append(("check::findings_name_their_process", findings_name_their_process, (adverb, folder)))
    found.append(("check::leaks_are_suppressed", leaks_are_suppressed, (adverb, folder)))
    found.append(("check::json_has_numbers", json_has_numbers, (adverb, folder)))
    found.append(("check::json_says_whether_leaks_were_looked_for", json_says_whether_leaks_were_looked_for, (adverb, folder)))
    found.append(("check::faults_are_no_findings", faults_are_no_findings, (adverb, folder)))
    found.append(("check::document", document, ()))
    return found
