//! Datagram sockets and the packets by UDP that say which queue pair a peer has.

use adverb_core::engine::engine;
use adverb_core::reactor::{READABLE, Readiness, Source};
use adverb_core::transport::TransportFactory;
use adverb_proto::rsocket::{Hello, HelloKind, MAX_HELLO, SourceFamily, read_hello, write_hello};
use adverb_rsocket::{Socket, Vector, find, socket};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// How long anything may take before the test fails.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

static TRANSPORTS: &[TransportFactory] = &[TransportFactory { default: true, ..adverb_roce::FACTORY }];

/// Keeps the background thread until the test is done with it.
struct Busy {
    began: mpsc::Sender<()>,
    done: Mutex<mpsc::Receiver<()>>,
}

impl Source for Busy {
    fn ready(self: Arc<Self>, _: Readiness) {
        // Nobody listens to the second time that it is ready.
        let _ = self.began.send(());
        let _ = self.done.lock().unwrap().recv_timeout(TEST_TIMEOUT);
    }
}

/// Sends a datagram to the address of `peer`.
fn send(client: &Socket, peer: &UdpSocket, text: &mut [u8]) {
    let part = [libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() }];
    // SAFETY: live locals, which nobody writes meanwhile.
    let mut data = unsafe { Vector::new(&part) }.unwrap();
    assert_eq!(client.send(&mut data, 0, Some(peer.local_addr().unwrap())).unwrap(), text.len());
}

#[test]
fn a_send_heeds_an_answer_that_the_background_thread_has_not_taken() {
    adverb_core::engine::install(TRANSPORTS);
    let number = socket(libc::AF_INET, libc::SOCK_DGRAM, 0).unwrap();
    let client = find(number).unwrap();
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    peer.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let mut packet = [0; 64];

    send(&client, &peer, b"first".to_vec().as_mut_slice());
    let (length, from) = peer.recv_from(&mut packet).unwrap();
    let (hello, start) = read_hello(&packet[..length], SourceFamily::V4).unwrap();
    assert_eq!((hello.kind, &packet[start..length]), (HelloKind::Data, &b"first"[..]));

    // The background thread is busy from here on.
    let (mut bell, busy_end) = UnixStream::pair().unwrap();
    let ((began, has_begun), (end, done)) = (mpsc::channel(), mpsc::channel());
    let busy = Arc::new(Busy { began, done: Mutex::new(done) });
    let reactor = &engine().unwrap().reactor;
    let token = reactor.add(busy_end.as_raw_fd(), READABLE, busy).unwrap();
    std::io::Write::write_all(&mut bell, b"!").unwrap();
    has_begun.recv_timeout(TEST_TIMEOUT).unwrap();

    let mut answer = [0; MAX_HELLO];
    let address = peer.local_addr().unwrap().ip();
    let length = write_hello(&Hello { kind: HelloKind::Answer, queue_pair: 77, address }, &mut answer);
    peer.send_to(&answer[..length], from).unwrap();
    let mut arrives = libc::pollfd { fd: number, events: libc::POLLIN, revents: 0 };
    // SAFETY: one live element.
    assert_eq!(unsafe { libc::poll(&raw mut arrives, 1, TEST_TIMEOUT.as_millis() as i32) }, 1);
    send(&client, &peer, b"second".to_vec().as_mut_slice());
    // What came by UDP stands before this.
    peer.send_to(b"mark", peer.local_addr().unwrap()).unwrap();
    let (length, _) = peer.recv_from(&mut packet).unwrap();
    assert_eq!(&packet[..length], b"mark", "the second datagram went by UDP");

    reactor.remove(token, busy_end.as_raw_fd());
    end.send(()).unwrap();
}
