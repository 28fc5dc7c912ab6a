//! Contexts and their objects, imported by another process of the same user and network namespace
//! (`ibv_import_device(3)`).
//!
//! The command descriptor of a context is a memfd, which says where its process listens, and a secret. A
//! process that has a copy of it connects there ([`Remote`]), with one connection for each question, and the
//! background thread answers ([`Exporter`]). To import a region, its pages move to where both processes can
//! map them ([`crate::memory::moved`]). The importer registers its map of them in a key table of its own,
//! under a key of its own, by the addresses of the original. The connection stays. By it comes the news that
//! the original is deregistered, and then the import's key opens nothing either. If the exporter ends without
//! that, the pages stay the importer's, as they do with the kernel.
//!
//! No side waits for a process that does not do its part: the exporter waits for none, the importer for
//! [`importer::ANSWER_TIMEOUT`].

mod exporter;
mod importer;
mod message;
#[cfg(any(test, fuzzing))]
pub(crate) use message::try_bytes;

pub(crate) use exporter::Answering;
pub use exporter::Exporter;
pub use importer::Remote;

use crate::device::Context;
pub(crate) use importer::Watch;

/// Hexadecimal digits that say where a process listens.
const NAME: usize = 32;
/// Hexadecimal digits of a context's secret.
const SECRET: usize = 16;

/// The contents of a context's command descriptor.
pub fn ticket(context: &Context) -> Vec<u8> {
    [&context.engine().exporter.name()[..], format!("{:016x}", context.secret()).as_bytes()].concat()
}

/// The socket's name.
fn socket_name(name: &[u8; NAME]) -> Vec<u8> {
    crate::seqpacket::name(&format!("export/{}", String::from_utf8_lossy(name)))
}
