//! The messages of a session, and what is counted over them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::initial_history::InitialHistory;
use super::pairing::{are_paired, paired};
use crate::message::{Message, MessageList};
use crate::record::ResponseMessage;
use crate::types::{CallKey, Content, ResultNotes, ToolCall, ToolOutcome, ToolResult, metadata};

/// The messages of a session, in call order. Cloning shares them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    messages: MessageList,
    /// So many of them, from the first on, keep the pairing rule.
    paired: usize,
    turns: u32,
    turns_with_calls: u32,
    held_ids: Arc<BTreeSet<String>>,
    /// Whether the last result has a note behind it.
    noted: bool,
    /// What users said while a turn goes on: it stands behind the turn.
    undelivered: Vec<Content>,
    /// Calls that the session was opened with and that nobody has answered: its first turn.
    open: Option<Arc<ResponseMessage>>,
}

impl History {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The history that a session is opened with.
    #[must_use]
    pub fn from_initial(seed: InitialHistory) -> Self {
        let mut history = Self { open: seed.open, ..Self::default() };
        for message in &seed.messages {
            if let Message::Assistant(message) = message.as_ref() {
                history.count_calls(&message.calls);
            }
        }
        history.messages = seed.messages.into();
        history.check_pairs();
        history
    }

    /// A run begins with what a user said. It stands behind the calls that the session was opened
    /// with, which are answered first.
    pub fn begin_run(&mut self, input: Content) {
        match self.open {
            Some(_) => self.undelivered.push(input),
            None => self.push_user(input),
        }
    }

    /// The calls that the session was opened with, until they are answered: the response that its
    /// first turn goes on from.
    #[must_use]
    pub fn open_calls(&self) -> Option<&ResponseMessage> {
        self.open.as_deref()
    }

    /// A user said something while `after_turn` went on. It stands right behind that turn, which
    /// may have been committed meanwhile.
    pub fn steer(&mut self, after_turn: u32, input: Content) {
        if self.turns >= after_turn {
            self.push_user(input);
        } else {
            self.undelivered.push(input);
        }
    }

    /// How many inputs wait for the end of the turn that goes on.
    #[must_use]
    pub fn undelivered(&self) -> usize {
        self.undelivered.len()
    }

    /// The run is over: what was said to it and did not get through stands at its end.
    pub fn end_run(&mut self) {
        self.open = None;
        self.deliver();
    }

    /// A turn is over: its message, one result for each of its calls, and behind them what users
    /// said meanwhile.
    pub fn commit(
        &mut self,
        turn: u32,
        message: Option<&Arc<ResponseMessage>>,
        results: &[ToolResult],
        max_result_bytes: usize,
    ) {
        self.write(turn, message, max_result_bytes, |key| {
            let result = results.iter().find(|result| result.call.key == key)?;
            Some((&result.outcome, &result.notes))
        });
    }

    /// Tells the model something of ours behind the last result, if nothing but what users said
    /// stands behind that. A blank line parts it from what the tool said.
    pub fn add_note(&mut self, note: &str) {
        let is_said = |message: &Arc<Message>| matches!(**message, Message::User { .. });
        let Some(last) = self.messages.iter().rposition(|message| !is_said(message)) else {
            return;
        };
        if !self.messages.get(last).is_some_and(|last| matches!(**last, Message::Tool { .. })) {
            return;
        }
        if let Some(Message::Tool { content, .. }) = self.messages.get_mut(last) {
            let between = if self.noted { "\n" } else { "\n\n" };
            *content = [&**content, between, note].concat().into();
            self.noted = true;
        }
    }

    /// The messages, in order.
    #[must_use]
    pub fn messages(&self) -> &MessageList {
        &self.messages
    }

    /// The messages as people are shown them: with the calls that nobody has answered yet.
    #[must_use]
    pub fn display_messages(&self) -> Vec<Arc<Message>> {
        let open = self.open.iter().map(|message| Arc::new(Message::Assistant(message.clone())));
        self.messages.iter().cloned().chain(open).collect()
    }

