//! What a peer that means harm, or errs, may try, and what becomes of it.

use crate::pair::link::{Link, PEER_TIMEOUT, Waiting};
use crate::pair::pattern;
use adverb::{RemoteMemory, Rights, Status, WorkRequest};
use serde::{Deserialize, Serialize};

/// An access that must be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Refusal {
    WriteWrongKey,
    ReadWrongKey,
    WritePastEnd,
    ReadPastEnd,
    WriteBefore,
    WriteUnpermitted,
    ReadUnpermitted,
    WriteWithdrawn,
}

impl Refusal {
    pub(super) const ALL: &[Refusal] = &[
        Self::WriteWrongKey,
        Self::ReadWrongKey,
        Self::WritePastEnd,
        Self::ReadPastEnd,
        Self::WriteBefore,
        Self::WriteUnpermitted,
        Self::ReadUnpermitted,
        Self::WriteWithdrawn,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::WriteWrongKey => "Write with a key that nobody gave",
            Self::ReadWrongKey => "Read with a key that nobody gave",
            Self::WritePastEnd => "Write one byte past the end",
            Self::ReadPastEnd => "Read one byte past the end",
            Self::WriteBefore => "Write one byte before the beginning",
            Self::WriteUnpermitted => "Write where only reading is allowed",
            Self::ReadUnpermitted => "Read where only writing is allowed",
            Self::WriteWithdrawn => "Write after the right was withdrawn",
        }
    }

    fn rights(self) -> Rights {
        match self {
            Self::WriteUnpermitted => Rights::READ,
            Self::ReadUnpermitted => Rights::WRITE,
            _ => Rights::READ | Rights::WRITE,
        }
    }

    fn is_read(self) -> bool {
        matches!(self, Self::ReadWrongKey | Self::ReadPastEnd | Self::ReadUnpermitted)
    }

    /// What the active side asks for, given what it was granted.
    fn target(self, granted: RemoteMemory) -> RemoteMemory {
        let moved =
            |by: u64| RemoteMemory::new(granted.address().wrapping_add(by), LENGTH as u64, granted.key());
        match self {
            Self::WriteWrongKey | Self::ReadWrongKey => {
                RemoteMemory::new(granted.address(), LENGTH as u64, granted.key() ^ 0x0040_0000)
            }
            Self::WritePastEnd | Self::ReadPastEnd => moved(granted.len() - LENGTH as u64 + 1),
            Self::WriteBefore => moved(u64::MAX),
            _ => moved(0),
        }
    }
}

/// Bytes that are asked for, and bytes of the region.
const LENGTH: usize = 64;
const REGION: usize = 4096;

/// Tries it. How the request ended is part of the answer.
pub(super) fn active(link: &Link, refusal: Refusal) -> Result<String, String> {
    let granted = link.hear(Waiting::Polling, |completion| {
        RemoteMemory::from_bytes(completion.message()).ok_or_else(|| "no token arrived".to_owned())
    })?;
    let target = refusal.target(granted);
    let mut buffer = link.domain().buffer(LENGTH).map_err(|error| error.to_string())?;
    buffer.fill(0xaa);
    link.post(match refusal.is_read() {
        true => WorkRequest::read(buffer, &target),
        false => WorkRequest::write(buffer, &target),
    })?;
    let completion = link.sends.wait(PEER_TIMEOUT).map_err(|error| error.to_string())?;
    if refusal.is_read() {
        if completion.status == Status::Success {
            return Err("the read was permitted".into());
        }
        let untouched =
            completion.buffer.as_ref().is_some_and(|buffer| buffer.iter().all(|byte| *byte == 0xaa));
        if !untouched {
            return Err("the read was refused, and yet bytes arrived".into());
        }
    }
    // A write over iWARP may be complete on this side before the other side has refused it.
    if !link.connection.wait_disconnected(PEER_TIMEOUT) {
        return Err("the connection goes on after a refused access".into());
    }
    Ok(completion.status.to_string())
}

/// Offers memory, and looks whether it is as before when the connection has ended.
pub(super) fn passive(link: &Link, refusal: Refusal) -> Result<String, String> {
    let make = || link.domain().memory_region(3 * REGION, refusal.rights());
    let region = make().map_err(|error| error.to_string())?;
    let expected = pattern::bytes(region.len(), 3);
    region.write(0, &expected);
    let token = region.remote();
    // Withdrawn: the memory is registered anew, so only the key has changed hands.
    let region = if refusal == Refusal::WriteWithdrawn {
        drop(region);
        let again = make().map_err(|error| error.to_string())?;
        again.write(0, &expected);
        again
    } else {
        region
    };
    link.tell(&token.to_bytes())?;
    if !link.connection.wait_disconnected(PEER_TIMEOUT) {
        return Err("the other side's access did not end the connection".into());
    }
    pattern::check("the offered memory", &region.to_vec(..), &expected)?;
    Ok(String::new())
}
