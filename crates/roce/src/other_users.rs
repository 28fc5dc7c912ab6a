//! Connections of other users' processes to this one. They have a bound, which is shared out by user, and a
//! time limit on silence: so one user's connections keep no other user from asking.

use crate::lock;
use crate::net::Net;
use crate::seqpacket::Connection;
use crate::time;
use adverb_core::cm::oldest_of_the_busiest;
use adverb_core::error::{Error, Result};
use adverb_core::reactor::{Readiness, Source};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Connections for one purpose, of all other users together. Those of our own user are bounded by its limit
/// of descriptors, which counts at both ends.
const MOST: usize = 256;
/// A connection that asks is closed when nothing has come by it for so long. A process that asks again later
/// connects again.
const SILENCE: Duration = Duration::from_secs(5);

/// The purpose of another process's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The process asks something, now and then.
    Asks,
    /// The process watches this one, which holds UDP port 4791. It says nothing, and is to learn of the end.
    Watches,
}

/// Connections of other users' processes to this process. Their number is bounded, and shared out by user.
/// Thread-safe.
#[derive(Default)]
pub(crate) struct OtherUsers(Mutex<State>);

#[derive(Default)]
struct State {
    /// The connections. The one that has been silent the longest comes first.
    all: Vec<OtherConnection>,
    /// A timer runs that looks for silent ones.
    is_watched: bool,
}

struct OtherConnection {
    connection: Arc<Connection>,
    purpose: Purpose,
    /// The user of the process. None stands for one more user: all users that the system does not name.
    user: Option<libc::uid_t>,
    /// When the other process has said something, or has come.
    heard: Duration,
}

impl OtherUsers {
    /// Lets a connection in. Where there are as many as may be, the user that has the most loses the
    /// connection that has been silent the longest. True if the caller has to have silent ones looked for
    /// [after a while](Self::hang_up_silent).
    ///
    /// # Errors
    /// EUSERS if the user that watches most often would only lose one to get another, without end.
    fn enter(&self, connection: &Arc<Connection>, purpose: Purpose, now: Duration) -> Result<bool> {
        self.enter_as(connection.user(), connection, purpose, now)
    }

    /// Lets in a connection of this user, as [`OtherUsers::enter`] does.
    fn enter_as(
        &self,
        user: Option<libc::uid_t>,
        connection: &Arc<Connection>,
        purpose: Purpose,
        now: Duration,
    ) -> Result<bool> {
        let mut state = lock(&self.0);
        let State { all, is_watched } = &mut *state;
        let places: Vec<usize> = (0..all.len()).filter(|place| all[*place].purpose == purpose).collect();
        if places.len() >= MOST {
            let users = places.iter().map(|place| all[*place].user).chain([user]);
            // The newcomer comes last, and is not the oldest of many.
            let gone = oldest_of_the_busiest(users).and_then(|index| places.get(index).copied());
            // A place to watch is taken only from a user that has more of them, or two users would take it
            // from each other for ever.
            let count = |user| places.iter().filter(|place| all[**place].user == user).count();
            let gone =
                gone.filter(|gone| purpose == Purpose::Asks || count(all[*gone].user) > count(user) + 1);
            let Some(gone) = gone else {
                return Err(Error::new(libc::EUSERS, "too many connections of another user"));
            };
            // The reactor reports the hang-up, and messages that came before it are still read.
            all.remove(gone).connection.hang_up();
        }
        all.push(OtherConnection { connection: connection.clone(), purpose, user, heard: now });
        Ok(purpose == Purpose::Asks && !std::mem::replace(is_watched, true))
    }

    /// Something has come by a connection.
    pub(crate) fn heard(&self, connection: &Arc<Connection>) {
        let now = time::now();
        let mut state = lock(&self.0);
        if let Some(place) = state.all.iter().position(|it| Arc::ptr_eq(&it.connection, connection)) {
            let stranger = state.all.remove(place);
            state.all.push(OtherConnection { heard: now, ..stranger });
        }
    }

    /// A connection has ended.
    pub(crate) fn leave(&self, connection: &Arc<Connection>) {
        lock(&self.0).all.retain(|it| !Arc::ptr_eq(&it.connection, connection));
    }

    /// Hangs up on those that have been silent for too long, and says when to look again, if there are
    /// others.
    fn hang_up_silent(&self, now: Duration) -> Option<Duration> {
        let mut state = lock(&self.0);
        state.all.retain(|it| {
            let stays = it.purpose == Purpose::Watches || now < it.heard + SILENCE;
            if !stays {
                it.connection.hang_up();
            }
            stays
        });
        let next = state.all.iter().find(|it| it.purpose == Purpose::Asks);
        let next = next.map(|it| it.heard + SILENCE - now);
        state.is_watched = next.is_some();
        next
    }

    /// Connections there are.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn count(&self) -> usize {
        lock(&self.0).all.len()
    }

    /// Lets a connection in, without a timer for silence.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn enter_unwatched(&self, connection: &Arc<Connection>) {
        let _ = self.enter(connection, Purpose::Asks, time::now());
    }
}

