//! The other process of these tests, which does as it is told.

use super::other::{OPEN, site};
use adverb_core::cm::{EventKind, Identifier};
use adverb_core::conformance::agent;
pub(crate) use adverb_core::conformance::agent::{bytes, hash, run, word};
use adverb_core::conformance::fixture::{
    Memory, Shape, Side, TEST_TIMEOUT, expect, listener, parameters, signalled,
};
use adverb_core::memory::Access;
use adverb_core::qp::{AttributeMask as M, Attributes};
use adverb_core::request::{Opcode, SendRequest, Status};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Receives that are posted ahead where messages are followed.
pub(crate) const AHEAD: usize = 64;

/// Room for the longest message here.
pub(crate) const SLOT: usize = 72 << 10;

/// How many bytes a message has.
pub(crate) fn length_of(number: u64) -> usize {
    [8, 0, 1, 64, 4096, 4097, 65_000, 100, 1000, 17, 5000][number as usize % 11]
}

/// The bytes of a message.
pub(crate) fn message(number: u64) -> Vec<u8> {
    let byte =
        |at: usize| (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (at % 8 * 8)) as u8 ^ (at / 8) as u8;
    (0..length_of(number)).map(byte).collect()
}

/// An agent, with what it has made, by index.
#[derive(Default)]
pub(crate) struct Agent {
    sides: Vec<Side>,
    memories: Vec<Memory>,
    listeners: Vec<Arc<Identifier>>,
}

impl Agent {
    fn side(&self, index: u64) -> &Side {
        &self.sides[index as usize]
    }

    fn memory(&self, index: u64) -> &Memory {
        &self.memories[index as usize]
    }

    fn permit(&self, side: u64, access: u64) {
        let attributes = Attributes { access: access as u32, ..Attributes::default() };
        self.side(side).queue_pair.modify(&attributes, M::ACCESS_FLAGS).unwrap();
    }

    /// Takes in messages, each of which says its number, while the peer writes that number to the first word
    /// before it sends the message, and to the second one after it. Returns how often a message came before
    /// what was written before it, and how often something was there that was written behind a message which
    /// had not come. `toggles`: what the peer may do changes now and then, so that some of it goes by TCP.
    fn follow(&self, side: u64, region: u64, inbox: u64, rounds: u64, toggles: bool) -> Vec<u64> {
        let (queue, memory) = (self.side(side), self.memory(region));
        let sges = [self.memory(inbox).sge(0, 64)];
        let (mut came, mut late, mut early) = (0, 0, 0);
        let deadline = Instant::now() + 4 * TEST_TIMEOUT;
        while came < rounds {
            // In this order, and with no poll between the two, which would take in messages.
            let behind = word(memory, 8).load(Ordering::Acquire);
            early += u64::from(word(self.memory(inbox), 0).load(Ordering::Acquire) < behind);
            let mut found = 0;
            let polled = queue.receives.poll(16, |done| {
                assert_eq!(done.status, Status::Success);
                found += 1;
            });
            polled.unwrap();
            for _ in 0..found {
                came += 1;
                let before = word(memory, 0).load(Ordering::Acquire);
                late += u64::from(before < came);
                queue.post_receive(1, &sges);
                if toggles && came % 512 == 0 {
                    let more = if came % 1024 == 0 { Access::LOCAL_WRITE } else { Access::empty() };
                    self.permit(side, (Access::REMOTE | more).bits().into());
                }
            }
            assert!(Instant::now() < deadline, "{came} of {rounds} messages");
        }
        vec![late, early, u64::from(word(self.memory(inbox), 0).load(Ordering::Acquire) > 0)]
    }
}

