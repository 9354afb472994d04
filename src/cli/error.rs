//! The error of a command: an exit status and a message for stderr.

/// The exit status and the message of a command that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CommandError {
    /// The exit status: 1, 2 or 130, as described in [`crate`].
    pub(super) status: u8,
    /// The message; empty if nothing is left to print.
    pub(super) message: String,
}

impl CommandError {
    /// Reports wrong usage or configuration, with exit status 2.
    pub(super) fn usage(error: impl std::fmt::Display) -> Self {
        Self { status: 2, message: error.to_string() }
    }

    /// Reports a failure, with exit status 1.
    pub(super) fn failed(error: impl std::fmt::Display) -> Self {
        Self { status: 1, message: error.to_string() }
    }

    /// Reports that a signal has ended the command, with exit status 130 and no message.
    pub(super) fn interrupted() -> Self {
        Self { status: 130, message: String::new() }
    }
}
