//! The invariant CRC (volume 1, section 7.8.1; annex A17.3.3).
//!
//! CRC-32 of Ethernet over eight bytes of ones, the IP and UDP headers and the transport packet, where every
//! field that a router may change counts as ones. It follows the packet, least significant byte first.
//!
//! The field that makes it hard for a program on a UDP socket is IPv4's identification: it is covered, the
//! sender's kernel chooses it, and the receiver's kernel does not tell it. For sending, the caller says what
//! the kernel will choose. For receiving, [`FlowCrc::identify`] uses that the CRC is linear: two packets that
//! differ in the identification alone have CRCs whose difference is the difference of the identifications
//! times a power of x that depends only on the length. Divided by that power, the difference is 16 bits long
//! if the rest of the packet is sound, and any 32-bit number if it is not. The flag "don't fragment" is one
//! more such unknown bit. So a packet over IPv4 is guarded by 15 bits, and by the UDP checksum where there is
//! one; over IPv6, which has no such fields, by all 32.

use core::net::{IpAddr, Ipv6Addr};

use super::header::{BTH_LEN, ICRC_LEN};

const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;
/// What stands in front of the IP header, in the place of a local route header.
// ROCE-12
const DUMMY: [u8; 8] = [0xff; 8];
const UDP: u8 = 17;
const DONT_FRAGMENT: u8 = 0x40;

/// The polynomial, without its leading term. As everywhere here, the coefficient of 1 is the most significant
/// bit.
const POLYNOMIAL: u32 = 0xedb8_8320;

/// A polynomial times x.
const fn times_x(a: u32) -> u32 {
    (a >> 1) ^ if a & 1 != 0 { POLYNOMIAL } else { 0 }
}

/// A polynomial divided by x.
const fn over_x(a: u32) -> u32 {
    if a >> 31 != 0 { ((a ^ POLYNOMIAL) << 1) | 1 } else { a << 1 }
}

/// The four highest coefficients of a polynomial, times x^4.
const CARRIES: [u32; 16] = {
    let mut table = [0; 16];
    let mut carry = 0;
    while carry < 16 {
        table[carry] = times_x(times_x(times_x(times_x(carry as u32))));
        carry += 1;
    }
    table
};

/// The product of two polynomials.
const fn product(mut a: u32, b: u32) -> u32 {
    // Four coefficients at a time, from the highest: `b` times each set of four.
    let mut multiples = [0; 16];
    multiples[8] = b;
    multiples[4] = times_x(b);
    multiples[2] = times_x(multiples[4]);
    multiples[1] = times_x(multiples[2]);
    let mut set = 3usize;
    while set < 16 {
        let one = set & set.wrapping_neg();
        if one != set {
            multiples[set] = multiples[one] ^ multiples[set - one];
        }
        set += 1;
    }
    let mut sum = 0u32;
    let mut step = 0;
    while step < 8 {
        sum = (sum >> 4) ^ CARRIES[(sum & 15) as usize] ^ multiples[(a & 15) as usize];
        a >>= 4;
        step += 1;
    }
    sum
}

/// What each value of a byte adds to the CRC when `behind` bytes follow it.
const fn contributions(behind: usize) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut a = byte as u32;
        let mut bits = 8 * (behind + 1);
        while bits > 0 {
            a = times_x(a);
            bits -= 1;
        }
        table[byte] = a;
        byte += 1;
    }
    table
}

/// Contributions of the last four bytes, the last one's first.
static LAST: [[u32; 256]; 4] = [contributions(0), contributions(1), contributions(2), contributions(3)];

/// Contributions of the two bytes of a field of the pseudo header.
struct Field([[u32; 256]; 2]);

impl Field {
    /// The field that has `behind` bytes behind it.
    const fn new(behind: usize) -> Field {
        Field([contributions(behind + 1), contributions(behind)])
    }

    fn contribution(&self, value: u16) -> u32 {
        let [high, low] = value.to_be_bytes();
        self.0[0][high as usize] ^ self.0[1][low as usize]
    }
}

// The fields of the pseudo header that change from packet to packet, by the bytes between them and the
// packet.
static UDP_LENGTH: Field = Field::new(2);
static IPV4_TOTAL_LENGTH: Field = Field::new(24);
static IPV4_IDENTIFICATION: Field = Field::new(22);
static IPV6_PAYLOAD_LENGTH: Field = Field::new(42);

