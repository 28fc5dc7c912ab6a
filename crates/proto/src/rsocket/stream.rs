//! One side of a stream: what may be sent now, where it goes, what has come, what is to be given back.
//!
//! The bytes themselves are the user's: a ring of [`Settings::send_buffer`] bytes that data is sent from, one
//! of [`Settings::receive_buffer`] bytes that the peer writes into, and a table that it writes targets and
//! mappings into. Everything that is posted carries an `id`, which [`Stream::completed`] gets back.

use std::collections::VecDeque;

use super::connect::Connect;
use super::message::{Mapping, Message, Order, TARGET_LENGTH, Target};
use super::ring::{Pieces, Ring};

/// Requests of the send queue that are kept for credits and for the end of the connection.
pub const CONTROL_REQUESTS: u32 = 4;

/// Targets that the peer has room for in our memory.
pub const TARGETS: usize = 2;

/// The most bytes of one write.
pub const MAX_TRANSFER: usize = 65_536;

/// There is no sending, except of a few bytes, while the send buffer has less room.
pub const LOW_WATER: usize = 2048;

/// Sizes of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Requests that the send queue takes; at least 16.
    pub send_requests: u32,
    /// Messages that the peer may have under way; at least 16.
    pub receive_requests: u16,
    /// Bytes to send from; at least twice [`LOW_WATER`].
    pub send_buffer: usize,
    /// Bytes to receive into; even, at least 2.
    pub receive_buffer: usize,
    /// Entries of the table of mappings.
    pub mappings: u16,
    /// Whether messages are sends of their own instead of immediate data.
    pub separate: bool,
}

/// Where to write at the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteTo {
    /// The first byte.
    pub address: u64,
    /// The key.
    pub key: u32,
}

/// Data that can be sent now. Nothing is changed until [`Stream::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The length of the data, in bytes.
    pub length: usize,
    /// Where the data go first, in the send buffer; nowhere if they are few enough to be sent inline.
    pub place: Pieces,
    /// Where the data are written.
    pub to: WriteTo,
    /// What the peer is told; nothing, if it is not to know.
    pub message: Option<Message>,
    /// Comes back when they are sent.
    pub id: u64,
}

/// Room and credits for the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// A target to write into the peer's table.
    pub target: Option<([u8; TARGET_LENGTH], WriteTo)>,
    /// What the peer is told.
    pub message: Message,
    /// Comes back when it is sent.
    pub id: u64,
}

/// Which direction ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownSide {
    /// Nothing is read any more.
    Read,
    /// Nothing is sent any more.
    Write,
    /// Both.
    Both,
}

/// What a completion of a send was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOutcome {
    /// Something of the stream.
    Sent,
    /// The last word: the connection has ended in order.
    Disconnected,
}

/// What a peer must not do. The connection is of no use then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A message that says nothing that is defined.
    #[error("message {0:#010x} is not known")]
    Unknown(u32),
    /// More bytes than fit.
    #[error("{0} bytes where {1} may come")]
    TooMuchData(usize, usize),
    /// More messages than credits.
    #[error("more messages than were allowed")]
    TooManyMessages,
}

/// One side of a stream.
#[derive(Clone, Debug)]
pub struct Stream {
    settings: Settings,
    order: Order,

    /// Free requests for data.
    requests: u32,
    /// Free requests of [`CONTROL_REQUESTS`].
    control: u32,
    ring: Ring,
    /// Messages sent, and the number that may not be reached.
    sent: u16,
    limit: u16,
    target: Target,
    following: Option<Target>,
    /// Bytes of every target of this peer.
    target_length: u32,
    /// Where the peer writes the next one.
    slot: usize,
    /// The peer's table, and the place of the next target in it.
    table: Target,
    peer_slot: u32,
    peer_mappings: u16,

    /// Our receive buffer.
    own: WriteTo,
    /// Bytes of each message that is not taken wholly.
    arrived: VecDeque<u32>,
    start: usize,
    unread: usize,
    /// Bytes that the peer may still write.
    lent: usize,
    taken: u16,
    /// When so many are taken, the peer is told.
    tell_at: u16,
    freed: usize,
    free_from: usize,

    reads: bool,
    writes: bool,
    open: bool,
}

