//! Two users on one host: what one of them cannot do to the other.
//!
//! Each test runs in a network namespace of its own, in a process that starts itself there and may act as
//! another user.

#[path = "support/packets.rs"]
mod packets;
mod support;

use adverb_core::attributes::gid_of;
use adverb_core::cm::AddressOptions;
use adverb_core::conformance::Site;
use adverb_core::conformance::fixture::{Home, Memory, Shape, Side, TEST_TIMEOUT};
use adverb_core::qp::Service;
use adverb_core::request::Opcode;
use adverb_wire::ib::header::{Bth, DEFAULT_PKEY};
use adverb_wire::ib::opcode::{Operation, Service as WireService};
use packets::{Peer, ROCE, opcode, packet, question};
use std::io::{BufRead, BufReader, Write};
use std::mem::{offset_of, size_of, size_of_val, zeroed};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use support::{join, site};

/// Says to a process what it is.
const ROLE: &str = "ADVERB_TEST_ROLE";
const MAIN: &str = "main";
/// The other user: nobody.
const NOBODY: u32 = 65_534;
/// A third one, whose number every namespace has.
const DAEMON: u32 = 1;

fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// This program again, for one test.
fn again(test: &str, role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.args(["--exact", test, "--nocapture"]).env(ROLE, role);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
}

/// Runs a test in a network namespace of its own, where it is root: truly, or with the IDs that its user has
/// been given.
fn in_a_namespace(test: &str) {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    // SAFETY: no arguments.
    if unsafe { libc::geteuid() } != 0 {
        command.args(["--user", "--map-root-user", "--map-auto"]);
    }
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]).arg(own);
    command.args(["--exact", test, "--nocapture"]).env(ROLE, MAIN);
    let output = command.output().expect("unshare of util-linux");
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(output.status.success(), "two users are needed: root, or subordinate IDs (/etc/subuid)\n{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// A process of the other user that does something in this test, once it has said that it is ready.
fn nobody(test: &str, role: &str) -> Process {
    somebody(NOBODY, test, role)
}

/// A process of any user that does something in this test, once it has said that it is ready.
fn somebody(user: u32, test: &str, role: &str) -> Process {
    let mut command = again(test, role);
    command.uid(user).gid(user);
    Process::of(command)
}

/// Whoever joins a group is told if it cannot be had: the socket on port 4791, which another process has, is
/// in so many groups and no more. One that is left makes room for another.
#[test]
fn a_group_that_the_holder_of_the_port_cannot_join_is_refused() {
    const TEST: &str = "a_group_that_the_holder_of_the_port_cannot_join_is_refused";
    const MEMBER: &str = "member";
    let datagrams = || {
        let side = Side::unconnected(&Home::new(&site()), Shape::default(), Service::Ud);
        side.begin();
        side
    };
    match role().as_deref() {
        None => in_a_namespace(TEST),
        Some(MAIN) => {
            let _holder = datagrams();
            let mut member = Process::of(again(TEST, MEMBER));
            member.says("done");
            assert!(member.child.wait().unwrap().success());
        }
        Some(_) => {
            let most = std::fs::read_to_string("/proc/sys/net/ipv4/igmp_max_memberships").unwrap();
            let most: u16 = most.trim().parse().unwrap();
            let group = |number: u16| {
                let [high, low] = number.to_be_bytes();
                gid_of(Ipv4Addr::new(239, 77, high, low).into())
            };
            let side = datagrams();
            println!("\nready");
            let joins = |number| side.queue_pair.attach_multicast(&group(number));
            let refused = (0..=most).find_map(|number| Some((number, joins(number).err()?)));
            let (number, error) = refused.expect("a group too many");
            assert_eq!(error.errno(), libc::ENOBUFS);
            side.queue_pair.detach_multicast(&group(0)).unwrap();
            joins(number).unwrap();
            println!("\ndone");
        }
    }
}

/// Ends with its end.
struct Process {
    child: Child,
    lines: Box<dyn BufRead>,
}

impl Process {
    fn of(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = Box::new(BufReader::new(child.stdout.take().unwrap()));
        let mut process = Self { child, lines };
        process.says("ready");
        process
    }

    /// What stands behind a word, in the next line that begins with it.
    fn says(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.lines.read_line(&mut line).unwrap(), 0, "{word:?} does not come");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn hears(&mut self, line: impl std::fmt::Display) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{line}").unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn next_line() -> String {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// An abstract name of the transport's, as an address.
fn address(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    address_of(&format!("roce/{name}"))
}

/// An abstract name of ours, as an address.
fn address_of(name: &str) -> (libc::sockaddr_un, libc::socklen_t) {
    // SAFETY: all zero is a valid address.
    let mut raw: libc::sockaddr_un = unsafe { zeroed() };
    raw.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let name = format!("\0adverb/{name}");
    for (to, from) in raw.sun_path.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    (raw, (offset_of!(libc::sockaddr_un, sun_path) + name.len()) as libc::socklen_t)
}

fn socket() -> OwnedFd {
    // SAFETY: plain numbers, and a new descriptor.
    unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0)) }
}

