//! Messages that have gone, or come, straight and are not counted yet: counters are shared by all, and that
//! costs.

use adverb_core::counters::Counters;

/// Messages of one direction that have gone, or come, straight and are not counted yet.
#[derive(Default)]
pub(crate) struct Tally {
    messages: u32,
    bytes: u64,
}

impl Tally {
    /// Messages are counted so many at a time, and with one that is reported.
    const TOGETHER: u32 = 32;

    /// Adds a message with so many bytes. True: it is time to count.
    #[inline(always)]
    pub(crate) fn add(&mut self, bytes: u32) -> bool {
        self.messages += 1;
        self.bytes += u64::from(bytes);
        self.messages >= Self::TOGETHER
    }

    /// Adds so many messages, with so many bytes.
    #[inline]
    pub(crate) fn add_all(&mut self, messages: u32, bytes: u64) {
        self.messages += messages;
        self.bytes += bytes;
    }

    /// Counts messages that have been sent. `alone`: as of [`adverb_core::counters::Counter::count`].
    pub(crate) fn count_sent(&mut self, counters: &Counters, alone: bool) {
        let Self { messages, bytes } = std::mem::take(self);
        if messages > 0 {
            counters.tx_messages.count(messages.into(), alone);
            counters.tx_bytes.count(bytes, alone);
            counters.tx_frames.count(messages.into(), alone);
            counters.tx_local.count(messages.into(), alone);
        }
    }

    /// Counts messages that have been received. `alone`: as of [`adverb_core::counters::Counter::count`].
    pub(crate) fn count_received(&mut self, counters: &Counters, alone: bool) {
        let Self { messages, bytes } = std::mem::take(self);
        if messages > 0 {
            counters.rx_messages.count(messages.into(), alone);
            counters.rx_bytes.count(bytes, alone);
            counters.rx_frames.count(messages.into(), alone);
            counters.rx_local.count(messages.into(), alone);
            counters.rx_sends.count(messages.into(), alone);
        }
    }
}
