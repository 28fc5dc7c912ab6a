//! The measurements, from the side that posts the requests.

use super::allocator;
use super::target::{Answer, Order, WINDOW, Watching, idle_options};
use super::tcp::Tcp;
use super::udp::{Service, Udp};
use super::{network, processors};
use crate::pair::child::Child;
use crate::pair::link::{Link, MESSAGE, PATIENCE, RECEIVES, SHARED, Stream, WORDS, Waiting};
use crate::pair::pattern;
use adverb::{Context, MemoryRegion, Opcode, Rights, Segment, WorkRequest};
use hdrhistogram::Histogram;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Times in nanoseconds.
pub(super) type Times = Histogram<u64>;

/// A connection to a target process of its own, and the memory that is used on this side.
pub(super) struct Session {
    // Dropped in this order.
    memory: MemoryRegion,
    pub(super) link: Link,
    tcp: Option<Tcp>,
    udp: Option<Udp>,
    context: Context,
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

/// An operation whose round trip is timed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RoundTrip {
    Read,
    /// A write, and a read of the same word behind it, which shows that it has arrived.
    WriteThenRead,
    FetchAdd,
    CompareSwap,
}

impl Session {
    /// Starts a target on a device, with the checksum of its connections on or off where it is optional.
    pub(super) fn start(device: &str, place: Place, checksum: bool) -> Result<Self, String> {
        let crc = if checksum { "on" } else { "off" };
        let environment = [("ADVERB_DEVICE", device), ("ADVERB_CRC", crc)];
        let mut target: Child<Order, Answer> = Child::start("target", &["bench", "--target"], &environment)?;
        let by = Instant::now() + PATIENCE;
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
        let context = Context::open(device).map_err(|error| error.to_string())?;
        target.order(&Order::Accept)?;
        let link = Link::connect(&context, address)?;
        target.answer(by)?;
        let memory =
            link.domain().memory_region(SHARED, Rights::empty()).map_err(|error| error.to_string())?;
        // Every page is there before anything is timed.
        memory.write(0, &vec![0x5a; SHARED]);
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
        let stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| error.to_string())?;
        self.done()?;
        self.tcp = Some(Tcp::new(stream)?);
        Ok(())
    }

    /// Makes the sockets of the yardsticks of UDP.
    pub(super) fn start_udp(&mut self, own: IpAddr) -> Result<(), String> {
        let there = address(self.ask(&Order::BindUdp(self.address.ip()))?)?;
        let udp = Udp::bind(own).map_err(|error| error.to_string())?;
        let here = udp.connect(there).and_then(|()| udp.address()).map_err(|error| error.to_string())?;
        self.udp = Some(udp);
        self.ask(&Order::ConnectUdp(here)).map(drop)
    }

    /// Operations that the device offers.
    pub(super) fn offers(&self, operation: Opcode) -> bool {
        self.context.attributes().operations.contains(&operation)
    }

    pub(super) fn done(&mut self) -> Result<(), String> {
        self.target.answer(Instant::now() + 2 * PATIENCE).map(drop)
    }

    pub(super) fn ask(&mut self, order: &Order) -> Result<Answer, String> {
        self.target.ask(order, Instant::now() + 2 * PATIENCE)
    }

    fn tcp(&mut self) -> Result<&mut Tcp, String> {
        self.tcp.as_mut().ok_or_else(|| "no TCP connection".to_owned())
    }

    /// Eight bytes over TCP: one way, and there and back.
    pub(super) fn tcp_latency(&mut self, rounds: usize) -> Result<(Times, Times), String> {
        self.target.order(&Order::ReturnTcp(rounds))?;
        let (mut one_way, mut round_trip) = (times(), times());
        self.tcp()?.ping(rounds, |took| {
            one_way.saturating_record(took / 2);
            round_trip.saturating_record(took);
        })?;
        self.done()?;
        Ok((one_way, round_trip))
    }

    /// Bytes per second over TCP in blocks of this size.
    pub(super) fn tcp_stream(&mut self, size: usize, count: usize) -> Result<f64, String> {
        self.target.order(&Order::TakeTcp(size, count))?;
        let start = Instant::now();
        self.tcp()?.pour(size, count)?;
        let rate = rate(start, size, count);
        self.done()?;
        Ok(rate)
    }

    /// Eight bytes over UDP, acknowledged: one way, and there and back.
    pub(super) fn udp_latency(&mut self, service: Service, rounds: usize) -> Result<(Times, Times), String> {
        self.target.order(&Order::ReturnUdp(service, rounds))?;
        let (mut one_way, mut round_trip) = (times(), times());
        let udp = self.udp.as_ref().ok_or("no UDP socket")?;
        let pinged = udp.ping(service, rounds as u64, |took| {
            one_way.saturating_record(took / 2);
            round_trip.saturating_record(took);
        });
        pinged.map_err(|error| error.to_string())?;
        self.done()?;
        Ok((one_way, round_trip))
    }

    /// Bytes per second that come through over UDP, of about so many.
    pub(super) fn udp_stream(&mut self, bytes: usize) -> Result<f64, String> {
        self.target.order(&Order::TakeUdp)?;
        let udp = self.udp.as_ref().ok_or("no UDP socket")?;
        udp.pour(bytes).map_err(|error| error.to_string())?;
        number(self.target.answer(Instant::now() + 2 * PATIENCE)?)
    }

    /// Messages of 8 bytes, one way, both sides polling.
    pub(super) fn send_latency(&mut self, rounds: usize) -> Result<Times, String> {
        self.target.order(&Order::ReturnSends(rounds))?;
        let mut times = times();
        for _ in 0..rounds {
            let start = Instant::now();
            self.link.run(WorkRequest::send(&[1; 8]))?;
            let answer = self.link.heard()?;
            times.saturating_record(start.elapsed().as_nanos() as u64 / 2);
            self.link.offer_again(answer)?;
        }
        self.done()?;
        Ok(times)
    }

    /// Allocations of this process per message of 8 bytes, sent and returned.
    fn allocations(&mut self, rounds: usize) -> Result<f64, String> {
        self.target.order(&Order::ReturnSends(rounds))?;
        let before = allocator::calls();
        for _ in 0..rounds {
            self.link.run(WorkRequest::send(&[1; 8]))?;
            self.link.hear(Waiting::Polling, |_| Ok(()))?;
        }
        let calls = allocator::calls() - before;
        self.done()?;
        Ok(calls as f64 / rounds as f64)
    }

    /// The least of some times that: a table that grows once is not a cost per message.
    pub(super) fn least_allocations(&mut self) -> Result<f64, String> {
        (0..3).try_fold(f64::MAX, |least, _| Ok(self.allocations(5000)?.min(least)))
    }

    /// Words written into each other's memory, one way, both sides looking at their memory.
    pub(super) fn write_latency(&mut self, watching: Watching, rounds: usize) -> Result<Times, String> {
        let link = &self.link;
        let word = &link.shared.words()[WORDS / 8];
        let there = link.peer.slice(WORDS..WORDS + 8);
        word.store(0, Ordering::Release);
        self.target.order(&Order::ReturnWrites(rounds, watching))?;
        link.hear(Waiting::Polling, |_| Ok(()))?;
        let mut times = times();
        for turn in 1..=rounds as u64 {
            let start = Instant::now();
            link.post(WorkRequest::write(&turn.to_ne_bytes(), &there))?;
            watching.posted(link)?;
            watching.wait(link, || word.load(Ordering::Acquire) == turn)?;
            times.saturating_record(start.elapsed().as_nanos() as u64 / 2);
        }
        link.settle()?;
        self.done()?;
        Ok(times)
    }

    /// Runs `work` while the target polls or sleeps.
    fn meanwhile<T>(
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

    /// Eight bytes there and back; this side polls.
    pub(super) fn round_trip(
        &mut self,
        operation: RoundTrip,
        target: TargetIs,
        rounds: usize,
    ) -> Result<Times, String> {
        self.meanwhile(target, |link, memory| {
            let there = link.peer.slice(WORDS..WORDS + 8);
            let mut times = times();
            for turn in 0..rounds as u64 {
                let start = Instant::now();
                let result: Segment = memory.slice(..8);
                match operation {
                    RoundTrip::Read => link.run(WorkRequest::read(result, &there))?,
                    RoundTrip::FetchAdd => link.run(WorkRequest::fetch_add(result, &there, 1))?,
                    RoundTrip::CompareSwap => link.run(WorkRequest::compare_swap(result, &there, turn, 1))?,
                    RoundTrip::WriteThenRead => {
                        link.post(WorkRequest::write(&turn.to_ne_bytes(), &there))?;
                        link.post(WorkRequest::read(result, &there))?;
                        link.sent()?;
                        link.sent()?
                    }
                };
                times.saturating_record(start.elapsed().as_nanos() as u64);
                if operation == RoundTrip::WriteThenRead && memory.words()[0].load(Ordering::Acquire) != turn
                {
                    return Err("a read overtook the write before it".into());
                }
            }
            Ok(times)
        })
    }

    /// Bytes per second of writes or reads of this size.
    pub(super) fn one_sided_stream(
        &mut self,
        read: bool,
        target: TargetIs,
        size: usize,
        count: usize,
    ) -> Result<f64, String> {
        self.meanwhile(target, |link, memory| {
            let start = Instant::now();
            let mut stream = Stream::new(link);
            for index in 0..count {
                let at = index % (SHARED / size) * size;
                let (here, there) = (memory.slice(at..at + size), link.peer.slice(at..at + size));
                stream.post(match read {
                    true => WorkRequest::read(here, &there),
                    false => WorkRequest::write(here, &there),
                })?;
            }
            if !read {
                // Answered only when all that is before it has arrived.
                stream.post(WorkRequest::read(memory.slice(..8), &link.peer.slice(..8)))?;
            }
            stream.finish()?;
            Ok(rate(start, size, count))
        })
    }

    /// Bytes per second of messages of this size.
    pub(super) fn send_stream(&mut self, size: usize, count: usize) -> Result<f64, String> {
        debug_assert!(size <= MESSAGE && count.is_multiple_of(RECEIVES));
        self.target.order(&Order::TakeSends(size, count))?;
        let link = &self.link;
        let start = Instant::now();
        let mut stream = Stream::new(link);
        let mut granted = WINDOW;
        for index in 0..count {
            if index == granted {
                link.hear(Waiting::Polling, |_| Ok(()))?;
                granted += WINDOW / 2;
            }
            let at = index % (SHARED / size) * size;
            stream.post(WorkRequest::send(self.memory.slice(at..at + size)))?;
        }
        stream.finish()?;
        while granted < count + WINDOW {
            link.hear(Waiting::Polling, |_| Ok(()))?;
            granted += WINDOW / 2;
        }
        let rate = rate(start, size, count);
        self.done()?;
        Ok(rate)
    }

    /// Bytes that this process allocates for an idle connection of 128 + 128 requests.
    pub(super) fn idle_memory(&mut self, count: usize) -> Result<f64, String> {
        let mut idle = Vec::with_capacity(2 * count);
        let mut before = 0;
        // The first half makes what is made once.
        for index in 0..2 * count {
            if index == count {
                before = allocator::bytes();
            }
            self.target.order(&Order::AcceptIdle)?;
            let queue_pair = self.link.domain().queue_pair(idle_options(&self.link));
            let queue_pair = queue_pair.map_err(|error| error.to_string())?;
            idle.push(queue_pair.connect(self.address, &[], PATIENCE).map_err(|error| error.to_string())?);
            self.done()?;
        }
        let bytes = allocator::bytes() - before;
        self.target.order(&Order::DropIdle)?;
        drop(idle);
        self.done()?;
        Ok(bytes as f64 / count as f64)
    }
}

