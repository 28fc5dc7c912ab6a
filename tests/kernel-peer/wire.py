"""What the cable between the guest and this machine shows while a pair runs."""

import socket

from harness import mpa, roce
from harness.capture import Capture
from harness.report import Failed
from peer import GUEST, OURS


def siw(pair, port, family, crc, work):
    """Does the work; the wire must show what the pair expects, all of it with CRC or without. `port`: the server's."""
    with Capture("br0", GUEST[family], f"tcp port {port} and ({mpa.START_AND_END})", 2048) as capture:
        work()
    carried = [connection for connection in mpa.connections(capture.segments()) if connection.accepted]
    volume = sum(connection.bytes for connection in carried)
    remark = _enough(pair, len(carried), volume, f"{len(carried)} MPA connections carried {volume / 1e6:.1f} MB")
    wrong = [connection for connection in carried if connection.crc != crc]
    if wrong:
        raise Failed(f"{len(wrong)} of {len(carried)} connections have CRC {'off' if crc else 'on'}")
    return remark


def rxe(pair, family, work):
    """Does the work; the wire must show what the pair expects, to both sides; of every packet, the ICRC is right."""
    with Capture("br0", GUEST[family], roce.CONDITION) as capture:
        work()
    traffic = roce.traffic(capture.path)
    count, volume = traffic.queue_pairs(pair.service), traffic.total(pair.service)
    remark = f"{volume / 1e6:.1f} MB to {count} {pair.service} queue pairs, {traffic.mads} management datagrams"
    heard = {address for address, _ in traffic.bytes}
    sides = {socket.inet_pton(socket.AF_INET if family == 4 else socket.AF_INET6, side[family]) for side in (OURS, GUEST)}
    if not sides <= heard:
        raise Failed(f"{remark}: {len(sides - heard)} of the two sides got nothing")
    return _enough(pair, count, volume, remark)


def _enough(pair, connections, volume, remark):
    if connections < pair.connections or volume < pair.bytes:
        raise Failed(f"{remark}: expected at least {pair.connections} and {pair.bytes / 1e6:.1f} MB")
    return remark
