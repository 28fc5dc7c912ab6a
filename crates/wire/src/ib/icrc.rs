//! The invariant CRC (volume 1, section 7.8.1; annex A17.3.3).