/// What becomes of the datagrams on the cable.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cable {
    /// It carries trains of them.
    AsItIs,
    /// It carries them one by one.
    Single,
    /// And in both directions loses one in a hundred.
    Lossy,
}

impl Session {
    /// Changes the cable, of which this session's target has the other end.
    pub(super) fn treat(&mut self, cable: Cable) -> Result<(), String> {
        let (single, losing) = (cable != Cable::AsItIs, cable == Cable::Lossy);
        network::single_datagrams(single)?;
        self.ask(&Order::SingleDatagrams(single))?;
        // Each end loses what comes in there.
        network::lose(losing)?;
        self.ask(&Order::Lose(losing)).map(drop)
    }

    /// Bytes per second of writes of which every byte is looked at afterwards.
    pub(super) fn checked_writes(&mut self, size: usize, count: usize, seed: u64) -> Result<f64, String> {
        debug_assert!(count >= SHARED / size, "all of the memory is written");
        self.ask(&Order::Clear)?;
        self.memory.write(0, &pattern::bytes(SHARED, seed));
        let rate = self.one_sided_stream(false, TargetIs::Sleeping, size, count)?;
        self.ask(&Order::Verify(seed))?;
        Ok(rate)
    }
}

fn address(answer: Answer) -> Result<SocketAddr, String> {
    if let Answer::At(address) = answer { Ok(address) } else { Err("a wrong answer".into()) }
}

pub(super) fn number(answer: Answer) -> Result<f64, String> {
    if let Answer::Number(number) = answer { Ok(number) } else { Err("a wrong answer".into()) }
}

/// Bytes per second of a plain copy in blocks of this size.
pub(super) fn memory_copy(size: usize, count: usize) -> f64 {
    let (source, mut target) = (vec![1u8; SHARED], vec![0u8; SHARED]);
    let start = Instant::now();
    for index in 0..count {
        let at = index % (SHARED / size) * size;
        target[at..at + size].copy_from_slice(&source[at..at + size]);
        std::hint::black_box(&mut target);
    }
    rate(start, size, count)
}

fn times() -> Times {
    // A minute is longer than anything here is allowed to take.
    Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("the bounds are constants, and good ones")
}

pub(super) fn rate(start: Instant, size: usize, count: usize) -> f64 {
    (size * count) as f64 / start.elapsed().as_secs_f64()
}
