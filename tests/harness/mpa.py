"""What the wire shows of iWARP, read without a line of the code under test (RFC 5044, 5041, 5040, 7306)."""

import collections
import struct
import subprocess

from . import capture
from .report import Failed

REQUEST, REPLY = b"MPA ID Req Frame", b"MPA ID Rep Frame"
START_UP_LEN = 20
MARKERS, CRC, REJECT = 0x80, 0x40, 0x20
OPCODES = {
    0: "Write",
    1: "Read Request",
    2: "Read Response",
    3: "Send",
    4: "Send with Invalidate",
    5: "Send with Solicited Event",
    6: "Send with Solicited Event and Invalidate",
    7: "Terminate",
    8: "Immediate",
    9: "Immediate with Solicited Event",
    10: "Atomic Request",
    11: "Atomic Response",
}

# Segments that begin an MPA connection, and those that end it: their sequence numbers tell how much went between.
START_AND_END = (
    "(ip and tcp[tcpflags] & (tcp-fin | tcp-rst) != 0) or (ip and tcp[(tcp[12] & 0xf0) >> 2 : 4] = 0x4d504120)"
    " or (ip6 and ip6[6] = 6 and ip6[53] & 5 != 0)"
    " or (ip6 and ip6[6] = 6 and ip6[40 + ((ip6[52] & 0xf0) >> 2) : 4] = 0x4d504120)"
)


class Connection:
    """An MPA connection: whether it was accepted, with CRC, and the bytes of its two directions."""

    def __init__(self):
        self.accepted = self.crc = False
        self.bytes = 0


def connections(segments):
    """The MPA connections, from a capture with the filter START_AND_END or a wider one."""
    found, starts = {}, {}
    for segment in segments:
        back = segment.flow[2:] + segment.flow[:2]
        if segment.payload.startswith(REQUEST):
            found[segment.flow] = found[back] = Connection()
            starts[segment.flow] = segment.seq
        elif segment.payload.startswith(REPLY) and segment.flow in found:
            flags = segment.payload[16]
            found[back].accepted = not flags & REJECT
            found[back].crc = bool(flags & CRC)
            starts[segment.flow] = segment.seq
        elif segment.flags & (capture.FIN | capture.RST) and segment.flow in starts:
            # A reset may carry the sequence number that the other side waits for; a sequence number of 0 says nothing.
            length = (segment.seq + len(segment.payload) - starts.pop(segment.flow)) & 0xFFFFFFFF
            found[segment.flow].bytes += length
    return list({id(connection): connection for connection in found.values()}.values())


class Direction:
    """The frames of one direction of a connection: their operations, and where each begins behind the start-up."""

    def __init__(self, crc):
        self.crc = crc
        self.flow = None
        self.opcodes = collections.Counter()
        self.frames = []


def frames(segments):
    """Takes every MPA stream apart; a Direction for each. Raises Failed at the first byte that is not in its place."""
    streams = capture.streams(segments)
    result = []
    for flow, stream in streams.items():
        back = streams.get(flow[2:] + flow[:2], b"")
        for near, far, mine, theirs in [(REQUEST, REPLY, stream, back), (REPLY, REQUEST, stream, back)]:
            if mine.startswith(near) and theirs.startswith(far):
                result.append(_direction(mine, bool((mine[16] | theirs[16]) & CRC)))
                result[-1].flow = flow
    return result


def _direction(stream, crc):
    if stream[16] & MARKERS:
        raise Failed("markers were not expected here")
    at = start = START_UP_LEN + struct.unpack_from("!H", stream, 18)[0]
    direction = Direction(crc)
    while at < len(stream):
        if at + 4 > len(stream):
            raise Failed(f"the stream ends within an FPDU at byte {at}")
        length = struct.unpack_from("!H", stream, at)[0]
        end = at + (2 + length + 3) // 4 * 4
        if end + 4 > len(stream):
            raise Failed(f"the stream ends within an FPDU of {length} bytes at byte {at}")
        trailer = struct.unpack_from("<I", stream, end)[0]
        if crc and trailer != crc32c(stream[at:end]):
            raise Failed(f"wrong CRC in the FPDU at byte {at}")
        direction.opcodes[stream[at + 3] & 0x0F] += 1
        direction.frames.append((at - start, stream[at + 3] & 0x0F))
        at = end + 4
    return direction


def _table():
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table


TABLE = _table()


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value = value >> 8 ^ TABLE[(value ^ byte) & 0xFF]
    return value ^ 0xFFFFFFFF


def wireshark(path):
    """What Wireshark's dissectors see in a capture: RDMAP opcodes; raises Failed when they find fault."""

    def ask(condition, *fields):
        # RPC over RDMA is guessed from payload: the guess is wrong here, and calls good frames malformed.
        result = subprocess.run(
            ["tshark", "-n", "-r", path, "--disable-protocol", "rpcordma", "-Y", condition, "-T", "fields"]
            + [part for field in fields for part in ("-e", field)],
            capture_output=True,
            text=True,
            timeout=120,
        )
        if result.returncode != 0:
            raise Failed(f"tshark: {result.stderr}")
        return result.stdout.splitlines()

    faults = ask("_ws.malformed or iwarp_mpa.bad_length", "frame.number", "_ws.expert.message")
    if faults:
        raise Failed("Wireshark finds fault with frames:\n" + "\n".join(faults[:10]))
    values = (value for line in ask("iwarp_rdma", "iwarp_rdma.opcode") for value in line.split(","))
    return collections.Counter(int(value, 0) for value in values)


def named(opcodes):
    """A count by opcode in words."""
    return ", ".join(f"{count} {OPCODES.get(opcode, opcode)}" for opcode, count in sorted(opcodes.items())) or "nothing"
