//! Bytes that tell where they belong.

/// `length` bytes in which every stretch of 8 is different, and different for each `seed`.
pub(crate) fn bytes(length: usize, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Compares what arrived with what was meant to arrive; a text that names the first difference.
pub(crate) fn check(what: &str, found: &[u8], expected: &[u8]) -> Result<u64, String> {
    if found == expected {
        return Ok(found.len() as u64);
    }
    Err(match found.iter().zip(expected).position(|(a, b)| a != b) {
        Some(at) => {
            format!(
                "{what}: byte {at} of {} is {:#04x}, not {:#04x}",
                expected.len(),
                found[at],
                expected[at]
            )
        }
        None => format!("{what}: {} bytes instead of {}", found.len(), expected.len()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let (a, b) = (bytes(100, 1), bytes(100, 2));
        assert_ne!(a, b);
        assert_eq!(check("x", &a, &a), Ok(100));
        assert!(check("x", &a, &b).unwrap_err().starts_with("x: byte 0 of 100 is"));
        assert_eq!(check("x", &a[..9], &a).unwrap_err(), "x: 9 bytes instead of 100");
    }
}
