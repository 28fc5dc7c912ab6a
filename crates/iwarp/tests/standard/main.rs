//! The device against a peer that is nothing but the protocol: what the standards demand of both sides of a
//! connection, one requirement after the other (`specs/`).

mod closing;
mod host;
mod peer;
mod races;
mod requester;
mod responder;
mod silent;
mod startup;

use adverb_core::memory::Access;
use adverb_proto::iwarp::Terminate;
use adverb_proto::iwarp::mpa::Config;

/// Memory that a peer may use in every way.
const ALL: Access = Access::REMOTE.union(Access::LOCAL_WRITE);

/// Every framing that a peer can ask for.
const FRAMINGS: [Config; 4] = [
    peer::PLAIN,
    Config { crc: true, ..peer::PLAIN },
    Config { markers: true, ..peer::PLAIN },
    Config { crc: true, markers: true, ..peer::PLAIN },
];

fn codes(terminate: &Terminate) -> (u8, u8, u8) {
    (terminate.layer(), terminate.error_type(), terminate.code())
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 251 + 1) as u8).collect()
}
