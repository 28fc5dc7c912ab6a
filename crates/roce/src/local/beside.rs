//! A queue pair whose peer is on this host, beside its lane: threads that post to it, and threads that carry
//! on with its long operations.

use super::channel::Channel;
use crate::endpoint::{Endpoint, EndpointKind, EndpointState};
use crate::lock;
use adverb_core::lock::LockGuard;
use adverb_core::qp::State;
use adverb_core::request::{Opcode, SendRequest};
use adverb_core::transport::Takeover;
use adverb_core::work_notes::Turns;
use adverb_samehost::{Copier, CopyProgress};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// The parts of a queue pair that such threads use without its lock.
#[derive(Default)]
pub(crate) struct Beside {
    /// The queue pair's packets go by a channel.
    is_bound: AtomicBool,
    /// The channel that the queue pair's packets go by, with a lock of its own.
    /// Some threads do not wait for the queue pair's lock, which is held while the kernel copies.
    channel: Mutex<Option<Arc<Channel>>>,
    /// Channels whose other ends sleep. The posting thread wakes them once it has let go of its locks.
    to_ring: Mutex<Vec<Arc<Channel>>>,
    /// Requests have been carried out in memory of the peer's process.
    pub(super) is_direct: AtomicBool,
    /// Long ones go on beside its posters ([`Copies`](adverb_samehost::Copies)).
    pub(crate) copying: Turns,
}

impl Beside {
    /// The queue pair's packets go by a channel from now on. With its lock.
    pub(super) fn begin(&self, channel: &Arc<Channel>) {
        *lock(&self.channel) = Some(channel.clone());
        self.is_bound.store(true, Ordering::Relaxed);
    }

    /// The queue pair's packets go by no channel from now on. The caller has the queue pair's lock. Returns
    /// whether they went by one before.
    pub(crate) fn end(&self) -> bool {
        let did = self.is_bound.swap(false, Ordering::Relaxed);
        if did {
            *lock(&self.channel) = None;
        }
        did
    }

    /// Whether the queue pair's packets go by this channel.
    pub(super) fn goes_by(&self, channel: &Channel) -> bool {
        lock(&self.channel).as_ref().is_some_and(|own| std::ptr::eq(&**own, channel))
    }

    /// Has the background thread take in packets that may have been left, since the queue pair was busy.
    #[cold]
    pub(crate) fn look_again(&self) {
        let channel = lock(&self.channel).clone();
        if let Some(channel) = channel {
            channel.look_again();
        }
    }

    /// Wakes the processes at the other ends, for records that went without the lane.
    pub(crate) fn ring(&self) {
        // One at a time, without the lock: the list keeps its memory, and a post allocates none.
        let next = || lock(&self.to_ring).pop();
        while let Some(channel) = next() {
            channel.ring();
        }
    }

    /// Lets other threads take turns at the long operations of the queue pair.
    pub(crate) fn go_on(&self, endpoint: &Endpoint) {
        endpoint.net.local.hub.copies.add(endpoint.this());
    }

    /// Sends a Send that is being posted, if nothing is in the way.
    #[inline]
    pub(crate) fn take_over(&self, endpoint: &Endpoint, request: &SendRequest<'_>) -> Takeover {
        // A pending acknowledgement may be for a message that this request is about. The request brings that
        // of its own queue pair along. PRACTICE-ORDER-1
        let is_send = matches!(request.opcode, Opcode::Send | Opcode::SendWithImmediate);
        if !is_send
            || !self.is_bound.load(Ordering::Relaxed)
            || endpoint.lane.others_have_pending_acks(endpoint)
        {
            return Takeover::No;
        }
        let Some(mut inner) = endpoint.try_lock() else { return Takeover::No };
        let EndpointState { state: State::Rts, cursor, kind: EndpointKind::Connected(link), .. } =
            &mut *inner
        else {
            return Takeover::No;
        };
        if endpoint.queues.state() != State::Rts || self.copying.go_on() {
            return Takeover::No;
        }
        let Takeover::Sent { follows: rings } = link.post_straight(endpoint, cursor, request) else {
            return Takeover::No;
        };
        if rings && let Some(near) = link.near() {
            // The queue pair may end before its poster rings, and no other thread of this process rings for
            // this sleep.
            lock(&self.to_ring).push(near.channel.clone());
        }
        endpoint.settled(link);
        // A deadline that is there is no later.
        let is_to_be_timed = !endpoint.is_timed() && link.deadline().is_some();
        LockGuard::release(inner);
        Takeover::Sent { follows: rings || is_to_be_timed }
    }

