//! `ADVERB_PCAP=FILE`: the packets on every path, as a pcapng file that Wireshark reads. `%p` in the name
//! becomes the process id.
//!
//! An ordinary user cannot capture, so the engine writes what it sends and receives itself. A stream has no
//! packets here: segments are made for it, with true addresses, ports and sequence numbers. Several processes
//! may append to one file: each block is one write, and all sections describe the same kind of interface.

use crate::cancel::CancellationGuard;
use crate::memory;
use crate::{log, setting};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::SystemTime;

static STATE: AtomicU8 = AtomicU8::new(0);
static FILE: OnceLock<File> = OnceLock::new();

/// Whether anything is written. Cheap.
#[inline]
pub fn enabled() -> bool {
    match STATE.load(Ordering::Relaxed) {
        0 => open(),
        state => state == 2,
    }
}

#[cold]
fn open() -> bool {
    let _whole = CancellationGuard::new();
    let Some(name) = setting::variable("ADVERB_PCAP").filter(|name| !name.is_empty()) else {
        STATE.store(1, Ordering::Relaxed);
        return false;
    };
    let name = setting::file(&name);
    // A child of fork goes on in the parent's file, through a descriptor of its own.
    let opened = File::options().append(true).create(true).open(&name).and_then(|mut file| {
        file.write_all(&preamble())?;
        Ok(file)
    });
    let state = match opened {
        Ok(file) => {
            FILE.get_or_init(|| file);
            2
        }
        Err(error) => {
            log!(Error, "ADVERB_PCAP: {name} cannot be written: {error}");
            1
        }
    };
    STATE.store(state, Ordering::Relaxed);
    state == 2
}

const RAW_IP: u16 = 101;

