//! A session once more from its records, without models and tools: does today's code, with today's
//! configuration, decide the same?
//!
//! The machines are the real ones. What came from outside (what models said, what tools answered,
//! what people decided, stops, crashes) is taken from the records; what the machines ask to be
//! recorded is compared with what was, record by record, but for times. An outcome of a tool
//! stands once in the records and is what they say; all that is decided about it is compared.

mod session;
mod told;

use std::sync::Arc;

use crate::config::RunOverrides;
use crate::context::{History, Variables};
use crate::record::JournalEntry;
use crate::turn::TurnRules;
use crate::turn::replay::{Difference, Tape};
use crate::types::SessionId;
use session::Session;

/// A recording that today's code decides in the same way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// How many runs it has.
    pub runs: u32,
    /// How many turns were begun.
    pub turns: u32,
    /// How many calls were answered.
    pub calls: usize,
    /// How many records.
    pub records: usize,
    /// Whether it ends while a run goes on.
    pub unfinished: bool,
    /// The messages at its end.
    pub history: History,
    /// The variables at its end.
    pub variables: Variables,
}

/// Plays a session's records. `rules_of` says what a run of an agent goes by now, or why it could
/// not begin.
///
/// # Errors
/// The first difference.
pub fn replay(
    session: &SessionId,
    entries: &[JournalEntry],
    rules_of: impl Fn(&str, &RunOverrides) -> Result<Arc<TurnRules>, String>,
) -> Result<Replayed, Box<Difference>> {
    let tape = Tape::new(entries);
    let replayed = Session::new(&tape, session, &rules_of).play()?;
    Ok(Replayed { records: entries.len(), ..replayed })
}