impl Stream {
    /// A side before it has met its peer.
    pub fn new(settings: Settings) -> Self {
        let half = settings.receive_buffer / 2;
        Self {
            order: Order::NATIVE,
            requests: settings.send_requests.saturating_sub(CONTROL_REQUESTS),
            control: CONTROL_REQUESTS,
            ring: Ring::new(settings.send_buffer),
            sent: 0,
            limit: 0,
            target: Target::default(),
            following: None,
            target_length: 0,
            slot: 1,
            table: Target::default(),
            peer_slot: 1,
            peer_mappings: 0,
            own: WriteTo { address: 0, key: 0 },
            arrived: VecDeque::new(),
            start: 0,
            unread: 0,
            lent: half,
            taken: 0,
            tell_at: settings.receive_requests / 2,
            freed: half,
            free_from: half,
            reads: false,
            writes: false,
            open: false,
            settings,
        }
    }

    /// The introduction of this side, with the place of its table ([`TARGETS`] targets, then the mappings)
    /// and of its receive buffer.
    pub fn introduce(&mut self, table: WriteTo, data: WriteTo) -> Connect {
        self.own = data;
        let target = |to: WriteTo, length: u32| Target { address: to.address, key: to.key, length };
        Connect {
            big_endian: Order::NATIVE == Order::Big,
            credits: self.settings.receive_requests,
            mappings: self.settings.mappings,
            targets: target(table, TARGETS as u32),
            data: target(data, (self.settings.receive_buffer / 2) as u32),
        }
    }

    /// The peer's introduction has come: both directions are open.
    pub fn meet(&mut self, peer: &Connect) {
        self.order = if peer.big_endian { Order::Big } else { Order::Little };
        self.limit = peer.credits;
        self.target = peer.data;
        self.target_length = peer.data.length;
        self.table = peer.targets;
        self.peer_slot = 1 % peer.targets.length.max(1);
        self.peer_mappings = peer.mappings;
        (self.reads, self.writes, self.open) = (true, true, true);
    }

    /// Whether the connection stands.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether more data may come.
    pub fn reads(&self) -> bool {
        self.reads
    }

    /// Whether data may be sent.
    pub fn writes(&self) -> bool {
        self.writes
    }

    /// The connection is no more.
    pub fn close(&mut self) {
        (self.reads, self.writes, self.open) = (false, false, false);
    }

    // ---- sending ----

    /// Requests of the send queue for something with a message.
    fn cost(&self) -> u32 {
        1 + u32::from(self.settings.separate)
    }

    fn may_send(&self) -> bool {
        self.writes && self.requests >= self.cost() && self.sent != self.limit
    }

    /// Whether a program that waits to send should try.
    pub fn can_send(&self) -> bool {
        self.may_send() && self.ring.free() >= LOW_WATER && self.target.length > 0
    }

    /// How to send some of `wanted` bytes; `inline` and fewer need no place.
    pub fn offer(&self, wanted: usize, inline: usize) -> Option<Offer> {
        if !self.can_send() {
            return None;
        }
        let (length, place) = self.choose(wanted, inline, self.target.length);
        let to = WriteTo { address: self.target.address, key: self.target.key };
        let message = Some(Message::Data(length as u32));
        Some(Offer { length, place, to, message, id: self.id(place, self.cost()) })
    }

    /// How to send some of `wanted` bytes to the peer's memory that a mapping names; `inline` and fewer need
    /// no place. The peer is told nothing.
    pub fn offer_direct(&self, wanted: usize, inline: usize, target: Target) -> Option<Offer> {
        if !self.writes || self.requests == 0 || self.ring.free() < LOW_WATER {
            return None;
        }
        let (length, place) = self.choose(wanted, inline, target.length);
        let to = WriteTo { address: target.address, key: target.key };
        Some(Offer { length, place, to, message: None, id: self.id(place, 1) })
    }

    fn choose(&self, wanted: usize, inline: usize, room: u32) -> (usize, Pieces) {
        let length = wanted.min(room as usize).min(MAX_TRANSFER);
        if length <= inline {
            return (length, Pieces::default());
        }
        let length = length.min(self.ring.free());
        (length, self.ring.peek(length))
    }

    fn id(&self, place: Pieces, requests: u32) -> u64 {
        (place.first.1 + place.second.1) as u64 | u64::from(requests) << 32
    }

