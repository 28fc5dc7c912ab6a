//! How a person says which faults a run has: `ibv_reg_mr:ENOMEM@3,completion:RETRY_EXC_ERR:opcode=SEND%5,event:PORT_ERR@2s`.

use crate::calls::{self, CALLS};
use crate::names;
use adverb_core::event::AsyncEventKind;
use adverb_core::request::Status;
use std::time::Duration;

/// The form of a rule, in a line.
pub const FORM: &str = "CALL:ERRNO, completion:STATUS[:opcode=OPCODE] or event:EVENT, then @N, @N+, %PERCENT or, of an event, @SECONDSs";

/// A fault that is wanted.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    /// As the user has written it.
    pub(super) text: String,
    pub(super) subject: Subject,
    pub(super) when: When,
}

/// What fails.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Calls { chosen: Vec<bool>, errno: i32 },
    Completion { status: Status, opcode: Option<u32> },
    Event(AsyncEventKind),
}

/// When it fails.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum When {
    Always,
    Only(u64),
    From(u64),
    /// Of a million.
    Chance(u64),
    After(Duration),
}

/// The errors that a completion can have, by the names of `enum ibv_wc_status` without `IBV_WC_`: what a fabric does then, for a person.
pub const STATUSES: &[(&str, Status, &str)] = &[
    (
        "LOC_LEN_ERR",
        Status::LocalLength,
        "a message was longer than the receive that it took, or than the port allows",
    ),
    (
        "LOC_QP_OP_ERR",
        Status::LocalQpOperation,
        "the adapter could not carry out the request: it was made wrongly",
    ),
    ("LOC_PROT_ERR", Status::LocalProtection, "the request names local memory that its lkey does not open"),
    ("WR_FLUSH_ERR", Status::Flushed, "the queue pair was in error before the request was done"),
    ("MW_BIND_ERR", Status::WindowBind, "a memory window could not be bound: wrong region, range or right"),
    ("BAD_RESP_ERR", Status::BadResponse, "the peer's adapter answered something impossible"),
    ("LOC_ACCESS_ERR", Status::LocalAccess, "data arrived for local memory that may not be written"),
    (
        "REM_INV_REQ_ERR",
        Status::RemoteInvalidRequest,
        "the peer found the request invalid: its receive was too small, or it lacks the right",
    ),
    (
        "REM_ACCESS_ERR",
        Status::RemoteAccess,
        "the peer refused access: wrong rkey, bytes outside of the region, or a missing right",
    ),
    ("REM_OP_ERR", Status::RemoteOperation, "the peer could not complete the operation"),
    (
        "RETRY_EXC_ERR",
        Status::RetryExceeded,
        "the peer, or the way to it, has gone: nothing was acknowledged, however often it was sent",
    ),
    (
        "RNR_RETRY_EXC_ERR",
        Status::RnrRetryExceeded,
        "the peer had no receive posted, however often the message was sent",
    ),
    ("REM_ABORT_ERR", Status::RemoteAborted, "the peer gave the operation up"),
    ("FATAL_ERR", Status::Fatal, "the adapter failed"),
    ("RESP_TIMEOUT_ERR", Status::ResponseTimeout, "an answer came too late"),
    ("GENERAL_ERR", Status::General, "the transport failed in some other way"),
];

const EVENTS: &[(&str, AsyncEventKind)] = &[
    ("PORT_ERR", AsyncEventKind::PortError),
    ("PORT_ACTIVE", AsyncEventKind::PortActive),
    ("DEVICE_FATAL", AsyncEventKind::DeviceFatal),
    ("LID_CHANGE", AsyncEventKind::LidChange),
    ("PKEY_CHANGE", AsyncEventKind::PkeyChange),
    ("SM_CHANGE", AsyncEventKind::SmChange),
    ("CLIENT_REREGISTER", AsyncEventKind::ClientReregister),
    ("GID_CHANGE", AsyncEventKind::GidChange),
];

/// The events that can be raised, by the names of `enum ibv_event_type` without `IBV_EVENT_`.
pub fn event_names() -> impl Iterator<Item = &'static str> {
    EVENTS.iter().map(|(name, _)| *name)
}

