//! The yardsticks of RoCE: the same datagrams over plain UDP sockets, as a program would send them that has
//! nothing else to do.

use crate::pair::link::PEER_TIMEOUT;
use std::io::{Error, Result};
use std::mem::{size_of, zeroed};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A message of 8 bytes with the headers and the invariant CRC of RoCE.
const MESSAGE: usize = 12 + 8 + 4;
/// An acknowledgement.
const ACKNOWLEDGEMENT: usize = 12 + 4 + 4;
/// The middle of a long message at the largest path MTU.
pub(in crate::bench) const DATAGRAM: usize = 12 + 4096 + 4;
/// Bytes of the datagrams in one segmented send, at most, and their number.
const TRAIN: (usize, usize) = (15 * DATAGRAM, 64);
/// The longest datagram that is thrown and caught.
pub(in crate::bench) const LONGEST_DATAGRAM: usize = 32 << 10;
/// Bytes that a stream comes from and goes to.
const RING: usize = 4 << 20;
/// What is longer than any train.
const LONGEST: usize = 1 << 16;
/// A stream has ended when nothing has come for so long.
const SILENCE: Duration = Duration::from_millis(200);

// The names that libc lacks.
const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;

/// The thread that sees a message of a ping-pong first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub(in crate::bench) enum Service {
    /// The thread that answers, which asks the socket again and again.
    Polling,
    /// A thread that sleeps in epoll and stores the word of the message, on which the one that answers spins.
    Thread,
}

/// A connected socket as both sides of the yardsticks use it.
pub(in crate::bench) struct Udp {
    socket: UdpSocket,
    ring: Vec<u8>,
}

