//! The commands, one a file.

pub mod decode;