/// Listens under a name, if that can be had.
fn listen(name: &str) -> Option<OwnedFd> {
    let (raw, length) = address(name);
    let socket = socket();
    // SAFETY: a filled address of its length; our descriptor.
    let bound = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const raw).cast(), length) == 0
            && libc::listen(socket.as_raw_fd(), 16) == 0
    };
    bound.then_some(socket)
}

fn connect(name: &str) -> Option<OwnedFd> {
    connect_to(address(name))
}

fn connect_to((raw, length): (libc::sockaddr_un, libc::socklen_t)) -> Option<OwnedFd> {
    let socket = socket();
    // SAFETY: a filled address of its length.
    (unsafe { libc::connect(socket.as_raw_fd(), (&raw const raw).cast(), length) } == 0).then_some(socket)
}

/// One user takes all names by which processes own queue pair numbers, and as many beside them: others have
/// queue pairs all the same, and find each other.
#[test]
fn one_user_takes_no_numbers_away_from_others() {
    const TEST: &str = "one_user_takes_no_numbers_away_from_others";
    const GREEDY: usize = 16;
    match role().as_deref() {
        None => return in_a_namespace(TEST),
        Some(MAIN) => {}
        Some("receives") => return receives(),
        Some(_) => return takes_names(),
    }
    let mut others: Vec<_> = (0..GREEDY).map(|_| nobody(TEST, "takes names")).collect();
    for block in 1..0xfff {
        let other = &mut others[block % GREEDY];
        for name in [format!("block/{block:03x}"), format!("block/{block:03x}/0123456789abcdef")] {
            other.hears(name);
            assert_eq!(other.says("taken"), "true");
        }
    }
    let site = site();
    for way in ["auto", "off"] {
        let mut command = again(TEST, "receives");
        command.env("ADVERB_LOCAL", way);
        greet(&mut Process::of(command), &site);
    }
}

/// A queue pair by which a process that [`receives`] has got its message.
fn greet(peer: &mut Process, site: &Site) -> Side {
    let side = Side::unconnected(&Home::new(site), Shape::default(), Service::Rc);
    side.begin();
    let number = peer.says("number").parse().unwrap();
    peer.hears(side.queue_pair.number());
    join(&side, site, number);
    peer.says("joined");
    say_hello(&side);
    assert_eq!(peer.says("received"), "hello");
    side
}

fn say_hello(side: &Side) {
    let memory = Memory::open(&side.domain, 5);
    memory.set(b"hello");
    side.post(1, Opcode::Send, &[memory.all()], (0, 0));
    side.sent_well(1);
}

/// Receives one message.
fn receives() {
    let site = site();
    let side = Side::unconnected(&Home::new(&site), Shape::default(), Service::Rc);
    side.begin();
    println!("\nready\nnumber {}", side.queue_pair.number());
    let memory = Memory::open(&side.domain, 16);
    side.post_receive(1, &[memory.all()]);
    join(&side, &site, next_line().parse().unwrap());
    println!("joined");
    side.received_well(1);
    println!("received {}", String::from_utf8_lossy(&memory.bytes()[..5]));
    next_line();
}

