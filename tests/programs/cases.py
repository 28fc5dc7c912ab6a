"""The unmodified programs that must work, as tables (harness/pair.py says what the fields mean)."""

import glob
import os
from dataclasses import dataclass, replace

from harness.namespace import Neighbour
from harness.pair import Pair, perftest, perftest_cm

MIB = 1 << 20
# Sums of the message sizes of perftest's -a: powers of two from 2 bytes to 8 MiB; datagrams end at the smallest path MTU.
ALL_SIZES = 2 * 8 * MIB - 2
# Messages of each of all sizes.
EACH = 100 if "TEST_ALL" in os.environ else 25
ALL_DATAGRAMS = 2 * 1024 - 2


@dataclass
class Single:
    """One program; status 0, and its output has all of `expect`. `options`: of `adverb run`."""

    name: str
    command: str
    expect: list
    options: tuple = ()


HERE = os.path.dirname(os.path.abspath(__file__))
# Rules of flow steering, made and taken away.
_RULES = f"raw_ethernet_fs_rate --server -F -n 100 -B {Neighbour.MAC_HERE} -E {Neighbour.MAC_THERE}"
# The same program with the kernel's sockets and with rsockets.
_SOCKETS = [
    Single("sockets", f"python3 {HERE}/sockets.py kernel", ["all is as it should be"]),
    Single("sockets_rsockets", f"python3 {HERE}/sockets.py rsockets", ["all is as it should be"], ("--rsockets",)),
]
SINGLES = {
    "iwarp0": [
        *_SOCKETS,
        Single("ibv_devices", "ibv_devices", ["iwarp0"]),
        Single(
            "ibv_devinfo",
            "ibv_devinfo -v",
            ["hca_id:\tiwarp0", "transport:\t\t\tiWARP", "PORT_ACTIVE", "max_qp_wr:", "link_layer:\t\tEthernet"],
        ),
    ],
    "roce0": [
        *_SOCKETS,
        Single("ibv_devices", "ibv_devices", ["roce0"]),
        Single(
            "ibv_devinfo",
            "ibv_devinfo -v",
            ["hca_id:\troce0", "transport:\t\t\tInfiniBand", "PORT_ACTIVE", "RoCE v2", "link_layer:\t\tEthernet"],
        ),
        Single("raw_ethernet_fs_rate", _RULES, ["fps[flow per sec]"]),
    ],
}

# On every device.
EVERYWHERE = [
    Pair(
        "rping",
        "rping -s -a {server} -p {port} -V -S 60000 -C 50",
        "rping -c -a {server} -p {port} -V -S 60000 -C 50",
        bytes=2 * 50 * 60_000,
    ),
    Pair(
        "ucmatose",
        "ucmatose -b {server} -p {port} -c 100 -C 100",
        "ucmatose -p {port} -c 100 -C 100 -s {server}",
        connections=100,
        bytes=2 * 100 * 100 * 100,
        expect=["return status 0"],
    ),
    Pair("rdma_client", "rdma_server -s {server} -p {port}", "rdma_client -s {server} -p {port}", expect=["rdma_client: end 0"]),
    perftest_cm("ib_write_bw", f"-a -n {EACH}", volume=EACH * ALL_SIZES),
    perftest_cm("ib_read_bw", f"-a -n {EACH}", volume=EACH * ALL_SIZES),
    perftest_cm("ib_send_bw", f"-a -n {EACH}", volume=EACH * ALL_SIZES),
    perftest_cm("ib_write_bw", f"-a -b -n {EACH}", volume=2 * EACH * ALL_SIZES),
    perftest_cm("ib_read_bw", f"-a -b -n {EACH}", volume=2 * EACH * ALL_SIZES),
    perftest_cm("ib_send_bw", f"-a -b -n {EACH}", volume=2 * EACH * ALL_SIZES),
    perftest_cm("ib_write_bw", "-q 4 -n 100", connections=5, volume=4 * 100 * 65_536),
    perftest_cm("ib_read_bw", "-q 4 -n 100", connections=5, volume=4 * 100 * 65_536),
    perftest_cm("ib_send_bw", "-q 4 -n 100", connections=5, volume=4 * 100 * 65_536),
    perftest_cm("ib_write_bw", "-n 100", volume=100 * 65_536),
    # With events. Not ib_send_bw: out of credits, it waits for a completion event that only its next send would bring.
    perftest_cm("ib_send_lat", "-n 100 -e"),
    perftest_cm("ib_write_lat", f"-a -n {EACH}", volume=2 * EACH * ALL_SIZES),
    perftest_cm("ib_read_lat", f"-a -n {EACH}", volume=EACH * ALL_SIZES),
    perftest_cm("ib_send_lat", f"-a -n {EACH}", volume=2 * EACH * ALL_SIZES),
]


