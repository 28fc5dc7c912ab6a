//! The send queue: a ring that any thread fills, one transmitter reads, and completions empty in order.
//!
//! Everything in the ring is atomic words, so a thread that looks sees some value and never undefined
//! behaviour. The sequence numbers say which thread may look: a request is written before `posted` passes it,
//! and read only between `retired` and `posted`. Its place is written anew only after `retired` has passed
//! it. A request that is carried out as it is posted has no place: `retired` passes it before `posted` does.

use super::Queues;
use super::state::{Path, Service};
use crate::error::{self, PostError};
use crate::lock::Lock;
use crate::memory::{self, RingAllocator, RingKind, RingRelease, Storage};
use crate::request::{Cause, Completion, Data, Opcode, SendFlags, SendRequest, Sge, Status};
use crate::transport::OneSided;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

/// Words of a request; those to a datagram's destination come on top.
const WORDS: usize = 6;
const DATAGRAM_WORDS: usize = 8;
/// Words of a request of XRC; the last one names the shared receive queue.
const EXTENDED_WORDS: usize = 7;
const PENDING: u8 = 0;

/// The send queue of a queue pair. Thread-safe.
pub struct SendQueue {
    slots: Storage<AtomicU64>,
    /// Words of each slot.
    width: usize,
    /// Scatter/gather elements or inline data of each request, `stride` words each.
    data: Storage<AtomicU64>,
    stride: usize,
    /// [`PENDING`], or the status plus one of a request that is done but waits for earlier ones.
    done: Box<[AtomicU8]>,
    pub(super) mask: u64,
    max_sges: usize,
    max_inline: usize,
    pub(super) posted: AtomicU64,
    pub(super) retired: AtomicU64,
    pub(super) post: Lock<Posting>,
    /// There is an object for one-sided requests ([`SendQueue::install`]).
    has_one_sided: AtomicBool,
    retire: Lock<()>,
}

/// The state of the thread that posts.
#[derive(Default)]
pub(super) struct Posting {
    /// Carries out one-sided requests as they are posted.
    pub(super) one_sided: Option<Box<dyn OneSided>>,
}

/// A request as the transmitter finds it. Addresses and keys are not checked yet.
#[derive(Clone, Copy, Debug)]
pub struct SendWork {
    /// The request's place in the queue's history.
    pub sequence: u64,
    /// The request's name in the program.
    pub wr_id: u64,
    /// The operation of the request.
    pub opcode: Opcode,
    /// The send flags of the request.
    pub flags: SendFlags,
    /// Scatter/gather elements; 0 for inline data.
    pub sges: usize,
    /// Bytes altogether.
    pub length: u32,
    /// The address in the peer's memory, as in [`SendRequest`].
    pub remote_address: u64,
    /// The key of the peer's memory, as in [`SendRequest`].
    pub rkey: u32,
    /// Immediate data or a key, as in [`SendRequest`].
    pub immediate: u32,
    /// The first operand of an atomic operation, as in [`SendRequest`].
    pub compare_add: u64,
    /// The second operand of an atomic operation, as in [`SendRequest`].
    pub swap: u64,
    /// XRC: the peer's shared receive queue.
    pub shared_queue: u32,
}

/// Where a datagram goes, as the transmitter finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The way.
    pub path: Path,
    /// The receiving queue pair.
    pub queue_pair: u32,
    /// The Q_Key as the program gave it: with the highest bit set, the queue pair's own goes out instead.
    // IB-UD-4
    pub qkey: u32,
}

