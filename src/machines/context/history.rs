//! The messages of a session, and counts over them.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::initial_history::InitialHistory;
use super::pairing::{are_paired, repair_pairing};
use super::result_cut::{ResultCut, model_content};
use super::tokens::add_messages;
use callsheet_values::message::{Message, MessageList};
use callsheet_values::record::ResponseMessage;
use callsheet_values::types::{
    CallKey, Content, PartTokens, Reference, ResultNotes, ToolCall, ToolOutcome, ToolResult,
    metadata,
};

/// The messages of a session, with the results of each turn in call order. Clones share the
/// messages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    messages: MessageList,
    /// Number of messages from the beginning that satisfy the pairing rule.
    paired_len: usize,
    /// The number of the last turn.
    turns: u32,
    /// Number of turns and initial messages with calls.
    turns_with_calls: u32,
    used_call_ids: Arc<BTreeSet<String>>,
    /// True if a note was appended to the last result.
    has_note: bool,
    /// Inputs that wait for the end of the current turn; with open initial calls also the run's own
    /// input.
    pending_inputs: Vec<Content>,
    /// Number of users' inputs after the last turn, without the first one of the run, unless that
    /// waited for initial calls.
    inputs_since_turn: usize,
    /// The last of the initial messages, if its calls have no results yet. Its calls are the
    /// session's first turn.
    initial_calls: Option<Arc<ResponseMessage>>,
    estimate: Estimate,
}

/// The tokens of the first messages, by estimate. It follows from the messages, so it is no part of what is
/// compared.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    /// Number of messages that are counted.
    messages: usize,
    tokens: PartTokens,
}

impl PartialEq for Estimate {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Estimate {}

impl std::hash::Hash for Estimate {
    fn hash<H: std::hash::Hasher>(&self, _: &mut H) {}
}

impl History {
    /// Creates an empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a history from initial messages.
    #[must_use]
    pub fn from_initial(initial: InitialHistory) -> Self {
        let mut history = Self { initial_calls: initial.initial_calls, ..Self::default() };
        for message in &initial.messages {
            if let Message::Assistant(message) = message.as_ref() {
                history.count_calls(&message.calls);
            }
        }
        history.messages = initial.messages.into();
        history.advance_paired_len();
        history
    }

    /// Starts a run with a user's input. If there are initial calls without results, the input is
    /// added after their results.
    pub fn begin_run(&mut self, input: Content) {
        self.inputs_since_turn = 0;
        match self.initial_calls {
            Some(_) => self.pending_inputs.push(input),
            None => self.push_user(input),
        }
    }

    /// Returns the message whose calls are the session's first turn, until they have results.
    #[must_use]
    pub fn initial_calls(&self) -> Option<&ResponseMessage> {
        self.initial_calls.as_deref()
    }

    /// Adds a user's input after the turn `follows_turn`: at once if that turn is committed, otherwise at the next
    /// commit or at the end of the run. Waits likewise for the results of initial calls.
    pub fn steer(&mut self, follows_turn: u32, input: Content) {
        if self.turns >= follows_turn && self.initial_calls.is_none() {
            self.push_input(input);
        } else {
            self.pending_inputs.push(input);
        }
    }

    /// Adds a message of the host, which the model receives like an input of the user.
    pub fn instruct(&mut self, text: &str) {
        self.push_user(text.into());
    }

    /// Returns the number of inputs that wait for the end of the current turn.
    #[must_use]
    pub fn pending_inputs(&self) -> usize {
        self.pending_inputs.len()
    }

    /// Returns whether this input waits for the end of the current turn.
    #[must_use]
    pub fn is_pending(&self, input: &Content) -> bool {
        self.pending_inputs.iter().any(|pending| pending.is_clone_of(input))
    }

    /// Returns the number of users' inputs that follow the last turn, without the first one of the run,
    /// unless that waited for initial calls.
    #[must_use]
    pub fn inputs_since_turn(&self) -> usize {
        self.inputs_since_turn
    }

