//! Packets and management datagrams, in words for a log.

use core::fmt;

use super::cm::Message;
use super::header::Syndrome;
use super::mad::{FIRST_VENDOR_CLASS, GSI_QPN, LAST_VENDOR_CLASS, Mad, class};
use super::opcode::{Operation, Service};
use super::packet::Packet;

impl fmt::Display for Packet<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bth, opcode) = (self.bth(), self.opcode());
        match opcode.service() {
            Service::Uc => f.write_str("UC ")?,
            Service::Ud => f.write_str("UD ")?,
            Service::Xrc => f.write_str("XRC ")?,
            Service::Rc | Service::Congestion => {}
        }
        opcode.operation().fmt(f)?;
        if carries_data(opcode.operation()) {
            write!(f, " of {} bytes", self.payload().len())?;
        }
        if let Some(reth) = self.reth() {
            let (length, key, address) = (reth.length.get(), reth.rkey.get(), reth.address.get());
            write!(f, ", {length} bytes at {address:#x} of key {key:#x}")?;
        }
        if let Some(atomic) = self.atomic_eth() {
            let (key, address) = (atomic.rkey.get(), atomic.address.get());
            match opcode.operation() {
                Operation::CompareSwap => {
                    write!(f, " of {:#x} with {:#x}", atomic.compare.get(), atomic.swap_or_add.get())?;
                }
                _ => write!(f, " of {:#x}", atomic.swap_or_add.get())?,
            }
            write!(f, " at {address:#x} of key {key:#x}")?;
        }
        if let Some(immediate) = self.immediate() {
            write!(f, ", immediate data {immediate:#x}")?;
        }
        if let Some(key) = self.ieth() {
            write!(f, ", invalidates key {key:#x}")?;
        }
        match self.aeth().map(|aeth| (aeth.syndrome(), aeth.msn())) {
            None => {}
            Some((Syndrome::Ack { .. }, msn)) => write!(f, ", message {msn}")?,
            Some((Syndrome::ReceiverNotReady { .. }, msn)) => {
                write!(f, ", message {msn}: no receive is ready")?;
            }
            Some((Syndrome::Nak(code), msn)) => write!(f, ", message {msn}: refused, {code}")?,
            Some((Syndrome::Reserved(value), msn)) => write!(f, ", message {msn}: syndrome {value:#x}")?,
        }
        if let Some(original) = self.atomic_ack() {
            write!(f, ", the target held {original:#x}")?;
        }
        write!(f, ", to queue pair {:#x}", bth.destination())?;
        if let Some(deth) = self.deth() {
            write!(f, " from {:#x}", deth.source())?;
        }
        write!(f, ", PSN {}", bth.psn())?;
        f.write_str(if bth.solicited() { ", solicited" } else { "" })?;
        f.write_str(if bth.ack_request() { ", asks for an acknowledgement" } else { "" })?;
        if bth.destination() == GSI_QPN
            && let Some(mad) = self.payload().bytes().and_then(Mad::parse)
        {
            write!(f, ": {mad}")?;
        }
        Ok(())
    }
}

/// Whether the payload of an operation's packets is the program's.
fn carries_data(operation: Operation) -> bool {
    operation.is_send() || operation.is_write() || operation.is_read_response()
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SendFirst => "Send First",
            Self::SendMiddle => "Send Middle",
            Self::SendLast | Self::SendLastImmediate | Self::SendLastInvalidate => "Send Last",
            Self::SendOnly | Self::SendOnlyImmediate | Self::SendOnlyInvalidate => "Send Only",
            Self::WriteFirst => "Write First",
            Self::WriteMiddle => "Write Middle",
            Self::WriteLast | Self::WriteLastImmediate => "Write Last",
            Self::WriteOnly | Self::WriteOnlyImmediate => "Write Only",
            Self::ReadRequest => "Read Request",
            Self::ReadResponseFirst => "Read Response First",
            Self::ReadResponseMiddle => "Read Response Middle",
            Self::ReadResponseLast => "Read Response Last",
            Self::ReadResponseOnly => "Read Response Only",
            Self::Acknowledge => "Acknowledge",
            Self::AtomicAcknowledge => "Atomic Acknowledge",
            Self::CompareSwap => "compare-and-swap",
            Self::FetchAdd => "fetch-and-add",
            Self::Flush => "Flush",
            Self::AtomicWrite => "Atomic Write",
            Self::CongestionNotification => "congestion notification",
        })
    }
}