impl Udp {
    pub(in crate::bench) fn bind(address: IpAddr) -> Result<Self> {
        let socket = UdpSocket::bind((address, 0))?;
        socket.set_nonblocking(true)?;
        let udp = Self { socket, ring: vec![0x5a; RING] };
        for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
            udp.set(libc::SOL_SOCKET, option, 4 << 20)?;
        }
        Ok(udp)
    }

    pub(in crate::bench) fn address(&self) -> Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(in crate::bench) fn connect(&self, peer: SocketAddr) -> Result<()> {
        self.socket.connect(peer)
    }

    fn set(&self, level: i32, option: i32, value: i32) -> Result<()> {
        let (fd, length) = (self.socket.as_raw_fd(), size_of::<i32>() as libc::socklen_t);
        // SAFETY: four bytes of a live local.
        check(unsafe { libc::setsockopt(fd, level, option, (&raw const value).cast(), length) } as isize)
            .map(drop)
    }

    /// Eight bytes there and back, each message acknowledged along with the answer to it.
    pub(in crate::bench) fn ping(
        &self,
        service: Service,
        rounds: u64,
        mut took: impl FnMut(u64),
    ) -> Result<()> {
        self.waiting(service, rounds, |wait| {
            for turn in 1..=rounds {
                let start = Instant::now();
                self.put(turn, turn > 1)?;
                wait(turn)?;
                took(start.elapsed().as_nanos() as u64);
            }
            Ok(())
        })
    }

    /// The other side of [`Udp::ping`].
    pub(in crate::bench) fn pong(&self, service: Service, rounds: u64) -> Result<()> {
        self.waiting(service, rounds, |wait| {
            for turn in 1..=rounds {
                wait(turn)?;
                self.put(turn, true)?;
            }
            Ok(())
        })
    }

    /// Runs `work` with the way to wait for the message of a turn.
    fn waiting(
        &self,
        service: Service,
        rounds: u64,
        work: impl FnOnce(&mut dyn FnMut(u64) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        let word = AtomicU64::new(0);
        std::thread::scope(|scope| {
            if service == Service::Thread {
                scope.spawn(|| self.serve(&word, rounds));
            }
            work(&mut |turn| {
                spin(|| {
                    if service == Service::Polling
                        && let Some(turn) = self.get()?
                    {
                        word.store(turn, Ordering::Relaxed);
                    }
                    Ok(word.load(Ordering::Acquire) == turn)
                })
            })
        })
    }

    /// Sleeps until something arrives, and stores the word of each message, until that of the last one.
    fn serve(&self, word: &AtomicU64, last: u64) -> Result<()> {
        crate::bench::processors::keep(None);
        // SAFETY: the new descriptor is nobody else's; the event is a live local.
        unsafe {
            let epoll =
                OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC) as isize)? as i32);
            let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
            let (fd, socket) = (epoll.as_raw_fd(), self.socket.as_raw_fd());
            check(libc::epoll_ctl(fd, libc::EPOLL_CTL_ADD, socket, &raw mut event) as isize)?;
            while word.load(Ordering::Relaxed) != last {
                if check(libc::epoll_wait(fd, &raw mut event, 1, PEER_TIMEOUT.as_millis() as i32) as isize)?
                    == 0
                {
                    break;
                }
                if let Some(turn) = self.get()? {
                    word.store(turn, Ordering::Release);
                }
            }
        }
        Ok(())
    }

    /// Sends a message, behind the acknowledgement of the one that it answers.
    fn put(&self, turn: u64, acknowledge: bool) -> Result<()> {
        let (mut message, acknowledgement) = ([0u8; MESSAGE], [0u8; ACKNOWLEDGEMENT]);
        message[..8].copy_from_slice(&turn.to_ne_bytes());
        let mut parts = [part(&acknowledgement), part(&message)];
        // SAFETY: numbers and null pointers.
        let mut heads: [libc::mmsghdr; 2] = unsafe { zeroed() };
        for (head, part) in heads.iter_mut().zip(&mut parts) {
            (head.msg_hdr.msg_iov, head.msg_hdr.msg_iovlen) = (part, 1);
        }
        let heads = if acknowledge { &mut heads[..] } else { &mut heads[1..] };
        // SAFETY: headers of live locals.
        let sent =
            unsafe { libc::sendmmsg(self.socket.as_raw_fd(), heads.as_mut_ptr(), heads.len() as u32, 0) };
        check(sent as isize).map(drop)
    }

    /// Takes in what has come; the turn of the last message in it.
    fn get(&self) -> Result<Option<u64>> {
        let mut room = [[0u8; 2 * MESSAGE]; 4];
        let mut parts = room
            .each_mut()
            .map(|room| libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() });
        // SAFETY: numbers and null pointers.
        let mut heads: [libc::mmsghdr; 4] = unsafe { zeroed() };
        for (head, part) in heads.iter_mut().zip(&mut parts) {
            (head.msg_hdr.msg_iov, head.msg_hdr.msg_iovlen) = (part, 1);
        }
        // SAFETY: headers of live locals; no time limit.
        let got = unsafe {
            libc::recvmmsg(self.socket.as_raw_fd(), heads.as_mut_ptr(), 4, 0, std::ptr::null_mut())
        };
        let got = match check(got as isize) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
            other => other?,
        };
        let mut messages =
            heads[..got].iter().zip(&room).rev().filter(|(head, _)| head.msg_len as usize == MESSAGE);
        Ok(messages.next().map(|(_, bytes)| u64::from_ne_bytes(std::array::from_fn(|at| bytes[at]))))
    }

    /// A datagram there and back, with nothing beside it.
    pub(in crate::bench) fn throw(
        &self,
        size: usize,
        rounds: usize,
        mut took: impl FnMut(u64),
    ) -> Result<()> {
        let mut room = vec![0; size];
        for _ in 0..rounds {
            let start = Instant::now();
            self.socket.send(&self.ring[..size])?;
            self.take(&mut room)?;
            took(start.elapsed().as_nanos() as u64);
        }
        Ok(())
    }

    /// The other side of [`Udp::throw`].
    pub(in crate::bench) fn catch(&self, size: usize, rounds: usize) -> Result<()> {
        let mut room = vec![0; size];
        for _ in 0..rounds {
            self.take(&mut room)?;
            self.socket.send(&self.ring[..size])?;
        }
        Ok(())
    }

    /// The next datagram that fills `room`; others are left over from earlier measurements.
    fn take(&self, room: &mut [u8]) -> Result<()> {
        spin(|| match self.socket.recv(room) {
            Ok(count) => Ok(count == room.len()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        })
    }

    /// Sends so many bytes, in trains of datagrams of this size.
    pub(in crate::bench) fn pour(&self, datagram: usize, bytes: usize) -> Result<()> {
        self.socket.set_nonblocking(false)?;
        self.set(libc::SOL_UDP, UDP_SEGMENT, datagram as i32)?;
        let length = datagram * (TRAIN.0 / datagram).clamp(1, TRAIN.1);
        for index in 0..bytes.div_ceil(length) {
            let at = index * length % (RING - length);
            self.socket.send(&self.ring[at..at + length])?;
        }
        self.set(libc::SOL_UDP, UDP_SEGMENT, 0)?;
        self.socket.set_nonblocking(true)
    }

    /// Takes in what [`Udp::pour`] sends: the bytes per second that came through.
    pub(in crate::bench) fn drain(&mut self, datagram: usize) -> Result<f64> {
        self.socket.set_nonblocking(false)?;
        self.set(libc::SOL_UDP, UDP_GRO, 1)?;
        self.socket.set_read_timeout(Some(PEER_TIMEOUT))?;
        let (mut first, mut last, mut bytes) = (None, Instant::now(), 0);
        loop {
            let at = bytes % (RING - LONGEST);
            match self.socket.recv(&mut self.ring[at..at + LONGEST]) {
                Ok(count) if count < datagram => continue,
                // Those that the time begins with do not count.
                Ok(_) if first.is_none() => {
                    first = Some(Instant::now());
                    self.socket.set_read_timeout(Some(SILENCE))?;
                }
                Ok(count) => (bytes, last) = (bytes + count, Instant::now()),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.socket.set_nonblocking(true)?;
        let first = first.ok_or(Error::other("no datagram of the stream has come"))?;
        Ok(bytes as f64 / last.saturating_duration_since(first).as_secs_f64())
    }
}

/// Asks again and again until it is so.
pub(in crate::bench) fn spin(mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let mut until = None;
    loop {
        for _ in 0..10_000 {
            if done()? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        if Instant::now() > *until.get_or_insert_with(|| Instant::now() + PEER_TIMEOUT) {
            return Err(Error::other("the peer does not answer"));
        }
    }
}

fn part(bytes: &[u8]) -> libc::iovec {
    libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() }
}

fn check(result: isize) -> Result<usize> {
    usize::try_from(result).map_err(|_| Error::last_os_error())
}
