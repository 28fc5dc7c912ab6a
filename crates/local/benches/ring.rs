//! What a record of 8 bytes costs between two processes, on two processors that nobody else uses: `cargo bench -p adverb-local`.
//! Each figure is the median of the rounds, with the least and the most.

#[path = "../tests/processes/pair.rs"]
mod pair;

use std::time::Instant;

use adverb_local::{Record, Registration};
use pair::{Side, Wait, run};

const ROUNDS: usize = 11;
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

/// Nanoseconds of a record on its way, out of as many there and back.
fn one_way(registrations: [Registration; 2], wait: Wait, records: u64) -> f64 {
    let here = |mut side: Side| {
        let start = Instant::now();
        for round in 0..records {
            send(&mut side, round);
            assert_eq!(side.receive(number), round);
        }
        start.elapsed().as_nanos() as f64 / (2 * records) as f64
    };
    run(registrations, wait, here, |mut side| {
        for _ in 0..records {
            let round = side.receive(number);
            send(&mut side, round);
        }
    })
}

/// Millions of records in a second, one after the other.
fn stream(registrations: [Registration; 2], wait: Wait, records: u64) -> f64 {
    let here = |mut side: Side| {
        assert_eq!(side.receive(number), 0);
        let start = Instant::now();
        for round in 1..records {
            assert_eq!(side.receive(number), round);
        }
        (records - 1) as f64 / start.elapsed().as_nanos() as f64 * 1000.0
    };
    run(registrations, wait, here, |mut side| {
        for round in 0..records {
            send(&mut side, round);
        }
    })
}

fn report(what: &str, unit: &str, measure: impl Fn() -> f64) {
    let mut rounds: Vec<f64> = (0..ROUNDS).map(|_| measure()).collect();
    rounds.sort_by(f64::total_cmp);
    println!(
        "{what:<44} {:8.1} {unit}   ({:.1} to {:.1})",
        rounds[ROUNDS / 2],
        rounds[0],
        rounds[ROUNDS - 1]
    );
}

fn main() {
    let (with, without) = ([Registration::take(); 2], [Registration::none(); 2]);
    report("one way, both polling", "ns ", || one_way(with, POLLS, 200_000));
    report("one way, both polling, with fences", "ns ", || one_way(without, POLLS, 200_000));
    report("one way, both sleeping", "ns ", || one_way(with, SLEEPS, 10_000));
    report("stream, both polling", "M/s", || stream(with, POLLS, 10_000_000));
    report("stream, both polling, with fences", "M/s", || stream(without, POLLS, 5_000_000));
    report("stream, both sleeping when they may", "M/s", || stream(with, SLEEPS, 1_000_000));
}