/// Bytes behind the identification up to the packet, and the four that the CRC itself is shifted by.
const BEHIND_IDENTIFICATION: usize = 22 + 4;

/// x to the power of -8 * `step` * index.
const fn inverse_powers(step: usize) -> [u32; 256] {
    const ONE: u32 = 1 << 31;
    let mut factor = ONE;
    let mut bits = 8 * step;
    while bits > 0 {
        factor = over_x(factor);
        bits -= 1;
    }
    let mut table = [ONE; 256];
    let mut index = 1;
    while index < 256 {
        table[index] = product(table[index - 1], factor);
        index += 1;
    }
    table
}

static INVERSE_POWERS: [u32; 256] = inverse_powers(1);
static INVERSE_POWERS_256: [u32; 256] = inverse_powers(256);

/// What the flag "don't fragment" adds, seen from the identification in front of it: x to the power of -7.
const FLAG: u32 = {
    let mut a = 1 << 31;
    let mut bits = 0;
    while bits < 7 {
        a = over_x(a);
        bits += 1;
    }
    a
};

/// The addresses and ports of a UDP datagram. IPv4 addresses mapped to IPv6 are the same as IPv4 addresses.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Flow {
    /// The address that the datagram comes from.
    pub source: IpAddr,
    /// The address that the datagram goes to.
    pub destination: IpAddr,
    /// Port that it comes from.
    pub source_port: u16,
    /// Port that it goes to.
    pub destination_port: u16,
}

/// What a UDP receiver is not told about a datagram, as its CRC shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HiddenFields {
    /// Identification of the IPv4 header; 0 over IPv6.
    pub identification: u16,
    /// The flag "don't fragment"; true over IPv6.
    pub dont_fragment: bool,
}

/// The CRC over all that does not change in the IP and UDP headers of a flow. Worth keeping for each flow.
#[derive(Clone, Copy, Debug)]
pub struct FlowCrc {
    /// CRC over the headers with lengths and identification 0.
    headers: u32,
    ipv4: bool,
}

impl FlowCrc {
    /// The CRC of a flow.
    pub fn new(flow: &Flow) -> FlowCrc {
        let mut icrc = Icrc(!0);
        icrc.update(&DUMMY);
        let ipv4 = match (flow.source.to_canonical(), flow.destination.to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut header = [0; IPV4_LEN];
                header[0] = 0x45;
                // ROCE-13
                header[1] = 0xff; // type of service
                header[6] = DONT_FRAGMENT;
                header[8] = 0xff; // time to live
                header[9] = UDP;
                header[10..12].fill(0xff); // checksum
                header[12..16].copy_from_slice(&source.octets());
                header[16..20].copy_from_slice(&destination.octets());
                icrc.update(&header);
                true
            }
            (source, destination) => {
                // ROCE-14
                icrc.update(&[0x6f, 0xff, 0xff, 0xff]); // traffic class and flow label
                icrc.update(&[0, 0, UDP, 0xff]); // hop limit
                icrc.update(&to_ipv6(source).octets());
                icrc.update(&to_ipv6(destination).octets());
                false
            }
        };
        icrc.update(&flow.source_port.to_be_bytes());
        icrc.update(&flow.destination_port.to_be_bytes());
        // ROCE-15
        icrc.update(&[0, 0, 0xff, 0xff]); // checksum
        FlowCrc { headers: icrc.0, ipv4 }
    }

    /// Begins the CRC of a packet that fills a datagram of `udp_payload_len` bytes, the CRC's own four
    /// included. The IPv4 header has the given identification, and "don't fragment" set; IPv6 has no
    /// identification.
    #[inline]
    pub fn seed(&self, identification: u16, udp_payload_len: usize) -> Icrc {
        // ROCE-2
        let udp_len = (UDP_LEN + udp_payload_len) as u16;
        let mut crc = self.headers ^ UDP_LENGTH.contribution(udp_len);
        if self.ipv4 {
            crc ^= IPV4_TOTAL_LENGTH.contribution(udp_len.wrapping_add(IPV4_LEN as u16));
            if identification != 0 {
                crc ^= IPV4_IDENTIFICATION.contribution(identification);
            }
        } else {
            crc ^= IPV6_PAYLOAD_LENGTH.contribution(udp_len);
        }
        Icrc(crc)
    }

    /// Checks a whole UDP payload, from the base transport header to the CRC, and finds what the receiver was
    /// not told. `None` if no identification makes the CRC right. The time does not depend on the
    /// identification, but is least for 0 with "don't fragment".
    pub fn identify(&self, udp_payload: &[u8]) -> Option<HiddenFields> {
        self.identify_near(udp_payload, 0)
    }

    /// Checks a whole UDP payload, as [`FlowCrc::identify`] does, in the least time for the identification
    /// `guess` with "don't fragment".
    #[inline]
    pub fn identify_near(&self, udp_payload: &[u8], guess: u16) -> Option<HiddenFields> {
        let (packet, received) = udp_payload.split_last_chunk::<ICRC_LEN>()?;
        if packet.len() < BTH_LEN || udp_payload.len() + UDP_LEN + IPV4_LEN > u16::MAX as usize {
            return None;
        }
        let mut icrc = self.seed(guess, udp_payload.len());
        icrc.begin(packet);
        let difference = icrc.finish() ^ u32::from_le_bytes(*received);
        if difference == 0 {
            return Some(HiddenFields {
                identification: if self.ipv4 { guess } else { 0 },
                dont_fragment: true,
            });
        }
        if !self.ipv4 {
            return None;
        }
        let [.., high, low] = (BEHIND_IDENTIFICATION + packet.len()).to_be_bytes();
        let unwound =
            product(product(difference, INVERSE_POWERS_256[high as usize]), INVERSE_POWERS[low as usize]);
        // Now the coefficients of 1 to x^15 are the difference of the identification from the guess; all
        // others must be 0.
        let hidden = |unwound: u32, dont_fragment| {
            let identification = ((unwound >> 16) as u16).swap_bytes() ^ guess;
            (unwound as u16 == 0).then_some(HiddenFields { identification, dont_fragment })
        };
        // ROCE-18
        hidden(unwound, true).or_else(|| hidden(unwound ^ FLAG, false))
    }

    /// Checks a whole UDP payload, from the base transport header to the CRC, whatever the identification.
    #[inline]
    pub fn verify(&self, udp_payload: &[u8]) -> bool {
        self.identify(udp_payload).is_some()
    }
}