/// Processes of two users, or of one user in two user namespaces, work with each other by the network, and
/// share no memory.
#[test]
fn nothing_is_shared_with_others() {
    const TEST: &str = "nothing_is_shared_with_others";
    match role().as_deref() {
        None => return in_a_namespace(TEST),
        Some(MAIN) => {}
        Some(_) => return receives(),
    }
    let site = site();
    let side = |peer: &mut Process| greet(peer, &site).context.device().counters().local_channels.get();
    assert_eq!(side(&mut nobody(TEST, "receives")), 0, "another user");
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--user", "--map-root-user"]).arg(std::env::current_exe().unwrap());
    elsewhere.args(["--exact", TEST, "--nocapture"]).env(ROLE, "receives");
    elsewhere.stdin(Stdio::piped()).stdout(Stdio::piped());
    assert_eq!(side(&mut Process::of(elsewhere)), 0, "another user namespace");
    // And so that the count means something:
    assert_eq!(side(&mut Process::of(again(TEST, "receives"))), 1, "the same user");
}

/// A process that others of its user may not look at has no part in shared memory: they cannot know whose it
/// is.
#[test]
fn nothing_is_shared_with_a_process_that_hides() {
    const TEST: &str = "nothing_is_shared_with_a_process_that_hides";
    match role().as_deref() {
        None => return in_a_namespace(TEST),
        Some(MAIN) => {}
        Some("receives") => return receives(),
        Some("hides") => {
            // SAFETY: plain numbers.
            assert_eq!(unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) }, 0);
            return receives();
        }
        Some(_) => return sends(),
    }
    // Both of an ordinary user: root may look at every process. Nobody's number stands for users without one,
    // with whom nothing is shared.
    let channels = |how| {
        let mut receiver = somebody(DAEMON, TEST, how);
        let mut sender = somebody(DAEMON, TEST, "sends");
        let [one, other] = [&mut receiver, &mut sender].map(|process| process.says("number"));
        receiver.hears(other);
        receiver.says("joined");
        sender.hears(one);
        assert_eq!(receiver.says("received"), "hello");
        sender.says("channels")
    };
    assert_eq!(channels("hides"), "0");
    assert_eq!(channels("receives"), "1", "and so that the count means something");
}

/// Sends one message, and says how many channels of shared memory there are.
fn sends() {
    let site = site();
    let side = Side::unconnected(&Home::new(&site), Shape::default(), Service::Rc);
    side.begin();
    println!("\nready\nnumber {}", side.queue_pair.number());
    join(&side, &site, next_line().parse().unwrap());
    say_hello(&side);
    println!("channels {}", side.context.device().counters().local_channels.get());
    next_line();
}

/// One user holds all connections that a process has for the questions of others: it answers a third user's
/// question nevertheless, and it does not keep connections by which nothing comes.
#[test]
fn one_user_keeps_no_other_user_from_asking() {
    const TEST: &str = "one_user_keeps_no_other_user_from_asking";
    /// More than there is room for.
    const MANY: usize = 300;
    match role().as_deref() {
        None => return in_a_namespace(TEST),
        Some(MAIN) => {}
        Some("holds") => return holds_connections(),
        Some(_) => return asks(),
    }
    let side = Side::unconnected(&Home::new(&site()), Shape::default(), Service::Rc);
    side.begin();
    let number = side.queue_pair.number();
    let mut greedy = nobody(TEST, "holds");
    let mut third = somebody(DAEMON, TEST, "asks");
    greedy.hears(format_args!("{} {MANY}", number >> 12));
    assert_eq!(greedy.says("opened"), MANY.to_string());
    third.hears(number);
    third.says("answered");
    greedy.hears("wait");
    greedy.says("all closed");
    third.hears(number);
    third.says("answered");
}

/// Holds connections to a process, as many as it is told, and says nothing by them.
fn holds_connections() {
    println!("\nready");
    let line = next_line();
    let (block, count) = line.split_once(' ').unwrap();
    let name = format!("block/{:03x}", block.parse::<u32>().unwrap());
    let held: Vec<_> = (0..count.parse().unwrap()).filter_map(|_| connect(&name)).collect();
    println!("opened {}", held.len());
    assert_eq!(next_line(), "wait");
    for connection in &held {
        let mut poll = libc::pollfd { fd: connection.as_raw_fd(), events: 0, revents: 0 };
        // SAFETY: one live structure.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, TEST_TIMEOUT.as_millis() as i32) }, 1);
        assert_ne!(poll.revents & libc::POLLHUP, 0);
    }
    println!("all closed");
    next_line();
}

