"""What the wire shows of RoCEv2, read without a line of the code under test (InfiniBand volume 1, annexes 16 and 17).

A datagram is RoCEv2 if its ICRC says so, whatever its ports: of two ends that know each other, either may use a port of
its own instead of 4791.
"""

import collections
import struct
import subprocess
import zlib

from .report import Failed

PORT = 4791
BTH_LEN, ICRC_LEN = 12, 4
MANAGEMENT_QP = 1
MAD_LEN = 256
PATH_MTUS = (256, 512, 1024, 2048, 4096)
# Bytes of a datagram that suffice for its headers, and for the whole of an acknowledgement.
HEADERS = 128

CONDITION = "udp or (ip6 and ip6[6] = 17)"

# Names of opcodes without the service, whose number is in the upper three bits: RC 0, UC 1, UD 3, XRC 5.
NAMES = (
    "Send First, Send Middle, Send Last, Send Last with Immediate, Send Only, Send Only with Immediate, Write First,"
    " Write Middle, Write Last, Write Last with Immediate, Write Only, Write Only with Immediate, Read Request,"
    " Read Response First, Read Response Middle, Read Response Last, Read Response Only, Acknowledge,"
    " Atomic Acknowledge, Compare and Swap, Fetch and Add, 15, Send Last with Invalidate, Send Only with Invalidate"
).split(", ")
SERVICES = {0: "RC", 1: "UC", 3: "UD", 4: "CNP", 5: "XRC"}

RETH, AETH, IMMEDIATE, ATOMIC, ATOMIC_ACK, INVALIDATE, DETH, XRCETH = 16, 4, 4, 28, 8, 4, 8, 4
EXTENSIONS = {
    3: IMMEDIATE, 5: IMMEDIATE, 6: RETH, 9: IMMEDIATE, 10: RETH, 11: RETH + IMMEDIATE, 12: RETH, 13: AETH, 15: AETH,
    16: AETH, 17: AETH, 18: AETH + ATOMIC_ACK, 19: ATOMIC, 20: ATOMIC, 22: INVALIDATE, 23: INVALIDATE,
}  # fmt: skip
VALID = {0: set(range(21)) | {22, 23}, 1: set(range(12)), 3: {4, 5}, 4: {1}, 5: set(range(21)) | {22, 23}}
RESPONSES = range(13, 19)


def header_len(opcode):
    """Length of all headers from BTH to the payload."""
    part, first = opcode & 31, {3: DETH, 5: XRCETH}.get(opcode >> 5, 0)
    return BTH_LEN + EXTENSIONS.get(part, 0) + (0 if opcode >> 5 == 5 and part in RESPONSES else first)


def service(opcode):
    return SERVICES.get(opcode >> 5, str(opcode >> 5))


def name(opcode):
    part = opcode & 31
    return f"{service(opcode)} {NAMES[part] if part < len(NAMES) else part}"


# RC Read Request, Acknowledge, Atomic Acknowledge, Compare and Swap, Fetch and Add.
WITHOUT_PAYLOAD = (12, 17, 18, 19, 20)


class Packet:
    """One RoCEv2 packet; `payload_len` without padding."""

    __slots__ = ("source", "destination", "ports", "bth", "payload_len")

    def __init__(self, source, destination, ports, bth, length):
        self.source, self.destination, self.ports, self.bth = source, destination, ports, bth
        self.payload_len = max(0, length - header_len(bth[0]) - (bth[1] >> 4 & 3) - ICRC_LEN)

    @property
    def opcode(self):
        return self.bth[0]

    @property
    def queue_pair(self):
        return int.from_bytes(self.bth[5:8], "big")

    @property
    def psn(self):
        return int.from_bytes(self.bth[9:12], "big")


class Datagram:
    """One UDP datagram of a capture; several segments of equal size if the interface takes them so (GSO)."""

    __slots__ = ("ip", "ports", "length", "payload")

    def __init__(self, ip, ports, length, payload):
        self.ip, self.ports, self.length, self.payload = ip, ports, length, payload

    @property
    def whole(self):
        return len(self.payload) == self.length

    def addresses(self):
        return (self.ip[12:16], self.ip[16:20]) if self.ip[0] >> 4 == 4 else (self.ip[8:24], self.ip[24:40])


