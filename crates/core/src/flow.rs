//! Flow steering: rules that say which frames go to which raw packet queue pair (ibv_create_flow(3)).

use crate::error::{Error, Result};
use crate::qp::{QueuePair, Service};
use crate::rss::HashFields;
use std::sync::Arc;

/// The purpose of a rule (`enum ibv_flow_attr_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowKind {
    /// Frames that match.
    Normal,
    /// Frames that no rule has steered elsewhere.
    AllDefault,
    /// Multicast that no rule has steered elsewhere.
    MulticastDefault,
    /// A copy of everything.
    Sniffer,
}

/// Fields of an Ethernet header; numbers as in the program, that is in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EthernetFields {
    /// Destination address.
    pub destination: [u8; 6],
    /// Source address.
    pub source: [u8; 6],
    /// Type, behind any VLAN tags.
    pub ether_type: [u8; 2],
    /// The first VLAN tag; only its number counts.
    pub vlan: [u8; 2],
}

/// Fields of an IPv4 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv4Fields {
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
    /// Protocol, type of service, time to live, and flags (`enum ibv_flow_ipv4_ext_flags`: 2 don't fragment,
    /// 1 more fragments).
    pub others: [u8; 4],
}

/// Fields of an IPv6 header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ipv6Fields {
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
    /// Flow label.
    pub flow_label: [u8; 4],
    /// Next header, traffic class, hop limit.
    pub others: [u8; 3],
}

/// Ports of TCP or UDP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortPair {
    /// Destination.
    pub destination: [u8; 2],
    /// Source.
    pub source: [u8; 2],
}

/// One condition of a rule: the header is there, and each bit of it that the mask names is as in the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowSpec {
    /// Ethernet: value and mask.
    Ethernet(EthernetFields, EthernetFields),
    /// IPv4: value and mask.
    Ipv4(Ipv4Fields, Ipv4Fields),
    /// IPv6: value and mask.
    Ipv6(Ipv6Fields, Ipv6Fields),
    /// TCP: value and mask.
    Tcp(PortPair, PortPair),
    /// UDP: value and mask.
    Udp(PortPair, PortPair),
    /// No condition: frames of the rule are dropped.
    Drop,
}

/// A rule (struct ibv_flow_attr).
#[derive(Clone, Debug)]
pub struct FlowRule {
    /// The kind of the rule.
    pub kind: FlowKind,
    /// Of rules that match, the one with the lowest number takes a frame.
    pub priority: u16,
    /// The rule does not keep its frames from rules of lower priority.
    pub dont_trap: bool,
    /// The conditions, all of which a frame must meet.
    pub specs: Vec<FlowSpec>,
}

/// The headers of a frame that rules look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Headers {
    ethernet: EthernetFields,
    ipv4: Option<Ipv4Fields>,
    ipv6: Option<Ipv6Fields>,
    tcp: Option<PortPair>,
    udp: Option<PortPair>,
}

const VLAN: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
const TCP: u8 = 6;
const UDP: u8 = 17;

/// Takes as many bytes as fit from the front.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*head)
}

impl Headers {
    /// Looks at a frame; None if it has not even an Ethernet header.
    pub fn of(frame: &[u8]) -> Option<Self> {
        let mut rest = frame;
        let (destination, source) = (take(&mut rest)?, take(&mut rest)?);
        let mut ether_type = take::<2>(&mut rest)?;
        let mut vlan = None;
        while VLAN.contains(&ether_type) {
            let [high, low] = take(&mut rest)?;
            vlan.get_or_insert([high & 0x0f, low]);
            ether_type = take(&mut rest)?;
        }
        let ethernet = EthernetFields { destination, source, ether_type, vlan: vlan.unwrap_or_default() };
        let mut headers = Self { ethernet, ..Self::default() };
        let protocol = match ether_type {
            [0x08, 0x00] => headers.look_at_ipv4(&mut rest),
            [0x86, 0xdd] => headers.look_at_ipv6(&mut rest),
            _ => None,
        };
        let ports = protocol.and_then(|_| take::<4>(&mut rest));
        if let (Some(protocol), Some([a, b, c, d])) = (protocol, ports) {
            let ports = PortPair { source: [a, b], destination: [c, d] };
            match protocol {
                TCP => headers.tcp = Some(ports),
                UDP => headers.udp = Some(ports),
                _ => {}
            }
        }
        Some(headers)
    }