    /// Carries out the newest posts beside the lane, as far as they need no packet and nothing is in the way.
    /// False if the thread has to look at the lane.
    #[inline]
    pub(crate) fn send(&self, endpoint: &Endpoint) -> bool {
        if !self.is_bound.load(Ordering::Relaxed) || endpoint.lane.others_have_pending_acks(endpoint) {
            return false;
        }
        let Some(mut inner) = endpoint.try_lock() else {
            // The fence in `will_find` is also the one between this thread's post and its look at the state.
            // A thread that ends the queue pair stores the state, and then looks for posts: one of the two
            // sees the other.
            return self.copying.will_find() && endpoint.queues.state() == State::Rts;
        };
        let EndpointState { state: State::Rts, cursor, kind: EndpointKind::Connected(link), .. } =
            &mut *inner
        else {
            return false;
        };
        if endpoint.queues.state() != State::Rts {
            return false;
        }
        // The turns end under the lock, with a look for requests that have been posted.
        if self.copying.go_on() {
            // PRACTICE-ORDER-1
            return !endpoint.has_pending_ack();
        }
        let is_done = self.is_direct.load(Ordering::Relaxed)
            && match link.carry_out(endpoint, cursor, None) {
                CopyProgress::All => true,
                CopyProgress::Kernel => self.carry_out_by_kernel(endpoint, inner),
                carried @ (CopyProgress::Part | CopyProgress::Shared) => {
                    self.copying.begin();
                    drop(inner);
                    if carried == CopyProgress::Part {
                        self.go_on(endpoint);
                    }
                    true
                }
                CopyProgress::Packets => false,
            };
        endpoint.net.local.hub.copies.posted();
        is_done
    }

    /// The kernel's copy carries out the newest posts, as far as a post goes. Returns whether nothing of them
    /// is left to the lane.
    #[cold]
    fn carry_out_by_kernel(&self, endpoint: &Endpoint, inner: LockGuard<'_, EndpointState>) -> bool {
        // Threads that post meanwhile leave it to this thread.
        self.copying.begin();
        if self.carry_on(endpoint, inner) == CopyProgress::Part {
            self.go_on(endpoint);
        }
        true
    }

    /// A turn at long operations.
    #[cold]
    fn carry_on(&self, endpoint: &Endpoint, mut inner: LockGuard<'_, EndpointState>) -> CopyProgress {
        let (queues, mut channel) = (&endpoint.queues, None);
        let carried = match &mut *inner {
            // IB-QP-7: in SQD, too, since what has begun ends.
            EndpointState {
                state: State::Rts | State::Sqd,
                cursor,
                kind: EndpointKind::Connected(link),
                ..
            } if matches!(queues.state(), State::Rts | State::Sqd) => {
                let carried = link.carry_out(endpoint, cursor, Some(&endpoint.busy));
                channel = link.near().map(|near| near.channel.clone());
                // An operation that had begun has ended, or begins anew as a packet.
                if carried != CopyProgress::Part && queues.state() == State::Sqd && link.is_quiet() {
                    queues.send_queue_drained();
                }
                carried
            }
            _ => CopyProgress::Packets,
        };
        let left = carried != CopyProgress::Part && {
            self.copying.end();
            // Threads that posted before that have left their requests to us.
            queues.send.has_work(&inner.cursor)
        };
        drop(inner);
        if left {
            endpoint.ring();
        }
        // Work of threads that did not get the lock.
        if endpoint.busy.take_note() {
            endpoint.ring();
            // It may have been a packet, which is still in the channel.
            if let Some(channel) = channel {
                channel.look_again();
            }
        }
        carried
    }
}

impl Copier for Endpoint {
    fn carry_on(&self) -> Option<CopyProgress> {
        let inner = self.try_lock()?;
        Some(self.beside.carry_on(self, inner))
    }

    fn is_copying(&self) -> bool {
        self.beside.copying.go_on()
    }
}
