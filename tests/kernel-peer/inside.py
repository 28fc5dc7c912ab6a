"""adverb itself on the guest's kernel: another one than this machine's, and often an older one.

Its programs are this machine's, which the guest reads; both ends run there, as root and as an ordinary user.
"""

import os
import re
import subprocess

import peer
from harness.namespace import free_port
from harness.process import Process, expect_success
from harness.report import Failed

LIMIT_S = 120
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


def tests():
    for device in peer.DEVICE.values():
        for user in USERS:
            for program in PROGRAMS:
                yield f"kernel_peer::adverb_in_guest::{device}::{user}::{program}", test, (device, user, program)


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
