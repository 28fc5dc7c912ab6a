//! Queue pairs of InfiniBand and RoCE.

mod end;
pub(crate) mod incast;
mod pair;
mod scenario;
#[cfg(test)]
mod tests;

pub(crate) use scenario::Scenario;
