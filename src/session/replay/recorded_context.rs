//! The history and the variables that a session's records hold: a replay must reach the same.

use std::time::Duration;

use super::Replayed;
use crate::context::{History, Variables};
use crate::transcript::{CallTranscript, TurnTranscript};
use crate::turn::replay::Difference;
use crate::types::ToolResult;

/// History and variables, from the records alone.
#[derive(Debug, Default)]
pub(super) struct RecordedContext {
    pub(super) history: History,
    variables: Variables,
}

impl RecordedContext {
    /// Commits a turn.
    pub(super) fn commit(&mut self, turn: &TurnTranscript<'_>, bytes_max: usize) {
        let results = turn.kept_calls().iter().filter_map(|call| {
            let outcome = turn.call(call.key).and_then(CallTranscript::outcome)?;
            // Times are not compared.
            let (started, wait, duration) = (None, Duration::ZERO, Duration::ZERO);
            Some(ToolResult { started, wait, duration, ..outcome.result(call.clone()) })
        });
        let results: Vec<_> = results.collect();
        let message = turn.response().map(|response| response.message);
        let message = message.filter(|message| !message.is_blank());
        self.history.commit(turn.number, message, &results, bytes_max);
        results.iter().for_each(|result| self.variables.apply(&result.writes));
    }

    /// Compares the messages byte for byte, and the variables.
    pub(super) fn compare(&self, replayed: &Replayed) -> Result<(), Box<Difference>> {
        let recorded = messages(&self.history);
        let now = messages(&replayed.history);
        let differs =
            |reason: String| Box::new(Difference { seq: None, recorded: None, now: None, reason });
        let index = recorded.iter().zip(&now).position(|(recorded, now)| recorded != now);
        let shorter = recorded.len().min(now.len());
        let index = index.or_else(|| (recorded.len() != now.len()).then_some(shorter));
        if let Some(index) = index {
            let [recorded, now] =
                [&recorded, &now].map(|list| list.get(index).map_or("none", String::as_str));
            return Err(differs(format!(
                "the history differs at message {index}\n  recorded: {recorded}\n  now:      {now}"
            )));
        }
        if self.variables != replayed.variables {
            let [recorded, now] = [&self.variables, &replayed.variables]
                .map(|variables| serde_json::to_string(variables).unwrap_or_default());
            return Err(differs(format!(
                "the variables differ\n  recorded: {recorded}\n  now:      {now}"
            )));
        }
        Ok(())
    }
}

/// The messages as clients see them, each as JSON.
fn messages(history: &History) -> Vec<String> {
    let messages = history.display_messages();
    messages.iter().map(|message| serde_json::to_string(message).unwrap_or_default()).collect()
}