    /// What was offered is being sent.
    pub fn take(&mut self, offer: &Offer) {
        self.ring.take(offer.place.first.1 + offer.place.second.1);
        if offer.message.is_none() {
            self.requests -= 1;
            return;
        }
        self.requests -= self.cost();
        self.sent = self.sent.wrapping_add(1);
        self.target.address = self.target.address.wrapping_add(offer.length as u64);
        self.target.length -= offer.length as u32;
        self.next_target();
    }

    fn next_target(&mut self) {
        if self.target.length == 0
            && let Some(following) = self.following.take()
        {
            self.target = following;
        }
    }

    /// The place in our table where the peer writes its next target, if there is need of one.
    pub fn expected_target(&self) -> Option<usize> {
        self.following.is_none().then_some(self.slot)
    }

    /// What stands in that place now, to be looked at after [`Message::Credits`]. Returns whether it is a new
    /// target: then the place must be cleared, and the next one looked at.
    pub fn target_seen(&mut self, target: Target) -> bool {
        // All targets of a peer are of one size. Another number is nothing that has come wholly.
        if target.length == 0 || target.length != self.target_length || self.following.is_some() {
            return false;
        }
        self.slot = (self.slot + 1) % TARGETS;
        self.following = Some(target);
        self.next_target();
        true
    }

    /// Entries of the peer's table of mappings.
    pub fn peer_mappings(&self) -> u16 {
        self.peer_mappings
    }

    /// Tells the peer of memory that it may write: the entry to be written, inline, and where.
    pub fn map(&mut self, index: u16, mapping: &Mapping) -> Option<([u8; Mapping::LENGTH], Offer)> {
        if !self.may_send() || index >= self.peer_mappings {
            return None;
        }
        let before = u64::from(self.table.length) * TARGET_LENGTH as u64;
        let address = self.table.address.wrapping_add(before + u64::from(index) * Mapping::LENGTH as u64);
        let offer = Offer {
            length: Mapping::LENGTH,
            place: Pieces::default(),
            to: WriteTo { address, key: self.table.key },
            message: Some(Message::Mapping(index)),
            id: self.id(Pieces::default(), self.cost()),
        };
        self.requests -= self.cost();
        self.sent = self.sent.wrapping_add(1);
        Some((mapping.bytes(self.order), offer))
    }

    const CONTROL: u64 = 1 << 40;
    const LAST: u64 = 1 << 41;

    /// A request is complete.
    pub fn completed(&mut self, id: u64) -> SendOutcome {
        let requests = (id >> 32 & 0xff) as u32;
        if id & Self::CONTROL != 0 {
            self.control = (self.control + requests).min(CONTROL_REQUESTS);
            return if id & Self::LAST != 0 { SendOutcome::Disconnected } else { SendOutcome::Sent };
        }
        let all = self.settings.send_requests.saturating_sub(CONTROL_REQUESTS);
        self.requests = (self.requests + requests).min(all);
        self.ring.give_back(id as u32 as usize);
        SendOutcome::Sent
    }

    /// Whether everything that was posted is complete.
    pub fn all_sent(&self) -> bool {
        let all = self.settings.send_requests.saturating_sub(CONTROL_REQUESTS);
        self.requests == all && self.control == CONTROL_REQUESTS && self.ring.is_empty()
    }

    // ---- receiving ----

    /// A message has come.
    pub fn message(&mut self, word: u32) -> Result<Message, Violation> {
        let message = Message::from_word(word).ok_or(Violation::Unknown(word))?;
        match message {
            Message::Data(length) => self.data(length)?,
            Message::Credits(limit) => self.limit = limit,
            // It took a credit, too.
            Message::Mapping(_) => self.taken = self.taken.wrapping_add(1),
            Message::Disconnect => self.close(),
            Message::Shutdown if self.writes => self.reads = false,
            Message::Shutdown => self.close(),
            Message::Keepalive => {}
        }
        Ok(message)
    }

    fn data(&mut self, length: u32) -> Result<(), Violation> {
        let bytes = length as usize;
        if bytes > self.lent {
            return Err(Violation::TooMuchData(bytes, self.lent));
        }
        if self.arrived.len() >= self.settings.receive_requests.into() {
            return Err(Violation::TooManyMessages);
        }
        self.lent -= bytes;
        self.unread += bytes;
        self.arrived.push_back(length);
        self.consume(0);
        Ok(())
    }

    /// Bytes that wait to be read.
    pub fn unread(&self) -> usize {
        self.unread
    }

