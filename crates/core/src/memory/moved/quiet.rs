//! Whether anybody but the calling thread could be writing to the program's memory at this instant.

use super::Refusal;
use super::maps::Maps;
use crate::engine;
use crate::helpers::{Held, is_helper};
use std::os::unix::fs::MetadataExt;

/// The only thread of the program is here, and the engine's keep away, until it is dropped.
pub(super) struct Alone {
    _held: Option<Held<'static>>,
}

/// What of a program's descriptors and mappings says that the kernel or a device may write to its memory at any time.
const URING: &[u8] = b"anon_inode:[io_uring]";
const AIO: &[u8] = b"/[aio]";
const DEVICES: [&[u8]; 5] = [b"/dev/infiniband", b"/dev/kfd", b"/dev/nvidia", b"/dev/vfio", b"/dev/vhost"];

impl Alone {
    /// Makes sure of it. `finds_pins` says that pages which somebody uses will be found out; otherwise everything that might is a refusal.
    pub(super) fn new(maps: &Maps, finds_pins: bool) -> Result<Self, Refusal> {
        // The program's one thread is somewhere else then, and may be writing.
        if is_helper() {
            return Err(Refusal::Threads);
        }
        let helpers = engine::existing().map(|engine| &engine.reactor.helpers);
        // This one first: a thread of ours that starts between is one too many, not one too few.
        let own = helpers.map_or(0, |helpers| helpers.count());
        if threads()? != own + 1 {
            return Err(Refusal::Threads);
        }
        // Completions of io_uring write in the middle of whatever the thread does.
        let text = maps.text()?;
        if contains(&text, URING) || descriptor_of(|target| target.starts_with(URING))? {
            return Err(Refusal::Uring);
        }
        if !finds_pins {
            if contains(&text, AIO) {
                return Err(Refusal::Pinned);
            }
            if descriptor_of(|target| DEVICES.iter().any(|device| target.starts_with(device)))? {
                return Err(Refusal::Pinned);
            }
        }
        let held = match helpers {
            Some(helpers) => Some(helpers.hold().ok_or(Refusal::Busy)?),
            None => None,
        };
        Ok(Self { _held: held })
    }
}

/// Threads of the process, workers of io_uring and one that has ended before the others included.
fn threads() -> Result<usize, Refusal> {
    let status = std::fs::metadata("/proc/self/task");
    let status = status.map_err(|error| Refusal::because("/proc/self/task", &error))?;
    // Two links are the folder's own.
    Ok((status.nlink() as usize).saturating_sub(2))
}

/// Whether the kernel may have pages of the program in its hands, for a thread that waits for a disk or for a queue of requests.
pub(super) fn may_be_in_use(maps: &Maps) -> Result<bool, Refusal> {
    let text = maps.text()?;
    if contains(&text, URING) || contains(&text, AIO) {
        return Ok(true);
    }
    if threads()? == 1 {
        return Ok(false);
    }
    let because = |error| Refusal::because("/proc/self/task", &error);
    for entry in std::fs::read_dir("/proc/self/task").map_err(because)? {
        let path = entry.map_err(because)?.path().join("stat");
        // A thread that has ended meanwhile has nothing.
        let Ok(status) = std::fs::read(path) else { continue };
        // `number (name) state ...`, where the name may have any bytes.
        let state = status.iter().rposition(|byte| *byte == b')').and_then(|at| status.get(at + 2));
        if state == Some(&b'D') {
            return Ok(true);
        }
    }
    Ok(false)
}

fn contains(text: &[u8], what: &[u8]) -> bool {
    text.windows(what.len()).any(|part| part == what)
}

fn descriptor_of(is: impl Fn(&[u8]) -> bool) -> Result<bool, Refusal> {
    use std::os::unix::ffi::OsStrExt;
    let because = |error| Refusal::because("/proc/self/fd", &error);
    for entry in std::fs::read_dir("/proc/self/fd").map_err(because)? {
        // What is closed meanwhile is one of ours.
        let Ok(target) = std::fs::read_link(entry.map_err(because)?.path()) else { continue };
        if is(target.as_os_str().as_bytes()) {
            return Ok(true);
        }
    }
    Ok(false)
}
