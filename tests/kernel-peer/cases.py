"""What runs between adverb and the kernel's siw, in both directions, over IPv4 and IPv6, with CRC and without."""

from harness.pair import Pair, perftest_cm

KIB = 1 << 10

PAIRS = [
    Pair(
        "rping",
        "rping -s -a {server} -p {port} -V -S 60000 -C 10",
        "rping -c -a {server} -p {port} -V -S 60000 -C 10",
        bytes=2 * 10 * 60_000,
    ),
    Pair("ucmatose", "ucmatose -b {server} -p {port} -c 10 -C 10", "ucmatose -p {port} -c 10 -C 10 -s {server}", connections=10),
    perftest_cm("ib_write_bw", "-n 20", volume=20 * 64 * KIB),
    perftest_cm("ib_read_bw", "-n 20", volume=20 * 64 * KIB),
    perftest_cm("ib_send_bw", "-n 20", volume=20 * 64 * KIB),
    perftest_cm("ib_write_bw", "-b -q 2 -s 5000 -n 20", connections=3, volume=4 * 20 * 5000),
    perftest_cm("ib_write_lat", "-s 8 -n 50"),
    perftest_cm("ib_send_lat", "-s 4000 -n 50", volume=2 * 50 * 4000),
]

# Their server sends before it has received anything. A responder may do so only where the initiator asked for MPA's
# peer-to-peer mode (RFC 5044 section 7.1.2, RFC 6581 section 9): siw as the client must be told to ask for it.
SERVER_SPEAKS_FIRST = {"ucmatose", "ib_write_lat_R_s_8_n_50"}
