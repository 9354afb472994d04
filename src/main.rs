//! The `callsheet` binary.

fn main() {}
