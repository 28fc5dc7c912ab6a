//! Messages of connection management (volume 1, chapter 12).
