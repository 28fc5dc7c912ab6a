//! What a program wants to know of one rsocket, and what it knows already (epoll(7)).

/// An entry of an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interest {
    /// Which rsocket: its number, and what tells it from another with the same descriptor.
    pub(super) number: i32,
    pub(super) generation: u32,
    /// The program's own word for it.
    pub(super) data: u64,
    events: u32,
    /// Of an edge-triggered entry: what has been told, and has not been acted upon since.
    told: u32,
    /// Of a one-shot entry: whether it has been told something.
    spent: bool,
}

const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
/// What is told without being asked for.
const ENDS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// The events that poll(2) has, too, and for which it has the same words.
const POLLED: u32 = 0x3fff;

impl Interest {
    pub(super) fn new(number: i32, generation: u32, event: &libc::epoll_event) -> Self {
        Self { number, generation, data: event.u64, events: event.events, told: 0, spent: false }
    }

    pub(super) fn is_edge(&self) -> bool {
        self.events & EDGE != 0
    }

    /// What a program would say to have it so in a set of the kernel's.
    pub(super) fn event(&self) -> libc::epoll_event {
        let events = if self.spent { self.events & !POLLED } else { self.events };
        libc::epoll_event { events, u64: self.data }
    }

    /// What to wait for, in poll's words; `None` when nothing is to be told.
    pub(super) fn wanted(&self) -> Option<i16> {
        let over = self.spent || self.told & ENDS != 0;
        (!over).then_some((self.events & POLLED & !ENDS & !self.told) as i16)
    }

    /// `ready` was seen: what the program is told.
    pub(super) fn tell(&mut self, ready: i16) -> u32 {
        if self.spent {
            return 0;
        }
        let news = u32::from(ready as u16) & (self.events & POLLED | ENDS) & !self.told;
        if news != 0 {
            self.spent = self.events & ONCE != 0;
            if self.is_edge() {
                self.told |= news;
            }
        }
        news
    }

    /// The program has done what may change `events`: they are news when they are seen again. Whether that
    /// makes a difference.
    pub(super) fn touched(&mut self, events: u32) -> bool {
        let before = self.told;
        // After the end, there may still be something to take.
        self.told &= !(events | ENDS);
        self.told != before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: i16 = libc::POLLIN;
    const OUT: i16 = libc::POLLOUT;
    const HUP: i16 = libc::POLLHUP;

    fn interest(events: i32) -> Interest {
        Interest::new(7, 1, &libc::epoll_event { events: events as u32, u64: 9 })
    }

    #[test]
    fn a_level_is_told_as_long_as_it_lasts() {
        let mut entry = interest(libc::EPOLLIN);
        for _ in 0..2 {
            assert_eq!(entry.wanted(), Some(IN));
            assert_eq!(entry.tell(IN | HUP), (IN | HUP) as u32);
        }
        assert_eq!(entry.tell(OUT), 0, "nobody has asked");
        assert!(!entry.touched(IN as u32));
    }

    #[test]
    fn an_edge_is_told_once_until_the_program_acts() {
        let mut entry = interest(libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET);
        assert_eq!(entry.tell(OUT), OUT as u32);
        assert_eq!(entry.wanted(), Some(IN));
        assert_eq!((entry.tell(OUT), entry.tell(IN | OUT)), (0, IN as u32));
        assert_eq!(entry.wanted(), Some(0), "the end would still be told");
        assert!(entry.touched(IN as u32) && !entry.touched(IN as u32));
        assert_eq!((entry.wanted(), entry.tell(IN)), (Some(IN), IN as u32));
        assert_eq!((entry.tell(HUP), entry.wanted()), (HUP as u32, None));
        assert!(entry.touched(IN as u32));
        assert_eq!(entry.wanted(), Some(IN));
    }

    #[test]
    fn one_shot_is_one_event() {
        let mut entry = interest(libc::EPOLLIN | libc::EPOLLONESHOT);
        assert_eq!((entry.tell(IN), entry.wanted(), entry.tell(HUP)), (IN as u32, None, 0));
    }
}