impl SendQueue {
    /// # Errors
    /// ENOMEM where `allocator` has no memory.
    pub(super) fn new(
        requests: u32,
        max_sges: u32,
        max_inline: u32,
        service: Service,
        allocator: &RingAllocator,
    ) -> error::Result<Self> {
        let room = (requests.max(1) as usize).next_power_of_two();
        let width = match service {
            Service::Ud => DATAGRAM_WORDS,
            Service::XrcSend => EXTENDED_WORDS,
            _ => WORDS,
        };
        let stride = (max_sges as usize * 2).max((max_inline as usize).div_ceil(8));
        let words = |n: usize| Storage::new(n, AtomicU64::default, allocator, RingKind::QueuePair);
        Ok(Self {
            slots: words(room * width)?,
            width,
            data: words(room * stride)?,
            stride,
            done: (0..room).map(|_| AtomicU8::new(PENDING)).collect(),
            mask: room as u64 - 1,
            max_sges: max_sges as usize,
            // The words are there for elements anyway, and some programs count on a little without asking.
            max_inline: stride * 8,
            posted: AtomicU64::new(0),
            retired: AtomicU64::new(0),
            post: Lock::default(),
            has_one_sided: AtomicBool::new(false),
            retire: Lock::default(),
        })
    }

    /// The program has its memory back when the result is dropped.
    ///
    /// # Safety
    /// No transport uses the queue any more. If it `is_here` no more, no thread does.
    pub(super) unsafe fn give_back(&self, is_here: bool) -> [RingRelease; 2] {
        // Posting threads take the one lock, and threads that complete or flush requests the other. In a
        // child of fork, a thread that does not exist there may have them.
        let _locks = is_here.then(|| (self.post.lock(), self.retire.lock()));
        // SAFETY: the locks, and the caller's promise.
        unsafe { [self.slots.give_back(), self.data.give_back()] }
    }

    /// Requests that fit.
    pub fn capacity(&self) -> u32 {
        self.mask as u32 + 1
    }

    /// Elements per request.
    pub fn max_sges(&self) -> u32 {
        self.max_sges as u32
    }

    /// Bytes of inline data per request.
    pub fn max_inline(&self) -> u32 {
        self.max_inline as u32
    }

    /// The words of a request: those of every one, and those behind them.
    #[inline(always)]
    fn slot(&self, sequence: u64) -> (&[AtomicU64; WORDS], &[AtomicU64]) {
        let place = (sequence & self.mask) as usize * self.width;
        let words = self.slots[place..place + self.width].split_first_chunk();
        words.expect("no place is shorter")
    }

    #[inline(always)]
    fn data(&self, sequence: u64) -> &[AtomicU64] {
        let place = (sequence & self.mask) as usize * self.stride;
        &self.data[place..place + self.stride]
    }

    /// Whether requests wait that `cursor` has not passed. Cheap; for the check after giving up the transmit
    /// lock.
    #[inline]
    pub fn has_work(&self, cursor: &SendCursor) -> bool {
        let posted = self.posted.load(Ordering::SeqCst);
        // Requests that were carried out as they were posted are behind `retired`, and no transmitter has
        // passed them.
        cursor.0 < posted && self.retired.load(Ordering::Acquire) < posted
    }

    /// Whether another request waits behind the request under the cursor.
    #[inline]
    pub fn has_more_than_one(&self, cursor: &SendCursor) -> bool {
        let posted = self.posted.load(Ordering::Acquire);
        posted.saturating_sub(cursor.0.max(self.retired.load(Ordering::Acquire))) > 1
    }

    /// How many requests have been posted, and how many of these are done and need their places no more.
    pub fn progress(&self) -> (u64, u64) {
        let done = self.retired.load(Ordering::Acquire);
        (self.posted.load(Ordering::Acquire), done)
    }

