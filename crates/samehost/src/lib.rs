//! Within one host: how processes of one user reach each other's memory without the other's help.
//!
//! Two processes meet once ([`Handshakes`]), and agree on memory that both have, and on a channel of the transport's; the [`Hub`] has all of that. Each process keeps, of every other one that it shares memory with, a [`Neighbour`]. In one direction a process publishes which of its keys and queue pairs
//! may be used ([`sharing`]), and in the other it carries out one-sided operations by what the neighbour has published ([`direct`]; short ones as they are posted, [`at_once`]): in pages
//! that it maps, or by the kernel's copy. Long ones go on beside the thread that has posted them ([`copies`]). Payload of messages may stay where it is and be
//! fetched by the receiver: it is lent ([`loans`]), and shared if that is worth it ([`lending`]).
//!
//! This crate knows queue pairs by their numbers, and requests as the access layer has them. It knows no packet and no transport. A transport says how
//! processes find each other, and what a channel carries ([`Side`], [`NeighbourLink`]).

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
mod parts;
mod place;
mod processor;
mod reach;
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
pub use parts::Parts;
pub use reach::{LastRegion, Reach, Region};
pub use sharing::{PublishedPair, Sharing, Terms};

/// Locks a mutex, whether or not a thread has panicked with it: what it protects is consistent between any two statements.
fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|e| e.into_inner())
}