/// Asks where queue pairs live, as the holder of UDP port 4791 asks that is another user's.
fn asks() {
    println!("\nready");
    let localhost = Ipv4Addr::LOCALHOST;
    let peer = Peer::at(localhost);
    for transaction in 1.. {
        let line = next_line();
        let Ok(number) = line.parse::<u32>() else { return };
        let mut message = vec![0u8; 44];
        // A question, from our socket to the address that both have.
        message[0] = 2;
        message[8..10].copy_from_slice(&peer.address.port().to_ne_bytes());
        for at in [12, 28] {
            message[at..at + 16].copy_from_slice(&localhost.to_ipv6_mapped().octets());
        }
        message.extend_from_slice(&question(number, 0, transaction));
        let socket = connect(&format!("block/{:03x}", number >> 12)).expect("somebody listens");
        // SAFETY: live bytes.
        let sent = unsafe {
            libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), libc::MSG_NOSIGNAL)
        };
        assert_eq!(sent, message.len() as isize, "we are let in");
        assert_eq!(peer.answer().0, transaction);
        println!("answered");
    }
}

/// Another user passes a descriptor whose close waits, by as many connections as it likes: a third user's
/// question is answered meanwhile.
#[test]
fn one_user_stops_no_thread_by_a_descriptor_that_does_not_close() {
    const TEST: &str = "one_user_stops_no_thread_by_a_descriptor_that_does_not_close";
    match role().as_deref() {
        None => return in_a_namespace(TEST),
        Some(MAIN) => {}
        Some("passes") => return passes_a_lingering_socket(),
        Some(_) => return asks(),
    }
    let side = Side::unconnected(&Home::new(&site()), Shape::default(), Service::Rc);
    side.begin();
    let number = side.queue_pair.number();
    let mut hostile = nobody(TEST, "passes");
    let mut third = somebody(DAEMON, TEST, "asks");
    hostile.hears(format_args!("block/{:03x}", number >> 12));
    let has_passed = hostile.says("passed") == "true";
    third.hears(number);
    third.says("answered");
    hostile.hears("look");
    assert_eq!(hostile.says("closes") == "true", has_passed, "the answer came while the close waited");
}

/// Passes a TCP socket that lingers, by many connections. Says whether one has taken it, and later whether a
/// thread is still in close(2).
fn passes_a_lingering_socket() {
    println!("\nready");
    let name = next_line();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    // It takes in nothing.
    let (_peer, own) = listener.accept().unwrap();
    let linger = libc::linger { l_onoff: 1, l_linger: 60 };
    // SAFETY: a live local of the length that is given.
    let result = unsafe {
        let length = size_of::<libc::linger>() as libc::socklen_t;
        let option = (&raw const linger).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, option, length)
    };
    assert_eq!(result, 0);
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 1 << 16]).is_ok() {}
    let held: Vec<_> = (0..64).map(|_| connect(&name).expect("somebody listens")).collect();
    // Also by connections that are not let in yet.
    let more = (0..64).filter_map(|_| {
        let late = connect(&name)?;
        pass(&late, &socket).then_some(late)
    });
    let more: Vec<_> = more.collect();
    let passed = held.iter().filter(|by| pass(by, &socket)).count() + more.len();
    drop(socket);
    // The connection ends (FIN_WAIT_1), and belongs to a file until close(2) returns.
    let closes = || {
        let end = format!(":{:04X}", own.port());
        let text = std::fs::read_to_string("/proc/self/net/tcp").unwrap();
        text.lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .any(|line| line.len() > 9 && line[1].ends_with(&end) && line[3] == "04" && line[9] != "0")
    };
    let deadline = Instant::now() + TEST_TIMEOUT;
    while passed > 0 && !closes() {
        assert!(Instant::now() < deadline, "nobody closes it");
        std::thread::yield_now();
    }
    println!("passed {}", passed > 0);
    assert_eq!(next_line(), "look");
    println!("closes {}", closes());
    next_line();
}