fn to_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Begins the CRC of a packet: [`FlowCrc::seed`] for a flow that is not kept.
pub fn seed(flow: &Flow, identification: u16, udp_payload_len: usize) -> Icrc {
    FlowCrc::new(flow).seed(identification, udp_payload_len)
}

/// Checks a packet: [`FlowCrc::verify`] for a flow that is not kept.
pub fn verify(flow: &Flow, udp_payload: &[u8]) -> bool {
    FlowCrc::new(flow).verify(udp_payload)
}

/// A CRC that is being computed. Begins with [`seed`] or [`FlowCrc::seed`].
#[derive(Clone, Copy, Debug)]
pub struct Icrc(u32);

impl Icrc {
    /// Goes over the beginning of a packet: its base transport header, and whatever follows that at once.
    ///
    /// # Panics
    /// If `bytes` is shorter than the base transport header.
    #[inline]
    pub fn begin(&mut self, bytes: &[u8]) {
        let (bth, rest) = bytes.split_first_chunk::<BTH_LEN>().expect("a base transport header");
        let mut masked = *bth;
        // ROCE-16, IB-PKT-6
        masked[4] = 0xff; // congestion notifications and reserved bits
        self.update(&masked);
        self.update(rest);
    }

    /// Goes over the next bytes of a packet, the padding included.
    // IB-PKT-42
    #[inline]
    pub fn update(&mut self, bytes: &[u8]) {
        // crc32fast is made for long input: it goes byte by byte over what does not fill its blocks.
        const BLOCK: usize = 64;
        let (bulk, rest) = bytes.split_at(bytes.len() - bytes.len() % BLOCK);
        if !bulk.is_empty() {
            let mut hasher = crc32fast::Hasher::new_with_initial(!self.0);
            hasher.update(bulk);
            self.0 = !hasher.finalize();
        }
        let (words, rest) = rest.as_chunks::<4>();
        for word in words {
            let [a, b, c, d] = (self.0 ^ u32::from_le_bytes(*word)).to_le_bytes();
            self.0 = LAST[3][a as usize] ^ LAST[2][b as usize] ^ LAST[1][c as usize] ^ LAST[0][d as usize];
        }
        for byte in rest {
            self.0 = (self.0 >> 8) ^ LAST[0][(self.0 as u8 ^ byte) as usize];
        }
    }

