//! Copies by the kernel, in the process itself, for when no handler of ours would hear of a fault.
//!
//! The routines still store what has to be stored by one instruction: the last word, and atomics. The kernel
//! is asked first whether the page can be written (MADV_POPULATE_WRITE, Linux 5.14); if the program unmaps it
//! between that and the instruction, its own handler gets the fault.

use super::Fault;

/// madvise(2)'s number for having pages written to; not in libc for all C libraries.
const POPULATE_WRITE: libc::c_int = 23;

/// Copies all but the last word by process_vm_writev(2), and that behind it. None where the kernel refuses
/// such calls altogether.
///
/// # Safety
/// As of [`super::copy_between`].
pub(super) unsafe fn copy(target: usize, source: usize, length: usize) -> Option<Result<(), Fault>> {
    let tail = tail(target, length);
    let body = length - tail;
    // SAFETY: the caller's promise; the kernel checks both ranges.
    if let Err(error) = unsafe { write(target, source, body) } {
        return error.map(Err);
    }
    let mut word = [0u8; 8];
    // SAFETY: a live local of eight bytes, and the caller's promise.
    if let Err(error) = unsafe { write(word.as_mut_ptr() as usize, source + body, tail) } {
        return error.map(Err);
    }
    let written = if can_be_written(target + body) {
        // SAFETY: the caller's promise. The page is there.
        super::check(unsafe { super::adverb_fault_copy(target + body, word.as_ptr() as usize, tail) })
    } else {
        // SAFETY: as above; the kernel says what is wrong, or writes where it could not be asked.
        match unsafe { write(target + body, word.as_ptr() as usize, tail) } {
            Ok(()) => Ok(()),
            Err(error) => return error.map(Err),
        }
    };
    Some(written)
}

/// Whether a word can be changed by an instruction of this process. Where the kernel cannot be asked: whether
/// it can be read.
pub(super) fn can_be_changed(address: usize) -> bool {
    let mut word = [0u8; 8];
    // SAFETY: a live local of eight bytes.
    can_be_written(address)
        || unsafe { write(word.as_mut_ptr() as usize, address, 8) }.is_ok() && !is_new_enough()
}

/// The bytes of the longest word, of up to eight, that ends where the range ends and lies at a multiple of
/// its size.
fn tail(target: usize, length: usize) -> usize {
    let aligned = 1 << (target + length).trailing_zeros().min(3);
    [8, 4, 2, 1].into_iter().find(|size| *size <= aligned && *size <= length).unwrap_or(0)
}

/// # Safety
/// The target may be written. Err(None): the kernel has no such call for us.
unsafe fn write(target: usize, source: usize, length: usize) -> Result<(), Option<Fault>> {
    let mut done = 0;
    while done < length {
        let part = length - done;
        let (from, to) = (vector(source + done, part), vector(target + done, part));
        // SAFETY: live vectors; the kernel checks what they name.
        let written =
            unsafe { libc::process_vm_writev(libc::getpid(), &raw const from, 1, &raw const to, 1, 0) };
        match written {
            1.. => done += written as usize,
            0 => return Err(Some(Fault)),
            _ => {
                let refused = [Some(libc::EPERM), Some(libc::ENOSYS)];
                return Err(
                    (!refused.contains(&std::io::Error::last_os_error().raw_os_error())).then_some(Fault)
                );
            }
        }
    }
    Ok(())
}

fn vector(base: usize, length: usize) -> libc::iovec {
    libc::iovec { iov_base: base as *mut _, iov_len: length }
}

/// Has the kernel prepare the page that the word is in for writing. A word that lies at a multiple of its
/// size is in one.
fn can_be_written(address: usize) -> bool {
    // SAFETY: sysconf takes a plain number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    // SAFETY: no byte changes.
    unsafe { libc::madvise((address & !(page - 1)) as *mut _, page, POPULATE_WRITE) == 0 }
}

/// Whether the kernel can be asked that: a range of no bytes is always in order, unless the advice is
/// unknown.
fn is_new_enough() -> bool {
    // SAFETY: no byte is named.
    unsafe { libc::madvise(std::ptr::null_mut(), 0, POPULATE_WRITE) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_lies_at_a_multiple_of_its_size() {
        assert_eq!(
            [(64, 16), (64, 4), (60, 8), (61, 8), (64, 3), (66, 2), (64, 0)]
                .map(|(end, length)| tail(end - length, length)),
            [8, 4, 4, 1, 2, 2, 0]
        );
    }
}
