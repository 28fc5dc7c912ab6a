//! Within one host: how processes of one user reach each other's memory without the other's help.
//!
//! - [`Handshakes`]: two processes agree once on memory that both have, and on a channel of the transport's.
//! - [`Hub`]: all that a transport shares with other processes of this host: handshakes, channels and memory.
//! - [`Neighbour`]: what a process keeps of another one with which it shares memory.
//! - [`sharing`]: publishes which keys and queue pairs of this process the neighbours may use.
//! - [`direct`]: carries out one-sided operations by what a neighbour has published: in pages that this
//!   process maps, or by the kernel's copy. [`at_once`] does that for short ones as they are posted.
//! - [`copies`]: long operations, which go on beside the thread that has posted them.
//! - [`loans`]: payload of messages that stays where it is, until the receiver fetches it. [`lending`] shares
//!   memory that is lent often.
//!
//! This crate knows queue pairs by their numbers, and requests as the access layer has them. It knows no
//! packet and no transport. A transport says how processes find each other, and what a channel carries
//! ([`Side`], [`NeighbourLink`]).

mod at_once;
mod bell;
pub mod channel;
mod copies;
mod direct;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod habit;
mod handshake;
mod hub;
mod joined;
mod known;
mod landmark;
mod lending;
mod loans;
mod look;
mod neighbour;
mod neighbour_memory;
mod parts;
mod place;
mod processor;
mod sharing;
mod shown;
mod tally;

pub use at_once::AtOnce;
pub use bell::Bell;
pub use channel::{Channel, ChannelSnapshot, Channels, Intake, Sender, Traffic, Tx};
pub use copies::{Copier, Copies, CopyProgress, LONG};
pub use direct::{Direct, Step};
pub use handshake::{HandshakeVerdict, Handshakes, Side};
pub use hub::Hub;
pub use known::LookupCache;
pub use landmark::Landmark;
pub use lending::Lending;
pub use loans::Loans;
pub use neighbour::{Life, Neighbour, NeighbourLink};
pub use neighbour_memory::{LastRegion, NeighbourMemory, Region};
pub use parts::Parts;
pub use sharing::{PublishedPair, Sharing, Terms};

/// Locks a mutex, whether or not a thread has panicked with it: what it protects is consistent between any
/// two statements.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
