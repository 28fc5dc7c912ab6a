//! Models of the words that processes share, under loom. The code is the library's own. Built with
//! `--cfg loom`, which makes everything small.
//!
//! The models prove the protocol in the words of the segment and the table. loom tries the orders in which
//! threads can run, and the values that its memory model lets them read. Some proofs are bounded, and some
//! behaviour has no model:
//!
//! - Some models bound the preemptions of a run, to at most 4 (`preemption_bound`).
//! - loom's memory model has no load buffering: it never delays a load past a later store of its thread.
//! - The asymmetric fence (membarrier(2) on the rare side, nothing on the busy one) is a full fence on both
//!   sides.

mod announce;
mod ring;
mod table;