/// Sends a descriptor. Whether that is permitted.
fn pass(by: &OwnedFd, descriptor: &impl AsRawFd) -> bool {
    let mut control = [0u64; 3];
    let mut vector = libc::iovec { iov_base: c"passes".as_ptr().cast_mut().cast(), iov_len: 6 };
    // SAFETY: all zero is a valid header; it names live locals, with room for one descriptor.
    unsafe {
        let mut head: libc::msghdr = zeroed();
        (head.msg_iov, head.msg_iovlen) = (&raw mut vector, 1);
        (head.msg_control, head.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control));
        let message = libc::CMSG_FIRSTHDR(&raw const head);
        (*message).cmsg_level = libc::SOL_SOCKET;
        (*message).cmsg_type = libc::SCM_RIGHTS;
        (*message).cmsg_len = libc::CMSG_LEN(size_of::<i32>() as u32) as usize;
        libc::CMSG_DATA(message).cast::<i32>().write_unaligned(descriptor.as_raw_fd());
        libc::sendmsg(by.as_raw_fd(), &raw const head, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) > 0
    }
}

/// A process that gives up its rights gives up what other processes of its former user believe of it.
#[test]
fn a_process_that_drops_privileges_is_not_trusted_any_more() {
    const TEST: &str = "a_process_that_drops_privileges_is_not_trusted_any_more";
    match role().as_deref() {
        None => return in_a_namespace(TEST),
        Some(MAIN) => {}
        Some(_) => return hands_over_twice(),
    }
    let site = site();
    let side = Side::unconnected(&Home::new(&site), Shape::default(), Service::Rc);
    side.begin();
    believes_until_the_user_changes(&side, &mut Process::of(again(TEST, "hands over")));
}

/// A packet that the process hands over is taken in as long as the process is of our user.
fn believes_until_the_user_changes(side: &Side, other: &mut Process) {
    let counters = side.context.device().counters();
    let seen = || (counters.dropped.get(), counters.unknown.get());
    let before = seen();
    let wait = |expected: (u64, u64)| {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while seen() == before || seen() != expected {
            assert!(Instant::now() < deadline, "{:?}, and not {expected:?}", seen());
            std::thread::yield_now();
        }
    };
    other.hears(side.queue_pair.number());
    // Taken in, and dropped in INIT.
    other.says("handed over");
    wait((before.0 + 1, before.1));
    other.hears("drop");
    other.says("handed over");
    wait((before.0 + 1, before.1 + 1));
}

/// The holder of UDP port 4791 hands packets over by the connections of those that watch it: what it hands
/// over as another user does not count.
#[test]
fn a_holder_of_the_port_that_drops_privileges_is_not_trusted_any_more() {
    const TEST: &str = "a_holder_of_the_port_that_drops_privileges_is_not_trusted_any_more";
    match role().as_deref() {
        None => return in_a_namespace(TEST),
        Some(MAIN) => {}
        Some(_) => return holds_the_port(),
    }
    let mut holder = Process::of(again(TEST, "holds"));
    let side = Side::unconnected(&Home::new(&site()), Shape::default(), Service::Rc);
    side.begin();
    believes_until_the_user_changes(&side, &mut holder);
}

/// Holds UDP port 4791 until somebody watches it, and hands packets over to that process.
fn holds_the_port() {
    let any = [(Ipv6Addr::UNSPECIFIED, ROCE).into(), (Ipv4Addr::UNSPECIFIED, ROCE).into()];
    let _port = UdpSocket::bind::<&[SocketAddr]>(&any).unwrap();
    let listener = listen("gate").expect("a free name");
    println!("\nready");
    let number = next_line().parse().unwrap();
    // SAFETY: our descriptor, and a new one.
    let watcher = unsafe {
        let nobody = std::ptr::null_mut();
        OwnedFd::from_raw_fd(libc::accept(listener.as_raw_fd(), nobody, nobody.cast()))
    };
    hand_over_twice(&watcher, number);
}

/// Hands a packet over as it is, and again as nobody.
fn hands_over_twice() {
    println!("\nready");
    let number: u32 = next_line().parse().unwrap();
    let socket = connect(&format!("block/{:03x}", number >> 12)).expect("somebody listens");
    hand_over_twice(&socket, number);
}