    /// The messages as a provider may be sent them, and how many repairs that took. It takes
    /// none, unless we have a bug. What was found paired when it was written is not read again.
    #[must_use]
    pub fn request_messages(&self) -> (MessageList, u32) {
        let (known, rest) = self.split();
        match paired(rest) {
            (_, 0) => (self.messages.clone(), 0),
            (rest, repairs) => (known.iter().cloned().chain(rest).collect(), repairs),
        }
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

    /// The messages that are known to be paired, and those behind them.
    fn split(&self) -> (&[Arc<Message>], &[Arc<Message>]) {
        self.messages.split_at_checked(self.paired).unwrap_or((&self.messages, &[]))
    }

    /// Reads what was written since the last time: no call of it is open, or the next time it is
    /// read again.
    fn check_pairs(&mut self) {
        if are_paired(self.split().1) {
            self.paired = self.messages.len();
        }
    }

    fn write<'a>(
        &mut self,
        turn: u32,
        message: Option<&Arc<ResponseMessage>>,
        max_result_bytes: usize,
        answer: impl Fn(CallKey) -> Option<(&'a ToolOutcome, &'a ResultNotes)>,
    ) {
        self.turns = self.turns.max(turn);
        self.noted = false;
        self.open = None;
        if let Some(message) = message.filter(|message| !message.is_blank()) {
            self.write_message(message, max_result_bytes, answer);
        }
        self.check_pairs();
        self.deliver();
    }