impl fmt::Display for Mad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = &self.header;
        match header.class {
            class::COMMUNICATION => match Message::parse(self) {
                Ok(message) => f.write_str(name(&message))?,
                Err(_) => write!(f, "connection management, attribute {:#x}", header.attribute_id.get())?,
            },
            FIRST_VENDOR_CLASS..=LAST_VENDOR_CLASS => {
                write!(f, "a vendor's datagram, attribute {:#x}", header.attribute_id.get())?;
            }
            class => write!(f, "management class {class:#x}, attribute {:#x}", header.attribute_id.get())?,
        }
        write!(f, ", transaction {:#x}", header.transaction_id.get())
    }
}

fn name(message: &Message) -> &'static str {
    match message {
        Message::Req(_) => "REQ (asks for a connection)",
        Message::Mra(_) => "MRA (the answer takes longer)",
        Message::Rej(_) => "REJ (there is no connection)",
        Message::Rep(_) => "REP (accepts the connection)",
        Message::Rtu(_) => "RTU (ready to use)",
        Message::Dreq(_) => "DREQ (asks to end the connection)",
        Message::Drep(_) => "DREP (the connection has ended)",
        Message::SidrReq(_) => "SIDR_REQ (asks for a queue pair for datagrams)",
        Message::SidrRep(_) => "SIDR_REP (the queue pair for datagrams)",
        Message::Lap(_) => "LAP (asks for another path)",
        Message::Apr(_) => "APR (answers that)",
    }
}

#[cfg(test)]
mod tests {
    use super::super::header::{Aeth, Bth, DEFAULT_PKEY, HeaderWriter, MAX_HEADER, NakCode, Reth};
    use super::super::opcode::Opcode;
    use super::super::packet::Payload;
    use super::*;

    fn shown(operation: Operation, put: impl FnOnce(&mut HeaderWriter<'_>), payload: &[u8]) -> String {
        let opcode = Opcode::new(Service::Rc, operation).unwrap();
        let mut space = [0; MAX_HEADER];
        let mut writer = HeaderWriter::new(&mut space);
        writer.put(&Bth::new(opcode, DEFAULT_PKEY, 0x12, 7).with_ack_request(!operation.is_response()));
        put(&mut writer);
        let length = writer.len();
        Packet::assemble(&space[..length], Payload::Here(payload)).unwrap().to_string()
    }

    #[test]
    fn keys_are_hexadecimal_and_words_are_words() {
        assert_eq!(
            shown(
                Operation::WriteOnly,
                |head| {
                    _ = head.put(&Reth::new(0x1000, 0xabcd, 3));
                },
                b"abc"
            ),
            "Write Only of 3 bytes, 3 bytes at 0x1000 of key 0xabcd, to queue pair 0x12, PSN 7, \
             asks for an acknowledgement"
        );
        let aeth = Aeth::new(Syndrome::Nak(NakCode::RemoteAccessError), 5);
        assert_eq!(
            shown(
                Operation::Acknowledge,
                |head| {
                    _ = head.put(&aeth);
                },
                b""
            ),
            "Acknowledge, message 5: refused, the memory may not be accessed like this, to queue pair 0x12, PSN 7"
        );
    }

    #[test]
    fn a_management_datagram_has_its_name() {
        let message = Message::from(super::super::cm::Rtu::default());
        assert_eq!(message.to_mad(9).to_string(), "RTU (ready to use), transaction 0x9");
    }
}
