//! How a person says which faults a run has:
//! `ibv_reg_mr:ENOMEM@3,completion:RETRY_EXC_ERR:opcode=SEND%5,wire:loss:direction=out%2,peer:kill@3s`.

use super::chosen::{self, Pair, Scope};
use super::rule::{OfCompletion, OfDevice, OfPeer, OnWire, Packets, Rule, Subject};
use super::when;
use super::words::{COMPLETION, DEVICE, EVENTS, PEER, STATUSES, WIRE, is_of_pair, operation_names};
use crate::calls::{self, CALLS};
use crate::names;
use adverb_core::description::Rate;
use adverb_core::wire::{Direction, Kind};
use std::net::IpAddr;
use std::time::Duration;

/// The form of a rule, in a line.
pub const FORM: &str = "CALL:ERRNO, completion:STATUS, wire:KIND, event:EVENT, device:KIND or peer:KIND, then options as in :opcode=SEND, then when: @N, @N+, @2s..5s, %PERCENT";

pub(super) fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}

/// Whether the text is a list of faults.
///
/// # Errors
/// Which rule is wrong, at which letter, and what is allowed there.
pub fn check(text: &str) -> Result<(), String> {
    parse(text).map(drop)
}

/// Whether the text is one rule.
///
/// # Errors
/// At which letter it is wrong, and what is allowed there.
pub fn check_rule(text: &str) -> Result<(), String> {
    rule(text).map(drop).map_err(|wrong| format!("letter {}: {}", wrong.at + 1, wrong.why))
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
        rules.push(Rule { at: begins, ..rule });
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

/// A part of a rule, and where it stands.
#[derive(Clone, Copy)]
struct Part<'a> {
    at: usize,
    text: &'a str,
}

impl<'a> Part<'a> {
    /// The words before and behind the sign `=`.
    fn pair(self) -> (&'a str, Option<Part<'a>>) {
        match self.text.split_once('=') {
            Some((name, value)) => (name, Some(Part { at: self.at + name.len() + 1, text: value })),
            None => (self.text, None),
        }
    }

    fn wrong<T>(self, why: impl Into<String>) -> Result<T, Wrong> {
        wrong(self.at, why)
    }

    /// The word `found` of this part is not `kind`, or there is no word. `all` are those that there are, and
    /// the example is a rule.
    fn unknown<T>(self, found: &str, kind: &str, all: &str, example: &str) -> Result<T, Wrong> {
        let what = match found {
            "" => format!("{kind} is missing here"),
            _ => format!("{found:?} is not {kind}"),
        };
        self.wrong(format!("{what}; there are {all}; a rule is as {example}"))
    }
}

/// The parts between colons. From the third on, one without the sign `=` belongs to the one before it: it may
/// be of an IPv6 address.
fn parts(text: &str) -> Vec<Part<'_>> {
    let mut parts: Vec<Part<'_>> = Vec::new();
    let mut at = 0;
    for piece in text.split(':') {
        match parts.last_mut().filter(|last| !piece.contains('=') && last.text.contains('=')) {
            Some(last) => last.text = &text[last.at..at + piece.len()],
            None => parts.push(Part { at, text: piece }),
        }
        at += piece.len() + 1;
    }
    parts
}

fn rule(text: &str) -> Result<Rule, Wrong> {
    if text.is_empty() {
        return wrong(0, format!("a rule is missing; wanted is {FORM}"));
    }
    let end = text.find(['@', '%']).unwrap_or(text.len());
    let (what, when) = text.split_at(end);
    let mut parts = parts(what).into_iter();
    let name = parts.next().unwrap_or(Part { at: 0, text: "" });
    let value = parts.next().unwrap_or(Part { at: end, text: "" });
    let mut options = Options::of(parts)?;
    let subject = match name.text {
        "completion" => completion(value, &mut options)?,
        "wire" => wire(value, &mut options)?,
        "event" => event(value, &mut options)?,
        "device" => Subject::Device(device(value, &mut options)?),
        "peer" => Subject::Peer(peer(value, &mut options)?),
        _ => call(name, value, &mut options)?,
    };
    let of = options.end()?;
    if let Some(place) = when.find(':') {
        return wrong(
            end + place,
            "options, as :opcode=SEND, stand before the signs @ and %, and the next rule behind a comma",
        );
    }
    let when = when::parse(when, subject.wants()).map_err(|why| Wrong { at: end, why })?;
    Ok(Rule { text: text.to_owned(), at: 0, subject, of, when })
}