# What makes rsockets of a program's sockets.
_PRELOADED = f"env LD_PRELOAD={next(iter(glob.glob('/usr/lib/*/rsocket/librspreload.so')), 'librspreload.so')}"


def _rsockets(program, options, bytes):
    """rstream and riostream compare every byte with -T v. A server that blocks is seen to wait."""
    name = f"{program}_{options}".replace("-", "").replace(" ", "_")
    server, client = f"{program} -b {{server}} -p {{port}} -T b", f"{program} -s {{server}} -p {{port}}"
    return Pair(name, f"{server} -T v {options}", f"{client} -T v {options}", bytes=bytes)


# Sockets over RDMA: the distribution's own programs, and others whose sockets librspreload replaces.
EVERYWHERE += [
    _rsockets("rstream", "-S 60000 -C 50 -I 3", 60_000 * 75),
    _rsockets("rstream", "-T b -S 1000000 -C 10 -I 1", 1_000_000 * 5),
    _rsockets("rstream", "-T a -S 64 -C 20 -I 20", 64 * 200),
    _rsockets("riostream", "-S 60000 -C 50 -I 3", 60_000 * 75),
    Pair(
        "rcopy",
        "rcopy -p {port}",
        "bash -c 'f=$(mktemp -u); rcopy /bin/bash {server}:$f -p {port} && cmp /bin/bash $f; s=$?; rm -f $f; exit $s'",
        bytes=1_000_000,
        ipv6=False,
        endless=True,
    ),
    Pair(
        "iperf3_librspreload",
        f"{_PRELOADED} iperf3 -s -1 -B {{server}} -p {{port}}",
        f"{_PRELOADED} iperf3 -c {{server}} -p {{port}} -n 50M",
        connections=2,
        bytes=25_000_000,
        expect=["iperf Done."],
    ),
]

def _checked(receiver):
    """A script in which a program receives a file, which must be /bin/bash."""
    return f"bash -c 'f=$(mktemp); {receiver} >$f && cmp /bin/bash $f; s=$?; rm -f $f; exit $s'"


# Programs whose sockets a library in front replaces: rdma-core's, and ours, which knows epoll and accept4, too.
EVERYWHERE += [
    Pair(
        "nc.traditional_librspreload",
        _checked(f"{_PRELOADED} nc.traditional -l -p {{port}}"),
        f"bash -c '{_PRELOADED} nc.traditional -q 5 {{server}} {{port}} </bin/bash'",
        bytes=1_000_000,
        ipv6=False,
    ),
    Pair(
        "nc.traditional_rsockets",
        "bash -c 'nc.traditional -l -p {port} -q 5 </bin/bash'",
        _checked("nc.traditional {server} {port}"),
        bytes=1_000_000,
        ipv6=False,
        options=("--rsockets",),
    ),
    # One way each time: its server ends with what its client sends.
    Pair(
        "nc.openbsd_rsockets",
        _checked("nc.openbsd -l {server} {port}"),
        "bash -c 'nc.openbsd -N {server} {port} </bin/bash'",
        bytes=1_000_000,
        options=("--rsockets",),
    ),
    Pair(
        "nc.openbsd_rsockets_back",
        "bash -c 'nc.openbsd -N -l {server} {port} </bin/bash'",
        _checked("nc.openbsd {server} {port}"),
        bytes=1_000_000,
        options=("--rsockets",),
    ),
    Pair(
        "iperf3_rsockets",
        "iperf3 -s -1 -B {server} -p {port}",
        "iperf3 -c {server} -p {port} -n 50M",
        connections=2,
        bytes=25_000_000,
        expect=["iperf Done."],
        options=("--rsockets",),
    ),
    Pair(
        "redis_rsockets",
        "redis-server --bind {server} --port {port} --save '' --protected-mode no",
        f"python3 {HERE}/redis.py {{server}} {{port}}",
        connections=5,
        bytes=500_000,
        ready="Ready to accept connections",
        options=("--rsockets",),
    ),
]


