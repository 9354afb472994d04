//! The signals that a command handles. None whose default action ends the process does so without a shutdown, except
//! those that cannot be caught or report a fault of the program.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end a command. SIGXCPU announces the end of the CPU time that the process may use.
const ENDING: [libc::c_int; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGQUIT, libc::SIGXCPU];

/// Signals that change nothing. With a handler for SIGXFSZ, a write beyond the file size limit fails, and the journal
/// reports the error.
const IGNORED: [libc::c_int; 6] =
    [libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM, libc::SIGVTALRM, libc::SIGPROF, libc::SIGXFSZ];

/// Further ones of Linux: SIGIO (also SIGPOLL), SIGPWR, SIGSTKFLT.
#[cfg(target_os = "linux")]
const IGNORED_ON_LINUX: [libc::c_int; 3] = [libc::SIGIO, libc::SIGPWR, libc::SIGSTKFLT];
#[cfg(not(target_os = "linux"))]
const IGNORED_ON_LINUX: [libc::c_int; 0] = [];

/// The handlers of signals.
#[derive(Debug)]
pub(super) struct Signals {
    ending: Vec<Signal>,
    /// SIGHUP. It ends a command, because its terminal was closed. A service reads its secrets again.
    hangup: Signal,
    is_service: bool,
    _ignored: Vec<Signal>,
}

impl Signals {
    /// Installs the handlers of a command that ends when its work is done.
    pub(super) fn new() -> io::Result<Self> {
        Self::install(false)
    }

    /// Installs the handlers of a command that runs until it is told to end.
    pub(super) fn of_service() -> io::Result<Self> {
        Self::install(true)
    }

    fn install(is_service: bool) -> io::Result<Self> {
        let handlers = |numbers: &[libc::c_int]| -> io::Result<Vec<Signal>> {
            numbers.iter().map(|number| signal(SignalKind::from_raw(*number))).collect()
        };
        let mut ignored = handlers(&IGNORED)?;
        ignored.extend(handlers(&IGNORED_ON_LINUX)?);
        let (ending, hangup) = (handlers(&ENDING)?, signal(SignalKind::hangup())?);
        Ok(Self { ending, hangup, is_service, _ignored: ignored })
    }

    /// Waits for the next signal that ends the command. A service calls `on_hangup` at each SIGHUP meanwhile, and drops
    /// what it has not done when a signal ends the command.
    pub(super) async fn next_or(&mut self, on_hangup: impl AsyncFn()) {
        loop {
            let is_hangup = tokio::select! {
                () = next_of(&mut self.ending) => false,
                _ = self.hangup.recv() => true,
            };
            if !(is_hangup && self.is_service) {
                return;
            }
            tokio::select! {
                () = next_of(&mut self.ending) => return,
                () = on_hangup() => {}
            }
        }
    }

    /// Waits for the next signal that ends the command.
    pub(super) async fn next(&mut self) {
        self.next_or(async || ()).await;
    }
}

/// Waits for the next of these signals.
async fn next_of(signals: &mut [Signal]) {
    poll_fn(|context| {
        let is_ready = signals.iter_mut().any(|signal| signal.poll_recv(context).is_ready());
        if is_ready { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
