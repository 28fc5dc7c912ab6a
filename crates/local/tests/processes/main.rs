//! Two processes. Records between them: all arrive, in order, with every byte, whether the processes poll or
//! sleep. What one lets the other use by its table: it is left alone once it has been taken back.

mod pair;
mod table;

use adverb_local::{Kind, MAX_RECORD, Registration};
use pair::{Side, Wait, run};
use table::{files_are_limited, membarrier_is_refused, use_and_take_back};

/// Lengths that both processes know.
struct Lengths(u64);

impl Lengths {
    fn next(&mut self) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let number = (self.0 >> 33) as usize;
        // Mostly short, sometimes as long as can be.
        if number.is_multiple_of(64) { number / 64 % (MAX_RECORD + 1) } else { number / 64 % 200 }
    }
}

/// Bytes that are different for each record, and at each place of it.
fn fill(bytes: &mut [u8], number: u32) {
    for (place, chunk) in bytes.chunks_mut(4).enumerate() {
        let word = (number ^ (place as u32) << 20).wrapping_mul(0x9E37_79B1).to_ne_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

fn send_all(side: &mut Side, records: u32) {
    let mut lengths = Lengths(7);
    let mut bytes = [0; MAX_RECORD];
    for number in 0..records {
        let bytes = &mut bytes[..lengths.next()];
        fill(bytes, number);
        side.send(bytes.len(), |slot| slot.write_at(0, bytes));
    }
}

fn receive_all(side: &mut Side, records: u32) {
    let mut lengths = Lengths(7);
    let (mut bytes, mut expected) = ([0; MAX_RECORD], [0; MAX_RECORD]);
    for number in 0..records {
        let len = side.receive(|record| {
            record.read_at(0, &mut bytes[..record.len()]).unwrap();
            record.len()
        });
        assert_eq!(len, lengths.next(), "record {number}");
        fill(&mut expected[..len], number);
        assert!(bytes[..len] == expected[..len], "bytes of record {number}");
    }
}

/// One process sends, the other receives.
fn stream(registrations: [Registration; 2], wait: Wait, records: u32) {
    run(
        registrations,
        wait,
        |mut side| receive_all(&mut side, records),
        |mut side| {
            send_all(&mut side, records);
        },
    );
}

/// Each record is answered.
fn ping_pong(registrations: [Registration; 2], wait: Wait, rounds: u64) {
    let read = |side: &mut Side| {
        side.receive(|record| {
            let mut bytes = [0; 8];
            record.read_at(0, &mut bytes).unwrap();
            u64::from_ne_bytes(bytes)
        })
    };
    let here = |mut side: Side| {
        for number in 0..rounds {
            side.send(8, |slot| slot.write_at(0, &number.to_ne_bytes()));
            assert_eq!(read(&mut side), !number);
        }
    };
    run(registrations, wait, here, |mut side| {
        for _ in 0..rounds {
            let number = read(&mut side);
            side.send(8, |slot| slot.write_at(0, &(!number).to_ne_bytes()));
        }
    });
}

fn main() {
    let (with, without) = (Registration::take(), Registration::none());
    let (polls, sleeps): (Wait, Wait) = (Some(std::thread::yield_now), None);
    type Test = Box<dyn FnOnce()>;
    let tests: Vec<(&str, Test)> = vec![
        ("stream_polled", Box::new(move || stream([with, with], polls, 2_000_000))),
        ("stream_woken_by_membarrier", Box::new(move || stream([with, with], sleeps, 300_000))),
        ("stream_woken_by_fences", Box::new(move || stream([without, without], sleeps, 300_000))),
        ("stream_woken_by_one_of_each", Box::new(move || stream([with, without], sleeps, 300_000))),
        ("ping_pong_polled", Box::new(move || ping_pong([with, with], polls, 20_000))),
        ("ping_pong_woken_by_membarrier", Box::new(move || ping_pong([with, with], sleeps, 20_000))),
        ("ping_pong_woken_by_fences", Box::new(move || ping_pong([without, without], sleeps, 20_000))),
        ("ping_pong_woken_by_one_of_each", Box::new(move || ping_pong([without, with], sleeps, 20_000))),
        ("table_with_membarrier", Box::new(move || use_and_take_back([with, with], false, Kind::Key))),
        ("table_with_fences", Box::new(move || use_and_take_back([without, without], false, Kind::Pair))),
        (
            "table_with_membarrier_own_word",
            Box::new(move || use_and_take_back([with, with], true, Kind::Pair)),
        ),
        (
            "table_with_one_of_each_own_word",
            Box::new(move || use_and_take_back([without, with], true, Kind::Key)),
        ),
        ("membarrier_is_refused", Box::new(membarrier_is_refused)),
        ("files_are_limited", Box::new(files_are_limited)),
    ];
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let (mut passed, mut failed) = (0, 0);
    for (name, test) in tests {
        if wanted.as_ref().is_some_and(|wanted| !name.contains(wanted.as_str())) {
            continue;
        }
        let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(test)).is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        if ok { passed += 1 } else { failed += 1 }
    }
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!("\ntest result: {word}. {passed} passed; {failed} failed; 0 ignored");
    std::process::exit(i32::from(failed != 0));
}
