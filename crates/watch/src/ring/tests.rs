use super::read::Rings;
use super::record::{self, CallRecord, PostEnd, PostHead, RecordKind, Words};
use super::*;
use crate::calls::{CALLS, find};
use crate::format::TransportEvent;
use crate::setting::Format;
use crate::writer::{Style, Writer};
use adverb_core::watch::{Answers, Flow, Packet, RequestStart, Stream};
use adverb_core::wire::{Direction, Kind as PacketKind};
use adverb_libibverbs::abi::*;
use adverb_libibverbs::seam::Answer;
use serde_json::Value;

/// A file that goes when the test ends.
struct Temporary(String);

impl Temporary {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("adverb-ring-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path.display().to_string())
    }

    fn lines(&self, format: Format) -> Vec<String> {
        let rings = Rings::read(std::fs::read(&self.0).expect("a file")).expect("a ring");
        let mut text = Vec::new();
        let Ok(()) = rings.write(format, |lines| -> Result<(), std::convert::Infallible> {
            text.extend_from_slice(lines);
            Ok(())
        });
        String::from_utf8(text).expect("text").lines().map(str::to_owned).collect()
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn answer(value: usize, errno: i32) -> Answer {
    Answer { value, errno }
}

/// A ring of so many chunks: a size in MiB would make the tests slow.
fn small(file: &Temporary, chunks: u64) -> Ring {
    let head = Head { chunks };
    let mut bytes = head.bytes().to_vec();
    bytes.resize(head.length(), 0);
    std::fs::write(&file.0, bytes).expect("a file");
    Ring::open(&file.0).expect("a ring")
}

fn call(name: &str, start: u64, tokens: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let index = find(name).expect("a call");
    record::write_call(&mut bytes, &CallRecord::of_tokens(index, (start, start + 10), answer(0, 0), tokens));
    bytes
}

/// A packet of each flow, with addresses of both families.
fn packets() -> Vec<Packet> {
    let packet = Packet {
        direction: Direction::In,
        peer: "::1".parse().expect("an address"),
        kind: PacketKind::Write,
        begins: true,
        ends: false,
        takes_receive: false,
        source: None,
        queue_pair: Some(5),
        flow: Flow::Pair(5),
        number: 6,
        answers: Answers::UpTo(4),
        length: 4096,
        is_within: true,
    };
    let address = |text: &str| text.parse().expect("an address");
    let v4 = Stream { from: address("127.0.0.1:40000"), to: address("10.0.0.1:18700") };
    let v6 = Stream { from: address("[fe80::1]:1"), to: address("[::1]:65535") };
    let sent =
        Packet { direction: Direction::Out, queue_pair: Some(0x11), answers: Answers::Nothing, ..packet };
    vec![
        packet,
        Packet { queue_pair: None, peer: v4.to.ip(), ..sent },
        Packet { flow: Flow::Stream(v4), number: 1 << 40, peer: v4.to.ip(), ..sent },
        Packet { flow: Flow::Beside(v6), kind: PacketKind::Terminate, peer: v6.to.ip(), ..sent },
        Packet { flow: Flow::Stream(v6), answers: Answers::Place(1 << 33), peer: v6.from.ip(), ..packet },
    ]
}

#[test]
fn a_record_of_a_call_is_read_in_each_format() {
    let file = Temporary::new("formats");
    let ring = small(&file, 4);
    let base = crate::format::base();
    let mut writer = Writer::new(Style::Tokens);
    writer.key("context").string(b"roce0");
    writer.key("access").flags(crate::names::ACCESS, 3);
    ring.append(7, &call("ibv_close_device", base + 5, &writer.bytes));
    assert_eq!(
        file.lines(Format::Text).last().map(String::as_str),
        Some(
            "0.000000005 7 ibv_close_device(context=\"roce0\", access=IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_WRITE) = 0 <0.000000010>"
        )
    );
    let json: Value = serde_json::from_str(file.lines(Format::Json).last().expect("a line")).expect("JSON");
    assert_eq!((&json["call"], &json["arguments"]["context"]), (&"ibv_close_device".into(), &"roce0".into()));
    assert_eq!(json["pid"], std::process::id());
    assert!(file.lines(Format::Json)[0].contains("\"since\""));
    release();
}

#[test]
fn posts_and_polls_are_matched_when_they_are_read() {
    let file = Temporary::new("posts");
    let ring = small(&file, 4);
    let base = crate::format::base();
    let mut bytes = Vec::new();
    let index = find("ibv_post_send").expect("a call");
    let mut words = Words::begin(&mut bytes, RecordKind::Sends, index);
    let head = PostHead { start: base + 1, queue: 0x11, address: 0, reports_all: false, place: 40 };
    record::begin_post(&mut words, &head);
    for wr_id in [5, 6] {
        let mut wr = ibv_send_wr::zeroed();
        (wr.wr_id, wr.opcode, wr.num_sge) = (wr_id, IBV_WR_SEND, 1);
        wr.send_flags = if wr_id == 6 { IBV_SEND_SIGNALED } else { 0 };
        let mut sge = ibv_sge { addr: 0x1000, length: 8, lkey: 0x22 };
        wr.sg_list = &raw mut sge;
        // SAFETY: a live request with its element.
        assert!(unsafe { record::write_send(&mut words, &wr) });
    }
    words.end();
    let end = PostEnd { end: base + 9, answer: answer(0, 0), taken: 2, fault: 0, bad: 0 };
    record::end_post(&mut bytes, 2, &end);
    ring.append(7, &bytes);
    let begun = TransportEvent::RequestStart(RequestStart {
        queue_pair: 0x11,
        place: 41,
        flow: Flow::Pair(0x33),
        number: 9,
    });
    record::write_seen(&mut bytes, base + 3, &begun);
    ring.append(7, &bytes);
    let mut wc = ibv_wc::zeroed();
    (wc.wr_id, wc.qp_num) = (6, 0x11);
    let poll = find("ibv_poll_cq").expect("a call");
    record::write_run(&mut bytes, poll, (base + 10, base + 19), (3, 16), 77, 0);
    ring.append(7, &bytes);
    record::write_completions(&mut bytes, poll, (base + 20, base + 30), (3, 16), &[wc]);
    ring.append(7, &bytes);
    let found: Vec<Value> =
        file.lines(Format::Json).iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let [_, post, begun, run, poll] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&post["requests"], &post["place"]), (&serde_json::json!([1, 2]), &40.into()));
    assert_eq!(post["arguments"]["wr"][1]["sg_list"][0]["length"], 8);
    assert_eq!((&begun["begun"], &begun["request"]), (&"0x11".into(), &2.into()));
    assert_eq!((&run["times"], &run["arguments"]["wc"]), (&77.into(), &serde_json::json!([])));
    assert_eq!((&poll["requests"], &poll["arguments"]["cq"]), (&serde_json::json!([2]), &3.into()));
    release();
}

