//! The examples in the documentation of the packages below `src/`. They are written for the package `callsheet`, on which
//! those packages cannot depend. The build script finds them.

#[cfg(doctest)]
mod examples {
    include!(concat!(env!("OUT_DIR"), "/examples.rs"));
}
