"""Counters that others read while programs run and afterwards: node_exporter, the summary of a run, `adverb top`, `rdma statistic` and `rdma resource`. All are compared with what perftest says."""

import contextlib
import json
import os
import pty
import re
import select
import shlex
import subprocess
import tempfile
import time
import urllib.request

from harness.namespace import free_port
from harness.process import Process, expect_success, serving, wait_until
from harness.report import Failed

LIMIT_S = 120
EXPORTER = "prometheus-node-exporter"
SENT = "node_infiniband_port_data_transmitted_bytes_total"
PACKETS = "node_infiniband_port_packets_transmitted_total"


def command(adverb, options, program, **values):
    return [adverb, "run", *options, "--", *shlex.split(program.format(**values))]


def perftest_bytes(text):
    """Bytes that perftest says it sent: the size times the iterations of its table."""
    rows = re.findall(r"^ *(\d+) +(\d+) +[\d.]+ +[\d.]+ +[\d.]+ *$", text, re.MULTILINE)
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
        wait_until(serving(process, port), LIMIT_S, "node_exporter serves")

        def metrics():
            # Nobody's proxy is asked.
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(f"http://127.0.0.1:{port}/metrics", timeout=LIMIT_S) as answer:
                text = answer.read().decode()
            found = re.findall(r'^(node_infiniband_\w+)\{device="(\w+)",port="1"\} (\S+)$', text, re.MULTILINE)
            if not found:
                raise Failed(f"node_exporter knows no device\n{text}\n{process.describe()}")
            return {(name, device): float(value) for name, device, value in found}

        yield metrics


def node_exporter(adverb, device, local, messages):
    """The bytes grow while the program sends; afterwards they are those that perftest says, also when the run is over."""
    port = free_port()
    settings = {"ADVERB_LOCAL": local}
    program = f"ib_write_bw -n {messages} -s 65536 {'-R' if device == 'iwarp0' else ''} -p {port}"
    with tempfile.TemporaryDirectory(prefix="adverb-counters-") as folder:
        options = ["--device", device]
        server = Process(command(adverb, options, program), settings)
        with server, exporter(folder) as metrics:
            wait_until(serving(server, port), LIMIT_S, "the server serves")
            with Process(command(adverb, [*options, "--files", folder], program + " 127.0.0.1"), settings) as client:
                there = os.path.join(folder, f"sys/class/infiniband/{device}/ports/1/counters/port_xmit_data")
                wait_until(lambda: os.path.exists(there) or client.status() is not None, LIMIT_S, "the files are there")
                seen = []
                while client.status() is None:
                    seen.append(metrics()[SENT, device])
                expect_success([client, server], LIMIT_S)
                said = perftest_bytes(client.output())
            after = metrics()
        found = after[SENT, device]
        moving = sorted({value for value in seen if 0 < value < said})
        if not moving or seen != sorted(seen):
            raise Failed(f"it does not grow while {said} bytes are sent: {seen}")
        # With -R, perftest's own words go by a queue pair, too.
        if not said <= found <= said + (4096 if device == "iwarp0" else 0) or after[PACKETS, device] <= 0:
            raise Failed(f"perftest says {said} bytes, node_exporter {found}: {after}")
        return f"{said} bytes, {len(moving)} values on the way"


def tests(adverb):
    """Name, function and arguments of each."""
    found = []
    for device, local, messages in (("roce0", "auto", 100_000), ("roce0", "off", 5_000), ("iwarp0", "auto", 100_000), ("iwarp0", "off", 20_000)):
        found.append((f"counters::node_exporter_{device}_{local}", node_exporter, (adverb, device, local, messages)))
    return found
