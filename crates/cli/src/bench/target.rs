//! The other process of the benchmark.

use super::tcp::Tcp;
use crate::pair::child;
use crate::pair::link::{Link, MESSAGE, RECEIVES, WORDS, Waiting, poll_until};
use adverb::{Connection, Context, Listener, QueuePairOptions, WorkRequest};
use serde::{Deserialize, Serialize};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the other process is told to do. While it has nothing to do it sleeps in a read of its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Open the device, and listen on it.
    Open(String),
    /// Take the connection for the measurements.
    Accept,
    /// Take one for nothing but to be there.
    AcceptIdle,
    /// Forget those.
    DropIdle,
    /// Listen for the yardstick's connection, and say where.
    ListenTcp,
    /// Take it.
    AcceptTcp,
    /// Return messages of 8 bytes.
    ReturnSends(usize),
    /// Return words that are written.
    ReturnWrites(usize),
    /// Poll until a message comes.
    Attend,
    /// Take in messages of this size, so many.
    TakeSends(usize, usize),
    /// Return 8 bytes over TCP.
    ReturnTcp(usize),
    /// Take in blocks of this size over TCP, so many.
    TakeTcp(usize, usize),
}

/// What it answers.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    At(SocketAddr),
}

#[derive(Default)]
struct Target {
    // Dropped in this order.
    idle: Vec<Connection>,
    link: Option<Link>,
    tcp: Option<Tcp>,
    tcp_listener: Option<TcpListener>,
    listener: Option<Listener>,
    context: Option<Context>,
}

/// Carries out orders from standard input until it closes.
pub(super) fn serve(limit: Duration) {
    let mut target = Target::default();
    child::serve(limit, |order| target.carry_out(order));
}

/// A queue pair of 128 + 128 requests on a queue of its own domain, for an idle connection.
pub(super) fn idle_options(link: &Link) -> QueuePairOptions {
    QueuePairOptions {
        send_queue: link.sends.clone(),
        inline_bytes: 0,
        ..QueuePairOptions::new(&link.receives)
    }
}

impl Target {
    fn carry_out(&mut self, order: Order) -> Result<Answer, String> {
        let anywhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        match order {
            Order::Open(device) => {
                let context = Context::open(&device).map_err(text)?;
                let listener = Listener::bind(&context, anywhere, 64).map_err(text)?;
                let address = listener.local_address();
                (self.context, self.listener) = (Some(context), Some(listener));
                return Ok(Answer::At(address));
            }
            Order::Accept => {
                let (Some(context), Some(listener)) = (&self.context, &self.listener) else {
                    return Err("not listening".into());
                };
                self.link = Some(Link::accept(context, listener)?);
            }
            Order::AcceptIdle => {
                let listener = self.listener.as_ref().ok_or("not listening")?;
                let link = self.link()?;
                let request = listener.accept(crate::pair::link::PATIENCE).map_err(text)?;
                let queue_pair = link.domain().queue_pair(idle_options(link)).map_err(text)?;
                let connection =
                    request.accept(queue_pair, &[], crate::pair::link::PATIENCE).map_err(text)?;
                self.idle.push(connection);
            }
            Order::DropIdle => self.idle.clear(),
            Order::ListenTcp => {
                let listener = TcpListener::bind(anywhere).map_err(text)?;
                let address = listener.local_addr().map_err(text)?;
                self.tcp_listener = Some(listener);
                return Ok(Answer::At(address));
            }
            Order::AcceptTcp => {
                let listener = self.tcp_listener.as_ref().ok_or("not listening")?;
                self.tcp = Some(Tcp::new(listener.accept().map_err(text)?.0)?);
            }
            Order::ReturnSends(rounds) => {
                let link = self.link()?;
                for _ in 0..rounds {
                    // The answer first: the message's buffer has time.
                    let message = link.heard()?;
                    link.post(WorkRequest::send(&[2; 8]))?;
                    link.offer_again(message)?;
                    link.sent()?;
                }
            }
            Order::ReturnWrites(rounds) => return_writes(self.link()?, rounds)?,
            Order::Attend => self.link()?.hear(Waiting::Polling, |_| Ok(()))?,
            Order::TakeSends(size, count) => take_sends(self.link()?, size, count)?,
            Order::ReturnTcp(rounds) => self.tcp()?.pong(rounds)?,
            Order::TakeTcp(size, count) => self.tcp()?.drain(size, count)?,
        }
        Ok(Answer::Done)
    }

    fn link(&self) -> Result<&Link, String> {
        self.link.as_ref().ok_or_else(|| "not connected".to_owned())
    }

    fn tcp(&mut self) -> Result<&mut Tcp, String> {
        self.tcp.as_mut().ok_or_else(|| "no TCP connection".to_owned())
    }
}

fn return_writes(link: &Link, rounds: usize) -> Result<(), String> {
    let there = link.peer.slice(WORDS..WORDS + 8);
    let word = &link.shared.words()[WORDS / 8];
    word.store(0, Ordering::Release);
    link.tell(b"ready")?;
    for turn in 1..=rounds as u64 {
        poll_until(link, || word.load(Ordering::Acquire) == turn)?;
        link.post(WorkRequest::write(&turn.to_ne_bytes(), &there))?;
    }
    link.settle()
}

/// Messages that may be on their way at once.
pub(super) const WINDOW: usize = RECEIVES / 2;

fn take_sends(link: &Link, size: usize, count: usize) -> Result<(), String> {
    debug_assert!(size <= MESSAGE);
    for index in 0..count {
        link.hear(Waiting::Polling, |completion| match completion.bytes == size {
            true => Ok(()),
            false => Err(format!("{} bytes instead of {size}", completion.bytes)),
        })?;
        if (index + 1) % (WINDOW / 2) == 0 {
            link.tell(b"more")?;
        }
    }
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
