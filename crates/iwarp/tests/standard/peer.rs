//! The other end of a connection, made of the protocol state machines and a plain socket: it sends what a
//! test tells it to, right or wrong, and shows what comes back.

use adverb_proto::iwarp::mpa::{Config, Initiator, Parameters, Reply, Request, Responder};
use adverb_proto::iwarp::{Outbound, Receiver, Segment, Sender, Step, Terminate};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// How long anything may take before a test fails.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);
const NOW: Duration = Duration::ZERO;

/// What a peer wants, unless a test says otherwise: nothing special.
pub(crate) const PLAIN: Config = Config {
    revision: adverb_proto::iwarp::mpa::Revision::Two,
    crc: false,
    markers: false,
    ird: 16,
    ird_limit: 16,
    ord: 16,
    rtr: adverb_proto::iwarp::mpa::RtrKinds::NONE,
    large_fpdu: false,
    extensions: true,
};

pub(crate) struct Peer {
    pub(crate) stream: TcpStream,
    pub(crate) parameters: Parameters,
    pub(crate) private_data: Vec<u8>,
    sender: Sender,
    receiver: Receiver,
    buffer: Vec<u8>,
}

impl Peer {
    /// Connects as the initiator.
    pub(crate) fn connect(address: SocketAddr, config: &Config) -> Peer {
        let mut stream = open(address);
        let initiator = Initiator::new(config, b"peer", NOW, TEST_TIMEOUT).unwrap();
        stream.write_all(initiator.request()).unwrap();
        let mut buffer = Vec::new();
        loop {
            match initiator.receive(&buffer).unwrap() {
                Reply::Need(n) => read_to(&mut stream, &mut buffer, n),
                Reply::Accepted { parameters, private_data, consumed, .. } => {
                    let private_data = private_data.to_vec();
                    buffer.drain(..consumed);
                    return Peer::new(stream, parameters, private_data, buffer);
                }
                Reply::Rejected { .. } => panic!("rejected"),
            }
        }
    }

    /// Answers as the responder.
    pub(crate) fn accept(listener: &TcpListener, config: &Config) -> Peer {
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        let responder = Responder::new(NOW, TEST_TIMEOUT);
        let mut buffer = Vec::new();
        loop {
            match responder.receive(&buffer).unwrap() {
                Request::Need(n) => read_to(&mut stream, &mut buffer, n),
                Request::Complete { offer, private_data, consumed } => {
                    let private_data = private_data.to_vec();
                    let (reply, parameters) = offer.accept(config, b"peer").unwrap();
                    stream.write_all(&reply).unwrap();
                    buffer.drain(..consumed);
                    return Peer::new(stream, parameters, private_data, buffer);
                }
            }
        }
    }

    fn new(stream: TcpStream, parameters: Parameters, private_data: Vec<u8>, buffer: Vec<u8>) -> Peer {
        let (sender, receiver) = (Sender::new(&parameters, 1448), Receiver::new(&parameters));
        Peer { stream, parameters, private_data, sender, receiver, buffer }
    }

    /// The frames of a message.
    pub(crate) fn frames(&mut self, message: Outbound, payload: &[u8]) -> Vec<u8> {
        let mut frames = Vec::new();
        self.sender.begin(message).unwrap();
        while let Some(fpdu) = self.sender.next_fpdu() {
            let part = fpdu.payload().start as usize..fpdu.payload().end as usize;
            self.sender.seal(&fpdu, &payload[part], &mut frames);
        }
        frames
    }

    /// Sends a message.
    pub(crate) fn send(&mut self, message: Outbound, payload: &[u8]) {
        let frames = self.frames(message, payload);
        self.raw(&frames);
    }

    /// Sends bytes as they are.
    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    /// The next segment, with its payload.
    pub(crate) fn segment(&mut self) -> (Segment, Vec<u8>) {
        loop {
            match self.receiver.next_checked(&mut self.buffer).unwrap() {
                Step::Need(n) => read_to(&mut self.stream, &mut self.buffer, n),
                Step::Segment(arrival) => {
                    let payload = self.buffer[arrival.head_len..][..arrival.payload_len].to_vec();
                    self.buffer.drain(..arrival.total_len());
                    return (arrival.segment, payload);
                }
            }
        }
    }

    /// The next message: its first segment, and the payload of all.
    pub(crate) fn message(&mut self) -> (Segment, Vec<u8>) {
        let (first, mut payload) = self.segment();
        let mut last = is_last(&first);
        while !last {
            let (segment, more) = self.segment();
            payload.extend(more);
            last = is_last(&segment);
        }
        (first, payload)
    }

    /// The Terminate that comes now, after which the stream ends in order.
    pub(crate) fn terminate(&mut self) -> Terminate {
        let (Segment::Terminate(terminate), _) = self.segment() else { panic!("no Terminate") };
        self.end();
        terminate
    }

    /// The stream ends in order here.
    pub(crate) fn end(&mut self) {
        assert_eq!(self.buffer, []);
        let mut rest = Vec::new();
        assert_eq!(self.stream.read_to_end(&mut rest).unwrap(), 0, "more came: {rest:02x?}");
    }

    /// Whether nothing has come that was not taken.
    pub(crate) fn is_silent(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let seen = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        self.buffer.is_empty() && seen.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }

    /// Closes this end's direction in order.
    pub(crate) fn finish(&mut self) {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
    }
}

/// A TCP connection and nothing more.
pub(crate) fn open(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn read_to(stream: &mut TcpStream, buffer: &mut Vec<u8>, len: usize) {
    let from = buffer.len();
    buffer.resize(len, 0);
    stream.read_exact(&mut buffer[from..]).unwrap();
}

fn is_last(segment: &Segment) -> bool {
    match segment {
        Segment::Write { last, .. } | Segment::ReadResponse { last, .. } | Segment::Send { last, .. } => {
            *last
        }
        _ => true,
    }
}

/// A Send without options.
pub(crate) fn send(len: usize) -> Outbound {
    Outbound::Send { len: len as u32, invalidate: None, solicited: false }
}