    /// Ends the run: drops initial calls that still have no results, and adds the pending inputs.
    pub fn end_run(&mut self) {
        self.initial_calls = None;
        self.add_pending_inputs();
    }

    /// Commits a turn: adds its message, unless it is blank, one result for each call in the message's order, and
    /// the pending inputs. A long result is cut.
    pub fn commit(
        &mut self,
        turn: u32,
        message: Option<&Arc<ResponseMessage>>,
        results: &[ToolResult],
        cut: ResultCut,
    ) {
        self.commit_turn(turn, message, cut, |key| {
            let result = results.iter().find(|result| result.call.key == key)?;
            Some((&result.outcome, &result.notes))
        });
    }

    /// Appends a note for the model to the last result, if only user messages follow it. A blank
    /// line separates the first note from the tool's text.
    pub fn add_note(&mut self, note: &str) {
        let is_user = |message: &Arc<Message>| matches!(**message, Message::User { .. });
        let Some(last) = self.messages.iter().rposition(|message| !is_user(message)) else {
            return;
        };
        if !self.messages.get(last).is_some_and(|last| matches!(**last, Message::Tool { .. })) {
            return;
        }
        if self.estimate.messages > last {
            self.estimate = Estimate::default();
        }
        if let Some(Message::Tool { content, .. }) = self.messages.get_mut(last) {
            let between = if self.has_note { "\n" } else { "\n\n" };
            content.append(&[between, note].concat());
            self.has_note = true;
        }
    }

    /// Returns the text of the last message of a model.
    #[must_use]
    pub fn last_text(&self) -> String {
        let text = |message: &Arc<Message>| match &**message {
            Message::Assistant(response) => Some(response.text.clone()),
            Message::User { .. } | Message::Summary { .. } | Message::Tool { .. } => None,
        };
        self.messages.iter().rev().find_map(text).unwrap_or_default()
    }

    /// Replaces all messages by those that a change of the context leaves. `tokens` are theirs by estimate.
    pub fn replace(&mut self, messages: MessageList, tokens: PartTokens) {
        self.estimate = Estimate { messages: messages.len(), tokens };
        self.messages = messages;
        self.paired_len = 0;
        self.advance_paired_len();
    }

    /// Removes the last message if it is a response without calls.
    pub fn drop_last_answer(&mut self) {
        let is_answer = |message: &Arc<Message>| match &**message {
            Message::Assistant(response) => response.calls.is_empty(),
            Message::User { .. } | Message::Summary { .. } | Message::Tool { .. } => false,
        };
        if let Some((last, before)) = self.messages.split_last()
            && is_answer(last)
        {
            self.messages = before.to_vec().into();
            self.paired_len = self.paired_len.min(self.messages.len());
            self.estimate = Estimate::default();
        }
    }

    /// Returns about the number of tokens of the messages. Estimates only messages that it has not estimated before.
    pub fn estimated_tokens(&mut self) -> u64 {
        self.estimated_parts().total()
    }

    /// Returns about the number of tokens of the messages, by part.
    pub fn estimated_parts(&mut self) -> PartTokens {
        let new = self.messages.get(self.estimate.messages..).unwrap_or_default();
        add_messages(&mut self.estimate.tokens, new);
        self.estimate.messages = self.messages.len();
        self.estimate.tokens
    }

    /// Returns the messages in order.
    #[must_use]
    pub fn messages(&self) -> &MessageList {
        &self.messages
    }

    /// Returns the messages for display, including initial calls without results.
    #[must_use]
    pub fn display_messages(&self) -> Vec<Arc<Message>> {
        let initial = self.initial_calls.iter();
        let initial = initial.map(|message| Arc::new(Message::Assistant(message.clone())));
        self.messages.iter().cloned().chain(initial).collect()
    }

    /// Returns the messages for a request, repaired to satisfy the pairing rule, and the number of
    /// repairs. It is 0 unless the host has a bug. Messages that passed the check before are not
    /// checked again.
    #[must_use]
    pub fn request_messages(&self) -> (MessageList, u32) {
        let (checked, unchecked) = self.split();
        match repair_pairing(unchecked) {
            (_, 0) => (self.messages.clone(), 0),
            (repaired, repairs) => (checked.iter().cloned().chain(repaired).collect(), repairs),
        }
    }

