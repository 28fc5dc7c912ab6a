//! In which order the datagrams of one receive are taken in: acknowledgements before the requests in front of
//! them.
//!
//! Adapters acknowledge a message when it arrives, so programs find their own request complete before they
//! find what the peer has done about it. Here the acknowledgement leaves with the reply, behind it in one
//! train, since a datagram of its own in front costs almost half of a way as much again. The thread that
//! receives the train puts the order right.

use crate::socket::Arrival;
use adverb_wire::ib::packet::{self, Role};
use arrayvec::ArrayVec;

/// Queue pairs with answers in one receive that are told from each other. With more, nothing else goes in
/// front.
const MOST: usize = 16;

/// Calls `take` for each of the datagrams of one receive, which `arrivals` goes through in the order of
/// arrival.
// PRACTICE-ORDER-1
#[inline]
pub(crate) fn take_in<'a, I: Iterator<Item = Arrival<'a>>>(
    arrivals: impl Fn() -> I,
    mut take: impl FnMut(&Arrival<'a>),
) {
    if !is_mixed(arrivals()) {
        return arrivals().for_each(|arrival| take(&arrival));
    }
    let mut front = Front::default();
    arrivals().filter(|arrival| front.has(arrival.bytes)).for_each(|arrival| take(&arrival));
    let mut front = Front::default();
    arrivals().filter(|arrival| !front.has(arrival.bytes)).for_each(|arrival| take(&arrival));
}

/// Whether there is an acknowledgement behind a request.
fn is_mixed<'a>(mut arrivals: impl Iterator<Item = Arrival<'a>>) -> bool {
    let is = |role| move |arrival: Arrival<'a>| packet::role(arrival.bytes) == role;
    arrivals.any(is(Role::Request)) && arrivals.any(is(Role::Acknowledgement))
}

/// Tells which datagrams of a receive go in front, when it is asked about each in order: acknowledgements,
/// unless there is another answer for the same queue pair before them. An acknowledgement that came before
/// the response to a read would say that the response is lost.
#[derive(Default)]
struct Front {
    /// Queue pairs with other answers so far.
    answered: ArrayVec<u32, MOST>,
}

impl Front {
    fn has(&mut self, bytes: &[u8]) -> bool {
        let number = packet::destination(bytes).unwrap_or(0);
        match packet::role(bytes) {
            Role::Request => false,
            Role::Acknowledgement => !self.answered.is_full() && !self.answered.contains(&number),
            Role::Response => {
                if !self.answered.contains(&number) {
                    let _ = self.answered.try_push(number);
                }
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::ib::header::MAX_HEADER;
    use adverb_wire::ib::header::{
        Aeth, AtomicAckEth, Bth, CREDITS_UNLIMITED, HeaderWriter, NakCode, Syndrome,
    };
    use adverb_wire::ib::opcode::{Opcode, Operation, Service};
    use std::net::{IpAddr, Ipv4Addr};

    const ACK: Syndrome = Syndrome::Ack { credits: CREDITS_UNLIMITED };

    /// A packet for a queue pair.
    fn packet(operation: Operation, syndrome: Option<Syndrome>, number: u32) -> Vec<u8> {
        let mut space = [0; MAX_HEADER];
        let mut head = HeaderWriter::new(&mut space);
        head.put(&Bth::new(Opcode::new(Service::Rc, operation).unwrap(), 0xffff, number, 0));
        if let Some(syndrome) = syndrome {
            head.put(&Aeth::new(syndrome, 0));
        }
        if operation == Operation::AtomicAcknowledge {
            head.put(&AtomicAckEth { original: 0.into() });
        }
        let length = head.len();
        [&space[..length], &[0; 4]].concat()
    }

    fn order(packets: &[Vec<u8>]) -> Vec<usize> {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let arrivals = || {
            packets.iter().map(|bytes| Arrival {
                source: address,
                source_port: 1,
                local: address,
                local_port: 2,
                interface: 0,
                class: 0,
                hops: 0,
                bytes,
            })
        };
        let mut taken = Vec::new();
        take_in(arrivals, |arrival| {
            taken.push(packets.iter().position(|bytes| bytes.as_ptr() == arrival.bytes.as_ptr()).unwrap());
        });
        taken
    }

    // PRACTICE-ORDER-1
    #[test]
    fn acknowledgements_are_taken_in_before_requests() {
        let send = |number| packet(Operation::SendOnly, None, number);
        let ack = |number| packet(Operation::Acknowledge, Some(ACK), number);
        assert_eq!(order(&[send(1), ack(1)]), [1, 0]);
        assert_eq!(order(&[ack(1), send(1)]), [0, 1]);
        assert_eq!(order(&[send(1), send(2), ack(1), send(1), ack(2)]), [2, 4, 0, 1, 3]);
        assert_eq!(
            order(&[vec![0x11], send(1), vec![], ack(3)]),
            [3, 0, 1, 2],
            "what is no packet stays behind"
        );
    }

    // IB-RC-REQ-24
    #[test]
    fn answers_other_than_acknowledgements_stay_in_order() {
        let send = || packet(Operation::SendOnly, None, 1);
        let ack = |number| packet(Operation::Acknowledge, Some(ACK), number);
        let not_ready = packet(Operation::Acknowledge, Some(Syndrome::ReceiverNotReady { timer: 1 }), 1);
        let nak = packet(Operation::Acknowledge, Some(Syndrome::Nak(NakCode::RemoteAccessError)), 1);
        let read = packet(Operation::ReadResponseOnly, Some(ACK), 1);
        let atomic = packet(Operation::AtomicAcknowledge, Some(ACK), 1);
        for answer in [not_ready, nak, read, atomic] {
            assert_eq!(order(&[send(), answer, ack(1), ack(2)]), [3, 0, 1, 2]);
        }
        let many: Vec<_> = (0..=MOST as u32)
            .map(|number| packet(Operation::ReadResponseOnly, Some(ACK), number))
            .chain([send(), ack(0), ack(99)])
            .collect();
        assert_eq!(order(&many), (0..many.len()).collect::<Vec<_>>());
    }
}
