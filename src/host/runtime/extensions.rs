//! The values of the embedding program for the tools of each session and run.
//!
//! They are kept beside the sessions, so that they survive hibernation.

use std::collections::HashMap;

use parking_lot::Mutex;

use callsheet_tools::Extensions;
use callsheet_values::types::RunId;
use callsheet_values::types::SessionId;

/// The extensions of all sessions that have some.
#[derive(Debug, Default)]
pub(super) struct ExtensionsBySession {
    sessions: Mutex<HashMap<SessionId, SessionExtensions>>,
}

/// The extensions of a session.
#[derive(Debug, Default)]
struct SessionExtensions {
    /// The values for all runs of the session.
    shared: Extensions,
    /// The values for single runs. An entry is removed when its run has ended.
    runs: HashMap<RunId, Extensions>,
}

impl ExtensionsBySession {
    /// Adds values for all runs of a session that start from now on.
    pub(super) fn add_to_session(&self, id: &SessionId, values: Extensions) {
        if !values.is_empty() {
            let mut sessions = self.sessions.lock();
            let session = sessions.entry(id.clone()).or_default();
            session.shared = values.or(&session.shared);
        }
    }

    /// Adds the values of a run.
    pub(super) fn add_to_run(&self, id: &SessionId, run: &RunId, values: Extensions) {
        if !values.is_empty() {
            let mut sessions = self.sessions.lock();
            sessions.entry(id.clone()).or_default().runs.insert(run.clone(), values);
        }
    }

    /// Returns the values of a run, and those of its session that it does not replace.
    pub(super) fn for_run(&self, id: &SessionId, run: &RunId) -> Extensions {
        let sessions = self.sessions.lock();
        let Some(session) = sessions.get(id) else { return Extensions::default() };
        match session.runs.get(run) {
            Some(own) => own.or(&session.shared),
            None => session.shared.clone(),
        }
    }

    /// Removes the values of the runs of a session that are not open any more.
    pub(super) fn retain_runs(&self, id: &SessionId, is_open: impl Fn(&RunId) -> bool) {
        let mut sessions = self.sessions.lock();
        let Some(session) = sessions.get_mut(id) else { return };
        session.runs.retain(|run, _| is_open(run));
        if session.runs.is_empty() && session.shared.is_empty() {
            sessions.remove(id);
        }
    }

    /// Removes all values of a session.
    pub(super) fn remove_session(&self, id: &SessionId) {
        self.sessions.lock().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(number: u8) -> Extensions {
        let mut values = Extensions::new();
        values.insert(number);
        values
    }

    #[test]
    fn values_of_a_run_are_removed_when_it_has_ended() {
        let extensions = ExtensionsBySession::default();
        let (session, run) = (SessionId::parse("s").unwrap(), RunId("r".into()));
        extensions.add_to_session(&session, Extensions::new());
        extensions.add_to_run(&session, &run, Extensions::new());
        assert!(extensions.sessions.lock().is_empty());
        extensions.add_to_run(&session, &run, values(1));
        assert_eq!(extensions.for_run(&session, &run).get(), Some(&1_u8));
        assert!(extensions.for_run(&session, &RunId("other".into())).is_empty());
        extensions.retain_runs(&session, |_| true);
        assert_eq!(extensions.for_run(&session, &run).get(), Some(&1_u8));
        extensions.retain_runs(&session, |_| false);
        assert!(extensions.sessions.lock().is_empty());
    }

    #[test]
    fn values_of_a_session_stay_until_it_is_deleted() {
        let extensions = ExtensionsBySession::default();
        let (session, run) = (SessionId::parse("s").unwrap(), RunId("r".into()));
        extensions.add_to_session(&session, values(1));
        extensions.add_to_run(&session, &run, values(2));
        assert_eq!(extensions.for_run(&session, &run).get(), Some(&2_u8));
        extensions.retain_runs(&session, |_| false);
        assert_eq!(extensions.for_run(&session, &run).get(), Some(&1_u8));
        extensions.add_to_session(&session, values(3));
        assert_eq!(extensions.for_run(&session, &run).get(), Some(&3_u8));
        extensions.remove_session(&session);
        assert!(extensions.for_run(&session, &run).is_empty());
    }
}
