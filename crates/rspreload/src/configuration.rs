//! Whose sockets become rsockets, and how large their queues are: `/etc/rdma/rsocket/preload_config` and the
//! environment (rsocket(7)).

use std::ffi::CStr;
use std::sync::OnceLock;

const FILE: &str = "/etc/rdma/rsocket/preload_config";

/// The level of the options that are rsockets' own, and the variables that set them.
pub(crate) const SOL_RDMA: i32 = 0x10000;
const SIZES: [(&str, i32); 3] = [("RS_SQ_SIZE", 0), ("RS_RQ_SIZE", 1), ("RS_INLINE", 2)];

/// A line of the file: what matches, `None` for anything.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    /// What the program's name begins with.
    program: Option<String>,
    domain: Option<i32>,
    kind: Option<i32>,
    protocol: Option<i32>,
}

/// What was set when the program started.
pub(crate) struct Configuration {
    /// The rules of this program; the file may have those of others, too. Empty: every socket becomes an
    /// rsocket.
    rules: Option<Vec<Rule>>,
    /// Options of [`SOL_RDMA`] and their values.
    pub(crate) sizes: Vec<(i32, i32)>,
}

static CONFIGURATION: OnceLock<Configuration> = OnceLock::new();

/// The configuration of this process, read by the first call.
pub(crate) fn get() -> &'static Configuration {
    CONFIGURATION.get_or_init(|| {
        let number = |name| std::env::var(name).ok()?.trim().parse().ok().filter(|n| *n > 0);
        Configuration {
            rules: std::fs::read_to_string(FILE).ok().and_then(|text| rules(&text, &program())),
            sizes: SIZES.iter().filter_map(|(name, option)| Some((*option, number(name)?))).collect(),
        }
    })
}

unsafe extern "C" {
    static program_invocation_short_name: *const libc::c_char;
}

fn program() -> String {
    // SAFETY: set by the C library before it calls anything of ours, and never changed.
    unsafe { CStr::from_ptr(program_invocation_short_name) }.to_string_lossy().into_owned()
}

/// The rules of a program; `None` if the file has no rule at all.
fn rules(text: &str, program: &str) -> Option<Vec<Rule>> {
    let all: Vec<Rule> = text.lines().filter_map(rule).collect();
    let begins = |rule: &Rule| {
        rule.program.as_ref().is_none_or(|name| {
            program.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
        })
    };
    (!all.is_empty()).then(|| all.into_iter().filter(begins).collect())
}

/// Program, domain, type and protocol, each perhaps `*`. Comments and lines that make no sense are none.
fn rule(line: &str) -> Option<Rule> {
    let mut words = line.split_whitespace();
    let program = words.next().filter(|word| !word.starts_with('#'))?;
    // A name with or without what C writes before it.
    let mut choice = |prefixes: &[&str], known: &[(&str, i32)]| {
        let word = words.next()?.to_ascii_uppercase();
        let bare = prefixes.iter().find_map(|prefix| word.strip_prefix(prefix)).unwrap_or(&word);
        match known.iter().find(|(name, _)| *name == bare) {
            Some((_, value)) => Some(Some(*value)),
            None => (word == "*").then_some(None),
        }
    };
    Some(Rule {
        program: (program != "*").then(|| program.to_string()),
        domain: choice(&["AF_", "PF_"], &[("INET", libc::AF_INET), ("INET6", libc::AF_INET6)])?,
        kind: choice(&["SOCK_"], &[("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)])?,
        protocol: choice(&["IPPROTO_"], &[("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)])?,
    })
}

impl Configuration {
    /// Whether a socket is to become an rsocket.
    pub(crate) fn wants(&self, domain: i32, kind: i32, protocol: i32) -> bool {
        let own = match kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) {
            libc::SOCK_STREAM => (libc::SOCK_STREAM, libc::IPPROTO_TCP),
            libc::SOCK_DGRAM => (libc::SOCK_DGRAM, libc::IPPROTO_UDP),
            _ => return false,
        };
        let protocol = if protocol == 0 { own.1 } else { protocol };
        let fits = |wanted: Option<i32>, found| wanted.is_none_or(|wanted| wanted == found);
        matches!(domain, libc::AF_INET | libc::AF_INET6)
            && protocol == own.1
            && self.rules.as_ref().is_none_or(|rules| {
                rules.iter().any(|rule| {
                    fits(rule.domain, domain) && fits(rule.kind, own.0) && fits(rule.protocol, protocol)
                })
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(text: &str, program: &str, domain: i32, kind: i32, protocol: i32) -> bool {
        Configuration { rules: rules(text, program), sizes: Vec::new() }.wants(domain, kind, protocol)
    }

    #[test]
    fn without_rules_every_socket_of_ip_is_wanted() {
        for text in ["", "# nothing\n\n", "iperf3 INET\n"] {
            assert!(wants(text, "x", libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, 0));
            assert!(wants(text, "x", libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP));
            assert!(!wants(text, "x", libc::AF_UNIX, libc::SOCK_STREAM, 0));
            assert!(!wants(text, "x", libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_ICMP));
            assert!(!wants(text, "x", libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_SCTP));
        }
    }

    #[test]
    fn rules_choose_programs_and_sockets() {
        let text = "# comment\n redis * sock_stream tcp\niperf3 pf_inet * *\nbad IB * *\nworse * * SCTP\n";
        let stream = |program, domain| wants(text, program, domain, libc::SOCK_STREAM, 0);
        assert!(stream("redis-server", libc::AF_INET6) && stream("Redis-CLI", libc::AF_INET));
        assert!(!wants(text, "redis-server", libc::AF_INET, libc::SOCK_DGRAM, 0));
        assert!(stream("iperf3", libc::AF_INET) && !stream("iperf3", libc::AF_INET6));
        assert!(wants(text, "iperf3", libc::AF_INET, libc::SOCK_DGRAM, 0));
        assert!(
            !stream("re", libc::AF_INET) && !stream("bad", libc::AF_INET) && !stream("worse", libc::AF_INET)
        );
        assert!(wants("* * * *", "x", libc::AF_INET, libc::SOCK_STREAM, 0));
    }
}