    /// The protocol above; None for fragments but the first, which have no header of it.
    fn look_at_ipv4(&mut self, rest: &mut &[u8]) -> Option<u8> {
        let fixed: [u8; 20] = take(rest)?;
        let options = usize::from(fixed[0] & 15).checked_sub(5)? * 4;
        *rest = rest.get(options..)?;
        let [.., s0, s1, s2, s3, d0, d1, d2, d3] = fixed;
        self.ipv4 = Some(Ipv4Fields {
            source: [s0, s1, s2, s3],
            destination: [d0, d1, d2, d3],
            others: [fixed[9], fixed[1], fixed[8], fixed[6] >> 5],
        });
        (u16::from_be_bytes([fixed[6] & 0x1f, fixed[7]]) == 0).then_some(fixed[9])
    }

    /// The protocol above, if no extension header stands between.
    fn look_at_ipv6(&mut self, rest: &mut &[u8]) -> Option<u8> {
        let [version, label, l1, l2, _, _, next, hops] = take(rest)?;
        self.ipv6 = Some(Ipv6Fields {
            source: take(rest)?,
            destination: take(rest)?,
            flow_label: [0, label & 15, l1, l2],
            others: [next, version << 4 | label >> 4, hops],
        });
        Some(next)
    }

    /// The bytes of these fields, in the order in which adapters hash them.
    pub(crate) fn hashed(&self, fields: HashFields) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(36);
        let mut add = |wanted, field: Option<&[u8]>| {
            if fields.contains(wanted) {
                bytes.extend_from_slice(field.unwrap_or_default());
            }
        };
        add(HashFields::IPV4_SOURCE, self.ipv4.as_ref().map(|ip| &ip.source[..]));
        add(HashFields::IPV4_DESTINATION, self.ipv4.as_ref().map(|ip| &ip.destination[..]));
        add(HashFields::IPV6_SOURCE, self.ipv6.as_ref().map(|ip| &ip.source[..]));
        add(HashFields::IPV6_DESTINATION, self.ipv6.as_ref().map(|ip| &ip.destination[..]));
        add(HashFields::TCP_SOURCE, self.tcp.as_ref().map(|ports| &ports.source[..]));
        add(HashFields::TCP_DESTINATION, self.tcp.as_ref().map(|ports| &ports.destination[..]));
        add(HashFields::UDP_SOURCE, self.udp.as_ref().map(|ports| &ports.source[..]));
        add(HashFields::UDP_DESTINATION, self.udp.as_ref().map(|ports| &ports.destination[..]));
        bytes
    }

    /// Whether the frame goes to a group.
    pub fn is_multicast(&self) -> bool {
        self.ethernet.destination[0] & 1 != 0
    }
}

/// Whether the bits of `found` that the mask names are as in the value.
fn same<const N: usize>(found: [u8; N], value: [u8; N], mask: [u8; N]) -> bool {
    (0..N).all(|index| (found[index] ^ value[index]) & mask[index] == 0)
}

fn same_ports(found: PortPair, value: &PortPair, mask: &PortPair) -> bool {
    same(found.destination, value.destination, mask.destination)
        && same(found.source, value.source, mask.source)
}

impl FlowRule {
    /// Whether the rule's own conditions hold, apart from other rules.
    pub fn matches(&self, headers: &Headers) -> bool {
        let own = match self.kind {
            FlowKind::MulticastDefault => headers.is_multicast(),
            _ => true,
        };
        own && self.specs.iter().all(|spec| match spec {
            FlowSpec::Ethernet(value, mask) => {
                let found = headers.ethernet;
                same(found.destination, value.destination, mask.destination)
                    && same(found.source, value.source, mask.source)
                    && same(found.ether_type, value.ether_type, mask.ether_type)
                    && same(found.vlan, value.vlan, [mask.vlan[0] & 0x0f, mask.vlan[1]])
            }
            FlowSpec::Ipv4(value, mask) => headers.ipv4.is_some_and(|found| {
                same(found.source, value.source, mask.source)
                    && same(found.destination, value.destination, mask.destination)
                    && same(found.others, value.others, mask.others)
            }),
            FlowSpec::Ipv6(value, mask) => headers.ipv6.is_some_and(|found| {
                same(found.source, value.source, mask.source)
                    && same(found.destination, value.destination, mask.destination)
                    && same(found.flow_label, value.flow_label, mask.flow_label)
                    && same(found.others, value.others, mask.others)
            }),
            FlowSpec::Tcp(value, mask) => headers.tcp.is_some_and(|found| same_ports(found, value, mask)),
            FlowSpec::Udp(value, mask) => headers.udp.is_some_and(|found| same_ports(found, value, mask)),
            FlowSpec::Drop => true,
        })
    }

