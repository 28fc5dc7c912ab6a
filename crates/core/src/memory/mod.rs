//! Keys of memory, and the only code that touches application memory. Regions as objects of a program are in
//! [`crate::region`].

pub mod common;
mod copy;
mod explain;
#[cfg(test)]
mod far;
mod keys;
mod lending;
mod mapping;
pub mod moved;
mod nothing;
pub(crate) mod permitted;
pub mod process;
mod published;
mod reader;
mod source;
mod storage;
#[cfg(test)]
mod until;
pub mod ways;
mod window;

pub use copy::{
    Fault, compare_swap, copy_from, copy_to, fetch_add, install_handler as install_fault_handler,
};
pub(crate) use copy::{copy_between, forget as forget_copies, look_again};
pub use explain::User;
pub(crate) use explain::words as access_words;
pub use keys::{Access, AccessError, Keys, Span, number as key_number};
pub(crate) use keys::{Entry, Kind};
pub use lending::{KeyUse, Lender};
pub(crate) use mapping::Mapping;
pub(crate) use nothing::make_null;
pub use permitted::Mappings;
pub use published::{MappableBytes, PublishedBytes, Publisher};
pub use reader::Reader;
pub use source::{Claim, CopyError, Missing, NoClaim, Piece, SharedBytes, Source};
pub use storage::{Allocation, Allocator, RingAllocator, RingKind};
pub(crate) use storage::{RingRelease, Storage};
pub(crate) use window::BindOutcome;
pub use window::{Bind, WindowType};
