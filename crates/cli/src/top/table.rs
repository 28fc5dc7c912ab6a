//! Which rows are shown, in which order, and what their cells say.

use super::sample::{Fill, Pair, Use};
use crate::summary::bytes;

/// What comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Order {
    /// Bytes sent in a second.
    Out,
    /// Bytes received in a second.
    In,
    /// How full the fullest send queue is.
    SendQueue,
    /// Packets sent again, times without an answer, messages before their receives.
    Retries,
    /// The name of the program.
    Name,
    /// The number of the process.
    Process,
}

/// What is to be seen.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) order: Order,
    /// Only what has this text in it; nothing for all.
    pub(super) filter: String,
    pub(super) with_pairs: bool,
}

impl Choice {
    /// Why there are no rows.
    pub(super) fn nothing(&self, uses: &[Use]) -> String {
        match uses.len() {
            0 => "no program of this user is using a device now".to_owned(),
            // Without the text of the filter: scripts look for that in the rows.
            1 => "1 process uses a device now, and the filter leaves none of its rows".to_owned(),
            count => format!("{count} processes use devices now, and the filter leaves none of their rows"),
        }
    }
}

/// The names of the cells.
pub(super) const HEAD: [&str; 13] = [
    "PROCESS", "NAME", "DEVICE", "QP", "TYPE", "STATE", "OUT/s", "IN/s", "SENDQ", "RECVQ", "SCQ", "RCQ",
    "RETRIES",
];
/// The cells that are numbers, and stand on the right.
pub(super) const NUMBERS: [usize; 8] = [0, 6, 7, 8, 9, 10, 11, 12];

/// A row.
pub(super) struct Row {
    pub(super) cells: [String; HEAD.len()],
    /// Behind the cells: the last error, or what is not known.
    pub(super) note: String,
    pub(super) kind: Kind,
}

/// The kind of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A process on a device.
    Use,
    /// A queue pair.
    Pair,
    /// A queue pair in error.
    Failed,
}

/// What is chosen, in order, each with those of its queue pairs that are chosen.
pub(super) fn chosen<'a>(uses: &'a [Use], choice: &Choice) -> Vec<(&'a Use, Vec<&'a Pair>)> {
    let has = |text: &str| text.to_lowercase().contains(&choice.filter.to_lowercase());
    let mut chosen: Vec<_> = uses
        .iter()
        .filter_map(|one| {
            let is_meant = has(&one.name) || has(&one.device) || has(&one.process.to_string());
            let meant = |pair: &&Pair| is_meant || has(&pair.number.to_string()) || has(&pair.state);
            let pairs: Vec<_> = one.pairs.iter().filter(meant).collect();
            (is_meant || !pairs.is_empty()).then_some((one, pairs))
        })
        .collect();
    let key = |one: &Use| match choice.order {
        Order::Out => one.sent.rate,
        Order::In => one.received.rate,
        Order::SendQueue => one.pairs.iter().map(|pair| pair.send.part()).fold(0.0, f64::max),
        Order::Retries => one.retried() as f64,
        Order::Name | Order::Process => 0.0,
    };
    chosen.sort_by(|(one, _), (other, _)| {
        let by_name = match choice.order {
            Order::Name => one.name.cmp(&other.name),
            _ => std::cmp::Ordering::Equal,
        };
        let by_number = one.process.cmp(&other.process).then_with(|| one.device.cmp(&other.device));
        key(other).total_cmp(&key(one)).then(by_name).then(by_number)
    });
    chosen
}

/// The rows to be shown.
pub(super) fn rows(uses: &[Use], choice: &Choice) -> Vec<Row> {
    let mut rows = Vec::new();
    for (one, pairs) in chosen(uses, choice) {
        rows.push(of_use(one));
        if choice.with_pairs {
            rows.extend(pairs.into_iter().map(of_pair));
        }
    }
    rows
}

fn of_use(one: &Use) -> Row {
    let mut cells: [String; HEAD.len()] = Default::default();
    cells[0] = one.process.to_string();
    cells[1].clone_from(&one.name);
    cells[2].clone_from(&one.device);
    cells[3] = match (one.answers, one.is_whole) {
        (true, true) => one.pairs.len().to_string(),
        (true, false) => format!("{}+", one.pairs.len()),
        (false, _) => "?".to_owned(),
    };
    cells[6] = rate(one.sent.rate);
    cells[7] = rate(one.received.rate);
    cells[12] = one.retried().to_string();
    let note = match (one.elsewhere, one.answers) {
        (true, _) => "in another network namespace".to_owned(),
        (false, false) => "does not answer".to_owned(),
        _ if !one.is_whole => "has more queue pairs than it can say".to_owned(),
        _ if one.connections_lost > 0 => format!("connections lost: {}", one.connections_lost),
        _ => String::new(),
    };
    Row { cells, note, kind: Kind::Use }
}

