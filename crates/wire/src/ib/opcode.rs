//! Opcodes of the base transport header (volume 1, section 9.2.1 and table 38; annexes A14, A17 and A19).

/// The transport service that an opcode belongs to: its three upper bits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Service {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Unreliable datagram.
    Ud = 3,
    /// Congestion notification, which RoCEv2 adds (annex A17.9.3).
    Congestion = 4,
    /// Extended reliable connection (annex A14).
    Xrc = 5,
}

/// What a packet does, whatever its service: the five lower bits of an opcode.
// IB-PKT-12, IB-PKT-13, IB-PKT-14, IB-PKT-15, IB-PKT-16
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of the standard's table")]
pub enum Operation {
    SendFirst = 0x00,
    SendMiddle = 0x01,
    SendLast = 0x02,
    SendLastImmediate = 0x03,
    SendOnly = 0x04,
    SendOnlyImmediate = 0x05,
    WriteFirst = 0x06,
    WriteMiddle = 0x07,
    WriteLast = 0x08,
    WriteLastImmediate = 0x09,
    WriteOnly = 0x0a,
    WriteOnlyImmediate = 0x0b,
    ReadRequest = 0x0c,
    ReadResponseFirst = 0x0d,
    ReadResponseMiddle = 0x0e,
    ReadResponseLast = 0x0f,
    ReadResponseOnly = 0x10,
    Acknowledge = 0x11,
    AtomicAcknowledge = 0x12,
    CompareSwap = 0x13,
    FetchAdd = 0x14,
    SendLastInvalidate = 0x16,
    SendOnlyInvalidate = 0x17,
    Flush = 0x1c,
    AtomicWrite = 0x1d,
    /// Not five bits of an opcode: the one operation of [`Service::Congestion`], opcode 0x81.
    CongestionNotification = 0xff,
}

/// Where in its message a packet stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[expect(missing_docs, reason = "the names are those of the standard")]
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

impl Position {
    /// The packet begins a message.
    #[inline]
    pub const fn starts(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// The packet ends a message.
    #[inline]
    pub const fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }

    /// The position of a packet that starts and ends its message, or does not.
    #[inline]
    pub const fn new(starts: bool, ends: bool) -> Position {
        match (starts, ends) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        }
    }
}

impl Operation {
    const fn from_bits(bits: u8) -> Option<Operation> {
        Some(match bits {
            0x00 => Operation::SendFirst,
            0x01 => Operation::SendMiddle,
            0x02 => Operation::SendLast,
            0x03 => Operation::SendLastImmediate,
            0x04 => Operation::SendOnly,
            0x05 => Operation::SendOnlyImmediate,
            0x06 => Operation::WriteFirst,
            0x07 => Operation::WriteMiddle,
            0x08 => Operation::WriteLast,
            0x09 => Operation::WriteLastImmediate,
            0x0a => Operation::WriteOnly,
            0x0b => Operation::WriteOnlyImmediate,
            0x0c => Operation::ReadRequest,
            0x0d => Operation::ReadResponseFirst,
            0x0e => Operation::ReadResponseMiddle,
            0x0f => Operation::ReadResponseLast,
            0x10 => Operation::ReadResponseOnly,
            0x11 => Operation::Acknowledge,
            0x12 => Operation::AtomicAcknowledge,
            0x13 => Operation::CompareSwap,
            0x14 => Operation::FetchAdd,
            0x16 => Operation::SendLastInvalidate,
            0x17 => Operation::SendOnlyInvalidate,
            0x1c => Operation::Flush,
            0x1d => Operation::AtomicWrite,
            _ => return None,
        })
    }

    /// Where in its message the packet stands. What has no parts is an only packet.
    #[inline]
    pub const fn position(self) -> Position {
        match self {
            Operation::SendFirst | Operation::WriteFirst | Operation::ReadResponseFirst => Position::First,
            Operation::SendMiddle | Operation::WriteMiddle | Operation::ReadResponseMiddle => {
                Position::Middle
            }
            Operation::SendLast
            | Operation::SendLastImmediate
            | Operation::SendLastInvalidate
            | Operation::WriteLast
            | Operation::WriteLastImmediate
            | Operation::ReadResponseLast => Position::Last,
            _ => Position::Only,
        }
    }

    /// True for a packet of a Send.
    #[inline]
    pub const fn is_send(self) -> bool {
        matches!(
            self,
            Operation::SendFirst
                | Operation::SendMiddle
                | Operation::SendLast
                | Operation::SendLastImmediate
                | Operation::SendLastInvalidate
                | Operation::SendOnly
                | Operation::SendOnlyImmediate
                | Operation::SendOnlyInvalidate
        )
    }

    /// True for a packet of an RDMA Write.
    #[inline]
    pub const fn is_write(self) -> bool {
        matches!(
            self,
            Operation::WriteFirst
                | Operation::WriteMiddle
                | Operation::WriteLast
                | Operation::WriteLastImmediate
                | Operation::WriteOnly
                | Operation::WriteOnlyImmediate
        )
    }

