//! Contexts and their objects, imported by another process of the same user and network namespace (`ibv_import_device(3)`).
//!
//! The command descriptor of a context is a memfd, which says where its process listens, and a secret. Whoever got a copy of it connects there ([`Remote`]), with
//! one connection for each question, and the background thread answers ([`Exporter`]). A region is imported by moving its pages to where both processes
//! can map them ([`crate::memory::moved`]): the importer registers its map of them in a key table of its own, under a key of its own, by the addresses of the
//! original. The connection stays: over it comes that the original is deregistered, and then the import's key opens nothing either. If the exporter
//! ends without that, the pages stay the importer's, as they do with the kernel.
//!
//! Nobody waits for a process that does not do its part: the exporter never, the importer for [`importer::ANSWER_TIMEOUT`].

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

/// What the command descriptor of a context says.
pub fn ticket(context: &Context) -> Vec<u8> {
    [&context.engine().exporter.name()[..], format!("{:016x}", context.secret()).as_bytes()].concat()
}

/// The socket's name.
fn socket_name(name: &[u8; NAME]) -> Vec<u8> {
    crate::seqpacket::name(&format!("export/{}", String::from_utf8_lossy(name)))
}
