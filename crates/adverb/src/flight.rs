//! The requests in flight of one completion queue, with the memory that each of them owns.

use crate::Segments;

/// A table of requests. A place is named by its index and the number of times it was used, so that a stale
/// name finds nothing.
///
/// It grows to the most requests that were ever in flight at once, so in the steady state nothing is
/// allocated.
pub(crate) struct Flights {
    places: Vec<Place>,
    free: Vec<u32>,
    most: usize,
    naming: Naming,
}

/// How the names of a table are made: of its tag, the times that a place was used, and the place's index.
#[derive(Clone, Copy)]
struct Naming {
    tag: u64,
    /// Bits of the index.
    shift: u32,
    /// A mask: the bits of the number of uses that stand in a name.
    uses: u64,
}

/// In the names of shared receive queues.
const SHARED: u64 = 1 << 63;
const OWN: Naming = Naming { tag: 0, shift: 32, uses: (1 << 31) - 1 };
const SHARED_SHIFT: u32 = 36;

/// Shared receive queues that names can tell apart.
pub(crate) const MOST_SHARED: u32 = 1 << (63 - SHARED_SHIFT);

/// The number of the shared receive queue whose request has this name. None for one of a completion queue.
#[inline]
pub(crate) fn shared_queue(name: u64) -> Option<u32> {
    (name & SHARED != 0).then_some((name >> SHARED_SHIFT) as u32 & (MOST_SHARED - 1))
}

impl Naming {
    #[inline]
    fn name(self, uses: u32, index: usize) -> u64 {
        self.tag | (u64::from(uses) & self.uses) << self.shift | index as u64
    }

    /// Index and uses of a name.
    #[inline]
    fn parts(self, name: u64) -> (usize, u64) {
        ((name & ((1 << self.shift) - 1)) as usize, name >> self.shift & self.uses)
    }
}

struct Place {
    uses: u32,
    flight: Option<Flight>,
}

/// A request in flight.
pub(crate) struct Flight {
    /// The program's own name for it.
    pub(crate) id: u64,
    /// Which queue pair it is on: [`crate::queue_pair`]'s own numbers, which never repeat.
    pub(crate) queue_pair: u64,
    /// The memory that the request owns.
    pub(crate) segments: Option<Segments>,
    /// The request before it in its send queue, if that reports nothing when it ends well; [`NOTHING`]
    /// otherwise. When this one is complete, so is that one.
    pub(crate) previous: u64,
}

/// The name of no request.
pub(crate) const NOTHING: u64 = u64::MAX;

impl Flights {
    /// A table for at most `most` requests.
    pub(crate) fn new(most: usize) -> Self {
        Self { places: Vec::new(), free: Vec::new(), most, naming: OWN }
    }

    /// A table of the requests of the shared receive queue with the number `identity`, at most `most` of
    /// them.
    pub(crate) fn of_shared(most: usize, identity: u32) -> Self {
        let naming =
            Naming { tag: SHARED | u64::from(identity) << SHARED_SHIFT, shift: 16, uses: (1 << 20) - 1 };
        Self { naming, ..Self::new(most.min(1 << 16)) }
    }

    /// Takes the room for `count` requests, which are entered elsewhere. Whether there was so much.
    pub(crate) fn reserve(&mut self, count: usize) -> bool {
        let used = self.places.len() - self.free.len();
        let left = self.most.checked_sub(count).filter(|left| *left >= used);
        self.most = left.unwrap_or(self.most);
        left.is_some()
    }

    /// Gives such room back.
    pub(crate) fn release(&mut self, count: usize) {
        self.most += count;
    }

    /// Enters a request; its name, or the request again if the table is full.
    pub(crate) fn enter(&mut self, flight: Flight) -> Result<u64, Flight> {
        if self.places.len() - self.free.len() >= self.most {
            return Err(flight);
        }
        let index = match self.free.pop() {
            Some(index) => index as usize,
            None => {
                self.places.push(Place { uses: 0, flight: None });
                // So that giving a place back never allocates.
                self.free.reserve(self.places.len());
                self.places.len() - 1
            }
        };
        let place = &mut self.places[index];
        place.flight = Some(flight);
        Ok(self.naming.name(place.uses, index))
    }

    /// Takes a request out.
    pub(crate) fn leave(&mut self, name: u64) -> Option<Flight> {
        let (index, uses) = self.naming.parts(name);
        let place = self.places.get_mut(index)?;
        if u64::from(place.uses) & self.naming.uses != uses {
            return None;
        }
        let flight = place.flight.take()?;
        place.uses = place.uses.wrapping_add(1);
        self.free.push(index as u32);
        Some(flight)
    }