    /// Behind the last request that has been posted.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted.load(Ordering::Acquire)
    }

    /// Bytes of a request that has been posted, for estimates: of one that has been posted over, or carried
    /// out as it was posted, those of another one.
    #[inline]
    pub fn length_of(&self, sequence: u64) -> u32 {
        self.slot(sequence).0[3].load(Ordering::Relaxed) as u32
    }

    /// The request under the cursor, which steps over requests that were carried out as they were posted.
    #[inline]
    pub fn peek(&self, cursor: &mut SendCursor) -> Option<SendWork> {
        let posted = self.posted.load(Ordering::Acquire);
        self.catch_up(cursor);
        if cursor.0 >= posted {
            return None;
        }
        Some(self.read(cursor.0))
    }

    /// Moves the cursor past requests that were carried out as they were posted, which no transmitter has
    /// passed. Called after a look at `posted`, so that no request without a place in the queue is read.
    #[inline]
    fn catch_up(&self, cursor: &mut SendCursor) {
        cursor.0 = cursor.0.max(self.retired.load(Ordering::Acquire));
    }

    /// Reads a request that is not complete yet.
    #[inline]
    pub fn read(&self, sequence: u64) -> SendWork {
        let (slot, rest) = self.slot(sequence);
        let word = |n: usize| slot[n].load(Ordering::Relaxed);
        let packed = word(3);
        SendWork {
            sequence,
            wr_id: word(0),
            remote_address: word(1),
            rkey: word(2) as u32,
            immediate: (word(2) >> 32) as u32,
            length: packed as u32,
            opcode: Opcode::from_number((packed >> 32 & 0xff) as u32).unwrap_or(Opcode::Send),
            flags: SendFlags::from_bits_truncate((packed >> 40) as u8),
            sges: (packed >> 48) as usize,
            compare_add: word(4),
            swap: word(5),
            shared_queue: match rest {
                // XRC
                [shared_queue] => shared_queue.load(Ordering::Relaxed) as u32,
                _ => 0,
            },
        }
    }

    /// Where the datagram of a request goes that is not complete yet. Of requests that are none it means
    /// nothing.
    pub fn destination(&self, work: &SendWork) -> Destination {
        let (slot, rest) = self.slot(work.sequence);
        let word = |n: usize| slot.get(n).unwrap_or_else(|| &rest[n - WORDS]).load(Ordering::Relaxed);
        let mut gid = [0; 16];
        gid[..8].copy_from_slice(&word(4).to_ne_bytes());
        gid[8..].copy_from_slice(&word(5).to_ne_bytes());
        let [
            source_gid_index,
            hop_limit,
            traffic_class,
            service_level,
            source_path_bits,
            static_rate,
            port,
            global,
        ] = word(6).to_ne_bytes();
        Destination {
            path: Path {
                gid,
                flow_label: word(7) as u32,
                source_gid_index,
                hop_limit,
                traffic_class,
                lid: (word(7) >> 32) as u16,
                service_level,
                source_path_bits,
                static_rate,
                is_global: global != 0,
                port,
            },
            queue_pair: word(1) as u32,
            qkey: (word(1) >> 32) as u32,
        }
    }

    /// A scatter/gather element of a request that is not complete yet.
    #[inline]
    pub fn sge(&self, work: &SendWork, index: usize) -> Sge {
        let data = self.data(work.sequence);
        let packed = data[index * 2 + 1].load(Ordering::Relaxed);
        Sge {
            address: data[index * 2].load(Ordering::Relaxed),
            length: packed as u32,
            lkey: (packed >> 32) as u32,
        }
    }

    /// Address of the inline data of a request that is not complete yet: `length` bytes of the ring, which
    /// stays where it is until the queue pair is destroyed.
    pub fn inline_address(&self, work: &SendWork) -> *const u8 {
        self.data(work.sequence).as_ptr().cast()
    }

    /// Copies part of the inline data of a request that is not complete yet.
    ///
    /// # Panics
    /// If the range passes the request's length.
    pub fn copy_inline(&self, work: &SendWork, offset: usize, target: &mut [u8]) {
        assert!(offset + target.len() <= work.length as usize && work.length as usize <= self.max_inline);
        for (index, byte) in target.iter_mut().enumerate() {
            let at = offset + index;
            *byte = self.data(work.sequence)[at / 8].load(Ordering::Relaxed).to_ne_bytes()[at % 8];
        }
    }

    #[inline]
    pub(super) fn write(
        &self,
        sequence: u64,
        request: &SendRequest<'_>,
        max_message: u32,
    ) -> Result<(), PostError> {
        let data = self.data(sequence);
        let mut total = 0u64;
        let mut flags = request.flags;
        let sges = match request.data {
            Data::Registered(sges) => {
                if sges.len() > self.max_sges {
                    // IB-QP-30
                    return Err(PostError::TooManySges);
                }
                flags.remove(SendFlags::INLINE);
                for (index, sge) in sges.iter().enumerate() {
                    data[index * 2].store(sge.address, Ordering::Relaxed);
                    data[index * 2 + 1]
                        .store(u64::from(sge.length) | u64::from(sge.lkey) << 32, Ordering::Relaxed);
                    total += u64::from(sge.length);
                }
                sges.len()
            }
            Data::InlineAt(sges) => {
                flags.insert(SendFlags::INLINE);
                total = sges.iter().map(|sge| u64::from(sge.length)).sum();
                if total > self.max_inline as u64 {
                    return Err(PostError::InlineTooLong);
                }
                Self::clear_end(data, total as usize);
                let mut offset = 0;
                for sge in sges {
                    self.fill_inline(data, offset, sge.length as usize, sge.address as usize)?;
                    offset += sge.length as usize;
                }
                0
            }
            // IB-RC-REQ-20
            Data::Inline(slices) => {
                flags.insert(SendFlags::INLINE);
                total = slices.iter().map(|slice| slice.len() as u64).sum();
                if total > self.max_inline as u64 {
                    return Err(PostError::InlineTooLong);
                }
                Self::clear_end(data, total as usize);
                let mut offset = 0;
                for slice in slices {
                    self.fill_inline(data, offset, slice.len(), slice.as_ptr() as usize)?;
                    offset += slice.len();
                }
                0
            }
        };
        let brings_back = matches!(request.opcode, Opcode::Read | Opcode::FetchAdd | Opcode::CompareSwap);
        if brings_back && flags.contains(SendFlags::INLINE) && total > 0 {
            // ibv_post_send(3): IBV_SEND_INLINE is for sends and writes. The bytes that such a request brings
            // back would have no place.
            return Err(PostError::Invalid);
        }
        if total > u64::from(max_message) {
            // IB-RC-REQ-19
            return Err(PostError::TooLong);
        }
        let (slot, rest) = self.slot(sequence);
        slot[0].store(request.wr_id, Ordering::Relaxed);
        slot[2].store(u64::from(request.rkey) | u64::from(request.immediate) << 32, Ordering::Relaxed);
        let packed = Self::pack(total, request.opcode, flags, sges as u64);
        slot[3].store(packed, Ordering::Relaxed);
        let Some(datagram) = request.datagram else {
            slot[1].store(request.remote_address, Ordering::Relaxed);
            slot[4].store(request.compare_add, Ordering::Relaxed);
            slot[5].store(request.swap, Ordering::Relaxed);
            if let [shared_queue] = rest {
                shared_queue.store(request.shared_queue.into(), Ordering::Relaxed);
            }
            return Ok(());
        };
        let path = datagram.path;
        let (high, low) = path.gid.split_at(8);
        let half = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_ne_bytes);
        let options = [
            path.source_gid_index,
            path.hop_limit,
            path.traffic_class,
            path.service_level,
            path.source_path_bits,
            path.static_rate,
            path.port,
            path.is_global.into(),
        ];
        slot[1].store(u64::from(datagram.queue_pair) | u64::from(datagram.qkey) << 32, Ordering::Relaxed);
        slot[4].store(half(high), Ordering::Relaxed);
        slot[5].store(half(low), Ordering::Relaxed);
        rest[0].store(u64::from_ne_bytes(options), Ordering::Relaxed);
        rest[1].store(u64::from(path.flow_label) | u64::from(path.lid) << 32, Ordering::Relaxed);
        Ok(())
    }

    /// Called before `length` bytes of inline data are written. Zeros are to stand behind them in their last
    /// word, and not bytes of an earlier request.
    #[inline(always)]
    fn clear_end(data: &[AtomicU64], length: usize) {
        if let Some(last) = length.checked_sub(1).and_then(|last| data.get(last / 8)) {
            last.store(0, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn fill_inline(
        &self,
        data: &[AtomicU64],
        offset: usize,
        length: usize,
        source: usize,
    ) -> Result<(), PostError> {
        if length == 0 {
            return Ok(());
        }
        if offset + length > data.len() * 8 {
            return Err(PostError::InlineTooLong);
        }
        // SAFETY: the target is inside the request's words, which no thread reads before it is posted, and
        // which tolerate any bytes; the source is checked as it is read.
        unsafe {
            let target = data.as_ptr().cast::<u8>().cast_mut().add(offset);
            memory::copy_from(std::slice::from_raw_parts_mut(target, length), source)
                .map_err(|_| PostError::Fault)
        }
    }

    /// Whether every request before this one is complete.
    pub fn is_oldest(&self, sequence: u64) -> bool {
        self.retired.load(Ordering::Acquire) == sequence
    }

    /// Requests that are posted and not complete.
    pub fn outstanding(&self) -> u64 {
        let retired = self.retired.load(Ordering::Acquire);
        self.posted.load(Ordering::Acquire).saturating_sub(retired)
    }

    /// Marks a request done and reports it, and those after it that waited for it, in order (RFC5040-5.5-6).
    // IB-RC-REQ-25, IB-RC-REQ-53, IB-QP-27
    #[inline]
    pub(super) fn complete(&self, queues: &Queues, sequence: u64, status: Status) {
        if status == Status::Success {
            return self.complete_run(queues, sequence, 1);
        }
        let guard = self.retire.lock();
        let head = self.retired.load(Ordering::Relaxed);
        if sequence >= head {
            self.note_done(sequence, status);
            self.report_done(queues, head, self.posted.load(Ordering::Acquire));
        }
        drop(guard);
    }

    /// Marks `count` requests from `first` on done with success, and reports them, and those after them that
    /// waited for them, in order.
    // IB-RC-REQ-25, IB-QP-27
    #[inline]
    pub(super) fn complete_run(&self, queues: &Queues, first: u64, count: u32) {
        let guard = self.retire.lock();
        let mut head = self.retired.load(Ordering::Relaxed);
        let posted = self.posted.load(Ordering::Acquire);
        let end = first + u64::from(count);
        if first <= head && head < end.min(posted) {
            while head < end.min(posted) {
                let sequence = head;
                head += 1;
                self.succeed(queues, sequence);
            }
            self.retired.store(head, Ordering::Release);
        }
        (first.max(head)..end).for_each(|sequence| self.note_done(sequence, Status::Success));
        self.report_done(queues, head, posted);
        drop(guard);
    }

    #[inline]
    fn note_done(&self, sequence: u64, status: Status) {
        self.done[(sequence & self.mask) as usize].store(status as u8 + 1, Ordering::Relaxed);
    }

    /// Reports the requests from the oldest on that are done. With the lock.
    #[inline]
    fn report_done(&self, queues: &Queues, mut head: u64, posted: u64) {
        while head < posted {
            let done = &self.done[(head & self.mask) as usize];
            let status = done.load(Ordering::Relaxed);
            if status == PENDING {
                break;
            }
            done.store(PENDING, Ordering::Relaxed);
            self.end(queues, head, Status::from_number(u32::from(status - 1)).unwrap_or(Status::General));
            head += 1;
        }
    }

    /// Completes the oldest request. The caller has made sure that no thread flushes meanwhile. Another
    /// thread may still be reporting the request before.
    #[inline]
    pub(super) fn complete_oldest(&self, queues: &Queues, work: &SendWork) {
        let _guard = self.retire.lock();
        debug_assert!(self.is_oldest(work.sequence));
        self.retire(queues, work, Status::Success);
    }

    /// Whether everything that was posted is complete. The transmitter looks, and no thread posts meanwhile.
    #[inline]
    pub fn is_drained(&self) -> bool {
        self.retired.load(Ordering::Acquire) == self.posted.load(Ordering::Relaxed)
    }

    /// Has one-sided requests carried out as they are posted from now on, by the object that `make` returns,
    /// until the program modifies the queue pair. No effect if there is one already, or if another thread
    /// posts at this instant. For the transmitter.
    pub fn install(&self, make: impl FnOnce() -> Option<Box<dyn OneSided>>) {
        if self.has_one_sided.load(Ordering::Relaxed) {
            return;
        }
        if let Some(mut posting) = self.post.try_lock() {
            posting.one_sided = make();
            self.has_one_sided.store(posting.one_sided.is_some(), Ordering::Relaxed);
        }
    }

    /// From now on all requests are queued.
    pub(super) fn forget(&self, posting: &mut Posting) {
        posting.one_sided = None;
        self.has_one_sided.store(false, Ordering::Relaxed);
    }

    /// Has all requests queued from now on. Waits until no thread carries out a request any more.
    /// An object that the transmitter installs meanwhile may be missed.
    pub(super) fn queue_all(&self) {
        if self.has_one_sided.load(Ordering::Relaxed) {
            self.forget(&mut self.post.lock());
        }
    }

    /// Writes a request to the place that it is about to have, if the transmitter has passed all requests
    /// before it. Returns its sequence number. `None` if it has not, or if the request is to be refused. The
    /// caller has the transmit lock, and posts. The request counts as posted once the caller has called
    /// [`SendQueue::enter_sent`].
    pub fn place(&self, cursor: &mut SendCursor, request: &SendRequest<'_>) -> Option<u64> {
        let sequence = self.next_place(cursor)?;
        // A wrong request is not reported here: the poster queues it next, finds the same mistake, and
        // reports it.
        self.write(sequence, request, u32::MAX).ok()?;
        Some(sequence)
    }

    /// Writes a Send of one element to the place that it is about to have, as [`SendQueue::place`] does.
    /// The element is no longer than a message may be.
    #[inline(always)]
    pub fn place_element(
        &self,
        cursor: &mut SendCursor,
        request: &SendRequest<'_>,
        sge: &Sge,
    ) -> Option<u64> {
        let sequence = self.next_place(cursor)?;
        let [address, rest] = self.data(sequence).first_chunk::<2>().filter(|_| self.max_sges > 0)?;
        address.store(sge.address, Ordering::Relaxed);
        rest.store(u64::from(sge.length) | u64::from(sge.lkey) << 32, Ordering::Relaxed);
        self.write_send(sequence, request, (sge.length, request.flags - SendFlags::INLINE, 1));
        Some(sequence)
    }

    /// Writes a Send whose bytes need no key to the place that it is about to have, as [`SendQueue::place`]
    /// does. It has `length` bytes at `address`. Returns the words of these bytes, too. Zeros fill the last
    /// word behind them.
    #[inline(always)]
    pub fn place_bare(
        &self,
        cursor: &mut SendCursor,
        request: &SendRequest<'_>,
        (address, length): (usize, usize),
    ) -> Option<(u64, &[AtomicU64])> {
        let sequence = self.next_place(cursor)?;
        let data = self.data(sequence);
        Self::clear_end(data, length);
        self.fill_inline(data, 0, length, address).ok()?;
        self.write_send(sequence, request, (length as u32, request.flags | SendFlags::INLINE, 0));
        Some((sequence, data.get(..(length + 7) >> 3)?))
    }

    /// Writes those words of a request that a Send has.
    #[inline(always)]
    fn write_send(
        &self,
        sequence: u64,
        request: &SendRequest<'_>,
        (length, flags, sges): (u32, SendFlags, u64),
    ) {
        let (slot, _) = self.slot(sequence);
        slot[0].store(request.wr_id, Ordering::Relaxed);
        slot[2].store(u64::from(request.immediate) << 32, Ordering::Relaxed);
        slot[3].store(Self::pack(length.into(), request.opcode, flags, sges), Ordering::Relaxed);
    }

    /// The word of a request with its length, opcode, flags, and number of elements.
    #[inline(always)]
    fn pack(length: u64, opcode: Opcode, flags: SendFlags, sges: u64) -> u64 {
        length | (opcode as u64) << 32 | u64::from(flags.bits()) << 40 | sges << 48
    }

    /// The number of the next request, if the transmitter has passed all requests before it.
    #[inline(always)]
    fn next_place(&self, cursor: &mut SendCursor) -> Option<u64> {
        let sequence = self.posted.load(Ordering::Relaxed);
        self.catch_up(cursor);
        (cursor.0 == sequence).then_some(sequence)
    }

    /// The request that was [placed](SendQueue::place) has been sent: it is posted, and the transmitter has
    /// passed it.
    #[inline(always)]
    pub fn enter_sent(&self, cursor: &mut SendCursor) {
        cursor.advance();
        self.posted.store(cursor.0, Ordering::Release);
    }

    /// A request has been carried out as it was posted: it passes through the queue without a place in it.
    /// With the posts' lock; `sequence` is the next one, and everything before it is complete. `reported`:
    /// the request and its bytes, if the program is to be told.
    #[inline(always)]
    pub(super) fn pass(&self, queues: &Queues, sequence: u64, reported: Option<(&SendRequest<'_>, u32)>) {
        match reported {
            None => self.step_over(sequence),
            Some((request, length)) => self.pass_reported(queues, sequence, request, length),
        }
    }

    #[inline(never)]
    fn pass_reported(&self, queues: &Queues, sequence: u64, request: &SendRequest<'_>, byte_length: u32) {
        // A thread that completes the request before this one reports it under the lock, perhaps after
        // `retired` has passed it. IB-QP-27
        let _guard = self.retire.lock();
        self.step_over(sequence);
        let completion = Completion {
            wr_id: request.wr_id,
            opcode: request.opcode.completion(),
            byte_length,
            queue_pair: queues.number,
            ..Completion::EMPTY
        };
        queues.send_cq.add(completion, false);
    }

    /// The posting thread stores first `retired`, then `posted`. A thread that finds the new `posted`, and
    /// looks at `retired` after that, finds the new `retired`. So neither the transmitter nor a thread that
    /// flushes looks for a request that has no place.
    #[inline(always)]
    fn step_over(&self, sequence: u64) {
        self.retired.store(sequence + 1, Ordering::Release);
        self.posted.store(sequence + 1, Ordering::Release);
    }

    /// Where a transmitter goes on that [`Queues::fail_send`] has halted: at the first request that was not
    /// flushed.
    pub fn resume_at(&self) -> SendCursor {
        SendCursor(self.retired.load(Ordering::SeqCst))
    }

    /// Changes the state by `change` while no thread flushes: a thread that flushes looks at the state under
    /// the same lock.
    pub(super) fn change(&self, change: impl FnOnce() -> bool) -> bool {
        let _guard = self.retire.lock();
        change()
    }

    /// Ends all requests that are left, while `go_on`: those that are done are reported as they ended, the
    /// rest as flushed.
    pub(super) fn flush(&self, queues: &Queues, go_on: impl Fn() -> bool) {
        let guard = self.retire.lock();
        let mut head = 0;
        loop {
            let posted = self.posted.load(Ordering::SeqCst);
            // Requests may pass meanwhile, without this lock: see `SendQueue::step_over`.
            head = self.retired.load(Ordering::Acquire).max(head);
            if head >= posted || !go_on() {
                break;
            }
            let done = self.done[(head & self.mask) as usize].swap(PENDING, Ordering::Relaxed);
            let status = match done {
                // IB-QP-31, IB-QP-32, IB-RC-REQ-51
                PENDING => Status::Flushed,
                done => Status::from_number(u32::from(done - 1)).unwrap_or(Status::General),
            };
            self.end(queues, head, status);
            head += 1;
        }
        drop(guard);
    }

    fn end(&self, queues: &Queues, sequence: u64, status: Status) {
        self.retire(queues, &self.read(sequence), status);
    }

    /// Reports the oldest request if it is to be reported, and reads no more of it than the report needs;
    /// then its place is free. Otherwise the caller frees its place.
    #[inline(always)]
    fn succeed(&self, queues: &Queues, sequence: u64) {
        let (slot, _) = self.slot(sequence);
        let packed = slot[3].load(Ordering::Relaxed);
        if queues.reports(SendFlags::from_bits_retain((packed >> 40) as u8)) {
            let wr_id = slot[0].load(Ordering::Relaxed);
            self.retired.store(sequence + 1, Ordering::Release);
            let opcode = Opcode::from_number((packed >> 32 & 0xff) as u32).unwrap_or(Opcode::Send);
            let completion = Completion {
                wr_id,
                opcode: opcode.completion(),
                byte_length: packed as u32,
                queue_pair: queues.number,
                ..Completion::EMPTY
            };
            queues.send_cq.add(completion, false);
        }
    }

    /// Frees the place of the oldest request, then reports it: a thread that sees the report may post again.
    #[inline]
    fn retire(&self, queues: &Queues, work: &SendWork, status: Status) {
        // Its elements are looked at while they are there.
        let cause =
            if status == Status::Success { Cause::None } else { queues.why_send_failed(work, status) };
        self.retired.store(work.sequence + 1, Ordering::Release);
        self.report(queues, work, status, cause);
    }

    #[inline]
    fn report(&self, queues: &Queues, work: &SendWork, status: Status, cause: Cause) {
        // IB-RC-REQ-52, IB-QP-33: what is flushed or failed is reported, signalled or not.
        let wanted = queues.is_reported(work) || status != Status::Success;
        if wanted {
            let completion = Completion {
                wr_id: work.wr_id,
                status,
                opcode: work.opcode.completion(),
                byte_length: work.length,
                queue_pair: queues.number,
                vendor_error: cause as u32,
                ..Completion::default()
            };
            match status {
                Status::Flushed => queues.report_flushed(&queues.send_cq, completion),
                _ => queues.send_cq.push(completion, false),
            }
        }
    }

    /// Forgets everything; only while no transmitter runs and no thread posts.
    pub(super) fn reset(&self) {
        let mut post = self.post.lock();
        self.forget(&mut post);
        let _retire = self.retire.lock();
        self.posted.store(0, Ordering::SeqCst);
        self.retired.store(0, Ordering::SeqCst);
        self.done.iter().for_each(|done| done.store(PENDING, Ordering::Relaxed));
    }
}

/// Where the transmitter stands in a send queue. It belongs to the thread with the transport's transmit lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCursor(u64);

impl SendCursor {
    /// The number of the request under it.
    #[inline]
    pub fn sequence(&self) -> u64 {
        self.0
    }

    /// Steps over the request under it.
    pub fn advance(&mut self) {
        self.0 += 1;
    }

    /// Stands behind this request, which has been carried out as it was posted.
    #[inline]
    pub(super) fn pass(&mut self, sequence: u64) {
        self.0 = sequence + 1;
    }

    /// Stops for good; the transmitter takes another cursor then.
    pub(super) fn halt(&mut self) {
        self.0 = u64::MAX;
    }
}
