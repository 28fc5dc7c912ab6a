//! `rdma link`, `dev`, `statistic` and `resource` of iproute2, for the devices of this library: what a
//! program of `adverb run` gets when it starts `rdma`.
//!
//! The answers have the words of rdma-link(8), rdma-dev(8), rdma-statistic(8) and rdma-resource(8).
//! Everything else is left to the real command, which asks the kernel.

mod objects;

use crate::environment;
use crate::failure::Failure;
use adverb_core::attributes::TransportType;
use adverb_core::description::Description as DeviceWanted;
use adverb_core::transport::{self, Transport};
use adverb_core::{interfaces, setting, sysfs};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;

/// A device, as it is described and as it is, and its index.
type NumberedDevice = (usize, (DeviceWanted, Arc<dyn Transport>));

/// Whether this command was started under the name that this file answers to.
pub(crate) fn is_asked(arguments: &[OsString]) -> bool {
    arguments.first().is_some_and(|name| Path::new(name).file_name().is_some_and(|name| name == "rdma"))
}

/// Answers, or starts the real command.
pub(crate) fn rdma(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let words: Vec<&str> = arguments.iter().skip(1).map(|word| word.to_str().unwrap_or_default()).collect();
    // What this command starts as `rdma` comes here once more, without the files, and is the real one's.
    let is_shown = std::env::var_os(environment::FILES).is_some();
    let Some(question) = Question::parse(&words).filter(|_| is_shown) else { return real(arguments) };
    let devices: Vec<_> = transport::make(environment::TRANSPORTS, setting::devices().as_deref())
        .into_iter()
        .flatten()
        .enumerate()
        .filter(|(_, (device, _))| question.device.is_none_or(|wanted| wanted == device.name))
        .collect();
    let with_host = setting::host_library().is_some();
    if let (Some(wanted), true) = (question.device, devices.is_empty()) {
        // The host may have it.
        return if with_host {
            real(arguments)
        } else {
            Err(Failure::own(format!("wrong device name: {wanted}")))
        };
    }
    let hosts = if with_host && question.device.is_none() { hosts(arguments) } else { Vec::new() };
    let answer = question.print(&question.rows(&devices)?, &hosts);
    if !answer.is_empty() {
        println!("{answer}");
    }
    Ok(ExitCode::SUCCESS)
}

/// The real command, without the devices of this library.
fn real(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    Err(Failure::own(format!("cannot start rdma: {}", command(arguments).exec())))
}

fn command(arguments: &[OsString]) -> Command {
    let mut command = Command::new("rdma");
    command.args(&arguments[1..]).env_remove(environment::FILES);
    command
}

/// What the real command says of the host's devices; nothing if it is not there.
fn hosts(arguments: &[OsString]) -> Vec<u8> {
    command(arguments).output().map(|output| output.stdout).unwrap_or_default()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Link,
    Device,
    /// Counters of a device.
    Statistics,
    /// Counters of queue pairs.
    PairStatistics,
    /// How many objects there are.
    Summary,
    Pairs,
    Identifiers,
    Queues,
    Regions,
    Domains,
}

/// What `rdma` was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Question<'a> {
    about: About,
    device: Option<&'a str>,
    /// Shows only rows with these values.
    filters: Vec<(&'a str, &'a str)>,
    json: bool,
    pretty: bool,
}

impl<'a> Question<'a> {
    /// None for a question that is not answered here.
    fn parse(words: &[&'a str]) -> Option<Self> {
        let (options, words): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('-'));
        let mut question =
            Self { about: About::Link, device: None, filters: Vec::new(), json: false, pretty: false };
        for option in options {
            match option {
                "-j" | "--json" | "-json" => question.json = true,
                "-p" | "--pretty" | "-pretty" => question.pretty = true,
                "-d" | "--details" | "-details" => {}
                "-jp" | "-pj" => (question.json, question.pretty) = (true, true),
                _ => return None,
            }
        }
        let (&object, words) = words.split_first()?;
        // The real command takes the beginning of a word, too; these are common.
        let rest = match object {
            "link" => question.about_devices(About::Link, words)?,
            "dev" => question.about_devices(About::Device, words)?,
            "statistic" | "stat" => question.about_statistics(words)?,
            "resource" | "res" => question.about_resources(words)?,
            _ => return None,
        };
        let filters = rest.chunks(2).map(|pair| Some((*pair.first()?, *pair.get(1)?)));
        question.filters = filters.collect::<Option<_>>()?;
        // The real command says which words it does not know, or knows more of them.
        let all = question.about.filters();
        question.filters.iter().all(|(wanted, _)| all.contains(wanted)).then_some(question)
    }