/// The operations of completions, by the names of `enum ibv_wc_opcode` without `IBV_WC_`.
pub fn operation_names() -> impl Iterator<Item = &'static str> {
    names::WC_OPCODE.iter().map(|(_, name)| name.trim_start_matches("IBV_WC_"))
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Whether the text is a list of faults.
///
/// # Errors
/// Which rule is wrong, at which letter, and what is allowed there.
pub fn check(text: &str) -> Result<(), String> {
    parse(text).map(drop)
}

pub(super) fn parse(text: &str) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    let mut at = 0;
    for (place, entry) in text.split(',').enumerate() {
        let begins = at + entry.len() - entry.trim_start().len();
        at += entry.len() + 1;
        let rule = rule(entry.trim()).map_err(|wrong| {
            format!("rule {}, letter {}: {}", place + 1, begins + wrong.at + 1, wrong.why)
        })?;
        rules.push(rule);
    }
    Ok(rules)
}

/// What is wrong, and behind how many letters of the rule.
struct Wrong {
    at: usize,
    why: String,
}

fn wrong<T>(at: usize, why: impl Into<String>) -> Result<T, Wrong> {
    Err(Wrong { at, why: why.into() })
}

fn rule(text: &str) -> Result<Rule, Wrong> {
    if text.is_empty() {
        return wrong(0, format!("a rule is missing; wanted is {FORM}"));
    }
    let end = text.find(['@', '%']).unwrap_or(text.len());
    let (what, when) = text.split_at(end);
    let mut parts = what.split(':');
    let (name, at) =
        (parts.next().unwrap_or_default(), text.len().min(what.find(':').map_or(end, |colon| colon + 1)));
    let value = parts.next().unwrap_or_default();
    let options: Vec<&str> = parts.collect();
    let options_at = at + value.len() + 1;
    let subject = match name {
        "completion" => {
            let short = value.trim_start_matches("IBV_WC_");
            let Some((_, status, _)) = STATUSES.iter().find(|(known, _, _)| *known == short) else {
                let all = list(STATUSES.iter().map(|(name, _, _)| *name));
                return wrong(at, format!("{value:?} is no status of a failed completion; there are {all}"));
            };
            let mut opcode = None;
            for option in &options {
                let Some(("opcode", name)) = option.split_once('=') else {
                    return wrong(options_at, format!("{option:?}: wanted is opcode=OPCODE"));
                };
                let short = name.trim_start_matches("IBV_WC_");
                let found =
                    names::WC_OPCODE.iter().find(|(_, known)| known.trim_start_matches("IBV_WC_") == short);
                let Some((number, _)) = found else {
                    let all = list(operation_names());
                    return wrong(
                        options_at,
                        format!("{name:?} is no operation of a completion; there are {all}"),
                    );
                };
                opcode = Some(*number as u32);
            }
            Subject::Completion { status: *status, opcode }
        }
        "event" => {
            let short = value.trim_start_matches("IBV_EVENT_");
            match EVENTS.iter().find(|(known, _)| *known == short) {
                Some((_, kind)) => Subject::Event(*kind),
                None => {
                    let all = list(event_names());
                    return wrong(at, format!("{value:?} is no event that can be raised; there are {all}"));
                }
            }
        }
        _ => {
            let found: Vec<bool> = CALLS.iter().map(|call| calls::matches(name, call.name)).collect();
            if !found.iter().any(|found| *found) {
                let similar = calls::similar(name).join(", ");
                return wrong(
                    0,
                    format!(
                        "there is no call {name:?}; is one of these meant: {similar}? completion and event stand there, too"
                    ),
                );
            }
            let chosen: Vec<bool> =
                CALLS.iter().zip(&found).map(|(call, found)| *found && call.can_fail()).collect();
            if !chosen.iter().any(|chosen| *chosen) {
                return wrong(0, format!("{name} never fails"));
            }
            let Some(errno) = names::errno(value) else {
                return wrong(
                    at,
                    format!(
                        "{value:?} is no error number; wanted is a name such as ENOMEM, EINVAL, EAGAIN, EIO, ENODEV, EPERM, EBUSY or ETIMEDOUT"
                    ),
                );
            };
            Subject::Calls { chosen, errno }
        }
    };
    if let Some(option) = options.first().filter(|_| !matches!(subject, Subject::Completion { .. })) {
        return wrong(options_at, format!("{option:?}: only a completion has something there"));
    }
    let when =
        self::when(when, matches!(subject, Subject::Event(_))).map_err(|why| Wrong { at: end, why })?;
    Ok(Rule { text: text.to_owned(), subject, when })
}

