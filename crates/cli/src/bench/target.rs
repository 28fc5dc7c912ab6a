//! The other process of the benchmark.

use super::compare::idle::{self, Bare, Holdings};
use super::latency::{INLINE, payload, post_turn};
use super::session::{own_memory, text};
use super::yardstick::tcp::Tcp;
use super::yardstick::udp::{Service, Udp, spin};
use super::{network, processors, scale};
use crate::pair::link::{Link, PEER_TIMEOUT, SHARED, Shape, Waiting, poll_until};
use crate::pair::{child, pattern};
use adverb::{Connection, Context, Listener, MemoryRegion, QueuePair, QueuePairOptions, WorkRequest};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the other process is told to do. While it has nothing to do it sleeps in a read of its standard
/// input.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Go into a network namespace of its own.
    MoveApart,
    /// Use the end of the cable there.
    Plug(IpAddr),
    /// Measure on this one of the processors, or on any.
    Keep(Option<usize>),
    /// Open the device, and listen at this address.
    Open(String, IpAddr),
    /// Take the connection for the measurements, with messages of this shape.
    Accept(Shape),
    /// Take one for nothing but to be there.
    AcceptIdle,
    /// Take so many of small queue pairs on one completion queue; the first time, also make what they have in
    /// common.
    AcceptBare(usize),
    /// Say what this process has that is scarce.
    SayHoldings,
    /// Do with so many descriptors.
    LimitDescriptors(u64),
    /// Forget idle connections.
    DropIdle,
    /// Listen for the yardstick's connection at this address, and say where.
    ListenTcp(IpAddr),
    /// Take it.
    AcceptTcp,
    /// Return messages of this size, so many.
    ReturnSends(usize, usize),
    /// Return blocks of this size that are written, so many.
    ReturnWrites(usize, usize, Watching),
    /// Poll until a message comes.
    Attend,
    /// Take in messages of this size, so many.
    TakeSends(usize, usize),
    /// Return so many bytes over TCP, so often.
    ReturnTcp(usize, usize),
    /// Take in blocks of this size over TCP, so many, into so many bytes of memory.
    TakeTcp(usize, usize, usize),
    /// Make the yardstick's socket on this address, and say where it is.
    BindUdp(IpAddr),
    /// The address of the other UDP socket.
    ConnectUdp(SocketAddr),
    /// Return 8 bytes over UDP, acknowledged.
    ReturnUdp(Service, usize),
    /// Return datagrams of this size, so many.
    ReturnDatagrams(usize, usize),
    /// Take in a stream over UDP in datagrams of this size, and say how fast it was.
    TakeUdp(usize),
    /// Let datagrams leave one by one, or not.
    SingleDatagrams(bool),
    /// Lose some of those that come in, or none.
    Lose(bool),
    /// Make all that the other side may write zero.
    Clear,
    /// Check that it is the pattern of this seed.
    Verify(u64),
    /// Take the connection of one of many senders.
    AcceptSender,
    /// Forget those.
    DropSenders,
    /// Do with socket buffers of the size that an ordinary user gets where nobody has changed it, or with
    /// larger ones.
    UseSmallSockets(bool),
    /// Open the device, and connect to this address as one of many senders.
    Join(String, SocketAddr),
    /// Write so many blocks, sleeping whenever there is nothing to do, to so many places in turn.
    Pour(usize, usize),
    /// Take so many connections of small queue pairs, and say how much memory each of them takes.
    AcceptMany(usize),
}

/// How to wait for a word that the other side writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Watching {
    /// Looking at it, and asking the completion queue, in turn.
    Both,
    /// Looking at nothing but it. The completion of the answer is awaited as soon as that is posted.
    Memory,
}

/// The answer of the target to a command.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    At(SocketAddr),
    Number(f64),
    Holdings(Holdings),
}

