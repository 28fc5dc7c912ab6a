//! Messages and what a connection's ends have agreed on, in words for a log.

use std::fmt;

use super::mpa::{Parameters, RtrKind};
use super::{AtomicOperation, AtomicRequest, AtomicResponse, Outbound, ReadRequest, Segment};

impl fmt::Display for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Send { len, invalidate, solicited } => {
                write!(f, "Send of {len} bytes")?;
                send_options(f, *invalidate, *solicited)
            }
            Self::Write { stag, to, len } => write!(f, "Write of {len} bytes to {}", place(*stag, *to)),
            Self::ReadRequest(request) => request.fmt(f),
            Self::ReadResponse { sink_stag, sink_to, len } => {
                write!(f, "Read Response of {len} bytes to {}", place(*sink_stag, *sink_to))
            }
            Self::Terminate(terminate) => write!(f, "Terminate: {terminate}"),
            Self::Immediate { data, solicited } => {
                write!(f, "Immediate Data {:#x}", u64::from_be_bytes(*data))?;
                send_options(f, None, *solicited)
            }
            Self::AtomicRequest(request) => request.fmt(f),
            Self::AtomicResponse(response) => response.fmt(f),
        }
    }
}

impl fmt::Display for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = |last: &bool| if *last { ", the last" } else { "" };
        match self {
            Self::Write { stag, to, last } => write!(f, "Write to {}{}", place(*stag, *to), end(last)),
            Self::ReadResponse { stag, to, last } => {
                write!(f, "Read Response to {}{}", place(*stag, *to), end(last))
            }
            Self::Send { msn, mo, first: _, last, invalidate, solicited } => {
                write!(f, "Send {msn} from offset {mo}{}", end(last))?;
                send_options(f, *invalidate, *solicited)
            }
            Self::ReadRequest { msn, request } => write!(f, "{request}, number {msn}"),
            Self::Terminate(terminate) => write!(f, "Terminate: {terminate}"),
            Self::Immediate { msn, data, solicited } => {
                write!(f, "Immediate Data {:#x}, Send {msn}", u64::from_be_bytes(*data))?;
                send_options(f, None, *solicited)
            }
            Self::AtomicRequest { msn, request } => write!(f, "{request}, number {msn}"),
            Self::AtomicResponse { msn, response } => write!(f, "{response}, number {msn}"),
            Self::ReadyToReceive => f.write_str("ready to receive"),
        }
    }
}

impl fmt::Display for ReadRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, sink) = (place(self.source_stag, self.source_to), place(self.sink_stag, self.sink_to));
        write!(f, "Read Request for {} bytes from {source} to {sink}", self.len)
    }
}

impl fmt::Display for AtomicRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation {
            AtomicOperation::FetchAdd { add, .. } => write!(f, "fetch-and-add of {add:#x}")?,
            AtomicOperation::CompareSwap { compare, swap, .. } => {
                write!(f, "compare-and-swap of {compare:#x} with {swap:#x}")?;
            }
        }
        write!(f, " at {}", place(self.stag, self.to))
    }
}

impl fmt::Display for AtomicResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Atomic Response {:#x}", self.original)
    }
}

impl fmt::Display for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = if self.initiator { "initiator" } else { "responder" };
        write!(f, "{side}, MPA revision {}, CRC {}", self.revision, if self.crc { "on" } else { "off" })?;
        match (self.markers_tx, self.markers_rx) {
            (false, false) => {}
            (true, true) => f.write_str(", markers")?,
            (true, false) => f.write_str(", markers to the peer")?,
            (false, true) => f.write_str(", markers from the peer")?,
        }
        for (depth, direction) in [(self.ird, "in"), (self.ord, "out")] {
            if let Some(depth) = depth {
                write!(f, ", {depth} reads {direction}")?;
            }
        }
        if let Some(kind) = self.rtr {
            let name = match kind {
                RtrKind::Send => "Send",
                RtrKind::Write => "Write",
                RtrKind::Read => "Read",
            };
            write!(f, ", ready-to-receive by a {name}")?;
        }
        for (is, text) in [(self.large_fpdu, ", large FPDUs"), (self.extensions, ", RFC 7306")] {
            f.write_str(if is { text } else { "" })?;
        }
        Ok(())
    }
}

/// A place in a buffer that a tag names.
fn place(stag: u32, to: u64) -> String {
    format!("STag {stag:#x} at offset {to:#x}")
}

fn send_options(f: &mut fmt::Formatter<'_>, invalidate: Option<u32>, solicited: bool) -> fmt::Result {
    if let Some(stag) = invalidate {
        write!(f, ", invalidates STag {stag:#x}")?;
    }
    f.write_str(if solicited { ", solicited" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hexadecimal_and_words_are_words() {
        let request = ReadRequest { sink_stag: 1, sink_to: 16, len: 8, source_stag: 0xabcd, source_to: 4096 };
        assert_eq!(
            Segment::ReadRequest { msn: 3, request }.to_string(),
            "Read Request for 8 bytes from STag 0xabcd at offset 0x1000 to STag 0x1 at offset 0x10, number 3"
        );
        let send = Outbound::Send { len: 5, invalidate: Some(0x12), solicited: true };
        assert_eq!(send.to_string(), "Send of 5 bytes, invalidates STag 0x12, solicited");
        let parameters = Parameters {
            initiator: true,
            revision: 2,
            crc: false,
            markers_tx: false,
            markers_rx: true,
            ird: Some(4),
            ord: None,
            rtr: Some(RtrKind::Write),
            large_fpdu: true,
            extensions: false,
        };
        assert_eq!(
            parameters.to_string(),
            "initiator, MPA revision 2, CRC off, markers from the peer, 4 reads in, ready-to-receive by a Write, large FPDUs"
        );
    }
}
