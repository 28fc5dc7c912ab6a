//! Processes of the same user that break the rules: nobody else crashes or hangs, and no other connection
//! notices.

use super::agent::{Agent, hash};
use super::death::{connect, goes_on, reach, until};
use super::other::{OPEN, Other, Pair, Remote, Tier};
use super::turn;
use adverb_core::memory::key_number;
use adverb_core::memory::process::gate;
use adverb_core::request::{Opcode, Status};
use adverb_local::{ANNOUNCEMENTS, Kind, Table};
use std::fs::File;
use std::io::Write;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take before a test fails.
const LIMIT: Duration = Duration::from_secs(20);

/// Bytes of what a hostile process says to be its memory.
const LENGTH: u64 = 1 << 20;
/// The address at which a hostile process says that its memory begins.
const FIRST: u64 = 0x7000_0000_0000;
/// A key about which it says nothing but the truth.
const GOOD: u32 = 0x1234_5601;

/// The tier of a hostile process: its own engine says nothing about its memory.
pub(crate) const LIAR: Tier = Tier::Packets;

/// Lies of a hostile process about its keys: first byte, length, offset, access, domain.
const LIES: [[u64; 5]; 17] = [
    [FIRST, 0, 0, 0xF, 1],
    [FIRST, u64::MAX, 0, 0xF, 1],
    [FIRST, LENGTH, LENGTH, 0xF, 1],
    [FIRST, LENGTH, 1 << 62, 0xF, 1],
    [FIRST, LENGTH, u64::MAX - 4095, 0xF, 1],
    [FIRST, LENGTH, 1, 0xF, 1],
    [FIRST, LENGTH - 1, 0, 0xF, 1],
    // More than there are addresses for.
    [FIRST, 1 << 46, 0, 0xF, 1],
    [FIRST, 1 << 45, 0, 0xF, 1],
    [FIRST, 1 << 45, 1 << 45, 0xF, 1],
    [FIRST, 1 << 44, 0, 0xF, 1],
    [FIRST, 1 << 44, 1 << 44, 0xF, 1],
    [0, !4095, 0, u64::MAX, 1],
    [FIRST, 4096, LENGTH - 4096, 1 << 40 | 0xF, 1],
    [u64::MAX - 7, LENGTH, 0, 0xF, 1],
    [FIRST, LENGTH, 0, 0, 1],
    [FIRST, LENGTH, 0, 0xF, 2],
];

fn lie(index: usize) -> u32 {
    0x2345_0001 + (index as u32) * 0x0101_0100
}

fn memfd(length: u64, seals: i32) -> OwnedFd {
    // SAFETY: a fresh descriptor.
    let file = unsafe {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        File::from_raw_fd(libc::memfd_create(c"hostile".as_ptr(), flags))
    };
    file.set_len(length).unwrap();
    // SAFETY: plain numbers.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    file.into()
}

fn pipe() -> OwnedFd {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[7; 64]).unwrap();
    reader.into()
}

/// A table that says the truth about one key, lies about others, and lets these queue pairs of its own be
/// used by those.
pub(crate) fn table(pairs: &[(u32, u32)]) -> Table {
    let table = Table::create([0; 4]).unwrap();
    for (index, (own, peer)) in pairs.iter().enumerate() {
        table.publish(Kind::Pair, index, *own, [u64::from(*peer), 1, 0xF, 0, 0, 0, 0]);
    }
    publish(&table, GOOD, [FIRST, LENGTH, 0, 0xF, 1]);
    for (index, words) in LIES.into_iter().enumerate() {
        publish(&table, lie(index), words);
    }
    table
}

fn publish(table: &Table, key: u32, [first, length, offset, access, domain]: [u64; 5]) {
    let words = [first, length, FIRST, access, domain, length, offset];
    table.publish(Kind::Key, key_number([0; 4], key) as usize, key, words);
}