impl agent::Agent for Agent {
    fn obey(&mut self, command: &str, numbers: &[u64]) -> Vec<u64> {
        match (command, numbers) {
            // Comes by a safe point, no more.
            ("rest", []) => vec![],
            // Says where, lets one peer in, and says which side that is.
            ("accept", [access]) => {
                let site = site();
                let (listener, channel) = listener(&site);
                println!("\n= {}", listener.local_address().unwrap().port());
                let event = expect(&channel, EventKind::ConnectRequest);
                let shape = Shape { sends: 64, receives: 128, receive_completions: 256, ..Shape::default() };
                let side = Side::new(&site, shape, event.identifier.clone(), channel, true);
                drop(event);
                self.listeners.push(listener);
                self.sides.push(side);
                let index = self.sides.len() as u64 - 1;
                self.permit(index, *access);
                self.side(index).id.accept(Some(&parameters())).unwrap();
                self.side(index).expect(EventKind::Established);
                vec![index]
            }
            ("permit", [side, access]) => {
                self.permit(*side, *access);
                vec![]
            }
            ("region", [side, length, access]) => {
                let access = Access::from_bits_truncate(*access as u32);
                let memory = Memory::new(&self.side(*side).domain, *length as usize, access);
                let answer = vec![self.memories.len() as u64, memory.address(0), memory.region.key().into()];
                self.memories.push(memory);
                answer
            }
            ("close", [region]) => {
                self.memory(*region).region.deregister();
                vec![]
            }
            ("fill", [region, seed]) => {
                self.memory(*region).fill(*seed);
                vec![]
            }
            ("hash", [region, from, length]) => {
                vec![hash(&bytes(self.memory(*region), *from as usize, *length as usize))]
            }
            ("word", [region, at]) => {
                vec![word(self.memory(*region), *at as usize).load(Ordering::Acquire)]
            }
            // Once: the status, and how many operations of the process have needed no TCP by now.
            ("operate", [side, region, opcode, length, address, key]) => {
                let side = self.side(*side);
                let opcode = Opcode::from_number(*opcode as u32).unwrap();
                let sges = [self.memory(*region).sge(0, *length as usize)];
                let remote = (*address, *key as u32);
                let request = SendRequest { opcode, compare_add: 1, ..signalled(&sges, remote) };
                vec![run(side, &request) as u64, side.context.device().counters().tx_direct.get()]
            }
            // Writes again and again until that fails.
            ("stream", [side, region, length, address, key]) => {
                let sges = [self.memory(*region).sge(0, *length as usize)];
                let request =
                    SendRequest { opcode: Opcode::Write, ..signalled(&sges, (*address, *key as u32)) };
                println!("\n= 0");
                loop {
                    let status = run(self.side(*side), &request);
                    if status != Status::Success {
                        return vec![status as u64];
                    }
                }
            }
            // Posts receives ahead.
            ("expect", [side, region]) => {
                let sges = [self.memory(*region).sge(0, 64)];
                (0..AHEAD).for_each(|_| self.side(*side).post_receive(1, &sges));
                vec![]
            }
            // Takes in messages by so many receives at a time, from this number on, and says how many are not
            // as they should be.
            ("hear", [side, region, receives, first, count]) => {
                let (queue, memory) = (self.side(*side), self.memory(*region));
                let post = |number: u64| {
                    let slot = (number % receives) as usize * SLOT;
                    queue.post_receive(number, &[memory.sge(slot, SLOT)]);
                };
                let end = first + count;
                (*first..end.min(first + receives)).for_each(post);
                let mut wrong = 0;
                for number in *first..end {
                    let done = queue.received();
                    let slot = (number % receives) as usize * SLOT;
                    let is_right = (done.wr_id, done.status) == (number, Status::Success)
                        && bytes(memory, slot, done.byte_length as usize) == message(number);
                    wrong += u64::from(!is_right);
                    if number + receives < end {
                        post(number + receives);
                    }
                }
                vec![wrong]
            }
            // Sends messages from this number on.
            ("tell", [side, region, first, count]) => {
                let (side, memory) = (self.side(*side), self.memory(*region));
                for number in *first..first + count {
                    let bytes = message(number);
                    memory.set(&bytes);
                    side.post(number, Opcode::Send, &[memory.sge(0, bytes.len())], (0, 0));
                    side.sent_well(number);
                }
                vec![]
            }
            // The next receive: how it ends, with how many bytes and which immediate data.
            ("next", [side]) => {
                let done = self.side(*side).received();
                vec![done.status as u64, done.byte_length.into(), done.immediate.into()]
            }
            // Posts a receive.
            ("post", [side, region]) => {
                self.side(*side).post_receive(1, &[self.memory(*region).sge(0, SLOT)]);
                vec![]
            }
            ("follow", [side, region, inbox, rounds, toggles]) => {
                self.follow(*side, *region, *inbox, *rounds, *toggles != 0)
            }
            // How the connection has ended here: the queue pair's state, and the status of the next receive.
            ("ended", [side]) => {
                let side = self.side(*side);
                side.expect(EventKind::Disconnected);
                let flushed = if side.queue_pair.queues().receives_left() > 0 { 1 } else { 0 };
                vec![side.queue_pair.state() as u64, flushed]
            }
            ("channels", [side]) => {
                vec![self.side(*side).context.device().counters().local_channels.get()]
            }
            _ => panic!("{command} {numbers:?} is not known"),
        }
    }
}

/// What everybody may do.
pub(crate) fn all() -> u64 {
    OPEN.bits().into()
}
