//! A method that changes fields in a chain of calls.

/// Gives types a method `with`, which changes public fields. Other crates cannot write such a type as
/// a struct expression, because it may get further fields.
#[macro_export]
macro_rules! impl_with {
    ($($type:ty),+ $(,)?) => {$(
        impl $type {
            /// Returns the value with changed fields.
            #[must_use]
            pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
                change(&mut self);
                self
            }
        }
    )+};
}

pub use crate::impl_with;
