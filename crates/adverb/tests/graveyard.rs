//! Objects are dropped in any order, or leaked, while a peer keeps sending: nothing is written to memory that
//! was freed.

mod ends;

use adverb::{
    CompletionQueue, Connection, ExclusiveMemory, QueuePairOptions, RemoteMemory, Rights, SharedReceiveQueue,
    StableMemory, WorkRequest,
};
use ends::{SOON, each_device, listener, parts};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

const ROUNDS: u64 = 12;
const LENGTH: usize = 256;
const RECEIVES: u32 = 200;
/// Bytes of a Read.
const LONG: usize = 100_000;
/// What freed memory holds.
const DEAD: u8 = 0xee;

/// Memory that was freed. It stays mapped, so that a late write shows.
static GRAVEYARD: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Memory that goes to the graveyard.
struct Mortal(Vec<u8>);

// SAFETY: the vector's bytes, which nobody touches meanwhile.
unsafe impl StableMemory for Mortal {
    fn bytes(&mut self) -> (NonNull<u8>, usize) {
        self.0.bytes()
    }
}

// SAFETY: as above.
unsafe impl ExclusiveMemory for Mortal {}

impl Drop for Mortal {
    fn drop(&mut self) {
        self.0.fill(DEAD);
        GRAVEYARD.lock().unwrap_or_else(PoisonError::into_inner).push(std::mem::take(&mut self.0));
    }
}

/// Numbers that look random and are the same in each run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % most
    }
}

/// What the round has, one after the other in the order in which it is dropped.
type RoundObject = Box<dyn Any + Send>;

/// Says to this test that it is the process in which it all happens.
const HERE: &str = "ADVERB_TEST_HERE";
const NAME: &str = "the_dead_are_left_alone";

/// Within the host, and by the network.
#[test]
fn the_dead_are_left_alone() {
    if std::env::var_os(HERE).is_some() {
        return all_rounds();
    }
    for local in ["auto", "off"] {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", NAME, "--nocapture"]).env(HERE, "1").env("ADVERB_LOCAL", local);
        let output = child.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "ADVERB_LOCAL={local}: {said}");
    }
}

fn all_rounds() {
    each_device(|device| {
        for seed in 0..ROUNDS {
            round(device, &mut Dice(seed));
        }
        let graves = GRAVEYARD.lock().unwrap();
        assert!(!graves.is_empty());
        for grave in graves.iter() {
            assert!(grave.iter().all(|byte| *byte == DEAD), "freed memory was written");
        }
    });
}

fn round(device: &adverb::Device, dice: &mut Dice) {
    let context = device.open().unwrap();
    let (listener, address) = listener(&context);
    let is_shared = dice.below(2) == 0;
    // Whether the server has all messages that it waits for.
    let has_taken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            let parts = parts(&context);
            let queue_pair = parts.domain.queue_pair(parts.options.clone()).unwrap();
            let region = parts.domain.memory_region(LONG, Rights::READ).unwrap();
            let connection = queue_pair.connect(address, &region.remote().to_bytes(), SOON).unwrap();
            flood(&connection, &parts.sends, &has_taken);
        });
        let mut parts = parts(&context);
        parts.receives = context.completion_queue(2 * RECEIVES).unwrap();
        parts.options.receive_queue = parts.receives.clone();
        parts.options.max_receives = RECEIVES;
        let shared = is_shared.then(|| parts.domain.shared_receive_queue(RECEIVES, 1).unwrap());
        let options = QueuePairOptions { shared_receive_queue: shared.clone(), ..parts.options.clone() };
        let queue_pair = parts.domain.queue_pair(options).unwrap();
        let post = |connection: Option<&Connection>,
                    shared: Option<&SharedReceiveQueue>,
                    queue_pair: Option<&adverb::QueuePair>| {
            let buffer = parts.domain.register_buffer(Mortal(vec![0; LENGTH])).unwrap();
            match (shared, connection, queue_pair) {
                (Some(shared), _, _) => shared.post_receive(0, buffer).is_ok(),
                (_, Some(connection), _) => connection.post_receive(0, buffer).is_ok(),
                (_, _, Some(queue_pair)) => queue_pair.post_receive(0, buffer).is_ok(),
                _ => false,
            }
        };
        for _ in 0..RECEIVES {
            assert!(post(None, shared.as_ref(), Some(&queue_pair)));
        }
        let connection = listener.accept(SOON).unwrap().accept(queue_pair, &[], SOON).unwrap();
        let mut kept: Vec<RoundObject> = Vec::new();
        // Some messages are taken: their buffers are freed, kept, posted again, or leaked with their
        // completion.
        for _ in 0..dice.below(30) {
            let completion = parts.receives.wait(SOON).unwrap().success().unwrap();
            match dice.below(4) {
                0 => drop(completion),
                1 => kept.push(Box::new(completion)),
                2 => std::mem::forget(completion),
                _ => drop(completion.into_buffer().split_off(100)),
            }
            post(Some(&connection), shared.as_ref(), None);
        }
        has_taken.store(true, Ordering::SeqCst);
        // Reads are under way, too.
        let there = RemoteMemory::from_bytes(connection.private_data()).unwrap();
        for _ in 0..20 {
            let target = parts.domain.register_buffer(Mortal(vec![0; LONG])).unwrap();
            // Refused where the connection has ended by itself.
            let _ = connection.post_send(WorkRequest::read(target, &there));
        }
        // Everything goes, in any order, while messages keep coming. One thing in eight is leaked.
        kept.push(Box::new(connection));
        kept.push(Box::new(parts));
        kept.push(Box::new(shared));
        while !kept.is_empty() {
            let next = kept.swap_remove(dice.below(kept.len()));
            if dice.below(8) == 0 { std::mem::forget(next) } else { drop(next) }
        }
        drop(listener);
        client.join().unwrap();
    });
}

/// Sends until the peer is gone, or takes nothing any more.
fn flood(connection: &Connection, sends: &CompletionQueue, has_taken: &AtomicBool) {
    // A leaked peer has a bounded number of receives: then nothing more completes, and no time-out is long
    // enough.
    for _ in 0..200 {
        if connection.post_send(WorkRequest::send(&[0x11; 64])).is_err() {
            return;
        }
        let ended = loop {
            match sends.wait(Duration::from_secs(2)) {
                // A server that waits for messages is no leaked one, however late it is. Its wait is bounded.
                Err(error) if error.is_timeout() && !has_taken.load(Ordering::SeqCst) => {}
                ended => break ended,
            }
        };
        if !ended.is_ok_and(|completion| completion.error().is_none()) {
            return;
        }
    }
}
