//! InfiniBand's connection management.