/// What is presented as a table and as memory, by number.
pub(crate) fn presents(which: u64, table: &Table) -> Vec<OwnedFd> {
    let proper = || table.descriptor().try_clone_to_owned().unwrap();
    let size = File::from(proper()).metadata().unwrap().len();
    let sizes = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let all = sizes | libc::F_SEAL_SEAL | libc::F_SEAL_FUTURE_WRITE;
    let memory = || memfd(LENGTH, sizes);
    match which {
        0 => vec![proper(), memory()],
        1 => vec![],
        2 => vec![proper()],
        3 => vec![proper(), memory(), memory()],
        4 => vec![pipe(), pipe()],
        5 => vec![memfd(size, all), memory()],
        6 => vec![memfd(size, sizes), memory()],
        7 => vec![memfd(4096, all), memory()],
        8 => vec![memory(), proper()],
        9 => vec![proper(), pipe()],
        10 => vec![proper(), memfd(LENGTH, 0)],
        11 => vec![proper(), memfd(4096, sizes)],
        12 => vec![proper(), memfd(LENGTH, sizes | libc::F_SEAL_WRITE)],
        13 => vec![proper(), memfd(1 << 50, sizes)],
        14 => vec![proper(), File::open("/dev/zero").unwrap().into()],
        _ => panic!("no such present"),
    }
}
const PRESENTS: u64 = 15;

/// The sockets by which this process is connected with another.
pub(crate) fn sockets(process: libc::pid_t) -> Vec<RawFd> {
    let all = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = all.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let option = |fd: RawFd, name, value: *mut libc::c_void, mut length| {
        // SAFETY: the value is as long as it says.
        unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, name, value, &raw mut length) == 0 }
    };
    let is_it = |fd: &RawFd| {
        // SAFETY: all zeros is a valid value.
        let mut peer: libc::ucred = unsafe { zeroed() };
        let mut kind: libc::c_int = 0;
        option(*fd, libc::SO_TYPE, (&raw mut kind).cast(), 4)
            && kind == libc::SOCK_SEQPACKET
            && option(*fd, libc::SO_PEERCRED, (&raw mut peer).cast(), size_of::<libc::ucred>() as u32)
            && peer.pid == process
    };
    numbers.filter(is_it).collect()
}

/// Bytes in front of a message of a handshake.
pub(crate) const HEAD: usize = 44;
/// A message of a handshake: its kind, and four words.
pub(crate) const MESSAGE: usize = HEAD + 33;

/// Says by a socket: here is my memory. False if the other process has hung up there: where both have met
/// each other at a time, one connection ends.
fn present(socket: RawFd, descriptors: &[OwnedFd]) -> bool {
    const MEMORY: u8 = 6;
    // Where its gate is, it says truly: what is copied there goes to its own memory.
    say(socket, MEMORY, [0, 0, 0, gate()], descriptors)
}

/// Says something of a handshake. False if the other process has hung up.
pub(crate) fn say(socket: RawFd, what: u8, words: [u64; 4], descriptors: &[OwnedFd]) -> bool {
    let mut bytes = [0u8; MESSAGE];
    (bytes[0], bytes[HEAD]) = (7, what);
    for (place, word) in bytes[HEAD + 1..].chunks_mut(8).zip(words) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    let fds: Vec<RawFd> = descriptors.iter().map(|fd| fd.as_raw_fd()).collect();
    let length = size_of_val(&fds[..]);
    let mut control = [0u64; 8];
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: the header names live locals, and the control message fits.
    let sent = unsafe {
        let mut head: libc::msghdr = zeroed();
        (head.msg_iov, head.msg_iovlen) = (&raw mut vector, 1);
        if length > 0 {
            head.msg_control = control.as_mut_ptr().cast();
            head.msg_controllen = libc::CMSG_SPACE(length as u32) as usize;
            let message = libc::CMSG_FIRSTHDR(&raw const head);
            (*message).cmsg_level = libc::SOL_SOCKET;
            (*message).cmsg_type = libc::SCM_RIGHTS;
            (*message).cmsg_len = libc::CMSG_LEN(length as u32) as usize;
            std::ptr::copy_nonoverlapping(fds.as_ptr().cast(), libc::CMSG_DATA(message), length);
        }
        let end = Instant::now() + LIMIT;
        loop {
            let sent = libc::sendmsg(socket, &raw const head, libc::MSG_NOSIGNAL);
            let error = std::io::Error::last_os_error();
            // The other process has not taken in yet what was sent before.
            if sent >= 0 || error.kind() != std::io::ErrorKind::WouldBlock || Instant::now() > end {
                break if sent >= 0 { Ok(sent) } else { Err(error) };
            }
            std::thread::yield_now();
        }
    };
    match sent {
        Ok(sent) => sent == bytes.len() as isize,
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => false,
        // A connection that is about something else, and lets no descriptor through.
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => false,
        Err(error) => panic!("nothing can be said: {error}"),
    }
}

