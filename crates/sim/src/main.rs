//! The protocols of adverb on a simulated clock and network.
//!
//! The state machines of `adverb-proto` do no input or output, so that two ends of a connection and the
//! network between them fit into one thread. Time passes when nothing else can happen. A seed determines each
//! run.
//!
//! `cargo xtask sim` runs it: see [`USAGE`].

mod cm;
mod ib;
mod iwarp;
mod random;
mod world;

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use random::Random;
use world::{Failure, World};

const USAGE: &str = "\
usage: cargo xtask sim [--seeds N] [--from SEED] [--seconds N] [--world NAME]

Runs random workloads of the protocols on a simulated clock and network, and checks them at every step. The first failure ends it, and is made as small as possible.

  --seeds N     so many seeds (default: 1000); each of them in every world
  --from SEED   the first seed (default: 0), a number, or `fresh`: one that the clock chooses
  --seconds N   no more seeds after so many seconds
  --incast      instead, up to 1,000 queue pairs write 16 times 64 KiB each to one host, with the congestion window and without
  --world NAME  in this world alone: rc, xrc, uc, many, iwarp, iwarp-damage, cm
";

struct Options {
    seeds: u64,
    from: u64,
    seconds: Option<u64>,
    worlds: Vec<World>,
}

fn options() -> Result<Options, String> {
    let mut options = Options { seeds: 1000, from: 0, seconds: None, worlds: World::ALL.to_vec() };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        if name == "--help" {
            print!("{USAGE}");
            std::process::exit(0);
        }
        if name == "--incast" {
            print!("{}", ib::incast::table());
            std::process::exit(0);
        }
        let value = arguments.next().ok_or_else(|| format!("{name}: a value is missing"))?;
        let number = || value.parse().map_err(|_| format!("{name} {value}: a number is wanted"));
        match name.as_str() {
            "--seeds" => options.seeds = number()?,
            "--from" if value == "fresh" => {
                let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
                options.from = now.map_or(0, |time| time.as_micros() as u64);
            }
            "--from" => options.from = number()?,
            "--seconds" => options.seconds = Some(number()?),
            "--world" => {
                let world = World::named(&value).ok_or_else(|| format!("there is no world {value}"))?;
                options.worlds = vec![world];
            }
            _ => return Err(format!("{name} is not known")),
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(why) => {
            eprint!("adverb-sim: {why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    // A failure is told once, and in its smallest form.
    std::panic::set_hook(Box::new(|_| {}));
    let start = Instant::now();
    let (next, events, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let found: Mutex<Option<Failure>> = Mutex::new(None);
    let work = || {
        while !is_over.load(Ordering::Relaxed) {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let is_late = options.seconds.is_some_and(|limit| start.elapsed() >= Duration::from_secs(limit));
            if number >= options.seeds || is_late {
                next.fetch_sub(1, Ordering::Relaxed);
                return;
            }
            for world in &options.worlds {
                match world.run(options.from.wrapping_add(number)) {
                    Ok(count) => {
                        events.fetch_add(count, Ordering::Relaxed);
                    }
                    Err(failure) => {
                        is_over.store(true, Ordering::Relaxed);
                        found.lock().expect("no thread panics with it").get_or_insert(failure);
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |count| count.get()) {
            scope.spawn(work);
        }
    });
    let (events, seconds) = (events.into_inner(), start.elapsed().as_secs_f64());
    println!(
        "{} seeds from {}, {events} events in {seconds:.1} s: {:.0} a second",
        next.into_inner(),
        options.from,
        events as f64 / seconds
    );
    match found.into_inner().expect("no thread has panicked with it") {
        None => ExitCode::SUCCESS,
        Some(found) => {
            println!("FAILED: {found}");
            ExitCode::FAILURE
        }
    }
}