    /// Returns the number of the session's last committed turn; 0 before the first.
    #[must_use]
    pub fn turns(&self) -> u32 {
        self.turns
    }

    /// Returns the number of turns and initial messages with calls.
    #[must_use]
    pub fn turns_with_calls(&self) -> u32 {
        self.turns_with_calls
    }

    /// Returns the ids of the form `call_{turns}_{index}` that the history contains or has contained. The host must
    /// not generate them again.
    #[must_use]
    pub fn used_call_ids(&self) -> Arc<BTreeSet<String>> {
        Arc::clone(&self.used_call_ids)
    }

    /// Splits the messages into those that passed the pairing check and those after them.
    fn split(&self) -> (&[Arc<Message>], &[Arc<Message>]) {
        self.messages.split_at_checked(self.paired_len).unwrap_or((&self.messages, &[]))
    }

    /// Advances `paired_len` over the messages after it if they satisfy the pairing rule. Otherwise they
    /// are checked again next time.
    fn advance_paired_len(&mut self) {
        if are_paired(self.split().1) {
            self.paired_len = self.messages.len();
        }
    }

    fn commit_turn<'a>(
        &mut self,
        turn: u32,
        message: Option<&Arc<ResponseMessage>>,
        cut: ResultCut,
        result_of: impl Fn(CallKey) -> Option<(&'a ToolOutcome, &'a ResultNotes)>,
    ) {
        self.turns = self.turns.max(turn);
        self.has_note = false;
        self.initial_calls = None;
        self.inputs_since_turn = 0;
        if let Some(message) = message.filter(|message| !message.is_blank()) {
            self.push_response(message, cut, result_of);
        }
        self.advance_paired_len();
        self.add_pending_inputs();
    }

    fn push_response<'a>(
        &mut self,
        message: &Arc<ResponseMessage>,
        cut: ResultCut,
        result_of: impl Fn(CallKey) -> Option<(&'a ToolOutcome, &'a ResultNotes)>,
    ) {
        self.count_calls(&message.calls);
        let made = as_made(message);
        self.messages.push(Message::Assistant(Arc::clone(&made)));
        for call in &made.calls {
            // A call without an outcome is a bug of the turn. The pairing check of the next request
            // then adds a result and counts a repair.
            let Some((outcome, notes)) = result_of(call.key) else { continue };
            self.messages.push(Message::Tool {
                call_id: call.id.clone(),
                name: call.name.clone(),
                content: model_content(outcome, cut, &Reference::Result(call.key)),
                metadata: metadata(outcome, notes),
            });
        }
    }

    fn count_calls(&mut self, calls: &[ToolCall]) {
        self.turns_with_calls += u32::from(!calls.is_empty());
        // Other ids cannot collide with generated ones.
        let mut reserved = calls.iter().filter(|call| could_be_generated(&call.id)).peekable();
        // `make_mut` copies the set if the turn shares it, so it is called only when necessary.
        if reserved.peek().is_some() {
            let ids = reserved.map(|call| call.id.to_string());
            Arc::make_mut(&mut self.used_call_ids).extend(ids);
        }
    }

    fn add_pending_inputs(&mut self) {
        for input in std::mem::take(&mut self.pending_inputs) {
            self.push_input(input);
        }
    }

    fn push_input(&mut self, input: Content) {
        self.inputs_since_turn += 1;
        self.push_user(input);
    }

    fn push_user(&mut self, content: Content) {
        self.messages.push(Message::User { content });
        self.advance_paired_len();
    }
}

