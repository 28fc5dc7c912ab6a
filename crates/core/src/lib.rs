//! The access layer.
