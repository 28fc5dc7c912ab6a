//! Shows the files of RDMA devices to programs that look behind the library's back.
//!
//! Some programs and libraries look at `/sys/class/infiniband*`, at what its links lead to, and at
//! `/dev/infiniband` themselves, where the kernel shows nothing of devices that live in a process.
//! `adverb run` makes a folder with what would stand there, names it in `ADVERB_FILES`, and has the dynamic
//! linker load this library into its program and the program's children. Here the C library's calls that take
//! a path are put in front of the originals: a path that leads to our files is walked ([`folder`]), and
//! everything else passes through untouched. Files of counters are written anew when they are opened
//! ([`counted`]). Calls that answer with a path ([`answers`]) say the name that the kernel would show. All
//! that follows — reading, listing, closing — are the C library's own calls on real files. Walks by `fts`
//! ([`fts`]) begin in the folder and show the kernel's names.
//!
//! What stands here runs inside every program, at any time: between fork and exec, in signal handlers, before
//! `main`. So it allocates nothing (but in `fts_open`, which does itself), takes no lock, writes to its stack
//! alone, and needs no C library call of its own after it has been loaded. Whether a path may lead to our
//! files is decided by its words: others cost no system call and no memory, and ours two paths on the stack.
//!
//! Not reached: the C library's calls within itself (`ftw`, `nftw`, `wordexp`), and programs that make system
//! calls on their own (Go). The folder's own links are relative, as in sysfs, so such programs find the same
//! tree below the folder's name.

// Tests use what is below alone.
#[cfg_attr(test, allow(dead_code))]
mod counted;
#[cfg_attr(test, allow(dead_code))]
mod folder;
#[cfg_attr(test, allow(dead_code))]
mod path;
// In a test, these names would stand in front of those that the test itself uses.
#[cfg(not(test))]
mod answers;
#[cfg(not(test))]
mod behind;
#[cfg(not(test))]
mod calls;
#[cfg(not(test))]
mod fts;
#[cfg(not(test))]
mod inside;
#[cfg(not(test))]
mod original;
#[cfg(not(test))]
mod pattern;
#[cfg_attr(test, allow(dead_code))]
mod place;
#[cfg(not(test))]
mod system;
