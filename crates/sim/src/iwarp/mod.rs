//! Connections of iWARP.

mod endpoint;
mod pair;
#[cfg(test)]
mod tests;

pub(crate) use pair::{damage, work};
