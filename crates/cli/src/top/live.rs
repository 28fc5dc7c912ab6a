//! The view in a terminal, and its keys.

use super::sample::{Sample, Use, uses};
use super::table::{Choice, HEAD, Kind, NUMBERS, Order, Row, rows};
use adverb_core::counters::Looker;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Alignment, Constraint, Layout};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Table};
use ratatui::{DefaultTerminal, Frame};
use std::io;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Between two looks.
pub(super) const SHORTEST: Duration = Duration::from_millis(100);
/// How long the processes may take to answer: the view goes on without those that are late.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(300);

/// What keys do.
const KEYS: &str = "sort: (o)ut (i)n (s)end queue (r)etries (n)ame (p)rocess   / filter   (t)ree of queue pairs   space: hold   (q)uit";

/// What the user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Looks.
    Looks,
    /// Types a filter.
    Types,
}

struct View {
    choice: Choice,
    mode: Mode,
    holds: bool,
    /// The first row that is shown.
    first: usize,
    uses: Vec<Use>,
}

/// Shows what runs until the user ends it, or the terminal is gone. The terminal is then as it was, also
/// where a signal ends the process.
pub(super) fn show(interval: Duration, choice: Choice) -> io::Result<()> {
    let ends = Ends::watch()?;
    let mut terminal = ratatui::try_init()?;
    let shown = watch(&mut terminal, &ends, interval, choice);
    ratatui::try_restore()?;
    shown
}

/// Signals that end the process: a thread takes them, and restores the terminal first.
struct Ends {
    /// Held while something is written to the terminal, and for good by a process that ends.
    writes: Arc<Mutex<()>>,
}

impl Ends {
    /// From now on. The signals are blocked in the calling thread, and in those that it starts.
    fn watch() -> io::Result<Self> {
        let writes = Arc::new(Mutex::new(()));
        let writing = writes.clone();
        // SAFETY: a signal set is plain data, filled before use.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                libc::sigaddset(&raw mut set, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            set
        };
        std::thread::Builder::new().name("signals".into()).spawn(move || {
            let mut signal = 0;
            // SAFETY: a filled set and a live local.
            if unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {
                return;
            }
            let _last = writing.lock();
            let _ = ratatui::try_restore();
            // SAFETY: the default action is no function of ours; the signal comes to this thread, and ends
            // the process.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
                libc::raise(signal);
            }
        })?;
        Ok(Self { writes })
    }
}

/// Whether the terminal is there no more: it may go without a signal, as where SIGHUP is ignored.
fn is_gone() -> bool {
    let mut polled = libc::pollfd { fd: libc::STDIN_FILENO, events: 0, revents: 0 };
    // SAFETY: one live pollfd.
    unsafe { libc::poll(&raw mut polled, 1, 0) > 0 }
}

/// A thread that looks at the processes, so that keys do not wait for processes that do not answer.
struct Sampler {
    wanted: Sender<()>,
    taken: Receiver<Sample>,
    /// The thread is looking at the processes.
    under_way: bool,
}

impl Sampler {
    /// While the thread looks, keys are waited for no longer than this.
    const PAUSE: Duration = Duration::from_millis(10);

    fn begin(mut looker: Looker) -> io::Result<Self> {
        let (wanted, wishes) = mpsc::channel();
        let (samples, taken) = mpsc::channel();
        std::thread::Builder::new().name("sampler".into()).spawn(move || {
            while wishes.recv().is_ok() && samples.send(Sample::take(&mut looker, ANSWER_TIMEOUT)).is_ok() {}
        })?;
        Ok(Self { wanted, taken, under_way: false })
    }

    /// Asks the thread for a sample. The caller does so only while none is under way.
    fn want(&mut self) {
        // If the thread has ended, `take` says so.
        let _ = self.wanted.send(());
        self.under_way = true;
    }