/// Returns whether the host could generate this id: `call_{turns}_{index}`.
fn could_be_generated(id: &str) -> bool {
    let parts = id.strip_prefix("call_").and_then(|rest| rest.split_once('_'));
    parts.is_some_and(|(turns, index)| {
        [turns, index].iter().all(|n| !n.is_empty() && n.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// Returns the message with its calls as the model made them.
fn as_made(message: &Arc<ResponseMessage>) -> Arc<ResponseMessage> {
    if !message.calls.iter().any(|call| call.indirect) {
        return Arc::clone(message);
    }
    let calls = message.calls.iter().map(ToolCall::as_made).collect();
    Arc::new(ResponseMessage { calls, ..ResponseMessage::clone(message) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::types::WriteSet;
    use std::time::Duration;

    const CUT: ResultCut = ResultCut { bytes_max: 1024, references: true };

    fn call(index: u32) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: format!("call_{index}").into(),
            provider_id: None,
            name: "clock".into(),
            arguments: serde_json::json!({}).into(),
            raw: None,
            indirect: false,
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
    fn notes_follow_the_last_result_on_separate_lines() {
        let message =
            Arc::new(ResponseMessage { calls: vec![call(0)], ..ResponseMessage::default() });
        let mut history = History::new();
        history.commit(1, Some(&message), &[result(call(0), "eight")], CUT);
        history.add_note("[callsheet: 1]");
        history.add_note("[callsheet: 2]");
        let last = serde_json::to_value(&history.messages()[1]).unwrap();
        assert_eq!(last["content"], "eight\n\n[callsheet: 1]\n[callsheet: 2]");
    }

    #[test]
    fn only_ids_that_the_host_could_generate_are_reserved() {
        let mut history = History::new();
        let ids =
            ["call_4_3", "call_abc", "call_12", "call_1_", "call__1", "call_1_x", "toolu_1_2"];
        let calls = ids.map(|id| ToolCall { id: id.into(), ..call(0) });
        let message =
            Arc::new(ResponseMessage { calls: calls.into(), ..ResponseMessage::default() });
        history.commit(1, Some(&message), &[], CUT);
        assert_eq!(*history.used_call_ids(), BTreeSet::from(["call_4_3".to_owned()]));
    }

    #[test]
    fn a_request_costs_the_same_for_a_long_history() {
        let costs = [1, 1_000].map(|turns| {
            let mut history = History::new();
            history.begin_run("Go on.".into());
            for turn in 1..=turns {
                let call = call(turn);
                let message = Arc::new(ResponseMessage {
                    calls: vec![call.clone()],
                    ..ResponseMessage::default()
                });
                history.commit(turn, Some(&message), &[result(call, "noon")], CUT);
                history.steer(turn, "And on.".into());
            }
            assert_eq!(history.split().1.len(), 0, "all messages are checked");
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
    fn unpaired_messages_are_checked_again_until_they_are_paired() {
        let message = Arc::new(ResponseMessage {
            calls: vec![call(0), call(1)],
            ..ResponseMessage::default()
        });
        let mut history = History::new();
        history.begin_run("Go on.".into());
        history.commit(1, Some(&message), &[result(call(1), "noon")], CUT);
        for after in 2..4 {
            let (sent, repairs) = history.request_messages();
            assert_eq!((sent.len(), repairs), (2 + after, 1));
            history.steer(1, "And on.".into());
        }
        assert_eq!(history.split().0.len(), 1);
    }

    #[test]
    fn a_turn_with_an_empty_response_adds_no_message() {
        let mut history = History::new();
        history.commit(3, Some(&Arc::default()), &[], CUT);
        assert_eq!((history.messages().len(), history.turns()), (0, 3));
    }

    #[test]
    fn turns_with_calls_are_counted() {
        let text_only =
            Arc::new(ResponseMessage { text: "noon".into(), ..ResponseMessage::default() });
        let called =
            Arc::new(ResponseMessage { calls: vec![call(0)], ..ResponseMessage::default() });
        let mut history = History::new();
        history.commit(1, Some(&text_only), &[], CUT);
        history.commit(2, Some(&called), &[result(call(0), "")], CUT);
        history.commit(3, Some(&text_only), &[], CUT);
        assert_eq!((history.turns(), history.turns_with_calls()), (3, 1));
    }
}
