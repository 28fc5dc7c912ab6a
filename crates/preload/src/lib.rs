//! Shows the files of RDMA devices to programs that look behind the library's back.
//!
//! Some programs and libraries look at `/sys/class/infiniband*` and `/dev/infiniband` themselves, where the kernel shows nothing of
//! devices that live in a process. `adverb run` makes a folder with what would stand there, names it in `ADVERB_FILES`, and has the
//! dynamic linker load this library into its program and the program's children. Here the C library's calls that take a path are put in
//! front of the originals: a path below those folders gets the folder's name in front of it, and everything else passes through
//! untouched. All that follows — reading, listing, closing — are the C library's own calls on real files.
//!
//! What stands here runs inside every program, at any time: between fork and exec, in signal handlers, before `main`. So it
//! allocates nothing, takes no lock, writes to its stack alone, and needs no C library call of its own after it has been loaded.
//!
//! Not reached: the C library's calls within itself (`glob`, `ftw`), and programs that make system calls on their own (Go).

mod folder;
// In a test, these names would stand in front of those that the test itself uses.
#[cfg(not(test))]
mod calls;
#[cfg(not(test))]
mod original;
