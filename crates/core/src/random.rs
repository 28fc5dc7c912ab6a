//! Unpredictable numbers: keys, queue pair numbers, first sequence numbers.

/// Fills `words` with random bits from the kernel.
pub fn fill(words: &mut [u64]) {
    let mut filled = 0;
    let bytes = std::mem::size_of_val(words);
    while filled < bytes {
        // SAFETY: the pointer and the length name the rest of the slice.
        let n =
            unsafe { libc::getrandom(words.as_mut_ptr().cast::<u8>().add(filled).cast(), bytes - filled, 0) };
        match n {
            1.. => filled += n as usize,
            _ if std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted => {}
            // A kernel or a filter without getrandom(2): addresses and time are a poor source, but better
            // than none.
            _ => {
                let mut state =
                    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos() as u64)
                        ^ words.as_ptr() as u64;
                for word in words.iter_mut() {
                    state = next(state);
                    *word ^= state;
                }
                return;
            }
        }
    }
}

/// One random word.
pub fn word() -> u64 {
    let mut words = [0];
    fill(&mut words);
    words[0]
}

/// The next number of a cheap sequence (splitmix64), for numbers that need not be secret.
pub fn next(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
