//! The base transport header and the extension headers behind it (volume 1, chapter 9).
