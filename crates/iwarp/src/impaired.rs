//! Faults of the wire ([`adverb_core::wire`]) on a connection: frames wait before they leave or are taken in,
//! have a wrong checksum, or the connection is cut. TCP loses nothing, so frames behind one that waits, wait,
//! too. Processes without such faults have none of these objects.

use crate::endpoint::{Cause, Endpoint};
use crate::observer;
use crate::socket::Socket;
use adverb_core::clock;
use adverb_core::reactor::{READABLE, Readiness, Source, WRITABLE};
use adverb_core::wire::{self, Direction, Fate, Kind, Medium, Passing, Wire};
use adverb_wire::rdmap::Opcode;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Where the operation stands in a frame: behind its length, and DDP's control byte.
const CONTROL: usize = 3;

/// The faults of one direction of a connection.
pub(crate) struct DirectionFaults {
    wire: &'static dyn Wire,
    local: IpAddr,
    peer: IpAddr,
    /// Nothing moves before this time, in nanoseconds of the device's clock.
    until: u64,
    /// The wire is asked once more then.
    pub(crate) asks_again: bool,
}

impl DirectionFaults {
    /// The faults of the wire for one direction of a connection; None in a process without such faults.
    pub(crate) fn of(socket: &Socket) -> Option<Self> {
        let wire = wire::get()?;
        let [local, peer] = [socket.local(), socket.peer()].map(ip);
        Some(Self { wire, local, peer, until: 0, asks_again: false })
    }

    /// A frame is about to leave, or to be taken in.
    pub(crate) fn pass(&mut self, direction: Direction, kind: Kind, length: usize) -> Fate {
        let fate = ask(self.wire, direction, [self.local, self.peer], kind, length);
        self.asks_again |= fate.asks_again;
        if !fate.wait.is_zero() {
            let wait = u64::try_from(fate.wait.as_nanos()).unwrap_or(u64::MAX);
            self.until = self.until.max(clock::device().saturating_add(wait));
        }
        fate
    }

    /// How long nothing moves from now on.
    pub(crate) fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_sub(clock::device());
        (left > 0).then_some(if self.until == u64::MAX { Duration::MAX } else { Duration::from_nanos(left) })
    }
}

fn ip(address: Option<SocketAddr>) -> IpAddr {
    address.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |address| address.ip())
}

/// The fate of a frame between our address and the peer's.
fn ask(wire: &dyn Wire, direction: Direction, ends: [IpAddr; 2], kind: Kind, length: usize) -> Fate {
    let [local, peer] = ends;
    wire.pass(&Passing { direction, peer, local, kind, length, medium: Medium::Stream })
}

/// How long a message of the start-up to a peer waits.
pub(crate) fn wait_of_startup(local: Option<SocketAddr>, peer: IpAddr, length: usize) -> Duration {
    wire::get().map_or(Duration::ZERO, |wire| {
        ask(wire, Direction::Out, [ip(local), peer], Kind::Management, length).wait
    })
}

/// The kind of a frame that begins with these bytes.
pub(crate) fn kind_of_frame(bytes: &[u8]) -> Kind {
    let opcode = bytes.get(CONTROL).and_then(|control| Opcode::from_u8(control & 0xf));
    opcode.map_or(Kind::Other, observer::kind)
}

/// A cut connection ends at once, for the peer, too.
pub(crate) fn cut(socket: &Socket) -> Cause {
    socket.reset();
    Cause::Lost(io::Error::from_raw_os_error(libc::ECONNRESET))
}

/// The connection moves again.
pub(crate) struct Resume(pub(crate) Weak<Endpoint>);

impl Resume {
    /// Has the background thread go on with a connection.
    pub(crate) fn after(endpoint: &Endpoint, wait: Duration) {
        if wait != Duration::MAX {
            let _ = endpoint.queues.engine.reactor.set_timer(wait, Arc::new(Self(endpoint.this())));
        }
    }
}

impl Source for Resume {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        if let Some(endpoint) = self.0.upgrade() {
            endpoint.ready(READABLE | WRITABLE);
        }
    }
}