fn hand_over_twice(socket: &OwnedFd, number: u32) {
    // A packet for the receiver: who sent it does not matter here.
    let mut message = vec![0u8; 44];
    message[0] = 1;
    for at in [12, 28] {
        message[at + 10..at + 16].copy_from_slice(&[0xff, 0xff, 127, 0, 0, 1]);
    }
    let bth = Bth::new(opcode(WireService::Rc, Operation::SendOnly), DEFAULT_PKEY, number, 0);
    message.extend_from_slice(&packet(bth, &[], &[]));
    message.extend_from_slice(&[0; 4]);
    let send = || {
        // SAFETY: live bytes.
        let sent = unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        assert_eq!(sent, message.len() as isize);
        println!("\nhanded over");
    };
    send();
    assert_eq!(next_line(), "drop");
    // SAFETY: plain numbers.
    unsafe {
        assert_eq!(libc::setresgid(NOBODY, NOBODY, NOBODY), 0);
        assert_eq!(libc::setresuid(NOBODY, NOBODY, NOBODY), 0);
    }
    send();
    next_line();
}

/// A process of another user that takes the name of queue pair numbers is asked for its user, and gets no
/// packet for these numbers.
#[test]
fn nobody_is_handed_the_packets_of_another_user() {
    const TEST: &str = "nobody_is_handed_the_packets_of_another_user";
    match role().as_deref() {
        None => return in_a_namespace(TEST),
        Some(MAIN) => {}
        Some(_) => return hears_packets(),
    }
    let site = site();
    // This process holds UDP port 4791, and hands over what comes there.
    let side = Side::unconnected(&Home::new(&site), Shape::default(), Service::Rc);
    side.begin();
    let counters = side.context.device().counters();
    let seen = || (counters.handed_over.get(), counters.unknown.get());
    let peer = Peer::at(Ipv4Addr::LOCALHOST);
    let mut free = (1..0xfff).filter(|block| *block != side.queue_pair.number() >> 12);
    let mut heard = |mut listener: Process| {
        let block = free.next().unwrap();
        listener.hears(format_args!("block/{block:03x}"));
        listener.says("taken");
        let before = seen();
        let bth = Bth::new(opcode(WireService::Rc, Operation::SendOnly), DEFAULT_PKEY, block << 12 | 5, 0);
        peer.send(site.at(ROCE), &packet(bth, &[], b"secret"));
        let deadline = Instant::now() + TEST_TIMEOUT;
        while seen() == before {
            assert!(Instant::now() < deadline, "the packet is neither handed over nor dropped");
            std::thread::yield_now();
        }
        listener.hears("say");
        let after = seen();
        (listener.says("heard"), after.0 - before.0, after.1 - before.1)
    };
    assert_eq!(heard(nobody(TEST, "hears")), ("0".to_owned(), 0, 1), "another user");
    assert_eq!(heard(Process::of(again(TEST, "hears"))), ("1".to_owned(), 1, 0), "the same user");
}

/// Listens under a name, and says later how many messages have come by the connections to it. There are some.
fn hears_packets() {
    println!("\nready");
    let listener = listen(&next_line()).expect("a free name");
    println!("\ntaken");
    assert_eq!(next_line(), "say");
    let is_readable = |socket: &OwnedFd| {
        let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        (unsafe { libc::poll(&raw mut poll, 1, 0) }) == 1
    };
    let (mut connections, mut messages) = (0, 0);
    while is_readable(&listener) {
        // SAFETY: our descriptor, and a new one.
        let connection = unsafe {
            OwnedFd::from_raw_fd(libc::accept(
                listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            ))
        };
        connections += 1;
        let mut buffer = [0u8; 512];
        let mut receive = || {
            // SAFETY: a live buffer of this length.
            unsafe {
                libc::recv(
                    connection.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    buffer.len(),
                    libc::MSG_DONTWAIT,
                )
            }
        };
        while receive() > 0 {
            messages += 1;
        }
    }
    assert!(connections > 0, "nobody has asked");
    println!("\nheard {messages}");
    next_line();
}

