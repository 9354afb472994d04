//! The messages of a session, and what is counted over them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::pairing::paired;
use crate::message::Message;
use crate::record::{Record, ResponseMessage};
use crate::types::{CallKey, ResultNotes, ToolOutcome, ToolResult, metadata};

/// The messages of a session, in call order. Cloning shares them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    messages: Vec<Arc<Message>>,
    turns: u32,
    turns_with_calls: u32,
    held_ids: Arc<BTreeSet<String>>,
    /// Whether the last result has a note behind it.
    noted: bool,
}

impl History {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A history from its session's records: the same as the one that was written live.
    #[must_use]
    pub fn fold(records: &[Record], max_result_bytes: usize) -> Self {
        let mut history = Self::new();
        let mut open: Option<ResponseMessage> = None;
        let mut outcomes: BTreeMap<CallKey, (ToolOutcome, ResultNotes)> = BTreeMap::new();
        for record in records {
            match record {
                Record::RunStarted { input, .. } => history.push_user(input.clone()),
                Record::ResponseEnded { message, .. } => open = Some(message.clone()),
                Record::CallEnded { key, outcome, notes, writes: _ } => {
                    outcomes.insert(*key, (outcome.clone(), notes.clone()));
                }
                Record::TurnCommitted { turn } => {
                    history.write(*turn, open.take().as_ref(), max_result_bytes, |key| {
                        outcomes.get(&key).map(|(outcome, notes)| (outcome, notes))
                    });
                    outcomes.clear();
                }
                Record::LimitReached { note, .. } => {
                    note.iter().for_each(|note| history.add_note(note));
                }
                Record::SessionOpened { .. }
                | Record::AttemptStarted { .. }
                | Record::AttemptFailed { .. }
                | Record::CallIntended { .. }
                | Record::CallReported { .. }
                | Record::ApprovalAsked { .. }
                | Record::ApprovalGiven { .. }
                | Record::StopAsked { .. }
                | Record::RunEnded { .. }
                | Record::SessionClosed => {}
            }
        }
        history
    }

    /// A user has said something.
    pub fn push_user(&mut self, content: String) {
        self.messages.push(Arc::new(Message::User { content }));
    }

    /// A turn is over: its message, and one result for each of its calls.
    pub fn commit(
        &mut self,
        turn: u32,
        message: Option<&ResponseMessage>,
        results: &[ToolResult],
        max_result_bytes: usize,
    ) {
        self.write(turn, message, max_result_bytes, |key| {
            let result = results.iter().find(|result| result.call.key == key)?;
            Some((&result.outcome, &result.notes))
        });
    }

    /// Tells the model something of ours behind the last result, if that is the last message. A
    /// blank line parts it from what the tool said.
    pub fn add_note(&mut self, note: &str) {
        let Some(last) = self.messages.last_mut() else { return };
        if !matches!(**last, Message::Tool { .. }) {
            return;
        }
        if let Message::Tool { content, .. } = Arc::make_mut(last) {
            content.push_str(if self.noted { "\n" } else { "\n\n" });
            content.push_str(note);
            self.noted = true;
        }
    }

    /// The messages, in order.
    #[must_use]
    pub fn messages(&self) -> &[Arc<Message>] {
        &self.messages
    }

    /// The messages as a provider may be sent them, and how many repairs that took. It takes
    /// none, unless we have a bug.
    #[must_use]
    pub fn request_messages(&self) -> (Vec<Arc<Message>>, u32) {
        paired(&self.messages)
    }

    /// The session's last turn; 0 before the first.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.turns
    }

    /// How many turns had calls.
    #[must_use]
    pub fn turns_with_calls(&self) -> u32 {
        self.turns_with_calls
    }

    /// Ids of the form of our own, `call_{n}_{index}`, that are taken.
    #[must_use]
    pub fn held_ids(&self) -> Arc<BTreeSet<String>> {
        Arc::clone(&self.held_ids)
    }

    fn write<'a>(
        &mut self,
        turn: u32,
        message: Option<&ResponseMessage>,
        max_result_bytes: usize,
        answer: impl Fn(CallKey) -> Option<(&'a ToolOutcome, &'a ResultNotes)>,
    ) {
        self.turns = self.turns.max(turn);
        self.noted = false;
        let Some(message) = message.filter(|message| !message.is_blank()) else { return };
        self.turns_with_calls += u32::from(!message.calls.is_empty());
        // Others cannot meet one of ours, and the set is copied while the turn still shares it.
        let taken: Vec<_> = message.calls.iter().filter(|c| is_like_ours(&c.id)).collect();
        if !taken.is_empty() {
            Arc::make_mut(&mut self.held_ids).extend(taken.iter().map(|call| call.id.clone()));
        }
        self.messages.push(Arc::new(Message::Assistant {
            text: message.text.clone(),
            reasoning: message.reasoning.clone(),
            calls: message.calls.clone(),
        }));
        for call in &message.calls {
            // A call without an outcome would be a bug of the turn; the check at request building
            // answers it and counts that.
            let Some((outcome, notes)) = answer(call.key) else { continue };
            self.messages.push(Arc::new(Message::Tool {
                call_id: call.id.clone(),
                name: call.name.clone(),
                content: shorten(&outcome.content, max_result_bytes),
                metadata: metadata(outcome, notes),
            }));
        }
    }
}

