//! Waiting for sockets and ordinary descriptors together (poll(2)).

use crate::process::{Process, Socket, lookup};
use crate::wait::{Waitable, Waiters, sleep_until, system_poll};
use adverb_core::cancel::CancellationGuard;
use adverb_core::cq::SleepGuard;
use adverb_core::error::Result;
use std::time::{Duration, Instant};

impl Waitable for Socket {
    fn look(&self, events: i16) -> i16 {
        match self {
            Self::Stream(stream) => stream.look(events),
            Self::Datagram(datagram) => datagram.look(events),
        }
    }

    fn arm(&self) -> Option<SleepGuard> {
        match self {
            Self::Stream(stream) => stream.arm(),
            Self::Datagram(datagram) => datagram.arm(),
        }
    }

    fn descriptors(&self, list: &mut Vec<libc::pollfd>) {
        match self {
            Self::Stream(stream) => stream.descriptors(list),
            Self::Datagram(datagram) => datagram.descriptors(list),
        }
    }

    fn take_event(&self, ready: &[libc::pollfd]) {
        match self {
            Self::Stream(stream) => stream.take_event(ready),
            Self::Datagram(datagram) => datagram.take_event(),
        }
    }

    fn has_more(&self) -> bool {
        match self {
            Self::Stream(stream) => stream.has_more(),
            Self::Datagram(datagram) => datagram.has_more(),
        }
    }

    fn waiters(&self) -> &Waiters {
        match self {
            Self::Stream(stream) => stream.waiters(),
            Self::Datagram(datagram) => datagram.waiters(),
        }
    }
}

/// Waits until one of the list is ready, at most `timeout` milliseconds (negative: for ever). How many are.
/// The list may have sockets and ordinary descriptors. A cancellation point.
///
/// # Errors
/// EINTR when a signal handler ran.
pub fn poll(list: &mut [libc::pollfd], timeout: i32) -> Result<usize> {
    // The sockets of the list, and their places in it; the others, and theirs.
    let (mut sockets, mut places) = (Vec::new(), Vec::new());
    let (mut others, mut their_places) = (Vec::new(), Vec::new());
    for (place, entry) in list.iter_mut().enumerate() {
        entry.revents = 0;
        if let Some(socket) = lookup(entry.fd) {
            sockets.push(socket);
            places.push(place);
        } else {
            others.push(*entry);
            their_places.push(place);
        }
    }
    if sockets.is_empty() {
        return system_poll(list, timeout);
    }
    let deadline = u64::try_from(timeout).ok().map(|n| Instant::now() + Duration::from_millis(n));
    let mut look = |others: &mut [libc::pollfd]| {
        let _whole = CancellationGuard::new();
        for (socket, place) in sockets.iter().zip(&places) {
            list[*place].revents = socket.look(list[*place].events);
        }
        if !others.is_empty() {
            // A failure leaves them as they were: not ready.
            let _ = system_poll(others, 0);
        }
        for (entry, place) in others.iter().zip(&their_places) {
            list[*place].revents = entry.revents;
        }
        let ready = list.iter().filter(|entry| entry.revents != 0).count();
        (ready > 0).then_some(ready)
    };
    if let Some(ready) = look(&mut others) {
        return Ok(ready);
    }
    if timeout == 0 {
        return Ok(0);
    }
    let configuration = &Process::get().configuration;
    let start = Instant::now();
    while start.elapsed() < configuration.polling {
        if let Some(ready) = look(&mut others) {
            return Ok(ready);
        }
    }
    loop {
        let alarm = configuration.longest_sleep.map(|longest| Instant::now() + longest);
        let until = match (deadline, alarm) {
            (Some(deadline), Some(alarm)) => Some(deadline.min(alarm)),
            (deadline, alarm) => deadline.or(alarm),
        };
        if let Some(ready) = sleep_until(&sockets, &mut others, until, &mut look)? {
            return Ok(ready);
        }
        if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
            return Ok(0);
        }
    }
}