    /// Takes out a request that is complete; also what those before it own that have reported nothing, the
    /// oldest first.
    #[inline]
    pub(crate) fn complete(&mut self, name: u64) -> Option<(Flight, Vec<Segments>)> {
        let flight = self.leave(name)?;
        let mut earlier = Vec::new();
        if flight.previous != NOTHING {
            self.leave_before(flight.previous, &mut earlier);
        }
        Some((flight, earlier))
    }

    #[cold]
    fn leave_before(&mut self, mut name: u64, earlier: &mut Vec<Segments>) {
        // One that has failed has reported that, and everything before it has left then: its name finds
        // nothing.
        while let Some(flight) = self.leave(name) {
            earlier.extend(flight.segments);
            name = flight.previous;
        }
        earlier.reverse();
    }

    /// How many requests of a queue pair are in it. Looks at each place.
    pub(crate) fn count(&self, queue_pair: u64) -> usize {
        let flights = self.places.iter().filter_map(|place| place.flight.as_ref());
        flights.filter(|flight| flight.queue_pair == queue_pair).count()
    }

    /// Takes out all requests of a queue pair.
    pub(crate) fn leave_all(&mut self, queue_pair: u64) -> Vec<Flight> {
        let of_queue_pair = |place: &Place| place.flight.as_ref().is_some_and(|f| f.queue_pair == queue_pair);
        let places = self.places.iter().enumerate().filter(|(_, place)| of_queue_pair(place));
        let names: Vec<u64> = places.map(|(index, place)| self.naming.name(place.uses, index)).collect();
        names.into_iter().filter_map(|name| self.leave(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(id: u64, queue_pair: u64) -> Flight {
        Flight { id, queue_pair, segments: None, previous: NOTHING }
    }

    #[test]
    fn unsignalled_requests_leave_with_the_next_request_that_reports() {
        let mut flights = Flights::new(8);
        let enter = |flights: &mut Flights, id, previous| {
            flights.enter(Flight { previous, ..flight(id, 7) }).ok().unwrap()
        };
        let a = enter(&mut flights, 1, NOTHING);
        let b = enter(&mut flights, 2, a);
        let c = enter(&mut flights, 3, b);
        let last = enter(&mut flights, 4, NOTHING);
        assert_eq!(flights.complete(c).unwrap().0.id, 3);
        for gone in [a, b, c] {
            assert!(flights.leave(gone).is_none());
        }
        // One of them fails, and so reports: those before it leave with it, and those behind it with the next
        // one.
        let a = enter(&mut flights, 5, NOTHING);
        let b = enter(&mut flights, 6, a);
        let c = enter(&mut flights, 7, b);
        assert_eq!(flights.complete(b).unwrap().0.id, 6);
        assert!(flights.leave(a).is_none());
        assert_eq!(flights.complete(c).unwrap().0.id, 7);
        assert_eq!(flights.leave(last).unwrap().id, 4);
        assert_eq!(flights.free.len(), flights.places.len());
    }

    #[test]
    fn names_of_shared_queues_are_told_apart() {
        let identity = MOST_SHARED - 1;
        let mut flights = Flights::of_shared(2, identity);
        for _ in 0..3 {
            let name = flights.enter(flight(1, NOTHING)).ok().unwrap();
            assert_eq!(shared_queue(name), Some(identity));
            assert_eq!(flights.leave(name).unwrap().id, 1);
            assert!(flights.leave(name).is_none());
        }
        let own = Flights::new(1).enter(flight(1, 7)).ok().unwrap();
        assert_eq!(shared_queue(own), None);
    }

    #[test]
    fn reserved_room_is_nobody_elses() {
        let mut flights = Flights::new(3);
        let a = flights.enter(flight(1, 7)).ok().unwrap();
        assert!(!flights.reserve(3) && flights.reserve(2));
        assert!(flights.enter(flight(2, 7)).is_err());
        flights.leave(a).unwrap();
        flights.enter(flight(3, 7)).ok().unwrap();
        flights.release(2);
        assert!(flights.enter(flight(4, 7)).is_ok() && flights.enter(flight(5, 7)).is_ok());
        assert!(flights.enter(flight(6, 7)).is_err());
    }

    #[test]
    fn a_name_is_good_once() {
        let mut flights = Flights::new(2);
        let a = flights.enter(flight(1, 7)).ok().unwrap();
        let b = flights.enter(flight(2, 8)).ok().unwrap();
        assert_eq!(flights.enter(flight(3, 8)).err().unwrap().id, 3);
        assert_eq!(flights.leave(a).unwrap().id, 1);
        assert!(flights.leave(a).is_none());
        let c = flights.enter(flight(4, 8)).ok().unwrap();
        assert_ne!(a, c);
        let mut left: Vec<u64> = flights.leave_all(8).iter().map(|flight| flight.id).collect();
        left.sort();
        assert_eq!(left, [2, 4]);
        assert!(flights.leave(b).is_none() && flights.leave(c).is_none());
    }
}