fn when(text: &str, is_event: bool) -> Result<When, String> {
    if is_event {
        let seconds = text.strip_prefix('@').and_then(|text| text.strip_suffix('s'));
        let seconds = seconds.and_then(|text| text.parse::<f64>().ok());
        return match seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()) {
            Some(time) => Ok(When::After(time)),
            None => Err(format!("{text:?}: an event wants a time behind it, as in @2s or @0.5s")),
        };
    }
    if text.is_empty() {
        return Ok(When::Always);
    }
    if let Some(percent) = text.strip_prefix('%') {
        return match percent.parse::<f64>() {
            Ok(percent) if percent > 0.0 && percent <= 100.0 => {
                Ok(When::Chance((percent * 10_000.0).round() as u64))
            }
            _ => Err(format!("{text:?}: wanted is a percentage above 0 and up to 100, as in %5 or %0.1")),
        };
    }
    let number = text.trim_start_matches('@');
    let (number, from) = number.strip_suffix('+').map_or((number, false), |number| (number, true));
    match number.parse::<u64>() {
        Ok(number) if number > 0 && from => Ok(When::From(number)),
        Ok(number) if number > 0 => Ok(When::Only(number)),
        _ => Err(format!("{text:?}: wanted is @N for the Nth one, @N+ from there on, or %PERCENT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read() {
        let text = "ibv_reg_mr:ENOMEM@3, ibv_post_*:EAGAIN%0.5,completion:RETRY_EXC_ERR:opcode=SEND@10+,event:PORT_ERR@0.5s,rdma_connect:EIO";
        let rules = parse(text).map_err(|why| panic!("{why}")).unwrap();
        let when: Vec<_> = rules.iter().map(|rule| rule.when).collect();
        let half = Duration::from_millis(500);
        assert_eq!(
            when,
            [When::Only(3), When::Chance(5000), When::From(10), When::After(half), When::Always]
        );
        assert_eq!(rules[0].text, "ibv_reg_mr:ENOMEM@3");
        assert!(matches!(
            rules[2].subject,
            Subject::Completion { status: Status::RetryExceeded, opcode: Some(0) }
        ));
        assert!(
            check("completion:IBV_WC_GENERAL_ERR:opcode=IBV_WC_RECV,event:IBV_EVENT_GID_CHANGE@1s").is_ok()
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place_and_what_is_allowed() {
        for (text, place, allowed) in [
            ("", "rule 1, letter 1:", "CALL:ERRNO"),
            ("ibv_reg_mr:ENOMEM,", "rule 2, letter 19:", "a rule is missing"),
            ("ibv_regmr:ENOMEM", "rule 1, letter 1:", "ibv_reg_mr"),
            ("ibv_reg_mr", "rule 1, letter 11:", "ENOMEM"),
            ("ibv_reg_mr:", "rule 1, letter 12:", "ENOMEM"),
            ("ibv_reg_mr:enomem", "rule 1, letter 12:", "ENOMEM"),
            ("ibv_reg_mr:ENOMEM@0", "rule 1, letter 18:", "@N"),
            ("ibv_reg_mr:ENOMEM@x", "rule 1, letter 18:", "@N"),
            ("ibv_reg_mr:ENOMEM%101", "rule 1, letter 18:", "up to 100"),
            ("ibv_reg_mr:ENOMEM%0", "rule 1, letter 18:", "above 0"),
            ("ibv_reg_mr:ENOMEM:opcode=SEND", "rule 1, letter 19:", "only a completion"),
            ("ibv_ack_cq_events:ENOMEM", "rule 1, letter 1:", "never fails"),
            ("ibv_reg_mr:ENOMEM, completion:SUCCESS@1", "rule 2, letter 31:", "WR_FLUSH_ERR"),
            ("completion:FATAL_ERR:opcode=SENT", "rule 1, letter 22:", "RDMA_WRITE"),
            ("completion:FATAL_ERR:qp=1", "rule 1, letter 22:", "opcode=OPCODE"),
            ("event:QP_FATAL@1s", "rule 1, letter 7:", "PORT_ERR"),
            ("event:PORT_ERR", "rule 1, letter 15:", "@2s"),
            ("event:PORT_ERR@2", "rule 1, letter 15:", "@2s"),
        ] {
            let why = check(text).expect_err(text);
            assert!(why.starts_with(place) && why.contains(allowed), "{text}: {why}");
        }
    }
}
