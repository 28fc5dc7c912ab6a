"""Packets as the kernel saw them: tcpdump into a file, and TCP streams out of it."""

import os
import socket
import struct
import subprocess
import tempfile
import time

from .process import die_with_parent
from .report import Failed

FIN, SYN, RST = 1, 2, 4
LIMIT_S = 60
MARK = b"adverb test mark "


class Segment:
    """One TCP segment."""

    __slots__ = ("flow", "seq", "flags", "payload")

    def __init__(self, flow, seq, flags, payload):
        self.flow, self.seq, self.flags, self.payload = flow, seq, flags, payload


class Capture:
    """Records one interface while the `with` block runs; complete when the block has ended.

    `condition` is a filter of tcpdump's; of a packet, the first `longest` bytes are kept. `mark_to` is an address of this namespace or its neighbour that is reached over the interface: a datagram to it is
    seen in the capture at the start and at the end, so nothing in between is missing.
    """

    def __init__(self, interface, mark_to, condition="tcp", longest=70_000):
        self._folder = tempfile.TemporaryDirectory(prefix="adverb-capture-")
        self.path = os.path.join(self._folder.name, "capture.pcap")
        self._mark_to = mark_to
        self._marks = 0
        as_user = ["-Z", "root"] if os.geteuid() == 0 else []
        self._log = tempfile.TemporaryFile()
        self._tcpdump = subprocess.Popen(
            # The buffer has a place of the longest length for each packet.
            ["tcpdump", *as_user, "-n", "-U", "--immediate-mode", "-B", "131072", "-s", str(longest), "-i", interface]
            + ["-w", self.path, f"({condition}) or udp port 9"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            preexec_fn=die_with_parent,
        )

    def __enter__(self):
        self._mark()
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self._mark()
        finally:
            self._tcpdump.terminate()
            self._tcpdump.wait()
        if kind is None and b"\n0 packets dropped by kernel" not in self._words():
            raise Failed(f"the capture is not complete: {self._words().decode()}")

    def _words(self):
        self._log.seek(0)
        return self._log.read()

    def _mark(self):
        """Sends a datagram until it is in the file."""
        self._marks += 1
        mark = MARK + struct.pack("!I", self._marks)
        end = time.monotonic() + LIMIT_S
        family = socket.AF_INET6 if ":" in self._mark_to else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            while True:
                try:
                    sender.sendto(mark, (self._mark_to, 9))
                except ConnectionRefusedError:
                    pass  # the answer to the one before
                time.sleep(0.01)
                # Only the last megabyte: the file may be large and the mark is near its end.
                if os.path.exists(self.path):
                    with open(self.path, "rb") as file:
                        file.seek(max(0, os.path.getsize(self.path) - (1 << 20)))
                        if mark in file.read():
                            return
                if time.monotonic() > end or self._tcpdump.poll() is not None:
                    raise Failed(f"tcpdump does not record: {self._words().decode()}")

    def frames(self):
        """What was kept of each frame, in the order of the capture."""
        with open(self.path, "rb") as file:
            data = file.read()
        at = 24
        while at + 16 <= len(data):
            length = struct.unpack_from("<I", data, at + 8)[0]
            yield data[at + 16 : at + 16 + length]
            at += 16 + length

    def segments(self):
        """The TCP segments in the order of the capture."""
        return filter(None, map(parse, self.frames()))


def own_segments(path):
    """The TCP segments in a capture of adverb's own: blocks of pcapng with packets of IP."""
    with open(path, "rb") as file:
        data = file.read()
    at = 0
    while at < len(data):
        kind, length = struct.unpack_from("<II", data, at)
        if kind == 6:
            packet = data[at + 28 : at + 28 + struct.unpack_from("<I", data, at + 20)[0]]
            segment = parse(bytes(12) + (b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd") + packet)
            if segment:
                yield segment
        at += length


def parse(frame):
    """The TCP segment in an Ethernet frame, if there is one."""
    kind = struct.unpack_from("!H", frame, 12)[0]
    if kind == 0x0800:
        header, protocol = (frame[14] & 15) * 4, frame[23]
        total = struct.unpack_from("!H", frame, 16)[0] or len(frame) - 14
        source, destination = frame[26:30], frame[30:34]
    elif kind == 0x86DD:
        header, protocol = 40, frame[20]
        total = (struct.unpack_from("!H", frame, 18)[0] or len(frame) - 54) + 40
        source, destination = frame[22:38], frame[38:54]
    else:
        return None
    if protocol != 6:
        return None
    at = 14 + header
    ports = struct.unpack_from("!HH", frame, at)
    seq = struct.unpack_from("!I", frame, at + 4)[0]
    offset, flags = (frame[at + 12] >> 4) * 4, frame[at + 13]
    flow = (source, ports[0], destination, ports[1])
    return Segment(flow, seq, flags, frame[at + offset : 14 + total])


def streams(segments):
    """The bytes of each flow whose beginning was captured, without gaps or repetitions."""
    parts = {}
    for segment in segments:
        if segment.flags & SYN:
            parts[segment.flow] = (segment.seq + 1, [])
        elif segment.flow in parts and segment.payload:
            start, pieces = parts[segment.flow]
            pieces.append(((segment.seq - start) & 0xFFFFFFFF, segment.payload))
    result = {}
    for flow, (_, pieces) in parts.items():
        stream = bytearray()
        for offset, payload in sorted(pieces, key=lambda piece: piece[0]):
            if offset > len(stream):
                raise Failed(f"the capture has a gap of {offset - len(stream)} bytes in a TCP stream")
            stream += payload[len(stream) - offset :]  # nothing, for a repetition
        result[flow] = bytes(stream)
    return result