def datagrams(path):
    """The UDP datagrams of a capture, as tcpdump writes it."""
    with open(path, "rb") as file:
        data = file.read()
    link = struct.unpack_from("<I", data, 20)[0] if len(data) >= 24 else 1
    skip = {1: 14, 113: 16, 276: 20}[link]  # Ethernet, and what "any" gives
    at = 24
    while at + 16 <= len(data):
        captured = struct.unpack_from("<I", data, at + 8)[0]
        if found := parse(data[at + 16 + skip : at + 16 + captured]):
            yield found
        at += 16 + captured


def parse(packet):
    """The UDP datagram of an IP packet, if it is one."""
    if len(packet) < 28:
        return None
    version = packet[0] >> 4
    if version == 4 and packet[9] == 17 and not packet[6] & 0x3F and not packet[7]:
        header = (packet[0] & 15) * 4
    elif version == 6 and packet[6] == 17 and len(packet) >= 48:
        header = 40
    else:
        return None
    source, destination, length = struct.unpack_from("!HHH", packet, header)
    length -= 8
    return Datagram(packet[:header], (source, destination), length, packet[header + 8 : header + 8 + length])


def icrc(ip, ports, transport, identification=None):
    """The ICRC of a packet: `transport` is everything from BTH to the padding."""
    length = len(transport) + ICRC_LEN + 8
    masked = bytearray(ip)
    if ip[0] >> 4 == 4:
        masked[1] = masked[8] = 0xFF
        masked[10:12] = b"\xff\xff"
        struct.pack_into("!H", masked, 2, len(ip) + length)
        if identification is not None:
            struct.pack_into("!H", masked, 4, identification & 0xFFFF)
    else:
        masked[0] |= 0x0F
        masked[1] = masked[2] = masked[3] = masked[7] = 0xFF
        struct.pack_into("!H", masked, 4, length)
    udp = struct.pack("!HHH", *ports, length) + b"\xff\xff"
    bth = transport[:4] + b"\xff" + transport[5:BTH_LEN]
    return zlib.crc32(transport[BTH_LEN:], zlib.crc32(b"\xff" * 8 + bytes(masked) + udp + bth))


def verifies(ip, ports, packet, identification=None):
    return len(packet) >= BTH_LEN + ICRC_LEN and icrc(ip, ports, packet[:-4], identification) == struct.unpack("<I", packet[-4:])[0]


def plausible(bth):
    """Whether this may be a BTH: a known opcode, version 0, the default partition."""
    return len(bth) == BTH_LEN and (bth[0] & 31) in VALID.get(bth[0] >> 5, ()) and not bth[1] & 15 and bth[2] | 0x80 == 0xFF and bth[3] == 0xFF


def _segment_len(datagram):
    """The size of the segments of a datagram that is several: the ICRC of the first one tells."""
    first = datagram.payload[0]
    likely = [header_len(first) + mtu + ICRC_LEN for mtu in PATH_MTUS]
    for length in likely + list(range(16, min(datagram.length, 4200), 4)):
        if length < datagram.length and verifies(datagram.ip, datagram.ports, datagram.payload[:length]):
            return length
    return None


def split(datagram):
    """The RoCEv2 packets in a datagram of which everything was captured; None if it is something else."""
    if not plausible(datagram.payload[:BTH_LEN]):
        return None
    if verifies(datagram.ip, datagram.ports, datagram.payload):
        return [datagram.payload]
    size = _segment_len(datagram)
    if size is None:
        return None
    pieces = [datagram.payload[at : at + size] for at in range(0, datagram.length, size)]
    start = struct.unpack_from("!H", datagram.ip, 4)[0]
    for index, piece in enumerate(pieces):
        if not plausible(piece[:BTH_LEN]) or not verifies(datagram.ip, datagram.ports, piece, start + index):
            return None
    return pieces


def packets(path):
    """Every RoCEv2 packet of a full capture. Raises Failed at a datagram to or from port 4791 that is none."""
    for datagram in datagrams(path):
        if 9 in datagram.ports:
            continue  # the capture's own marks
        pieces = split(datagram) if datagram.whole else None
        if pieces is None:
            if PORT in datagram.ports:
                raise Failed(f"a datagram of {datagram.length} bytes with a wrong ICRC: {datagram.payload[:32].hex()}")
            continue
        for piece in pieces:
            yield Packet(*datagram.addresses(), datagram.ports, piece[:BTH_LEN], len(piece))