    /// Takes the words behind `link` or `dev`; what is left is nothing.
    fn about_devices<'b>(&mut self, about: About, words: &'b [&'a str]) -> Option<&'b [&'a str]> {
        self.about = about;
        match words {
            [] | ["show" | "list"] => {}
            ["show" | "list", device] => self.device = Some(self.named(device)),
            _ => return None,
        }
        Some(&[])
    }

    fn about_statistics<'b>(&mut self, words: &'b [&'a str]) -> Option<&'b [&'a str]> {
        let (about, words) = match words {
            ["qp", words @ ..] => (About::PairStatistics, words),
            words => (About::Statistics, words),
        };
        self.about = about;
        match words {
            [] => Some(&[]),
            ["show" | "list", words @ ..] => self.of_link_or_device(words),
            _ => None,
        }
    }

    fn about_resources<'b>(&mut self, words: &'b [&'a str]) -> Option<&'b [&'a str]> {
        self.about = About::Summary;
        let words = match words {
            [] | ["show" | "list"] => return Some(&[]),
            ["show" | "list", words @ ..] => words,
            _ => return None,
        };
        let (&object, words) = words.split_first()?;
        self.about = match object {
            "qp" => About::Pairs,
            "cm_id" => About::Identifiers,
            "cq" => About::Queues,
            "mr" => About::Regions,
            "pd" => About::Domains,
            // The kernel counts these, and so does the summary.
            "srq" | "ctx" | "help" => return None,
            device if words.is_empty() => {
                self.device = Some(self.named(device));
                return Some(&[]);
            }
            _ => return None,
        };
        self.of_link_or_device(words)
    }

    /// `link DEV/PORT` or `dev DEV`, if it is there; what is behind are filters.
    fn of_link_or_device<'b>(&mut self, words: &'b [&'a str]) -> Option<&'b [&'a str]> {
        // What is not of a port is asked for by the word of ports, too.
        let is_place = |word: &str| word == "link" || word == "dev" && !self.about.is_of_link();
        match words {
            [] => Some(&[]),
            [first] if is_place(first) => Some(&[]),
            [first, device, filters @ ..] if is_place(first) => {
                self.device = Some(self.named(device));
                Some(filters)
            }
            _ => None,
        }
    }

    /// The name of the device that a word names.
    fn named(&self, word: &'a str) -> &'a str {
        word.trim_end_matches("/1").trim_end_matches("/-")
    }

    fn rows(&self, devices: &[NumberedDevice]) -> Result<Vec<Description>, Failure> {
        let rows: Vec<_> = match self.about {
            About::Link | About::Device => devices
                .iter()
                .map(|(index, (device, transport))| self.about.describe(*index, device, &**transport))
                .collect(),
            about => {
                let asked = devices.iter().map(|(index, (device, transport))| objects::DeviceQuery {
                    index: *index,
                    name: &device.name,
                    transport: transport.attributes().transport,
                });
                objects::rows(about, &asked.collect::<Vec<_>>())?
            }
        };
        Ok(rows.into_iter().filter(|row| self.wants(row)).collect())
    }

    /// Whether a row has what the filters say; each may say several values and ranges of numbers, with a
    /// comma between them.
    fn wants(&self, row: &Description) -> bool {
        self.filters.iter().all(|(wanted, values)| {
            let has = |key: &str, part: fn(&str) -> &str| {
                row.iter().any(|(name, value)| {
                    *name == key && values.split(',').any(|one| is_in(one, part(&text(value))))
                })
            };
            match *wanted {
                "src-addr" | "dst-addr" => has(wanted, address),
                "src-port" => has("src-addr", port),
                "dst-port" => has("dst-addr", port),
                _ => has(wanted, |value| value),
            }
        })
    }

    /// `hosts`: what the real command has printed.
    fn print(&self, devices: &[Description], hosts: &[u8]) -> String {
        let values: Vec<Map<String, Value>> = devices
            .iter()
            .map(|device| device.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect())
            .chain(serde_json::from_slice::<Vec<Map<String, Value>>>(hosts).unwrap_or_default())
            .collect();
        match (self.json, self.pretty) {
            (true, true) => serde_json::to_string_pretty(&values).unwrap_or_default(),
            (true, false) => serde_json::to_string(&values).unwrap_or_default(),
            _ => {
                let hosts = String::from_utf8_lossy(hosts);
                let lines = devices.iter().map(|device| self.about.line(device));
                lines.chain(hosts.lines().map(str::to_owned)).collect::<Vec<_>>().join("\n")
            }
        }
    }
}

/// Whether a value is the one of a filter, or in its range.
fn is_in(wanted: &str, value: &str) -> bool {
    let number = |word: &str| match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse::<u64>().ok(),
    };
    let bounds = wanted.split_once('-').and_then(|(first, last)| Some(number(first)?..=number(last)?));
    match (bounds, number(value)) {
        (Some(bounds), Some(value)) => bounds.contains(&value),
        _ => wanted == value || wanted.strip_prefix("0x").is_some_and(|digits| digits == value),
    }
}

/// The address of an address with a port, without brackets.
fn address(of: &str) -> &str {
    of.rsplit_once(':').map_or(of, |(address, _)| address).trim_start_matches('[').trim_end_matches(']')
}

fn port(of: &str) -> &str {
    of.rsplit_once(':').map_or("", |(_, port)| port)
}

/// A value in the other form than JSON.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Keys of the JSON form and their values, in the order of the other form.
type Description = Vec<(&'static str, Value)>;

/// Keys that are not in the other form, or stand at the beginning of a line.
const IN_FRONT: [&str; 4] = ["ifindex", "ifname", "port", "netdev_index"];
/// Keys whose values are in hexadecimal.
const HEXADECIMAL: [&str; 3] = ["rkey", "lkey", "iova"];

impl About {
    /// The words by which rows may be chosen.
    fn filters(self) -> &'static [&'static str] {
        match self {
            Self::Pairs => {
                &["lqpn", "rqpn", "pid", "sq-psn", "rq-psn", "type", "path-mig-state", "state", "pdn"]
            }
            Self::PairStatistics => &["cntn", "lqpn", "pid", "qp-type"],
            Self::Identifiers => {
                &["lqpn", "qp-type", "state", "ps", "pid", "src-addr", "src-port", "dst-addr", "dst-port"]
            }
            Self::Queues => &["users", "cqn", "cqe", "pid"],
            Self::Regions => &["rkey", "lkey", "mrn", "mrlen", "pdn", "pid"],
            Self::Domains => &["users", "pdn", "pid"],
            Self::Link | Self::Device | Self::Statistics | Self::Summary => &[],
        }
    }

    /// Whether the rows are of the ports of devices.
    fn is_of_link(self) -> bool {
        match self {
            Self::Link | Self::Statistics | Self::PairStatistics | Self::Pairs | Self::Identifiers => true,
            Self::Device | Self::Summary | Self::Queues | Self::Regions | Self::Domains => false,
        }
    }

    fn describe(self, index: usize, device: &DeviceWanted, transport: &dyn Transport) -> Description {
        let mut all = vec![("ifindex", json!(index)), ("ifname", json!(device.name))];
        match self {
            Self::Link => {
                let (state, physical) =
                    if transport.port().active { ("ACTIVE", "LINK_UP") } else { ("DOWN", "DISABLED") };
                all.extend([
                    ("port", json!(1)),
                    ("state", json!(state)),
                    ("physical_state", json!(physical)),
                ]);
                if let Some((name, index)) = device.addresses.interface(&interfaces::addresses()) {
                    all.extend([("netdev", json!(name)), ("netdev_index", json!(index))]);
                }
            }
            _ => {
                let attributes = transport.attributes();
                let kind = match attributes.transport {
                    TransportType::Ib => "ca",
                    TransportType::Iwarp => "rnic",
                };
                let guid = sysfs::words(&attributes.node_guid.to_be_bytes());
                all.extend([
                    ("node_type", json!(kind)),
                    ("fw", json!(env!("CARGO_PKG_VERSION"))),
                    ("node_guid", json!(guid)),
                    ("sys_image_guid", json!(guid)),
                ]);
            }
        }
        all
    }

    fn line(self, row: &Description) -> String {
        let value = |wanted| row.iter().find(|(key, _)| *key == wanted).map(|(_, value)| text(value));
        let (index, name) = (value("ifindex").unwrap_or_default(), value("ifname").unwrap_or_default());
        let mut line = match self {
            Self::Device | Self::Summary => format!("{index}: {name}: "),
            about if about.is_of_link() => format!("link {name}/1 "),
            _ => format!("dev {name} "),
        };
        for (key, value) in row.iter().filter(|(key, _)| !IN_FRONT.contains(key)) {
            line += &match value {
                Value::Array(numbers) => {
                    let numbers: Vec<_> = numbers.iter().map(text).collect();
                    format!("\n    LQPN: <{}>", numbers.join(","))
                }
                value if HEXADECIMAL.contains(key) => format!("{key} 0x{} ", text(value)),
                value => format!("{key} {} ", text(value)),
            };
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions() {
        let link = Question { about: About::Link, device: None, filters: vec![], json: false, pretty: false };
        assert_eq!(Question::parse(&["link"]), Some(link.clone()));
        assert_eq!(Question::parse(&["link", "show", "-j"]), Some(Question { json: true, ..link.clone() }));
        assert_eq!(
            Question::parse(&["-jp", "link", "show", "roce0/1"]),
            Some(Question { json: true, pretty: true, device: Some("roce0"), ..link })
        );
        let dev = Question {
            about: About::Device,
            device: Some("roce0"),
            filters: vec![],
            json: false,
            pretty: false,
        };
        assert_eq!(Question::parse(&["dev", "show", "roce0"]), Some(dev));
        let of = |words: &[&'static str]| {
            let question = Question::parse(words).unwrap_or_else(|| panic!("{words:?}"));
            (question.about, question.device, question.filters)
        };
        assert_eq!(of(&["resource"]), (About::Summary, None, vec![]));
        assert_eq!(of(&["res", "show", "roce0"]), (About::Summary, Some("roce0"), vec![]));
        assert_eq!(of(&["res", "show", "qp"]), (About::Pairs, None, vec![]));
        assert_eq!(
            of(&["res", "show", "qp", "link", "roce0/1", "lqpn", "17"]),
            (About::Pairs, Some("roce0"), vec![("lqpn", "17")])
        );
        assert_eq!(of(&["resource", "list", "mr", "dev", "roce0"]), (About::Regions, Some("roce0"), vec![]));
        assert_eq!(
            of(&["resource", "show", "cq", "link", "roce0/-"]),
            (About::Queues, Some("roce0"), vec![])
        );
        assert_eq!(of(&["statistic"]), (About::Statistics, None, vec![]));
        assert_eq!(of(&["stat", "show", "link", "roce0/1"]), (About::Statistics, Some("roce0"), vec![]));
        assert_eq!(of(&["statistic", "qp", "show"]), (About::PairStatistics, None, vec![]));
        for other in [
            &["resource", "show", "srq"][..],
            &["resource", "show", "qp", "dev", "roce0"],
            &["resource", "show", "qp", "link", "roce0", "lqpn"],
            &["resource", "show", "qp", "link", "roce0", "poll-ctx", "DIRECT"],
            &["statistic", "qp", "set", "link", "roce0"],
            &["statistic", "mode"],
            &["link", "add", "x"],
            &["-n", "link"],
            &[],
            &["system", "show"],
        ] {
            assert_eq!(Question::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn filters_choose_rows() {
        let row = vec![("lqpn", json!(17)), ("state", json!("RTS"))];
        for (words, wanted) in [
            (["lqpn", "17"], true),
            (["lqpn", "16,17"], true),
            (["lqpn", "1-5,16-20"], true),
            (["lqpn", "18-20"], false),
            (["state", "ERR"], false),
            (["pid", "1"], false),
        ] {
            let words = [&["resource", "show", "qp", "link", "roce0/-"][..], &words].concat();
            assert_eq!(
                Question::parse(&words).map(|question| question.wants(&row)),
                Some(wanted),
                "{words:?}"
            );
        }
    }

    #[test]
    fn addresses_and_ports_are_filters_of_their_own() {
        let row = vec![("src-addr", json!("[fe80::1]:7471")), ("dst-addr", json!("10.0.0.2:80"))];
        for (word, value, wanted) in [
            ("src-addr", "fe80::1", true),
            ("src-port", "7000-8000", true),
            ("src-port", "80", false),
            ("dst-addr", "10.0.0.1,10.0.0.2", true),
            ("dst-port", "80", true),
        ] {
            let words = ["resource", "show", "cm_id", "link", "roce0/1", word, value];
            let found = Question::parse(&words).map(|question| question.wants(&row));
            assert_eq!(found, Some(wanted), "{word} {value}");
        }
        assert!(is_in("0x1f", "1f") && !is_in("0x1f", "2f"));
    }

    #[test]
    fn the_hosts_devices_stand_behind_ours() {
        let dev = vec![("ifindex", json!(0)), ("ifname", json!("roce0"))];
        let mut question =
            Question { about: About::Device, device: None, filters: vec![], json: false, pretty: false };
        assert_eq!(
            question.print(std::slice::from_ref(&dev), b"1: rxe0: node_type ca \n"),
            "0: roce0: \n1: rxe0: node_type ca "
        );
        question.json = true;
        let both = question.print(&[dev], br#"[{"ifindex":1,"ifname":"rxe0"}]"#);
        assert_eq!(both, r#"[{"ifindex":0,"ifname":"roce0"},{"ifindex":1,"ifname":"rxe0"}]"#);
    }

    #[test]
    fn lines_are_those_of_the_real_command() {
        let link = vec![
            ("ifindex", json!(0)),
            ("ifname", json!("roce0")),
            ("port", json!(1)),
            ("state", json!("ACTIVE")),
            ("physical_state", json!("LINK_UP")),
            ("netdev", json!("eth0")),
            ("netdev_index", json!(2)),
        ];
        assert_eq!(About::Link.line(&link), "link roce0/1 state ACTIVE physical_state LINK_UP netdev eth0 ");
        let dev = vec![("ifindex", json!(1)), ("ifname", json!("iwarp0")), ("node_type", json!("rnic"))];
        assert_eq!(About::Device.line(&dev), "1: iwarp0: node_type rnic ");
        let begin = vec![("ifindex", json!(0)), ("ifname", json!("roce0"))];
        let row = |more: &[(&'static str, Value)]| [begin.clone(), more.to_vec()].concat();
        let pair = row(&[("port", json!(1)), ("lqpn", json!(17)), ("state", json!("RTS"))]);
        assert_eq!(About::Pairs.line(&pair), "link roce0/1 lqpn 17 state RTS ");
        assert_eq!(About::Summary.line(&row(&[("pd", json!(1))])), "0: roce0: pd 1 ");
        let region = row(&[("rkey", json!("1a2b")), ("mrlen", json!(4096))]);
        assert_eq!(About::Regions.line(&region), "dev roce0 rkey 0x1a2b mrlen 4096 ");
        let counted = row(&[("cntn", json!(17)), ("requests", json!(5)), ("lqpn", json!([17]))]);
        assert_eq!(About::PairStatistics.line(&counted), "link roce0/1 cntn 17 requests 5 \n    LQPN: <17>");
    }
}
