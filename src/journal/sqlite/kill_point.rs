//! A switch for tests of crashes, not in release builds.
//!
//! With `CALLSHEET_KILL_AT=N` in the environment the process kills itself (SIGKILL) right after the
//! transaction that holds the Nth record that it writes has been committed, before anybody is
//! told; with `CALLSHEET_KILL_AT=N-before` right before it is committed.

/// When the process is to be killed, if it is.
#[derive(Debug, Default)]
pub(super) struct KillPoint {
    #[cfg(debug_assertions)]
    at: Option<(usize, bool)>,
    #[cfg(debug_assertions)]
    written: usize,
}

#[cfg(debug_assertions)]
impl KillPoint {
    pub(super) fn from_env() -> Self {
        let told = std::env::var("CALLSHEET_KILL_AT").ok();
        Self { at: told.as_deref().and_then(parse), written: 0 }
    }

    /// A transaction with so many records is about to be committed.
    pub(super) fn before_commit(&self, records: usize) {
        self.kill_if(self.written + records, true);
    }

    /// It has been.
    pub(super) fn after_commit(&mut self, records: usize) {
        self.written += records;
        self.kill_if(self.written, false);
    }

    fn kill_if(&self, written: usize, before: bool) {
        if self.at.is_some_and(|(at, when)| when == before && written >= at) {
            let pid = std::process::id().to_string();
            let killed = std::process::Command::new("kill").args(["-KILL", &pid]).status();
            if !killed.is_ok_and(|status| status.success()) {
                std::process::abort();
            }
            // The signal is on its way.
            loop {
                std::thread::park();
            }
        }
    }
}

#[cfg(debug_assertions)]
fn parse(told: &str) -> Option<(usize, bool)> {
    match told.strip_suffix("-before") {
        Some(at) => Some((at.parse().ok()?, true)),
        None => Some((told.parse().ok()?, false)),
    }
}

#[cfg(not(debug_assertions))]
impl KillPoint {
    pub(super) fn from_env() -> Self {
        Self::default()
    }

    #[expect(clippy::unused_self, reason = "does nothing in release builds")]
    pub(super) fn before_commit(&self, _records: usize) {}

    #[expect(clippy::unused_self, reason = "does nothing in release builds")]
    pub(super) fn after_commit(&mut self, _records: usize) {}
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn the_switch_is_read() {
        for (told, expected) in [
            ("3", Some((3, false))),
            ("3-before", Some((3, true))),
            ("", None),
            ("x", None),
            ("-before", None),
        ] {
            assert_eq!(parse(told), expected, "{told:?}");
        }
    }
}
