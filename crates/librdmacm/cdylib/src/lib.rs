//! The drop-in librdmacm.so.1.
