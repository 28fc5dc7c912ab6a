//! Sending and receiving (send(2), recv(2)).

use super::{Phase, Stream, StreamLink, StreamState, not_connected};
use crate::vector::Vector;
use adverb_core::error::{Error, PostError, Result};
use adverb_core::request::{Data, Sge};
use adverb_proto::rsocket::Offer;

impl Stream {
    /// Sends bytes: how many of them. A socket that does not block, or with MSG_DONTWAIT, sends what the peer
    /// has room for.
    ///
    /// # Errors
    /// EAGAIN; ECONNRESET if nothing can be sent any more; ENOTCONN; EFAULT; EINTR.
    pub fn send(&self, data: &mut Vector<'_>, flags: i32) -> Result<usize> {
        self.begin(flags)?;
        let whole = data.left();
        let outcome = self.blocking(flags, |inner| {
            if !inner.send_mappings()? {
                return Ok(None);
            }
            let link = inner.link()?;
            // What is sent gives its place in the buffer back, which is in the cache then.
            if data.left() > 0 && (link.queue.has_completions() || !link.stream.can_send()) {
                inner.process();
            }
            let link = inner.link()?;
            while data.left() > 0 {
                // What lies in one part may be sent from there.
                let inline = data.contiguous(data.left().min(link.inline)).map_or(0, |_| link.inline);
                let Some(offer) = link.stream.offer(data.left(), inline) else { break };
                link.transfer(data, &offer)?;
            }
            if data.left() > 0 && !link.stream.writes() {
                return Err(Error::new(libc::ECONNRESET, "the connection takes no more data"));
            }
            Ok((data.left() == 0).then_some(()))
        });
        // What was sent, was sent, whatever came then.
        match (outcome, whole - data.left()) {
            (Err(error), 0) => Err(error),
            (_, sent) => Ok(sent),
        }
    }

    /// Receives bytes: how many. 0 when nothing more comes. MSG_PEEK leaves them there; MSG_WAITALL waits for
    /// all.
    ///
    /// # Errors
    /// EAGAIN; ENOTCONN; EFAULT; EINTR.
    pub fn receive(&self, data: &mut Vector<'_>, flags: i32) -> Result<usize> {
        self.begin(flags)?;
        let whole = data.left();
        let peek = flags & libc::MSG_PEEK != 0;
        let all = flags & libc::MSG_WAITALL != 0 && !peek;
        let outcome = self.blocking(flags, |inner| {
            if inner.link()?.stream.unread() == 0 {
                inner.process();
            }
            let link = inner.link()?;
            let length = data.left().min(link.stream.unread());
            if length > 0 {
                data.copy_from(&link.receive, link.stream.peek(0, length))?;
                data.advance(length);
                if !peek {
                    link.stream.consume(length);
                    inner.give_back();
                }
            }
            let link = inner.link()?;
            let enough = if all { data.left() == 0 } else { data.left() < whole || whole == 0 };
            Ok((enough || !link.stream.reads() && link.stream.unread() == 0).then_some(()))
        });
        match (outcome, whole - data.left()) {
            (Err(error), 0) => Err(error),
            (_, received) => Ok(received),
        }
    }

    /// A socket that is connecting waits for that first.
    pub(super) fn begin(&self, flags: i32) -> Result<()> {
        let phase = self.lock().phase;
        match phase {
            Phase::Connecting => self.await_connection(flags),
            Phase::Open | Phase::Disconnected | Phase::Failed => Ok(()),
            Phase::Idle | Phase::Listening | Phase::Refused => Err(not_connected()),
        }
    }
}

impl StreamState {
    pub(super) fn link(&mut self) -> Result<&mut StreamLink> {
        self.link.as_mut().ok_or_else(not_connected)
    }

    /// Tells the peer of room, after something was read.
    fn give_back(&mut self) {
        if let Some(link) = &mut self.link
            && link.grant().is_err()
        {
            // Why, the completions say.
            self.process();
        }
    }
}

impl StreamLink {
    /// Sends what was offered of `data`.
    pub(super) fn transfer(&mut self, data: &mut Vector<'_>, offer: &Offer) -> Result<()> {
        let posted = if offer.place.first.1 == 0 {
            let address = data.contiguous(offer.length).ok_or_else(not_connected)?;
            let part = [Sge { address: address as u64, length: offer.length as u32, lkey: 0 }];
            self.post(Data::InlineAt(&part), offer.to, offer.message, offer.id)
        } else {
            // SAFETY: nobody has a reference into these pages.
            unsafe { data.copy_to(&self.send, offer.place)? };
            let (pieces, count) = self.pieces(offer);
            self.post(Data::Registered(&pieces[..count]), offer.to, offer.message, offer.id)
        };
        match posted {
            Ok(()) => {
                self.stream.take(offer);
                data.advance(offer.length);
                Ok(())
            }
            Err(PostError::State) => Err(Error::new(libc::ECONNRESET, "the connection has ended")),
            Err(error) => Err(error.into()),
        }
    }
}
