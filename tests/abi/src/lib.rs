//! Helpers of the ABI tests.
