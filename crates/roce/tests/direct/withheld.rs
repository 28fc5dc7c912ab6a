//! Processes of the same user that withhold a page where this process is to look before it shares memory: no
//! other process waits for that.

use super::agent::Agent;
use super::death::until;
use super::hostile::{HEAD, LIAR, MESSAGE, presents, say, sockets, table};
use super::kernel::{BOTH, PAGE, area, copies};
use super::other::{OPEN, Other, Pair, Tier};
use super::turn;
use adverb_core::request::{Opcode, Status};
use adverb_local::Segment;
use std::io::Error;
use std::mem::{offset_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const OFFER: u8 = 1;
const ACCEPT: u64 = 2;

/// A connection to the process that owns a block of queue pair numbers.
fn connect(block: u64) -> OwnedFd {
    let name = format!("adverb/roce/block/{block:03x}");
    // SAFETY: a fresh descriptor, and an address of the length that is given.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let socket = OwnedFd::from_raw_fd(fd);
        let mut address: libc::sockaddr_un = zeroed();
        address.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (place, byte) in address.sun_path[1..].iter_mut().zip(name.bytes()) {
            *place = byte as libc::c_char;
        }
        let length = offset_of!(libc::sockaddr_un, sun_path) + 1 + name.len();
        let connected = libc::connect(fd, (&raw const address).cast(), length as libc::socklen_t);
        assert_eq!(connected, 0, "{}", Error::last_os_error());
        socket
    }
}

fn bell() -> OwnedFd {
    // SAFETY: a fresh descriptor.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) }
}

impl Agent {
    pub(crate) fn obey_about_withheld(&mut self, command: &str, numbers: &[u64]) -> Option<Vec<u64>> {
        Some(match (command, numbers) {
            // Offers a channel to the owner of a block, and says that its probe is at an address.
            ("offer", [block, probe]) => {
                let socket = connect(*block);
                let (_, memory) = Segment::create().unwrap();
                assert!(say(socket.as_raw_fd(), OFFER, [1, *probe, 42, 0], &[memory, bell(), bell()]));
                self.offer = Some(socket);
                vec![]
            }
            // What the offer is answered with, and what was read in the probe.
            ("offer-answer", []) => {
                let socket = self.offer.as_ref().unwrap();
                let mut bytes = [0; MESSAGE];
                // SAFETY: the buffer is as long as it says.
                let got = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), MESSAGE, 0) };
                assert_eq!(got, MESSAGE as isize, "{}", Error::last_os_error());
                let proof = u64::from_ne_bytes(bytes[HEAD + 25..].try_into().unwrap());
                vec![bytes[HEAD].into(), proof]
            }
            // Tells a process with which it is connected of a table, and that its gate is at an address.
            ("present-gate", [process, gate]) => {
                const MEMORY: u8 = 6;
                let table = table(&[]);
                let sockets = sockets(*process as libc::pid_t);
                let say = |socket: &i32| say(*socket, MEMORY, [0, 0, 0, *gate], &presents(0, &table));
                let said = sockets.iter().filter(|socket| say(socket)).count();
                self.tables.push(table);
                vec![said as u64]
            }
            _ => return None,
        })
    }
}

/// The address of a page of a process that nobody can read until that process permits it.
fn withheld(villain: &mut Other) -> u64 {
    let pages = area(villain, 2 * PAGE, BOTH, OPEN);
    let is_withheld = villain.ask("area-guard", &[pages.index, 0]) == [1];
    assert!(is_withheld, "needed: the rights of root, or vm.unprivileged_userfaultfd=1 (userfaultfd(2))");
    pages.address
}

/// A process that comes now is met, and writes and is written by shared memory.
fn another_is_met() {
    let mut other = Other::of(Tier::Kernel);
    let pair = Pair::open(&mut other);
    let remote = other.open_region(PAGE);
    pair.reach(&mut other, Opcode::Write, remote.at(0));
    assert_eq!(pair.run(Opcode::Read, 8, remote.at(0)), Status::Success);
}

/// A process offers a channel, and withholds the page in which its probe is to be: others are met meanwhile.
/// It counts as one whose memory cannot be read.
#[test]
fn an_offer_whose_probe_is_withheld_stops_nobody() {
    let _turn = turn();
    // The block that this process owns is known by a queue pair of its own.
    let mut other = Other::of(Tier::Kernel);
    let own = Pair::open(&mut other).side.queue_pair.number();
    let mut villain = Other::of(LIAR);
    let probe = withheld(&mut villain);
    villain.ask("offer", &[(own >> 12).into(), probe]);
    until("nobody looks", copies);
    another_is_met();
    assert_eq!(villain.ask("offer-answer", &[]), [ACCEPT, 0]);
    // And while one thread still looks.
    assert!(copies());
    another_is_met();
}

/// A process that is connected tells of its memory, and withholds the page at which copies begin: others are
/// met meanwhile, and its own connection goes on.
#[test]
fn a_gate_that_is_withheld_stops_nobody() {
    let _turn = turn();
    let mut villain = Other::of(LIAR);
    let gate = withheld(&mut villain);
    let remote = villain.open_region(PAGE);
    let pair = Pair::open(&mut villain);
    assert_eq!(pair.run(Opcode::Write, 8, remote.at(0)), Status::Success);
    assert_ne!(villain.ask("present-gate", &[std::process::id().into(), gate]), [0]);
    until("nobody looks", copies);
    another_is_met();
    assert!(copies());
    assert_eq!(pair.run(Opcode::Write, 8, remote.at(0)), Status::Success);
}
