//! A process that does as it is told: the other side of these tests. Commands come by its input, a line each,
//! and are answered by a line.

use super::support::{StoppedProcess, join, site};
pub(crate) use adverb_core::conformance::agent::{bytes, hash, run, word};
use adverb_core::conformance::fixture::{Home, Memory, Shape, Side, signalled};
use adverb_core::conformance::{Site, agent};
use adverb_core::memory::Access;
use adverb_core::qp::{AttributeMask as M, Attributes, Service, State};
use adverb_core::region::Reregistration;
use adverb_core::request::{Opcode, SendRequest};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// An agent, with what it has made, by index.
pub(crate) struct Agent {
    pub(crate) site: Site,
    pub(crate) homes: Vec<Home>,
    pub(crate) sides: Vec<Option<Side>>,
    pub(crate) memories: Vec<Memory>,
    pub(crate) children: Vec<super::fork::Twin>,
    pub(crate) tables: Vec<adverb_local::Table>,
    pub(crate) areas: Vec<super::areas::Area>,
    pub(crate) own: Vec<Option<super::areas::Own>>,
    /// A connection by which it has made an offer by hand.
    pub(crate) offer: Option<std::os::fd::OwnedFd>,
}

/// A side with a queue pair in INIT that permits its peer so much.
pub(crate) fn side(home: &Home, access: Access) -> Side {
    let side = Side::unconnected(home, Shape { sges: 4, ..Shape::default() }, Service::Rc);
    let init = Attributes { port: 1, access: access.bits(), ..Attributes::default() };
    side.to(State::Init, M::PKEY_INDEX | M::PORT | M::ACCESS_FLAGS, &init);
    side
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            site: site(),
            homes: Vec::new(),
            sides: Vec::new(),
            memories: Vec::new(),
            children: Vec::new(),
            tables: Vec::new(),
            areas: Vec::new(),
            own: Vec::new(),
            offer: None,
        }
    }
}

impl agent::Agent for Agent {
    fn obey(&mut self, command: &str, numbers: &[u64]) -> Vec<u64> {
        match (command, numbers) {
            // Comes by a safe point, no more.
            ("rest", []) => vec![],
            ("domain", []) => {
                self.homes.push(Home::new(&self.site));
                vec![self.homes.len() as u64 - 1]
            }
            ("pair", [domain, access]) => {
                let side = side(&self.homes[*domain as usize], Access::from_bits_truncate(*access as u32));
                let number = side.queue_pair.number();
                self.sides.push(Some(side));
                vec![self.sides.len() as u64 - 1, number.into()]
            }
            ("join", [pair, number]) => {
                join(self.side(*pair), &self.site, *number as u32);
                vec![]
            }
            ("number", [pair]) => vec![self.side(*pair).queue_pair.number().into()],
            ("state", [pair, state]) => {
                let state = State::from_number(*state as u32).unwrap();
                self.side(*pair).to(state, M::empty(), &Attributes::default());
                vec![]
            }
            ("permit", [pair, access]) => {
                let attributes = Attributes { access: *access as u32, ..Attributes::default() };
                self.side(*pair).queue_pair.modify(&attributes, M::ACCESS_FLAGS).unwrap();
                vec![]
            }
            ("destroy", [pair]) => {
                self.sides[*pair as usize] = None;
                vec![]
            }
            ("direct", []) => vec![self.sides[0].as_ref().map_or(0, direct)],
            ("receive", [pair]) => {
                self.side(*pair).post_receive(1, &[]);
                vec![]
            }
            ("send", [pair, region, from, length]) => {
                let sges = [self.memory(*region).sge(*from as usize, *length as usize)];
                let request = SendRequest { opcode: Opcode::Send, ..signalled(&sges, (0, 0)) };
                vec![run(self.side(*pair), &request) as u64]
            }
            // Sends when a process has begun to write to the first of two words, and when that has written to
            // the second one, stops it and says whether the send is complete by then.
            ("ask", [pair, region, first, second, value, process]) => {
                let (side, memory) = (self.side(*pair), self.memory(*region));
                let has = |at: &u64| word(memory, *at as usize).load(Ordering::Acquire) == *value;
                while !has(first) {
                    side.sends.poll(1, |_| {}).unwrap();
                }
                side.post(1, Opcode::Send, &[], (0, 0));
                let (mut complete, mut seen) = (0, false);
                while !seen {
                    seen = has(second);
                    complete += side.sends.poll(1, |_| {}).unwrap();
                }
                if complete == 0 {
                    // This process's other thread may be taking in the acknowledgement, if it has come.
                    let stopped = StoppedProcess::new(*process as libc::pid_t);
                    let limit = Instant::now() + Duration::from_secs(5);
                    while complete == 0 && Instant::now() < limit {
                        complete += side.sends.poll(1, |_| {}).unwrap();
                    }
                    drop(stopped);
                    if complete == 0 {
                        side.sent_well(1);
                    }
                }
                vec![complete as u64]
            }
            ("received", [pair]) => {
                let done = self.side(*pair).received();
                vec![done.status as u64, done.immediate.into()]
            }
            _ => self
                .obey_about_memory(command, numbers)
                .or_else(|| self.obey_about_areas(command, numbers))
                .or_else(|| self.obey_as_villain(command, numbers))
                .or_else(|| self.obey_about_withheld(command, numbers))
                .unwrap_or_else(|| self.obey_as_peer(command, numbers)),
        }
    }
}

