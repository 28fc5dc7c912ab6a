//! What a record of 8 bytes costs between two processes: `cargo bench -p adverb-local`.
//!
//! Time is taken over many short windows; on a machine that others use, too, the quickest tenth of them are
//! those in which both processes had a processor.

#[path = "../tests/processes/pair.rs"]
mod pair;

use std::time::Instant;

use adverb_local::{Record, Registration};
use pair::{Side, Wait, run};

const WINDOWS: u64 = 400;
const POLLS: Wait = Some(std::hint::spin_loop);
const SLEEPS: Wait = None;

fn send(side: &mut Side, number: u64) {
    side.send(8, |slot| slot.write_at(0, &number.to_ne_bytes()));
}

fn number(record: &Record<'_>) -> u64 {
    let mut bytes = [0; 8];
    record.read_at(0, &mut bytes).expect("it has eight bytes");
    u64::from_ne_bytes(bytes)
}

/// Nanoseconds of a record on its way, for each window of as many there and back.
fn one_way(registrations: [Registration; 2], wait: Wait, records: u64) -> Vec<f64> {
    let here = |mut side: Side| {
        let window = |_| {
            let start = Instant::now();
            for round in 0..records {
                send(&mut side, round);
                assert_eq!(side.receive(number), round);
            }
            start.elapsed().as_nanos() as f64 / (2 * records) as f64
        };
        (0..WINDOWS).map(window).collect()
    };
    run(registrations, wait, here, |mut side| {
        for _ in 0..WINDOWS * records {
            let round = side.receive(number);
            send(&mut side, round);
        }
    })
}

/// Nanoseconds from one record to the next, for each window of as many in a stream.
fn stream(registrations: [Registration; 2], wait: Wait, records: u64) -> Vec<f64> {
    let here = |mut side: Side| {
        let window = |window| {
            let start = Instant::now();
            for round in 0..records {
                assert_eq!(side.receive(number), window * records + round);
            }
            start.elapsed().as_nanos() as f64 / records as f64
        };
        (0..WINDOWS).map(window).collect()
    };
    run(registrations, wait, here, |mut side| {
        for round in 0..WINDOWS * records {
            send(&mut side, round);
        }
    })
}

fn report(what: &str, mut windows: Vec<f64>) {
    windows.sort_by(f64::total_cmp);
    let at = |part: f64| windows[(windows.len() as f64 * part) as usize];
    println!("{what:<44} {:10.1} {:10.1} {:10.1}", at(0.0), at(0.1), at(0.5));
}

fn main() {
    let (with, without) = ([Registration::take(); 2], [Registration::none(); 2]);
    println!("{:<44} {:>10} {:>10} {:>10}", "nanoseconds of a record", "least", "tenth", "median");
    report("one way, both polling", one_way(with, POLLS, 1_000));
    report("one way, both polling, with fences", one_way(without, POLLS, 1_000));
    report("one way, both sleeping", one_way(with, SLEEPS, 50));
    report("in a stream, both polling", stream(with, POLLS, 20_000));
    report("in a stream, both polling, with fences", stream(without, POLLS, 20_000));
    report("in a stream, both sleeping when they may", stream(with, SLEEPS, 20_000));
}