    /// True for a packet of an RDMA Read response.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        matches!(
            self,
            Operation::ReadResponseFirst
                | Operation::ReadResponseMiddle
                | Operation::ReadResponseLast
                | Operation::ReadResponseOnly
        )
    }

    /// True for what a responder sends: it goes to the requester of the queue pair.
    #[inline]
    pub const fn is_response(self) -> bool {
        self.is_read_response() || matches!(self, Operation::Acknowledge | Operation::AtomicAcknowledge)
    }

    /// The extension headers that follow, services aside.
    const fn extensions(self) -> Extensions {
        Extensions(match self {
            Operation::SendLastImmediate | Operation::SendOnlyImmediate | Operation::WriteLastImmediate => {
                Extensions::IMMEDIATE.0
            }
            Operation::SendLastInvalidate | Operation::SendOnlyInvalidate => Extensions::INVALIDATE.0,
            Operation::WriteFirst
            | Operation::WriteOnly
            | Operation::ReadRequest
            | Operation::AtomicWrite => Extensions::RDMA.0,
            Operation::WriteOnlyImmediate => Extensions::RDMA.0 | Extensions::IMMEDIATE.0,
            Operation::ReadResponseFirst
            | Operation::ReadResponseLast
            | Operation::ReadResponseOnly
            | Operation::Acknowledge => Extensions::ACKNOWLEDGE.0,
            Operation::AtomicAcknowledge => Extensions::ACKNOWLEDGE.0 | Extensions::ATOMIC_ACKNOWLEDGE.0,
            Operation::CompareSwap | Operation::FetchAdd => Extensions::ATOMIC.0,
            Operation::Flush => Extensions::FLUSH.0 | Extensions::RDMA.0,
            Operation::SendFirst
            | Operation::SendMiddle
            | Operation::SendLast
            | Operation::SendOnly
            | Operation::WriteMiddle
            | Operation::WriteLast
            | Operation::ReadResponseMiddle
            | Operation::CongestionNotification => 0,
        })
    }

    /// The bytes of payload that a packet must have; `None` if the opcode does not tell.
    // IB-PKT-30, IB-PKT-41
    #[inline]
    pub const fn fixed_payload(self) -> Option<usize> {
        match self {
            Operation::ReadRequest
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::CompareSwap
            | Operation::FetchAdd
            | Operation::Flush => Some(0),
            Operation::AtomicWrite => Some(8),
            _ => None,
        }
    }
}

/// The first byte of a packet: a service and an operation that the service has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Opcode {
    service: Service,
    operation: Operation,
}

impl Opcode {
    /// The congestion notification packet (annex A17.9.3).
    // IB-PKT-19
    pub const CONGESTION_NOTIFICATION: Opcode =
        Opcode { service: Service::Congestion, operation: Operation::CongestionNotification };

    /// The opcode with this number, if there is one.
    #[inline]
    pub const fn from_u8(value: u8) -> Option<Opcode> {
        let service = match value >> 5 {
            0 => Service::Rc,
            1 => Service::Uc,
            3 => Service::Ud,
            4 if value == 0x81 => return Some(Opcode::CONGESTION_NOTIFICATION),
            5 => Service::Xrc,
            _ => return None,
        };
        match Operation::from_bits(value & 0x1f) {
            Some(operation) => Opcode::new(service, operation),
            None => None,
        }
    }

    /// The opcode of an operation, if the service has it.
    #[inline]
    pub const fn new(service: Service, operation: Operation) -> Option<Opcode> {
        // IB-PKT-15, IB-PKT-17, IB-PKT-18, IB-PKT-20
        let exists = match service {
            Service::Rc | Service::Xrc => !matches!(operation, Operation::CongestionNotification),
            Service::Uc => (operation as u8) <= Operation::WriteOnlyImmediate as u8,
            Service::Ud => matches!(operation, Operation::SendOnly | Operation::SendOnlyImmediate),
            Service::Congestion => matches!(operation, Operation::CongestionNotification),
        };
        if exists { Some(Opcode { service, operation }) } else { None }
    }

    /// The number on the wire.
    #[inline]
    pub const fn to_u8(self) -> u8 {
        match self.operation {
            Operation::CongestionNotification => 0x81,
            operation => (self.service as u8) << 5 | operation as u8,
        }
    }

    /// The transport service.
    #[inline]
    pub const fn service(self) -> Service {
        self.service
    }

    /// What the packet does.
    #[inline]
    pub const fn operation(self) -> Operation {
        self.operation
    }

    /// Where in its message the packet stands.
    #[inline]
    pub const fn position(self) -> Position {
        self.operation.position()
    }

