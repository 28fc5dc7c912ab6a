//! Numbers of requests that stand for values of the program.

use std::fmt;

/// A table of values for requests in flight: each has a number, which the request carries and its completion
/// brings back.
///
/// [`WorkRequest::id`](crate::WorkRequest::id) and the first argument of
/// [`QueuePair::post_receive`](crate::QueuePair::post_receive) are numbers. The program may choose them
/// itself. With this table, they stand for values of any type: an enum, a task, the sending half of a
/// channel.
///
/// ```
/// use adverb::{RequestIds, WorkRequest};
/// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
///
/// #[derive(Debug, PartialEq)]
/// enum Part {
///     Head { pages: u32 },
///     Page(u32),
/// }
///
/// # fn main() -> adverb::Result<()> {
/// # let (connection, server) = ends()?;
/// let mut ids = RequestIds::new();
/// let head = ids.enter(Part::Head { pages: 1 });
/// connection.post_send(WorkRequest::send(b"one page").id(head))?;
/// let page = ids.enter(Part::Page(0));
/// connection.post_send(WorkRequest::send(b"once upon a time").id(page))?;
///
/// let mut ended = Vec::new();
/// while !ids.is_empty() {
///     let completion = connection.send_queue().wait(SOON)?.success()?;
///     ended.extend(ids.take(completion.id));
/// }
/// assert_eq!(ended, [Part::Head { pages: 1 }, Part::Page(0)]);
/// # Ok(())
/// # }
/// ```
///
/// A number is good once: a completion that is not the table's finds nothing. It is never 0, the number of a
/// request that was given none. A request that was not accepted has no completion: take its value out by the
/// same number. An [unsignalled](crate::WorkRequest::unsignalled) request has none either, unless it fails.
///
/// In the steady state, nothing is allocated. Threads that share a table put it into a
/// [`Mutex`](std::sync::Mutex).
pub struct RequestIds<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

struct Place<T> {
    /// Times that the place was used. Never 0.
    uses: u32,
    value: Option<T>,
}

impl<T> RequestIds<T> {
    /// A table without values.
    ///
    /// ```
    /// use adverb::RequestIds;
    /// use std::sync::Mutex;
    ///
    /// /// Names of files whose requests are in flight, for all threads.
    /// static FILES: Mutex<RequestIds<String>> = Mutex::new(RequestIds::new());
    ///
    /// let id = FILES.lock().unwrap().enter("notes.txt".into());
    /// assert_eq!(FILES.lock().unwrap().take(id).as_deref(), Some("notes.txt"));
    /// ```
    pub const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    /// Enters a value, and returns its number.
    ///
    /// ```
    /// use adverb::{RequestIds, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server) = ends()?;
    /// let mut names = RequestIds::new();
    /// let id = names.enter("a greeting");
    /// client.post_send(WorkRequest::send(b"hello").id(id))?;
    /// // The completion brings the number, and the number the value.
    /// let ended = client.send_queue().wait(SOON)?;
    /// assert_eq!(names.take(ended.id), Some("a greeting"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// If the table has 2^32 values.
    pub fn enter(&mut self, value: T) -> u64 {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let index = u32::try_from(self.places.len()).expect("fewer than 2^32 requests are in flight");
                self.places.push(Place { uses: 1, value: None });
                // So that a take never allocates.
                self.free.reserve(self.places.len());
                index
            }
        };
        let place = &mut self.places[index as usize];
        place.value = Some(value);
        u64::from(place.uses) << 32 | u64::from(index)
    }

    /// Takes the value of this number out. None if the table has given no such number, or if its value was
    /// taken before.
    ///
    /// ```
    /// # let mut ids = adverb::RequestIds::new();
    /// let id = ids.enter("a question");
    /// assert_eq!(ids.take(id), Some("a question"));
    /// assert_eq!(ids.take(id), None);
    /// ```
    pub fn take(&mut self, id: u64) -> Option<T> {
        let (uses, index) = (id >> 32, id as u32);
        let place = self.places.get_mut(index as usize)?;
        let value = place.value.take_if(|_| u64::from(place.uses) == uses)?;
        place.uses = place.uses.checked_add(1).unwrap_or(1);
        self.free.push(index);
        Some(value)
    }

    /// Values in the table.
    ///
    /// ```
    /// # let mut ids = adverb::RequestIds::new();
    /// // A program that has at most two questions under way at once:
    /// let mut questions = std::collections::VecDeque::from(["who", "where", "when"]);
    /// while ids.len() < 2
    ///     && let Some(question) = questions.pop_front()
    /// {
    ///     ids.enter(question);
    /// }
    /// assert_eq!(questions, ["when"]);
    /// ```
    pub fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Whether there are none.
    ///
    /// ```
    /// # let mut ids = adverb::RequestIds::new();
    /// let id = ids.enter("the last answer");
    /// // Before the program ends the connection, it waits until no request is left.
    /// assert!(!ids.is_empty());
    /// ids.take(id);
    /// assert!(ids.is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All values in the table, in no order: for the end of a program whose requests will not complete.
    ///
    /// ```
    /// # let mut ids = adverb::RequestIds::new();
    /// ids.enter("an answer that will not come");
    /// assert_eq!(ids.into_values().count(), 1);
    /// ```
    pub fn into_values(self) -> impl Iterator<Item = T> {
        self.places.into_iter().filter_map(|place| place.value)
    }
}

impl<T> Default for RequestIds<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for RequestIds<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestIds").field("len", &self.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_finds_its_value_once() {
        let mut ids = RequestIds::new();
        let (a, b) = (ids.enter('a'), ids.enter('b'));
        assert_eq!((ids.len(), ids.take(a), ids.take(a)), (2, Some('a'), None));
        // The place is used again, by another number.
        let c = ids.enter('c');
        assert!(![0, a, b].contains(&c));
        assert_eq!((ids.take(a), ids.take(c), ids.take(b)), (None, Some('c'), Some('b')));
        assert!(ids.is_empty());
    }

    #[test]
    fn numbers_of_others_find_nothing_and_change_nothing() {
        let mut ids = RequestIds::new();
        assert_eq!(ids.take(0), None);
        let a = ids.enter('a');
        for other in [0, 1, a + 1, a - 1, a + (1 << 32), u64::MAX] {
            assert_eq!(ids.take(other), None, "{other}");
        }
        assert_eq!(ids.into_values().collect::<Vec<_>>(), ['a']);
    }

    #[test]
    fn a_place_that_was_used_often_has_no_number_0() {
        let mut ids = RequestIds::new();
        let a = ids.enter('a');
        ids.take(a);
        ids.places[0].uses = u32::MAX;
        let last = ids.enter('b');
        assert_eq!(ids.take(last), Some('b'));
        assert_eq!(ids.enter('c'), a);
    }
}
