//! Finds and describes the child sessions of agent calls, for texts that show them below their calls.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::{count_with_noun, open_question, run_sums, tokens};
use crate::journal::JournalEntry;
use callsheet_values::transcript::{CallTranscript, RunTranscript, Transcript};
use callsheet_values::types::{RunId, SessionId, Usage, child_run_id, child_session_id};

/// The depth from which on the runs and the children of child sessions are not shown. The children of the
/// session itself have depth 0.
const CHILD_DEPTH_MAX: usize = 32;

/// The records of the child sessions of a session, and of their own children.
///
/// The ids of children follow from the intents of calls, so that they are found without an index.
///
/// ```
/// use callsheet::journal::JournalReader;
/// use callsheet::journal::export::{ChildSessions, text_with_children};
/// use callsheet::types::{Seq, SessionId};
///
/// # fn print() -> Result<(), Box<dyn std::error::Error>> {
/// let journal = JournalReader::open("./callsheet-data".as_ref())?;
/// let session = SessionId::parse("s1")?;
/// let entries = journal.read(&session, Seq(0))?;
/// let children = ChildSessions::read(&session, &entries, |child| journal.read(child, Seq(0)));
/// for lines in text_with_children(&entries, &children) {
///     print!("{lines}");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ChildSessions {
    session: SessionId,
    /// The records of each child session: an empty list if the child is not stored, or the error of reading
    /// it.
    records: BTreeMap<SessionId, Result<Vec<JournalEntry>, String>>,
}

/// The child session of an agent call.
pub(in crate::journal) struct ChildSession<'a> {
    pub(in crate::journal) id: SessionId,
    /// Its records, or the reason why there are none.
    pub(in crate::journal) records: ChildRecords<'a>,
}

/// The records of a child session, or the reason why there are none.
#[derive(Clone, Copy)]
pub(in crate::journal) enum ChildRecords<'a> {
    Stored(&'a [JournalEntry]),
    Unreadable(&'a str),
    /// The call has an outcome that names the child, but the journal has no records of the child.
    Deleted,
    /// The call has an outcome that names no child.
    NeverOpened,
    /// The call has no outcome yet.
    NotYetOpened,
}

/// A line about a child session.
pub(super) struct ChildLine {
    /// The number of child sessions above it.
    pub(super) depth: usize,
    pub(super) id: SessionId,
    /// The name of the child's agent. `None` if the child's records are not there or not shown.
    pub(super) agent: Option<String>,
    /// The state of the child's run, or the reason why it is not shown. It completes a sentence about the
    /// child.
    pub(super) state: String,
    /// The error of reading the child's records. It may contain text of users and models.
    pub(super) error: Option<String>,
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
        let mut pending = Self::ids(session, entries);
        while let Some(child) = pending.pop() {
            let records = read(&child).map_err(|error| error.to_string());
            pending.extend(children.add(child, records));
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
        let mut unread =
            records.as_deref().map_or_else(|_| Vec::new(), |records| Self::ids(&child, records));
        self.records.insert(child, records);
        unread.retain(|id| !self.records.contains_key(id));
        unread
    }

    /// Returns the session whose children these are.
    pub(in crate::journal) fn session(&self) -> &SessionId {
        &self.session
    }

    /// Returns the time of the last record of all children: Unix time in milliseconds.
    pub(super) fn last_time(&self) -> u64 {
        let entries = self.records.values().flatten().flatten();
        entries.map(|entry| entry.time).max().unwrap_or_default()
    }

    /// Returns the child session of a call. Returns `None` if the tool is not an agent, or the call has no
    /// intent yet.
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
        let ChildSession { id, records } = child;
        let entries = match records {
            ChildRecords::Stored(_) if depth >= CHILD_DEPTH_MAX => {
                Err(("its own children are not shown", None))
            }
            ChildRecords::Stored(entries) => Ok(entries),
            ChildRecords::Unreadable(error) => Err(("cannot be read", Some(error.to_owned()))),
            ChildRecords::Deleted => Err(("was deleted", None)),
            ChildRecords::NeverOpened => Err(("was never opened", None)),
            ChildRecords::NotYetOpened => Err(("is not opened yet", None)),
        };
        let entries = match entries {
            Ok(entries) => entries,
            Err((state, error)) => {
                lines.push(ChildLine { depth, id, agent: None, state: state.to_owned(), error });
                return;
            }
        };
        let transcript = Transcript::read(entries);
        let agent = transcript.opening.map(|opening| opening.agent.to_owned());
        let run = run_of_call(&id, &transcript);
        let state = run.map_or_else(|| "has not started its run".to_owned(), run_state);
        lines.push(ChildLine { depth, id: id.clone(), agent, state, error: None });
        for call in run.into_iter().flat_map(calls) {
            if let Some(grandchild) = self.of_call(&id, &transcript, call) {
                self.add_lines(depth + 1, grandchild, lines);
            }
        }
    }
}

/// Returns the run that the agent call started in its child session.
pub(in crate::journal) fn run_of_call<'t, 'a>(
    child: &SessionId,
    transcript: &'t Transcript<'a>,
) -> Option<&'t RunTranscript<'a>> {
    let id: RunId = child_run_id(child)?;
    transcript.runs.iter().find(|run| run.id() == Some(&id))
}

/// Returns the id of the child session of a call. Returns `None` if the tool is not an agent, or the call has
/// no intent yet.
pub(in crate::journal) fn child_id(
    session: &SessionId,
    transcript: &Transcript<'_>,
    call: &CallTranscript<'_>,
) -> Option<SessionId> {
    let intent = call.intents.last().filter(|intent| intent.lease.is_some())?;
    // A call before a fork was recorded in the session that was forked. Its child belongs to that session.
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
    let call_count = run.turns.iter().map(|turn| turn.kept_calls().len()).sum();
    let mut state = format!(
        "has not ended, {}, {}, {} so far",
        count_with_noun(run.turns.len(), "turn"),
        count_with_noun(call_count, "call"),
        tokens(usage)
    );
    let attempts = run.turns.iter().flat_map(|turn| &turn.attempts);
    let valid = attempts.filter(|attempt| !attempt.is_void());
    for question in valid.flat_map(|attempt| attempt.calls.values()).filter_map(open_question) {
        let call = &question.request.call;
        state.push_str(&format!(", {} {} waits for a decision", call.key, call.name));
    }
    state
}