#[derive(Default)]
struct Target {
    // Dropped in this order.
    idle: Vec<Connection>,
    bare: Option<Bare>,
    senders: Vec<Link>,
    memory: Option<MemoryRegion>,
    link: Option<Link>,
    tcp: Option<Tcp>,
    udp: Option<Udp>,
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
        match order {
            Order::MoveApart => network::move_apart().map_err(text)?,
            Order::Plug(address) => network::plug(address)?,
            Order::Keep(place) => processors::keep(place),
            Order::Open(device, address) => {
                let context = Context::open(&device).map_err(text)?;
                let listener = Listener::bind(&context, (address, 0).into(), 64).map_err(text)?;
                let address = listener.local_address();
                (self.context, self.listener) = (Some(context), Some(listener));
                return Ok(Answer::At(address));
            }
            Order::Accept(shape) => {
                let context = self.context.as_ref().ok_or("the device is not open")?;
                let link = Link::accept_as(shape, context, self.listener()?)?;
                self.memory = Some(own_memory(&link)?);
                self.link = Some(link);
            }
            Order::AcceptIdle => {
                let link = self.link()?;
                let queue_pair = link.domain().queue_pair(idle_options(link)).map_err(text)?;
                let connection = self.accept_idle(queue_pair)?;
                self.idle.push(connection);
            }
            Order::AcceptBare(count) => {
                if self.bare.is_none() {
                    self.bare = Some(Bare::new(self.context.as_ref().ok_or("the device is not open")?)?);
                }
                for _ in 0..count {
                    let bare = self.bare.as_ref().ok_or("there is nothing to connect")?;
                    let connection = self.accept_idle(bare.queue_pair()?)?;
                    self.idle.push(connection);
                }
            }
            Order::SayHoldings => return Holdings::now().map(Answer::Holdings),
            Order::LimitDescriptors(count) => idle::limit(count)?,
            Order::DropIdle => self.idle.clear(),
            Order::ListenTcp(address) => {
                let listener = TcpListener::bind((address, 0)).map_err(text)?;
                let address = listener.local_addr().map_err(text)?;
                self.tcp_listener = Some(listener);
                return Ok(Answer::At(address));
            }
            Order::AcceptTcp => {
                let listener = self.tcp_listener.as_ref().ok_or("not listening")?;
                self.tcp = Some(Tcp::new(listener.accept().map_err(text)?.0)?);
            }
            Order::ReturnSends(size, rounds) => {
                let (link, memory) = (self.link()?, self.memory()?);
                let mut bytes = [2; INLINE];
                for _ in 0..rounds {
                    // A program answers first, and cleans up then.
                    let message = link.heard()?;
                    link.post(WorkRequest::send(payload(memory, size, &mut bytes)))?;
                    link.offer_again(message)?;
                    link.sent()?;
                }
            }
            Order::ReturnWrites(size, rounds, watching) => {
                return_writes(self.link()?, self.memory()?, size, rounds, watching)?;
            }
            Order::Attend => self.link()?.hear(Waiting::Polling, |_| Ok(()))?,
            Order::TakeSends(size, count) => take_sends(self.link()?, size, count)?,
            Order::ReturnTcp(size, rounds) => self.tcp()?.pong(size, rounds)?,
            Order::TakeTcp(size, count, span) => self.tcp()?.drain(size, count, span)?,
            Order::BindUdp(address) => {
                let udp = Udp::bind(address).map_err(text)?;
                let address = udp.address().map_err(text)?;
                self.udp = Some(udp);
                return Ok(Answer::At(address));
            }
            Order::ConnectUdp(peer) => self.udp()?.connect(peer).map_err(text)?,
            Order::ReturnUdp(service, rounds) => self.udp()?.pong(service, rounds as u64).map_err(text)?,
            Order::ReturnDatagrams(size, rounds) => self.udp()?.catch(size, rounds).map_err(text)?,
            Order::TakeUdp(datagram) => {
                return self.udp()?.drain(datagram).map(Answer::Number).map_err(text);
            }
            Order::SingleDatagrams(single) => network::single_datagrams(single)?,
            Order::Lose(losing) => network::lose(losing)?,
            Order::Clear => self.link()?.shared.write(0, &vec![0; SHARED]),
            Order::Verify(seed) => {
                let found = self.link()?.shared.to_vec(..SHARED);
                pattern::check("the memory of the target", &found, &pattern::bytes(SHARED, seed))?;
            }
            Order::AcceptSender => self.senders.push(self.accept()?),
            Order::DropSenders => self.senders.clear(),
            Order::UseSmallSockets(small) => scale::use_small_sockets(small).map_err(text)?,
            Order::Join(device, address) => {
                let context = Context::open(&device).map_err(text)?;
                self.link = Some(Link::connect(&context, address)?);
                self.context = Some(context);
            }
            Order::Pour(count, places) => scale::pour(self.link()?, count, places)?,
            Order::AcceptMany(count) => {
                let (bytes, connections) = scale::accept(self.listener()?, self.link()?.domain(), count)?;
                self.idle.extend(connections);
                return Ok(Answer::Number(bytes));
            }
        }
        Ok(Answer::Done)
    }

    fn listener(&self) -> Result<&Listener, String> {
        self.listener.as_ref().ok_or_else(|| "not listening".to_owned())
    }

    fn accept_idle(&self, queue_pair: QueuePair) -> Result<Connection, String> {
        let request = self.listener()?.accept(PEER_TIMEOUT).map_err(text)?;
        request.accept(queue_pair, &[], PEER_TIMEOUT).map_err(text)
    }

    fn accept(&self) -> Result<Link, String> {
        Link::accept(self.context.as_ref().ok_or("the device is not open")?, self.listener()?)
    }

    fn link(&self) -> Result<&Link, String> {
        self.link.as_ref().ok_or_else(|| "not connected".to_owned())
    }

    fn memory(&self) -> Result<&MemoryRegion, String> {
        self.memory.as_ref().ok_or_else(|| "not connected".to_owned())
    }

    fn tcp(&mut self) -> Result<&mut Tcp, String> {
        self.tcp.as_mut().ok_or_else(|| "no TCP connection".to_owned())
    }

    fn udp(&mut self) -> Result<&mut Udp, String> {
        self.udp.as_mut().ok_or_else(|| "no UDP socket".to_owned())
    }
}