    /// The extension headers behind the base transport header.
    #[inline]
    pub const fn extensions(self) -> Extensions {
        let own = self.operation.extensions();
        match self.service {
            Service::Ud => Extensions(own.0 | Extensions::DATAGRAM.0),
            Service::Xrc if !self.operation.is_response() => Extensions(own.0 | Extensions::XRC.0),
            _ => own,
        }
    }
}

/// A set of extension headers. On the wire they stand in the order of these constants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extensions(u16);

impl Extensions {
    /// XRCETH.
    pub const XRC: Extensions = Extensions(1 << 0);
    /// DETH.
    pub const DATAGRAM: Extensions = Extensions(1 << 1);
    /// FETH.
    pub const FLUSH: Extensions = Extensions(1 << 2);
    /// RETH.
    pub const RDMA: Extensions = Extensions(1 << 3);
    /// AtomicETH.
    pub const ATOMIC: Extensions = Extensions(1 << 4);
    /// AETH.
    pub const ACKNOWLEDGE: Extensions = Extensions(1 << 5);
    /// AtomicAckETH.
    pub const ATOMIC_ACKNOWLEDGE: Extensions = Extensions(1 << 6);
    /// ImmDt.
    pub const IMMEDIATE: Extensions = Extensions(1 << 7);
    /// IETH.
    pub const INVALIDATE: Extensions = Extensions(1 << 8);

    /// Bytes of each, in their order.
    const LENGTHS: [u8; 9] = [4, 8, 4, 16, 28, 4, 8, 4, 4];

    /// Bytes of all of them together.
    #[inline]
    pub const fn len(self) -> usize {
        let (mut rest, mut len) = (self.0, 0);
        while rest != 0 {
            len += Self::LENGTHS[rest.trailing_zeros() as usize % Self::LENGTHS.len()] as usize;
            rest &= rest - 1;
        }
        len
    }

    /// No extension header follows.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Where `one`, one of the constants, begins behind the base transport header; `None` if it is not in the
    /// set.
    #[inline]
    pub const fn offset_of(self, one: Extensions) -> Option<usize> {
        if self.0 & one.0 == 0 { None } else { Some(Extensions(self.0 & (one.0 - 1)).len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // IB-PKT-12, IB-PKT-13, IB-PKT-14, IB-PKT-15, IB-PKT-16, IB-PKT-17, IB-PKT-18, IB-PKT-19, IB-PKT-20
    #[test]
    fn opcodes_are_total_and_only_those_of_the_standard() {
        let mut known = Vec::new();
        for value in 0..=u8::MAX {
            if let Some(opcode) = Opcode::from_u8(value) {
                assert_eq!(opcode.to_u8(), value);
                assert_eq!(Opcode::new(opcode.service(), opcode.operation()), Some(opcode));
                known.push(value);
            }
        }
        let reliable = (0x00..=0x14).chain([0x16, 0x17, 0x1c, 0x1d]);
        let expected: Vec<u8> = (reliable.clone().chain(0x20..=0x2b).chain([0x64, 0x65, 0x81]))
            .chain(reliable.map(|bits| 0xa0 | bits))
            .collect();
        assert_eq!(known, expected);
    }

    // IB-PKT-21, IB-PKT-30
    #[test]
    fn extension_headers_are_those_of_the_table() {
        let len = |value| Opcode::from_u8(value).unwrap().extensions().len();
        for (value, expected) in [
            (0x00, 0),
            (0x03, 4),
            (0x06, 16),
            (0x07, 0),
            (0x09, 4),
            (0x0b, 20),
            (0x0c, 16),
            (0x0d, 4),
            (0x0e, 0),
            (0x11, 4),
            (0x12, 12),
            (0x13, 28),
            (0x17, 4),
            (0x1c, 20),
            (0x1d, 16),
            (0x2b, 20),
            (0x64, 8),
            (0x65, 12),
            (0x81, 0),
            (0xa4, 4),
            (0xb1, 4),
            (0xb3, 32),
        ] {
            assert_eq!(len(value), expected, "{value:#04x}");
        }
        let flush = Opcode::from_u8(0x1c).unwrap().extensions();
        assert_eq!(flush.offset_of(Extensions::FLUSH), Some(0));
        assert_eq!(flush.offset_of(Extensions::RDMA), Some(4));
        assert_eq!(flush.offset_of(Extensions::ATOMIC), None);
        assert!(!flush.is_empty());
    }

    #[test]
    fn positions_and_directions() {
        for value in 0..=u8::MAX {
            let Some(opcode) = Opcode::from_u8(value) else { continue };
            let operation = opcode.operation();
            let position = opcode.position();
            assert_eq!(Position::new(position.starts(), position.ends()), position);
            let kinds = [operation.is_send(), operation.is_write(), operation.is_response()];
            assert!(kinds.into_iter().filter(|&kind| kind).count() <= 1);
            assert!(!operation.is_read_response() || operation.is_response());
        }
    }
}
