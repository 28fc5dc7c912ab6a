//! `rdma link` and `rdma dev` of iproute2, for the devices of this library: what a program of `adverb run` gets when it starts `rdma`.
//!
//! The answers have the words of rdma-link(8) and rdma-dev(8). Everything else is left to the real command, which asks the kernel.

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
        .map(|(index, (device, transport))| question.about.describe(index, &device, &*transport))
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
    let answer = question.print(&devices, &hosts);
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
}

/// What `rdma` was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Question<'a> {
    about: About,
    device: Option<&'a str>,
    json: bool,
    pretty: bool,
}

impl<'a> Question<'a> {
    /// None: not one that is answered here.
    fn parse(words: &[&'a str]) -> Option<Self> {
        let (options, words): (Vec<&str>, Vec<&str>) = words.iter().partition(|word| word.starts_with('-'));
        let mut question = Self { about: About::Link, device: None, json: false, pretty: false };
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
        question.about = match object {
            "link" => About::Link,
            "dev" => About::Device,
            _ => return None,
        };
        question.device = match words {
            [] | ["show" | "list"] => None,
            ["show" | "list", device] => Some(match question.about {
                About::Link => device.strip_suffix("/1").unwrap_or(device),
                About::Device => device,
            }),
            _ => return None,
        };
        Some(question)
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

/// Keys of the JSON form and their values, in the order of the other form.
type Description = Vec<(&'static str, Value)>;

impl About {
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
            Self::Device => {
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

    fn line(self, device: &Description) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let mut values = device.iter().map(|(_, value)| text(value));
        let (index, name) = (values.next().unwrap_or_default(), values.next().unwrap_or_default());
        let (mut line, skipped) = match self {
            Self::Link => (format!("link {name}/1 "), 3),
            Self::Device => (format!("{index}: {name}: "), 2),
        };
        for (key, value) in device.iter().skip(skipped).filter(|(key, _)| *key != "netdev_index") {
            line += &format!("{key} {} ", text(value));
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions() {
        let link = Question { about: About::Link, device: None, json: false, pretty: false };
        assert_eq!(Question::parse(&["link"]), Some(link.clone()));
        assert_eq!(Question::parse(&["link", "show", "-j"]), Some(Question { json: true, ..link.clone() }));
        assert_eq!(
            Question::parse(&["-jp", "link", "show", "roce0/1"]),
            Some(Question { json: true, pretty: true, device: Some("roce0"), ..link })
        );
        let dev = Question { about: About::Device, device: Some("roce0"), json: false, pretty: false };
        assert_eq!(Question::parse(&["dev", "show", "roce0"]), Some(dev));
        for other in [&["resource"][..], &["link", "add", "x"], &["-n", "link"], &[], &["system", "show"]] {
            assert_eq!(Question::parse(other), None, "{other:?}");
        }
    }

    #[test]
    fn the_hosts_devices_stand_behind_ours() {
        let dev = vec![("ifindex", json!(0)), ("ifname", json!("roce0"))];
        let mut question = Question { about: About::Device, device: None, json: false, pretty: false };
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
    }
}
