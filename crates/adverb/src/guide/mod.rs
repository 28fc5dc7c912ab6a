//! A guide in chapters: each has a subject of a page, and examples that run as tests.
//!
//! [RDMA in one page](crate#rdma-in-one-page) introduces the objects. Afterwards, read these chapters in any
//! order:
//!
//! | chapter | subject |
//! |---|---|
//! | [`connections`] | the life of a connection, its end, and flushed requests |
//! | [`flow_control`] | receives, messages that find none, and queues that are full |
//! | [`waiting`] | polls, sleeps, event loops and async programs |
//! | [`ordering`] | the order of requests, fences, and when bytes become visible |
//! | [`atomics`] | counters and locks in memory that many programs share |
//! | [`errors`] | refused calls, failed requests, and their remedies |
//! | [`testing`] | tests with two ends in one process, logs and captures |
//! | [`tuning`] | the settings that make a program faster |
//! | [`from_c`] | the names of verbs beside those of this crate |
//!
//! The [tutorial](https://github.com/adverb-rdma/adverb/blob/main/docs/tutorial/rust.md) has whole programs.

pub mod atomics;
pub mod connections;
pub mod errors;
pub mod flow_control;
pub mod from_c;
pub mod ordering;
pub mod testing;
pub mod tuning;
pub mod waiting;