impl Agent {
    pub(crate) fn side(&self, index: u64) -> &Side {
        self.sides[index as usize].as_ref().unwrap()
    }

    pub(crate) fn memory(&self, index: u64) -> &Memory {
        &self.memories[index as usize]
    }

    fn obey_about_memory(&mut self, command: &str, numbers: &[u64]) -> Option<Vec<u64>> {
        Some(match (command, numbers) {
            ("region", [domain, length, access]) => {
                let access = Access::from_bits_truncate(*access as u32);
                let memory = Memory::new(&self.homes[*domain as usize].domain, *length as usize, access);
                let answer = vec![self.memories.len() as u64, memory.address(0), memory.region.key().into()];
                self.memories.push(memory);
                answer
            }
            ("deregister", [region]) => {
                self.memory(*region).region.deregister();
                vec![]
            }
            ("restrict", [region]) => {
                let memory = &mut self.memories[*region as usize];
                let access = Some(Access::LOCAL_WRITE | Access::REMOTE_READ);
                let change = Reregistration { access, ..Reregistration::default() };
                // SAFETY: the same bytes, for less.
                memory.region = unsafe { memory.region.reregister(&change) }.unwrap();
                vec![memory.region.key().into()]
            }
            ("again", [region]) => {
                let memory = &mut self.memories[*region as usize];
                let access = Access::LOCAL_WRITE | Access::REMOTE;
                let length = bytes_of(memory) as u64;
                // SAFETY: the same bytes as before, until the memory goes.
                memory.region = unsafe {
                    adverb_core::region::MemoryRegion::register(
                        memory.region.domain(),
                        memory.address(0) as usize,
                        length,
                        memory.address(0),
                        access,
                    )
                }
                .unwrap();
                vec![memory.region.key().into()]
            }
            ("invalidate", [pair, region]) => {
                let key = self.memory(*region).region.key();
                let request = SendRequest {
                    opcode: Opcode::LocalInvalidate,
                    immediate: key,
                    flags: adverb_core::request::SendFlags::SIGNALED,
                    ..SendRequest::default()
                };
                vec![run(self.side(*pair), &request) as u64]
            }
            ("fill", [region, seed]) => {
                self.memory(*region).fill(*seed);
                vec![]
            }
            ("hash", [region, from, length]) => {
                vec![hash(&bytes(self.memory(*region), *from as usize, *length as usize))]
            }
            // How many bytes are this one.
            ("has", [region, byte]) => {
                let memory = self.memory(*region);
                let all = bytes(memory, 0, bytes_of(memory));
                vec![all.iter().filter(|found| u64::from(**found) == *byte).count() as u64]
            }
            // How many of so many looks show something else than the first.
            ("watch", [region, looks]) => {
                let memory = self.memory(*region);
                let look = || hash(&bytes(memory, 0, bytes_of(memory)));
                let first = look();
                vec![(0..*looks).filter(|_| look() != first).count() as u64]
            }
            ("word", [region, at]) => {
                vec![word(self.memory(*region), *at as usize).load(Ordering::Acquire)]
            }
            ("put", [region, at, value]) => {
                word(self.memory(*region), *at as usize).store(*value, Ordering::Release);
                vec![]
            }
            ("add", [region, at, times]) => {
                let word = word(self.memory(*region), *at as usize);
                for _ in 0..*times {
                    word.fetch_add(1, Ordering::Relaxed);
                }
                vec![]
            }
            ("fork", [region]) => {
                let twin = super::fork::Twin::new(self.memory(*region));
                self.children.push(twin);
                vec![]
            }
            ("join-child", []) => vec![self.children.pop().unwrap().ask()],
            _ => return None,
        })
    }
}

/// Operations that this process's queue pairs have carried out in others' memory.
pub(crate) fn direct(side: &Side) -> u64 {
    side.context.device().counters().tx_direct.get()
}

/// Operations of this process's queue pairs whose bytes the kernel has copied.
pub(crate) fn by_kernel(side: &Side) -> u64 {
    side.context.device().counters().tx_kernel.get()
}

pub(crate) fn bytes_of(memory: &Memory) -> usize {
    memory.all().length as usize
}