/// A service that listens on all addresses holds its port on each of them: nobody else gets its requests.
#[test]
fn nobody_takes_a_service_from_its_addresses() {
    const TEST: &str = "nobody_takes_a_service_from_its_addresses";
    match role().as_deref() {
        None => return in_a_namespace(TEST),
        Some(MAIN) => {}
        Some(_) => return takes_names(),
    }
    let site = site();
    let context = site.open();
    let manager = context.transport().connections();
    let options = AddressOptions::default();
    let held = manager.reserve("0.0.0.0:0".parse().unwrap(), options).unwrap();
    let port = held.local().port();
    let mut other = nobody(TEST, "takes names");
    let mut takes = |name: String| {
        other.hears(name);
        other.says("taken") == "true"
    };
    assert!(!takes(format!("port/0106/0.0.0.0/{port}")));
    assert!(!takes(format!("port/0106/127.0.0.1/{port}")), "requests for the service go to somebody else");
    // As with the ports of TCP, who comes first has it.
    assert!(takes(format!("port/0106/127.0.0.1/{}", port ^ 1)));
    let refused = manager.reserve(format!("0.0.0.0:{}", port ^ 1).parse().unwrap(), options);
    assert_eq!(refused.err().map(|error| error.errno()), Some(libc::EADDRINUSE));
}

/// Listens under the names that it is told, as long as it lives.
fn takes_names() {
    println!("\nready");
    let mut held = Vec::new();
    loop {
        let name = next_line();
        if name.is_empty() {
            return;
        }
        let socket = listen(&name);
        println!("\ntaken {}", socket.is_some());
        held.extend(socket);
    }
}

/// A process tells its objects to processes of its user in its user namespace, and to root's. Others get no
/// answer.
#[test]
fn nobody_is_told_the_objects_of_another_user() {
    const TEST: &str = "nobody_is_told_the_objects_of_another_user";
    match role().as_deref() {
        None => return in_a_namespace(TEST),
        Some(MAIN) => {}
        Some("answers") => return answers(),
        Some(_) => return asks_for_objects(),
    }
    // The only one of this network namespace.
    let _process = somebody(DAEMON, TEST, "answers");
    let told = |command: Command| Process::of(command).says("told");
    let of_user = |user: u32, mut command: Command| {
        command.uid(user).gid(user);
        told(command)
    };
    assert_eq!(of_user(NOBODY, again(TEST, "asks")), "nothing", "another user");
    let mut elsewhere = Command::new("unshare");
    elsewhere.args(["--user"]).arg(std::env::current_exe().unwrap());
    elsewhere.args(["--exact", TEST, "--nocapture"]).env(ROLE, "asks");
    elsewhere.stdin(Stdio::piped()).stdout(Stdio::piped());
    assert_eq!(of_user(DAEMON, elsewhere), "nothing", "another user namespace");
    // And so that silence means something:
    assert_eq!(of_user(DAEMON, again(TEST, "asks")), "a queue pair", "the same user");
    assert_eq!(told(again(TEST, "asks")), "a queue pair", "root");
}

/// Has a queue pair, and answers questions for it.
fn answers() {
    let side = Side::unconnected(&Home::new(&site()), Shape::default(), Service::Rc);
    side.begin();
    println!("\nready");
    next_line();
}

/// Asks the process of this network namespace that answers questions for its objects. Everybody sees its
/// name.
fn asks_for_objects() {
    println!("\nready");
    let sockets = std::fs::read_to_string("/proc/self/net/unix").unwrap();
    let names = sockets.lines().filter_map(|line| line.split_once("@adverb/look/"));
    let places: Vec<&str> = names.map(|(_, place)| place.trim()).collect();
    let [place] = places[..] else { panic!("one process listens, and not {places:?}") };
    let socket = connect_to(address_of(&format!("look/{place}"))).expect("somebody listens");
    let mut text = Vec::new();
    loop {
        let mut poll = libc::pollfd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one live structure.
        assert_eq!(unsafe { libc::poll(&raw mut poll, 1, TEST_TIMEOUT.as_millis() as i32) }, 1);
        let mut buffer = [0u8; 1 << 13];
        // SAFETY: a live buffer of this length.
        let count = unsafe { libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), 0) };
        if count <= 0 {
            break;
        }
        text.extend_from_slice(&buffer[..count as usize]);
    }
    let text = String::from_utf8(text).unwrap();
    let told = match text.lines().any(|line| line.starts_with("qp\t")) {
        true => "a queue pair",
        false if text.is_empty() => "nothing",
        false => &text,
    };
    println!("\ntold {told}");
    next_line();
}
