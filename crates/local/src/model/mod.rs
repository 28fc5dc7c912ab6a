//! What is shared under loom: every order in which threads can run, and every value that the memory model lets them read, with the very code
//! that runs. Built with `--cfg loom`, which makes everything small.
//!
//! What is proved is the protocol in the words of the segment and the table. The asymmetric fence (membarrier(2) on the rare side, nothing on
//! the busy one) has no counterpart in the model, and is checked as what it amounts to, a full fence on both sides.

mod announce;
mod ring;
mod table;