/// The words of all segments that this process shares with others.
fn segments() -> Vec<&'static [AtomicU64]> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let found = maps.lines().filter(|line| line.contains("memfd:adverb-local"));
    let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
    found
        .map(|line| {
            let (start, end) = line.split_whitespace().next().unwrap().split_once('-').unwrap();
            let (start, end) = (number(start), number(end));
            // SAFETY: mapped as long as the process lives, and words that bear every change.
            unsafe { std::slice::from_raw_parts(start as *const AtomicU64, (end - start) / 8) }
        })
        .collect()
}

/// Announces the use of everything, for both sides.
fn announce_everything() {
    for segment in segments() {
        for places in ANNOUNCEMENTS {
            for (lane, place) in (1..).zip(places) {
                segment[place / 8].store(lane << 32 | lane, Ordering::SeqCst);
            }
        }
    }
}

impl Agent {
    pub(crate) fn obey_as_villain(&mut self, command: &str, numbers: &[u64]) -> Option<Vec<u64>> {
        Some(match (command, numbers) {
            // By pairs of queue pair numbers, ours and theirs.
            ("present", [process, which, pairs @ ..]) => {
                let pairs: Vec<_> = pairs.chunks(2).map(|pair| (pair[0] as u32, pair[1] as u32)).collect();
                let table = table(&pairs);
                let sockets = sockets(*process as libc::pid_t);
                let said =
                    sockets.iter().filter(|socket| present(**socket, &presents(*which, &table))).count();
                self.tables.push(table);
                vec![said as u64]
            }
            ("admit", [index, own, peer]) => {
                let words = [*peer, 1, 0xF, 0, 0, 0, 0];
                self.tables.last().unwrap().publish(Kind::Pair, *index as usize, *own as u32, words);
                vec![]
            }
            // Says now this, now that, and then nothing.
            ("waver", [times]) => {
                let table = self.tables.last().unwrap();
                let number = key_number([0; 4], GOOD) as usize;
                for round in 0..*times as usize {
                    table.withdraw(Kind::Key, number);
                    publish(table, GOOD, LIES[round % LIES.len()]);
                    table.withdraw(Kind::Key, number);
                    publish(table, GOOD, [FIRST, LENGTH, 0, 0xF, 1]);
                }
                table.withdraw(Kind::Key, number);
                vec![]
            }
            ("announce-everything", []) => {
                announce_everything();
                vec![]
            }
            ("spoil", [times]) => {
                for round in 0..*times {
                    for segment in segments() {
                        for (index, word) in segment.iter().enumerate() {
                            word.store(hash(&(round << 32 | index as u64).to_le_bytes()), Ordering::Relaxed);
                        }
                    }
                }
                vec![]
            }
            _ => return None,
        })
    }
}

/// Queue pairs of two processes, so many: indices in the first and in the second, and their numbers.
fn pairs(first: &mut Other, second: &mut Other, count: usize) -> (Vec<[u64; 2]>, Vec<u64>) {
    let mut numbers = Vec::new();
    let mut make = || {
        let pair = connect(first, second);
        numbers.extend(
            pair.iter().zip([&mut *first, &mut *second]).map(|(pair, of)| of.ask("number", &[*pair])[0]),
        );
        pair
    };
    ((0..count).map(|_| make()).collect(), numbers)
}

/// Waits until the victim uses what the villain says to be its memory. Returns the victim's queue pair that
/// does.
fn believed(villain: &mut Other, victim: &mut Other, own: &Remote, from: u64) -> u64 {
    let before = victim.ask("direct", &[])[0];
    let (mut index, mut found) = (from, 0);
    until("it is not believed", || {
        // What is not found in the table goes as a packet, and fails.
        let (pairs, numbers) = pairs(villain, victim, 1);
        villain.ask("admit", &[index, numbers[0], numbers[1]]);
        (index, found) = (index + 1, pairs[0][1]);
        let write = Opcode::Write as u64;
        victim.ask("operate", &[found, own.index, write, 8, FIRST, GOOD.into()])[1] > before
    });
    found
}

