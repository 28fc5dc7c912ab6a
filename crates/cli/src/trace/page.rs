//! `adverb trace view`: a trace as one page of HTML, which needs nothing else.

use super::record::{Queue, Request, Trace};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// A sequence diagram has no more arrows: a longer one says nothing.
const MOST_ARROWS: usize = 400;
/// Bars of a histogram.
const BARS: usize = 40;
/// Queue pairs and operations with a histogram each; of the others there are more requests.
const MOST_HISTOGRAMS: usize = 64;

const STYLE: &str = "\
body{font:14px/1.5 system-ui,sans-serif;color:#1a2233;background:#fff;max-width:70rem;margin:2rem auto;padding:0 1rem}\
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse}\
th,td{padding:.2rem .8rem .2rem 0;text-align:left;border-bottom:1px solid #d8dee9}td.n,th.n{text-align:right}\
svg text{font:11px system-ui,sans-serif;fill:#1a2233}.life{stroke:#9aa5b8}.send{stroke:#2456b3}.one{stroke:#0f7a52}.bad{stroke:#b3261e}\
.bar{fill:#2456b3}.note{color:#5b667a}";

/// The page.
pub(super) fn page(title: &str, trace: &Trace) -> String {
    let mut body = String::new();
    summary(&mut body, trace);
    pairs(&mut body, trace);
    sequence(&mut body, trace);
    latencies(&mut body, trace);
    stages(&mut body, trace);
    waits(&mut body, trace);
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style></head>\
         <body><h1>{title}</h1>\n{body}</body></html>\n",
        title = escaped(title)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A time that a person reads.
fn time(seconds: f64) -> String {
    match seconds {
        s if s < 0.0 => format!("-{}", time(-s)),
        s if s < 1e-6 => format!("{:.0} ns", s * 1e9),
        s if s < 1e-3 => format!("{:.2} µs", s * 1e6),
        s if s < 1.0 => format!("{:.2} ms", s * 1e3),
        s => format!("{s:.2} s"),
    }
}

fn table(body: &mut String, name: &str, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let is_number = |text: &str| text.starts_with(|c: char| c.is_ascii_digit()) && !text.contains("0x");
    let _ = write!(body, "<table id=\"{name}\"><tr>");
    head.iter().for_each(|cell| {
        let _ = write!(body, "<th>{}</th>", escaped(cell));
    });
    body.push_str("</tr>\n");
    for row in rows {
        body.push_str("<tr>");
        for cell in row {
            let class = if is_number(&cell) { " class=\"n\"" } else { "" };
            let _ = write!(body, "<td{class}>{}</td>", escaped(&cell));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table>\n");
}

fn summary(body: &mut String, trace: &Trace) {
    body.push_str("<h2>Processes</h2>\n");
    if trace.missing > 0 {
        let _ = writeln!(
            body,
            "<p class=\"note\">{} records are missing: they found no place, or are cut.</p>",
            trace.missing
        );
    }
    let head = [
        "process",
        "command",
        "calls",
        "failed",
        "faults",
        "requests",
        "completed",
        "bytes sent",
        "packets sent",
        "packets received",
    ];
    let rows = trace.processes.iter().map(|(pid, command)| {
        let calls = || trace.calls.iter().filter(|call| call.pid == *pid);
        let requests = || trace.requests.iter().filter(|request| request.pid == *pid);
        let packets = |pid: u64| trace.packets.get(&pid).copied().unwrap_or_default();
        let sent = requests()
            .filter(|one| !one.is_receive() && !one.is_read())
            .map(|request| request.length)
            .sum::<u64>();
        vec![
            trace.process(*pid),
            command.clone(),
            calls().map(|call| call.times).sum::<u64>().to_string(),
            // A poll that finds nothing is no failure.
            calls()
                .filter(|call| call.errno.as_ref().is_some_and(|name| name != "ENOENT"))
                .count()
                .to_string(),
            calls().filter(|call| call.fault).count().to_string(),
            requests().count().to_string(),
            requests().filter(|request| request.done.is_some()).count().to_string(),
            sent.to_string(),
            packets(*pid).sent.to_string(),
            packets(*pid).received.to_string(),
        ]
    });
    table(body, "processes", &head, rows);
}

/// What each queue pair has done, in numbers that counters have, too.
fn pairs(body: &mut String, trace: &Trace) {
    #[derive(Default)]
    struct PairTotals {
        sends: (u64, u64),
        sent: u64,
        read: u64,
        receives: (u64, u64),
    }
    let mut found: BTreeMap<(u64, &str), PairTotals> = BTreeMap::new();
    for request in trace.requests.iter().filter(|request| !request.pair.is_empty()) {
        let done = found.entry((request.pid, &request.pair)).or_default();
        let is_done = u64::from(request.done.is_some());
        if request.is_receive() {
            let is_taken = u64::from(request.done.as_ref().is_some_and(|(_, status)| status == "SUCCESS"));
            done.receives.0 += is_taken;
            done.receives.1 += request.length * is_taken;
        } else {
            done.sends.0 += 1;
            done.sends.1 += is_done;
            let bytes = if request.is_read() { &mut done.read } else { &mut done.sent };
            *bytes += request.length;
        }
    }
    if found.is_empty() {
        return;
    }
    body.push_str("<h2>Queue pairs</h2>\n");
    let head = [
        "process",
        "queue pair",
        "peer",
        "requests",
        "completed",
        "bytes sent",
        "bytes read",
        "messages received",
        "bytes received",
    ];
    let rows = found.iter().map(|((pid, pair), done)| {
        let peer = trace.peers.get(&(*pid, (*pair).to_owned()));
        let peer =
            peer.map_or_else(|| "?".to_owned(), |(pid, pair)| format!("{pair} of {}", trace.process(*pid)));
        let mut row = vec![trace.process(*pid), (*pair).to_owned(), peer];
        let (sends, receives) = (done.sends, done.receives);
        row.extend(
            [sends.0, sends.1, done.sent, done.read, receives.0, receives.1].map(|number| number.to_string()),
        );
        row
    });
    table(body, "pairs", &head, rows);
}

/// A stage of a request's way, and how long it took.
type Stage = (&'static str, fn(&Request, Option<&Request>) -> Option<f64>);

/// The stages of a request, in their order.
const STAGES: [Stage; 7] = [
    ("post to first packet", |one, _| Some(one.left?.0 - one.posted)),
    ("first to last packet", |one, _| one.left.map(|(first, last)| last - first)),
    ("last packet to its arrival", |one, _| Some(one.arrived?.1 - one.left?.1)),
    ("arrival to the poll of the receive", |one, receive| Some(receive?.done.as_ref()?.0 - one.arrived?.1)),
    ("last packet to its acknowledgement, or the answer", |one, _| Some(one.answered? - one.left?.1)),
    ("its acknowledgement, or the answer, to the poll of the completion", |one, _| {
        Some(one.done.as_ref()?.0 - one.answered?)
    }),
    // Datagrams, and Sends and Writes of iWARP.
    ("last packet to the poll of the completion, where nothing answers", |one, _| {
        let done = one.done.as_ref()?.0;
        one.answered.is_none().then_some(done - one.left?.1)
    }),
];

/// Where the time goes.
fn stages(body: &mut String, trace: &Trace) {
    let mut groups: BTreeMap<(u64, &str, &str), [Vec<f64>; STAGES.len()]> = BTreeMap::new();
    for request in trace.requests.iter().filter(|one| !one.is_receive() && one.left.is_some()) {
        let group = groups.entry((request.pid, &request.pair, &request.opcode)).or_default();
        let receive = request.partner.map(|receive| &trace.requests[receive]);
        for ((_, measure), list) in STAGES.iter().zip(group) {
            list.extend(measure(request, receive));
        }
    }
    body.push_str("<h2>Stages, from the post to the poll</h2>\n");
    if groups.is_empty() {
        body.push_str("<p class=\"note\">This trace joins no packets to requests. Requests in memory that two processes share need none; and a .json trace does not say whose a packet is, as .jsonl and .ring do.</p>\n");
        return;
    }
    let head = ["process", "queue pair", "operation", "stage", "requests", "least", "median", "99 %", "most"];
    let rows = groups.iter_mut().flat_map(|((pid, pair, opcode), lists)| {
        let name = [trace.process(*pid), (*pair).to_owned(), (*opcode).to_owned()];
        let rows = STAGES.iter().zip(lists).filter(|(_, list)| !list.is_empty()).map(|((stage, _), list)| {
            list.sort_by(f64::total_cmp);
            let mut row = name.to_vec();
            row.extend([(*stage).to_owned(), list.len().to_string()]);
            row.extend([0.0, 0.5, 0.99, 1.0].map(|share| time(at(list, share))));
            row
        });
        rows.collect::<Vec<_>>()
    });
    table(body, "stages", &head, rows);
}

/// The value that this share of a sorted list does not exceed.
fn at(list: &[f64], share: f64) -> f64 {
    list[((list.len() - 1) as f64 * share).round() as usize]
}

/// An arrow of the diagram: from one process to another one, or back.
struct Arrow<'a> {
    from: (u64, f64),
    to: (u64, f64),
    class: &'static str,
    label: &'a Request,
}

fn arrows(trace: &Trace) -> Vec<Arrow<'_>> {
    // Of each queue pair the receives that are done, in their order: messages take them in the order in which
    // they were sent.
    let mut received: BTreeMap<Queue, Vec<&Request>> = BTreeMap::new();
    for request in trace.requests.iter().filter(|one| one.is_receive() && one.done.is_some()) {
        received.entry((request.pid, request.pair.clone())).or_default().push(request);
    }
    received.values_mut().for_each(|list| {
        list.sort_by(|one, other| done(one).total_cmp(&done(other)));
    });
    let mut next: BTreeMap<Queue, usize> = BTreeMap::new();
    let mut arrows = Vec::new();
    for request in trace.requests.iter().filter(|one| !one.is_receive()) {
        let Some(peer) = trace.peers.get(&(request.pid, request.pair.clone())) else { continue };
        let is_bad = request.done.as_ref().is_some_and(|(_, status)| status != "SUCCESS");
        let class = match () {
            () if is_bad => "bad",
            () if request.is_send() => "send",
            () => "one",
        };
        let from = (request.pid, request.posted);
        if request.is_send() && !is_bad {
            let place = next.entry(peer.clone()).or_default();
            let by_place = received.get(peer).and_then(|list| list.get(*place)).copied();
            *place += 1;
            let taken = request.partner.and_then(|receive| trace.requests.get(receive)).or(by_place);
            if let Some(taken) = taken {
                arrows.push(Arrow { from, to: (peer.0, done(taken)), class, label: request });
                continue;
            }
        }
        let end = request.done.as_ref().map_or(request.posted, |(time, _)| *time);
        arrows.push(Arrow { from, to: (peer.0, (request.posted + end) / 2.0), class, label: request });
    }
    arrows
}

fn done(request: &Request) -> f64 {
    request.done.as_ref().map_or(f64::MAX, |(time, _)| *time)
}

fn sequence(body: &mut String, trace: &Trace) {
    body.push_str("<h2>Sequence</h2>\n");
    let arrows = arrows(trace);
    if arrows.is_empty() || arrows.len() > MOST_ARROWS {
        let why = if arrows.is_empty() {
            "No queue pair has both of its ends in this trace: adverb trace merge puts files together."
        } else {
            "There are too many requests for a diagram."
        };
        let _ = writeln!(body, "<p class=\"note\">{why}</p>");
        return;
    }
    // Each instant has a line of its own: what is close together is told apart, and the times stand beside
    // it.
    let mut instants: Vec<f64> = arrows.iter().flat_map(|arrow| [arrow.from.1, arrow.to.1]).collect();
    instants.sort_by(f64::total_cmp);
    instants.dedup();
    const STEP: f64 = 15.0;
    const LEFT: f64 = 110.0;
    const WIDTH: f64 = 320.0;
    let y = |time: f64| 40.0 + STEP * instants.partition_point(|instant| *instant < time) as f64;
    let place = |pid: u64| trace.processes.keys().position(|known| *known == pid).unwrap_or(0) as f64;
    let x = |pid: u64| LEFT + WIDTH * place(pid);
    let (width, height) = (LEFT + WIDTH * trace.processes.len() as f64, 60.0 + STEP * instants.len() as f64);
    let _ = writeln!(
        body,
        "<svg width=\"{width:.0}\" height=\"{height:.0}\" role=\"img\" aria-label=\"sequence of requests\">"
    );
    body.push_str("<defs><marker id=\"a\" markerWidth=\"7\" markerHeight=\"6\" refX=\"7\" refY=\"3\" orient=\"auto\"><path d=\"M0 0L7 3L0 6\"/></marker></defs>\n");
    for pid in trace.processes.keys() {
        let at = x(*pid);
        let _ = writeln!(
            body,
            "<text x=\"{at:.0}\" y=\"20\" text-anchor=\"middle\">{}</text><line class=\"life\" x1=\"{at:.0}\" y1=\"28\" x2=\"{at:.0}\" y2=\"{height:.0}\"/>",
            escaped(&trace.process(*pid))
        );
    }
    for instant in &instants {
        let _ = writeln!(body, "<text x=\"4\" y=\"{:.0}\">{:.6} s</text>", y(*instant) + 4.0, instant);
    }
    for arrow in &arrows {
        let ((from, begin), (to, end)) = (arrow.from, arrow.to);
        let (x1, y1, x2, y2) = (x(from), y(begin), x(to), y(end));
        let status = arrow.label.done.as_ref().map_or("not completed", |(_, status)| status.as_str());
        let label = format!("{}, {} bytes", arrow.label.opcode, arrow.label.length);
        let mut hover = format!("{label}: {status}");
        if let Some((end, _)) = &arrow.label.done {
            let _ = write!(hover, ", after {}", time(end - begin));
        }
        if let Some((first, last)) = arrow.label.left {
            let _ = write!(
                hover,
                "; first packet after {}, last after {}",
                time(first - begin),
                time(last - begin)
            );
        }
        let _ = writeln!(
            body,
            "<g><title>{}</title><line class=\"{}\" x1=\"{x1:.0}\" y1=\"{y1:.0}\" x2=\"{x2:.0}\" y2=\"{y2:.0}\" marker-end=\"url(#a)\"/><text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text></g>",
            escaped(&hover),
            arrow.class,
            (x1 + x2) / 2.0,
            (y1 + y2) / 2.0 - 3.0,
            escaped(&label)
        );
    }
    body.push_str("</svg>\n<p class=\"note\">Blue: a message that takes a receive, from its post to the poll that finds the receive. Green: an operation on memory. Red: it failed. Each instant has a line of its own, so the distances are no times.</p>\n");
}

fn latencies(body: &mut String, trace: &Trace) {
    body.push_str("<h2>Latency, from the post to the poll that found the completion</h2>\n");
    let mut groups: BTreeMap<(u64, &str, &str), Vec<f64>> = BTreeMap::new();
    for request in &trace.requests {
        if let (Some((end, status)), false) = (&request.done, request.is_receive())
            && status == "SUCCESS"
            && request.is_reported
        {
            groups
                .entry((request.pid, &request.pair, &request.opcode))
                .or_default()
                .push(end - request.posted);
        }
    }
    if groups.is_empty() {
        body.push_str("<p class=\"note\">No request is known from its post to its completion.</p>\n");
        return;
    }
    groups.values_mut().for_each(|list| list.sort_by(f64::total_cmp));
    let head = ["process", "queue pair", "operation", "requests", "least", "median", "99 %", "most"];
    let rows = groups.iter().map(|((pid, pair, opcode), list)| {
        let mut row =
            vec![trace.process(*pid), (*pair).to_owned(), (*opcode).to_owned(), list.len().to_string()];
        row.extend([0.0, 0.5, 0.99, 1.0].map(|share| time(at(list, share))));
        row
    });
    table(body, "latencies", &head, rows);
    for ((pid, pair, opcode), list) in groups.iter().take(MOST_HISTOGRAMS) {
        let _ = writeln!(
            body,
            "<p>{}, queue pair {}, {}</p>",
            escaped(&trace.process(*pid)),
            escaped(pair),
            escaped(opcode)
        );
        histogram(body, list);
    }
}

/// Bars whose widths grow with the time: each is as much longer than the one before.
fn histogram(body: &mut String, sorted: &[f64]) {
    let (least, most) = (sorted[0].max(1e-9), sorted[sorted.len() - 1].max(2e-9));
    let span = (most / least).ln().max(1e-3);
    let mut bars = [0usize; BARS];
    for value in sorted {
        let place = ((value.max(1e-9) / least).ln() / span * BARS as f64) as usize;
        bars[place.min(BARS - 1)] += 1;
    }
    let highest = bars.iter().copied().max().unwrap_or(1).max(1) as f64;
    body.push_str("<svg width=\"660\" height=\"120\" role=\"img\" aria-label=\"histogram\">\n");
    for (place, count) in bars.iter().enumerate().filter(|(_, count)| **count > 0) {
        let height = 90.0 * *count as f64 / highest;
        let edge = |place: usize| time(least * (span * place as f64 / BARS as f64).exp());
        let _ = writeln!(
            body,
            "<rect class=\"bar\" x=\"{}\" y=\"{:.1}\" width=\"15\" height=\"{height:.1}\"><title>{count} from {} to {}</title></rect>",
            10 + place * 16,
            95.0 - height,
            edge(place),
            edge(place + 1)
        );
    }
    let _ = writeln!(
        body,
        "<text x=\"10\" y=\"112\">{}</text><text x=\"650\" y=\"112\" text-anchor=\"end\">{}</text></svg>",
        time(least),
        time(most)
    );
}

/// What a call waits for, if it is one that waits.
fn waited_for(name: &str, found_nothing: bool) -> Option<&'static str> {
    match name {
        "ibv_get_cq_event" => Some("a completion, asleep"),
        "ibv_get_async_event" => Some("an asynchronous event"),
        "rdma_get_cm_event" | "rdma_connect" | "rdma_resolve_addr" | "rdma_resolve_route"
        | "rdma_get_request" => Some("connection management"),
        "ibv_poll_cq" | "ibv_start_poll" if found_nothing => Some("a completion, polling"),
        _ => None,
    }
}

fn waits(body: &mut String, trace: &Trace) {
    body.push_str("<h2>Who waited for whom</h2>\n");
    // The peers of a process, by its queue pairs.
    let peers = |pid: u64| {
        let mut names: Vec<_> = trace
            .peers
            .iter()
            .filter(|((one, _), _)| *one == pid)
            .map(|(_, (other, _))| trace.process(*other))
            .collect();
        names.sort();
        names.dedup();
        if names.is_empty() { "a process outside of the trace".to_owned() } else { names.join(", ") }
    };
    let mut found: BTreeMap<(u64, u64, &str), (f64, u64)> = BTreeMap::new();
    for call in &trace.calls {
        let found_nothing = call.times > 1 || call.errno.as_deref() == Some("ENOENT");
        if let Some(what) = waited_for(&call.name, found_nothing) {
            let entry = found.entry((call.pid, call.tid, what)).or_default();
            *entry = (entry.0 + call.duration, entry.1 + call.times);
        }
    }
    if found.is_empty() {
        body.push_str("<p class=\"note\">No thread waited.</p>\n");
        return;
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_by(|one, other| other.1.0.total_cmp(&one.1.0));
    let head = ["process", "thread", "waited for", "of", "time", "calls"];
    let rows = found.into_iter().map(|((pid, tid, what), (spent, calls))| {
        vec![trace.process(pid), tid.to_string(), what.to_owned(), peers(pid), time(spent), calls.to_string()]
    });
    table(body, "waits", &head, rows);
}

#[cfg(test)]
mod tests {
    use super::super::record::tests::two_processes;
    use super::*;
    use adverb_watch::setting::Format;

    #[test]
    fn a_page_has_all_parts_and_no_markup_of_others() {
        let trace = Trace::of(&two_processes(Format::Json)).expect("objects");
        let page = page("client <x>", &trace);
        for part in [
            "<title>client &lt;x&gt;</title>",
            "/bin/client &lt;x&gt;",
            "SEND, 32 bytes",
            "RDMA_WRITE, 0 bytes",
            "0x11",
            "a completion, polling",
            "server [2]",
            "</html>",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("<x>"));
        for (begin, end) in [("<svg", "</svg>"), ("<table ", "</table>"), ("<g>", "</g>"), ("<tr>", "</tr>")]
        {
            assert_eq!(page.matches(begin).count(), page.matches(end).count(), "{begin}");
        }
    }

    #[test]
    fn an_empty_trace_is_a_page() {
        let page = page("nothing", &Trace::default());
        assert!(page.contains("No queue pair has both") && page.contains("No thread waited"));
    }

    #[test]
    fn histograms_count_everything() {
        for values in [vec![1e-6], vec![0.0, 0.0], vec![1e-6, 1e-3, 2e-3, 1.0]] {
            let mut body = String::new();
            histogram(&mut body, &values);
            let counts = body
                .split("<title>")
                .skip(1)
                .filter_map(|rest| rest.split(' ').next()?.parse::<usize>().ok());
            assert_eq!(counts.sum::<usize>(), values.len(), "{body}");
        }
    }
}
