//! The access layer of adverb: devices, protection domains, memory regions, completion queues, queue pairs,
//! events and connection management. It has the semantics of the verbs (rdma-core's man pages), and is
//! generic over the [`transport`] below.
//!
//! Front ends (the C libraries, the Rust API) call [`engine::install`] once with the transports of the build,
//! then start at [`device::Device::all`].

pub mod address_handle;
mod arming;
mod array;
pub mod attributes;
mod barrier;
pub mod busy;
pub mod cancel;
pub mod clock;
mod closing;
pub mod cm;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod containment;
pub mod counters;
pub mod cq;
mod current;
mod deadlines;
pub mod description;
pub mod descriptor;
pub mod device;
mod duty;
pub mod engine;
pub mod error;
pub mod event;
pub mod export;
pub mod failure;
pub mod flow;
pub mod fork;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod gathering;
pub mod heard;
pub mod helpers;
pub mod inlet;
pub mod inspect;
pub mod interfaces;
pub mod lane_watch;
pub mod late;
pub mod lock;
pub mod log;
pub mod memory;
#[cfg(all(test, loom))]
mod model;
mod moderation;
#[cfg(any(test, feature = "conformance"))]
pub mod null;
pub mod pcap;
pub mod ports;
pub mod qp;
pub mod random;
pub mod reactor;
pub mod region;
mod registry;
pub mod request;
pub mod rss;
pub mod seqpacket;
pub mod setting;
pub mod signals;
pub mod srq;
mod sync;
pub mod sysfs;
pub mod transport;
pub mod users;
pub mod watch;
pub mod wire;
pub mod work_notes;
pub mod xrc;
