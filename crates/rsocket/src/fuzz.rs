//! What the fuzz targets feed, and the tests of every run with random bytes: what comes from others and needs
//! no engine. It ends without a panic, and checks what it has read.

/// Packets that come to a datagram socket by UDP, each with who has sent it.
pub fn datagram(bytes: &[u8]) {
    crate::datagram::try_packets(bytes);
}

#[cfg(test)]
mod tests {
    use adverb_core::random;

    #[test]
    fn garbage_of_others_does_no_harm() {
        for _ in 0..5000 {
            let mut bytes = Vec::new();
            for _ in 0..random::word() % 8 {
                let word = random::word().to_ne_bytes();
                bytes.extend([20 | word[0] & 31, word[1], word[2] & 1, 0x55, 0x55, 0x55, 0x55]);
                let head =
                    if word[1] & 1 == 0 { [4, 7 * (word[3] & 1), 16] } else { [6, 7 * (word[3] & 1), 28] };
                bytes.extend(head);
                bytes.extend(&word[4..8]);
                bytes.resize(bytes.len() + usize::from(word[3] % 40), word[4]);
            }
            super::datagram(&bytes);
        }
    }
}
