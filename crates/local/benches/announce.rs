//! The cost of the right to use another process's memory: to announce the use, to look up a key and a queue
//! pair, and to take the announcement back.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use adverb_local::{Foreign, Kind, Registration, Segment, Table};

const ROUNDS: u32 = 100_000;

fn report(what: &str, mut round: impl FnMut()) {
    let window = |_| {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            round();
        }
        start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
    };
    let mut windows: Vec<f64> = (0..100).map(window).collect();
    windows.sort_by(f64::total_cmp);
    println!("{what:<44} {:10.1} {:10.1} {:10.1}", windows[0], windows[10], windows[50]);
}

fn main() {
    println!("{:<44} {:>10} {:>10} {:>10}", "nanoseconds", "least", "tenth", "median");
    let table = Table::create([0; 4]).expect("memfd_create(2)");
    table.publish(Kind::Key, 5, 6, [1; 7]);
    table.publish(Kind::Pair, 7, 8, [1; 7]);
    let foreign = Foreign::open(table.descriptor().try_clone_to_owned().expect("dup(2)")).expect("mmap(2)");
    let look = || {
        black_box(foreign.get(Kind::Key, black_box(5), black_box(6)));
        black_box(foreign.get(Kind::Pair, black_box(7), black_box(8)));
    };
    report("both looked up", look);
    for (what, registration) in [("", Registration::take()), (", with fences", Registration::none())] {
        let (segment, descriptor) = Segment::create_with(registration).expect("memfd_create(2)");
        let hazard_slots = Arc::new(segment.parts().hazard_slots);
        let mut slot = hazard_slots.reserve().expect("there are some");
        let _owner = Segment::open_with(descriptor, registration).expect("mmap(2)").parts();
        report(&format!("announced{what}"), || drop(hazard_slots.announce(black_box(5), black_box(7))));
        report(&format!("announced, both looked up{what}"), || {
            let announced = hazard_slots.announce(black_box(5), black_box(7));
            look();
            drop(announced);
        });
        report(&format!("the same in a word of one's own{what}"), || {
            let announced = slot.announce(black_box(5), black_box(7));
            look();
            drop(announced);
        });
    }
}