    fn write_message<'a>(
        &mut self,
        message: &Arc<ResponseMessage>,
        max_result_bytes: usize,
        answer: impl Fn(CallKey) -> Option<(&'a ToolOutcome, &'a ResultNotes)>,
    ) {
        self.count_calls(&message.calls);
        self.messages.push(Message::Assistant(Arc::clone(message)));
        for call in &message.calls {
            // A call without an outcome would be a bug of the turn; the check at request building
            // answers it and counts that.
            let Some((outcome, notes)) = answer(call.key) else { continue };
            self.messages.push(Message::Tool {
                call_id: call.id.clone(),
                name: call.name.clone(),
                content: shorten(&outcome.content, max_result_bytes),
                metadata: metadata(outcome, notes),
            });
        }
    }

    fn count_calls(&mut self, calls: &[ToolCall]) {
        self.turns_with_calls += u32::from(!calls.is_empty());
        // Others cannot meet one of ours, and the set is copied while the turn still shares it.
        let taken: Vec<_> = calls.iter().filter(|call| is_like_ours(&call.id)).collect();
        if !taken.is_empty() {
            Arc::make_mut(&mut self.held_ids).extend(taken.iter().map(|call| call.id.to_string()));
        }
    }

    fn deliver(&mut self) {
        for input in std::mem::take(&mut self.undelivered) {
            self.push_user(input);
        }
    }

    fn push_user(&mut self, content: Content) {
        self.messages.push(Message::User { content });
        self.check_pairs();
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
fn shorten(content: &Arc<str>, bytes_max: usize) -> Arc<str> {
    if content.len() <= bytes_max {
        return Arc::clone(content);
    }
    let mut cut = bytes_max;
    while !content.is_char_boundary(cut) {
        cut -= 1;
    }
    let shown = content.get(..cut).unwrap_or_default();
    format!("{shown}\n[the result is cut here: {cut} of {} bytes are shown]", content.len()).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::WriteSet;
    use std::time::Duration;

    fn call(index: u32) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: format!("call_{index}").into(),
            provider_id: None,
            name: "clock".into(),
            arguments: serde_json::json!({}).into(),
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
    fn notes_stand_behind_the_last_result_in_lines_of_their_own() {
        let message =
            Arc::new(ResponseMessage { calls: vec![call(0)], ..ResponseMessage::default() });
        let mut history = History::new();
        history.commit(1, Some(&message), &[result(call(0), "eight")], 1024);
        history.add_note("[callsheet: 1]");
        history.add_note("[callsheet: 2]");
        let last = serde_json::to_value(&history.messages()[1]).unwrap();
        assert_eq!(last["content"], "eight\n\n[callsheet: 1]\n[callsheet: 2]");
    }

    #[test]
    fn a_long_result_is_shown_in_part() {
        let shorten = |bytes_max| shorten(&"été".into(), bytes_max);
        assert_eq!(&*shorten(5), "été");
        assert_eq!(&*shorten(4), "ét\n[the result is cut here: 3 of 5 bytes are shown]");
    }

    #[test]
    fn only_ids_that_we_could_give_are_held() {
        let mut history = History::new();
        let ids =
            ["call_4_3", "call_abc", "call_12", "call_1_", "call__1", "call_1_x", "toolu_1_2"];
        let calls = ids.map(|id| ToolCall { id: id.into(), ..call(0) });
        let message =
            Arc::new(ResponseMessage { calls: calls.into(), ..ResponseMessage::default() });
        history.commit(1, Some(&message), &[], 10);
        assert_eq!(*history.held_ids(), BTreeSet::from(["call_4_3".to_owned()]));
    }

    #[test]
    fn a_request_takes_no_more_of_a_long_history_than_of_a_short_one() {
        let costs = [1, 1_000].map(|turns| {
            let mut history = History::new();
            history.begin_run("Go on.".into());
            for turn in 1..=turns {
                let call = call(turn);
                let message = Arc::new(ResponseMessage {
                    calls: vec![call.clone()],
                    ..ResponseMessage::default()
                });
                history.commit(turn, Some(&message), &[result(call, "noon")], 1024);
                history.steer(turn, "And on.".into());
            }
            assert_eq!(history.split().1.len(), 0, "nothing is left to be read again");
            let mut sent = None;
            let allocated = allocation_counter::measure(|| {
                sent = Some(history.request_messages());
            });
            let Some((sent, 0)) = sent else { panic!("{sent:?}") };
            assert_eq!(sent.len() as u32, 1 + 3 * turns);
            assert!(sent.iter().all(|message| Arc::strong_count(message) == 1));
            allocated.count_total
        });
        assert_eq!(costs, [0, 0]);
    }

    #[test]
    fn what_is_not_paired_is_read_until_it_is() {
        let message = Arc::new(ResponseMessage {
            calls: vec![call(0), call(1)],
            ..ResponseMessage::default()
        });
        let mut history = History::new();
        history.begin_run("Go on.".into());
        history.commit(1, Some(&message), &[result(call(1), "noon")], 1024);
        for after in 2..4 {
            let (sent, repairs) = history.request_messages();
            assert_eq!((sent.len(), repairs), (2 + after, 1));
            history.steer(1, "And on.".into());
        }
        assert_eq!(history.split().0.len(), 1);
    }

    #[test]
    fn a_turn_that_said_nothing_leaves_no_message() {
        let mut history = History::new();
        history.commit(3, Some(&Arc::default()), &[], 10);
        assert_eq!((history.messages().len(), history.turns()), (0, 3));
    }

    #[test]
    fn only_turns_with_calls_are_counted_as_such() {
        let said = Arc::new(ResponseMessage { text: "noon".into(), ..ResponseMessage::default() });
        let called =
            Arc::new(ResponseMessage { calls: vec![call(0)], ..ResponseMessage::default() });
        let mut history = History::new();
        history.commit(1, Some(&said), &[], 10);
        history.commit(2, Some(&called), &[result(call(0), "")], 10);
        history.commit(3, Some(&said), &[], 10);
        assert_eq!((history.turns(), history.turns_with_calls()), (3, 1));
    }
}