/// Section header and one interface of raw IP packets, times in nanoseconds (draft-ietf-opsawg-pcapng,
/// sections 4.1, 4.2).
fn preamble() -> Vec<u8> {
    let mut section = Vec::new();
    section.extend_from_slice(&0x1a2b_3c4d_u32.to_le_bytes());
    section.extend_from_slice(&[1, 0, 0, 0]);
    section.extend_from_slice(&u64::MAX.to_le_bytes());
    let mut interface = Vec::new();
    interface.extend_from_slice(&RAW_IP.to_le_bytes());
    interface.extend_from_slice(&[0; 6]);
    // Option 9: resolution 10^-9; then the end of options.
    interface.extend_from_slice(&[9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
    let mut bytes = block(0x0a0d_0d0a, &[&section]);
    bytes.extend(block(1, &[&interface]));
    bytes
}

fn block(kind: u32, parts: &[&[u8]]) -> Vec<u8> {
    let body: usize = parts.iter().map(|part| part.len()).sum();
    let length = (12 + body.next_multiple_of(4)) as u32;
    let mut bytes = Vec::with_capacity(length as usize);
    bytes.extend_from_slice(&kind.to_le_bytes());
    bytes.extend_from_slice(&length.to_le_bytes());
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.resize(length as usize - 4, 0);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes
}

/// Writes one IP packet, whose bytes are the parts in order.
pub fn packet(parts: &[&[u8]]) {
    packet_cut(parts, 0);
}

/// Writes one IP packet, whose bytes are the parts in order, and `missing` bytes behind them that are not
/// written.
fn packet_cut(parts: &[&[u8]], missing: usize) {
    let Some(mut file) = FILE.get() else { return };
    let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
    let length = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
    let mut head = [0; 20];
    head[4..8].copy_from_slice(&((now >> 32) as u32).to_le_bytes());
    head[8..12].copy_from_slice(&(now as u32).to_le_bytes());
    head[12..16].copy_from_slice(&length.to_le_bytes());
    head[16..20].copy_from_slice(&length.saturating_add(missing as u32).to_le_bytes());
    let mut all: Vec<&[u8]> = vec![&head];
    all.extend_from_slice(parts);
    let _whole = CancellationGuard::new();
    // A full disk ends the capture, not the program.
    let _ = file.write_all(&block(6, &all));
}

/// A TCP connection in the capture.
pub struct TcpTrace {
    local: SocketAddr,
    peer: SocketAddr,
    sent: u32,
    received: u32,
}

const SYN: u8 = 2;
const PUSH: u8 = 8;
const ACK: u8 = 16;
/// Payload of the segments that are made: far below what an IPv4 packet can hold.
const SEGMENT: usize = 32 << 10;

impl TcpTrace {
    /// Begins the connection: its handshake is written, as the side that connected would have seen it.
    pub fn new(local: SocketAddr, peer: SocketAddr, initiator: bool) -> Self {
        let mut trace = Self { local, peer, sent: 0, received: 0 };
        if initiator {
            trace.write(true, SYN, &[]);
            trace.sent = 1;
            trace.write(false, SYN | ACK, &[]);
            trace.received = 1;
            trace.write(true, ACK, &[]);
        } else {
            trace.write(false, SYN, &[]);
            trace.received = 1;
            trace.write(true, SYN | ACK, &[]);
            trace.sent = 1;
            trace.write(false, ACK, &[]);
        }
        trace
    }

    /// Writes the first `count` bytes that were sent from, or received into, `parts`.
    ///
    /// # Safety
    /// The parts name memory that the caller may read; an address that is not mapped is tolerated.
    pub unsafe fn moved(&mut self, outbound: bool, parts: &[libc::iovec], count: usize) {
        let mut left = count;
        let mut buffer = vec![0; SEGMENT.min(count)];
        for part in parts {
            let mut offset = 0;
            while offset < part.iov_len && left > 0 {
                let here = (part.iov_len - offset).min(left).min(SEGMENT);
                // SAFETY: the caller's; a fault leaves zeros in the capture.
                let _ = unsafe { memory::copy_from(&mut buffer[..here], part.iov_base as usize + offset) };
                self.write(outbound, PUSH | ACK, &buffer[..here]);
                let counter = if outbound { &mut self.sent } else { &mut self.received };
                *counter = counter.wrapping_add(here as u32);
                offset += here;
                left -= here;
            }
        }
    }

    fn write(&self, outbound: bool, flags: u8, payload: &[u8]) {
        let (from, to, sequence, acknowledgement) = if outbound {
            (self.local, self.peer, self.sent, self.received)
        } else {
            (self.peer, self.local, self.received, self.sent)
        };
        let mut tcp = [0; 20];
        tcp[0..2].copy_from_slice(&from.port().to_be_bytes());
        tcp[2..4].copy_from_slice(&to.port().to_be_bytes());
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        tcp[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
        tcp[12] = 5 << 4;
        tcp[13] = flags;
        tcp[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
        match ip_header(from.ip(), to.ip(), 6, 0, tcp.len() + payload.len()) {
            IpHeader::V4(ip) => packet(&[&ip, &tcp, payload]),
            IpHeader::V6(ip) => packet(&[&ip, &tcp, payload]),
        }
    }
}

/// The longest payload of a UDP datagram over IPv4.
const LONGEST: usize = u16::MAX as usize - 20 - 8;

/// Writes a UDP datagram, whose payload had `missing` bytes more. `identification` is that of its IPv4
/// header, where it is known.
pub fn datagram(from: SocketAddr, to: SocketAddr, identification: u16, payload: &[u8], missing: usize) {
    if FILE.get().is_none() {
        return;
    }
    let length = 8 + (payload.len() + missing).min(LONGEST);
    let mut udp = [0; 8];
    udp[0..2].copy_from_slice(&from.port().to_be_bytes());
    udp[2..4].copy_from_slice(&to.port().to_be_bytes());
    udp[4..6].copy_from_slice(&(length as u16).to_be_bytes());
    match ip_header(from.ip(), to.ip(), 17, identification, length) {
        IpHeader::V4(ip) => packet_cut(&[&ip, &udp, payload], missing),
        IpHeader::V6(ip) => packet_cut(&[&ip, &udp, payload], missing),
    }
}

enum IpHeader {
    V4([u8; 20]),
    V6([u8; 40]),
}

fn ip_header(from: IpAddr, to: IpAddr, protocol: u8, identification: u16, length: usize) -> IpHeader {
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let mut ip = [0; 20];
            ip[0] = 0x45;
            ip[2..4].copy_from_slice(&((length + 20) as u16).to_be_bytes());
            ip[4..6].copy_from_slice(&identification.to_be_bytes());
            ip[6] = 0x40;
            ip[8] = 64;
            ip[9] = protocol;
            ip[12..16].copy_from_slice(&from.octets());
            ip[16..20].copy_from_slice(&to.octets());
            let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            IpHeader::V4(ip)
        }
        (from, to) => {
            let octets = |address: IpAddr| match address {
                IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
                IpAddr::V6(v6) => v6.octets(),
            };
            let mut ip = [0; 40];
            ip[0] = 0x60;
            ip[4..6].copy_from_slice(&(length as u16).to_be_bytes());
            ip[6] = protocol;
            ip[7] = 64;
            ip[8..24].copy_from_slice(&octets(from));
            ip[24..40].copy_from_slice(&octets(to));
            IpHeader::V6(ip)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_framed() {
        let bytes = preamble();
        let first = u32::from_le_bytes(bytes[4..8].try_into().unwrap()) as usize;
        assert_eq!(bytes[..4], 0x0a0d_0d0a_u32.to_le_bytes());
        assert_eq!(bytes[first - 4..first], bytes[4..8]);
        assert_eq!(bytes[first..first + 4], 1u32.to_le_bytes());
        assert_eq!(bytes.len() % 4, 0);
        let odd = block(6, &[&[1, 2, 3]]);
        assert_eq!(odd.len(), 16);
    }

    #[test]
    fn the_ip_checksum_is_right() {
        let IpHeader::V4(ip) = ip_header("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 6, 7, 20)
        else {
            panic!()
        };
        let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }
}
