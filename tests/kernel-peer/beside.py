"""The guest's own device beside adverb's: `adverb run --with-host-devices`, on the guest's kernel with its driver loaded."""

import tempfile

import early
import inside
import peer
from harness.namespace import free_port
from harness.process import Process, expect_success
from harness.report import Failed

LIMIT_S = 120
RUN = "/run/adverb/adverb run"
# What programs see of a device, by verbs, by files and by iproute2. Each line is looked for.
LOOK = """
ibv_devices; ibv_devinfo -v; rdma link
for d in /sys/class/infiniband/*; do echo "$d is $(realpath $d) of $(cat $d/ports/1/state), $(cat $d/ports/1/link_layer)"; done
for d in /sys/class/infiniband_verbs/uverbs*; do test -e /dev/infiniband/${d##*/} && echo "$(cat $d/ibdev) is opened"; done
"""
# Of the exchange of consumers/early.c.
ROUNDS = 1000
# Messages that are checked, with completions that come by events; twice, over each of the devices. What the kernel's has sent is counted.
MESSAGES = 100
PINGPONG = """
cd /tmp
sent() { cat /sys/class/infiniband/{theirs}/ports/1/hw_counters/sent_pkts; }
over() {
  run="timeout {limit} {run} --with-host-devices -- ibv_rc_pingpong -e -c -n {messages} -d $1 -g $2 -p $3"
  $run >server 2>&1 &
  i=0
  until grep -q ":$(printf %04X $3) .* 0A " /proc/net/tcp /proc/net/tcp6; do
    i=$((i + 1)); [ $i -lt 600 ] || { cat server; exit 1; }; sleep 0.1
  done
  before=$(sent)
  $run {address} || exit
  wait $! || { cat server; exit 1; }
  echo "the kernel has sent $(($(sent) - before)) packets"
}
over {theirs} {their_gid} {port}
over roce0 0 {other_port}
"""


def tests(driver):
    yield f"kernel_peer::beside_{driver}0::both_are_seen", both_are_seen, (driver,)
    yield f"kernel_peer::beside_{driver}0::same_name", refuses_the_same_name, (driver,)
    # siw connects by rdma_cm alone, which stays with adverb's devices.
    if driver == "rxe":
        yield "kernel_peer::beside_rxe0::pingpong", carries_messages, ()
        for way in early.WAYS:
            yield f"kernel_peer::beside_rxe0::early_{way}", is_early_no_more, (way,)


def in_guest(script):
    """What the script prints in the guest, with this machine's programs; fails unless it succeeds."""
    inside.prepare()
    with Process([peer.TOOL, "machine", "0", script], {"KP_TIMEOUT": str(2 * LIMIT_S + 70)}) as process:
        expect_success([process], 2 * LIMIT_S + 80)
        return process.output()


def both_are_seen(driver):
    """Verbs, files and `rdma link` show both; without the option, adverb's alone."""
    theirs, expected = f"{driver}0", []
    for device, place in ((theirs, f"/sys/devices/virtual/infiniband/{theirs}"), ("roce0", "/sys/devices/platform/adverb.0.auto/infiniband/roce0")):
        expected += [f"hca_id:\t{device}\n", f"link {device}/1 state ACTIVE", f"{device} is opened\n"]
        expected += [f"/sys/class/infiniband/{device} is {place} of 4: ACTIVE, Ethernet"]
    seen = in_guest(f"{RUN} --with-host-devices -- sh -c '{LOOK}'")
    if missing := [text for text in expected if text not in seen]:
        raise Failed(f"{missing} is not in\n{seen}")
    if seen.count("PORT_ACTIVE (4)") != 2:
        raise Failed(f"expected two active ports:\n{seen}")
    seen = in_guest(f"{RUN} -- sh -c '{LOOK}'")
    if theirs in seen or "hca_id:\troce0\n" not in seen:
        raise Failed(f"expected roce0 alone:\n{seen}")
    return f"{theirs} and roce0"


def refuses_the_same_name(driver):
    """A device of adverb's with the name of the kernel's is refused before the program starts; so both can be told apart."""
    said = in_guest(f"{RUN} --with-host-devices --devices {driver}0@transport=roce -- echo started; echo status $?")
    if f"the host has a device {driver}0, too" not in said or "status 2" not in said or "\nstarted" in said:
        raise Failed(said)
    return said.splitlines()[0]


def carries_messages():
    """ibv_rc_pingpong over rxe0, whose counter shows it, and over roce0 in the same way, which the kernel does not see."""
    values = {"limit": LIMIT_S, "run": RUN, "messages": MESSAGES, "address": peer.GUEST[4], "theirs": "rxe0", "their_gid": peer.GUEST_GID}
    script = PINGPONG
    for name, value in {**values, "port": free_port(), "other_port": free_port()}.items():
        script = script.replace(f"{{{name}}}", str(value))
    said = in_guest(script)
    sent = [int(line.split()[-2]) for line in said.splitlines() if line.startswith("the kernel has sent")]
    if len(sent) != 2 or sent[0] < 2 * MESSAGES or sent[1] != 0:
        raise Failed(f"expected packets of {2 * MESSAGES} messages, then none:\n{said}")
    return f"{sent[0]} packets by rxe0, none by roce0"


def is_early_no_more(way):
    """How often the peer's message comes before the own completion, over rxe0 and over roce0, within the host and by the network; every byte is right. The kernel
    acknowledges for a process that does not run, in the system call of the peer's post, and is hardly ever early. adverb is on one processor, and has early.MOST."""
    parts = {}
    with tempfile.TemporaryDirectory(prefix="adverb-early-") as folder:
        early.compiled(folder)
        # Each way has a program of its own: the guest keeps what it has read.
        peer.tool("share", "0", folder, f"early-{way}")
        program = f"cd /tmp; exec timeout {LIMIT_S}"
        exchange = f"/run/early-{way}/early {{}} {ROUNDS} {way}"
        for name, command in (
            ("rxe0", exchange.format(f"rxe0 {peer.GUEST_GID}")),
            ("roce0 within the host", f"{RUN} -- {exchange.format('roce0 0')}"),
            ("roce0 by the network", f"env ADVERB_LOCAL=off {RUN} -- {exchange.format('roce0 0')}"),
        ):
            parts[name] = early.part(in_guest(f"{program} {command}"))
    said = ", ".join(f"{part:.1%} on {name}" for name, part in parts.items())
    if max(part for name, part in parts.items() if name != "rxe0") > early.MOST:
        raise Failed(f"early: {said}; at most {early.MOST:.0%} on roce0 are allowed")
    return f"early: {said}"
