//! The background thread's sleep: no deadline is slept through.

use super::Bell;
use crate::deadlines::Deadlines;
use loom::thread;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A thread sleeps as the background thread does, in a world where one instant has passed and a later one
/// never comes. Others set deadlines that have.
fn run(setters: u32, later: bool) {
    // Any instant will do: the model has no clock.
    let passed = Instant::now();
    let never = passed + Duration::from_secs(3600);
    let mut model = loom::model::Builder::new();
    model.preemption_bound = (setters > 1).then_some(2);
    model.check(move || {
        let deadlines = Arc::new(Deadlines::default());
        let bell = Arc::new(Bell::default());
        if later {
            assert!(!deadlines.set(never, 0).1, "nobody sleeps");
        }
        let threads: Vec<_> = (1..=setters)
            .map(|who| {
                let (deadlines, bell) = (deadlines.clone(), bell.clone());
                thread::spawn(move || {
                    if deadlines.set(passed, who).1 {
                        bell.ring();
                    }
                })
            })
            .collect();
        let mut due = Vec::new();
        while due.len() < setters as usize {
            deadlines.take_due(&mut due, || passed);
            if due.len() == setters as usize {
                break;
            }
            let until = deadlines.sleep();
            if until != Some(passed) {
                bell.wait();
            }
            deadlines.awake();
        }
        due.sort_unstable();
        assert_eq!(due, (1..=setters).collect::<Vec<_>>());
        for thread in threads {
            thread.join().unwrap();
        }
    });
}

#[test]
fn a_deadline_that_comes_first_wakes_who_sleeps_without_one() {
    run(1, false);
    run(2, false);
}

#[test]
fn a_deadline_that_comes_first_wakes_who_sleeps_until_a_later_one() {
    run(1, true);
    run(2, true);
}
