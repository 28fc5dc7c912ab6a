//! The yardstick: the same bytes over a raw TCP connection, as a program would send them that knows nothing of RDMA.

use crate::pair::link::PATIENCE;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Instant;

/// Bytes that streams come from and go to, as much as the RDMA streams use, so that neither has the better caches.
const RING: usize = 4 << 20;

/// A connection as both sides of the yardstick use it.
pub(super) struct Tcp {
    stream: TcpStream,
    ring: Vec<u8>,
}

impl Tcp {
    pub(super) fn new(stream: TcpStream) -> Result<Self, String> {
        let set = stream.set_nodelay(true).and_then(|()| stream.set_read_timeout(Some(PATIENCE)));
        set.and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
            .map_err(|error| format!("setting up a TCP connection: {error}"))?;
        Ok(Self { stream, ring: vec![0x5a; RING] })
    }

    fn busy(&self, busy: bool) -> Result<(), String> {
        self.stream.set_nonblocking(busy).map_err(text)
    }

    /// Eight bytes there and back, busily waiting.
    pub(super) fn ping(&mut self, rounds: usize, mut took: impl FnMut(u64)) -> Result<(), String> {
        self.busy(true)?;
        for _ in 0..rounds {
            let start = Instant::now();
            self.put()?;
            self.get()?;
            took(start.elapsed().as_nanos() as u64);
        }
        self.busy(false)
    }

    /// The other side of [`Tcp::ping`].
    pub(super) fn pong(&mut self, rounds: usize) -> Result<(), String> {
        self.busy(true)?;
        for _ in 0..rounds {
            self.get()?;
            self.put()?;
        }
        self.busy(false)
    }

    fn put(&mut self) -> Result<(), String> {
        self.stream.write_all(&[1; 8]).map_err(text)
    }

    fn get(&mut self) -> Result<(), String> {
        let (mut word, mut have) = ([0; 8], 0);
        let mut start = None;
        while have < word.len() {
            match self.stream.read(&mut word[have..]) {
                Ok(0) => return Err("the TCP peer has gone".into()),
                Ok(count) => have += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if start.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                        return Err("the TCP peer does not answer".into());
                    }
                }
                Err(error) => return Err(text(error)),
            }
        }
        Ok(())
    }

    /// Sends `count` blocks of `size` bytes, and waits until the other side has them all.
    pub(super) fn pour(&mut self, size: usize, count: usize) -> Result<(), String> {
        for index in 0..count {
            let at = index * size % (RING - size + 1);
            self.stream.write_all(&self.ring[at..at + size]).map_err(text)?;
        }
        self.stream.read_exact(&mut [0; 1]).map_err(text)
    }

    /// The other side of [`Tcp::pour`].
    pub(super) fn drain(&mut self, size: usize, count: usize) -> Result<(), String> {
        for index in 0..count {
            let at = index * size % (RING - size + 1);
            self.stream.read_exact(&mut self.ring[at..at + size]).map_err(text)?;
        }
        self.stream.write_all(&[1]).map_err(text)
    }
}

fn text(error: std::io::Error) -> String {
    format!("the TCP connection: {error}")
}
