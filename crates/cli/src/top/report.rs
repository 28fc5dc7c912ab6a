//! What `adverb top --once` prints.

use super::sample::{Fill, GrowingCount, Pair, Use};
use super::table::{Choice, HEAD, NUMBERS, chosen, rows};
use serde_json::{Value, json};

/// A table for people.
pub(super) fn text(uses: &[Use], choice: &Choice) -> String {
    let rows = rows(uses, choice);
    if rows.is_empty() {
        return choice.nothing(uses) + "\n";
    }
    let widths: Vec<_> = (0..HEAD.len())
        .map(|at| rows.iter().map(|row| row.cells[at].chars().count()).max().unwrap_or(0).max(HEAD[at].len()))
        .collect();
    let line = |cells: &[String], note: &str| {
        let mut line = String::new();
        for (at, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            line += &match NUMBERS.contains(&at) {
                true => format!("{cell:>width$}  "),
                false => format!("{cell:<width$}  "),
            };
        }
        line += note;
        line.trim_end().to_owned() + "\n"
    };
    let head = line(&HEAD.map(str::to_owned), "LAST ERROR");
    head + &rows.iter().map(|row| line(&row.cells, &row.note)).collect::<String>()
}

/// The version of the object's form: another one means that fields are gone or mean something else.
const VERSION: u32 = 1;

/// The report as JSON, for programs: the numbers of the table, and more.
pub(super) fn json(uses: &[Use], choice: &Choice) -> String {
    let is_whole = uses.iter().all(|one| one.answers && one.is_whole);
    let uses: Vec<_> = chosen(uses, choice).into_iter().map(|(one, pairs)| of_use(one, &pairs)).collect();
    format!("{:#}\n", json!({ "version": VERSION, "whole": is_whole, "uses": uses }))
}

fn grown(grown: GrowingCount) -> Value {
    json!({ "total": grown.total, "per_second": grown.rate })
}

fn fill(fill: Fill) -> Value {
    json!({ "waiting": fill.waiting, "room": fill.room })
}

fn of_use(one: &Use, pairs: &[&Pair]) -> Value {
    let [again, timeouts, not_ready] = one.retries;
    json!({
        "process": one.process,
        "name": one.name,
        "device": one.device,
        "other_network_namespace": one.elsewhere,
        "answers": one.answers,
        "has_all_queue_pairs": one.is_whole,
        "bytes_sent": grown(one.sent),
        "bytes_received": grown(one.received),
        "messages_sent": grown(one.messages_sent),
        "messages_received": grown(one.messages_received),
        "retries": {
            "packets_sent_again": grown(again),
            "timeouts": grown(timeouts),
            "receiver_not_ready": grown(not_ready),
        },
        "connections_lost": one.connections_lost,
        "queue_pairs": pairs.iter().map(|pair| of_pair(pair)).collect::<Vec<_>>(),
    })
}

fn of_pair(pair: &Pair) -> Value {
    json!({
        "number": pair.number,
        "service": pair.service,
        "state": pair.state,
        "peer": pair.peer,
        "peer_address": pair.address,
        "requests": grown(pair.requests),
        "receives": grown(pair.receives),
        "send_queue": fill(pair.send),
        "receive_queue": pair.receive.map(fill),
        "send_completion_queue": fill(pair.send_completions),
        "receive_completion_queue": fill(pair.receive_completions),
        "last_error": pair.error,
    })
}

#[cfg(test)]
mod tests {
    use super::super::table::Order;
    use super::super::table::tests::{one, pair};
    use super::*;

    const ALL: Choice = Choice { order: Order::Process, filter: String::new(), with_pairs: true };

    #[test]
    fn a_table_and_an_object() {
        let uses = [one(5, "fast", 2e6, vec![pair(21, "ERROR", 7)])];
        let table = text(&uses, &ALL);
        let lines: Vec<_> = table.lines().collect();
        assert_eq!(lines.len(), 3);
        assert!(lines[0].starts_with("PROCESS  NAME  DEVICE  QP") && lines[0].ends_with("LAST ERROR"));
        assert!(lines[2].contains("7/128") && lines[2].ends_with("transport retry counter exceeded"));
        assert!(text(&[], &ALL).starts_with("no program"));
        let object: Value = serde_json::from_str(&json(&uses, &ALL)).expect("JSON");
        assert_eq!((&object["version"], &object["whole"]), (&json!(1), &json!(true)));
        let pair = &object["uses"][0]["queue_pairs"][0];
        assert_eq!(
            (pair["state"].as_str(), pair["send_queue"]["waiting"].as_u64()),
            (Some("ERROR"), Some(7))
        );
        assert_eq!(object["uses"][0]["bytes_sent"]["per_second"], 2e6);
    }
}
