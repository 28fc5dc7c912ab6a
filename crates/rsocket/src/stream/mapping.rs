//! Memory that the peer writes directly (riomap, riounmap and riowrite of rsocket(7)).

use super::{Phase, Stream, StreamState};
use crate::vector::Vector;
use adverb_core::cancel::CancellationGuard;
use adverb_core::error::{Error, Result};
use adverb_core::memory::Access;
use adverb_core::region::MemoryRegion;
use adverb_core::request::Data;
use adverb_proto::rsocket::{Mapping, Target};
use std::sync::Arc;

/// Memory of the program that is mapped.
pub(super) struct MappedRegion {
    region: Arc<MemoryRegion>,
    offset: u64,
    /// The memory's entry in the peer's table; none if only this side uses it.
    index: Option<u16>,
    /// Whether the peer is still to be told.
    untold: bool,
}

impl Stream {
    /// Maps `length` bytes at `address`: with PROT_WRITE for the peer, under `offset`, or for -1 under the
    /// address. The offset. The peer knows of it when it receives what is sent after this.
    ///
    /// # Errors
    /// EINVAL before the socket is connected, and for other protections; ENOMEM if the peer's table is full;
    /// as [`MemoryRegion::register`].
    ///
    /// # Safety
    /// The program gave the memory to be written by the peer until it is unmapped or the socket is closed.
    pub unsafe fn map(&self, address: usize, length: usize, protection: i32, offset: i64) -> Result<i64> {
        let _whole = CancellationGuard::new();
        let mut inner = self.lock();
        let StreamState { link, mapped, .. } = &mut *inner;
        let Some(link) = link.as_ref().filter(|_| protection & !libc::PROT_WRITE == 0) else {
            return Err(Error::invalid(
                "memory is mapped on a connected socket, for PROT_NONE or PROT_WRITE",
            ));
        };
        let remote = protection & libc::PROT_WRITE != 0;
        let index = (0..link.stream.peer_mappings())
            .find(|index| mapped.iter().all(|other| other.index != Some(*index)))
            .filter(|_| remote);
        if remote && index.is_none() {
            return Err(Error::exhausted("the peer has no room for more mappings (RDMA_IOMAPSIZE)"));
        }
        let access = if remote { Access::LOCAL_WRITE | Access::REMOTE_WRITE } else { Access::LOCAL_WRITE };
        let domain = link.queue_pair.domain();
        // SAFETY: the caller's promise.
        let region =
            unsafe { MemoryRegion::register(domain, address, length as u64, address as u64, access)? };
        let offset = if offset == -1 { address as i64 } else { offset };
        mapped.push(MappedRegion { region, offset: offset as u64, index, untold: remote });
        Ok(offset)
    }

    /// Takes a mapping back. EINVAL if there is none of these bytes.
    pub fn unmap(&self, address: usize, length: usize) -> Result<()> {
        let _whole = CancellationGuard::new();
        let mut inner = self.lock();
        let fits = |mapped: &MappedRegion| {
            mapped.region.address() == address && mapped.region.length() == length as u64
        };
        let Some(place) = inner.mapped.iter().position(fits) else {
            return Err(Error::invalid("no mapping has these bytes"));
        };
        inner.mapped.remove(place).region.deregister();
        Ok(())
    }

    /// Writes to what the peer has mapped under `offset` and what follows: how many bytes. Fewer if the
    /// mappings end.
    ///
    /// # Errors
    /// As [`Stream::send`].
    pub fn write_mapped(&self, data: &mut Vector<'_>, offset: i64, flags: i32) -> Result<usize> {
        self.begin(flags)?;
        let whole = data.left();
        let outcome = self.blocking(flags, |inner| {
            if !inner.send_mappings()? {
                return Ok(None);
            }
            let mut waited = false;
            while data.left() > 0 {
                let link = inner.link()?;
                let at = (offset as u64).wrapping_add((whole - data.left()) as u64);
                let Some(target) = link.mappings().find_map(|mapping| mapping.at(at)) else {
                    return Ok(Some(()));
                };
                if let Some(offer) = link.stream.offer_direct(data.left(), 0, target) {
                    link.transfer(data, &offer)?;
                } else if !link.stream.writes() {
                    return Err(Error::new(libc::ECONNRESET, "the connection takes no more data"));
                } else if waited {
                    return Ok(None);
                } else {
                    waited = true;
                    inner.process();
                }
            }
            Ok(Some(()))
        });
        match (outcome, whole - data.left()) {
            (Err(error), 0) => Err(error),
            (_, written) => Ok(written),
        }
    }
}

impl StreamState {
    /// Tells the peer of new mappings. Whether it knows of all.
    pub(super) fn send_mappings(&mut self) -> Result<bool> {
        if self.mapped.iter().all(|mapped| !mapped.untold) {
            return Ok(true);
        }
        self.process();
        let Self { link: Some(link), mapped, phase, .. } = self else { return Ok(true) };
        for new in mapped.iter_mut().filter(|mapped| mapped.untold) {
            let Some(index) = new.index else { continue };
            let target = Target {
                address: new.region.address() as u64,
                key: new.region.key(),
                length: new.region.length().min(u32::MAX.into()) as u32,
            };
            let mapping = Mapping { offset: new.offset, target };
            let Some((bytes, offer)) = link.stream.map(index, &mapping) else {
                if *phase != Phase::Open {
                    return Err(Error::new(libc::ECONNRESET, "the connection takes no more data"));
                }
                return Ok(false);
            };
            link.post(Data::Inline(&[&bytes]), offer.to, offer.message, offer.id)?;
            new.untold = false;
        }
        Ok(true)
    }

    /// Takes all mappings back.
    pub(super) fn close_mappings(&mut self) {
        for mapped in self.mapped.drain(..) {
            mapped.region.deregister();
        }
    }
}
