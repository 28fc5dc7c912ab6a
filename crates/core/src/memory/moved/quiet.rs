//! Whether any thread or process but the calling thread could be writing to the program's memory, at this
//! instant or, by pages that it keeps, later.

use super::Refusal;
use super::holders;
use super::maps;
use crate::helpers::{self, Helpers, MemoryHold, is_helper};

/// The only thread of the program is here, and the engine's keep away, until it is dropped.
pub(super) struct Alone {
    _held: Option<MemoryHold<'static>>,
}

impl Alone {
    /// Makes sure of it.
    pub(super) fn new() -> Result<Self, Refusal> {
        let helpers = may_be_alone()?;
        if shares_memory()? {
            return Err(Refusal::Threads);
        }
        if maps::status("VmPin:")? > 0 {
            return Err(Refusal::Pinned);
        }
        holders::check()?;
        let held = match helpers {
            Some(helpers) => Some(helpers.hold().ok_or(Refusal::Busy)?),
            None => None,
        };
        Ok(Self { _held: held })
    }
}

/// The cheapest looks: there is one thread, this one, and it can be guarded.
pub(super) fn may_be_alone() -> Result<Option<&'static Helpers>, Refusal> {
    // The program's one thread is somewhere else then, and may be writing.
    if is_helper() {
        return Err(Refusal::Threads);
    }
    let helpers = helpers::CURRENT.get();
    // This one first: a thread of ours that starts between is one too many, not one too few.
    let own = helpers.map_or(0, |helpers| helpers.count());
    if threads()? != own + 1 {
        return Err(Refusal::Threads);
    }
    // SAFETY: asks for a number.
    if unsafe { libc::prctl(libc::PR_GET_DUMPABLE) } != 1 {
        return Err(Refusal::System("the process is not dumpable", libc::EPERM));
    }
    Ok(helpers)
}

/// Threads of the process, workers of io_uring and one that has ended before the others included.
fn threads() -> Result<usize, Refusal> {
    use std::os::unix::fs::MetadataExt;
    let status = std::fs::metadata("/proc/self/task");
    let status = status.map_err(|error| Refusal::because("/proc/self/task", &error))?;
    // Two links are the folder's own.
    Ok((status.nlink() as usize).saturating_sub(2))
}

/// Whether a child runs in the same memory (CLONE_VM), as far as the system tells: of children of children it
/// does not.
fn shares_memory() -> Result<bool, Refusal> {
    const KCMP_VM: i32 = 1;
    let because = |error| Refusal::because("/proc/self/task", &error);
    // SAFETY: asks for a number.
    let own = unsafe { libc::getpid() };
    for entry in std::fs::read_dir("/proc/self/task").map_err(because)? {
        // A thread that has ended has no children; a kernel without this file says nothing of any.
        let Ok(children) = std::fs::read_to_string(entry.map_err(because)?.path().join("children")) else {
            continue;
        };
        for child in children.split_ascii_whitespace().filter_map(|child| child.parse::<i32>().ok()) {
            // SAFETY: compares two processes.
            let compared = unsafe { libc::syscall(libc::SYS_kcmp, own, child, KCMP_VM, 0, 0) };
            let has_ended = || std::io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH);
            // A process that may not be looked at could be one that shares this memory.
            if compared == 0 || compared < 0 && !has_ended() {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
