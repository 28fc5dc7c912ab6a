//! Says how far a run has come: one line that changes where somebody watches a terminal, a line now and then
//! elsewhere.

use std::io::{IsTerminal, Write};
use std::time::Instant;

/// How far a run has come.
pub(super) struct Progress {
    steps: usize,
    done: usize,
    start: Instant,
    terminal: bool,
    /// The tenth that was said last, where there is no terminal.
    said: usize,
}

impl Progress {
    /// At the beginning of so many steps.
    pub(super) fn new(steps: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { steps: steps.max(1), done: 0, start: Instant::now(), terminal, said: 0 }
    }

    /// Says what begins now, as the next step.
    pub(super) fn step(&mut self, what: &str) {
        let mut error = std::io::stderr();
        let percent = self.done * 100 / self.steps;
        if self.terminal {
            let _ = write!(error, "\r\x1b[K{percent:3} % {} {what}{}", bar(percent), self.left());
        } else if percent / 10 >= self.said {
            self.said = percent / 10 + 1;
            let _ = writeln!(error, "adverb bench: {percent} %: {what}");
        }
        let _ = error.flush();
        self.done = (self.done + 1).min(self.steps);
    }

    fn left(&self) -> String {
        let took = self.start.elapsed().as_secs_f64();
        let left = took / self.done.max(1) as f64 * (self.steps - self.done) as f64;
        match self.done * 20 < self.steps || left < 5.0 {
            true => String::new(),
            false if left < 90.0 => format!(", about {:.0} s left", left),
            false => format!(", about {:.0} min left", left / 60.0),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.terminal {
            eprint!("\r\x1b[K");
        }
    }
}

/// A bar of ten places.
fn bar(percent: usize) -> String {
    (0..10).map(|place| if place * 10 < percent { '█' } else { '░' }).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn bars() {
        assert_eq!(super::bar(0), "░░░░░░░░░░");
        assert_eq!(super::bar(35), "████░░░░░░");
        assert_eq!(super::bar(100), "██████████");
    }
}
