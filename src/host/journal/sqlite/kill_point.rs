//! A switch for crash tests, disabled in release builds.
//!
//! With `CALLSHEET_KILL_AT=N` in the environment, the process kills itself (SIGKILL) right after
//! the commit of the transaction with the Nth record that it stores, before any status is reported. With
//! `CALLSHEET_KILL_AT=N-before`, it does so right before the commit.

/// The point at which the process kills itself, if any.
#[derive(Debug, Default)]
pub(super) struct KillPoint {
    /// The number of records, and true if the process kills itself before the commit.
    #[cfg(debug_assertions)]
    at: Option<(usize, bool)>,
    /// The number of records of committed transactions.
    #[cfg(debug_assertions)]
    written: usize,
}

#[cfg(debug_assertions)]
impl KillPoint {
    pub(super) fn from_env() -> Self {
        let value = std::env::var("CALLSHEET_KILL_AT").ok();
        Self { at: value.as_deref().and_then(parse), written: 0 }
    }

    /// Called before the commit of a transaction with this number of records.
    pub(super) fn before_commit(&self, records: usize) {
        self.kill_if(self.written + records, true);
    }

    /// Called after the commit.
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
            // The signal arrives soon.
            loop {
                std::thread::park();
            }
        }
    }
}

#[cfg(debug_assertions)]
fn parse(value: &str) -> Option<(usize, bool)> {
    match value.strip_suffix("-before") {
        Some(at) => Some((at.parse().ok()?, true)),
        None => Some((value.parse().ok()?, false)),
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
    fn the_environment_variable_is_parsed() {
        for (value, expected) in [
            ("3", Some((3, false))),
            ("3-before", Some((3, true))),
            ("", None),
            ("x", None),
            ("-before", None),
        ] {
            assert_eq!(parse(value), expected, "{value:?}");
        }
    }
}
