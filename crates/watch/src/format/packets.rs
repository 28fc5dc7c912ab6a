//! Packets in each format.

use super::{Place, microseconds, seconds};
use crate::requests::Links;
use crate::setting::Format;
use crate::writer::{Style, Writer};
use adverb_core::watch::{Answers, Flow, Packet, RequestStart};
use adverb_core::wire::{Direction, Kind};
use std::io::Write as _;

/// A packet, or the beginning of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TransportEvent {
    Packet(Packet),
    RequestStart(RequestStart),
}

/// Writes what a transport has shown, in whole lines.
pub(crate) fn seen(
    format: Format,
    place: Place,
    (time, thread): (u64, u32),
    seen: &TransportEvent,
    links: Links,
) -> Vec<u8> {
    let since = time.saturating_sub(place.base);
    match format {
        Format::Text | Format::Ring => {
            let mut writer = Writer::new(Style::Text);
            seconds(&mut writer, since);
            let _ = write!(writer.bytes, " {thread} ");
            match seen {
                TransportEvent::Packet(packet) => {
                    let arrow = if packet.direction == Direction::Out { "->" } else { "<-" };
                    let _ = write!(writer.bytes, "{arrow} {} ", packet.peer);
                }
                TransportEvent::RequestStart(_) => writer.raw(b"begins "),
            }
            parts(&mut writer, seen, links);
            writer.raw(b"\n");
            writer.bytes
        }
        Format::Json => {
            let mut writer = Writer::new(Style::Json);
            writer.open(b'{');
            seconds(writer.key("time"), since);
            writer.key("pid").unsigned(place.pid.into());
            writer.key("tid").unsigned(thread.into());
            parts(&mut writer, seen, links);
            writer.close(b'}');
            writer.raw(b"\n");
            writer.bytes
        }
        Format::Chrome => chrome_of_seen(place, (since, thread), seen, links),
    }
}

/// The parts of a packet, or of a beginning.
fn parts(writer: &mut Writer, seen: &TransportEvent, Links { request, arrival }: Links) {
    match seen {
        TransportEvent::Packet(packet) => {
            writer.key("packet").word(if packet.direction == Direction::Out { "out" } else { "in" });
            writer.key("kind").word(packet.kind.name());
            writer.key("part").word(match (packet.begins, packet.ends) {
                (true, true) => "only",
                (true, false) => "first",
                (false, true) => "last",
                (false, false) => "middle",
            });
            if packet.takes_receive {
                writer.key("takes_receive").unsigned(1);
            }
            if let Some(number) = arrival {
                writer.key("arrival").unsigned(number);
            }
            writer.key("length").unsigned(packet.length.into());
            if let Some(source) = packet.source {
                writer.key("from").hex(source.into());
            }
            if let (Flow::Stream(_) | Flow::Beside(_), Some(pair)) = (packet.flow, packet.queue_pair) {
                writer.key("qp").hex(pair.into());
            }
            numbered(writer, packet.flow, packet.number);
            match packet.answers {
                Answers::Nothing => {}
                Answers::UpTo(number) => writer.key("acknowledged").unsigned(number.into()),
                Answers::Place(place) => writer.key("answers").unsigned(place),
            }
            writer.key("peer").word(&packet.peer.to_string());
            writer.key("by").word(if packet.is_within { "memory" } else { "network" });
        }
        TransportEvent::RequestStart(begun) => {
            writer.key("begun").hex(begun.queue_pair.into());
            writer.key("place").unsigned(begun.place);
            numbered(writer, begun.flow, begun.number);
            if let Some(request) = request {
                writer.key("request").unsigned(request);
            }
        }
    }
}

/// Which packets it is one of, and its number there.
fn numbered(writer: &mut Writer, flow: Flow, number: u64) {
    let name = match flow {
        Flow::Pair(destination) => {
            writer.key("to").hex(destination.into());
            "psn"
        }
        Flow::Stream(stream) => {
            writer.key("stream").word(&stream.to_string());
            "offset"
        }
        Flow::Beside(stream) => {
            writer.key("stream").word(&stream.to_string());
            "message"
        }
    };
    writer.key(name).unsigned(number);
}

/// The name by which both ends know a packet.
fn name(flow: Flow, number: u64) -> String {
    match flow {
        Flow::Pair(destination) => format!("p{destination:x}-{number:x}"),
        Flow::Stream(stream) => format!("p{stream}-{number:x}"),
        Flow::Beside(stream) => format!("p{stream}-m{number:x}"),
    }
}

/// A packet is a slice, which has no length. Arrows lead to it from the post of its request, from a packet
/// that ends a message to the same packet where it arrives (both processes know its [`name`]), and from there
/// to the poll of the receive.
fn chrome_of_seen(place: Place, (since, thread): (u64, u32), seen: &TransportEvent, links: Links) -> Vec<u8> {
    let TransportEvent::Packet(packet) = seen else { return Vec::new() };
    let is_sent = packet.direction == Direction::Out;
    let mut writer = Writer::new(Style::Json);
    let at = |writer: &mut Writer| {
        microseconds(writer.key("ts"), since);
        writer.key("pid").unsigned(place.pid.into());
        writer.key("tid").unsigned(thread.into());
    };
    writer.open(b'{');
    // Where a packet of a stream goes to, only the peer knows.
    let (arrow, pair) = match packet.flow {
        Flow::Pair(destination) => (if is_sent { "to" } else { "at" }, destination),
        _ => (if is_sent { "from" } else { "at" }, packet.queue_pair.unwrap_or(0)),
    };
    writer.key("name").word(&format!("{} {arrow} {pair:#x}", packet.kind.name()));
    writer.key("cat").word("packet");
    writer.key("ph").word("X");
    at(&mut writer);
    microseconds(writer.key("dur"), 0);
    writer.key("args").open(b'{');
    parts(&mut writer, seen, links);
    writer.close(b'}');
    writer.close(b'}');
    writer.raw(b",\n");
    let message = (packet.ends && packet.kind != Kind::Management).then(|| {
        let phase = if is_sent { "s" } else { "f" };
        (phase, "packet", name(packet.flow, packet.number))
    });
    let flows = [
        links.request.map(|number| ("t", "request", format!("{:#x}", u64::from(place.pid) << 42 | number))),
        message,
        links
            .arrival
            .map(|number| ("s", "arrival", super::arrival(place, packet.queue_pair.unwrap_or(0), number))),
    ];
    for (phase, category, id) in flows.into_iter().flatten() {
        writer.open(b'{');
        writer.key("name").word(category);
        writer.key("cat").word(category);
        writer.key("ph").word(phase);
        if phase == "f" {
            writer.key("bp").word("e");
        }
        writer.key("id").word(&id);
        at(&mut writer);
        writer.close(b'}');
        writer.raw(b",\n");
    }
    writer.bytes
}
