//! An epoll set with rsockets. The ordinary descriptors are in the kernel's set, the rsockets are here.

use super::interest::Interest;
use crate::{errno, library, table};
use libc::{c_int, epoll_event, pollfd};
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard};

/// A set. A thread that sleeps for it sleeps for what was in it then, so a change wakes it, by a descriptor
/// in the kernel's set.
#[derive(Default)]
pub(super) struct Set(Mutex<State>);

#[derive(Default)]
pub(super) struct State {
    interests: BTreeMap<c_int, Interest>,
    /// An eventfd, from the first rsocket on.
    doorbell: Option<c_int>,
    /// Counts changes.
    version: u64,
    /// Threads that wait, and those of them that have not seen the last change.
    waiting: usize,
    stale: usize,
    /// Whether the kernel's set is to be told first, and not an rsocket.
    kernel_first: bool,
    turn: c_int,
}

/// What the kernel's set says when the doorbell rings: an address that no program has.
static BELL: u8 = 0;

fn bell() -> u64 {
    &raw const BELL as u64
}

impl Set {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for State {
    fn drop(&mut self) {
        if let Some(doorbell) = self.doorbell {
            // SAFETY: a descriptor of nobody else's.
            unsafe { library::close(doorbell) };
        }
    }
}

impl State {
    /// epoll_ctl(2) for an rsocket: 0 or an error number.
    pub(super) fn control(
        &mut self,
        set: c_int,
        operation: c_int,
        fd: c_int,
        found: table::Rsocket,
        event: Option<&epoll_event>,
    ) -> c_int {
        let generation = found.generation();
        // What stands for another rsocket was closed without a word.
        let known = self.interests.get(&fd).is_some_and(|interest| interest.generation == generation);
        let entry = event.map(|event| Interest::new(found.number(), generation, event));
        match (operation, known, entry) {
            (libc::EPOLL_CTL_ADD, true, _) => return libc::EEXIST,
            (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, false, _) => return libc::ENOENT,
            (libc::EPOLL_CTL_ADD, false, Some(entry)) | (libc::EPOLL_CTL_MOD, true, Some(entry)) => {
                if let Err(number) = self.hang_bell(set) {
                    return number;
                }
                if entry.is_edge() {
                    table::set_edge(fd);
                }
                self.interests.insert(fd, entry);
            }
            (libc::EPOLL_CTL_DEL, true, _) => drop(self.interests.remove(&fd)),
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _, None) => return libc::EFAULT,
            _ => return libc::EINVAL,
        }
        self.changed();
        0
    }

    /// Whatever wakes who waits for the kernel's set wakes it for ours.
    fn hang_bell(&mut self, set: c_int) -> Result<(), c_int> {
        if self.doorbell.is_some() {
            return Ok(());
        }
        let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: bell() };
        // SAFETY: plain numbers and a live local.
        unsafe {
            let doorbell = libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK);
            if doorbell < 0 {
                return Err(errno::get());
            }
            if library::epoll_ctl(set, libc::EPOLL_CTL_ADD, doorbell, &mut event) != 0 {
                let number = errno::get();
                library::close(doorbell);
                return Err(number);
            }
            self.doorbell = Some(doorbell);
        }
        Ok(())
    }

    fn changed(&mut self) {
        self.version += 1;
        self.stale = self.waiting;
        if let (true, Some(doorbell)) = (self.stale > 0, self.doorbell) {
            let one = 1u64;
            // SAFETY: eight bytes of a live local.
            unsafe { library::write(doorbell, (&raw const one).cast(), 8) };
        }
    }

    /// The program has done what may change what is told of a descriptor.
    pub(super) fn touched(&mut self, fd: c_int, events: u32) {
        if self.interests.get_mut(&fd).is_some_and(|interest| interest.touched(events)) {
            self.changed();
        }
    }

    /// An rsocket's descriptor becomes an ordinary one: what the program has said of it holds for the
    /// kernel's set.
    pub(super) fn hand_over(&mut self, set: c_int, fd: c_int, generation: u32) {
        let Some(interest) = self.interests.get(&fd).filter(|known| known.generation == generation) else {
            return;
        };
        let mut event = interest.event();
        // SAFETY: plain numbers and a live local. Where it fails, the set is none any more.
        unsafe { library::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &mut event) };
        self.interests.remove(&fd);
        self.changed();
    }

    /// A thread begins to wait: for these rsockets, whose descriptors are the second list.
    pub(super) fn begin(&mut self) -> (u64, Vec<pollfd>, Vec<c_int>) {
        self.interests.retain(|fd, interest| {
            table::find(*fd).is_some_and(|found| found.generation() == interest.generation)
        });
        let wanted = self.interests.iter().filter_map(|(fd, interest)| {
            Some((pollfd { fd: interest.number, events: interest.wanted()?, revents: 0 }, *fd))
        });
        let (list, descriptors) = wanted.unzip();
        self.waiting += 1;
        (self.version, list, descriptors)
    }

    /// A thread has waited.
    pub(super) fn end(&mut self, version: u64) {
        self.waiting -= 1;
        if self.version != version {
            self.stale -= 1;
        }
        if let (0, Some(doorbell)) = (self.stale, self.doorbell) {
            let mut count = 0u64;
            // SAFETY: eight bytes of a live local.
            errno::kept(|| unsafe { library::read(doorbell, (&raw mut count).cast(), 8) });
        }
    }

    /// A thread has found something, for rsockets and at the end of the list for the kernel's set: what it is
    /// told, as much as there is room for. Next time the others come first.
    pub(super) fn collect(
        &mut self,
        set: c_int,
        list: &[pollfd],
        descriptors: &[c_int],
        room: &mut [epoll_event],
    ) -> usize {
        let (own, kernel) = list.split_at(descriptors.len());
        let kernel = kernel.iter().any(|entry| entry.revents != 0);
        let mut count = 0;
        let mut left_out = false;
        if kernel && self.kernel_first {
            count = ask_kernel(set, room);
        }
        count += self.tell(own, descriptors, &mut room[count..]);
        if kernel && !self.kernel_first {
            left_out = count == room.len();
            count += ask_kernel(set, &mut room[count..]);
        }
        self.kernel_first = left_out;
        count
    }

    fn tell(&mut self, list: &[pollfd], descriptors: &[c_int], room: &mut [epoll_event]) -> usize {
        let first = descriptors.partition_point(|fd| *fd < self.turn);
        let mut count = 0;
        for place in (first..list.len()).chain(0..first) {
            let (entry, fd) = (&list[place], descriptors[place]);
            // Closed meanwhile, by another thread: the program may have freed what its word stands for.
            let Some(interest) = self.interests.get_mut(&fd).filter(|known| {
                known.number == entry.fd
                    && table::find(fd).is_some_and(|found| found.generation() == known.generation)
            }) else {
                continue;
            };
            let Some(target) = room.get_mut(count) else {
                self.turn = fd;
                break;
            };
            let news = interest.tell(entry.revents & !libc::POLLNVAL);
            if news != 0 {
                *target = epoll_event { events: news, u64: interest.data };
                count += 1;
            }
        }
        count
    }
}

