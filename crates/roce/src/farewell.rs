//! Goodbye in the name of the killed.
//!
//! A kernel ends the connections of a process that is killed. Here nobody is left to do it but the parent: `adverb run` makes a record in a memfd,
//! which its program and the program's children inherit and write their connections into. When the program has ended, the parent
//! sends a disconnect request for whatever is left of processes that are gone.

use crate::route::PORT;
use adverb_core::setting;
use adverb_wire::ib::cm::{Dreq, Message};
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY, Deth, HeaderWriter, ICRC_LEN, MAX_HEADER};
use adverb_wire::ib::icrc::{Flow, seed};
use adverb_wire::ib::mad::{GSI_QKEY, GSI_QPN};
use adverb_wire::ib::opcode::{Opcode, Operation, Service};

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Names the record's descriptor to the program.
const VARIABLE: &str = "ADVERB_RECORD";
const NAME: &CStr = c"adverb-connections";
/// Connections that have room; further ones go without.
const SLOTS: usize = 1 << 16;
/// The operation of every management datagram.
const UD_SEND: Opcode = Opcode::new(Service::Ud, Operation::SendOnly).expect("datagrams are sent");
/// A disconnect request may be lost, and nobody waits for its answer.
const REPEATS: [Duration; 3] = [Duration::ZERO, Duration::from_millis(20), Duration::from_millis(80)];

const FREE: u32 = 0;
const CLAIMED: u32 = 1;
const HELD: u32 = 2;

/// A connection as the record has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Our communication ID, and the peer's.
    pub(crate) local_id: u32,
    pub(crate) remote_id: u32,
    /// The peer's queue pair.
    pub(crate) remote_number: u32,
    /// Our address, and the peer's.
    pub(crate) local: IpAddr,
    pub(crate) peer: IpAddr,
    /// Interface of link-local addresses.
    pub(crate) scope: u32,
}

/// A slot of the record: a state, the process, the entry in words.
#[repr(C)]
struct Slot {
    state: AtomicU32,
    process: AtomicU32,
    words: [AtomicU32; 12],
    _room: [u32; 2],
}

#[repr(C)]
struct Page {
    /// Where to look for a free slot first.
    hint: AtomicU32,
    _room: [u32; 15],
    slots: [Slot; SLOTS],
}

/// The record of connections. Thread-safe; shared by processes.
pub struct Record {
    fd: RawFd,
    page: &'static Page,
}

