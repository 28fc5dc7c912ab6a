//! What a requester is asked for, and how it is cut into packets.

use adverb_wire::ib::header::{AtomicEth, Feth, HeaderWriter, Reth};
use adverb_wire::ib::opcode::{Operation as Opcode, Position};
use adverb_wire::zerocopy::byteorder::big_endian::U32;

use super::{CompletionStatus, packets};

/// What a packet costs the receiver's socket buffer beyond its payload, in bytes, roughly.
pub const PACKET_COST: u32 = 768;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Operation {
    /// Send.
    Send {
        /// Immediate data; the most significant byte goes first.
        immediate: Option<u32>,
        /// A key of the responder to invalidate. Not together with immediate data.
        invalidate: Option<u32>,
    },
    /// RDMA Write.
    Write {
        /// Where in the responder's memory.
        address: u64,
        /// The key of that memory.
        rkey: u32,
        /// Immediate data; the most significant byte goes first.
        immediate: Option<u32>,
    },
    /// RDMA Read.
    Read {
        /// Where in the responder's memory.
        address: u64,
        /// The key of that memory.
        rkey: u32,
    },
    /// Compare and swap of eight bytes.
    CompareSwap {
        /// Where in the responder's memory.
        address: u64,
        /// The key of that memory.
        rkey: u32,
        /// What must be there.
        compare: u64,
        /// What is put there.
        swap: u64,
    },
    /// Fetch and add of eight bytes.
    FetchAdd {
        /// Where in the responder's memory.
        address: u64,
        /// The key of that memory.
        rkey: u32,
        /// What is added.
        add: u64,
    },
    /// Flush: makes earlier writes visible or durable.
    Flush {
        /// Where in the responder's memory.
        address: u64,
        /// The key of that memory.
        rkey: u32,
        /// The placement type, as in [`Feth`].
        placement: u8,
        /// The selectivity level, as in [`Feth`].
        selectivity: u8,
    },
    /// Write of eight bytes that nobody sees half done.
    AtomicWrite {
        /// Where in the responder's memory.
        address: u64,
        /// The key of that memory.
        rkey: u32,
        /// The bytes in the order of memory.
        value: [u8; 8],
    },
}

/// What answers a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// An acknowledgement, or anything that follows it.
    Acknowledgement,
    /// Read responses with as many bytes as the request wants.
    Data,
    /// An atomic acknowledgement.
    Original,
    /// A read response without payload.
    Empty,
}

impl Operation {
    #[inline]
    pub(super) fn answer(&self) -> Answer {
        match self {
            Operation::Send { .. } | Operation::Write { .. } => Answer::Acknowledgement,
            Operation::Read { .. } => Answer::Data,
            Operation::CompareSwap { .. } | Operation::FetchAdd { .. } => Answer::Original,
            Operation::Flush { .. } | Operation::AtomicWrite { .. } => Answer::Empty,
        }
    }

    /// True if it changes memory of the responder, or lets the program there do so, since that is told.
    #[inline]
    pub(super) fn changes_memory(&self) -> bool {
        !matches!(self, Operation::Read { .. } | Operation::Flush { .. })
    }

    /// True if the responder needs a receive for it.
    #[inline]
    pub(super) fn takes_receive(&self) -> bool {
        matches!(self, Operation::Send { .. } | Operation::Write { immediate: Some(_), .. })
    }
}

/// One request of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// A number by which the user knows the request. Requests of one queue pair have ascending ones.
    pub sequence: u64,
    /// The operation of the request.
    pub operation: Operation,
    /// Bytes to send or to read, up to [`super::MAX_MESSAGE`]. Of flushes, the length of the range; of
    /// atomics, unused.
    pub length: u32,
    /// The completion of the receive that the request takes is a solicited event.
    pub solicited: bool,
    /// Do not start before all earlier reads and atomics are answered.
    pub fence: bool,
    /// The responder's shared receive queue. Only of XRC.
    pub shared_queue: u32,
}

/// A packet of a requester: headers in the buffer, and what belongs behind them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Outbound {
    /// Bytes at the start of the buffer.
    pub header: usize,
    /// What to copy behind them.
    pub payload: Option<Source>,
    /// Bytes of zero behind the payload, 0 to 3. The invariant CRC follows.
    pub pad: usize,
    /// The request that the packet belongs to.
    pub sequence: u64,
    /// What the packet, or the response that it asks for, counts in the [`super::Window`]: payload and
    /// [`PACKET_COST`] for each packet. Of unreliable connections, no feedback ever takes it back.
    pub cost: u32,
    /// Something of it was sent before.
    pub repeated: bool,
    /// The request is complete once this packet is handed over to the network, and is the user's to complete:
    /// only of unreliable connections.
    pub finished: bool,
}

/// A part of a request's payload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Source {
    /// The request.
    pub sequence: u64,
    /// Where in its payload.
    pub offset: u32,
    /// The length in bytes.
    pub length: u32,
}

