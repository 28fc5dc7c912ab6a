//! The worlds that a seed runs in, and how a failure is made small.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use adverb_proto::ib::Service;

use crate::{Random, cm, ib, iwarp};

/// Steps at most towards a smaller failure.
const MOST_STEPS: usize = 1000;
/// The time after which no smaller failure is sought. A run that never comes to rest is long.
const SHRINK_TIME: Duration = Duration::from_secs(10);

/// A scenario that has smaller ones.
pub(crate) trait Shrink: Sized + fmt::Debug {
    /// Scenarios with less in them, one step each.
    fn smaller(&self) -> Vec<Self>;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum World {
    Rc,
    Xrc,
    Uc,
    /// Many queue pairs between two hosts.
    Many,
    Iwarp,
    IwarpDamage,
    Cm,
}

/// A run that has failed.
pub(crate) struct Failure {
    world: World,
    seed: u64,
    why: String,
    /// The smallest scenario that fails with the seed, and how.
    smallest: Option<(String, String)>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { world, seed, why, smallest } = self;
        writeln!(f, "{why}\nAgain: cargo xtask sim --world {} --from {seed} --seeds 1", world.name())?;
        if let Some((scenario, why)) = smallest {
            writeln!(f, "The smallest scenario that fails with this seed: {scenario}\n{why}")?;
        }
        Ok(())
    }
}

impl World {
    pub(crate) const ALL: [World; 7] =
        [World::Rc, World::Xrc, World::Uc, World::Many, World::Iwarp, World::IwarpDamage, World::Cm];

    pub(crate) fn name(self) -> &'static str {
        match self {
            World::Rc => "rc",
            World::Xrc => "xrc",
            World::Uc => "uc",
            World::Many => "many",
            World::Iwarp => "iwarp",
            World::IwarpDamage => "iwarp-damage",
            World::Cm => "cm",
        }
    }

    pub(crate) fn named(name: &str) -> Option<World> {
        World::ALL.into_iter().find(|world| world.name() == name)
    }

    /// Runs a seed. Returns how much happened.
    pub(crate) fn run(self, seed: u64) -> Result<u64, Failure> {
        let queue_pairs = |draw: &dyn Fn(&mut Random) -> ib::Scenario| {
            let mut random = Random(seed);
            let scenario = draw(&mut random);
            let run = |scenario: &ib::Scenario| guarded(|| scenario.run(&mut random.clone()));
            run(&scenario).map_err(|why| {
                let smallest = Some(shrink(scenario, run));
                Failure { world: self, seed, why, smallest }
            })
        };
        let plain = |run: &dyn Fn() -> u64| {
            guarded(run).map_err(|why| Failure { world: self, seed, why, smallest: None })
        };
        match self {
            World::Rc => queue_pairs(&|random| ib::Scenario::new(Service::Rc, random)),
            World::Xrc => queue_pairs(&|random| ib::Scenario::new(Service::Xrc, random)),
            World::Uc => queue_pairs(&|random| ib::Scenario::new(Service::Uc, random)),
            World::Many => queue_pairs(&ib::Scenario::many),
            World::Iwarp => plain(&|| iwarp::work(seed)),
            World::IwarpDamage => plain(&|| iwarp::damage(seed)),
            World::Cm => plain(&|| {
                let mut random = Random(seed);
                let wire =
                    cm::Wire { lost: random.below(12), repeated: random.below(12), leaps: random.below(3) };
                let outcome = cm::run(seed, wire);
                assert!(outcome.established <= outcome.asked, "a connection without a request");
                outcome.events
            }),
        }
    }
}

/// Runs something whose failure is a panic.
fn guarded(run: impl FnOnce() -> u64) -> Result<u64, String> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned())).unwrap_or_default()
    })
}

/// Takes away from a scenario what it does not need to fail.
fn shrink<S: Shrink>(scenario: S, run: impl Fn(&S) -> Result<u64, String>) -> (String, String) {
    let (mut smallest, mut why) = (scenario, String::new());
    let mut steps = 0;
    let start = Instant::now();
    while steps < MOST_STEPS && start.elapsed() < SHRINK_TIME {
        let next = smallest.smaller().into_iter().find_map(|smaller| {
            steps += 1;
            run(&smaller).err().map(|why| (smaller, why))
        });
        let Some((smaller, failure)) = next else { break };
        (smallest, why) = (smaller, failure);
    }
    if why.is_empty() {
        why = "No smaller one fails.".to_owned();
    }
    (format!("{smallest:?}"), why)
}
