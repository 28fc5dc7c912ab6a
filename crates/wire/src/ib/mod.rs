//! InfiniBand's transport and management formats, as RoCEv2 carries them behind UDP (InfiniBand Architecture
//! Specification, volume 1, and its annex A17).

pub mod cm;
mod display;
pub mod header;
pub mod icrc;
pub mod mad;
pub mod opcode;
pub mod packet;