/// What the kernel's set has at this moment: how many events.
fn ask_kernel(set: c_int, room: &mut [epoll_event]) -> usize {
    if room.is_empty() {
        return 0;
    }
    // SAFETY: a live slice. What goes wrong here, the next wait says.
    let found = errno::kept(|| unsafe {
        library::epoll_pwait(set, room.as_mut_ptr(), room.len() as c_int, 0, null_mut())
    });
    without_bell(room, found).max(0) as usize
}

/// Takes the doorbell out of what the kernel's set says: how many are left.
pub(super) fn without_bell(room: &mut [epoll_event], found: c_int) -> c_int {
    let Some(events) = usize::try_from(found).ok().and_then(|found| room.get_mut(..found)) else {
        return found;
    };
    match events.iter().position(|event| event.u64 == bell()) {
        Some(place) => {
            events.copy_within(place + 1.., place);
            found - 1
        }
        None => found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    /// A set of the kernel's, and a connected socket.
    fn descriptors() -> (OwnedFd, std::os::unix::net::UnixStream, std::os::unix::net::UnixStream) {
        // SAFETY: a plain flag; nobody else's descriptor.
        let set = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        let (socket, peer) = std::os::unix::net::UnixStream::pair().unwrap();
        (set, socket, peer)
    }

    fn add(state: &mut State, set: c_int, fd: c_int, number: c_int) -> table::Rsocket {
        assert!(table::insert(fd, number));
        let found = table::find(fd).unwrap();
        let event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLOUT) as u32, u64: 77 };
        assert_eq!(state.control(set, libc::EPOLL_CTL_ADD, fd, found, Some(&event)), 0);
        found
    }

    #[test]
    fn nothing_is_told_of_a_descriptor_that_was_closed() {
        let (set, socket, _peer) = descriptors();
        let (set, fd) = (set.as_raw_fd(), socket.as_raw_fd());
        let mut state = State::default();
        add(&mut state, set, fd, 500_100);
        let (version, mut list, of) = state.begin();
        list[0].revents = libc::POLLIN;
        let mut room = [epoll_event { events: 0, u64: 0 }; 4];
        assert_eq!(state.collect(set, &list, &of, &mut room), 1);
        assert_eq!(({ room[0].events }, { room[0].u64 }), (libc::EPOLLIN as u32, 77));
        assert_eq!(table::remove(fd), Some(500_100));
        assert_eq!(state.collect(set, &list, &of, &mut room), 0);
        state.end(version);
    }

    #[test]
    fn an_ordinary_socket_is_in_the_kernels_set_as_it_was_in_ours() {
        let (set, socket, _peer) = descriptors();
        let (set, fd) = (set.as_raw_fd(), socket.as_raw_fd());
        let mut state = State::default();
        let found = add(&mut state, set, fd, 500_101);
        let mut room = [epoll_event { events: 0, u64: 0 }; 4];
        assert_eq!(ask_kernel(set, &mut room), 0);
        state.hand_over(set, fd, found.generation().wrapping_add(1));
        assert_eq!(ask_kernel(set, &mut room), 0, "another one");
        state.hand_over(set, fd, found.generation());
        assert_eq!(table::remove(fd), Some(500_101));
        assert_eq!(ask_kernel(set, &mut room), 1);
        assert_eq!(({ room[0].events }, { room[0].u64 }), (libc::EPOLLOUT as u32, 77));
    }
}