    /// Where the next `length` of them are, from `skip` on, in the receive buffer.
    pub fn peek(&self, skip: usize, length: usize) -> Pieces {
        let skip = skip.min(self.unread);
        let size = self.settings.receive_buffer;
        Pieces::new(size, (self.start + skip) % size, length.min(self.unread - skip))
    }

    /// Takes note that the program has read so many bytes.
    pub fn consume(&mut self, length: usize) {
        let length = length.min(self.unread);
        self.unread -= length;
        self.freed += length;
        self.start = (self.start + length) % self.settings.receive_buffer;
        let mut left = length as u32;
        while let Some(front) = self.arrived.front_mut() {
            if *front > left {
                *front -= left;
                break;
            }
            left -= *front;
            self.arrived.pop_front();
            self.taken = self.taken.wrapping_add(1);
        }
    }

    /// Room and credits for the peer, when it is time.
    pub fn grant(&mut self) -> Option<Grant> {
        let half = self.settings.receive_buffer / 2;
        let has_room = self.freed >= half;
        let told_long_ago = self.taken.wrapping_sub(self.tell_at) as i16 >= 0;
        let cost = if has_room { self.cost() } else { 1 };
        if !self.open || !(has_room || told_long_ago) || self.control < cost {
            return None;
        }
        self.control -= cost;
        self.tell_at = self.taken.wrapping_add(self.settings.receive_requests / 2);
        let message = Message::Credits(self.taken.wrapping_add(self.settings.receive_requests));
        let target = has_room.then(|| self.lend(half));
        Some(Grant { target, message, id: Self::CONTROL | u64::from(cost) << 32 })
    }

    /// The next half of the receive buffer goes to the peer.
    fn lend(&mut self, half: usize) -> ([u8; TARGET_LENGTH], WriteTo) {
        let target = Target {
            address: self.own.address.wrapping_add(self.free_from as u64),
            key: self.own.key,
            length: half as u32,
        };
        let place = u64::from(self.peer_slot) * TARGET_LENGTH as u64;
        let to = WriteTo { address: self.table.address.wrapping_add(place), key: self.table.key };
        self.peer_slot = (self.peer_slot + 1) % self.table.length.max(1);
        self.free_from = half - self.free_from;
        self.freed -= half;
        self.lent += half;
        (target.bytes(self.order), to)
    }

    // ---- the end ----

    /// The program ends a direction. What the peer is to be told, if anything: see [`Stream::take_control`].
    pub fn shut(&mut self, which: ShutdownSide) -> Option<Message> {
        if !self.open {
            return None;
        }
        match which {
            ShutdownSide::Both => (self.reads, self.writes) = (false, false),
            ShutdownSide::Write => self.writes = false,
            ShutdownSide::Read => self.reads = false,
        }
        match (self.reads, self.writes) {
            (false, false) => Some(Message::Disconnect),
            (true, false) => Some(Message::Shutdown),
            (_, true) => None,
        }
    }

