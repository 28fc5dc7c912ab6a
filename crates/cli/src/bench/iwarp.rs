//! iWARP over the loopback interface, beside raw TCP.

use super::latency::RoundTrip;
use super::result::{Layout, Section, Target};
use super::session::{Place, Session, TargetIs};
use super::stream::{Blocks, OneSided};
use super::target::Watching;
use super::yardstick::memory;
use super::{ALLOCATIONS, BLOCK, Effort, SIZES};

const TCP_ONE_WAY: &str = "raw TCP, one way";
const TCP_THERE_AND_BACK: &str = "raw TCP, there and back";
const TCP_STREAM: &str = "raw TCP stream";

pub(super) fn run(device: &str, effort: &Effort) -> Result<Section, String> {
    let mut plain = Session::start(device, Place::Here, false)?;
    plain.start_tcp()?;
    let mut checked = Session::start(device, Place::Here, true)?;
    for session in [&mut plain, &mut checked] {
        session.keep_apart(true)?;
    }
    let mut section = Section::new(device, "over loopback", Layout::List);
    effort.rounds(device, || {
        latencies(&mut plain, &mut checked, &mut section, effort.messages)?;
        streams(&mut plain, &mut checked, &mut section, effort.bytes)
    })?;
    plain.keep_apart(false)?;
    section.count("allocations per message", 8, plain.least_allocations()?, Some(ALLOCATIONS));
    let memory = plain.idle_memory(64)?;
    section.bytes("memory per idle connection", memory, Some(Target::AtMost(16384.0)));
    Ok(section)
}

fn latencies(
    plain: &mut Session,
    checked: &mut Session,
    section: &mut Section,
    rounds: usize,
) -> Result<(), String> {
    use RoundTrip::{CompareSwap, FetchAdd, Read, WriteThenRead};
    use TargetIs::{Polling, Sleeping};
    let mut add = |name, times, yardstick, target| section.times(name, times, yardstick, target);
    // Half before and half after what is compared with it, so that drift meets both.
    let (mut one_way, mut round_trip) = plain.tcp_latency(8, rounds / 2)?;
    let send = plain.send_latency(8, rounds)?;
    let write = plain.write_latency(Watching::Both, 8, rounds)?;
    let (more, longer) = plain.tcp_latency(8, rounds / 2)?;
    one_way.add(more).and_then(|()| round_trip.add(longer)).map_err(|error| error.to_string())?;
    add(TCP_ONE_WAY, one_way, None, None);
    let tcp = Some(TCP_ONE_WAY);
    add("send", send, tcp, Some(Target::AtMost(1.1)));
    add("send, CRC", checked.send_latency(8, rounds)?, tcp, None);
    add("write", write, tcp, None);
    add(TCP_THERE_AND_BACK, round_trip, None, None);
    let tcp = Some(TCP_THERE_AND_BACK);
    let asleep = Some(Target::AtMost(3.0));
    add("read", plain.round_trip(Read, Polling, 8, rounds)?, tcp, None);
    add("read, target sleeping", plain.round_trip(Read, Sleeping, 8, rounds)?, Some("read"), asleep);
    const WRITE_READ: &str = "write, then read it";
    add(WRITE_READ, plain.round_trip(WriteThenRead, Polling, 8, rounds)?, tcp, None);
    let times = plain.round_trip(WriteThenRead, Sleeping, 8, rounds)?;
    add("write, then read it, target sleeping", times, Some(WRITE_READ), asleep);
    if plain.offers(adverb::Opcode::FetchAdd) {
        add("fetch and add", plain.round_trip(FetchAdd, Polling, 8, rounds)?, tcp, None);
        add("compare and swap", plain.round_trip(CompareSwap, Polling, 8, rounds)?, tcp, None);
    }
    Ok(())
}

fn streams(
    plain: &mut Session,
    checked: &mut Session,
    section: &mut Section,
    bytes: usize,
) -> Result<(), String> {
    use OneSided::{Read, Write};
    use TargetIs::{Polling, Sleeping};
    for size in SIZES {
        // Small blocks are dear: fewer of them. A multiple of the window of messages in any case.
        let count = (bytes / size.max(16 << 10)).next_multiple_of(64);
        let blocks = Blocks::new(size, count);
        let mut add = |name, value, yardstick: Option<&'static str>, target: Option<f64>| {
            let judged = if name == "send stream" { SIZES[0] } else { BLOCK };
            let target = target.filter(|_| size == judged).map(Target::AtLeast);
            section.rate(name, size, value, yardstick.map(|name| (name, size)), target);
        };
        let tcp = Some(TCP_STREAM);
        add("memory copy", memory::copy(blocks), None, None);
        // The yardstick before and after what is compared with it.
        let half = Blocks { count: count / 2, ..blocks };
        let before = plain.tcp_stream(half)?;
        let send = if size <= BLOCK { Some(plain.send_stream(blocks)?) } else { None };
        let write = plain.one_sided_stream(Write, Polling, blocks)?;
        let after = plain.tcp_stream(half)?;
        add(TCP_STREAM, 2.0 / (1.0 / before + 1.0 / after), None, None);
        if let Some(send) = send {
            add("send stream", send, tcp, Some(1.5));
        }
        add("write stream", write, tcp, Some(0.8));
        add("read stream", plain.one_sided_stream(Read, Polling, blocks)?, tcp, Some(0.8));
        add("write stream, CRC", checked.one_sided_stream(Write, Polling, blocks)?, tcp, Some(0.6));
        add("read stream, CRC", checked.one_sided_stream(Read, Polling, blocks)?, tcp, Some(0.6));
        let sleeping = plain.one_sided_stream(Write, Sleeping, blocks)?;
        add("write stream, target sleeping", sleeping, Some("write stream"), Some(0.8));
        let sleeping = plain.one_sided_stream(Read, Sleeping, blocks)?;
        add("read stream, target sleeping", sleeping, Some("read stream"), Some(0.8));
    }
    Ok(())
}