fn of_pair(pair: &Pair) -> Row {
    let mut cells: [String; HEAD.len()] = Default::default();
    cells[3] = pair.number.to_string();
    cells[4].clone_from(&pair.service);
    cells[5].clone_from(&pair.state);
    cells[6] = requests(pair.requests.rate);
    cells[7] = requests(pair.receives.rate);
    cells[8] = pair.send.to_string();
    cells[9] = pair.receive.map_or_else(String::new, |fill| fill.to_string());
    cells[10] = pair.send_completions.to_string();
    cells[11] = pair.receive_completions.to_string();
    let kind = if pair.state == "ERROR" || pair.error.is_some() { Kind::Failed } else { Kind::Pair };
    Row { cells, note: pair.error.clone().unwrap_or_default(), kind }
}

impl Fill {
    /// From 0 to 1.
    fn part(self) -> f64 {
        if self.room == 0 { 0.0 } else { self.waiting as f64 / self.room as f64 }
    }
}

impl std::fmt::Display for Fill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.waiting, self.room)
    }
}

fn rate(rate: f64) -> String {
    match rate as u64 {
        0 => "0".to_owned(),
        number => bytes(number).replace(" bytes", " B").replace(" byte", " B"),
    }
}

fn requests(rate: f64) -> String {
    match rate {
        rate if rate < 1e3 => format!("{rate:.0} req"),
        rate if rate < 1e6 => format!("{:.1} kreq", rate / 1e3),
        rate => format!("{:.1} Mreq", rate / 1e6),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::sample::GrowingCount;
    use super::*;

    pub(in super::super) fn pair(number: u64, state: &str, waiting: u64) -> Pair {
        Pair {
            number,
            service: "RC".into(),
            state: state.into(),
            peer: Some(9),
            address: Some("10.0.0.2".into()),
            requests: GrowingCount { total: 100, rate: 12_345.0 },
            receives: GrowingCount::default(),
            send: Fill { waiting, room: 128 },
            receive: Some(Fill { waiting: 3, room: 4 }),
            send_completions: Fill { waiting: 1, room: 16 },
            receive_completions: Fill { waiting: 0, room: 16 },
            error: (state == "ERROR").then(|| "transport retry counter exceeded".into()),
        }
    }

    pub(in super::super) fn one(process: u32, name: &str, rate: f64, pairs: Vec<Pair>) -> Use {
        Use {
            process,
            name: name.into(),
            device: "roce0".into(),
            elsewhere: false,
            answers: true,
            is_whole: true,
            sent: GrowingCount { total: 1 << 20, rate },
            received: GrowingCount::default(),
            messages_sent: GrowingCount::default(),
            messages_received: GrowingCount::default(),
            retries: [GrowingCount { total: u64::from(process), rate: 0.0 }; 3],
            connections_lost: 0,
            pairs,
        }
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let uses = [
            one(7, "slow", 10.0, vec![pair(17, "RTS", 128)]),
            one(5, "fast", 2e6, vec![pair(20, "RTS", 0), pair(21, "ERROR", 0)]),
        ];
        let shown = |order, filter: &str| {
            let choice = Choice { order, filter: filter.into(), with_pairs: true };
            let rows = rows(&uses, &choice);
            rows.iter().map(|row| format!("{}{}", row.cells[1], row.cells[3])).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(shown(Order::Out, ""), "fast2 20 21 slow1 17");
        assert_eq!(shown(Order::SendQueue, ""), "slow1 17 fast2 20 21");
        assert_eq!(shown(Order::Retries, ""), "slow1 17 fast2 20 21");
        assert_eq!(shown(Order::Process, ""), "fast2 20 21 slow1 17");
        assert_eq!(shown(Order::Name, "SLOW"), "slow1 17");
        assert_eq!(shown(Order::Name, "error"), "fast2 21");
        assert_eq!(shown(Order::Name, "nothing"), "");
        let rows = rows(&uses, &Choice { order: Order::Out, filter: String::new(), with_pairs: true });
        assert_eq!(rows[0].cells[6], "1.9 MiB");
        assert_eq!((rows[1].cells[6].as_str(), rows[1].cells[8].as_str()), ("12.3 kreq", "0/128"));
        assert_eq!((rows[2].kind, rows[2].note.as_str()), (Kind::Failed, "transport retry counter exceeded"));
    }
}
