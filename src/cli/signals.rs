//! The signals that end a command.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGINT and SIGTERM, and a handler for SIGXFSZ.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Replaces the default action of SIGXFSZ, which ends the process. With a handler, a write
    /// beyond the file size limit fails, and the journal reports the error.
    _file_size: Signal,
}

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        let file_size = signal(SignalKind::from_raw(libc::SIGXFSZ))?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())?, _file_size: file_size })
    }

    /// Waits for the next SIGINT or SIGTERM.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
