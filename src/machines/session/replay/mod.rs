//! Replays a session from its records, without models and tools, to see if today's code with
//! today's configuration decides the same.
//!
//! The machines are the real ones. Inputs from outside (requests, responses of models, answers of tools, decisions of
//! people, crashes) come from the records. The records that the machines make are compared with the recorded ones,
//! except for times and a few other values (`turn::replay::difference`). Changes of the context come from the
//! records, because they depend on the counts of services. The content of a tool's outcome cannot be checked; the
//! decisions about it are.

mod session;

use std::sync::Arc;

use super::{Session, SessionRunRules, StoredSession};
use crate::context::Variables;
use crate::turn::RunRules;
use crate::turn::replay::{Difference, Recording};
use callsheet_values::config::RunOverrides;
use callsheet_values::record::JournalEntry;
use session::SessionReplay;

/// A recording with which its replay agrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The number of runs.
    pub runs: u32,
    /// The number of turns that began.
    pub turns: u32,
    /// The number of calls of committed turns.
    pub calls: usize,
    /// The number of records.
    pub records: usize,
    /// True if it ends within a run.
    pub unfinished: bool,
    /// The variables at its end.
    pub variables: Variables,
}

/// Replays a session. `rules_of` returns the rules of an agent's run today, with the servers' tools of the
/// list with this SHA-256, or the reason why it cannot start.
///
/// # Errors
/// The first difference.
pub fn replay(
    entries: &[JournalEntry],
    rules_of: impl Fn(&str, &RunOverrides, Option<&str>) -> Result<Arc<RunRules>, String>,
) -> Result<Replayed, Box<Difference>> {
    let recording = Recording::new(entries);
    let (replayed, session) = SessionReplay::new(&recording, &rules_of).play()?;
    // The tools of servers affect neither messages nor variables.
    let session_rules_of =
        |overrides: &RunOverrides| match rules_of(&session.agent, overrides, None) {
            Ok(rules) => SessionRunRules::from(&*rules),
            Err(_) => SessionRunRules::default(),
        };
    let stored = StoredSession::read(entries, &session_rules_of);
    compare(&stored.map_err(|error| differs(error.to_string()))?.session, &session)?;
    Ok(Replayed { records: entries.len(), ..replayed })
}

/// Compares the messages byte for byte, and the variables, with those of the session that a host reads from the
/// records ([`StoredSession`]). Both follow today's rules, so another `max_result_bytes` is not a difference here.
fn compare(recorded: &Session, now: &Session) -> Result<(), Box<Difference>> {
    let [recorded_messages, messages_now] = [recorded, now].map(|session| {
        let messages = session.history.display_messages();
        messages.iter().map(|message| json(&**message)).collect::<Vec<_>>()
    });
    for index in 0..recorded_messages.len().max(messages_now.len()) {
        let [recorded, now] =
            [&recorded_messages, &messages_now].map(|list| list.get(index).map(String::as_str));
        if recorded != now {
            let [recorded, now] = [recorded, now].map(|message| message.unwrap_or("none"));
            return Err(differs(format!(
                "the history differs at message {index}\n  recorded: {recorded}\n  now:      {now}"
            )));
        }
    }
    if recorded.variables != now.variables {
        let [recorded, now] = [recorded, now].map(|session| json(&session.variables));
        return Err(differs(format!(
            "the variables differ\n  recorded: {recorded}\n  now:      {now}"
        )));
    }
    Ok(())
}

fn differs(reason: String) -> Box<Difference> {
    Box::new(Difference { seq: None, recorded: None, replayed_record: None, reason })
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
