//! The iWARP transport.
