//! Markers and the CRC of FPDUs (RFC 5044 sections 4.3 and 4.4).

use adverb_wire::mpa::{CRC_LEN, MARKER_INTERVAL, MARKER_LEN, Marker};
use adverb_wire::zerocopy::{FromBytes, IntoBytes};
use crc_fast::{CrcAlgorithm, Digest};

use super::fault::Fault;

/// Longest trailer: padding and CRC.
pub(crate) const MAX_TRAILER: usize = 3 + CRC_LEN;

/// Payload between two markers.
const MARKER_PAYLOAD: usize = MARKER_INTERVAL - MARKER_LEN;
/// How much is copied before it is checksummed: small enough to be in the first-level cache still.
const COPY_CHUNK: usize = 8192;

/// Where the next marker is due in one direction of a stream with markers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
// RFC5044-4.3-6
pub(crate) struct MarkerPosition(
    /// Bytes since the start of the last marker; 0 when one is due right here, as at the start of the stream.
    u16,
);

impl MarkerPosition {
    pub(crate) const START: MarkerPosition = MarkerPosition(0);

    /// Bytes before the next marker.
    fn distance(self) -> usize {
        (MARKER_INTERVAL - self.0 as usize) % MARKER_INTERVAL
    }

    fn is_due(self) -> bool {
        self.0 == 0
    }

    /// Bytes of the stream that `content` bytes take with their markers. A marker due right after them
    /// belongs to what follows.
    // RFC5044-4.3-2
    pub(crate) fn stream_len(self, content: usize) -> usize {
        content + MARKER_LEN * content.saturating_sub(self.distance()).div_ceil(MARKER_PAYLOAD)
    }

    /// Bytes before the length field of an FPDU that starts here: a marker, if one is due.
    pub(crate) fn lead(self) -> usize {
        if self.is_due() { MARKER_LEN } else { 0 }
    }

    fn advance(&mut self, bytes: usize) {
        self.0 = ((self.0 as usize + bytes) % MARKER_INTERVAL) as u16;
    }
}

/// CRC32C of the start of an FPDU, as it stands in its last four bytes.
fn finish(digest: &Digest) -> [u8; CRC_LEN] {
    // The order of bytes is that of iSCSI (RFC 5044 section 4.4): least significant first.
    (digest.finalize() as u32).to_le_bytes()
}

// RFC5044-4.4-1, RFC5044-4.4-7
fn new_digest() -> Digest {
    Digest::new(CrcAlgorithm::Crc32Iscsi)
}

/// The checksum of an FPDU without markers that is made of parts, and its trailer.
pub struct Checksum {
    digest: Digest,
    padding: usize,
}

impl Checksum {
    /// Over a head that has been written, before the payload.
    pub(crate) fn new(head: &[u8], padding: usize) -> Checksum {
        let mut digest = new_digest();
        digest.update(head);
        Checksum { digest, padding }
    }

    /// The next bytes of the payload.
    pub fn update(&mut self, payload: &[u8]) {
        self.digest.update(payload);
    }

    /// Padding and CRC: the first [`super::Fpdu::trailer_len`] bytes.
    // RFC5044-4.1-2, RFC5044-4.1-3
    pub fn trailer(mut self) -> [u8; MAX_TRAILER] {
        let mut trailer = [0; MAX_TRAILER];
        self.digest.update(&trailer[..self.padding]);
        trailer[self.padding..self.padding + CRC_LEN].copy_from_slice(&finish(&self.digest));
        trailer
    }
}

/// Lays an FPDU out in a buffer: its parts one after the other, markers where they are due, the CRC at the
/// end.
// RFC5044-4.3-1
pub(crate) struct Weaver<'a> {
    out: &'a mut [u8],
    at: usize,
    /// Where the length field stands, once it is written.
    start: Option<usize>,
    markers: Option<MarkerPosition>,
    digest: Option<Digest>,
}

