//! A connection to a target process, over which everything is measured.

use super::target::{Answer, Order};
use super::yardstick::tcp::Tcp;
use super::yardstick::udp::Udp;
use super::{network, processors};
use crate::pair::child::Child;
use crate::pair::link::{Link, PEER_TIMEOUT, SHARED, Shape};
use adverb::{Context, MemoryRegion, Opcode, Rights};
use hdrhistogram::Histogram;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::time::Instant;

/// Times in nanoseconds.
pub(super) type Times = Histogram<u64>;

/// No times yet. The bounds are the same for all.
pub(super) fn times() -> Times {
    // A minute is longer than anything here is allowed to take.
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants, and good ones")
}

/// A connection to a target process of its own, and the memory that is used on this side.
pub(super) struct Session {
    // Dropped in this order.
    pub(super) memory: MemoryRegion,
    pub(super) link: Link,
    tcp: Option<Tcp>,
    udp: Option<Udp>,
    pub(super) context: Context,
    pub(super) address: SocketAddr,
    pub(super) target: Child<Order, Answer>,
}

/// Where the target is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In the namespace of this process.
    Here,
    /// At the other end of a cable.
    BehindCable,
}

/// What the target does while one-sided operations meet its memory.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TargetIs {
    Polling,
    Sleeping,
}

impl Session {
    /// Starts a target on a device, with the checksum of its connections on or off where it is optional.
    pub(super) fn start(device: &str, place: Place, checksum: bool) -> Result<Self, String> {
        Self::start_as(Shape::USUAL, device, place, checksum)
    }

    /// Starts a target on a device, as [`Session::start`], for messages of the shape `shape`.
    pub(super) fn start_as(shape: Shape, device: &str, place: Place, checksum: bool) -> Result<Self, String> {
        // What is started runs where its starter may: a target that is to keep apart from this thread needs
        // all of the processors.
        processors::keep(None);
        let crc = if checksum { "on" } else { "off" };
        let environment = [("ADVERB_DEVICE", device), ("ADVERB_CRC", crc)];
        let mut target: Child<Order, Answer> = Child::start("target", &["bench", "--target"], &environment)?;
        let by = Instant::now() + PEER_TIMEOUT;
        let at = match place {
            Place::Here => Ipv4Addr::LOCALHOST.into(),
            Place::BehindCable => {
                target.ask(&Order::MoveApart, by)?;
                network::lay_cable(target.id())?;
                target.ask(&Order::Plug(network::THERE), by)?;
                network::THERE
            }
        };
        let address = address(target.ask(&Order::Open(device.to_owned(), at), by)?)?;
        let context = Context::open(device).map_err(text)?;
        target.order(&Order::Accept(shape))?;
        let link = Link::connect_as(shape, &context, address)?;
        target.answer(by)?;
        let memory = own_memory(&link)?;
        Ok(Self { memory, link, tcp: None, udp: None, context, address, target })
    }

    /// Keeps the threads that measure, here and in the target, on a processor each, or lets them go.
    pub(super) fn keep_apart(&mut self, apart: bool) -> Result<(), String> {
        processors::keep(apart.then_some(0));
        self.ask(&Order::Keep(apart.then_some(1))).map(drop)
    }

    /// Connects the yardstick, too.
    pub(super) fn start_tcp(&mut self) -> Result<(), String> {
        let address = address(self.ask(&Order::ListenTcp(self.address.ip()))?)?;
        self.target.order(&Order::AcceptTcp)?;
        let stream = TcpStream::connect_timeout(&address, PEER_TIMEOUT).map_err(text)?;
        self.done()?;
        self.tcp = Some(Tcp::new(stream)?);
        Ok(())
    }

    /// Makes the sockets of the yardsticks of UDP.
    pub(super) fn start_udp(&mut self, own: IpAddr) -> Result<(), String> {
        let there = address(self.ask(&Order::BindUdp(self.address.ip()))?)?;
        let udp = Udp::bind(own).map_err(text)?;
        let here = udp.connect(there).and_then(|()| udp.address()).map_err(text)?;
        self.udp = Some(udp);
        self.ask(&Order::ConnectUdp(here)).map(drop)
    }

    /// Operations that the device offers.
    pub(super) fn offers(&self, operation: Opcode) -> bool {
        self.context.attributes().operations.contains(&operation)
    }

    pub(super) fn done(&mut self) -> Result<(), String> {
        self.target.answer(Instant::now() + 2 * PEER_TIMEOUT).map(drop)
    }

    pub(super) fn ask(&mut self, order: &Order) -> Result<Answer, String> {
        self.target.ask(order, Instant::now() + 2 * PEER_TIMEOUT)
    }

    pub(super) fn tcp(&mut self) -> Result<&mut Tcp, String> {
        self.tcp.as_mut().ok_or_else(|| "no TCP connection".to_owned())
    }

    pub(super) fn udp(&self) -> Result<&Udp, String> {
        self.udp.as_ref().ok_or_else(|| "no UDP socket".to_owned())
    }

    /// Runs `work` while the target polls or sleeps.
    pub(super) fn meanwhile<T>(
        &mut self,
        target: TargetIs,
        work: impl FnOnce(&Link, &MemoryRegion) -> Result<T, String>,
    ) -> Result<T, String> {
        if target == TargetIs::Polling {
            self.target.order(&Order::Attend)?;
        }
        let result = work(&self.link, &self.memory)?;
        if target == TargetIs::Polling {
            self.link.tell(b"enough")?;
            self.done()?;
        }
        Ok(result)
    }
}

/// Memory that nobody else uses, of which every page is there before anything is timed.
pub(super) fn own_memory(link: &Link) -> Result<MemoryRegion, String> {
    let memory = link.domain().memory_region(SHARED, Rights::empty()).map_err(text)?;
    memory.write(0, &vec![0x5a; SHARED]);
    Ok(memory)
}

fn address(answer: Answer) -> Result<SocketAddr, String> {
    if let Answer::At(address) = answer { Ok(address) } else { Err("a wrong answer".into()) }
}

pub(super) fn number(answer: Answer) -> Result<f64, String> {
    if let Answer::Number(number) = answer { Ok(number) } else { Err("a wrong answer".into()) }
}

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}
