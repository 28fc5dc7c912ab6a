//! What fuzz targets feed, and a test of every run with random bytes: the table in which another process says
//! what it lets this one use, and what processes say as they meet.

use crate::direct::right;
use crate::neighbour_memory::NeighbourMemory;
use adverb_core::memory::key_number;
use adverb_core::qp::SendWork;
use adverb_core::request::{Opcode, SendFlags};
use adverb_local::{Kind, Table};
use std::os::fd::{FromRawFd, OwnedFd};

/// Any table of another process, and any request: bytes within its memory are meant, or none.
pub fn table(bytes: &[u8]) {
    const SIZE: i64 = 4 << 16;
    let mut words = bytes.chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let mut next = || words.next().unwrap_or(0);
    let secrets = std::array::from_fn(|_| next());
    let secret = secrets.map(|word| word as u32);
    let table = Table::create(secrets).expect("a table");
    // SAFETY: a new descriptor, which is ours; plain values.
    let memory = unsafe {
        let fd = libc::memfd_create(c"adverb-try".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0 && libc::ftruncate(fd, SIZE) == 0);
        assert_eq!(libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        OwnedFd::from_raw_fd(fd)
    };
    let descriptor = table.descriptor().try_clone_to_owned().expect("a descriptor");
    let neighbour_memory = NeighbourMemory::new(descriptor, None).expect("a table");
    neighbour_memory.learn(memory);
    for _ in 0..bytes.len() / 96 {
        // Now and then what an honest process would say.
        let (key, form) = (next() as u32, next());
        let word = |form: u64, word: u64| if form & 1 == 0 { word } else { word % SIZE as u64 };
        let opened: [u64; 7] = std::array::from_fn(|at| word(form >> at, next()));
        let index = key_number(secret, key) as usize;
        table.withdraw(Kind::Key, index);
        table.publish(Kind::Key, index, key, opened);
        let (number, at) = (next() as u32, next() as usize % 256);
        table.withdraw(Kind::Pair, at);
        table.publish(Kind::Pair, at, number, opened);
        assert!(neighbour_memory.pair(number).is_some_and(|pair| pair.index as usize <= at));
        let work = SendWork {
            sequence: 0,
            wr_id: 0,
            opcode: if number & 1 == 0 { Opcode::Write } else { Opcode::Read },
            flags: SendFlags::empty(),
            sges: 1,
            length: next() as u32 >> (number % 32),
            remote_address: next(),
            rkey: key,
            immediate: 0,
            compare_add: 0,
            swap: 0,
            shared_queue: 0,
        };
        let (Some(region), Some(right)) = (neighbour_memory.region(key), right(&work)) else { continue };
        let _ = region.by_address();
        if let Some(address) = region.address(&work, right) {
            assert!(address.checked_add(work.length.into()).is_some_and(|end| end <= i64::MAX as u64));
        }
        let Some((view, at)) = region.mapped(&work, right) else { continue };
        assert!(view.len() as i64 <= SIZE);
        let mut copy = vec![0; work.length as usize];
        let is_done = match work.opcode {
            Opcode::Write => view.write(at, &copy),
            _ => view.read(at, &mut copy),
        };
        assert!(is_done.is_ok(), "{work:?} {opened:x?}");
    }
}

/// What another process says as the two meet.
pub fn message(bytes: &[u8]) {
    crate::handshake::try_bytes(bytes);
}

#[cfg(test)]
mod tests {
    use adverb_core::random;

    #[test]
    fn garbage_in_a_handshake_is_no_message() {
        for _ in 0..2000 {
            let mut bytes = [0; 33].map(|_: u8| random::word() as u8);
            bytes[0] %= 9;
            super::message(&bytes[..33 - random::word() as usize % 2]);
        }
    }

    #[test]
    fn garbage_in_a_table_does_no_harm() {
        for _ in 0..100 {
            let length = random::word() as usize % 2000;
            super::table(&(0..length).map(|_| random::word() as u8).collect::<Vec<_>>());
        }
    }
}