def _perftest_on_roce():
    """Every combination that perftest accepts without rdma_cm, and datagrams with it."""
    data = EACH * ALL_SIZES
    for service in ("RC", "UC", "UD"):
        # Nothing holds a sender back that is not answered: what a full socket drops is missing, and then perftest waits.
        volume = data if service == "RC" else 1
        options = f"-c {service} -n 100"
        some = {"service": service}
        yield perftest("ib_send_bw", f"-c {service} -n {EACH} -a", volume=volume, **some)
        yield perftest("ib_send_bw", f"-c {service} -n {EACH} -a -b", volume=2 * volume, **some)
        yield perftest("ib_send_bw", f"{options} -q 16", connections=16, **some)
        yield perftest("ib_send_bw", f"{options} -q 16 -b", connections=32, **some)
        yield perftest("ib_send_bw", f"{options} -e", **some)
        yield perftest("ib_send_bw", f"{options} --use-srq", **some)
        yield perftest("ib_send_bw", f"{options} --use-srq -q 16", connections=16, **some)
        # All sizes of it are run by rdma_cm.
        yield perftest("ib_send_lat", options, **some)
        yield perftest("ib_send_lat", f"{options} -e", **some)
        yield perftest("ib_send_lat", f"{options} --use-srq", **some)
    for service in ("RC", "UC"):
        volume = data if service == "RC" else 1
        options = f"-c {service} -n 100"
        some = {"service": service}
        yield perftest("ib_write_bw", f"-c {service} -n {EACH} -a", volume=volume, **some)
        yield perftest("ib_write_bw", f"-c {service} -n {EACH} -a -b", volume=2 * volume, **some)
        yield perftest("ib_write_bw", f"{options} -q 16", connections=16, **some)
        yield perftest("ib_write_bw", f"{options} -q 16 -b", connections=32, **some)
        yield perftest("ib_write_lat", options, **some)
    yield perftest("ib_read_bw", f"-n {EACH} -a", volume=data)
    yield perftest("ib_read_bw", f"-n {EACH} -a -b", volume=2 * data)
    yield perftest("ib_read_bw", "-n 100 -q 16", connections=16)
    yield perftest("ib_read_bw", "-n 100 -q 16 -b", connections=32)
    yield perftest("ib_read_bw", "-n 100 -e")
    yield perftest("ib_read_lat", f"-n {EACH} -a", volume=data)
    yield perftest("ib_read_lat", "-n 100 -e")
    for operation in ("FETCH_AND_ADD", "CMP_AND_SWAP"):
        yield perftest("ib_atomic_bw", f"-A {operation} -n 100", volume=0)
        yield perftest("ib_atomic_bw", f"-A {operation} -n 100 -b", volume=0)
        yield perftest("ib_atomic_bw", f"-A {operation} -n 100 -q 16", connections=16, volume=0)
        yield perftest("ib_atomic_bw", f"-A {operation} -n 100 -q 16 -b", connections=32, volume=0)
        yield perftest("ib_atomic_bw", f"-A {operation} -n 100 -e", volume=0)
        yield perftest("ib_atomic_lat", f"-A {operation} -n 100", volume=0)
        yield perftest("ib_atomic_lat", f"-A {operation} -n 100 -e", volume=0)
    for program, options in (
        ("ib_send_bw", "-a"),
        ("ib_send_bw", "-q 4 -b"),
        ("ib_send_lat", "-e"),
        ("ib_write_bw", "-b"),
        ("ib_write_lat", ""),
        ("ib_read_bw", ""),
        ("ib_atomic_bw", "-q 4"),
    ):
        volume = data if options == "-a" else 1
        yield perftest(program, f"-c XRC -n {EACH if options == '-a' else 100} {options}".strip(), volume=volume, service="XRC")
    for options in ("-a", "-a -b", "-q 16", "-q 16 -b", "-e"):
        yield perftest_cm("ib_send_bw", f"-c UD -n 100 {options}", connections=1, service="UD")
    yield perftest_cm("ib_send_lat", "-c UD -n 100 -a", connections=1, service="UD")
    yield perftest_cm("ib_atomic_bw", "-n 100 -q 16", connections=16, volume=0)
    yield perftest_cm("ib_atomic_lat", "-n 100", connections=1, volume=0)