    /// Whether the frames of the rule are dropped.
    pub fn drops(&self) -> bool {
        self.specs.contains(&FlowSpec::Drop)
    }
}

/// The targets of the rules that get a frame. Sniffers do. Then come the normal rules that match: those of
/// the lowest number, and if all of these let it pass, those of the next one. If no normal rule has it, the
/// default rules do.
pub fn receivers<'a, T>(rules: &'a [(FlowRule, T)], headers: &Headers) -> Vec<&'a T> {
    let matching = |kind| rules.iter().filter(move |(rule, _)| rule.kind == kind && rule.matches(headers));
    let mut found: Vec<&(FlowRule, T)> = matching(FlowKind::Sniffer).collect();
    let mut normal: Vec<&(FlowRule, T)> = matching(FlowKind::Normal).collect();
    normal.sort_by_key(|(rule, _)| rule.priority);
    let mut taken = false;
    for group in normal.chunk_by(|(a, _), (b, _)| a.priority == b.priority) {
        found.extend(group);
        taken = group.iter().any(|(rule, _)| !rule.dont_trap);
        if taken {
            break;
        }
    }
    if !taken {
        found.extend(matching(FlowKind::MulticastDefault).chain(matching(FlowKind::AllDefault)));
    }
    found.into_iter().filter(|(rule, _)| !rule.drops()).map(|(_, to)| to).collect()
}

/// A rule in force. Dropping it ends it.
pub struct ActiveFlow {
    pair: Arc<QueuePair>,
    number: u64,
}

impl ActiveFlow {
    /// Puts a rule into force that steers to `pair` (ibv_create_flow(3)).
    ///
    /// # Errors
    /// EINVAL for a queue pair of a service that takes no frames; EOPNOTSUPP for rules that the device does
    /// not have.
    pub fn new(pair: &Arc<QueuePair>, rule: FlowRule) -> Result<Self> {
        match pair.queues().service {
            Service::RawPacket => {}
            // Datagrams find their queue pair by its number; no adapter steers anything else to one on
            // Ethernet.
            Service::Ud => {
                return Err(Error::unsupported("flows are steered to raw packet queue pairs alone"));
            }
            other => return Err(Error::invalid(format!("flows are not steered to {other} queue pairs"))),
        }
        let number = pair.endpoint().attach_flow(rule)?;
        pair.flows().enter();
        Ok(Self { pair: pair.clone(), number })
    }
}

impl Drop for ActiveFlow {
    fn drop(&mut self) {
        self.pair.endpoint().detach_flow(self.number);
        self.pair.flows().leave();
    }
}

