//! A descriptor whose close(2) waits, as another process may pass it.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Instant;

/// A TCP connection whose close lasts until its peer ends.
pub struct Lingering {
    /// The peer, which takes in nothing.
    peer: TcpStream,
    port: u16,
}

impl Lingering {
    /// A new one. The descriptor is the connection's only one.
    pub fn new() -> (Self, OwnedFd) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (peer, address) = listener.accept().unwrap();
        let linger = libc::linger { l_onoff: 1, l_linger: 60 };
        // SAFETY: a live local of the length that is given.
        let result = unsafe {
            libc::setsockopt(
                sender.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of::<libc::linger>() as libc::socklen_t,
            )
        };
        assert_eq!(result, 0);
        sender.set_nonblocking(true).unwrap();
        while sender.write(&[0; 1 << 16]).is_ok() {}
        (Self { peer, port: address.port() }, sender.into())
    }

    /// Whether a thread is in close(2) at this instant: the connection ends, and still belongs to a file.
    pub fn closes_now(&self) -> bool {
        const FIN_WAIT_1: &str = "04";
        let text = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        let end = format!(":{:04X}", self.port);
        text.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .any(|line| line.len() > 9 && line[1].ends_with(&end) && line[3] == FIN_WAIT_1 && line[9] != "0")
    }

    /// Waits until a thread is in close(2).
    pub fn wait(&self) {
        let begin = Instant::now();
        while !self.closes_now() {
            assert!(
                begin.elapsed().as_secs() < 50,
                "no thread closes the descriptor, or it is closed already"
            );
            std::thread::yield_now();
        }
    }

    /// Has the close end: the peer goes with bytes that it has not taken in.
    pub fn end(self) {
        drop(self.peer);
    }
}
