//! Management datagrams (volume 1, chapter 13).