    /// Takes the sample that the thread has made; none while it is under way.
    ///
    /// # Errors
    /// The thread has ended.
    fn take(&mut self) -> io::Result<Option<Sample>> {
        match self.taken.try_recv() {
            Ok(sample) => {
                self.under_way = false;
                Ok(Some(sample))
            }
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => {
                Err(io::Error::other("the thread that looks at processes has ended"))
            }
        }
    }
}

fn watch(terminal: &mut DefaultTerminal, ends: &Ends, interval: Duration, choice: Choice) -> io::Result<()> {
    let mut looker = Looker::default();
    let mut before = Sample::take(&mut looker, ANSWER_TIMEOUT);
    let mut sampler = Sampler::begin(looker)?;
    let mut view = View { choice, mode: Mode::Looks, holds: false, first: 0, uses: uses(&before, &before) };
    let mut next = Instant::now() + interval;
    let mut is_new = true;
    loop {
        if is_gone() {
            return Ok(());
        }
        if std::mem::take(&mut is_new) {
            let _writes = ends.writes.lock();
            terminal.draw(|frame| view.draw(frame))?;
        }
        // Sleeps until a key comes or the next look is due.
        let rest = next.saturating_duration_since(Instant::now());
        if event::poll(if sampler.under_way { Sampler::PAUSE } else { rest })? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press && !view.take(key) => return Ok(()),
                _ => {}
            }
            is_new = true;
            continue;
        }
        if let Some(now) = sampler.take()? {
            if !view.holds {
                view.uses = uses(&before, &now);
                before = now;
            }
            next = Instant::now() + interval;
            is_new = true;
        } else if view.holds {
            next = Instant::now() + interval;
        } else if !sampler.under_way {
            sampler.want();
        }
    }
}

impl View {
    /// Does what a key says; false: the view ends.
    fn take(&mut self, key: KeyEvent) -> bool {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return false;
        }
        match self.mode {
            Mode::Types => match key.code {
                KeyCode::Char(letter) => self.choice.filter.push(letter),
                KeyCode::Backspace => drop(self.choice.filter.pop()),
                KeyCode::Esc => {
                    self.choice.filter.clear();
                    self.mode = Mode::Looks;
                }
                KeyCode::Enter => self.mode = Mode::Looks,
                _ => {}
            },
            Mode::Looks => match key.code {
                KeyCode::Char('q') => return false,
                KeyCode::Char('/') => {
                    self.choice.filter.clear();
                    self.mode = Mode::Types;
                }
                KeyCode::Esc => self.choice.filter.clear(),
                KeyCode::Char('t') => self.choice.with_pairs = !self.choice.with_pairs,
                KeyCode::Char(' ') => self.holds = !self.holds,
                KeyCode::Down => self.first += 1,
                KeyCode::Up => self.first = self.first.saturating_sub(1),
                KeyCode::PageDown => self.first += 10,
                KeyCode::PageUp => self.first = self.first.saturating_sub(10),
                KeyCode::Char(letter) => self.choice.order = order(letter).unwrap_or(self.choice.order),
                _ => {}
            },
        }
        true
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let rows = rows(&self.uses, &self.choice);
        self.first = self.first.min(rows.len().saturating_sub(1));
        let [title, table, keys] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        frame.render_widget(Line::from(self.title()).style(Style::new().add_modifier(Modifier::BOLD)), title);
        if rows.is_empty() {
            frame.render_widget(Paragraph::new(self.choice.nothing(&self.uses)), table);
        } else {
            frame.render_widget(self.table(&rows), table);
        }
        frame.render_widget(Line::from(KEYS).style(Style::new().add_modifier(Modifier::DIM)), keys);
    }

    fn title(&self) -> String {
        let pairs: usize = self.uses.iter().map(|one| one.pairs.len()).sum();
        let mut title = format!("adverb top: {} programs, {pairs} queue pairs", self.uses.len());
        if self.holds {
            title += ", held";
        }
        match self.mode {
            Mode::Types => title += &format!("   filter: {}_", self.choice.filter),
            Mode::Looks if !self.choice.filter.is_empty() => {
                title += &format!("   filter: {}", self.choice.filter);
            }
            Mode::Looks => {}
        }
        title
    }

    fn table(&self, rows: &[Row]) -> Table<'static> {
        let cell = |at: usize, text: String| {
            let alignment = if NUMBERS.contains(&at) { Alignment::Right } else { Alignment::Left };
            Cell::from(Text::from(text).alignment(alignment))
        };
        let shown = rows.iter().skip(self.first).map(|row| {
            let style = match row.kind {
                Kind::Use => Style::new().add_modifier(Modifier::BOLD),
                Kind::Pair => Style::new(),
                Kind::Failed => Style::new().fg(Color::Red),
            };
            let cells = row.cells.iter().cloned().enumerate().map(|(at, text)| cell(at, text));
            ratatui::widgets::Row::new(cells.chain([Cell::from(row.note.clone())])).style(style)
        });
        let widest = |at: usize| {
            let cells = rows.iter().map(|row| row.cells[at].chars().count());
            cells.max().unwrap_or(0).max(HEAD[at].len()) as u16
        };
        let widths = (0..HEAD.len()).map(|at| Constraint::Length(widest(at)));
        let head = HEAD.iter().enumerate().map(|(at, name)| cell(at, (*name).to_owned()));
        let head = ratatui::widgets::Row::new(head.chain([Cell::from("LAST ERROR")]));
        Table::new(shown, widths.chain([Constraint::Fill(1)]))
            .header(head.style(Style::new().add_modifier(Modifier::REVERSED)))
    }
}

