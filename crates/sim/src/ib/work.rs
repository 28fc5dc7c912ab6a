//! Random work of every kind, and what must come of it.

use std::collections::BTreeMap;

use adverb_proto::ib::{Delivery, DeliveryKind, Operation};
use adverb_wire::ib::header::Feth;

use super::end::SendWork;
use super::pair::{BASE, COUNTERS, LONGEST, PRIVATE, QueuePairs, READABLE, READABLE_SIZE, WRITABLE, often};
use crate::Random;

/// What must be found when everything is done.
#[derive(Default)]
pub(crate) struct Expectations {
    /// Of the peer: the messages that are delivered to it, its memory, the keys that it loses.
    pub(crate) deliveries: Vec<(Delivery, Vec<u8>)>,
    pub(crate) writable: Vec<u8>,
    pub(crate) counters: Vec<u8>,
    pub(crate) invalidated: usize,
    pub(crate) flushes: usize,
    /// Where writes with these immediate data go.
    pub(crate) announced: BTreeMap<u32, (usize, usize)>,
    /// The bytes that requests of this end read.
    pub(crate) results: Vec<Vec<u8>>,
    /// The peer before each request, and after the last one.
    pub(crate) states: Vec<State>,
}

/// The peer when so many requests have been carried out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct State {
    pub(crate) deliveries: usize,
    /// Bytes that were written.
    pub(crate) written: usize,
    pub(crate) counters: Vec<u8>,
    pub(crate) invalidated: usize,
    pub(crate) flushes: usize,
}

impl Expectations {
    /// Bytes that a request sends or asks for.
    pub(crate) fn length(&self, request: usize) -> u32 {
        self.results[request].len() as u32
    }

    fn note_state(&mut self) {
        self.states.push(State {
            deliveries: self.deliveries.len(),
            written: self.writable.len(),
            counters: self.counters.clone(),
            invalidated: self.invalidated,
            flushes: self.flushes,
        });
    }
}

fn length(mtu: u32, random: &mut Random) -> usize {
    let mtu = mtu as usize;
    match random.below(6) {
        0 => 0,
        1 => 1 + random.below(16),
        2 => random.below(mtu),
        3 => mtu * (1 + random.below(4)),
        4 => random.below(4 * mtu),
        _ => random.below(LONGEST),
    }
}