def _pingpongs():
    for events in ("", " -e"):
        for service, connections in (("rc", 2), ("uc", 2), ("ud", 2), ("srq", 32)):
            program = f"ibv_{service}_pingpong -g 0 -p {{port}} -n 1000{events}"
            yield Pair(
                f"ibv_{service}_pingpong{events.replace(' -', '_')}",
                program,
                program + " {server}",
                connections=connections,
                bytes=2 * 1000 * (2048 if service == "ud" else 4096) // (2 if service == "ud" else 1),
                service="RC" if service == "srq" else service.upper(),
            )


ON_ROCE = [
    Pair(
        "udpong",
        "udpong -b {server} -p {port} -T b",
        "udpong -s {server} -p {port} -T b -S 900 -C 300",
        connections=2,
        bytes=300 * 900,
        service="UD",
        endless=True,
    ),
    *_pingpongs(),
    Pair(
        "ibv_xsrq_pingpong",
        "ibv_xsrq_pingpong -g 0 -p {port}",
        "ibv_xsrq_pingpong -g 0 -p {port} {server}",
        connections=4,
        bytes=2 * 4096,
        service="XRC",
        expect=["success"],
    ),
    Pair(
        "rdma_xclient",
        "rdma_xserver -p {port} -c x",
        "rdma_xclient -s {server} -p {port} -c x",
        bytes=16,
        service="XRC",
        expect=["end 0"],
    ),
    Pair(
        "udaddy",
        "udaddy -b {server} -c 10 -C 100",
        "udaddy -s {server} -c 10 -C 100",
        port=7174,
        connections=20,
        bytes=2 * 10 * 100 * 100,
        service="UD",
        expect=["return status 0"],
    ),
    # Its receives are posted before it joins.
    Pair(
        "mckey",
        "stdbuf -oL mckey -m 239.1.2.{low} -b {server} -C 10",
        "mckey -m 239.1.2.{low} -b {client} -C 10 -s",
        bytes=10 * 100,
        service="UD",
        expect=["return status 0"],
        ready="joined dgid",
    ),
    Pair(
        "cmtime",
        "cmtime -b {server} -p {port} -c 1000",
        "cmtime -s {server} -p {port} -c 1000",
        connections=0,
        bytes=0,
        endless=True,
    ),
]
# Between two namespaces alone: a long table.
ON_ROCE_CABLE = list(_perftest_on_roce())

# Those that take longest run between two namespaces alone.
LONG = ("ib_write_lat_R_a", "ib_read_lat_R_a", "ib_send_lat_R_a", "ib_write_bw_R_a_b", "ib_read_bw_R_a_b", "ib_send_bw_R_a_b")
IN_ONE_NAMESPACE = [pair for pair in EVERYWHERE if not pair.name.startswith(LONG)]

# All sizes by rdma_cm between two namespaces over RoCE: with TEST_ALL alone. The same operations have all sizes there without rdma_cm, and rdma_cm has them
# with one size there, and with all sizes on the other ways.
REPEATED = ("ib_write_bw_R_a", "ib_read_bw_R_a", "ib_send_bw_R_a", "ib_read_lat_R_a")