/// The order that a key stands for.
fn order(letter: char) -> Option<Order> {
    Some(match letter {
        'o' => Order::Out,
        'i' => Order::In,
        's' => Order::SendQueue,
        'r' => Order::Retries,
        'n' => Order::Name,
        'p' => Order::Process,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::table::tests::{one, pair};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn view() -> View {
        let uses = vec![
            one(7, "slow", 10.0, vec![pair(17, "RTS", 128)]),
            one(5, "fast", 2e6, vec![pair(21, "ERROR", 0)]),
        ];
        let choice = Choice { order: Order::Out, filter: String::new(), with_pairs: true };
        View { choice, mode: Mode::Looks, holds: false, first: 0, uses }
    }

    /// What is on the screen.
    fn screen(view: &mut View) -> String {
        let mut terminal = Terminal::new(TestBackend::new(160, 8)).expect("a terminal");
        terminal.draw(|frame| view.draw(frame)).expect("drawn");
        terminal.backend().to_string()
    }

    fn press(view: &mut View, keys: &str) {
        for letter in keys.chars() {
            let code = if letter == '\n' { KeyCode::Enter } else { KeyCode::Char(letter) };
            assert!(view.take(KeyEvent::new(code, KeyModifiers::NONE)), "{letter:?} ends the view");
        }
    }

    #[test]
    fn keys_sort_filter_hide_and_end() {
        let mut view = view();
        let place = |screen: &str, what: &str| screen.find(what).unwrap_or(usize::MAX);
        let first = screen(&mut view);
        assert!(place(&first, "fast") < place(&first, "slow") && first.contains("retry counter"), "{first}");
        press(&mut view, "r");
        let by_retries = screen(&mut view);
        assert!(place(&by_retries, "slow") < place(&by_retries, "fast"), "{by_retries}");
        press(&mut view, "/slo\n");
        let filtered = screen(&mut view);
        assert!(filtered.contains("filter: slo") && !filtered.contains("fast"), "{filtered}");
        assert!(filtered.contains("128/128"), "{filtered}");
        press(&mut view, "t");
        assert!(!screen(&mut view).contains("128/128"));
        press(&mut view, " ");
        assert!(screen(&mut view).contains("held"));
        assert!(!view.take(KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE)));
        assert!(!view.take(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)));
    }
}