fn return_writes(
    link: &Link,
    memory: &MemoryRegion,
    size: usize,
    rounds: usize,
    watching: Watching,
) -> Result<(), String> {
    let word = &link.shared.words()[size / 8 - 1];
    word.store(0, Ordering::Release);
    link.tell(b"ready")?;
    for turn in 1..=rounds as u64 {
        watching.wait(link, || word.load(Ordering::Acquire) == turn)?;
        post_turn(link, memory, size, turn)?;
        watching.posted(link)?;
    }
    link.settle()
}

impl Watching {
    /// Waits for the word.
    pub(super) fn wait(self, link: &Link, mut done: impl FnMut() -> bool) -> Result<(), String> {
        if self == Self::Both {
            return poll_until(link, done);
        }
        spin(|| Ok(done())).map_err(text)
    }

    /// What to do once a write is posted.
    pub(super) fn posted(self, link: &Link) -> Result<(), String> {
        if self == Self::Memory {
            link.sent()?;
        }
        Ok(())
    }
}

fn take_sends(link: &Link, size: usize, count: usize) -> Result<(), String> {
    debug_assert!(size <= link.shape.message);
    for index in 0..count {
        link.hear(Waiting::Polling, |completion| match completion.bytes == size {
            true => Ok(()),
            false => Err(format!("{} bytes instead of {size}", completion.bytes)),
        })?;
        if (index + 1) % (link.shape.window() / 2) == 0 {
            link.tell(b"more")?;
        }
    }
    Ok(())
}
