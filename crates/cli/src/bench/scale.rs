//! Many peers at once: senders in processes of their own, and connections.

use super::session::{Session, number};
use super::stream::rate;
use super::target::{Answer, Order};
use crate::pair::child::Child;
use crate::pair::link::{Link, MESSAGE, PEER_TIMEOUT, SHARED, Stream};
use adverb::{Connection, Listener, ProtectionDomain, QueuePair, QueuePairOptions, WorkRequest};
use std::time::Instant;

/// Depth of each of many queue pairs.
const DEPTH: u32 = 16;
/// Threads that make connections at once.
const THREADS: usize = 16;
/// Bytes that a receive buffer gets on request where nobody has changed the distribution's limit
/// (net.core.rmem_max).
const SMALL: i32 = 212_992;
/// What the engine asks for.
const LARGE: i32 = 4 << 20;

impl Session {
    /// Bytes per second that so many processes together write to the target.
    pub(super) fn crowd(&mut self, device: &str, senders: usize, count: usize) -> Result<f64, String> {
        let mut crowd = Vec::with_capacity(senders);
        for _ in 0..senders {
            let environment = [("ADVERB_DEVICE", device)];
            let mut sender: Child<Order, Answer> =
                Child::start("sender", &["bench", "--target"], &environment)?;
            self.target.order(&Order::AcceptSender)?;
            sender.ask(&Order::Join(device.to_owned(), self.address), Instant::now() + 2 * PEER_TIMEOUT)?;
            self.done()?;
            crowd.push(sender);
        }
        self.ask(&Order::UseSmallSockets(true))?;
        // As much memory is written to, however many there are.
        let order = Order::Pour(count / senders, SHARED / MESSAGE / senders);
        let start = Instant::now();
        crowd.iter_mut().try_for_each(|sender| sender.order(&order))?;
        for sender in &mut crowd {
            sender.answer(start + 6 * PEER_TIMEOUT)?;
        }
        let rate = rate(start, MESSAGE, count);
        drop(crowd);
        self.ask(&Order::DropSenders)?;
        self.ask(&Order::UseSmallSockets(false))?;
        Ok(rate)
    }

    /// Makes so many connections of small queue pairs: how many a second, and the resident memory of each
    /// end.
    pub(super) fn connections(&mut self, count: usize) -> Result<(f64, f64), String> {
        self.connect_many(THREADS * 4)?;
        self.connect_many(count)
    }

    fn connect_many(&mut self, count: usize) -> Result<(f64, f64), String> {
        self.target.order(&Order::AcceptMany(count))?;
        let start = Instant::now();
        let (here, connections) = many(count, || {
            let queue_pair = queue_pair(self.link.domain())?;
            queue_pair.connect(self.address, &[], PEER_TIMEOUT).map_err(|error| error.to_string())
        })?;
        let rate = count as f64 / start.elapsed().as_secs_f64();
        let there = number(self.target.answer(Instant::now() + 6 * PEER_TIMEOUT)?)?;
        self.target.order(&Order::DropIdle)?;
        drop(connections);
        self.done()?;
        Ok((rate, here.max(there)))
    }
}

/// Writes blocks to the start of the peer's memory, to so many places in turn.
pub(super) fn pour(link: &Link, count: usize, places: usize) -> Result<(), String> {
    let memory = link.domain().memory_region(places * MESSAGE, adverb::Rights::empty());
    let memory = memory.map_err(|error| error.to_string())?;
    let mut stream = Stream::sleeping(link);
    for index in 0..count {
        let at = index % places * MESSAGE;
        let there = link.there(at..at + MESSAGE)?;
        stream.post(WorkRequest::write(memory.slice(at..at + MESSAGE), &there))?;
    }
    // Answered only when all that is before it has arrived.
    stream.post(WorkRequest::read(memory.slice(..8), &link.there(..8)?))?;
    stream.finish()
}

/// Takes so many connections; the resident memory of each, and the connections.
pub(super) fn accept(
    listener: &Listener,
    domain: &ProtectionDomain,
    count: usize,
) -> Result<(f64, Vec<Connection>), String> {
    many(count, || {
        let request = listener.accept(PEER_TIMEOUT).map_err(|error| error.to_string())?;
        request.accept(queue_pair(domain)?, &[], PEER_TIMEOUT).map_err(|error| error.to_string())
    })
}

/// Calls `make` so many times, in several threads; what each call adds to the resident memory of the process.
fn many(
    count: usize,
    make: impl Fn() -> Result<Connection, String> + Sync,
) -> Result<(f64, Vec<Connection>), String> {
    let mut made = Vec::with_capacity(count);
    let before = resident()?;
    std::thread::scope(|scope| {
        let each = |thread| (count + thread) / THREADS;
        let make = &make;
        let start = |thread| scope.spawn(move || (0..each(thread)).map(|_| make()).collect());
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        for thread in threads {
            let some: Result<Vec<_>, String> = thread.join().map_err(|_| "a thread has panicked")?;
            made.extend(some?);
        }
        Ok::<_, String>(())
    })?;
    Ok(((resident()? - before) / count as f64, made))
}

fn queue_pair(domain: &ProtectionDomain) -> Result<QueuePair, String> {
    let queue = domain.context().completion_queue(DEPTH).map_err(|error| error.to_string())?;
    let options = QueuePairOptions {
        max_sends: DEPTH,
        max_receives: DEPTH,
        inline_bytes: 0,
        ..QueuePairOptions::new(&queue)
    };
    domain.queue_pair(options).map_err(|error| error.to_string())
}

/// Resident memory of this process.
fn resident() -> Result<f64, String> {
    let text = std::fs::read_to_string("/proc/self/statm").map_err(|error| error.to_string())?;
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<f64>().ok());
    // SAFETY: a plain number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    Ok(pages.ok_or("/proc/self/statm is not as it should be")? * page as f64)
}

/// Gives all UDP sockets of this process the receive buffer of an ordinary user with the distribution's
/// settings, or what they had.
pub(super) fn use_small_sockets(small: bool) -> std::io::Result<()> {
    let room = if small { SMALL } else { LARGE };
    let length = size_of::<i32>() as libc::socklen_t;
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let Some(fd) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        let (mut kind, mut known) = (0i32, length);
        // SAFETY: live locals and their sizes; a descriptor that is no socket is refused.
        unsafe {
            if libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &raw mut known)
                == 0
                && kind == libc::SOCK_DGRAM
            {
                libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_RCVBUF, (&raw const room).cast(), length);
            }
        }
    }
    Ok(())
}
