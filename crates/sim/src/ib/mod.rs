//! Queue pairs of InfiniBand and RoCE.

mod end;
mod faults;
mod hosts;
pub(crate) mod incast;
mod pair;
mod scenario;
#[cfg(test)]
mod tests;
mod work;

pub(crate) use scenario::Scenario;