    /// The CRC, to be appended with the least significant byte first.
    // ROCE-17
    #[inline]
    pub fn finish(self) -> u32 {
        !self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::collection::vec;
    use proptest::prelude::*;

    const IPV4: Flow = Flow {
        source: IpAddr::V4(core::net::Ipv4Addr::new(10, 99, 0, 1)),
        destination: IpAddr::V4(core::net::Ipv4Addr::new(10, 99, 0, 2)),
        source_port: 0xd3f7,
        destination_port: 4791,
    };
    const IPV6: Flow = Flow {
        source: IpAddr::V6(Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, 1)),
        destination: IpAddr::V6(Ipv6Addr::new(0xfd00, 0x99, 0, 0, 0, 0, 0, 2)),
        source_port: 0xfff0,
        destination_port: 4791,
    };

    /// The CRC of whole headers and packet, bit by bit.
    // ROCE-12, ROCE-13, ROCE-14, ROCE-15, ROCE-16, ROCE-17
    fn reference(flow: &Flow, identification: u16, dont_fragment: bool, packet: &[u8]) -> u32 {
        let udp_len = (UDP_LEN + packet.len() + ICRC_LEN) as u16;
        let mut bytes = vec![0xff; 8];
        match (flow.source, flow.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                bytes.extend([0x45, 0xff]);
                bytes.extend((udp_len + 20).to_be_bytes());
                bytes.extend(identification.to_be_bytes());
                bytes.extend([if dont_fragment { 0x40 } else { 0 }, 0, 0xff, 17, 0xff, 0xff]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                bytes.extend([0x6f, 0xff, 0xff, 0xff]);
                bytes.extend(udp_len.to_be_bytes());
                bytes.extend([17, 0xff]);
                bytes.extend(source.octets());
                bytes.extend(destination.octets());
            }
            _ => unreachable!(),
        }
        bytes.extend(flow.source_port.to_be_bytes());
        bytes.extend(flow.destination_port.to_be_bytes());
        bytes.extend(udp_len.to_be_bytes());
        bytes.extend([0xff, 0xff]);
        let start = bytes.len();
        bytes.extend(packet);
        bytes[start + 4] = 0xff;
        let mut crc = !0;
        for byte in bytes {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = times_x(crc);
            }
        }
        !crc
    }

    /// A packet of pseudo-random bytes.
    fn packet(len: usize) -> Vec<u8> {
        (0..len as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 13) as u8).collect()
    }

    fn sealed(flow: &Flow, identification: u16, dont_fragment: bool, packet: &[u8]) -> Vec<u8> {
        let crc = reference(flow, identification, dont_fragment, packet);
        [packet, &crc.to_le_bytes()].concat()
    }

    #[test]
    fn a_packet_is_sealed() {
        for flow in [IPV4, IPV6] {
            for len in [12, 16, 20, 28, 75, 76, 140, 268, 1052, 4124, 60_000] {
                for identification in [0, 1, 0x1234, 0xffff] {
                    let packet = packet(len);
                    let mut icrc = seed(&flow, identification, len + ICRC_LEN);
                    icrc.begin(&packet[..12]);
                    icrc.update(&packet[12..]);
                    assert_eq!(icrc.finish(), reference(&flow, identification, true, &packet), "{len}");
                }
            }
        }
    }

    // ROCE-19
    #[test]
    fn mapped_addresses_are_ipv4() {
        let map = |address| IpAddr::V6(to_ipv6(address));
        let mapped = Flow { source: map(IPV4.source), destination: map(IPV4.destination), ..IPV4 };
        let sealed = sealed(&IPV4, 77, false, &packet(16));
        assert_eq!(
            FlowCrc::new(&mapped).identify(&sealed),
            Some(HiddenFields { identification: 77, dont_fragment: false })
        );
    }

    // ROCE-18, IB-PKT-43
    #[test]
    fn every_identification_is_found_and_no_flipped_bit_passes_for_one() {
        let flow = FlowCrc::new(&IPV4);
        let packet = packet(28);
        let zero = sealed(&IPV4, 0, true, &packet);
        for dont_fragment in [true, false] {
            for identification in 0..=u16::MAX {
                let crc = reference(&IPV4, 0, dont_fragment, &packet)
                    ^ product(identification_at(identification), factor(packet.len()));
                let mut sealed = zero.clone();
                sealed[28..].copy_from_slice(&crc.to_le_bytes());
                assert_eq!(flow.identify(&sealed), Some(HiddenFields { identification, dont_fragment }));
                for guess in [identification, identification ^ 0x8001, !0] {
                    let found = flow.identify_near(&sealed, guess);
                    assert_eq!(found, Some(HiddenFields { identification, dont_fragment }), "{guess}");
                }
                if identification % 16 == 0 {
                    sealed[28] ^= 1;
                    assert_eq!(flow.identify(&sealed), None);
                    assert_eq!(flow.identify_near(&sealed, identification), None);
                }
            }
        }
    }

    /// An identification as a polynomial.
    fn identification_at(identification: u16) -> u32 {
        u32::from(identification.swap_bytes()) << 16
    }

    /// What the identification of a packet is multiplied with in its CRC.
    fn factor(len: usize) -> u32 {
        (0..8 * (BEHIND_IDENTIFICATION + len)).fold(1 << 31, |a, _| times_x(a))
    }

    // IB-PKT-42, IB-PKT-43, ROCE-14
    #[test]
    fn ipv6_is_exact() {
        let flow = FlowCrc::new(&IPV6);
        let sealed = sealed(&IPV6, 0, true, &packet(28));
        assert!(flow.verify(&sealed));
        for bit in 0..8 * sealed.len() {
            let mut damaged = sealed.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The fifth byte does not count.
            assert_eq!(flow.verify(&damaged), bit / 8 == 4, "{bit}");
        }
    }

    // IB-PKT-38
    #[test]
    fn products() {
        let x = 1 << 30;
        let mut power = 1 << 31;
        for _ in 0..100 {
            assert_eq!(product(power, x), times_x(power));
            assert_eq!(product(x, power), times_x(power));
            assert_eq!(over_x(times_x(power)), power);
            power = times_x(power);
        }
        let (a, b, c) = (0x1234_5678, 0x9abc_def1, 0x0bad_cafe);
        assert_eq!(product(a, b ^ c), product(a, b) ^ product(a, c));
        assert_eq!(product(product(a, b), c), product(a, product(b, c)));
    }

    #[test]
    fn too_short_or_too_long_is_refused() {
        for len in 0..16 {
            assert!(!verify(&IPV4, &packet(len)) && !verify(&IPV6, &packet(len)));
        }
        assert!(!verify(&IPV4, &packet(70_000)) && !verify(&IPV6, &packet(70_000)));
    }

    /// Of all differences that damage can make, those of an identification alone pass: 2 * 65,536 of 2^32.
    #[test]
    fn damage_passes_seldom() {
        let flow = FlowCrc::new(&IPV4);
        let sealed = sealed(&IPV4, 4711, true, &packet(1052));
        let passed = (0..8 * sealed.len())
            .filter(|bit| bit / 8 != 4)
            .filter(|bit| {
                let mut damaged = sealed.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                flow.verify(&damaged)
            })
            .count();
        // About a quarter is to be expected of 8,440 bits at 2^-15.
        assert!(passed <= 2, "{passed}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn the_short_way_agrees_with_trying_all(
            packet in vec(any::<u8>(), 12..300), identification: u16, dont_fragment: bool,
            damage in proptest::option::of((0usize..300, 1u8..)),
        ) {
            let mut sealed = sealed(&IPV4, identification, dont_fragment, &packet);
            if let Some((at, bits)) = damage {
                let at = at % sealed.len();
                sealed[at] ^= bits;
            }
            let (body, crc) = sealed.split_last_chunk::<ICRC_LEN>().unwrap();
            let crc = u32::from_le_bytes(*crc);
            let factor = factor(body.len());
            let by_trying = [true, false].into_iter().find_map(|dont_fragment| {
                let zero = reference(&IPV4, 0, dont_fragment, body);
                (0..=u16::MAX).find_map(|identification| {
                    (zero ^ product(identification_at(identification), factor) == crc)
                        .then_some(HiddenFields { identification, dont_fragment })
                })
            });
            prop_assert_eq!(FlowCrc::new(&IPV4).identify(&sealed), by_trying);
            if damage.is_none() {
                prop_assert_eq!(by_trying, Some(HiddenFields { identification, dont_fragment }));
            }
        }

        #[test]
        fn pieces_make_no_difference(packet in vec(any::<u8>(), 12..1000), cut in 12usize..1000) {
            let cut = cut.min(packet.len());
            let mut whole = seed(&IPV4, 0, packet.len() + ICRC_LEN);
            let mut pieces = whole;
            whole.begin(&packet);
            pieces.begin(&packet[..cut]);
            pieces.update(&packet[cut..]);
            prop_assert_eq!(pieces.finish(), whole.finish());
        }
    }
}
