"""The unmodified programs that must work, as tables (harness/pair.py says what the fields mean)."""

from dataclasses import dataclass

from harness.pair import Pair, perftest

MIB = 1 << 20
# Sum of the message sizes of perftest's -a: powers of two from 2 bytes to 8 MiB.
ALL_SIZES = 2 * 8 * MIB - 2


@dataclass
class Single:
    """One program; status 0, and its output has all of `expect`."""

    name: str
    command: str
    expect: list


SINGLES = [
    Single("ibv_devices", "ibv_devices", ["iwarp0"]),
    Single(
        "ibv_devinfo",
        "ibv_devinfo -v",
        ["hca_id:\tiwarp0", "transport:\t\t\tiWARP", "PORT_ACTIVE", "max_qp_wr:", "link_layer:\t\tEthernet"],
    ),
]


PAIRS = [
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
    perftest("ib_write_bw", "-a -n 100", volume=100 * ALL_SIZES),
    perftest("ib_read_bw", "-a -n 100", volume=100 * ALL_SIZES),
    perftest("ib_send_bw", "-a -n 100", volume=100 * ALL_SIZES),
    perftest("ib_write_bw", "-a -b -n 100", volume=2 * 100 * ALL_SIZES),
    perftest("ib_read_bw", "-a -b -n 100", volume=2 * 100 * ALL_SIZES),
    perftest("ib_send_bw", "-a -b -n 100", volume=2 * 100 * ALL_SIZES),
    perftest("ib_write_bw", "-q 4 -n 100", connections=5, volume=4 * 100 * 65_536),
    perftest("ib_read_bw", "-q 4 -n 100", connections=5, volume=4 * 100 * 65_536),
    perftest("ib_send_bw", "-q 4 -n 100", connections=5, volume=4 * 100 * 65_536),
    perftest("ib_write_bw", "-n 100", volume=100 * 65_536),
    # With events. Not ib_send_bw: out of credits, it waits for a completion event that only its next send would bring.
    perftest("ib_send_lat", "-n 100 -e"),
    perftest("ib_write_lat", "-a -n 100", volume=2 * 100 * ALL_SIZES),
    perftest("ib_read_lat", "-a -n 100", volume=100 * ALL_SIZES),
    perftest("ib_send_lat", "-a -n 100", volume=2 * 100 * ALL_SIZES),
]

# Short runs of every operation, whose every frame is counted and compared with what Wireshark sees.
COUNTED = [
    Pair(
        "rping",
        "rping -s -a {server} -p {port} -V -S 3000 -C 5",
        "rping -c -a {server} -p {port} -V -S 3000 -C 5",
    ),
    perftest("ib_write_bw", "-s 5000 -n 5"),
    perftest("ib_read_bw", "-s 5000 -n 5"),
    perftest("ib_send_bw", "-s 5000 -n 5"),
    Pair("ucmatose", "ucmatose -b {server} -p {port} -c 3", "ucmatose -p {port} -c 3 -s {server}"),
]
