//! Lists of segments: what a request gathers its bytes from, or scatters them to.

use super::{Buffer, MemoryRegion, Segment};
use adverb_core::error::PostError;
use adverb_core::request::Sge;
use std::fmt;

/// The local bytes of a request: one [`Segment`] or several, used in their order.
///
/// Every function that takes `impl Into<Segments>` takes a [`Buffer`], a [`Segment`], a reference to a
/// [`MemoryRegion`], or an array or vector of segments or buffers. One of them costs no allocation.
///
/// ```
/// use adverb::Segments;
///
/// # fn main() -> adverb::Result<()> {
/// let domain = adverb::Context::open_default()?.protection_domain()?;
/// let (head, body) = (domain.buffer(16)?, domain.buffer(1000)?);
/// let segments = Segments::from([head.slice(..), body.slice(..100)]);
/// assert_eq!((segments.len(), segments.bytes()), (2, 116));
/// # Ok(())
/// # }
/// ```
pub struct Segments(SegmentList);

enum SegmentList {
    One(Segment),
    Many(Vec<Segment>),
}

/// The elements of a request, copied: so the request's memory can change its owner before the request is
/// posted.
#[expect(
    clippy::large_enum_variant,
    reason = "it lies on the stack for the time of a post, and an allocation would cost more"
)]
pub(crate) enum Elements {
    None,
    One(Sge),
    Many([Sge; MOST], usize),
}

impl Elements {
    #[inline]
    pub(crate) fn as_slice(&self) -> &[Sge] {
        match self {
            Self::None => &[],
            Self::One(element) => std::slice::from_ref(element),
            Self::Many(elements, count) => &elements[..*count],
        }
    }
}

#[cold]
fn many(segments: &[Segment], domain: u32) -> Result<Elements, PostError> {
    let mut elements = [Sge::default(); MOST];
    let places = elements.get_mut(..segments.len()).ok_or(PostError::TooManySges)?;
    for (place, segment) in places.iter_mut().zip(segments) {
        *place = element(segment, domain)?;
    }
    Ok(Elements::Many(elements, segments.len()))
}

/// Most elements of a request on any device.
const MOST: usize = 32;

#[inline]
fn element(segment: &Segment, domain: u32) -> Result<Sge, PostError> {
    if segment.domain() != domain {
        return Err(PostError::OtherDomain);
    }
    segment.element().ok_or(PostError::TooLong)
}

impl Segments {
    /// How many there are.
    ///
    /// ```
    /// use adverb::{QueuePairOptions, Segments};
    ///
    /// # fn main() -> adverb::Result<()> {
    /// # let context = adverb::Context::open_default()?;
    /// # let domain = context.protection_domain()?;
    /// # let completions = context.completion_queue(16)?;
    /// let segments = Segments::from(domain.buffers(3, 64)?);
    /// // The queue pair takes a message of so many parts, if it was made for them.
    /// let max_scatter = segments.len() as u32;
    /// let options = QueuePairOptions { max_scatter, ..QueuePairOptions::new(&completions) };
    /// let queue_pair = domain.queue_pair(options)?;
    /// assert!(queue_pair.post_receive(0, segments).is_ok());
    /// # Ok(())
    /// # }
    /// ```
    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    /// Whether there are none.
    ///
    /// ```
    /// use adverb::{Buffer, Segments};
    ///
    /// // A list that the program has gathered may be empty: a message without bytes.
    /// let parts: Vec<Buffer> = Vec::new();
    /// let segments = Segments::from(parts);
    /// assert!(segments.is_empty() && segments.bytes() == 0);
    /// ```
    pub fn is_empty(&self) -> bool {
        self.as_slice().is_empty()
    }

    /// Bytes of all together.
    ///
    /// ```
    /// use adverb::{Rights, Segments, WorkRequest};
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ends/example.rs"));
    /// # fn main() -> adverb::Result<()> {
    /// # let (client, _server, region, there) = ends_with_region(Rights::READ)?;
    /// # region.write(0, &[7; 48]);
    /// // A Read fills its target, so the token names as many bytes.
    /// let target = Segments::from(client.domain().buffer(64)?.slice(..48));
    /// let source = there.slice(..target.bytes()).expect("the region has so much");
    /// client.post_send(WorkRequest::read(target, &source))?;
    /// assert_eq!(client.send_queue().wait(SOON)?.success()?.bytes, 48);
    /// # Ok(())
    /// # }
    /// ```
    pub fn bytes(&self) -> usize {
        self.as_slice().iter().map(Segment::len).fold(0, usize::saturating_add)
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[Segment] {
        match &self.0 {
            SegmentList::One(segment) => std::slice::from_ref(segment),
            SegmentList::Many(segments) => segments,
        }
    }

    /// The elements of a request in protection domain `domain`.
    #[inline]
    pub(crate) fn elements(&self, domain: u32) -> Result<Elements, PostError> {
        match &self.0 {
            SegmentList::One(segment) => Ok(Elements::One(element(segment, domain)?)),
            SegmentList::Many(segments) => many(segments, domain),
        }
    }

    /// The buffer of a single segment, and those of several.
    #[inline]
    pub(crate) fn into_buffers(self) -> (Option<Buffer>, Vec<Buffer>) {
        match self.0 {
            SegmentList::One(segment) => (segment.into_buffer(), Vec::new()),
            SegmentList::Many(segments) => {
                (None, segments.into_iter().filter_map(Segment::into_buffer).collect())
            }
        }
    }
}

impl From<Segment> for Segments {
    #[inline]
    fn from(segment: Segment) -> Self {
        Self(SegmentList::One(segment))
    }
}

impl From<Buffer> for Segments {
    #[inline]
    fn from(buffer: Buffer) -> Self {
        Self(SegmentList::One(buffer.into()))
    }
}

impl From<&MemoryRegion> for Segments {
    #[inline]
    fn from(region: &MemoryRegion) -> Self {
        Self(SegmentList::One(region.into()))
    }
}

impl<S: Into<Segment>> From<Vec<S>> for Segments {
    fn from(segments: Vec<S>) -> Self {
        Self(SegmentList::Many(segments.into_iter().map(Into::into).collect()))
    }
}

impl<S: Into<Segment>, const N: usize> From<[S; N]> for Segments {
    fn from(segments: [S; N]) -> Self {
        Self(SegmentList::Many(segments.into_iter().map(Into::into).collect()))
    }
}

impl fmt::Debug for Segments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}