impl<'a> Weaver<'a> {
    pub(crate) fn new(out: &'a mut [u8], markers: Option<MarkerPosition>, crc: bool) -> Weaver<'a> {
        Weaver { out, at: 0, start: None, markers, digest: crc.then(new_digest) }
    }

    /// Appends `len` bytes that `fill` writes, piece by piece. It is given the offset of each piece.
    pub(crate) fn fill<E>(
        &mut self,
        len: usize,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = 0;
        while done < len {
            let mut chunk = (len - done).min(COPY_CHUNK);
            if let Some(markers) = self.markers {
                if markers.is_due() {
                    self.marker();
                }
                chunk = chunk.min(self.markers.map_or(chunk, MarkerPosition::distance));
            }
            let piece = &mut self.out[self.at..self.at + chunk];
            fill(done, piece)?;
            if let Some(digest) = &mut self.digest {
                digest.update(piece);
            }
            self.start.get_or_insert(self.at);
            self.advance(chunk);
            done += chunk;
        }
        Ok(())
    }

    /// Appends bytes.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        let Ok(()) = self.fill(bytes.len(), |offset, piece| {
            piece.copy_from_slice(&bytes[offset..offset + piece.len()]);
            Ok::<(), std::convert::Infallible>(())
        });
    }

    /// Appends the CRC, or zeros without; returns the bytes written in all and where the stream is now.
    pub(crate) fn finish(mut self) -> (usize, Option<MarkerPosition>) {
        // RFC5044-4.4-8: a marker between padding and CRC is covered by the CRC.
        if self.markers.is_some_and(MarkerPosition::is_due) {
            self.marker();
        }
        // RFC5044-4.1-3, RFC5044-4.4-6
        let crc = self.digest.take().map_or([0; CRC_LEN], |digest| finish(&digest));
        self.put(&crc);
        (self.at, self.markers)
    }

    fn marker(&mut self) {
        // RFC5044-4.3-3, RFC5044-4.3-4, RFC5044-4.3-5
        let distance = self.start.map_or(0, |start| self.at - start);
        let piece = &mut self.out[self.at..self.at + MARKER_LEN];
        piece.copy_from_slice(Marker::new(distance as u16).as_bytes());
        if let Some(digest) = &mut self.digest {
            digest.update(piece);
        }
        self.advance(MARKER_LEN);
    }

    fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        if let Some(markers) = &mut self.markers {
            markers.advance(bytes);
        }
    }
}

/// Checks a whole FPDU, with its markers, and takes these out: the content then stands at the start of
/// `frame`. Returns where the stream is after it.
pub(crate) fn unweave(
    frame: &mut [u8],
    markers: Option<MarkerPosition>,
    crc: bool,
) -> Result<Option<MarkerPosition>, Fault> {
    if crc {
        // RFC5044-4.4-9, RFC5044-6-1, RFC5044-8-2
        let (covered, received) = frame.split_at(frame.len() - CRC_LEN);
        let mut digest = new_digest();
        digest.update(covered);
        if finish(&digest) != received {
            return Err(Fault::Crc);
        }
    }
    let Some(mut position) = markers else { return Ok(None) };
    let start = position.lead();
    let (mut from, mut to) = (0, 0);
    while from < frame.len() {
        if position.is_due() {
            let (marker, _) = Marker::ref_from_prefix(&frame[from..]).map_err(|_| Fault::Marker)?;
            // RFC5044-8-3
            if marker.distance() as usize != from.saturating_sub(start) {
                return Err(Fault::Marker);
            }
            position.advance(MARKER_LEN);
            from += MARKER_LEN;
        }
        let chunk = position.distance().min(frame.len() - from);
        frame.copy_within(from..from + chunk, to);
        position.advance(chunk);
        from += chunk;
        to += chunk;
    }
    Ok(Some(position))
}

#[cfg(test)]
mod tests {
    use super::*;
    use adverb_wire::mpa::fpdu_len;
    use proptest::prelude::*;

    /// A frame from length field to padding, in the way of [`Weaver`], at a position in the marker interval.
    fn weave(ulpdu: &[u8], markers: Option<MarkerPosition>, crc: bool) -> (Vec<u8>, Option<MarkerPosition>) {
        let content = fpdu_len(ulpdu.len());
        let len = markers.map_or(content, |markers| markers.stream_len(content));
        let mut out = vec![0xaa; len];
        let mut weaver = Weaver::new(&mut out, markers, crc);
        weaver.put(&(ulpdu.len() as u16).to_be_bytes());
        weaver.put(ulpdu);
        weaver.put(&vec![0; content - 6 - ulpdu.len()]);
        let (written, after) = weaver.finish();
        assert_eq!(written, len);
        (out, after)
    }

