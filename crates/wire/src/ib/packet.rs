//! A whole packet, from the base transport header to the invariant CRC.
