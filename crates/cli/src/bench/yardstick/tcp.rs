//! The yardstick: the same bytes over a raw TCP connection, as a program would send them that knows nothing
//! of RDMA.

use crate::pair::link::{PEER_TIMEOUT, SHARED};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Bytes that streams come from and go to, as much as the RDMA streams use, so that neither has the better
/// caches.
const RING: usize = SHARED;

/// A connection as both sides of the yardstick use it.
pub(in crate::bench) struct Tcp {
    stream: TcpStream,
    ring: Vec<u8>,
}

impl Tcp {
    pub(in crate::bench) fn new(stream: TcpStream) -> Result<Self, String> {
        let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PEER_TIMEOUT)));
        set.and_then(|()| stream.set_write_timeout(Some(PEER_TIMEOUT)))
            .map_err(|error| format!("setting up a TCP connection: {error}"))?;
        Ok(Self { stream, ring: vec![0x5a; RING] })
    }

    fn busy(&self, busy: bool) -> Result<(), String> {
        self.stream.set_nonblocking(busy).map_err(text)
    }

    /// So many bytes there and back, busily waiting.
    pub(in crate::bench) fn ping(
        &mut self,
        size: usize,
        rounds: usize,
        mut took: impl FnMut(u64),
    ) -> Result<(), String> {
        self.busy(true)?;
        for _ in 0..rounds {
            let start = Instant::now();
            self.put(size)?;
            self.get(size)?;
            took(start.elapsed().as_nanos() as u64);
        }
        self.busy(false)
    }

    /// The other side of [`Tcp::ping`].
    pub(in crate::bench) fn pong(&mut self, size: usize, rounds: usize) -> Result<(), String> {
        self.busy(true)?;
        for _ in 0..rounds {
            self.get(size)?;
            self.put(size)?;
        }
        self.busy(false)
    }

    fn put(&mut self, size: usize) -> Result<(), String> {
        let Self { stream, ring } = self;
        busily(size, |done| stream.write(&ring[done..size]))
    }

    fn get(&mut self, size: usize) -> Result<(), String> {
        let Self { stream, ring } = self;
        busily(size, |done| stream.read(&mut ring[done..size]))
    }

    /// Sends `count` blocks of `size` bytes, and waits until the other side has them all.
    pub(in crate::bench) fn pour(&mut self, size: usize, count: usize, span: usize) -> Result<(), String> {
        for index in 0..count {
            let at = index % (span / size) * size;
            self.stream.write_all(&self.ring[at..at + size]).map_err(text)?;
        }
        self.stream.read_exact(&mut [0; 1]).map_err(text)
    }

    /// The other side of [`Tcp::pour`].
    pub(in crate::bench) fn drain(&mut self, size: usize, count: usize, span: usize) -> Result<(), String> {
        for index in 0..count {
            let at = index % (span / size) * size;
            self.stream.read_exact(&mut self.ring[at..at + size]).map_err(text)?;
        }
        self.stream.write_all(&[1]).map_err(text)
    }
}

/// Moves so many bytes, asking again and again while nothing goes on.
fn busily(size: usize, mut step: impl FnMut(usize) -> std::io::Result<usize>) -> Result<(), String> {
    let (mut done, mut start) = (0, None);
    while done < size {
        match step(done) {
            Ok(0) => return Err("the TCP peer has gone".into()),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if start.get_or_insert_with(Instant::now).elapsed() > PEER_TIMEOUT {
                    return Err("the TCP peer does not answer".into());
                }
            }
            Err(error) => return Err(text(error)),
        }
    }
    Ok(())
}

fn text(error: std::io::Error) -> String {
    format!("the TCP connection: {error}")
}
