//! librdmacm.