#[test]
fn lies_about_memory_harm_nobody_else() {
    let _turn = turn();
    let mut victim = Other::of(Tier::Mapped);
    let own = victim.open_region(4096);
    let mut good = Other::of(Tier::Mapped);
    let (remote, [good_pair, pair]) = (good.open_region(1 << 16), connect(&mut good, &mut victim));
    reach(&mut good, &mut victim, pair, &own, Opcode::Write, remote.middle());
    let operate = |victim: &mut Other, pair: u64, opcode: Opcode, (address, key): (u64, u32)| {
        victim.ask("operate", &[pair, own.index, opcode as u64, 8, address, key.into()])
    };
    for which in 0..PRESENTS {
        let mut villain = Other::of(LIAR);
        let (pairs, numbers) = pairs(&mut villain, &mut victim, 2 * LIES.len() + 1);
        // They have met once this succeeds.
        let there = villain.open_region(4096);
        let before = operate(&mut victim, pairs[0][1], Opcode::Write, (there.address, there.key));
        assert_eq!(before[0], Status::Success as u64);
        let mut command = vec![victim.process as u64, which];
        command.extend(&numbers);
        assert_ne!(villain.ask("present", &command), [0]);
        if which == 0 {
            believed(&mut villain, &mut victim, &own, numbers.len() as u64 / 2);
        }
        for (index, words) in LIES.iter().enumerate() {
            let opcode = [Opcode::Write, Opcode::Read, Opcode::FetchAdd][index % 3];
            for (half, address) in
                [FIRST, words[0].wrapping_add(words[1]).wrapping_sub(8) & !7].iter().enumerate()
            {
                let pair = pairs[1 + 2 * index + half][1];
                let answer = operate(&mut victim, pair, opcode, (*address, lie(index)));
                assert!(
                    answer[0] == Status::Success as u64 || answer[0] == Status::RemoteAccess as u64,
                    "{answer:?}"
                );
            }
        }
    }
    // The victim has addresses left, and its other connection is as it was.
    victim.open_region(64 << 20);
    let before = victim.ask("direct", &[])[0];
    assert_eq!(
        operate(&mut victim, pair, Opcode::Write, remote.middle()),
        [Status::Success as u64, before + 1]
    );
    good.ask("destroy", &[good_pair]);
}

/// What a process says of its memory changes while another one uses that.
#[test]
fn a_process_that_changes_its_announced_memory_harms_only_itself() {
    let _turn = turn();
    let (mut victim, mut villain) = (Other::of(Tier::Mapped), Other::of(LIAR));
    let own = victim.region(0, LENGTH as usize, OPEN);
    let (pairs, numbers) = pairs(&mut villain, &mut victim, 1);
    let there = villain.open_region(4096);
    let numbers: Vec<_> = [victim.process as u64, 0].into_iter().chain(numbers).collect();
    let operate = [pairs[0][1], own.index, Opcode::Write as u64, 8, there.address, there.key.into()];
    assert_eq!(victim.ask("operate", &operate)[0], Status::Success as u64);
    villain.ask("present", &numbers);
    let pair = believed(&mut villain, &mut victim, &own, 1);
    assert_eq!(victim.ask("stream", &[pair, own.index, LENGTH, FIRST, GOOD.into()]), [0]);
    villain.ask("waver", &[20_000]);
    assert_eq!(victim.hear(), [Status::RemoteAccess as u64]);
    victim.ask("rest", &[]);
}

/// A process that announces whatever it likes keeps nobody for ever, and one that writes garbage everywhere
/// ends its own connection.
#[test]
fn false_announcements_keep_nobody() {
    let _turn = turn();
    let mut target = Other::of(Tier::Mapped);
    let (mine, pair): (Remote, Pair) = (target.open_region(1 << 16), Pair::open(&mut target));
    pair.reach(&mut target, Opcode::Write, mine.middle());
    let mut villain = Other::of(Tier::Mapped);
    let remote = target.open_region(1 << 16);
    let [its, own_pair] = connect(&mut target, &mut villain);
    let own = villain.open_region(4096);
    reach(&mut target, &mut villain, own_pair, &own, Opcode::Write, remote.middle());
    villain.ask("announce-everything", &[]);
    let begun = Instant::now();
    target.ask("deregister", &[remote.index]);
    // Otherwise it was no lie, and nothing was tested.
    assert!(begun.elapsed() > Duration::from_millis(500), "nobody has waited for what the villain said");
    villain.ask("spoil", &[10]);
    target.ask("destroy", &[its]);
    goes_on(&mut target, &pair, &mine);
}
