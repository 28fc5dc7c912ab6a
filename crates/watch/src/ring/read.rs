//! What a ring says, in any of the other formats.

use super::layout::{self, CHUNK, CHUNK_HEAD, Head, OWNED, TAKEN};
use super::record::{self, CallRecord, Record};
use crate::calls::{CALLS, Work};
use crate::format::{self, CompletedCall, Effects, Flow, Place, Process};
use crate::requests::{Queue, Requests};
use crate::setting::Format;
use crate::writer::Style;
use std::collections::HashMap;

/// A ring that has been read.
pub struct Rings {
    bytes: Vec<u8>,
    processes: HashMap<u32, Process>,
    /// Of each record: its time, whose it is, and where it stands. In the order of the times.
    records: Vec<RecordPlace>,
    lost: u64,
    torn: u64,
}

#[derive(Clone, Copy)]
struct RecordPlace {
    time: u64,
    at: usize,
    pid: u32,
    thread: u32,
}

/// Whether a file is a ring, by its first bytes.
pub fn is_ring(bytes: &[u8]) -> bool {
    bytes.starts_with(&layout::MAGIC)
}

impl Rings {
    /// Out of the bytes of a file.
    ///
    /// # Errors
    /// It is no ring, or a part of one.
    pub fn read(bytes: Vec<u8>) -> Result<Self, String> {
        let head = Head::parse(&bytes).ok_or_else(|| "this is no ring".to_owned())?;
        if bytes.len() < head.length() {
            return Err("this ring is cut".to_owned());
        }
        let mut ring = Self {
            processes: HashMap::new(),
            records: Vec::new(),
            lost: layout::word(&bytes, layout::LOST_AT),
            torn: 0,
            bytes,
        };
        for at in (0..).map_while(layout::process_at) {
            if let Some(process) = layout::parse_process(&ring.bytes[at..]) {
                ring.processes.insert(process.pid, process);
            }
        }
        (0..head.chunks).for_each(|number| ring.read_chunk(layout::chunk_at(number)));
        // Of one time, as a thread has written them.
        ring.records.sort_by_key(|found| found.time);
        Ok(ring)
    }

    fn read_chunk(&mut self, start: usize) {
        let chunk = &self.bytes[start..start + CHUNK];
        let state = layout::word(chunk, 0);
        if state < OWNED << 2 || state & TAKEN != 0 {
            return;
        }
        let owner = layout::word(chunk, layout::OWNER_AT);
        let used = (layout::word(chunk, layout::USED_AT) as usize).min(CHUNK);
        let mut at = CHUNK_HEAD;
        while at < used {
            let Some(length) = record::length(&chunk[at..used]) else {
                self.torn += 1;
                return;
            };
            let time = order(&chunk[at..at + length]);
            let (pid, thread) = (owner as u32, (owner >> 32) as u32);
            self.records.push(RecordPlace { time, at: start + at, pid, thread });
            at += length;
        }
    }

    /// The processes that have written, as one of whom nothing else is known.
    fn process(&self, pid: u32) -> Process {
        let unknown = || Process {
            pid,
            command: "a process whose name found no place".to_owned(),
            since: self.processes.values().map(|process| process.since).min().unwrap_or(0),
            wall: self.processes.values().map(|process| process.wall).min().unwrap_or(0),
            boot: self.processes.values().next().map_or_else(|| "unknown".to_owned(), |one| one.boot.clone()),
        };
        self.processes.get(&pid).cloned().unwrap_or_else(unknown)
    }

    /// How many records found no place, or cannot be read.
    pub fn missing(&self) -> u64 {
        self.lost.saturating_add(self.torn)
    }

    /// Writes everything in one of the other formats, whole lines at a time: first the processes, then
    /// records in about the order of time.
    ///
    /// # Errors
    /// Those of `each`.
    pub fn write<E>(&self, format: Format, mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut pids: Vec<u32> = self.records.iter().map(|found| found.pid).collect();
        pids.sort_unstable();
        pids.dedup();
        let processes: HashMap<u32, Process> = pids.iter().map(|pid| (*pid, self.process(*pid))).collect();
        for pid in &pids {
            each(&processes[pid].line(format))?;
        }
        let mut requests: HashMap<u32, Requests> = HashMap::new();
        for found in &self.records {
            let place = Place { pid: found.pid, base: processes[&found.pid].since };
            let Some(record) = record::read(&self.bytes[found.at..]) else { continue };
            let requests = requests.entry(found.pid).or_default();
            let lines = match record {
                Record::Call(call) => write_call(format, place, found.thread, &call, requests),
                // Text is for calls.
                Record::TransportEvent(..) if format == Format::Text => continue,
                Record::TransportEvent(time, seen) => {
                    let links = requests.link(&seen);
                    format::seen(format, place, (time, found.thread), &seen, links)
                }
            };
            each(&lines)?;
        }
        Ok(())
    }
}

/// By what records are put in order: requests are there from the beginning of their post, completions at the
/// end of their poll.
fn order(bytes: &[u8]) -> u64 {
    match record::read(bytes) {
        Some(Record::Call(call)) if CALLS[call.index].is_poll() => call.end,
        _ => record::time(bytes),
    }
}

fn write_call(
    format: Format,
    place: Place,
    thread: u32,
    record: &CallRecord<'_>,
    requests: &mut Requests,
) -> Vec<u8> {
    let call = &CALLS[record.index];
    let failure = format::failure(call, record.answer);
    let mut effects = Effects::default();
    if format != Format::Text {
        // What was refused is not under way.
        let taken = if failure.is_some() { record.taken } else { record.posted.len() };
        if let Some(queue) = record.queue {
            for (index, posted) in record.posted.iter().take(taken).enumerate() {
                let name = format::request_name(posted.role, posted.opcode);
                let place = record.place.map(|place| place.wrapping_add(index as u64));
                let number = requests.post(queue, posted.wr_id, posted.is_reported, name, place);
                effects.numbers.push(number);
                effects.flows.push(Flow { number, name, begins: true });
            }
        }
        effects.place = record.place;
        for completion in &record.completed {
            let number = requests.find(completion, |number, name| {
                effects.flows.push(Flow { number, name, begins: false });
            });
            effects.numbers.push(number.unwrap_or(0));
            let is_message = completion.is_receive() && completion.status == 0;
            let arrival = is_message.then(|| requests.take_arrival(completion.queue_pair)).flatten();
            effects.arrivals.push(arrival.map(|arrival| (completion.queue_pair, arrival)));
        }
        if let ("ibv_destroy_qp", Some(Queue::Sends(number))) = (call.name, record.queue) {
            requests.forget(number);
        }
    }
    if record.shows_work {
        effects.posted.clone_from(&record.posted);
        effects.completed = record.completed.first().copied().filter(|_| call.work == Work::Cursor);
    }
    let style = if format == Format::Text { Style::Text } else { Style::Json };
    let arguments = record.arguments(call, style, failure.is_some());
    let result = record.result(call, style);
    let ended = CompletedCall {
        place,
        result: result.as_deref(),
        call,
        answer: record.answer,
        arguments: &arguments,
        start: record.start,
        end: record.end,
        times: record.times,
        thread,
        fault: record.fault,
    };
    format::write(format, &ended, &effects)
}
