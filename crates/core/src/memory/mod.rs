//! Memory regions, their keys, and the only code that touches application memory.

mod advice;
mod backing;
pub mod common;
mod copy;
mod explain;
mod keys;
mod lending;
pub mod moved;
mod pages;
mod permitted;
pub mod process;
mod published;
mod reader;
mod region;
mod source;
mod storage;
pub mod ways;
mod window;

pub use advice::{Advice, advise};
pub use backing::{DeviceMemory, register_descriptor};
pub use copy::{Fault, copy_from, copy_to};
pub(crate) use copy::{copy_between, install_handler as install_fault_handler, look_again};
pub use explain::User;
pub(crate) use explain::words as access_words;
pub use keys::{Access, AccessError, Keys, Span, number as key_number};
pub use lending::{Lender, Lent};
pub use pages::Pages;
pub use permitted::Mappings;
pub use published::{Mapped, Opened, Publisher};
pub use reader::Reader;
pub use region::{MemoryRegion, ProtectionDomain, Reregistration};
pub use source::{Claim, CopyError, Missing, Piece, Shared, Source, Unclaimed};
pub use storage::{Allocation, Allocator, Giver, RingKind};
pub(crate) use storage::{GivenBack, Storage};
pub use window::{Bind, MemoryWindow, WindowType};
