"""adverb itself on the guest's kernel: another one than this machine's, and often an older one: perftest, `adverb demo`, rdma-core's tests.

Its programs are this machine's, which the guest reads; both ends run there, as root and as an ordinary user.
"""

import os
import re
import subprocess

import kernel
import peer
import suite
from harness.namespace import free_port
from harness.process import Process, expect_success
from harness.report import Failed

LIMIT_S = 120
# Of rdma-core's tests; on roce0 there are many more than on iwarp0.
SUITE_LIMIT_S = {"iwarp0": 240, "roce0": 2400}
USERS = {"root": "", "user": "setpriv --reuid=65534 --regid=65534 --clear-groups --"}
# Programs, and the bytes that the client sends at least.
PROGRAMS = {"ib_write_bw": ("-n 50 -s 65536", 50 * 65536), "ib_send_lat": ("-n 20 -s 4000", 20 * 4000)}
# perftest's server listens on a TCP port, on either device. The words of both sides are the answer.
SCRIPT = """
run="env ADVERB_LOG=info {user} timeout {limit} /run/adverb/adverb run --device {device} -- {program} {options} -F -p {port}"
cd /tmp
$run >server 2>&1 &
i=0
until grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; do
  i=$((i + 1)); [ $i -lt 600 ] || {{ cat server; exit 1; }}; sleep 0.1
done
$run {address}; client=$?
wait $!; server=$?
cat server
[ $client = 0 ] && [ $server = 0 ]
"""


def prepare():
    """Once for a guest: shows it the programs."""
    # The first start makes a folder of links, which the guest could not.
    subprocess.run([peer.ADVERB, "devices"], stdout=subprocess.DEVNULL, check=True)
    peer.tool("share", "0", os.path.dirname(peer.ADVERB), "adverb")


def tests(folder):
    """`folder`: where rdma-core's tests are."""
    for device in peer.DEVICE.values():
        for user in USERS:
            for program in PROGRAMS:
                yield f"kernel_peer::adverb_in_guest::{device}::{user}::{program}", test, (device, user, program)
        yield f"kernel_peer::adverb_in_guest::{device}::demo", demonstrates, (device,)
    yield "kernel_peer::adverb_in_guest::iwarp0::rdma_core_suite", passes_suite, ("iwarp0", folder)


def nightly(folder):
    yield "kernel_peer::adverb_in_guest::roce0::rdma_core_suite", passes_suite, ("roce0", folder)


def demonstrates(device):
    """`adverb demo` of an ordinary user does every operation and finds every byte right."""
    prepare()
    command = f"cd /tmp; exec {USERS['user']} timeout {LIMIT_S} /run/adverb/adverb demo --device {device}"
    with Process([peer.TOOL, "machine", "0", command], {"KP_TIMEOUT": str(LIMIT_S + 10)}) as process:
        expect_success([process], LIMIT_S + 20)
        return process.output().splitlines()[-1]


def passes_suite(device, folder):
    """rdma-core's tests, as root: as many pass as on this machine's kernel."""
    prepare()
    counts = kernel.in_guest(device, folder, ["/run/adverb/adverb", "run", "--device", device, "--"], SUITE_LIMIT_S[device])
    if told := suite.flattered(device, counts):
        raise Failed(f"docs/programs.md says {suite.say(told)} where there are {suite.say(counts)} on the guest's kernel")
    return suite.say(counts)


def test(device, user, program):
    """Both ends succeed, and what they have counted shows that the bytes went by adverb."""
    prepare()
    options, least = PROGRAMS[program]
    script = SCRIPT.format(
        user=USERS[user],
        limit=LIMIT_S,
        device=device,
        program=program,
        options=f"-R {options}" if device == "iwarp0" else options,
        port=free_port(),
        address=peer.GUEST[4],
    )
    with Process([peer.TOOL, "machine", "0", script], {"KP_TIMEOUT": str(LIMIT_S + 70)}) as pair:
        expect_success([pair], LIMIT_S + 80)
        counters = [line for line in pair.output().splitlines() if f"counters {device}:" in line]
        sent = [int(count) for line in counters for count in re.findall(r"\btx_bytes=(\d+)", line)]
        if len(counters) != 2 or max(sent) < least:
            raise Failed(f"the two have counted {sent} bytes, expected {least} of one:\n{pair.describe()}")
    return f"{max(sent) / 1e6:.1f} MB on Linux {peer.tool('run', '0', 'uname -r').strip()}"