/// Tries any bytes. They are a frame whose headers lie within it, or none. The fields for the hash have one
/// length for one kind of them.
#[cfg(any(test, fuzzing))]
pub(crate) fn try_frame(frame: &[u8]) {
    let Some(headers) = Headers::of(frame) else {
        return assert!(
            frame.len() < 14 || frame[12..].starts_with(&VLAN[0]) || frame[12..].starts_with(&VLAN[1])
        );
    };
    let within = |part: &[u8]| assert!(frame.windows(part.len()).any(|window| window == part));
    within(&headers.ethernet.destination);
    if let Some(ip) = headers.ipv4 {
        within(&ip.source);
        within(&ip.destination);
    }
    if let Some(ip) = headers.ipv6 {
        within(&ip.source);
        within(&ip.destination);
    }
    assert!(headers.ipv4.is_none() || headers.ipv6.is_none());
    assert!(headers.tcp.is_none() || headers.udp.is_none());
    assert!(headers.tcp.or(headers.udp).is_none() || headers.ipv4.is_some() || headers.ipv6.is_some());
    assert!(headers.hashed(HashFields::all()).len() <= 36);
    let everything = |specs| FlowRule { kind: FlowKind::Normal, priority: 0, dont_trap: false, specs };
    assert!(everything(vec![FlowSpec::Ethernet(headers.ethernet, headers.ethernet)]).matches(&headers));
    let _ = headers.is_multicast();
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u8; 2] = [0xff; 2];

    /// A UDP packet over IPv4 from port 7 to this one.
    fn frame(vlan: bool, port: u16) -> Vec<u8> {
        let mut frame = [[2; 6], [4; 6]].concat();
        if vlan {
            frame.extend([0x81, 0x00, 0x20, 0x05]);
        }
        frame.extend([0x08, 0x00, 0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0, 7]);
        frame.extend(port.to_be_bytes());
        frame
    }

    fn rule(kind: FlowKind, priority: u16, specs: &[FlowSpec]) -> FlowRule {
        FlowRule { kind, priority, dont_trap: false, specs: specs.to_vec() }
    }

    fn to_port(port: u16) -> FlowSpec {
        let value = PortPair { destination: port.to_be_bytes(), ..PortPair::default() };
        FlowSpec::Udp(value, PortPair { destination: ALL, ..PortPair::default() })
    }

    #[test]
    fn conditions_are_about_the_bits_of_their_masks() {
        for vlan in [false, true] {
            let headers = Headers::of(&frame(vlan, 9)).unwrap();
            let normal = |spec| rule(FlowKind::Normal, 0, &[spec]).matches(&headers);
            assert!(normal(to_port(9)) && !normal(to_port(8)));
            assert!(!normal(FlowSpec::Tcp(PortPair::default(), PortPair::default())));
            assert!(!normal(FlowSpec::Ipv6(Ipv6Fields::default(), Ipv6Fields::default())));
            let tag = EthernetFields { vlan: [0xf0, 5], ..EthernetFields::default() };
            let mask = EthernetFields { vlan: ALL, ..EthernetFields::default() };
            assert_eq!(normal(FlowSpec::Ethernet(EthernetFields { vlan: [0, 5], ..tag }, mask)), vlan);
            let near = Ipv4Fields { destination: [10, 0, 0, 99], ..Ipv4Fields::default() };
            let mask = Ipv4Fields { destination: [255, 255, 255, 0], ..Ipv4Fields::default() };
            assert!(normal(FlowSpec::Ipv4(near, mask)));
            let exact = Ipv4Fields { destination: [255; 4], ..mask };
            assert!(!normal(FlowSpec::Ipv4(near, exact)));
        }
    }

    #[test]
    fn of_rules_that_match_the_first_takes_the_frame() {
        let headers = Headers::of(&frame(false, 9)).unwrap();
        let to = |rules: &[(FlowRule, char)]| String::from_iter(receivers(rules, &headers));
        let mut rules = vec![
            (rule(FlowKind::AllDefault, 0, &[]), 'd'),
            (rule(FlowKind::Normal, 2, &[]), 'b'),
            (rule(FlowKind::Normal, 1, &[to_port(9)]), 'a'),
            (rule(FlowKind::MulticastDefault, 0, &[]), 'm'),
        ];
        assert_eq!(to(&rules), "a");
        rules[2].0.dont_trap = true;
        assert_eq!(to(&rules), "ab");
        rules.push((rule(FlowKind::Sniffer, 0, &[]), 's'));
        rules.push((rule(FlowKind::Normal, 0, &[FlowSpec::Drop]), 'x'));
        assert_eq!(to(&rules), "s");
        assert_eq!(to(&rules[..1]), "d");
        assert_eq!(to(&rules[3..4]), "");
    }

    #[test]
    fn a_cut_frame_has_only_the_headers_before_the_cut() {
        for vlan in [false, true] {
            let (whole, ethernet) = (frame(vlan, 9), if vlan { 18 } else { 14 });
            for length in 0..whole.len() {
                match Headers::of(&whole[..length]) {
                    None => assert!(length < ethernet),
                    Some(headers) => {
                        assert_eq!(headers.ipv4.is_some(), length >= ethernet + 20);
                        assert_eq!(headers.udp, None);
                    }
                }
            }
            let mut options = whole.clone();
            options[ethernet] = 0x4f;
            assert_eq!(Headers::of(&options).unwrap().udp, None);
        }
    }
}
