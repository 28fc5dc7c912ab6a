//! Sending and receiving datagrams (sendto(2), recvfrom(2)).

use super::pair::{ArrivedDatagram, SLOT};
use super::{Datagram, DatagramState};
use crate::vector::Vector;
use crate::wait::blocking;
use adverb_core::cm::UDP_QKEY;
use adverb_core::error::{Error, Result};
use adverb_core::request::{self, Data, Opcode, SendFlags, SendRequest, Sge};
use adverb_proto::rsocket::{HelloKind, MAX_HELLO, Pieces};
use std::net::SocketAddr;

impl Datagram {
    fn is_nonblocking(&self, flags: i32) -> bool {
        self.flags.is_nonblocking() || flags & libc::MSG_DONTWAIT != 0
    }

    /// Sends one datagram, to `to` or the chosen peer: its bytes.
    ///
    /// # Errors
    /// EDESTADDRREQ without a peer; EMSGSIZE for more than a packet takes; EAGAIN; EFAULT; EINTR; without
    /// datagrams on the device, EOPNOTSUPP.
    pub fn send(&self, data: &mut Vector<'_>, flags: i32, to: Option<SocketAddr>) -> Result<usize> {
        let peer = match to {
            Some(peer) => peer,
            None => self.peer_address().map_err(|_| {
                Error::new(libc::EDESTADDRREQ, "the socket has no peer, and the call names none")
            })?,
        };
        blocking(self, self.is_nonblocking(flags), || {
            let mut inner = self.lock();
            self.start(&mut inner)?;
            if self.peer(&mut inner, peer)?.found.is_none() {
                // The background thread may not have had a processor since the peer's answer came. Until
                // somebody takes the answer, all datagrams go by UDP.
                self.take_introductions(&mut inner);
            }
            let known = self.peer(&mut inner, peer)?;
            let place = known.pair;
            if known.found.is_none() {
                return self.send_by_udp(&mut inner, data, peer).map(Some);
            }
            if !inner.can_send() {
                inner.process();
            }
            if !inner.can_send() {
                return Ok(None);
            }
            inner.send(data, place, peer).map(Some)
        })
    }

    fn send_by_udp(&self, inner: &mut DatagramState, data: &Vector<'_>, peer: SocketAddr) -> Result<usize> {
        let length = data.left();
        check(length, SLOT - MAX_HELLO)?;
        let mut bytes = vec![0; length];
        data.read(&mut bytes)?;
        self.introduce(inner, HelloKind::Data, peer, &bytes)?;
        Ok(length)
    }

    /// Receives one datagram: how many of its bytes, as many as there is room for, and who sent it. MSG_PEEK
    /// leaves it there.
    ///
    /// # Errors
    /// EINVAL before the socket has an address; EAGAIN; EFAULT; EINTR.
    pub fn receive(&self, data: &mut Vector<'_>, flags: i32) -> Result<(usize, SocketAddr)> {
        blocking(self, self.is_nonblocking(flags), || {
            let mut inner = self.lock();
            if !inner.is_started() {
                return Err(Error::invalid("the socket has no address yet"));
            }
            if inner.arrived.is_empty() {
                inner.process();
            }
            if inner.arrived.is_empty() {
                // Says so if nothing will come.
                self.start(&mut inner)?;
            }
            let Some(front) = inner.arrived.front() else { return Ok(None) };
            let taken = match front {
                ArrivedDatagram::Slot { pair, source, start, length, .. } => {
                    let count = data.left().min(*length);
                    let place = Pieces { first: (*start, count), second: (0, 0) };
                    data.copy_from(&inner.pairs[*pair].receive, place)?;
                    (count, *source)
                }
                ArrivedDatagram::Udp { source, data: bytes } => {
                    let count = data.left().min(bytes.len());
                    data.write(&bytes[..count])?;
                    (count, *source)
                }
            };
            if flags & libc::MSG_PEEK == 0
                && let Some(ArrivedDatagram::Slot { pair, slot, .. }) = inner.arrived.pop_front()
            {
                inner.pairs[pair].post_receives(pair, [slot].into_iter())?;
            }
            Ok(Some(taken))
        })
    }
}

/// EMSGSIZE for more bytes than there may be.
fn check(length: usize, most: usize) -> Result<()> {
    if length <= most {
        return Ok(());
    }
    Err(Error::new(libc::EMSGSIZE, format!("a datagram of {length} bytes: {most} fit into a packet here")))
}

impl DatagramState {
    /// Sends a datagram to the queue pair of a peer that is found.
    fn send(&mut self, data: &Vector<'_>, place: usize, peer: SocketAddr) -> Result<usize> {
        let (pair, length) = (&self.pairs[place], data.left());
        let (head, head_length) = &pair.head;
        check(length, pair.most - head_length)?;
        let found = self.peers.get(&peer).and_then(|peer| peer.found.as_ref());
        let (Some((path, number)), Some(queue)) = (found, &mut self.queue) else {
            return Err(Error::new(libc::ENOTCONN, "the peer's queue pair is not known"));
        };
        let Some(slot) = queue.free.pop() else {
            return Err(Error::new(libc::EAGAIN, "everything is being sent from"));
        };
        let start = usize::from(slot) * SLOT;
        // SAFETY: nobody has a reference into these pages.
        let copied = unsafe {
            pair.send.write(start, &head[..*head_length]);
            data.copy_to(&pair.send, Pieces { first: (start + head_length, length), second: (0, 0) })
        };
        let sges = [Sge {
            address: pair.send.start().as_ptr() as u64 + start as u64,
            length: (head_length + length) as u32,
            lkey: pair.send.key(),
        }];
        let request = SendRequest {
            wr_id: slot.into(),
            opcode: Opcode::Send,
            flags: SendFlags::SIGNALED,
            data: Data::Registered(&sges),
            datagram: Some(request::Datagram { path, queue_pair: *number, qkey: UDP_QKEY }),
            ..SendRequest::default()
        };
        let posted = copied.and_then(|()| pair.queue_pair.post_send(&request).map_err(Error::from));
        if let Err(error) = posted {
            queue.free.push(slot);
            return Err(error);
        }
        Ok(length)
    }
}