#[test]
fn the_oldest_records_are_overwritten_by_whole_chunks() {
    let file = Temporary::new("wraps");
    let ring = small(&file, 4);
    let base = crate::format::base();
    const RECORDS: u64 = 20_000;
    for number in 0..RECORDS {
        ring.append(7, &call("ibv_fork_init", base + number, &[]));
    }
    let lines = file.lines(Format::Text);
    let last = format!("{}.{:09}", (RECORDS - 1) / 1_000_000_000, RECORDS - 1);
    assert!(lines.last().is_some_and(|line| line.starts_with(&last)), "{:?}", lines.last());
    let kept = lines.iter().filter(|line| line.contains("ibv_fork_init")).count();
    assert!((1000..RECORDS as usize).contains(&kept), "{kept}");
    release();
}

/// Page faults of the calling thread that needed no disk.
#[cfg(target_arch = "x86_64")]
fn faults() -> i64 {
    // SAFETY: all zeros are a value, which the call fills.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage), 0);
        usage.ru_minflt
    }
}

// Not in an emulator, which ignores the advice.
#[cfg(target_arch = "x86_64")]
#[test]
fn a_thread_that_has_filled_a_chunk_finds_the_pages_of_the_next_one_there() {
    let file = Temporary::new("pages");
    // Without bytes that have been written: those would be in memory before.
    let empty = File::create(&file.0).expect("a file");
    let head = Head { chunks: 4 };
    // SAFETY: an open file.
    let reserved = unsafe { libc::posix_fallocate(empty.as_raw_fd(), 0, head.length() as libc::off_t) };
    assert_eq!(reserved, 0);
    std::os::unix::fs::FileExt::write_all_at(&empty, &head.bytes(), 0).expect("a head");
    let ring = Ring::open(&file.0).expect("a ring");
    let record = call("ibv_fork_init", 1, &[]);
    let fill = |from: usize| (from..CHUNK).step_by(record.len()).for_each(|_| ring.append(7, &record));
    let before = faults();
    fill(2 * CHUNK_HEAD);
    let first = faults() - before;
    // This one takes the next chunk.
    ring.append(7, &record);
    ring.append(7, &record);
    let before = faults();
    fill(CHUNK_HEAD + 3 * record.len());
    let there = faults() - before;
    assert!(2 * there < first, "{there} faults, {first} in the first chunk");
    release();
}

#[test]
fn threads_have_chunks_of_their_own_and_give_them_back() {
    let file = Temporary::new("threads");
    let ring = small(&file, 4);
    let base = crate::format::base();
    // More threads than chunks, one after the other.
    for thread in 0..12 {
        std::thread::scope(|scope| {
            let appends = || ring.append(100 + thread, &call("ibv_fork_init", base + u64::from(thread), &[]));
            // Joined by name: the scope ends before the thread has given its chunk back.
            scope.spawn(appends).join().expect("a thread");
        });
    }
    let lines = file.lines(Format::Text);
    for thread in 8..12 {
        assert!(
            lines.iter().any(|line| line.contains(&format!(" {} ibv_fork_init", 100 + thread))),
            "{lines:?}"
        );
    }
}