# Between two processes that share memory: what is reliable and has data to carry, of all sizes once for each operation; and some of the rest.
# Not ib_send_lat with XRC and events: both queues have one channel, and it takes whatever event comes first for that of its own send, which another
# queue pair of the peer acknowledges than the one that replies. By shared memory the reply is sometimes first.
NOT_ON_HOST = ("cmtime", "ib_send_lat_c_XRC_n_100_e")
ON_HOST = [pair for pair in IN_ONE_NAMESPACE + ON_ROCE if pair.service in ("RC", "XRC") and pair.name not in NOT_ON_HOST]
ON_HOST += [
    pair
    for pair in ON_ROCE_CABLE
    if pair.service in ("RC", "XRC") and "_a" not in pair.name.replace("_atomic", "") and pair.name not in NOT_ON_HOST
]

UNRELIABLE_ON_HOST = (
    "ibv_uc_pingpong_e",
    "ibv_ud_pingpong",
    "ibv_ud_pingpong_e",
    "ib_send_bw_c_UC_n_100_q_16_b",
    "ib_write_bw_c_UC_n_100_q_16",
)


def _longer(pair):
    """With more messages. Datagrams go by the network until two processes have agreed.

    That takes longer where others want the processors.
    """
    server, client = (command.replace("-n 1000", "-n 20000") for command in (pair.server, pair.client))
    return replace(pair, server=server, client=client, bytes=pair.bytes * 20)


ON_HOST += [_longer(pair) if "-n 1000 " in f"{pair.client} " and pair.service == "UD" else pair for pair in ON_ROCE + ON_ROCE_CABLE if pair.name in UNRELIABLE_ON_HOST]

# Those that show that without memory of the other process nothing is different; TEST_ALL has all of them run so.
STRICT_ON_HOST = ("rping", "rstream_S_60000_C_50_I_3", "ibv_rc_pingpong_e", "ib_send_lat_R_n_100_e", "ib_atomic_bw_R_n_100_q_16")

# Short runs of every operation, whose every frame is counted and compared with what Wireshark sees.
COUNTED = [
    Pair(
        "rping",
        "rping -s -a {server} -p {port} -V -S 3000 -C 5",
        "rping -c -a {server} -p {port} -V -S 3000 -C 5",
    ),
    perftest_cm("ib_write_bw", "-s 5000 -n 5"),
    perftest_cm("ib_read_bw", "-s 5000 -n 5"),
    perftest_cm("ib_send_bw", "-s 5000 -n 5"),
    Pair("ucmatose", "ucmatose -b {server} -p {port} -c 3", "ucmatose -p {port} -c 3 -s {server}"),
]

# Options of our own program that compares every byte, and the service that its packets have.
VERIFY_EVERYWHERE = [("", "RC"), ("--srq", "RC")]
VERIFY_ON_HOST = [
    ("", "RC"),
    ("--srq", "RC"),
    ("--exchange", "RC"),
    ("--exchange --srq", "RC"),
    ("--exchange --service ud", "UD"),
]
VERIFY_ON_ROCE = [
    ("--exchange", "RC"),
    ("--exchange --srq", "RC"),
    ("--exchange --service uc", "UC"),
    ("--exchange --service uc --srq", "UC"),
    ("--exchange --service ud", "UD"),
    ("--exchange --service ud --srq", "UD"),
    ("--service ud", "UD"),
]


def _raw(program, options, frames, length):
    """Both sides count on receives that are posted before frames come: no more than those. They are posted after the server has spoken."""
    command = f"stdbuf -oL {program} -F {options}"
    return Pair(
        f"{program}_{options}".replace("-", "").replace(" ", "_"),
        f"{command} --server -B {{server_mac}} -E {{client_mac}}",
        f"{command} --client -B {{client_mac}} -E {{server_mac}}",
        connections=frames,
        bytes=frames * length,
        ready="MAC attached",
        polls=True,
    )


# Frames that the programs make themselves, by raw packet queue pairs and flow steering. `connections` counts the client's.
RAW_PACKETS = [
    _raw("raw_ethernet_bw", "-n 200", 200, 1500),
    _raw("raw_ethernet_bw", "-n 200 -b", 200, 1500),
    _raw("raw_ethernet_lat", "-n 100", 100, 60),
]