/// A request that has been given packet sequence numbers.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) request: Request,
    /// The first packet sequence number of the request.
    pub(super) first_psn: u32,
    /// How many it takes: packets of the request, or of the response to a read.
    pub(super) packets: u32,
    /// Send sequence number of its first message (more than one only for reads that are cut).
    pub(super) ssn: u32,
    /// Something of it was sent more than once.
    pub(super) repeated: bool,
    /// The request failed at this end and completes like this when all before it are complete.
    pub(super) fault: Option<CompletionStatus>,
}

impl Entry {
    /// Packets of a request under this MTU.
    // IB-RC-REQ-2, IB-RC-REQ-3
    pub(super) fn count(request: &Request, mtu: u32) -> u32 {
        match request.operation {
            Operation::Send { .. } | Operation::Write { .. } | Operation::Read { .. } => {
                packets(request.length, mtu)
            }
            _ => 1,
        }
    }

    /// Bytes of payload in its packets from `from` up to, not including, `to`.
    #[inline]
    pub(super) fn bytes(&self, from: u32, to: u32, mtu: u32) -> u32 {
        match self.request.operation {
            Operation::Send { .. } | Operation::Write { .. } | Operation::Read { .. } => {
                let end = to.saturating_mul(mtu).min(self.request.length);
                end.saturating_sub(from.saturating_mul(mtu))
            }
            _ => 0,
        }
    }

    /// What these packets count in the congestion window.
    #[inline]
    pub(super) fn cost(&self, from: u32, to: u32, mtu: u32) -> u32 {
        (to - from).saturating_mul(PACKET_COST).saturating_add(self.bytes(from, to, mtu))
    }

    /// The opcode of packet `number`.
    // IB-RC-REQ-8, IB-RC-REQ-10
    pub(super) fn opcode(&self, number: u32) -> Opcode {
        let position = Position::new(number == 0, number + 1 == self.packets);
        match self.request.operation {
            Operation::Send { immediate, invalidate } => match (position, immediate, invalidate) {
                (Position::First, ..) => Opcode::SendFirst,
                (Position::Middle, ..) => Opcode::SendMiddle,
                (Position::Last, Some(_), _) => Opcode::SendLastImmediate,
                (Position::Last, None, Some(_)) => Opcode::SendLastInvalidate,
                (Position::Last, None, None) => Opcode::SendLast,
                (Position::Only, Some(_), _) => Opcode::SendOnlyImmediate,
                (Position::Only, None, Some(_)) => Opcode::SendOnlyInvalidate,
                (Position::Only, None, None) => Opcode::SendOnly,
            },
            Operation::Write { immediate, .. } => match (position, immediate) {
                (Position::First, _) => Opcode::WriteFirst,
                (Position::Middle, _) => Opcode::WriteMiddle,
                (Position::Last, Some(_)) => Opcode::WriteLastImmediate,
                (Position::Last, None) => Opcode::WriteLast,
                (Position::Only, Some(_)) => Opcode::WriteOnlyImmediate,
                (Position::Only, None) => Opcode::WriteOnly,
            },
            Operation::Read { .. } => Opcode::ReadRequest,
            Operation::CompareSwap { .. } => Opcode::CompareSwap,
            Operation::FetchAdd { .. } => Opcode::FetchAdd,
            Operation::Flush { .. } => Opcode::Flush,
            Operation::AtomicWrite { .. } => Opcode::AtomicWrite,
        }
    }

    /// Writes the extension headers of packet `number`, and the bytes of an atomic write. A read asks for the
    /// rest of its packets up to, not including, `end`.
    pub(super) fn write_extensions(&self, number: u32, end: u32, mtu: u32, writer: &mut HeaderWriter<'_>) {
        let ends = number + 1 == self.packets;
        match self.request.operation {
            Operation::Send { immediate, invalidate } => {
                // IB-RC-REQ-10
                if let Some(word) = immediate.or(invalidate).filter(|_| ends) {
                    writer.put(&U32::new(word));
                }
            }
            Operation::Write { address, rkey, immediate } => {
                // IB-RC-REQ-11
                if number == 0 {
                    writer.put(&Reth::new(address, rkey, self.request.length));
                }
                if let Some(data) = immediate.filter(|_| ends) {
                    writer.put(&U32::new(data));
                }
            }
            Operation::Read { address, rkey } => {
                // IB-RC-REQ-6
                let address = address.wrapping_add(u64::from(number) * u64::from(mtu));
                writer.put(&Reth::new(address, rkey, self.bytes(number, end, mtu)));
            }
            Operation::CompareSwap { address, rkey, compare, swap } => {
                writer.put(&AtomicEth {
                    address: address.into(),
                    rkey: rkey.into(),
                    swap_or_add: swap.into(),
                    compare: compare.into(),
                });
            }
            Operation::FetchAdd { address, rkey, add } => {
                writer.put(&AtomicEth {
                    address: address.into(),
                    rkey: rkey.into(),
                    swap_or_add: add.into(),
                    compare: 0.into(),
                });
            }
            Operation::Flush { address, rkey, placement, selectivity } => {
                // IB-PKT-29
                writer.put(&Feth::new(placement, selectivity));
                writer.put(&Reth::new(address, rkey, self.request.length));
            }
            Operation::AtomicWrite { address, rkey, value } => {
                writer.put(&Reth::new(address, rkey, value.len() as u32)).put(&value);
            }
        }
    }
}
