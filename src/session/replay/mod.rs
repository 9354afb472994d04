//! Replays a session from its records, without models and tools, to see if today's code with
//! today's configuration decides the same.
//!
//! The machines are the real ones. Inputs from outside (responses of models, answers of tools,
//! decisions of people, stops, crashes) come from the records. The records that the machines make
//! are compared with the recorded ones, except for times. The content of a tool's outcome cannot
//! be checked; all decisions about it are.

mod recorded_context;
mod session;

use std::sync::Arc;

use crate::config::RunOverrides;
use crate::context::{History, Variables};
use crate::record::JournalEntry;
use crate::turn::TurnRules;
use crate::turn::replay::{Difference, Recording};
use crate::types::SessionId;
use session::SessionReplay;

/// A recording with which its replay agrees.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The number of runs.
    pub runs: u32,
    /// The number of turns that began.
    pub turns: u32,
    /// The number of calls that were answered.
    pub calls: usize,
    /// The number of records.
    pub records: usize,
    /// True if it ends within a run.
    pub unfinished: bool,
    /// The messages at its end.
    pub history: History,
    /// The variables at its end.
    pub variables: Variables,
}

/// Replays a session. `rules_of` returns the rules of an agent's run today, or the reason why it
/// cannot start.
///
/// # Errors
/// The first difference.
pub fn replay(
    session: &SessionId,
    entries: &[JournalEntry],
    rules_of: impl Fn(&str, &RunOverrides) -> Result<Arc<TurnRules>, String>,
) -> Result<Replayed, Box<Difference>> {
    let recording = Recording::new(entries);
    let replayed = SessionReplay::new(&recording, session, &rules_of).play()?;
    Ok(Replayed { records: entries.len(), ..replayed })
}
