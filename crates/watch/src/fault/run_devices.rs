//! The check of rules against the devices of a run, before its program starts.

use super::grammar::{list, parse};
use super::network;
use super::rule::Subject;
use adverb_core::wire::Medium;

/// A device that the program of a run sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunDevice {
    /// The name of the device: `roce0`.
    pub name: String,
    /// What carries the packets of the device.
    pub medium: Medium,
}

/// Whether each rule can do something with the devices of a run: those that it names are there, and have what
/// it is about.
///
/// # Errors
/// Which rule is wrong, is no rule, or can do nothing, and what is allowed.
pub fn check_devices(text: &str, known: &[RunDevice]) -> Result<(), String> {
    for (place, rule) in parse(text)?.iter().enumerate() {
        let place = place + 1;
        if let Some(name) = rule.of.device.as_ref().filter(|name| known.iter().all(|one| one.name != **name))
        {
            const OPTION: &str = ":device=";
            let all = list(known.iter().map(|one| one.name.as_str()));
            let inside = rule.text.find(OPTION).map_or(0, |inside| inside + OPTION.len());
            return Err(format!(
                "rule {place}, letter {}: the program sees no device {name}; it sees {all}",
                rule.at + inside + 1
            ));
        }
        let Subject::Wire { what, of } = &rule.subject else { continue };
        let chosen = || known.iter().filter(|one| rule.of.has_device(&one.name));
        let reasons: Vec<_> =
            chosen().map(|one| network::idle(*what, of.kind, of.direction, one.medium)).collect();
        if let (Some(why), true) = (reasons.iter().flatten().next(), reasons.iter().all(Option::is_some)) {
            let all = list(chosen().map(|one| one.name.as_str()));
            return Err(format!(
                "rule {place}, letter {}: {} can do nothing on {all}: {why}",
                rule.at + 1,
                rule.text
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_can_do_nothing_with_the_devices_of_a_run_are_said() {
        let device = |name: &str, medium| RunDevice { name: name.to_owned(), medium };
        let [one, other] = ["roce0", "roce1"].map(|name| device(name, Medium::Datagrams));
        let tcp = device("iwarp0", Medium::Stream);
        let known = [one.clone(), other];
        assert_eq!(check_devices("wire:loss,wire:loss:device=roce1", &known), Ok(()));
        let why = check_devices("wire:loss,device:gone:device=roce2@1s", &known).expect_err("no device");
        assert!(why.starts_with("rule 2, letter 30: ") && why.contains("roce0, roce1"), "{why}");
        let (alone, all) = ([tcp.clone()], [one, tcp]);
        let (roce, iwarp, both) = (&known[..], &alone[..], &all[..]);
        for (text, devices, says) in [
            ("wire:loss,wire:cut@3", roce, "rule 2, letter 11: wire:cut@3 can do nothing on roce0, roce1: "),
            (
                "wire:cut:device=roce0",
                both,
                "rule 1, letter 1: wire:cut:device=roce0 can do nothing on roce0: ",
            ),
            ("wire:loss:opcode=IMMEDIATE", roce, "for devices of iWARP"),
            ("wire:loss:opcode=TERMINATE", roce, "for devices of iWARP"),
            ("wire:reorder", iwarp, "for devices of RoCE"),
            ("wire:duplicate=2%5", iwarp, "for devices of RoCE"),
            ("wire:loss:opcode=ACK", iwarp, "for devices of RoCE"),
            ("wire:loss:opcode=FLUSH", iwarp, "for devices of RoCE"),
            ("wire:corrupt:opcode=CM", iwarp, "wire:delay"),
            ("wire:loss:opcode=CM:direction=in", iwarp, "direction=out"),
        ] {
            let why = check_devices(text, devices).expect_err(text);
            assert!(why.contains(says), "{text}: {why}");
        }
        for (text, devices) in [
            ("wire:cut,wire:reorder,wire:loss:opcode=ACK,wire:loss:opcode=TERMINATE", both),
            ("wire:reorder,wire:duplicate,wire:corrupt:opcode=CM,wire:loss:opcode=CM:direction=in", roce),
            ("wire:cut,wire:delay=1ms:opcode=CM,wire:loss:opcode=IMMEDIATE,wire:loss:opcode=SEND", iwarp),
        ] {
            assert_eq!(check_devices(text, devices), Ok(()), "{text}");
        }
    }
}
