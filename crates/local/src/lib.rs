//! Memory that two processes of one host share: a segment with a ring of records in each direction, and the
//! means to wake each other.
//!
//! One process makes a [`Segment`] and passes its descriptor to the other, which opens it. Each then has a
//! [`Producer`] and a [`Consumer`]: records that go in at one process's producer come out of the other's
//! consumer, in order. While both poll, that takes no system call. A consumer that has found nothing for long
//! enough says so in the segment ([`Consumer::prepare_to_sleep`]) and waits for its [`Doorbell`], which the
//! producer rings if it is told to ([`Producer::peer_sleeps`]); a producer that finds no room does the same
//! the other way round ([`Producer::prepare_to_wait`], [`Consumer::peer_waits`]). A record may lend memory of
//! its producer's ([`Slot::publish_loan`], [`Record::claim`]).
//!
//! For one-sided operations, each process has a [`Table`] of the memory that others may use, which they map.
//! It says in the segment which entries of the other's it uses at this instant ([`HazardSlots`]), so that a
//! process that takes an entry back can wait for the users ([`HazardView`]).
//!
//! The transport above says what the records and the entries mean. Nothing here trusts the other process: it
//! may write anything to any word of the segment at any time. All of the segment is atomic words, so that is
//! no data race. Each value is copied out before it is judged. The worst outcome is [`Corrupt`], garbage in a
//! record or an entry, or silence.
//!
//! * [`segment`]: the memory, sealed so that it cannot shrink under its users
//! * [`ring`]: the two halves of a direction
//! * [`table`]: the keys and queue pairs that a process lets others use
//! * [`announce`]: which of its entries each process uses now
//! * [`doorbell`]: an event descriptor
//! * [`membarrier`]: lets the busy side look at the other's sleeping flag with a plain load

pub mod announce;
mod bytes;
#[cfg_attr(loom, allow(dead_code, unreachable_pub))]
mod contents;
#[cfg(not(loom))]
pub mod doorbell;
mod entry;
mod layout;
pub mod membarrier;
#[cfg(not(loom))]
#[cfg_attr(miri, allow(dead_code, unused_variables))]
mod memory;
#[cfg(all(test, loom))]
mod model;
#[cfg(miri)]
mod ordinary;
pub mod ring;
#[cfg(not(loom))]
pub mod segment;
mod sleep;
mod sync;
#[cfg(not(loom))]
pub mod table;
mod view;

pub use announce::{HazardGuard, HazardSlot, HazardSlots, HazardView};
#[cfg(not(loom))]
pub use doorbell::Doorbell;
pub use entry::{Kind, Stamp, WORDS};
#[cfg(not(loom))]
#[doc(hidden)]
pub use layout::ANNOUNCEMENTS;
pub use membarrier::Registration;
pub use ring::{Consumer, Corrupt, Glance, Loan, Loans, MAX_RECORD, Producer, Record, Slot, Withdrawal};
#[cfg(not(loom))]
pub use segment::{Parts, Segment};
#[cfg(not(loom))]
pub use table::{Foreign, Table};
