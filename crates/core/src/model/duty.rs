//! The duty to take in packets: a thread of the program that sleeps for an event may do anything, and some
//! thread takes them in.

use super::Bell;
use crate::deadlines::{Deadlines, Timer};
use crate::duty::{Arrivals, Duty, Waiter};
use crate::error::Result;
use crate::reactor::{Source, Timers};
use loom::sync::Mutex;
use loom::thread;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The descriptors at which things arrive, as the kernel has them, and the background thread's timers, all of
/// which pass at some moment.
#[derive(Default)]
struct Kernel {
    state: Mutex<State>,
    /// The background thread sleeps on it.
    background: Bell,
    /// Rung for threads of the program.
    program: Bell,
}

struct State {
    is_watched: bool,
    has_data: bool,
    timers: Vec<Arc<dyn Source>>,
}

impl Default for State {
    fn default() -> Self {
        Self { is_watched: true, has_data: false, timers: Vec::new() }
    }
}

static START: OnceLock<Instant> = OnceLock::new();

impl Timers for Kernel {
    fn set_timer(&'static self, _: Duration, source: Arc<dyn Source>) -> Result<Timer> {
        self.state.lock().unwrap().timers.push(source);
        self.background.ring();
        Ok(Deadlines::default().set(*START.get_or_init(Instant::now), ()).0)
    }
}

impl Arrivals for Kernel {
    fn watch(&self, on: bool) {
        self.state.lock().unwrap().is_watched = on;
        // Events that are there already are reported.
        self.background.ring();
    }
}

impl Kernel {
    fn arrive(&self) {
        self.state.lock().unwrap().has_data = true;
        self.background.ring();
        self.program.ring();
    }

    /// Takes in packets that have arrived.
    fn serve(&self) -> bool {
        std::mem::take(&mut self.state.lock().unwrap().has_data)
    }

    /// The background thread, until `done`: it sees its descriptors and its timers. It ends with an error of
    /// loom's if that never comes.
    fn serve_until(&self, done: impl Fn(&State, bool) -> bool) {
        let mut served = false;
        loop {
            let mut state = self.state.lock().unwrap();
            if state.is_watched && state.has_data {
                state.has_data = false;
                served = true;
            }
            let due = state.timers.pop();
            if due.is_none() && done(&state, served) {
                return;
            }
            drop(state);
            match due {
                Some(timer) => timer.timeout(),
                None => self.background.wait(),
            }
        }
    }
}

fn check(threads: usize, program: fn(&'static Kernel, &Arc<Duty>), done: fn(&State, bool) -> bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(if threads > 1 { 2 } else { 3 });
    model.check(move || {
        let kernel: &'static Kernel = Box::leak(Box::default());
        let duty = Duty::new(kernel, kernel);
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                let duty = duty.clone();
                thread::spawn(move || program(kernel, &duty))
            })
            .collect();
        kernel.arrive();
        kernel.serve_until(done);
        for thread in threads {
            thread.join().unwrap();
        }
        // All timers pass.
        while let Some(timer) = { kernel.state.lock().unwrap().timers.pop() } {
            timer.timeout();
        }
        assert!(kernel.state.lock().unwrap().is_watched, "the background thread is on duty");
    });
}

/// Another event wakes the thread on duty, or it is cancelled, and never comes again: the background thread
/// takes in packets.
#[test]
fn packets_are_taken_in_though_the_thread_on_duty_never_comes_again() {
    fn program(_: &'static Kernel, duty: &Arc<Duty>) {
        if let Some(turn) = duty.take(Waiter::Thread) {
            duty.end(turn);
        }
    }
    check(1, program, |_, served| served);
    check(2, program, |_, served| served);
}

/// The thread on duty is woken, and is kept for ever from its work.
#[test]
fn packets_are_taken_in_though_the_thread_on_duty_is_kept_away() {
    fn program(_: &'static Kernel, duty: &Arc<Duty>) {
        duty.take(Waiter::Thread);
    }
    check(1, program, |_, served| served);
    check(2, program, |_, served| served);
}

/// The thread on duty sleeps until it, or another thread, has taken in packets. It sleeps again if there was
/// nothing: no thread sleeps for ever.
#[test]
fn a_thread_that_sleeps_on_duty_takes_in_packets() {
    fn program(kernel: &'static Kernel, duty: &Arc<Duty>) {
        let Some(turn) = duty.take(Waiter::Thread) else { return };
        kernel.program.wait();
        let served = kernel.serve();
        let turn = if served { Some(turn) } else { duty.go_on(turn, Waiter::Thread) };
        turn.into_iter().for_each(|turn| duty.end(turn));
    }
    check(1, program, |state, _| !state.has_data);
}

/// A task takes in what has arrived, and only then the duty. What arrives in between has woken it, too. It
/// looks again, and may be kept for ever then.
#[test]
fn a_task_that_takes_the_duty_last_misses_nothing() {
    fn program(kernel: &'static Kernel, duty: &Arc<Duty>) {
        kernel.serve();
        let turn = duty.take(Waiter::Task);
        kernel.program.wait();
        kernel.serve();
        if let Some(turn) = turn {
            duty.go_on(turn, Waiter::Task);
        }
    }
    check(1, program, |state, _| !state.has_data);
}
