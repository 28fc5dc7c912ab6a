//! What an agent does as an initiator.

use super::agent::{Agent, direct, run, word};
use adverb_core::conformance::fixture::signalled;
use adverb_core::request::{Opcode, SendRequest, Status};
use std::sync::atomic::Ordering;

impl Agent {
    pub(crate) fn obey_as_peer(&mut self, command: &str, numbers: &[u64]) -> Vec<u64> {
        match (command, numbers) {
            // Once: the status, and how many operations of the process have needed no packet by now.
            ("operate", [pair, region, opcode, length, address, key]) => {
                let side = self.side(*pair);
                let opcode = Opcode::from_number(*opcode as u32).unwrap();
                let sges = [self.memory(*region).sge(0, *length as usize)];
                let remote = (*address, *key as u32);
                let request = SendRequest { opcode, compare_add: 1, ..signalled(&sges, remote) };
                vec![run(side, &request) as u64, direct(side)]
            }
            // Takes in messages, and looks whether what was written before each is there: the number of looks
            // that fail.
            ("follow", [pair, region, rounds, length]) => {
                let (side, memory) = (self.side(*pair), self.memory(*region));
                (0..8).for_each(|_| side.post_receive(1, &[]));
                let mut late = 0;
                for round in 1..=*rounds {
                    side.received_well(1);
                    side.post_receive(1, &[]);
                    let is_there = |at: usize| word(memory, at).load(Ordering::Acquire) >= round;
                    let written =
                        [0, 8192].into_iter().flat_map(|from| (from..from + *length as usize).step_by(8));
                    late += u64::from(!written.chain([16_384]).all(is_there));
                }
                vec![late]
            }
            // The same in a child of fork: the error number of the attempt.
            ("fork-and-operate", [pair, region, opcode, length, address, key]) => {
                let (side, opcode) = (self.side(*pair), Opcode::from_number(*opcode as u32).unwrap());
                let sges = [self.memory(*region).sge(0, *length as usize)];
                let request = SendRequest { opcode, ..signalled(&sges, (*address, *key as u32)) };
                vec![super::fork::in_child(|| {
                    let posted = side.queue_pair.post_send(&request);
                    posted.err().map_or(0, |error| error.errno())
                })]
            }
            // Increments a word so many times, by adding or by comparing and swapping.
            ("count", [pair, region, opcode, times, address, key]) => {
                let (side, memory) = (self.side(*pair), self.memory(*region));
                let opcode = Opcode::from_number(*opcode as u32).unwrap();
                let (sges, remote) = ([memory.sge(0, 8)], (*address, *key as u32));
                let (mut done, mut expected) = (0, 0);
                while done < *times {
                    let compare_add = if opcode == Opcode::FetchAdd { 1 } else { expected };
                    let swap = expected + 1;
                    let request = SendRequest { opcode, compare_add, swap, ..signalled(&sges, remote) };
                    assert_eq!(run(side, &request), Status::Success);
                    let before = word(memory, 0).load(Ordering::Acquire);
                    done += u64::from(opcode == Opcode::FetchAdd || before == expected);
                    expected = if before == expected { expected + 1 } else { before };
                }
                vec![direct(side)]
            }
            // Writes again and again until that fails.
            ("stream", [pair, region, length, address, key]) => {
                let sges = [self.memory(*region).sge(0, *length as usize)];
                let request =
                    SendRequest { opcode: Opcode::Write, ..signalled(&sges, (*address, *key as u32)) };
                println!("\n= 0");
                loop {
                    let status = run(self.side(*pair), &request);
                    if status != Status::Success {
                        return vec![status as u64];
                    }
                }
            }
            _ => panic!("{command} {numbers:?} is not known"),
        }
    }
}