impl Record {
    /// A new record, whose descriptor children inherit. It lives as long as the process.
    ///
    /// # Errors
    /// Where there is no memfd.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a constant C string; the descriptor is new.
        let fd = unsafe { libc::memfd_create(NAME.as_ptr(), 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: our descriptor.
        if unsafe { libc::ftruncate(fd, size_of::<Page>() as libc::off_t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        Self::map(fd)
    }

    fn map(fd: RawFd) -> io::Result<Self> {
        // SAFETY: a fresh shared mapping of the page's size, which the caller knows the memfd to have.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<Page>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd,
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: aligned, never unmapped, and all atomics, for which every byte pattern is valid; what is not atomic is not touched.
        Ok(Self { fd, page: unsafe { &*address.cast::<Page>() } })
    }

    /// The environment variable that names it to a program, and its value.
    pub fn variable(&self) -> (&'static str, String) {
        (VARIABLE, self.fd.to_string())
    }

    /// The record that this process has inherited, if it was started with one.
    pub(crate) fn inherited() -> Option<&'static Record> {
        static RECORD: OnceLock<Option<Record>> = OnceLock::new();
        RECORD.get_or_init(Self::inherit).as_ref()
    }

    fn inherit() -> Option<Self> {
        let fd: RawFd = setting::variable(VARIABLE)?.parse().ok()?;
        // The program may have closed it, and opened something else with its number.
        let link = std::fs::read_link(format!("/proc/self/fd/{fd}")).ok()?;
        let name = NAME.to_str().ok()?;
        if link != Path::new(&format!("/memfd:{name} (deleted)")) {
            return None;
        }
        // SAFETY: all zero is a valid stat, which the call fills in.
        let size = unsafe {
            let mut found: libc::stat = std::mem::zeroed();
            if libc::fstat(fd, &raw mut found) != 0 {
                return None;
            }
            found.st_size
        };
        (size == size_of::<Page>() as libc::off_t).then(|| Self::map(fd).ok()).flatten()
    }

    /// Writes a connection of this process down. None when the record is full.
    pub(crate) fn note(&self, entry: &Entry) -> Option<u32> {
        let first = self.page.hint.load(Ordering::Relaxed) as usize;
        for offset in 0..SLOTS {
            let place = (first + offset) % SLOTS;
            let slot = &self.page.slots[place];
            let claim = slot.state.compare_exchange(FREE, CLAIMED, Ordering::AcqRel, Ordering::Relaxed);
            if claim.is_err() {
                continue;
            }
            slot.process.store(std::process::id(), Ordering::Relaxed);
            for (word, value) in slot.words.iter().zip(words_of(entry)) {
                word.store(value, Ordering::Relaxed);
            }
            slot.state.store(HELD, Ordering::Release);
            self.page.hint.store(place as u32 + 1, Ordering::Relaxed);
            return Some(place as u32);
        }
        None
    }

    /// A connection of this process has ended.
    pub(crate) fn forget(&self, place: u32) {
        let Some(slot) = self.page.slots.get(place as usize) else { return };
        // A child of fork has its parent's connections only by name.
        if slot.process.load(Ordering::Relaxed) == std::process::id() {
            slot.state.store(FREE, Ordering::Release);
            self.page.hint.store(place, Ordering::Relaxed);
        }
    }

    /// Takes the connections of processes that are gone out of the record.
    fn take_left_behind(&self) -> Vec<Entry> {
        let mut left = Vec::new();
        for slot in &self.page.slots {
            if slot.state.load(Ordering::Acquire) != HELD {
                continue;
            }
            let process = slot.process.load(Ordering::Relaxed);
            // SAFETY: signal 0 only asks whether there is such a process.
            let gone = unsafe { libc::kill(process as libc::pid_t, 0) } != 0
                && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            if gone {
                let words: [u32; 12] = std::array::from_fn(|at| slot.words[at].load(Ordering::Relaxed));
                left.push(entry_of(&words));
                slot.state.store(FREE, Ordering::Release);
            }
        }
        left
    }

    /// Sends the peers of processes that are gone a disconnect request (IB-CM-47). Returns how many connections there were.
    pub fn say_goodbye(&self) -> usize {
        let left = self.take_left_behind();
        for pause in REPEATS {
            if left.is_empty() {
                break;
            }
            std::thread::sleep(pause);
            for entry in &left {
                // The peer then finds out by itself, later.
                let _ = disconnect(entry);
            }
        }
        left.len()
    }
}

fn words_of(entry: &Entry) -> [u32; 12] {
    let mut words = [0; 12];
    words[..4].copy_from_slice(&[entry.local_id, entry.remote_id, entry.remote_number, entry.scope]);
    for (at, address) in [(4, entry.local), (8, entry.peer)] {
        let octets = match address {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            IpAddr::V6(v6) => v6.octets(),
        };
        for (word, four) in words[at..at + 4].iter_mut().zip(octets.as_chunks::<4>().0) {
            *word = u32::from_ne_bytes(*four);
        }
    }
    words
}

fn entry_of(words: &[u32; 12]) -> Entry {
    let address = |at: usize| {
        let mut octets = [0; 16];
        for (four, word) in octets.as_chunks_mut::<4>().0.iter_mut().zip(&words[at..at + 4]) {
            *four = word.to_ne_bytes();
        }
        crate::route::canonical(Ipv6Addr::from(octets).into())
    };
    Entry {
        local_id: words[0],
        remote_id: words[1],
        remote_number: words[2],
        scope: words[3],
        local: address(4),
        peer: address(8),
    }
}

/// Sends one disconnect request, from a socket of its own.
fn disconnect(entry: &Entry) -> io::Result<()> {
    let at = |ip: IpAddr, port: u16| -> SocketAddr {
        match ip {
            IpAddr::V4(v4) => (v4, port).into(),
            IpAddr::V6(v6) => SocketAddrV6::new(v6, port, 0, entry.scope).into(),
        }
    };
    let socket = UdpSocket::bind(at(entry.local, 0))?;
    // Unconnected and without fragments, it sends the identification 0, which the CRC needs to be known.
    let probe: libc::c_int = libc::IP_PMTUDISC_PROBE;
    // SAFETY: our descriptor, and a live local of the length that is given.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_IP,
            libc::IP_MTU_DISCOVER,
            (&raw const probe).cast(),
            size_of_val(&probe) as libc::socklen_t,
        )
    };
    let flow = Flow {
        source: entry.local,
        destination: entry.peer,
        source_port: socket.local_addr()?.port(),
        destination_port: PORT,
    };
    socket.send_to(&packet(entry, &flow), at(entry.peer, PORT)).map(drop)
}

