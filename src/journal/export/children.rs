//! Child sessions below the calls of agents.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::{count_with_noun, run_sums, tokens};
use crate::journal::JournalEntry;
use crate::transcript::{CallTranscript, RunTranscript, Transcript};
use crate::types::{RunId, SessionId, Usage, child_run_id, child_session_id};

/// The largest depth of child sessions that are shown.
const DEPTH_MAX: usize = 32;

/// The records of the child sessions of a session, and of their own children.
///
/// The ids of children follow from the intents of calls, so that they are found without an index.
///
/// ```
/// use callsheet::journal::export::{ChildSessions, text_with_children};
/// use callsheet::journal::{Journal, MemoryJournal};
/// use callsheet::types::{Seq, SessionId};
///
/// let journal = MemoryJournal::new();
/// let session = SessionId::parse("s1")?;
/// let entries = journal.read(&session, Seq(0))?;
/// let children = ChildSessions::read(&session, &entries, |child| journal.read(child, Seq(0)));
/// for lines in text_with_children(&entries, &children) {
///     print!("{lines}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChildSessions {
    session: SessionId,
    /// The records of each child, none if it is not stored, or the error of reading them.
    records: BTreeMap<SessionId, Result<Vec<JournalEntry>, String>>,
}

/// The child session of a call.
pub(in crate::journal) struct ChildSession<'a> {
    pub(in crate::journal) id: SessionId,
    pub(in crate::journal) records: ChildRecords<'a>,
}

/// The records of a child session, or the reason why there are none.
#[derive(Clone, Copy)]
pub(in crate::journal) enum ChildRecords<'a> {
    Stored(&'a [JournalEntry]),
    Unreadable(&'a str),
    /// The outcome of the call names the child, and the journal has none.
    Deleted,
    /// The call has its outcome, which names no child.
    NeverOpened,
    /// The call is open.
    NotYetOpened,
}

/// A line about a child session.
pub(super) struct ChildLine {
    /// The number of child sessions above it.
    pub(super) depth: usize,
    pub(super) id: SessionId,
    pub(super) agent: Option<String>,
    pub(super) state: String,
}

impl ChildSessions {
    /// Returns the set without any records, for a session whose children are added one by one.
    #[must_use]
    pub fn new(session: &SessionId) -> Self {
        Self { session: session.clone(), records: BTreeMap::new() }
    }

    /// Reads the child sessions of a session with these records, and their own children. A child that is not stored
    /// has no records.
    pub fn read<E: Display>(
        session: &SessionId,
        entries: &[JournalEntry],
        mut read: impl FnMut(&SessionId) -> Result<Vec<JournalEntry>, E>,
    ) -> Self {
        let mut children = Self::new(session);
        let mut open = Self::ids(session, entries);
        while let Some(child) = open.pop() {
            let records = read(&child).map_err(|error| error.to_string());
            open.extend(children.add(child, records));
        }
        children
    }

    /// Returns the ids of the child sessions of the calls in these records.
    #[must_use]
    pub fn ids(session: &SessionId, entries: &[JournalEntry]) -> Vec<SessionId> {
        let transcript = Transcript::read(entries);
        let calls = transcript.runs.iter().flat_map(calls);
        calls.filter_map(|call| child_id(session, &transcript, call)).collect()
    }

    /// Adds the records of a child session. Returns the ids of its own children that are not added yet.
    pub fn add(
        &mut self,
        child: SessionId,
        records: Result<Vec<JournalEntry>, String>,
    ) -> Vec<SessionId> {
        let mut further =
            records.as_deref().map_or_else(|_| Vec::new(), |records| Self::ids(&child, records));
        self.records.insert(child, records);
        further.retain(|id| !self.records.contains_key(id));
        further
    }

    /// Returns the session whose children these are.
    pub(in crate::journal) fn session(&self) -> &SessionId {
        &self.session
    }

    /// Returns the time of the last record of all children.
    pub(super) fn last_time(&self) -> u64 {
        let entries = self.records.values().flatten().flatten();
        entries.map(|entry| entry.time).max().unwrap_or_default()
    }

    /// Returns the child session of a call. `None` if its tool is no agent.
    pub(in crate::journal) fn of_call(
        &self,
        session: &SessionId,
        transcript: &Transcript<'_>,
        call: &CallTranscript<'_>,
    ) -> Option<ChildSession<'_>> {
        let id = child_id(session, transcript, call)?;
        let records = match (self.records.get(&id), call.outcome()) {
            (Some(Ok(entries)), _) if !entries.is_empty() => ChildRecords::Stored(entries),
            (Some(Err(error)), _) => ChildRecords::Unreadable(error),
            (_, Some(ended)) if ended.outcome.child.is_some() => ChildRecords::Deleted,
            (_, Some(_)) => ChildRecords::NeverOpened,
            (_, None) => ChildRecords::NotYetOpened,
        };
        Some(ChildSession { id, records })
    }

    /// Returns a line about the child session of a call of this session, and one about each descendant.
    pub(super) fn lines(
        &self,
        transcript: &Transcript<'_>,
        call: &CallTranscript<'_>,
    ) -> Vec<ChildLine> {
        let mut lines = Vec::new();
        if let Some(child) = self.of_call(&self.session, transcript, call) {
            self.add_lines(0, child, &mut lines);
        }
        lines
    }

    fn add_lines(&self, depth: usize, child: ChildSession<'_>, lines: &mut Vec<ChildLine>) {
        let mut add = |agent, state: &str| {
            let (id, state) = (child.id.clone(), state.to_owned());
            lines.push(ChildLine { depth, id, agent, state });
        };
        let entries = match child.records {
            ChildRecords::Stored(_) if depth >= DEPTH_MAX => {
                return add(None, "its own children are not shown");
            }
            ChildRecords::Stored(entries) => entries,
            ChildRecords::Unreadable(error) => {
                return add(None, &format!("cannot be read: {error}"));
            }
            ChildRecords::Deleted => return add(None, "was deleted"),
            ChildRecords::NeverOpened => return add(None, "was never opened"),
            ChildRecords::NotYetOpened => return add(None, "is not opened yet"),
        };
        let transcript = Transcript::read(entries);
        let agent = transcript.opening.map(|opening| opening.agent.to_owned());
        let Some(run) = run_of_call(&child.id, &transcript) else {
            return add(agent, "has not started its run");
        };
        add(agent, &run_state(run));
        for call in calls(run) {
            if let Some(grandchild) = self.of_call(&child.id, &transcript, call) {
                self.add_lines(depth + 1, grandchild, lines);
            }
        }
    }
}

