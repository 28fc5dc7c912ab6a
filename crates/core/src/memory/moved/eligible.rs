//! Which memory may be moved: private, anonymous, plain; no thread's stack; with no property that it would
//! lose.

use super::Refusal;
use super::maps::{Maps, Name, Vma};

/// Looks at the pages of [`start`, `end`). `own` are addresses and lengths of memory that the calling thread,
/// and the guard, use meanwhile.
pub(super) fn check(
    maps: &Maps,
    start: usize,
    end: usize,
    mut own: impl Iterator<Item = (usize, usize)>,
) -> Result<(), Refusal> {
    let found = maps.within(start, end)?;
    let mut reached = start;
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
        if !vma.is_anonymous() {
            return Err(Refusal::Memory("it is of a file"));
        }
    }
    if reached < end {
        return Err(Refusal::Memory("a part of it is not mapped"));
    }
    if own.any(|(address, length)| address < end && address + length > start)
        || stacks()?.iter().any(|top| is_stack(&found, *top, start))
    {
        return Err(Refusal::Memory("it is a stack, or what the engine works with"));
    }
    found.iter().try_for_each(|vma| has_default_policy(vma.start.max(start)))
}

/// Whether pages there come from where all pages of the thread come from.
fn has_default_policy(address: usize) -> Result<(), Refusal> {
    const OF_ADDRESS: u64 = 2;
    const BITS: usize = 1024;
    let ask = |address: usize, flags: u64| {
        let (mut mode, mut nodes) = (0i32, [0u64; BITS / 64]);
        // SAFETY: fills live locals of the length that it says.
        let asked = unsafe {
            libc::syscall(libc::SYS_get_mempolicy, &raw mut mode, nodes.as_mut_ptr(), BITS, address, flags)
        };
        (asked == 0).then_some((mode, nodes)).ok_or_else(|| Refusal::system("get_mempolicy"))
    };
    match (ask(address, OF_ADDRESS), ask(0, 0)) {
        (Ok(there), Ok(usual)) if there == usual => Ok(()),
        (Ok(_), Ok(_)) => Err(Refusal::Memory("it has a memory policy of its own")),
        // A kernel without NUMA.
        (Err(Refusal::System(_, libc::ENOSYS)), _) => Ok(()),
        (Err(refusal), _) | (_, Err(refusal)) => Err(refusal),
    }
}

/// Whether a stack whose thread's data are at `top` may reach into the memory that begins at `start`: both
/// are in one mapping, the stack below its data.
fn is_stack(found: &[Vma], top: usize, start: usize) -> bool {
    start <= top && found.iter().any(|vma| (vma.start..vma.end).contains(&top))
}

/// For each thread but the first, an address in the data that the C library keeps at the upper end of its
/// stack. It is the head of the thread's list of robust mutexes, which the kernel knows. A thread that forks
/// without its stack dies.
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