    /// The DDP segment of RFC 5044 figures 5 and 6.
    fn example(msn: u8) -> Vec<u8> {
        let mut ulpdu = vec![0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, msn, 0, 0, 0, 0];
        ulpdu.extend_from_slice(&[0; 24]);
        ulpdu
    }

    // RFC5044-4.4-1, RFC5044-4.4-7, RFC5044-4.4-8, RFC5044-4.3-2, RFC5044-4.3-4
    #[test]
    fn the_first_fpdu_of_figure_5() {
        let (frame, after) = weave(&example(1), Some(MarkerPosition::START), true);
        assert_eq!(frame[..6], [0, 0, 0, 0, 0, 0x2a]);
        assert_eq!(frame[48..], [0x52, 0x23, 0x99, 0x83]);
        assert_eq!(after, Some(MarkerPosition(52)));
    }

    // RFC5044-4.3-3, RFC5044-4.2-1
    #[test]
    fn the_second_fpdu_of_figure_6() {
        let (frame, after) = weave(&example(2), Some(MarkerPosition(492)), true);
        assert_eq!(frame[20..24], [0, 0, 0, 0x14]);
        assert_eq!(frame[48..], [0x84, 0x92, 0x58, 0x98]);
        assert_eq!(after, Some(MarkerPosition(32)));
    }

    #[test]
    fn a_marker_between_padding_and_crc_is_covered() {
        // 504 bytes of length, ULPDU and padding after the marker at the start, so that the next one is due
        // there.
        let ulpdu = vec![7; 506];
        let (mut frame, _) = weave(&ulpdu, Some(MarkerPosition::START), true);
        assert_eq!(frame[512..516], [0, 0, 0x01, 0xfc]);
        assert_eq!(frame.len(), 520);
        let original = frame.clone();
        assert!(unweave(&mut frame, Some(MarkerPosition::START), true).is_ok());
        frame = original;
        frame[513] ^= 1;
        assert_eq!(unweave(&mut frame, Some(MarkerPosition::START), true), Err(Fault::Crc));
    }

    // RFC5044-8-3, RFC5044-4.3-5
    #[test]
    fn every_marker_of_an_fpdu_is_checked() {
        let (frame, _) = weave(&[5; 2000], Some(MarkerPosition::START), false);
        for marker in [0, 512, 1024, 1536] {
            let mut bad = frame.clone();
            bad[marker + 3] ^= 8;
            assert_eq!(unweave(&mut bad, Some(MarkerPosition::START), false), Err(Fault::Marker));
            // Reserved bits and the low bits of the pointer do not matter (RFC5044-4.2-2, RFC5044-4.2-3).
            let mut odd = frame.clone();
            odd[marker] = 0xff;
            odd[marker + 3] ^= 3;
            assert!(unweave(&mut odd, Some(MarkerPosition::START), false).is_ok());
        }
    }

    proptest! {
        // RFC5044-4.3-6: positions are kept modulo the interval, so nothing wraps.
        #[test]
        fn weaving_is_undone_by_unweaving(
            lens in proptest::collection::vec(0usize..3000, 1..20),
            crc: bool,
            start in 0u16..128,
            seed: u8,
        ) {
            let mut position = Some(MarkerPosition(start * 4));
            let mut stream = Vec::new();
            for len in lens {
                let ulpdu: Vec<u8> = (0..len).map(|i| seed.wrapping_add(i as u8)).collect();
                let before = position;
                let (mut frame, after) = weave(&ulpdu, position, crc);
                stream.extend_from_slice(&frame);
                prop_assert_eq!(unweave(&mut frame, before, crc), Ok(after));
                prop_assert_eq!(&frame[2..2 + len], &ulpdu[..]);
                position = after;
            }
            // Markers are at every 512th byte of the stream.
            let first = (128 - start as usize) % 128 * 4;
            for at in (first..stream.len()).step_by(512) {
                prop_assert_eq!(&stream[at..at + 2], &[0, 0]);
            }
        }

        // RFC5044-4.4-9
        #[test]
        fn any_changed_bit_is_found(len in 0usize..1500, bit: proptest::sample::Index, markers: bool) {
            let markers = markers.then_some(MarkerPosition(8));
            let (mut frame, _) = weave(&vec![0x5a; len], markers, true);
            let bit = bit.index(frame.len() * 8);
            frame[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(unweave(&mut frame, markers, true), Err(Fault::Crc));
        }
    }
}