class Traffic:
    """What went to each queue pair: its services, and bytes of whole datagrams without the headers of the first."""

    def __init__(self):
        self.bytes = collections.Counter()  # by (address, queue pair)
        self.services = collections.defaultdict(set)
        self.mads = 0
        self.small = collections.Counter()  # packets that were captured whole, by opcode

    def total(self, wanted):
        return sum(count for key, count in self.bytes.items() if wanted in self.services[key])

    def queue_pairs(self, wanted):
        return sum(1 for services in self.services.values() if wanted in services)


def traffic(path):
    """What a capture of headers (HEADERS bytes of each datagram) shows. A small datagram must have the right ICRC."""
    result = Traffic()
    for datagram in datagrams(path):
        bth = datagram.payload[:BTH_LEN]
        if 9 in datagram.ports or not plausible(bth):
            continue
        # Header and length of each packet in it, as far as they were captured.
        found = [(bth, datagram.length)]
        if datagram.whole:
            pieces = split(datagram)
            if pieces is None:
                if PORT in datagram.ports:
                    raise Failed(f"a datagram with a wrong ICRC: {datagram.payload.hex()}")
                continue
            result.small.update(piece[0] for piece in pieces)
            found = [(piece[:BTH_LEN], len(piece)) for piece in pieces]
        elif bth[0] in WITHOUT_PAYLOAD:
            # Such packets of several queue pairs may share a datagram.
            size = header_len(bth[0]) + ICRC_LEN
            starts = range(0, len(datagram.payload) - BTH_LEN, size)
            headers = (datagram.payload[at : at + BTH_LEN] for at in starts)
            found = [(header, size) for header in headers if plausible(header)]
        for bth, length in found:
            packet = Packet(*datagram.addresses(), datagram.ports, bth, length)
            if packet.queue_pair == MANAGEMENT_QP:
                result.mads += 1
                continue
            key = packet.destination, packet.queue_pair
            result.bytes[key] += packet.payload_len
            result.services[key].add(service(packet.opcode))
    return result


def wireshark(path, ports):
    """Opcodes of the RoCEv2 packets that Wireshark's dissector sees on some UDP ports."""
    decode = [part for port in ports for part in ("-d", f"udp.port=={port},infiniband")]
    result = subprocess.run(
        ["tshark", "-n", "-r", path, *decode, "-Y", "infiniband.bth", "-T", "fields", "-e", "infiniband.bth.opcode"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if result.returncode != 0:
        raise Failed(f"tshark: {result.stderr}")
    return collections.Counter(int(value, 0) for value in result.stdout.split())


# Messages of connection management (volume 1, table 99).
MESSAGES = {0x10: "ConnectRequest", 0x13: "ConnectReply", 0x14: "ReadyToUse", 0x15: "DisconnectRequest", 0x16: "DisconnectReply"}


def messages(path):
    """The messages of connection management that Wireshark's dissector sees, in their order."""
    result = subprocess.run(
        ["tshark", "-n", "-r", path, "-Y", "infiniband.mad.mgmtclass == 7", "-T", "fields", "-e", "infiniband.mad.attributeid"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    if result.returncode != 0:
        raise Failed(f"tshark: {result.stderr}")
    return [MESSAGES.get(int(value, 0), value) for value in result.stdout.split()]


def repeated(packets):
    """How many packets of each opcode had been sent before."""
    seen, again = set(), collections.Counter()
    for packet in packets:
        key = packet.destination, packet.ports, packet.queue_pair, packet.opcode, packet.psn
        again[packet.opcode] += key in seen
        seen.add(key)
    return again


def without_datagrams(opcodes):
    return collections.Counter({opcode: count for opcode, count in opcodes.items() if service(opcode) != "UD"})


def named(opcodes):
    """A count by opcode in words."""
    return ", ".join(f"{count} {name(opcode)}" for opcode, count in sorted(opcodes.items())) or "nothing"