    /// A request for a message of control: its `id`, or nothing while all such requests are under way.
    pub fn take_control(&mut self, message: Message) -> Option<u64> {
        if !self.open || self.control == 0 {
            return None;
        }
        self.control -= 1;
        let last = if message == Message::Disconnect { Self::LAST } else { 0 };
        Some(Self::CONTROL | last | 1 << 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A side with its memory.
    struct Side {
        stream: Stream,
        send: Vec<u8>,
        receive: Vec<u8>,
        table: Vec<u8>,
        sent: Vec<u64>,
    }

    const TABLE: WriteTo = WriteTo { address: 0x1000, key: 1 };
    const DATA: WriteTo = WriteTo { address: 0x10_0000, key: 2 };

    fn pair(settings: Settings) -> [Side; 2] {
        let mut sides = [(); 2].map(|()| Side {
            stream: Stream::new(settings),
            send: vec![0; settings.send_buffer],
            receive: vec![0; settings.receive_buffer],
            table: vec![0; TARGETS * TARGET_LENGTH + usize::from(settings.mappings) * Mapping::LENGTH],
            sent: Vec::new(),
        });
        let said = [0, 1].map(|n| sides[n].stream.introduce(TABLE, DATA));
        for (n, said) in said.iter().enumerate() {
            sides[1 - n].stream.meet(&Connect::read(&said.bytes()).unwrap());
        }
        sides
    }

    const SMALL: Settings = Settings {
        send_requests: 16,
        receive_requests: 16,
        send_buffer: 4096,
        receive_buffer: 6000,
        mappings: 4,
        separate: false,
    };

    impl Side {
        fn place(&mut self, bytes: &[u8], to: WriteTo) {
            let (memory, base) = match to.key {
                1 => (&mut self.table, TABLE.address),
                2 => (&mut self.receive, DATA.address),
                key => panic!("key {key}"),
            };
            let at = (to.address - base) as usize;
            memory[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn deliver(&mut self, message: Message) {
            self.stream.message(message.word()).unwrap();
            while let Some(slot) = self.stream.expected_target() {
                let place = &mut self.table[slot * TARGET_LENGTH..][..TARGET_LENGTH];
                if !self.stream.target_seen(Target::read((&*place).try_into().unwrap())) {
                    break;
                }
                place.fill(0);
            }
        }

        /// Sends as much of `data` as is possible now.
        fn send(&mut self, peer: &mut Side, data: &[u8], inline: usize) -> usize {
            let mut done = 0;
            while done < data.len()
                && let Some(offer) = self.stream.offer(data.len() - done, inline)
            {
                let bytes = &data[done..done + offer.length];
                let mut copied = 0;
                for (at, length) in offer.place.iter() {
                    self.send[at..at + length].copy_from_slice(&bytes[copied..copied + length]);
                    copied += length;
                }
                assert!(copied == offer.length || copied == 0 && offer.length <= inline);
                peer.place(bytes, offer.to);
                peer.deliver(offer.message.unwrap());
                self.stream.take(&offer);
                self.sent.push(offer.id);
                done += offer.length;
            }
            done
        }

        fn read(&mut self, length: usize) -> Vec<u8> {
            let mut out = Vec::new();
            for (at, length) in self.stream.peek(0, length).iter() {
                out.extend_from_slice(&self.receive[at..at + length]);
            }
            self.stream.consume(out.len());
            out
        }

        fn grants(&mut self, peer: &mut Side) {
            while let Some(grant) = self.stream.grant() {
                if let Some((bytes, to)) = grant.target {
                    peer.place(&bytes, to);
                }
                peer.deliver(grant.message);
                self.sent.push(grant.id);
            }
        }

        fn complete(&mut self) {
            for id in self.sent.drain(..) {
                self.stream.completed(id);
            }
        }
    }

    fn run(settings: Settings, sizes: &[usize], inline: usize) {
        let [mut a, mut b] = pair(settings);
        let data: Vec<u8> = (0..100_000u32).map(|n| (n * 7 + n / 251) as u8).collect();
        let (mut sent, mut got, mut turn) = (0, Vec::new(), 0);
        while got.len() < data.len() {
            let size = sizes[turn % sizes.len()];
            turn += 1;
            let end = data.len().min(sent + size);
            sent += a.send(&mut b, &data[sent..end], inline);
            got.extend(b.read(size / 2 + 1));
            b.grants(&mut a);
            a.complete();
            b.complete();
            assert!(turn < 1_000_000);
        }
        assert!(got == data);
        assert!(a.stream.all_sent() && b.stream.all_sent());
    }

    #[test]
    fn every_byte_comes_in_order() {
        for separate in [false, true] {
            let settings = Settings { separate, ..SMALL };
            run(settings, &[1000], 0);
            run(settings, &[1, 5000, 17, 64], 64);
            run(settings, &[3], 0);
            let uneven = Settings { send_buffer: 5001, receive_buffer: 500, ..settings };
            run(uneven, &[777, 12_000], 16);
        }
    }

    #[test]
    fn a_reader_that_does_not_read_stops_the_sender() {
        let [mut a, mut b] = pair(Settings { send_buffer: 100_000, ..SMALL });
        let data = vec![5; 50_000];
        let first = a.send(&mut b, &data, 0);
        // Half of it is lent at first; the other half, when the reader first looks.
        assert_eq!(first, 3000);
        b.grants(&mut a);
        assert_eq!(a.send(&mut b, &data, 0), 3000);
        b.grants(&mut a);
        assert_eq!((a.send(&mut b, &data, 0), a.stream.can_send()), (0, false));
        assert_eq!(b.stream.unread(), 6000);
        b.read(2999);
        b.grants(&mut a);
        assert_eq!(a.send(&mut b, &data, 0), 0);
        b.read(1);
        b.grants(&mut a);
        assert_eq!(a.send(&mut b, &data, 0), 3000);
    }

    #[test]
    fn messages_need_credits() {
        let [mut a, mut b] = pair(Settings { send_requests: 100, ..SMALL });
        for _ in 0..16 {
            assert_eq!(a.send(&mut b, &[1], 16), 1);
        }
        assert_eq!(a.send(&mut b, &[1], 16), 0);
        // Ours, in contrast, holds back a peer that does not care.
        assert_eq!(b.stream.message(Message::Data(1).word()), Err(Violation::TooManyMessages));
        b.read(8);
        b.grants(&mut a);
        assert_eq!(a.send(&mut b, &[1], 16), 1);
    }

    #[test]
    fn requests_come_back() {
        let [mut a, mut b] = pair(Settings { receive_requests: 100, separate: true, ..SMALL });
        for _ in 0..6 {
            assert_eq!(a.send(&mut b, &[1], 16), 1);
        }
        assert_eq!((a.send(&mut b, &[1], 16), a.stream.all_sent()), (0, false));
        a.complete();
        assert_eq!((a.send(&mut b, &[1], 16), b.stream.unread()), (1, 7));
    }

    #[test]
    fn messages_and_targets_that_a_peer_must_not_send_are_refused() {
        let [_, mut b] = pair(SMALL);
        assert_eq!(b.stream.message(Message::Data(3001).word()), Err(Violation::TooMuchData(3001, 3000)));
        assert_eq!(b.stream.message(0xa000_0000), Err(Violation::Unknown(0xa000_0000)));
        // Targets that are none.
        assert!(!b.stream.target_seen(Target { address: 1, key: 1, length: 0 }));
        assert!(!b.stream.target_seen(Target { address: 1, key: 1, length: 2999 }));
        // Messages without bytes are over at once.
        for _ in 0..40 {
            b.stream.message(Message::Data(0).word()).unwrap();
        }
        assert_eq!(b.stream.unread(), 0);
    }

    #[test]
    fn mappings() {
        let [mut a, mut b] = pair(SMALL);
        let mapping = Mapping { offset: 77, target: Target { address: 5, key: 6, length: 7 } };
        assert!(a.stream.map(4, &mapping).is_none());
        let (bytes, offer) = a.stream.map(2, &mapping).unwrap();
        b.place(&bytes, offer.to);
        b.deliver(offer.message.unwrap());
        let at = TARGETS * TARGET_LENGTH + 2 * Mapping::LENGTH;
        assert_eq!(Mapping::read(b.table[at..at + Mapping::LENGTH].try_into().unwrap()), mapping);
        let direct = b.stream.offer_direct(100, 0, mapping.at(80).unwrap()).unwrap();
        assert_eq!((direct.length, direct.to, direct.message), (4, WriteTo { address: 8, key: 6 }, None));
        b.stream.take(&direct);
        b.stream.completed(direct.id);
        a.stream.completed(offer.id);
        assert!(a.stream.all_sent() && b.stream.all_sent());
    }

    #[test]
    fn directions_end() {
        let [mut a, mut b] = pair(SMALL);
        assert_eq!(a.stream.shut(ShutdownSide::Read), None);
        assert!(a.stream.is_open() && !a.stream.reads() && a.stream.writes());
        assert_eq!(b.stream.shut(ShutdownSide::Write), Some(Message::Shutdown));
        let id = b.stream.take_control(Message::Shutdown).unwrap();
        assert_eq!(b.stream.completed(id), SendOutcome::Sent);
        a.deliver(Message::Shutdown);
        assert_eq!(a.send(&mut b, &[9; 10], 0), 10);
        assert_eq!(a.stream.shut(ShutdownSide::Write), Some(Message::Disconnect));
        let id = a.stream.take_control(Message::Disconnect).unwrap();
        assert_eq!(a.stream.completed(id), SendOutcome::Disconnected);
        b.deliver(Message::Disconnect);
        assert!(!b.stream.is_open());
        // What came before is still there.
        assert_eq!(b.read(100), [9; 10]);
        // A shutdown by the peer after ours ends everything, too.
        let [mut a, _] = pair(SMALL);
        a.stream.shut(ShutdownSide::Write);
        a.deliver(Message::Shutdown);
        assert!(!a.stream.is_open());
        assert_eq!((a.stream.take_control(Message::Keepalive), a.stream.grant()), (None, None));
    }
}
