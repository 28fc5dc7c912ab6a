//! Which memory may be moved: private, anonymous, plain; nobody's stack; not locked.

use super::Refusal;
use super::file::Identity;
use super::maps::{Maps, Name, Vma, has_locked};

/// Memory that may be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Anonymous.
    Anonymous,
    /// Some of it is a private view of our file: it was moved before.
    Returned,
}

/// Looks at the pages of [`start`, `end`). `own` is our file; `stack` an address in the caller's stack.
pub(super) fn check(
    maps: &Maps,
    start: usize,
    end: usize,
    own: Identity,
    stack: usize,
) -> Result<(Kind, Vec<Vma>), Refusal> {
    let found = maps.within(start, end)?;
    let mut reached = start;
    let mut kind = Kind::Anonymous;
    for vma in &found {
        if vma.start > reached {
            return Err(Refusal::Memory("a part of it is not mapped"));
        }
        reached = vma.end;
        if vma.name == Name::Stack {
            return Err(Refusal::Memory("it is a stack"));
        }
        if vma.is_shared || vma.protection != libc::PROT_READ | libc::PROT_WRITE {
            return Err(Refusal::Memory("it is shared, or not there to be read and written"));
        }
        if vma.file == own {
            kind = Kind::Returned;
        } else if !vma.is_anonymous() {
            return Err(Refusal::Memory("it is of a file"));
        }
    }
    if reached < end {
        return Err(Refusal::Memory("a part of it is not mapped"));
    }
    if (start..end).contains(&stack) || stacks()?.iter().any(|top| is_stack(&found, *top, start)) {
        return Err(Refusal::Memory("it is a stack"));
    }
    if has_locked(start, end)? {
        return Err(Refusal::Memory("it is locked"));
    }
    Ok((kind, found))
}

/// Whether a stack whose thread's data are at `top` may reach into what begins at `start`: it is in the same mapping, below.
fn is_stack(found: &[Vma], top: usize, start: usize) -> bool {
    start <= top && found.iter().any(|vma| (vma.start..vma.end).contains(&top))
}

/// An address in what the C library keeps of each thread but the first at the upper end of its stack: the head of its list of robust
/// mutexes, which the kernel knows. A thread that forks without its stack dies.
fn stacks() -> Result<Vec<usize>, Refusal> {
    let because = |error| Refusal::because("/proc/self/task", &error);
    // SAFETY: asks for a number.
    let first = unsafe { libc::getpid() };
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc/self/task").map_err(because)? {
        let name = entry.map_err(because)?.file_name();
        let thread = name.to_str().and_then(|name| name.parse::<i32>().ok());
        let Some(thread) = thread.filter(|thread| *thread != first) else { continue };
        let (mut head, mut length) = (0usize, 0usize);
        // SAFETY: fills two live locals.
        let result =
            unsafe { libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut length) };
        if result == 0 && head != 0 {
            all.push(head);
        }
    }
    Ok(all)
}