/// A datagram with a disconnect request.
fn packet(entry: &Entry, flow: &Flow) -> Vec<u8> {
    let request = Dreq {
        local_communication_id: entry.local_id,
        remote_communication_id: entry.remote_id,
        remote_qpn: entry.remote_number,
        ..Dreq::default()
    };
    let mad = Message::from(request).to_mad(u64::from(entry.local_id) << 32 | 1).to_bytes();
    let mut space = [0; MAX_HEADER];
    let mut head = HeaderWriter::new(&mut space);
    head.put(&Bth::new(UD_SEND, DEFAULT_PKEY, GSI_QPN, 0));
    head.put(&Deth::new(GSI_QKEY, GSI_QPN));
    let length = head.len();
    let mut packet = [&space[..length], &mad[..]].concat();
    let mut crc = seed(flow, 0, packet.len() + ICRC_LEN);
    crc.begin(&packet);
    packet.extend_from_slice(&crc.finish().to_le_bytes());
    packet
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gsi::Gsi;
    use crate::socket::Arrival;
    use adverb_wire::ib::mad::Mad;

    fn entry(local: IpAddr, peer: IpAddr) -> Entry {
        Entry { local_id: 0x1234_5678, remote_id: 9, remote_number: 0xab_cdef, local, peer, scope: 0 }
    }

    #[test]
    fn what_is_written_is_found_when_the_process_is_gone() {
        let record = Record::new().unwrap();
        let written = entry("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap());
        let other = entry("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap());
        let places = [&written, &other, &written].map(|entry| record.note(entry).unwrap());
        assert_eq!(record.take_left_behind(), [], "this process lives");
        record.forget(places[2]);
        assert_eq!(record.note(&written), Some(places[2]));
        record.forget(places[2]);
        let nobody = std::process::Command::new("true").spawn().unwrap();
        let gone = nobody.id();
        let mut nobody = nobody;
        nobody.wait().unwrap();
        for place in places {
            record.page.slots[place as usize].process.store(gone, Ordering::Relaxed);
        }
        record.forget(places[0]);
        assert_eq!(record.take_left_behind(), [written, other]);
        assert_eq!(record.take_left_behind(), []);
    }

    #[test]
    fn the_request_is_one_that_peers_believe() {
        for host in ["127.0.0.1", "::1"] {
            let host: IpAddr = host.parse().unwrap();
            let flow = Flow { source: host, destination: host, source_port: 5000, destination_port: PORT };
            let arrival = Arrival {
                source: host,
                source_port: 5000,
                local: host,
                local_port: PORT,
                interface: 1,
                class: 0,
                hops: 64,
                bytes: &packet(&entry(host, host), &flow),
            };
            let (mad, _) = Gsi::check(&arrival).unwrap();
            let message = Message::parse(Mad::parse(mad).unwrap()).unwrap();
            let Message::Dreq(request) = message else { panic!("{message:?}") };
            assert_eq!((request.remote_communication_id, request.remote_qpn), (9, 0xab_cdef));
        }
    }
}
