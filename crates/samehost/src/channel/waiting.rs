//! Which senders wait for room in a channel, and for how long; and the look at records that wait for a
//! program.

use super::{Channel, Sender, Traffic};
use crate::lock;
use adverb_core::reactor::{self, Readiness};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long unreliable senders wait for room.
const ROOM_TIMEOUT: Duration = Duration::from_millis(200);
/// How often the background thread looks whether a program has caught up; polls look by themselves.
const LOOK: Duration = Duration::from_millis(1);

impl<T: Traffic> Channel<T> {
    /// Whether a wait for room makes sense here a little longer, in a thread that has `time` for it.
    pub fn hopes(&self, time: bool) -> bool {
        if !time {
            self.is_stuck.store(true, Ordering::Relaxed);
        }
        time && !self.has_gone() && !self.is_stuck.load(Ordering::Relaxed)
    }

    /// Takes note that there was room again.
    pub fn is_moving(&self) {
        self.is_stuck.store(false, Ordering::Relaxed);
    }

    /// Whether the other side takes nothing out: what is unreliable is lost, then.
    #[inline]
    pub fn is_stuck(&self) -> bool {
        self.is_stuck.load(Ordering::Relaxed)
    }

    /// A sender waits for room. False: there is some now, and it does not.
    pub fn wait(&self, sender: &T::Sender) -> bool {
        {
            let mut waiting = lock(&self.waiting);
            if !waiting.iter().any(|known| std::ptr::eq(&**known, sender)) {
                waiting.push(sender.this());
            }
            self.is_waited_for.store(true, Ordering::SeqCst);
        }
        let mut tx = self.tx.lock();
        let waits = tx.producer.prepare_to_wait(T::LONGEST);
        if tx.producer.check().is_err() {
            // It waits for the end of the channel.
            self.break_off();
            return true;
        }
        waits
    }

    /// A sender waits for room, but not for long: after `ROOM_TIMEOUT` the channel is
    /// [stuck](Self::is_stuck), and all that wait are told. False: there is room now, and the sender does not
    /// wait.
    pub fn wait_briefly(&self, sender: &T::Sender) -> bool {
        let waits = self.wait(sender);
        if waits && !self.is_timed.swap(true, Ordering::SeqCst) {
            self.time();
        }
        waits
    }

    fn time(&self) {
        let woken = self.woken.load(Ordering::SeqCst);
        let timer = self.this.upgrade().map(|this| Arc::new(Impatience(this, woken)));
        let set = timer.is_some_and(|timer| {
            self.traffic.engine().is_ok_and(|engine| engine.reactor.set_timer(ROOM_TIMEOUT, timer).is_ok())
        });
        if !set {
            self.is_timed.store(false, Ordering::SeqCst);
        }
    }

    /// Has the background thread look later at records that it could not take in. False if no timer can be
    /// had.
    pub(super) fn look_later(&self) -> bool {
        let Some(this) = self.this.upgrade() else { return false };
        self.traffic.engine().is_ok_and(|engine| engine.reactor.set_timer(LOOK, Arc::new(Look(this))).is_ok())
    }

    /// Tells the senders that wait, if there is room. `told`: the other side has rung, as it was asked to.
    pub(super) fn wake(&self, told: bool) {
        {
            let held = if told { Some(self.tx.lock()) } else { self.tx.try_lock() };
            let Some(mut tx) = held else { return };
            let room = tx.producer.room().is_some_and(|room| room >= T::LONGEST);
            // This side has asked the other to ring once, so it asks again.
            let waits = !room && !self.is_dead() && tx.producer.check().is_ok();
            if waits && (!told || tx.producer.prepare_to_wait(T::LONGEST)) {
                return;
            }
        }
        self.is_moving();
        self.tell_waiting();
    }

    pub(super) fn tell_waiting(&self) {
        self.woken.fetch_add(1, Ordering::SeqCst);
        let waiting = {
            let mut waiting = lock(&self.waiting);
            self.is_waited_for.store(false, Ordering::SeqCst);
            std::mem::take(&mut *waiting)
        };
        waiting.iter().for_each(|sender| sender.ring());
    }

    /// A sender is gone.
    pub fn forget(&self, sender: &T::Sender) {
        lock(&self.waiting).retain(|known| !std::ptr::eq(&**known, sender));
    }
}

/// The end of some waiting, as of so many that had come before.
struct Impatience<T: Traffic>(Arc<Channel<T>>, u64);

impl<T: Traffic> reactor::Source for Impatience<T> {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let Self(channel, woken) = &*self;
        if !channel.is_waited_for.load(Ordering::SeqCst) {
            channel.is_timed.store(false, Ordering::SeqCst);
            // A sender that began to wait meanwhile has counted on this.
            if channel.is_waited_for.load(Ordering::SeqCst) && !channel.is_timed.swap(true, Ordering::SeqCst)
            {
                channel.time();
            }
        } else if channel.woken.load(Ordering::SeqCst) != *woken {
            channel.time();
        } else {
            channel.is_timed.store(false, Ordering::SeqCst);
            channel.is_stuck.store(true, Ordering::Relaxed);
            channel.tell_waiting();
        }
    }
}

/// A look at the records that wait for a program.
struct Look<T: Traffic>(Arc<Channel<T>>);

impl<T: Traffic> reactor::Source for Look<T> {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        self.0.stir();
    }
}
