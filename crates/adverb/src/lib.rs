//! The public Rust API.