#[test]
fn a_ring_without_a_free_chunk_counts_what_it_loses() {
    let file = Temporary::new("lost");
    let ring = small(&file, 2);
    let base = crate::format::base();
    let barrier = std::sync::Barrier::new(3);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (ring, barrier) = (&ring, &barrier);
            scope.spawn(move || {
                ring.append(100 + thread, &call("ibv_fork_init", base, &[]));
                barrier.wait();
            });
        }
    });
    let rings = Rings::read(std::fs::read(&file.0).expect("a file")).expect("a ring");
    assert_eq!(rings.missing(), 1);
}

#[test]
fn a_file_that_is_cut_ends_the_trace_and_no_more() {
    let file = Temporary::new("cut");
    let ring = small(&file, 4);
    ring.append(7, &call("ibv_fork_init", 1, &[]));
    File::options().write(true).open(&file.0).and_then(|file| file.set_len(0)).expect("it is cut");
    ring.append(7, &call("ibv_fork_init", 1, &[]));
    assert!(ring.ended.load(Ordering::Relaxed));
    ring.append(7, &call("ibv_fork_init", 1, &[]));
}

#[test]
fn a_file_that_is_no_ring_is_refused_and_wrong_bytes_are_no_records() {
    assert!(Rings::read(Vec::new()).is_err_and(|why| why.contains("no ring")));
    let file = Temporary::new("wrong");
    let ring = small(&file, 2);
    let mut bytes = Vec::new();
    for packet in packets() {
        record::write_seen(&mut bytes, 1, &TransportEvent::Packet(packet));
        let read = record::read(&bytes);
        assert!(
            matches!(read, Some(record::Record::TransportEvent(1, TransportEvent::Packet(read))) if read == packet),
            "{packet:?}"
        );
        let begun = RequestStart { queue_pair: 1, place: u64::MAX, flow: packet.flow, number: packet.number };
        record::write_seen(&mut bytes, 2, &TransportEvent::RequestStart(begun));
        assert!(
            matches!(record::read(&bytes), Some(record::Record::TransportEvent(2, TransportEvent::RequestStart(read))) if read == begun),
            "{begun:?}"
        );
        // A flow of a kind that there is not.
        bytes[1] = 9;
        assert!(record::read(&bytes).is_none());
        record::write_seen(&mut bytes, 1, &TransportEvent::Packet(packet));
    }
    ring.append(7, &bytes);
    ring.append(7, &call("ibv_fork_init", 1, &[]));
    let whole = std::fs::read(&file.0).expect("a file");
    assert!(Rings::read(whole[..whole.len() / 2].to_vec()).is_err_and(|why| why.contains("cut")));
    // Any word of the records may be anything.
    let first = layout::chunk_at(0);
    for at in (first..first + 400).step_by(8) {
        for value in [0, 1, u64::MAX, 0x0000_0028_0000_0002, 0x0000_0050_0000_0004, 0x0000_0100_0000_ff01] {
            let mut wrong = whole.clone();
            wrong[at..at + 8].copy_from_slice(&u64::to_ne_bytes(value));
            let rings = Rings::read(wrong).expect("its head is right");
            for format in [Format::Text, Format::Json, Format::Chrome] {
                let Ok(()) = rings.write(format, |_| -> Result<(), std::convert::Infallible> { Ok(()) });
            }
        }
    }
    release();
}

#[test]
fn a_post_or_a_poll_of_another_call_is_no_record() {
    let index = |name| find(name).expect("a call");
    let mut bytes = Vec::new();
    record::write_completions(&mut bytes, index("ibv_close_device"), (1, 2), (3, 4), &[]);
    assert!(record::read(&bytes).is_none());
    record::write_completions(&mut bytes, index("ibv_poll_cq"), (1, 2), (3, 4), &[]);
    assert!(record::read(&bytes).is_some());
    record::write_run(&mut bytes, index("rdma_getaddrinfo"), (1, 2), (3, 4), 5, 0);
    assert!(record::read(&bytes).is_none());
    for (kind, name) in [(RecordKind::Sends, "ibv_alloc_pd"), (RecordKind::Receives, "ibv_post_send")] {
        let mut words = Words::begin(&mut bytes, kind, index(name));
        record::begin_post(
            &mut words,
            &PostHead { start: 1, queue: 2, address: 0, reports_all: true, place: 0 },
        );
        words.end();
        assert!(record::read(&bytes).is_none(), "{name}");
    }
}

#[test]
fn every_call_can_be_a_record() {
    for (index, call) in CALLS.iter().enumerate() {
        let mut bytes = Vec::new();
        record::write_call(&mut bytes, &CallRecord::of_tokens(index, (1, 2), answer(0, 0), &[]));
        let Some(record::Record::Call(read)) = record::read(&bytes) else { panic!("{}", call.name) };
        assert_eq!(read.index, index);
    }
}