/// What stands between the fault and when it strikes, as in `:opcode=SEND:qp=2`.
struct Options<'a> {
    /// Each with its name and its value.
    left: Vec<(Part<'a>, &'a str, Part<'a>)>,
    /// The options that the fault has, as a person writes them: `qp=N`.
    known: Vec<&'static str>,
    of: Scope,
}

impl<'a> Options<'a> {
    fn of(parts: impl Iterator<Item = Part<'a>>) -> Result<Self, Wrong> {
        let mut left: Vec<(Part<'a>, &'a str, Part<'a>)> = Vec::new();
        for part in parts {
            let (name, value) = part.pair();
            let value = needed(part, value, "an option with the sign =, as in opcode=SEND")?;
            if left.iter().any(|(_, other, _)| *other == name) {
                return part.wrong(format!("{name}= stands here twice"));
            }
            left.push((part, name, value));
        }
        Ok(Self { left, known: Vec::new(), of: Scope::default() })
    }

    /// The value of an option that there is, if it has been given. `form` is for a person: `qp=N`.
    fn take(&mut self, form: &'static str) -> Option<Part<'a>> {
        self.known.push(form);
        let name = form.split('=').next().unwrap_or_default();
        let place = self.left.iter().position(|(_, given, _)| *given == name)?;
        Some(self.left.remove(place).2)
    }

    /// There may be a device.
    fn device(&mut self) -> Result<(), Wrong> {
        if let Some(value) = self.take("device=NAME") {
            if value.text.is_empty() {
                return value.wrong("wanted is the name of a device, as in device=roce0");
            }
            self.of.device = Some(value.text.to_owned());
        }
        Ok(())
    }

    /// There may be a queue pair.
    fn pair(&mut self) -> Result<(), Wrong> {
        if let Some(value) = self.take("qp=N") {
            let Some(pair) = Pair::parse(value.text) else {
                return value.wrong(format!(
                    "{:?}: wanted is qp=2 for the second queue pair that the process makes, or qp=0x1a2b for the one with this number",
                    value.text
                ));
            };
            self.of.pair = Some(pair);
        }
        Ok(())
    }

    /// No further ones may have been given.
    fn end(self) -> Result<Scope, Wrong> {
        let Some((part, ..)) = self.left.first() else { return Ok(self.of) };
        match self.known.is_empty() {
            true => part.wrong(format!("{:?}: there are no options here", part.text)),
            false => part.wrong(format!("{:?}: wanted is {}", part.text, self.known.join(", "))),
        }
    }
}

/// There is no value behind the word.
fn no_value(name: &str, value: Option<Part<'_>>) -> Result<(), Wrong> {
    match value {
        Some(value) => value.wrong(format!("{name} has no value")),
        None => Ok(()),
    }
}

fn needed<'a>(of: Part<'a>, value: Option<Part<'a>>, form: &str) -> Result<Part<'a>, Wrong> {
    match value {
        Some(value) => Ok(value),
        None => wrong(of.at + of.text.len(), format!("{}: a value is missing: wanted is {form}", of.text)),
    }
}

fn call(name: Part<'_>, value: Part<'_>, options: &mut Options<'_>) -> Result<Subject, Wrong> {
    let found: Vec<bool> = CALLS.iter().map(|call| calls::matches(name.text, call.name)).collect();
    if !found.iter().any(|found| *found) {
        return name.wrong(format!(
            "there is no call {:?}{}; completion, wire, event, device and peer stand there, too",
            name.text,
            calls::meant(name.text)
        ));
    }
    let chosen: Vec<bool> = CALLS.iter().zip(&found).map(|(call, found)| *found && call.can_fail()).collect();
    if !chosen.iter().any(|chosen| *chosen) {
        return name.wrong(format!("{} never fails", name.text));
    }
    let Some(errno) = names::errno(value.text) else {
        return value.unknown(
            value.text,
            "the name of an error number",
            "ENOMEM, EINVAL, EAGAIN, EIO, ENODEV, EPERM, EBUSY, ETIMEDOUT and the others of errno(3)",
            &format!("{0}:ENOMEM, or {0}:ENOMEM@3 for the third call", name.text),
        );
    };
    let are_all = |is_it: fn(&calls::Call) -> bool| {
        CALLS.iter().zip(&chosen).all(|(call, chosen)| !chosen || is_it(call))
    };
    if are_all(chosen::is_of_pair) {
        options.pair()?;
    }
    if are_all(chosen::is_of_device) {
        options.device()?;
    }
    Ok(Subject::Calls { chosen, errno })
}

fn completion(value: Part<'_>, options: &mut Options<'_>) -> Result<Subject, Wrong> {
    let (kind, amount) = value.pair();
    let what = match kind {
        "delay" => {
            let time = time(needed(value, amount, "delay=TIME, as in delay=5ms")?)?;
            let jitter = options.take("jitter=TIME").map_or(Ok(Duration::ZERO), self::time)?;
            OfCompletion::Delay { time, jitter }
        }
        "reorder" => {
            OfCompletion::Reorder(amount.map(self::time).transpose()?.unwrap_or(Duration::from_millis(1)))
        }
        _ => {
            let short = value.text.trim_start_matches("IBV_WC_");
            let Some((_, status, _)) = STATUSES.iter().find(|(known, _, _)| *known == short) else {
                let all = list(COMPLETION.iter().map(|(name, _, _)| *name));
                let statuses = list(STATUSES.iter().map(|(name, _, _)| *name));
                return value.unknown(
                    value.text,
                    "the status of a failed completion or what happens to one",
                    &format!("{all}, {statuses}"),
                    "completion:RETRY_EXC_ERR@10 or completion:delay=5ms",
                );
            };
            OfCompletion::Fails(*status)
        }
    };
    let mut opcode = None;
    if let Some(name) = options.take("opcode=OPCODE") {
        let short = name.text.trim_start_matches("IBV_WC_");
        let found = names::WC_OPCODE.iter().find(|(_, known)| known.trim_start_matches("IBV_WC_") == short);
        let Some((number, _)) = found else {
            let all = list(operation_names());
            return name.wrong(format!("{:?} is no operation of a completion; there are {all}", name.text));
        };
        opcode = Some(*number as u32);
    }
    options.pair()?;
    options.device()?;
    Ok(Subject::Completion { what, opcode })
}

fn event(value: Part<'_>, options: &mut Options<'_>) -> Result<Subject, Wrong> {
    let short = value.text.trim_start_matches("IBV_EVENT_");
    match EVENTS.iter().find(|(known, _, _)| *known == short) {
        Some((_, kind, _)) => {
            if is_of_pair(*kind) {
                options.pair()?;
            }
            options.device()?;
            Ok(Subject::Event(*kind))
        }
        None => {
            let all = list(EVENTS.iter().map(|(name, _, _)| *name));
            value.unknown(value.text, "an event that can be raised", &all, "event:PORT_ERR@2s")
        }
    }
}

fn time(part: Part<'_>) -> Result<Duration, Wrong> {
    match when::duration(part.text) {
        Some(time) => Ok(time),
        None => part.wrong(format!(
            "{:?}: wanted is a time up to {}, as in 5ms, 200us or 1s",
            part.text,
            when::LONGEST
        )),
    }
}

fn wire(value: Part<'_>, options: &mut Options<'_>) -> Result<Subject, Wrong> {
    let (kind, amount) = value.pair();
    let what = match kind {
        "delay" => {
            let time = time(needed(value, amount, "delay=TIME, as in delay=5ms")?)?;
            let jitter = options.take("jitter=TIME").map_or(Ok(Duration::ZERO), self::time)?;
            OnWire::Delay { time, jitter }
        }
        "reorder" => OnWire::Reorder(amount.map(time).transpose()?.unwrap_or(Duration::from_millis(1))),
        "duplicate" => match amount.map(|part| (part, part.text.parse::<u32>())) {
            None => OnWire::Duplicate(1),
            Some((_, Ok(copies @ 1..=7))) => OnWire::Duplicate(copies),
            Some((part, _)) => return part.wrong("wanted is a number of copies from 1 to 7"),
        },
        "rate" => OnWire::Rate(rate(needed(value, amount, "rate=RATE, as in rate=10mbit")?)?),
        "loss" | "partition" | "corrupt" | "cut" => {
            no_value(kind, amount)?;
            match kind {
                "loss" => OnWire::Loss,
                "partition" => OnWire::Partition,
                "corrupt" => OnWire::Corrupt,
                _ => OnWire::Cut,
            }
        }
        _ => {
            let all = list(WIRE.iter().map(|(name, _, _)| *name));
            return value.unknown(kind, "a fault of the wire", &all, "wire:loss%1 or wire:delay=5ms");
        }
    };
    let mut of = Packets::default();
    if let Some(value) = options.take("direction=out|in") {
        of.direction = Some(match value.text {
            "out" => Direction::Out,
            "in" => Direction::In,
            _ => return value.wrong(format!("{:?}: wanted is out or in", value.text)),
        });
    }
    of.peer = options.take("peer=ADDRESS[/BITS]").map(network).transpose()?;
    if let Some(value) = options.take("opcode=KIND") {
        match Kind::ALL.iter().find(|(known, _)| *known == value.text) {
            Some((_, kind)) => of.kind = Some(*kind),
            None => {
                let all = list(Kind::ALL.iter().map(|(name, _)| *name));
                return value.wrong(format!("{:?} is no kind of packets; there are {all}", value.text));
            }
        }
    }
    options.device()?;
    Ok(Subject::Wire { what, of })
}

/// Bits in a second.
fn rate(part: Part<'_>) -> Result<f64, Wrong> {
    let units = [("kbit", 1e3), ("mbit", 1e6), ("gbit", 1e9)];
    let found = units.iter().find_map(|(unit, size)| {
        let number = part.text.strip_suffix(unit)?.parse::<f64>().ok()?;
        Some(number * size).filter(|rate| (1e3..1e13).contains(rate))
    });
    match found {
        Some(rate) => Ok(rate),
        None => part.wrong(format!("{:?}: wanted is a rate, as in 512kbit, 10mbit or 2.5gbit", part.text)),
    }
}

fn address(part: Part<'_>) -> Result<IpAddr, Wrong> {
    match part.text.parse::<IpAddr>() {
        Ok(address) => Ok(address.to_canonical()),
        Err(_) => {
            part.wrong(format!("{:?} is no address; wanted is one as in 10.0.0.2 or fd00::2", part.text))
        }
    }
}

fn network(part: Part<'_>) -> Result<(IpAddr, u8), Wrong> {
    let (host, bits) = match part.text.split_once('/') {
        Some((host, bits)) => (Part { text: host, ..part }, Some(bits)),
        None => (part, None),
    };
    let address = address(host)?;
    let all = if address.is_ipv4() { 32 } else { 128 };
    match bits.map(str::parse::<u8>) {
        None => Ok((address, all)),
        Some(Ok(bits)) if bits <= all => Ok((address, bits)),
        Some(_) => part.wrong(format!("{:?}: wanted are up to {all} bits behind the address", part.text)),
    }
}

fn device(value: Part<'_>, options: &mut Options<'_>) -> Result<OfDevice, Wrong> {
    options.device()?;
    let (kind, amount) = value.pair();
    let address_of = |form| needed(value, amount, form).and_then(address);
    match kind {
        "gid_removed" => Ok(OfDevice::GidRemoved(address_of("gid_removed=ADDRESS")?)),
        "gid_added" => Ok(OfDevice::GidAdded(address_of("gid_added=ADDRESS")?)),
        "gid_changed" => {
            const FORM: &str = "gid_changed=OLD/NEW, two addresses";
            let both = needed(value, amount, FORM)?;
            let Some((old, new)) = both.text.split_once('/') else {
                return both.wrong(format!("{:?}: wanted is {FORM}", both.text));
            };
            let new = Part { at: both.at + old.len() + 1, text: new };
            Ok(OfDevice::GidChanged(address(Part { text: old, ..both })?, address(new)?))
        }
        "speed" => {
            let amount = needed(value, amount, "speed=GBITS")?;
            match Rate::of(amount.text) {
                Ok(rate) => Ok(OfDevice::Speed(rate)),
                Err(all) => amount.wrong(format!("{:?}: wanted is a number of Gb/s: {all}", amount.text)),
            }
        }
        "port_down" | "fatal" | "gone" => {
            no_value(kind, amount)?;
            Ok(match kind {
                "port_down" => OfDevice::PortDown,
                "fatal" => OfDevice::Fatal,
                _ => OfDevice::Gone,
            })
        }
        _ => {
            let all = list(DEVICE.iter().map(|(name, _, _)| *name));
            value.unknown(kind, "a fault of a device", &all, "device:port_down@2s..5s")
        }
    }
}

fn peer(value: Part<'_>, options: &mut Options<'_>) -> Result<OfPeer, Wrong> {
    let (kind, amount) = value.pair();
    match kind {
        "stall" => Ok(OfPeer::Stall(amount.map(time).transpose()?)),
        "kill" | "restart" | "cut" => {
            no_value(kind, amount)?;
            if kind == "cut" {
                options.pair()?;
                options.device()?;
            }
            Ok(match kind {
                "kill" => OfPeer::Kill,
                "restart" => OfPeer::Restart,
                _ => OfPeer::Cut,
            })
        }
        _ => {
            let all = list(PEER.iter().map(|(name, _, _)| *name));
            value.unknown(kind, "a fault of the process", &all, "peer:kill@3s or peer:stall=2s@100posts")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::when::{MILLION, Point, Span};
    use super::*;
    use adverb_core::request::Status;
    use adverb_core::wire::{Medium, Passing};

    #[test]
    fn rules_are_read() {
        let text = "ibv_reg_mr:ENOMEM@3, ibv_post_*:EAGAIN%0.5,completion:RETRY_EXC_ERR:opcode=SEND@10+,event:PORT_ERR@0.5s,rdma_connect:EIO";
        let rules = parse(text).map_err(|why| panic!("{why}")).unwrap();
        let when: Vec<_> = rules.iter().map(|rule| (rule.when.span, rule.when.chance)).collect();
        let half = Span::From(Point::Time(Duration::from_millis(500)), None);
        assert_eq!(
            when,
            [
                (Span::Counts(3, 3), MILLION),
                (Span::Always, 5000),
                (Span::Counts(10, u64::MAX), MILLION),
                (half, MILLION),
                (Span::Always, MILLION)
            ]
        );
        assert_eq!(rules[0].text, "ibv_reg_mr:ENOMEM@3");
        assert!(matches!(
            rules[2].subject,
            Subject::Completion { what: OfCompletion::Fails(Status::RetryExceeded), opcode: Some(0) }
        ));
        assert!(
            check("completion:IBV_WC_GENERAL_ERR:opcode=IBV_WC_RECV,event:IBV_EVENT_GID_CHANGE@1s").is_ok()
        );
    }

    #[test]
    fn rules_of_wire_device_and_peer_are_read() {
        let one = |text: &str| parse(text).map_err(|why| panic!("{text}: {why}")).unwrap().remove(0).subject;
        let Subject::Wire { what, of } =
            one("wire:delay=5ms:jitter=2ms:direction=in:peer=fe80::1/64:opcode=ACK%5")
        else {
            panic!("of the wire")
        };
        let (time, jitter) = (Duration::from_millis(5), Duration::from_millis(2));
        assert_eq!(what, OnWire::Delay { time, jitter });
        let peer = Some(("fe80::1".parse().unwrap(), 64));
        assert_eq!(of, Packets { direction: Some(Direction::In), peer, kind: Some(Kind::Acknowledgement) });
        for (text, wanted) in [
            ("wire:loss", OnWire::Loss),
            ("wire:partition@1s..2s", OnWire::Partition),
            ("wire:reorder@3", OnWire::Reorder(Duration::from_millis(1))),
            ("wire:reorder=3ms%2", OnWire::Reorder(Duration::from_millis(3))),
            ("wire:duplicate", OnWire::Duplicate(1)),
            ("wire:duplicate=2", OnWire::Duplicate(2)),
            ("wire:corrupt@1", OnWire::Corrupt),
            ("wire:rate=2.5gbit", OnWire::Rate(2.5e9)),
            ("wire:cut@9", OnWire::Cut),
        ] {
            assert!(matches!(one(text), Subject::Wire { what, .. } if what == wanted), "{text}");
        }
        let old = "10.0.0.1".parse().unwrap();
        let new = "fd00::2".parse().unwrap();
        for (text, wanted) in [
            ("device:port_down@1s..2s", OfDevice::PortDown),
            ("device:gid_changed=10.0.0.1/fd00::2@1s", OfDevice::GidChanged(old, new)),
            ("device:gid_added=fd00::2@5posts", OfDevice::GidAdded(new)),
            ("device:gid_removed=10.0.0.1@1s", OfDevice::GidRemoved(old)),
            ("device:fatal@3completions", OfDevice::Fatal),
            ("device:gone@0s", OfDevice::Gone),
        ] {
            assert!(matches!(one(text), Subject::Device(what) if what == wanted), "{text}");
        }
        assert!(
            matches!(one("device:speed=100@1s"), Subject::Device(OfDevice::Speed(rate)) if rate.gigabits == 100)
        );
        let second = Some(Duration::from_secs(1));
        for (text, wanted) in [
            ("peer:stall@1s", OfPeer::Stall(None)),
            ("peer:stall=1s@10posts", OfPeer::Stall(second)),
            ("peer:kill@10completions", OfPeer::Kill),
            ("peer:restart@1s", OfPeer::Restart),
            ("peer:cut@7posts", OfPeer::Cut),
        ] {
            assert!(matches!(one(text), Subject::Peer(what) if what == wanted), "{text}");
        }
    }

    #[test]
    fn rules_say_which_queue_pair_and_which_device() {
        let one = |text: &str| parse(text).map_err(|why| panic!("{text}: {why}")).unwrap().remove(0);
        let (second, numbered) = (Some(Pair::Nth(2)), Some(Pair::Number(0x1a)));
        for (text, pair, device) in [
            ("ibv_post_send:ENOMEM:qp=2@3", second, None),
            ("ibv_modify_qp:EINVAL:qp=0x1a", numbered, None),
            ("ibv_post_*:EAGAIN:device=roce0", None, Some("roce0")),
            ("ibv_open_device:ENODEV:device=mlx5_1", None, Some("mlx5_1")),
            ("completion:RETRY_EXC_ERR:qp=2:opcode=SEND@1", second, None),
            ("completion:delay=5ms:jitter=1ms:qp=2%5", second, None),
            ("completion:reorder:device=roce0:qp=0x1a@3", numbered, Some("roce0")),
            ("event:QP_FATAL:qp=2@1s", second, None),
            ("event:PORT_ERR:device=roce0@1s", None, Some("roce0")),
            ("device:port_down:device=mlx5_1@1s..2s", None, Some("mlx5_1")),
            ("wire:loss:device=iwarp0:opcode=SEND@1", None, Some("iwarp0")),
            ("peer:cut:qp=2@5posts", second, None),
        ] {
            assert_eq!(one(text).of, Scope { pair, device: device.map(str::to_owned) }, "{text}");
        }
        let millisecond = Duration::from_millis(1);
        let (time, jitter) = (5 * millisecond, millisecond);
        for (text, wanted) in [
            ("completion:delay=5ms:jitter=1ms", OfCompletion::Delay { time, jitter }),
            ("completion:reorder", OfCompletion::Reorder(millisecond)),
            ("completion:reorder=5ms", OfCompletion::Reorder(time)),
        ] {
            assert!(
                matches!(one(text).subject, Subject::Completion { what, .. } if what == wanted),
                "{text}"
            );
        }
    }

    #[test]
    fn packets_are_chosen_by_direction_peer_and_kind() {
        let passing = |peer: &str| Passing {
            direction: Direction::Out,
            peer: peer.parse().unwrap(),
            local: "10.0.0.9".parse().unwrap(),
            kind: Kind::Send,
            length: 1,
            medium: Medium::Datagrams,
        };
        let of = |text: &str| match parse(&format!("wire:loss{text}")).unwrap().remove(0).subject {
            Subject::Wire { of, .. } => of,
            _ => panic!("of the wire"),
        };
        for (text, peer, has) in [
            ("", "10.0.0.1", true),
            (":direction=out", "10.0.0.1", true),
            (":direction=in", "10.0.0.1", false),
            (":opcode=SEND", "10.0.0.1", true),
            (":opcode=ACK", "10.0.0.1", false),
            (":peer=10.0.0.2", "10.0.0.1", false),
            (":peer=10.0.0.2", "10.0.0.2", true),
            (":peer=10.0.0.0/24", "10.0.0.9", true),
            (":peer=10.0.0.0/24", "10.0.1.9", false),
            (":peer=10.0.0.0/24", "::ffff:10.0.0.9", true),
            (":peer=0.0.0.0/0", "10.0.1.9", true),
            (":peer=0.0.0.0/0", "fd00::1", false),
            (":peer=fd00::/16", "fd00::1", true),
        ] {
            assert_eq!(of(text).has(&passing(peer)), has, "{text} {peer}");
        }
    }

    #[test]
    fn a_wrong_rule_is_refused_with_its_place_and_the_allowed_words() {
        for (text, place, allowed) in [
            ("", "rule 1, letter 1:", "CALL:ERRNO"),
            ("ibv_reg_mr:ENOMEM,", "rule 2, letter 19:", "a rule is missing"),
            ("ibv_regmr:ENOMEM", "rule 1, letter 1:", "ibv_reg_mr"),
            (
                "ibv_reg_mr",
                "rule 1, letter 11: the name of an error number is missing here",
                "as ibv_reg_mr:ENOMEM, or",
            ),
            (
                "ibv_dereg_mr@3",
                "rule 1, letter 13: the name of an error",
                "ibv_dereg_mr:ENOMEM@3 for the third call",
            ),
            ("ibv_reg_mr:", "rule 1, letter 12: the name of an error", "ENOMEM"),
            (
                "ibv_reg_mr:enomem",
                "rule 1, letter 12: \"enomem\" is not the name of an error number",
                "ENOMEM",
            ),
            ("completion", "rule 1, letter 11: the status of a failed", "is missing here; there are delay,"),
            ("wire@3", "rule 1, letter 5: a fault of the wire is missing here", "wire:loss%1"),
            ("event:", "rule 1, letter 7: an event that can be raised is missing", "event:PORT_ERR@2s"),
            ("device", "rule 1, letter 7: a fault of a device is missing", "device:port_down@2s..5s"),
            ("peer", "rule 1, letter 5: a fault of the process is missing", "peer:kill@3s"),
            ("ibv_reg_mr:ENOMEM@0", "rule 1, letter 18:", "@N"),
            ("ibv_reg_mr:ENOMEM@x", "rule 1, letter 18:", "@N"),
            ("ibv_reg_mr:ENOMEM%101", "rule 1, letter 18:", "up to 100"),
            ("ibv_reg_mr:ENOMEM%0", "rule 1, letter 18:", "above 0"),
            ("ibv_reg_mr:ENOMEM:opcode=SEND", "rule 1, letter 19:", "device=NAME"),
            ("ibv_reg_mr:ENOMEM:qp=1", "rule 1, letter 19:", "device=NAME"),
            ("rdma_listen:EIO:qp=1", "rule 1, letter 17:", "no options"),
            ("ibv_post_*:EIO:qp=1", "rule 1, letter 16:", "device=NAME"),
            ("ibv_post_send:EIO:qp=0", "rule 1, letter 22:", "second queue pair"),
            ("completion:delay", "rule 1, letter 17:", "delay=5ms"),
            ("completion:delay=1", "rule 1, letter 18:", "5ms"),
            ("completion:delay=1000h", "rule 1, letter 18:", "30 days"),
            ("completion:late", "rule 1, letter 12:", "reorder"),
            ("completion:reorder:jitter=1ms", "rule 1, letter 20:", "opcode=OPCODE"),
            ("completion:reorder:qp=0x", "rule 1, letter 23:", "0x1a2b"),
            ("device:port_down:qp=1@1s", "rule 1, letter 18:", "device=NAME"),
            ("device:port_down:device=@1s", "rule 1, letter 25:", "roce0"),
            ("event:PORT_ERR:qp=1@1s", "rule 1, letter 16:", "device=NAME"),
            ("peer:kill:qp=1@1s", "rule 1, letter 11:", "no options"),
            ("wire:loss:opcode=SEND:opcode=ACK", "rule 1, letter 23:", "twice"),
            ("wire:loss:device", "rule 1, letter 17:", "="),
            ("ibv_ack_cq_events:ENOMEM", "rule 1, letter 1:", "never fails"),
            ("ibv_reg_mr:ENOMEM, completion:SUCCESS@1", "rule 2, letter 31:", "WR_FLUSH_ERR"),
            ("completion:FATAL_ERR:opcode=SENT", "rule 1, letter 29:", "RDMA_WRITE"),
            ("completion:FATAL_ERR:pair=1", "rule 1, letter 22:", "opcode=OPCODE, qp=N, device=NAME"),
            ("event:CQ_ERR@1s", "rule 1, letter 7:", "PORT_ERR"),
            ("event:PORT_ERR", "rule 1, letter 15:", "@2s"),
            ("event:PORT_ERR@2", "rule 1, letter 15:", "@2s"),
            ("wire:lose", "rule 1, letter 6:", "partition"),
            ("wire:delay", "rule 1, letter 11:", "delay=5ms"),
            ("wire:delay=5", "rule 1, letter 12:", "5ms"),
            ("wire:loss=5", "rule 1, letter 11:", "no value"),
            ("wire:loss:opcode=WRITE", "rule 1, letter 18:", "RDMA_WRITE"),
            ("wire:loss:direction=up", "rule 1, letter 21:", "out or in"),
            ("wire:loss:peer=10.0.0", "rule 1, letter 16:", "10.0.0.2"),
            ("wire:loss:peer=10.0.0.1/33", "rule 1, letter 16:", "32 bits"),
            ("wire:loss:jitter=1ms", "rule 1, letter 11:", "direction=out|in, peer="),
            ("wire:rate=fast", "rule 1, letter 11:", "10mbit"),
            ("wire:duplicate=8", "rule 1, letter 16:", "1 to 7"),
            ("device:port@1s", "rule 1, letter 8:", "port_down"),
            ("device:port_down", "rule 1, letter 17:", "@2s"),
            ("device:speed=41@1s", "rule 1, letter 14:", "40"),
            ("device:gid_changed=10.0.0.1@1s", "rule 1, letter 20:", "OLD/NEW"),
            ("device:gid_added=x@1s", "rule 1, letter 18:", "no address"),
            ("peer:die@1s", "rule 1, letter 6:", "kill"),
            ("peer:kill@1", "rule 1, letter 10:", "@100posts"),
            ("peer:stall=x@1s", "rule 1, letter 12:", "30 days"),
        ] {
            let why = check(text).expect_err(text);
            assert!(why.starts_with(place) && why.contains(allowed), "{text}: {why}");
        }
        assert!(check_rule("wire:lose").is_err_and(|why| why.starts_with("letter 6:")));
    }

    #[test]
    fn the_examples_of_messages_work() {
        for text in ["ibv_reg_mr", "completion", "wire", "event", "device", "peer"] {
            let why = check(text).expect_err(text);
            let (_, examples) = why.split_once("; a rule is as ").expect("examples");
            for example in examples.split([' ', ',']).filter(|word| word.contains(':')) {
                assert_eq!(check(example), Ok(()), "{example}");
            }
        }
    }
}
