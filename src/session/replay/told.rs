//! What a session's records alone make of it: what a replay has to arrive at.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Replayed;
use crate::context::{History, Variables};
use crate::record::{Record, ResponseMessage};
use crate::turn::replay::{Difference, Tape};
use crate::types::{CallKey, ToolResult};

/// History and variables from the records.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) history: History,
    variables: Variables,
}

impl Told {
    /// Writes the turn whose records these are, the last of which committed it.
    pub(super) fn commit(
        &mut self,
        tape: &Tape<'_>,
        (from, end): (usize, usize),
        turn: u32,
        bytes_max: usize,
    ) {
        let mut message: Option<&Arc<ResponseMessage>> = None;
        let mut ended: BTreeMap<CallKey, &Record> = BTreeMap::new();
        for (_, record) in tape.from(from).take_while(|(at, _)| *at < end) {
            if let Record::ResponseEnded { message: said, .. } = record {
                message = Some(said);
            } else if let Record::CallEnded { call, .. } = record {
                ended.insert(call.key, record);
            }
        }
        let calls = message.map(|message| message.calls.as_slice()).unwrap_or_default();
        let results = calls.iter().filter_map(|call| {
            let Record::CallEnded { outcome, notes, writes, .. } = ended.get(&call.key)? else {
                return None;
            };
            Some(ToolResult {
                call: call.clone(),
                outcome: outcome.clone(),
                notes: notes.clone(),
                started: None,
                wait: Duration::ZERO,
                duration: Duration::ZERO,
                writes: writes.clone(),
            })
        });
        let results: Vec<_> = results.collect();
        let kept = message.filter(|message| !message.is_blank());
        self.history.commit(turn, kept, &results, bytes_max);
        results.iter().for_each(|result| self.variables.apply(&result.writes));
    }

    /// Compares the messages byte for byte, and the variables.
    pub(super) fn compare(&self, replayed: &Replayed) -> Result<(), Box<Difference>> {
        let (told, now) = (written(&self.history), written(&replayed.history));
        let differs =
            |why: String| Box::new(Difference { seq: None, recorded: None, now: None, why });
        let index = told.iter().zip(&now).position(|(told, now)| told != now);
        let index = index.or_else(|| (told.len() != now.len()).then(|| told.len().min(now.len())));
        if let Some(index) = index {
            let [told, now] = [&told, &now].map(|of| of.get(index).map_or("none", String::as_str));
            return Err(differs(format!(
                "the history differs at message {index}\n  recorded: {told}\n  now:      {now}"
            )));
        }
        if self.variables != replayed.variables {
            let [told, now] = [&self.variables, &replayed.variables]
                .map(|of| serde_json::to_string(of).unwrap_or_default());
            return Err(differs(format!(
                "the variables differ\n  recorded: {told}\n  now:      {now}"
            )));
        }
        Ok(())
    }
}

/// Each message as it is shown to clients.
fn written(history: &History) -> Vec<String> {
    let messages = history.display_messages();
    messages.iter().map(|message| serde_json::to_string(message).unwrap_or_default()).collect()
}
