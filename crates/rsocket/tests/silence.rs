//! Peers that stop talking, or come in any number, keep nobody else out.

use adverb_core::transport::TransportFactory;
use adverb_proto::iwarp::mpa::{Config, Initiator, Reply, Revision, RtrKinds};
use adverb_proto::rsocket::{
    Connect, Hello, HelloKind, MAX_HELLO, SourceFamily, Target, read_hello, write_hello,
};
use adverb_rsocket::{Socket, Vector, find, socket};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::sync::mpsc;
use std::time::Duration;

/// How long anything may take before a test fails.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Streams go over iWARP here, and datagrams, which it has not, over RoCE.
static TRANSPORTS: &[TransportFactory] = &[
    TransportFactory { default: true, ..adverb_iwarp::FACTORY },
    TransportFactory { default: true, ..adverb_roce::FACTORY },
];

fn open(kind: i32) -> Socket {
    adverb_core::engine::install(TRANSPORTS);
    find(socket(libc::AF_INET, kind, 0).unwrap()).unwrap()
}

fn bound(kind: i32) -> (Socket, SocketAddr) {
    let socket = open(kind);
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_address().unwrap();
    (socket, address)
}

/// Does something that may wait, within bounded time.
fn soon<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(TEST_TIMEOUT).unwrap()
}

/// Asks for a connection of rsockets, takes the answer, and says nothing more.
fn silent(address: SocketAddr) -> TcpStream {
    let config = Config {
        revision: Revision::Two,
        crc: false,
        markers: false,
        ird: 1,
        ird_limit: 1,
        ord: 1,
        rtr: RtrKinds::ALL,
        large_fpdu: false,
        extensions: false,
    };
    let place = Target { address: 1 << 20, key: 7, length: 2 };
    let introduction =
        Connect { big_endian: false, credits: 384, mappings: 0, targets: place, data: place }.bytes();
    let initiator = Initiator::new(&config, &introduction, Duration::ZERO, TEST_TIMEOUT).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(initiator.request()).unwrap();
    let mut buffer = Vec::new();
    loop {
        match initiator.receive(&buffer).unwrap() {
            Reply::Need(bytes) => {
                let from = buffer.len();
                buffer.resize(bytes, 0);
                stream.read_exact(&mut buffer[from..]).unwrap();
            }
            Reply::Accepted { .. } | Reply::Rejected { .. } => return stream,
        }
    }
}

// RFC5042-6.4.1-1
#[test]
fn connections_that_say_nothing_take_no_place_in_the_backlog() {
    let (listener, address) = bound(libc::SOCK_STREAM);
    listener.listen(4).unwrap();
    let silent = std::array::from_fn::<_, 80, _>(|_| silent(address));
    let client = soon(move || {
        let client = open(libc::SOCK_STREAM);
        client.connect(address).map(|()| client)
    })
    .unwrap();
    let own = client.local_address().unwrap();
    let (_, peer) = soon(move || listener.accept()).unwrap();
    assert_eq!(peer, own);
    // Those that there are too many of have given way, the oldest first; the others end by their time limit.
    for mut stream in silent {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest, b"");
    }
}

/// Introduces a peer of its own address to a datagram socket, and waits for the answer.
fn introduce(address: SocketAddr, number: u16) {
    let [high, low] = number.to_be_bytes();
    let ip = Ipv4Addr::new(127, 1, high, low);
    let peer = UdpSocket::bind((ip, 0)).unwrap();
    peer.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let hello = Hello { kind: HelloKind::Data, queue_pair: 77, address: ip.into() };
    let mut bytes = [0; MAX_HELLO];
    let length = write_hello(&hello, &mut bytes);
    peer.send_to(&bytes[..length], address).unwrap();
    let mut answer = [0; 64];
    let (length, from) =
        peer.recv_from(&mut answer).unwrap_or_else(|error| panic!("peer {number} has no answer: {error}"));
    let (answer, _) = read_hello(&answer[..length], SourceFamily::V4).unwrap();
    assert_eq!((from, answer.kind), (address, HelloKind::Answer));
}

#[test]
fn a_datagram_socket_serves_any_number_of_peers() {
    let (server, address) = bound(libc::SOCK_DGRAM);
    for number in 1..=4500 {
        introduce(address, number);
    }
    // What they sent, without data, is read, so that there is room for more; then somebody has something to
    // say.
    let client = open(libc::SOCK_DGRAM);
    let mut text = *b"hello";
    let mut buffer = [0; 16];
    let part = [libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() }];
    let room = [libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() }];
    // SAFETY: live locals.
    let receive = || server.receive(&mut unsafe { Vector::new(&room) }.unwrap(), libc::MSG_DONTWAIT);
    while receive().is_ok_and(|(length, _)| length == 0) {}
    // SAFETY: live locals.
    let sent = client.send(&mut unsafe { Vector::new(&part) }.unwrap(), 0, Some(address)).unwrap();
    assert_eq!(sent, 5);
    let deadline = std::time::Instant::now() + TEST_TIMEOUT;
    let length = loop {
        match receive() {
            Ok((length, _)) => break length,
            Err(error) => assert!(std::time::Instant::now() < deadline, "{error}"),
        }
        std::thread::yield_now();
    };
    assert_eq!(&buffer[..length], b"hello");
}