/// Returns the run of a child session that its call has started.
pub(in crate::journal) fn run_of_call<'t, 'a>(
    child: &SessionId,
    transcript: &'t Transcript<'a>,
) -> Option<&'t RunTranscript<'a>> {
    let id: RunId = child_run_id(child)?;
    transcript.runs.iter().find(|run| run.id() == Some(&id))
}

/// Returns the id of the child session of a call. `None` if its tool is no agent.
pub(in crate::journal) fn child_id(
    session: &SessionId,
    transcript: &Transcript<'_>,
    call: &CallTranscript<'_>,
) -> Option<SessionId> {
    let intent = call.intents.last().filter(|intent| intent.lease.is_some())?;
    // Records before a fork are those of the other session.
    let fork = transcript.forks.iter().find(|fork| intent.at.is_before(fork.at));
    let session = fork.map_or(session, |fork| fork.from);
    Some(child_session_id(session, intent.idempotency_key))
}

/// Returns the calls of a run that have records.
fn calls<'t, 'a>(run: &'t RunTranscript<'a>) -> impl Iterator<Item = &'t CallTranscript<'a>> {
    let attempts = run.turns.iter().flat_map(|turn| &turn.attempts);
    attempts.flat_map(|attempt| attempt.calls.values())
}

fn run_state(run: &RunTranscript<'_>) -> String {
    if let Some(ended) = run.end {
        return format!("{} after {}", ended.end.as_str(), run_sums(ended.stats));
    }
    let mut usage = Usage::default();
    run.turns.iter().for_each(|turn| usage += turn.usage());
    let made = run.turns.iter().map(|turn| turn.kept_calls().len()).sum();
    let mut state = format!(
        "has not ended, {}, {}, {} so far",
        count_with_noun(run.turns.len(), "turn"),
        count_with_noun(made, "call"),
        tokens(usage)
    );
    let open = calls(run).filter(|call| call.outcome().is_none());
    let asks = open.filter_map(|call| {
        let asked = call.requests.last()?;
        call.decision_about(asked).is_none().then_some(&asked.request.call)
    });
    for call in asks {
        state.push_str(&format!(", {} {} waits for an answer", call.key, call.name));
    }
    state
}
