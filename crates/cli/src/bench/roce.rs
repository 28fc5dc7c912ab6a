//! RoCE from one network namespace to another, beside raw UDP.

use super::latency::RoundTrip;
use super::result::{Layout, Section, Target};
use super::session::{Place, Session, TargetIs};
use super::stream::{Blocks, Cable, OneSided};
use super::target::Watching;
use super::yardstick::udp::{DATAGRAM, Service};
use super::{ALLOCATIONS, BLOCK, Effort, SIZES, network};
use std::net::Ipv4Addr;

const UDP_ONE_WAY: &str = "raw UDP with acknowledgements, one way";
const UDP_THERE_AND_BACK: &str = "raw UDP with acknowledgements, there and back";
const UDP_THREAD: &str = "the same through a service thread";
const UDP_STREAM: &str = "raw UDP stream";
const SINGLE_SENDER: &str = "writes of 1 process, small socket buffers";
const LOSSLESS: &str = "write stream, datagrams one by one";
/// Processes that send at once.
const SENDERS: usize = 64;

/// `network`: why there is no cable, if there is none.
pub(super) fn run(device: &str, network: Result<(), String>, effort: &Effort) -> Result<Section, String> {
    let cable = network.is_ok();
    let (place, own) = match cable {
        true => (Place::BehindCable, network::HERE),
        false => (Place::Here, Ipv4Addr::LOCALHOST.into()),
    };
    let mut session = Session::start(device, place, false)?;
    session.start_udp(own)?;
    let setting = if cable { "between two network namespaces, MTU 9000" } else { "over loopback" };
    let mut section = Section::new(device, setting, Layout::List);
    if let Err(why) = network {
        section.note(format!("No two network namespaces, and so nothing about loss: {why}"));
    }
    let mut lossy = cable;
    effort.rounds(device, || {
        session.keep_apart(true)?;
        latencies(&mut session, &mut section, effort.messages)?;
        streams(&mut session, &mut section, effort.bytes)?;
        if lossy && let Err(why) = loss(&mut session, &mut section, effort.bytes) {
            section.note(format!("Nothing about loss: {why}"));
            lossy = false;
        }
        session.keep_apart(false)?;
        if cable {
            session.treat(Cable::AsItIs)?;
        }
        crowd(device, &mut session, &mut section, effort.bytes)
    })?;
    section.count("allocations per message", 8, session.least_allocations()?, Some(ALLOCATIONS));
    let (rate, memory) = session.connections(effort.connections)?;
    section.per_second("connections per second", rate, Some(Target::AtLeast(1000.0)));
    section.bytes("memory per connected queue pair, 16 + 16 requests", memory, Some(Target::AtMost(8192.0)));
    section.note(format!("{} connections were made.", effort.connections));
    Ok(section)
}

fn latencies(session: &mut Session, section: &mut Section, rounds: usize) -> Result<(), String> {
    use TargetIs::{Polling, Sleeping};
    let mut add = |name, times, yardstick, target| section.times(name, times, yardstick, target);
    let text = |error: hdrhistogram::AdditionError| error.to_string();
    // Half before and half after what is compared with it, so that drift meets both.
    let (mut one_way, mut round_trip) = session.udp_latency(Service::Polling, rounds / 2)?;
    let send = session.send_latency(8, rounds)?;
    let write = session.write_latency(Watching::Both, 8, rounds)?;
    let (more, longer) = session.udp_latency(Service::Polling, rounds / 2)?;
    one_way.add(more).and_then(|()| round_trip.add(longer)).map_err(text)?;
    let (mut threaded, _) = session.udp_latency(Service::Thread, rounds / 2)?;
    let watched = session.write_latency(Watching::Memory, 8, rounds)?;
    threaded.add(session.udp_latency(Service::Thread, rounds / 2)?.0).map_err(text)?;
    add(UDP_ONE_WAY, one_way, None, None);
    add("send", send, Some(UDP_ONE_WAY), Some(Target::AtMost(1.1)));
    add("write", write, Some(UDP_ONE_WAY), None);
    add(UDP_THREAD, threaded, None, None);
    add("write to one who spins on memory", watched, Some(UDP_THREAD), Some(Target::AtMost(1.3)));
    add(UDP_THERE_AND_BACK, round_trip, None, None);
    for (name, operation) in [
        ("read", RoundTrip::Read),
        ("fetch and add", RoundTrip::FetchAdd),
        ("compare and swap", RoundTrip::CompareSwap),
    ] {
        add(name, session.round_trip(operation, Polling, 8, rounds)?, Some(UDP_THERE_AND_BACK), None);
    }
    add(
        "read, target sleeping",
        session.round_trip(RoundTrip::Read, Sleeping, 8, rounds)?,
        Some("read"),
        None,
    );
    Ok(())
}

fn streams(session: &mut Session, section: &mut Section, bytes: usize) -> Result<(), String> {
    let before = session.udp_stream(DATAGRAM, bytes / 2)?;
    let yardstick = Some((UDP_STREAM, DATAGRAM));
    let mut found = Vec::new();
    for size in SIZES {
        let count = (bytes / size.max(16 << 10)).next_multiple_of(64);
        let blocks = Blocks::new(size, count);
        if size <= crate::pair::link::MESSAGE {
            found.push(("send stream", size, session.send_stream(blocks)?));
        }
        for (name, operation) in [("write stream", OneSided::Write), ("read stream", OneSided::Read)] {
            found.push((name, size, session.one_sided_stream(operation, TargetIs::Polling, blocks)?));
        }
        let sleeping = session.one_sided_stream(OneSided::Write, TargetIs::Sleeping, blocks)?;
        found.push(("write stream, target sleeping", size, sleeping));
    }
    let after = session.udp_stream(DATAGRAM, bytes / 2)?;
    section.rate(UDP_STREAM, DATAGRAM, 2.0 / (1.0 / before + 1.0 / after), None, None);
    for (name, size, rate) in found {
        let target = match (name, size) {
            ("send stream", 4096) => Some(Target::AtLeast(0.8)),
            ("write stream" | "read stream", BLOCK..) => Some(Target::AtLeast(0.9)),
            _ => None,
        };
        section.rate(name, size, rate, yardstick, target);
    }
    Ok(())
}

fn loss(session: &mut Session, section: &mut Section, bytes: usize) -> Result<(), String> {
    let (size, count) = (1 << 20, (bytes >> 20).max(8));
    session.treat(Cable::Single)?;
    let lossless = session.checked_writes(size, count, 1)?;
    session.treat(Cable::Lossy)?;
    let lossy = session.checked_writes(size, count, 2)?;
    section.rate(LOSSLESS, size, lossless, None, None);
    let half = Some(Target::AtLeast(0.5));
    section.rate("the same, 1 % lost both ways", size, lossy, Some((LOSSLESS, size)), half);
    Ok(())
}

fn crowd(device: &str, session: &mut Session, section: &mut Section, bytes: usize) -> Result<(), String> {
    const SIZE: usize = crate::pair::link::MESSAGE;
    let count = (bytes / SIZE).next_multiple_of(SENDERS);
    let one = session.crowd(device, 1, count)?;
    let many = session.crowd(device, SENDERS, count)?;
    section.rate(SINGLE_SENDER, SIZE, one, None, None);
    let half = Some(Target::AtLeast(0.5));
    section.rate("writes of 64 processes together", SIZE, many, Some((SINGLE_SENDER, SIZE)), half);
    Ok(())
}