/// Lets a connection of another user's process in, and looks after it.
///
/// # Errors
/// When there are too many, and when there is no thread to look after it.
pub(crate) fn admit(net: &Arc<Net>, connection: &Arc<Connection>, purpose: Purpose) -> Result<()> {
    if net.other_users.enter(connection, purpose, time::now())? {
        let watched = net.engine().and_then(|engine| engine.reactor.set_timer(SILENCE, Watch::of(net)));
        if let Err(error) = watched {
            net.other_users.leave(connection);
            lock(&net.other_users.0).is_watched = false;
            return Err(error);
        }
    }
    Ok(())
}

/// Looks for silent ones.
struct Watch(Arc<Net>);

impl Watch {
    fn of(net: &Arc<Net>) -> Arc<Self> {
        Arc::new(Self(net.clone()))
    }
}

impl Source for Watch {
    fn ready(self: Arc<Self>, _: Readiness) {}

    fn timeout(self: Arc<Self>) {
        let others = &self.0.other_users;
        if let (Some(after), Ok(engine)) = (others.hang_up_silent(time::now()), self.0.engine())
            && engine.reactor.set_timer(after, Self::of(&self.0)).is_err()
        {
            lock(&others.0).is_watched = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn connections(count: usize) -> Vec<[Arc<Connection>; 2]> {
        (0..count).map(|_| Connection::pair().expect("two sockets").map(Arc::new)).collect()
    }

    const START: Duration = Duration::from_secs(100);

    #[test]
    fn silent_ones_go_and_those_that_watch_stay() {
        let others = OtherUsers::default();
        let [[silent, _s], [talks, _t], [watches, _w]] = connections(3).try_into().ok().unwrap();
        assert!(!others.enter(&watches, Purpose::Watches, START).unwrap());
        assert!(others.enter(&silent, Purpose::Asks, START).unwrap());
        let later = START + Duration::from_secs(1);
        assert!(!others.enter(&talks, Purpose::Asks, later).unwrap(), "somebody looks already");
        assert_eq!(others.hang_up_silent(START + SILENCE), Some(Duration::from_secs(1)));
        assert_eq!([&silent, &talks, &watches].map(|it| it.has_hung_up()), [true, false, false]);
        assert_eq!(others.hang_up_silent(later + SILENCE), None);
        assert_eq!([&talks, &watches].map(|it| it.has_hung_up()), [true, false]);
        assert_eq!(others.count(), 1);
        assert!(others.enter(&talks, Purpose::Asks, later).unwrap(), "nobody looks any more");
    }

    #[test]
    fn a_user_that_has_all_places_loses_one_for_its_next_question_and_none_to_watch() {
        let others = OtherUsers::default();
        let all = connections(MOST + 1);
        for [here, _] in &all[..MOST] {
            others.enter(here, Purpose::Asks, START).unwrap();
        }
        others.heard(&all[0][0]);
        others.enter(&all[MOST][0], Purpose::Asks, START).unwrap();
        let gone: Vec<usize> = (0..=MOST).filter(|place| all[*place][1].has_hung_up()).collect();
        assert_eq!(gone, [1], "the one that has been silent the longest");
        let watching = connections(MOST + 1);
        let entered = watching.iter().filter(|[here, _]| others.enter(here, Purpose::Watches, START).is_ok());
        assert_eq!(entered.count(), MOST);
        assert!(watching.iter().all(|[_, there]| !there.has_hung_up()));
        others.leave(&watching[0][0]);
        assert!(others.enter(&watching[MOST][0], Purpose::Watches, START).is_ok());
    }

    /// Places to watch are shared out by user, and no two users take a place from each other for ever.
    #[test]
    fn a_user_that_watches_with_fewer_takes_the_place_of_one_that_has_more() {
        const FEW: usize = 8;
        let others = OtherUsers::default();
        let all = connections(MOST + FEW);
        let enter = |user: u32, place: usize| {
            others.enter_as(Some(user), &all[place][0], Purpose::Watches, START).is_ok()
        };
        assert!((0..MOST).all(|place| enter(1, place)));
        assert!((MOST..MOST + FEW).all(|place| enter(2, place)));
        let gone: Vec<usize> = (0..MOST + FEW).filter(|place| all[*place][1].has_hung_up()).collect();
        assert_eq!(
            gone,
            (0..FEW).collect::<Vec<_>>(),
            "the first user loses the places that it has had longest"
        );
        assert_eq!(others.count(), MOST);
        // Once they have as many, neither gets one more, again and again.
        // The first ones are not needed any more: a process may have 1,024 descriptors.
        drop(all);
        let more = connections(MOST);
        let entered = (0..MOST).filter(|place| {
            let user = Some(1 + *place as u32 % 2);
            others.enter_as(user, &more[*place][0], Purpose::Watches, START).is_ok()
        });
        assert!(entered.count() <= MOST / 2 - FEW);
        let state = lock(&others.0);
        let of_first = state.all.iter().filter(|it| it.user == Some(1)).count();
        assert!(of_first.abs_diff(MOST - of_first) <= 1, "{of_first} of {MOST}");
    }
}
