//! The messages of a session, and what is counted over them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::pairing::paired;
use super::seed::Seed;
use crate::message::Message;
use crate::record::{Record, ResponseMessage};
use crate::types::{CallKey, Content, ResultNotes, ToolCall, ToolOutcome, ToolResult, metadata};

/// The messages of a session, in call order. Cloning shares them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    messages: Vec<Arc<Message>>,
    turns: u32,
    turns_with_calls: u32,
    held_ids: Arc<BTreeSet<String>>,
    /// Whether the last result has a note behind it.
    noted: bool,
    /// What users said while a turn goes on: it stands behind the turn.
    undelivered: Vec<Content>,
    /// Calls that the session was opened with and that nobody has answered: its first turn.
    open: Option<ResponseMessage>,
}

impl History {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The history that a session is opened with.
    #[must_use]
    pub fn seeded(seed: Seed) -> Self {
        let mut history = Self { open: seed.open, ..Self::default() };
        for message in &seed.messages {
            if let Message::Assistant(ResponseMessage { calls, .. }) = message.as_ref() {
                history.count_calls(calls);
            }
        }
        history.messages = seed.messages;
        history
    }

    /// A history from its session's records: the same as the one that was written live.
    #[must_use]
    pub fn fold(records: &[Record], max_result_bytes: usize) -> Self {
        let mut history = Self::new();
        let mut response: Option<(u32, &ResponseMessage)> = None;
        let mut outcomes: BTreeMap<CallKey, (ToolOutcome, ResultNotes)> = BTreeMap::new();
        for record in records {
            match record {
                // They were checked before they were recorded.
                Record::SessionOpened { messages, .. } => {
                    history = Self::seeded(Seed::parse(messages).unwrap_or_default());
                }
                Record::RunStarted { input, .. } => history.begin_run(input.clone()),
                Record::Steered { input, after_turn, .. } => {
                    history.steer(*after_turn, input.clone())
                }
                Record::ResponseEnded { turn, message, .. } => response = Some((*turn, message)),
                Record::CallEnded { call, outcome, notes, .. } => {
                    outcomes.insert(call.key, (outcome.clone(), notes.clone()));
                }
                Record::TurnCommitted { turn, .. } => {
                    // That of a turn which was given up is nobody's.
                    let message = response.take().filter(|(of, _)| of == turn);
                    let message = message.map(|(_, message)| message);
                    history.write(*turn, message, max_result_bytes, |key| {
                        outcomes.get(&key).map(|(outcome, notes)| (outcome, notes))
                    });
                    outcomes.clear();
                }
                Record::LimitReached { note, .. } => {
                    note.iter().for_each(|note| history.add_note(note));
                }
                Record::RunEnded { .. } => history.end_run(),
                Record::InputQueued { .. }
                | Record::SessionForked { .. }
                | Record::AttemptStarted { .. }
                | Record::AttemptFailed { .. }
                | Record::CallIntended { .. }
                | Record::CallReported { .. }
                | Record::ApprovalAsked { .. }
                | Record::ApprovalGiven { .. }
                | Record::StopAsked { .. }
                | Record::SessionClosed => {}
            }
        }
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
        self.open.as_ref()
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
        message: Option<&ResponseMessage>,
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
        let is_said = |message: &&mut Arc<Message>| matches!(***message, Message::User { .. });
        let Some(last) = self.messages.iter_mut().rev().find(|message| !is_said(message)) else {
            return;
        };
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

    /// The messages as people are shown them: with the calls that nobody has answered yet.
    #[must_use]
    pub fn shown(&self) -> Vec<Arc<Message>> {
        let open = self.open.iter().map(|message| Arc::new(Message::Assistant(message.clone())));
        self.messages.iter().cloned().chain(open).collect()
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
        self.open = None;
        if let Some(message) = message.filter(|message| !message.is_blank()) {
            self.write_message(message, max_result_bytes, answer);
        }
        self.deliver();
    }

    fn write_message<'a>(
        &mut self,
        message: &ResponseMessage,
        max_result_bytes: usize,
        answer: impl Fn(CallKey) -> Option<(&'a ToolOutcome, &'a ResultNotes)>,
    ) {
        self.count_calls(&message.calls);
        self.messages.push(Arc::new(Message::Assistant(message.clone())));
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

    fn count_calls(&mut self, calls: &[ToolCall]) {
        self.turns_with_calls += u32::from(!calls.is_empty());
        // Others cannot meet one of ours, and the set is copied while the turn still shares it.
        let taken: Vec<_> = calls.iter().filter(|call| is_like_ours(&call.id)).collect();
        if !taken.is_empty() {
            Arc::make_mut(&mut self.held_ids).extend(taken.iter().map(|call| call.id.clone()));
        }
    }

    fn deliver(&mut self) {
        for input in std::mem::take(&mut self.undelivered) {
            self.push_user(input);
        }
    }

    fn push_user(&mut self, content: Content) {
        self.messages.push(Arc::new(Message::User { content }));
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
    use crate::types::{ContentPart, Image, Origin, Part, RunId, Usage, Wire, WriteSet};
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

    fn started(input: Content) -> Record {
        Record::RunStarted {
            run_id: RunId("run_1".into()),
            input,
            overrides: crate::config::RunOverrides::default(),
            model: "m".into(),
            execution: crate::types::Execution::Sequential,
            request: None,
        }
    }

    fn committed(turn: u32) -> Record {
        let end = crate::record::TurnEnd::Finished;
        Record::TurnCommitted { turn, end, summary: Box::default() }
    }

    fn ended(result: &ToolResult) -> Record {
        Record::CallEnded {
            call: crate::event::CallLabel {
                key: result.call.key,
                provider_id: None,
                name: result.call.name.clone(),
            },
            outcome: result.outcome.clone(),
            notes: result.notes.clone(),
            writes: WriteSet::default(),
            started_ms: None,
            wait_ms: 0,
            duration_ms: 0,
            early: false,
            amended: false,
        }
    }

    #[test]
    fn a_fold_gives_the_history_that_was_written_live() {
        let message = ResponseMessage {
            text: "look".into(),
            reasoning: "hm".into(),
            calls: vec![call(0), call(1)],
            origin: Some(Arc::new(Origin { wire: Wire::OpenaiChat, model: "m".into() })),
            parts: vec![
                Part::Reasoning { bytes: 2, members: Some("{\"signature\":\"x\"}".into()) },
                Part::Text { bytes: 4, members: None },
                Part::Raw { json: "{\"type\":\"own\"}".into() },
                Part::Call { index: 0, members: None },
                Part::Call { index: 1, members: Some("{}".into()) },
            ],
        };
        let results = [result(call(0), "noon"), result(call(1), "eight")];
        let image = ContentPart::Image(Image::parse("data:image/png;base64,AAAA").unwrap());
        let input = Content::from(vec![ContentPart::Text("time?".into()), image]);
        let mut live = History::new();
        live.begin_run(input.clone());
        live.commit(1, Some(&message), &results, 1024);
        let mut records = vec![
            started(input),
            Record::ResponseEnded {
                turn: 1,
                attempt: 1,
                ending: crate::record::Ending::Well,
                message,
                finish_reason: None,
                usage: Usage::default(),
                dropped_calls: Vec::new(),
                shown: Vec::new(),
            },
        ];
        records.extend(results.iter().rev().map(ended));
        records.push(committed(1));
        for note in ["[callsheet: 1]", "[callsheet: 2]"] {
            live.add_note(note);
            let limit = "max_turns".to_owned();
            let note = Some(note.to_owned());
            records.push(Record::LimitReached {
                limit,
                value: 1,
                maximum: 2,
                action: String::new(),
                note,
            });
        }
        let last = serde_json::to_value(&live.messages()[3]).unwrap();
        assert_eq!(last["content"], "eight\n\n[callsheet: 1]\n[callsheet: 2]");
        assert_eq!(History::fold(&records, 1024), live);
        let stored = serde_json::to_string(&records).unwrap();
        let stored: Vec<Record> = serde_json::from_str(&stored).unwrap();
        assert_eq!(History::fold(&stored, 1024), live, "as it was written and read");
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

    fn said(text: &str) -> ResponseMessage {
        ResponseMessage { text: text.into(), ..ResponseMessage::default() }
    }

    fn response(turn: u32, message: ResponseMessage) -> Record {
        Record::ResponseEnded {
            turn,
            attempt: 1,
            ending: crate::record::Ending::Well,
            message,
            finish_reason: None,
            usage: Usage::default(),
            dropped_calls: Vec::new(),
            shown: Vec::new(),
        }
    }

    /// What a session does live, and what its records say of it. A commit is recorded by the
    /// owner of the turn, before the session hears of it.
    #[derive(Clone, Default)]
    struct Both {
        live: History,
        records: Vec<Record>,
        committed: Option<(u32, ResponseMessage)>,
    }

    impl Both {
        fn start(&mut self, input: &str) {
            self.records.push(started(input.into()));
            self.live.begin_run(input.into());
        }

        fn steer(&mut self, after_turn: u32, input: &str) {
            self.records.push(Record::Steered { input: input.into(), after_turn, request: None });
            self.live.steer(after_turn, input.into());
        }

        fn respond(&mut self, turn: u32) {
            let message = said(&format!("turn {turn}"));
            self.records.push(response(turn, message.clone()));
            self.committed = Some((turn, message));
        }

        fn record_commit(&mut self, turn: u32) {
            self.records.push(committed(turn));
        }

        fn hear_commit(&mut self) {
            let (turn, message) = self.committed.take().unwrap();
            self.live.commit(turn, Some(&message), &[], 10);
        }

        fn end(&mut self) {
            let (run_id, end) = (RunId("run_1".into()), crate::types::RunEnd::Stopped);
            self.records.push(Record::RunEnded {
                run_id,
                end,
                text: String::new(),
                error: None,
                stats: crate::event::StatsReport::default(),
                waiting: 0,
            });
            self.live.end_run();
        }

        #[track_caller]
        fn check(&self, expected: &[&str]) {
            assert_eq!(History::fold(&self.records, 10), self.live);
            let texts: Vec<_> = self
                .live
                .messages()
                .iter()
                .map(|message| match message.as_ref() {
                    Message::User { content } => content.text(),
                    Message::Tool { content, .. } => content.into(),
                    Message::Assistant(ResponseMessage { text, .. }) => text.into(),
                })
                .collect();
            assert_eq!(texts, expected);
        }
    }

    #[test]
    fn what_is_said_meanwhile_stands_behind_the_turn_whenever_it_came() {
        // Two inputs, each before the response, before the commit's record, before the session
        // hears of the commit, or in the next turn.
        for first in 0..4_u32 {
            for second in first..4 {
                let mut both = Both::default();
                both.start("go");
                for moment in 0..4 {
                    match moment {
                        0 => {}
                        1 => both.respond(1),
                        2 => both.record_commit(1),
                        _ => {
                            both.hear_commit();
                            both.respond(2);
                        }
                    }
                    let turn = if moment == 3 { 2 } else { 1 };
                    for (at, input) in [(first, "a"), (second, "b")] {
                        if at == moment {
                            both.steer(turn, input);
                        }
                    }
                }
                both.record_commit(2);
                both.hear_commit();
                both.end();
                match (first, second) {
                    (3, 3) => both.check(&["go", "turn 1", "turn 2", "a", "b"]),
                    (_, 3) => both.check(&["go", "turn 1", "a", "turn 2", "b"]),
                    (_, _) => both.check(&["go", "turn 1", "a", "b", "turn 2"]),
                }
            }
        }
    }

    #[test]
    fn what_did_not_get_through_stands_at_the_runs_end() {
        let mut both = Both::default();
        both.start("go");
        both.steer(1, "a");
        assert_eq!(both.live.undelivered(), 1);
        assert_eq!(History::fold(&both.records, 10), both.live, "also while the turn goes on");
        both.end();
        both.check(&["go", "a"]);
        both.start("again");
        both.check(&["go", "a", "again"]);
        assert_eq!(both.live.undelivered(), 0);
    }

    fn seeded(messages: serde_json::Value) -> Both {
        let serde_json::Value::Array(messages) = messages else { panic!("a list") };
        let live = History::seeded(Seed::parse(&messages).unwrap());
        let records = vec![Record::SessionOpened { agent: "default".into(), messages }];
        Both { live, records, committed: None }
    }

    fn asks(id: &str) -> serde_json::Value {
        let function = serde_json::json!({"name": "clock", "arguments": "{}"});
        let calls = [serde_json::json!({"id": id, "type": "function", "function": function})];
        serde_json::json!({"role": "assistant", "content": "turn 1", "tool_calls": calls})
    }

    #[test]
    fn a_seed_counts_as_what_was_said_before() {
        let user = serde_json::json!({"role": "user", "content": "hi"});
        let answer = serde_json::json!({"role": "tool", "tool_call_id": "call_0_0", "content": ""});
        let mut both = seeded(serde_json::json!([user, asks("call_0_0"), answer]));
        assert_eq!((both.live.turns(), both.live.turns_with_calls()), (0, 1));
        assert_eq!(*both.live.held_ids(), BTreeSet::from(["call_0_0".to_owned()]));
        assert_eq!(both.live.open_calls(), None);
        both.start("go");
        both.check(&["hi", "turn 1", "", "go"]);
    }

    #[test]
    fn the_first_input_stands_behind_the_answers_of_open_calls() {
        let mut both = seeded(serde_json::json!([asks("call_7_1")]));
        assert_eq!((both.live.messages().len(), both.live.shown().len()), (0, 1));
        assert_eq!((both.live.turns_with_calls(), both.live.held_ids().len()), (0, 0));
        both.start("go");
        both.steer(1, "more");
        assert_eq!(History::fold(&both.records, 10), both.live);
        assert_eq!(both.live.shown().len(), 1, "what the turn says is known");
        let message = both.live.open_calls().unwrap().clone();
        let result = result(message.calls[0].clone(), "noon");
        both.records.push(response(1, message.clone()));
        both.records.push(ended(&result));
        both.record_commit(1);
        both.live.commit(1, Some(&message), &[result], 10);
        both.check(&["turn 1", "noon", "go", "more"]);
        assert_eq!((both.live.turns_with_calls(), both.live.held_ids().len()), (1, 1));
        assert_eq!((both.live.open_calls(), both.live.request_messages().1), (None, 0));
    }
    #[test]
    fn a_turn_that_was_given_up_leaves_nothing_to_the_next() {
        let mut both = Both::default();
        both.start("go");
        // Its run ended as failed, without a commit.
        both.records.push(response(1, said("lost")));
        both.start("again");
        both.record_commit(2);
        both.live.commit(2, None, &[], 10);
        both.check(&["go", "again"]);
    }
}