/// Whether a call without an id could be given this one: `call_{n}_{index}`.
fn is_like_ours(id: &str) -> bool {
    let parts = id.strip_prefix("call_").and_then(|rest| rest.split_once('_'));
    parts.is_some_and(|(turn, index)| {
        [turn, index].iter().all(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// The part of a result that the model is shown, and how much there was.
fn shorten(content: &str, bytes_max: usize) -> String {
    if content.len() <= bytes_max {
        return content.to_owned();
    }
    let mut cut = bytes_max;
    while !content.is_char_boundary(cut) {
        cut -= 1;
    }
    let shown = content.get(..cut).unwrap_or_default();
    format!("{shown}\n[the result is cut here: {cut} of {} bytes are shown]", content.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{RunId, ToolCall, Usage, WriteSet};
    use std::time::Duration;

    fn call(index: u32) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: format!("call_{index}"),
            provider_id: None,
            name: "clock".into(),
            arguments: serde_json::json!({}),
            raw: None,
        }
    }

    fn result(call: ToolCall, content: &str) -> ToolResult {
        ToolResult {
            call,
            outcome: ToolOutcome::ok(content),
            notes: ResultNotes { reused: true, ..ResultNotes::default() },
            started: None,
            wait: Duration::ZERO,
            duration: Duration::ZERO,
            writes: WriteSet::default(),
        }
    }

    #[test]
    fn a_fold_gives_the_history_that_was_written_live() {
        let message = ResponseMessage {
            text: "look".into(),
            reasoning: "hm".into(),
            calls: vec![call(0), call(1)],
        };
        let results = [result(call(0), "noon"), result(call(1), "eight")];
        let mut live = History::new();
        live.push_user("time?".into());
        live.commit(1, Some(&message), &results, 1024);
        let mut records = vec![
            Record::RunStarted { run_id: RunId("run_1".into()), input: "time?".into() },
            Record::ResponseEnded {
                turn: 1,
                attempt: 1,
                ending: crate::record::Ending::Well,
                message,
                finish_reason: None,
                usage: Usage::default(),
                dropped_calls: Vec::new(),
            },
        ];
        records.extend(results.iter().rev().map(|result| Record::CallEnded {
            key: result.call.key,
            outcome: result.outcome.clone(),
            notes: result.notes.clone(),
            writes: WriteSet::default(),
        }));
        records.push(Record::TurnCommitted { turn: 1 });
        for note in ["[callsheet: 1]", "[callsheet: 2]"] {
            live.add_note(note);
            let limit = "max_turns".to_owned();
            let note = Some(note.to_owned());
            records.push(Record::LimitReached { limit, value: 1, maximum: 2, note });
        }
        let last = serde_json::to_value(&live.messages()[3]).unwrap();
        assert_eq!(last["content"], "eight\n\n[callsheet: 1]\n[callsheet: 2]");
        assert_eq!(History::fold(&records, 1024), live);
        assert_eq!(live.request_messages().1, 0);
        assert_eq!((live.turns(), live.turns_with_calls()), (1, 1));
    }

    #[test]
    fn a_long_result_is_shown_in_part() {
        assert_eq!(shorten("été", 5), "été");
        assert_eq!(shorten("été", 4), "ét\n[the result is cut here: 3 of 5 bytes are shown]");
    }

    #[test]
    fn only_ids_that_we_could_give_are_held() {
        let mut history = History::new();
        let ids =
            ["call_4_3", "call_abc", "call_12", "call_1_", "call__1", "call_1_x", "toolu_1_2"];
        let calls = ids.map(|id| ToolCall { id: id.into(), ..call(0) });
        let message = ResponseMessage { calls: calls.into(), ..ResponseMessage::default() };
        history.commit(1, Some(&message), &[], 10);
        assert_eq!(*history.held_ids(), BTreeSet::from(["call_4_3".to_owned()]));
    }

    #[test]
    fn a_turn_that_said_nothing_leaves_no_message() {
        let mut history = History::new();
        history.commit(3, Some(&ResponseMessage::default()), &[], 10);
        assert_eq!((history.messages().len(), history.turns()), (0, 3));
    }

    #[test]
    fn only_turns_with_calls_are_counted_as_such() {
        let said = ResponseMessage { text: "noon".into(), ..ResponseMessage::default() };
        let called = ResponseMessage { calls: vec![call(0)], ..ResponseMessage::default() };
        let mut history = History::new();
        history.commit(1, Some(&said), &[], 10);
        history.commit(2, Some(&called), &[result(call(0), "")], 10);
        history.commit(3, Some(&said), &[], 10);
        assert_eq!((history.turns(), history.turns_with_calls()), (3, 1));
    }
}
