//! Opcodes of the base transport header (volume 1, section 9.2.1).