/// Posts random work at one end and says what must come of it.
// IB-RC-REQ-8, IB-RC-REQ-9, IB-RC-REQ-10, IB-RC-RSP-43
pub(crate) fn load(pair: &mut QueuePairs, side: usize, count: usize, random: &mut Random) -> Expectations {
    let mut expected = Expectations { counters: vec![0; 64], ..Expectations::default() };
    let readable = pair.ends[1 - side].program.regions[&READABLE].bytes.clone();
    let reliable = pair.options.service.is_reliable();
    for number in 0..count {
        expected.note_state();
        // A program that talks sends a short message as a rule.
        let talks = pair.talks && !random.chance(16);
        let len = if talks { random.below(64) } else { length(pair.options.mtu, random) };
        let (solicited, fence) = (often(random, 300), often(random, 150));
        let immediate = often(random, 300).then(|| random.next() as u32);
        let mut data = Vec::new();
        let mut result = None;
        let kind = if talks { 0 } else { random.below(if reliable { 10 } else { 5 }) };
        let operation = match kind {
            _ if pair.refused == Some((side, number)) => {
                data = vec![1; 1 + random.below(64)];
                match random.below(3) {
                    0 => Operation::Read { address: BASE, rkey: PRIVATE },
                    1 => Operation::Write { address: BASE, rkey: READABLE, immediate: None },
                    _ => Operation::Write { address: BASE, rkey: PRIVATE, immediate: None },
                }
            }
            0..=2 => {
                data = random.bytes(len);
                let invalidate =
                    (reliable && !talks && immediate.is_none() && often(random, 200)).then(|| {
                        expected.invalidated += 1;
                        1000 + expected.invalidated as u32
                    });
                expected.deliveries.push((
                    Delivery {
                        length: len as u32,
                        immediate,
                        invalidated: invalidate,
                        kind: DeliveryKind::Send,
                        solicited,
                    },
                    data.clone(),
                ));
                pair.receives[1 - side].push(len + random.below(20));
                Operation::Send { immediate, invalidate }
            }
            3 | 4 => {
                data = random.bytes(len);
                let start = expected.writable.len();
                let address = BASE + start as u64;
                expected.writable.extend_from_slice(&data);
                if let Some(immediate_data) = immediate {
                    expected.announced.insert(immediate_data, (start, start + len));
                    let kind = DeliveryKind::WriteWithImmediate;
                    let delivered =
                        Delivery { length: len as u32, immediate, invalidated: None, kind, solicited };
                    expected.deliveries.push((delivered, Vec::new()));
                    pair.receives[1 - side].push(0);
                }
                Operation::Write { address, rkey: WRITABLE, immediate }
            }
            5 | 6 => {
                // Either something that never changes, or what a request before has just written.
                let written = expected.writable.len();
                // By different path MTUs, the numbers behind a longer read would mean different requests to
                // both ends.
                let len = len.min(pair.shorter_mtu().map_or(len, |shorter| shorter as usize));
                data = vec![0; len];
                // Behind a repetition it may read what later requests have left.
                if random.chance(2) && pair.faults.lets_all_through() && pair.buffer.is_none() {
                    data = vec![0; 64];
                    result = Some(expected.counters.clone());
                    Operation::Read { address: BASE, rkey: COUNTERS }
                } else if random.chance(3) && written >= len {
                    let start = random.below(written - len + 1);
                    result = Some(expected.writable[start..start + len].to_vec());
                    Operation::Read { address: BASE + start as u64, rkey: WRITABLE }
                } else {
                    let start = random.below(READABLE_SIZE - len);
                    result = Some(readable[start..start + len].to_vec());
                    Operation::Read { address: BASE + start as u64, rkey: READABLE }
                }
            }
            7 | 8 => {
                let index = random.below(8) * 8;
                let address = BASE + index as u64;
                let word: &mut [u8; 8] = (&mut expected.counters[index..index + 8]).try_into().unwrap();
                let original = u64::from_ne_bytes(*word);
                match random.below(3) {
                    0 => {
                        let add = random.next();
                        *word = original.wrapping_add(add).to_ne_bytes();
                        result = Some(original.to_ne_bytes().to_vec());
                        Operation::FetchAdd { address, rkey: COUNTERS, add }
                    }
                    1 => {
                        let compare = if often(random, 700) { original } else { random.next() };
                        let swap = random.next();
                        if compare == original {
                            *word = swap.to_ne_bytes();
                        }
                        result = Some(original.to_ne_bytes().to_vec());
                        Operation::CompareSwap { address, rkey: COUNTERS, compare, swap }
                    }
                    _ => {
                        let value = random.next().to_ne_bytes();
                        *word = value;
                        Operation::AtomicWrite { address, rkey: COUNTERS, value }
                    }
                }
            }
            _ => {
                expected.flushes += 1;
                let (placement, selectivity) = (Feth::GLOBAL_VISIBILITY, Feth::RANGE);
                Operation::Flush { address: BASE, rkey: COUNTERS, placement, selectivity }
            }
        };
        expected.results.push(result.unwrap_or_else(|| data.clone()));
        pair.operations[side].push(operation);
        let work = SendWork { operation, data, solicited, fence };
        if pair.pace.is_some() {
            pair.works[side].push_back(work);
        } else {
            pair.ends[side].post(work);
        }
    }
    expected.note_state();
    let region = pair.ends[1 - side].program.regions.get_mut(&WRITABLE).unwrap();
    region.bytes = vec![0; expected.writable.len()];
    region.rights.write = true;
    expected
}
