//! Steering, live and read from the journal; records that contradict each other.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::context::InitialHistory;
use crate::context::{History, ResultCut};
use crate::session::{SessionRunRules, StoredSession};
use crate::turn::fixtures::entries;
use callsheet_values::config::{Limits, RunOverrides};
use callsheet_values::message::Message;
use callsheet_values::record::{Record, ResponseMessage, Seq};
use callsheet_values::types::{
    CallKey, ContentPart, Image, MessagePart, ModelOrigin, ResultNotes, ToolCall, ToolOutcome,
    Wire, WriteSet,
};
use callsheet_values::types::{Content, RunId, ToolResult, Usage};

/// The cut of results in these tests.
const CUT: ResultCut = ResultCut { bytes_max: 10, references: false };

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

fn started(input: Content) -> Record {
    Record::RunStarted {
        run_id: RunId("run_1".into()),
        input,
        overrides: Arc::default(),
        model: "m".into(),
        execution: callsheet_values::types::Execution::Sequential,
        request: None,
        trace: None,
        metadata: callsheet_values::types::Metadata::default(),
        into: None,
        authored_by: None,
    }
}

fn committed(turn: u32) -> Record {
    let end = callsheet_values::record::TurnEnd::Finished;
    Record::TurnCommitted { turn, end, summary: Box::default() }
}

fn ended(result: &ToolResult) -> Record {
    crate::turn::call_ended_record(result.clone(), false, false)
}

/// Returns the history that the records give when they are read from the journal.
fn fold(records: &[Record]) -> History {
    let opened = Record::SessionOpened {
        agent: "default".into(),
        messages: Vec::new(),
        metadata: callsheet_values::types::Metadata::default(),
        parent: None,
        client_tools: None,
    };
    let is_opened = matches!(records.first(), Some(Record::SessionOpened { .. }));
    let opened = (!is_opened).then_some(opened);
    let all: Vec<_> = opened.iter().chain(records).map(|record| (record.clone(), 0)).collect();
    let limits = |_: &RunOverrides| {
        SessionRunRules::from(Limits { max_result_bytes: 10, ..Limits::default() })
    };
    StoredSession::read(&entries(0, &all), &limits).unwrap().session.history().clone()
}

#[test]
fn a_fold_gives_the_history_that_was_written_live() {
    let message = ResponseMessage {
        text: "look".into(),
        reasoning: "hm".into(),
        calls: vec![call(0), call(1)],
        origin: Some(Arc::new(ModelOrigin { wire: Wire::OpenaiChat, model: "m".into() })),
        parts: vec![
            MessagePart::Reasoning { bytes: 2, members: Some("{\"signature\":\"x\"}".into()) },
            MessagePart::Text { bytes: 4, members: None },
            MessagePart::Raw { json: "{\"type\":\"own\"}".into() },
            MessagePart::Call { index: 0, members: None },
            MessagePart::Call { index: 1, members: Some("{}".into()) },
        ],
        hint_bytes: None,
    };
    let results = [result(call(0), "noon"), result(call(1), "eight")];
    let image = ContentPart::Image(Image::parse("data:image/png;base64,AAAA").unwrap());
    let input = Content::from(vec![ContentPart::Text("time?".into()), image]);
    let mut live = History::new();
    live.begin_run(input.clone());
    live.commit(1, Some(&Arc::new(message.clone())), &results, CUT);
    let mut records = vec![
        started(input),
        Record::ResponseEnded {
            turn: 1,
            attempt: 1,
            ending: callsheet_values::record::ResponseEnding::Complete,
            message: message.into(),
            finish_reason: None,
            usage: Usage::default(),
            dropped_calls: Vec::new(),
            displayed_segments: Vec::new(),
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
            reason: None,
            note,
            usage: Usage::default(),
        });
    }
    let last = serde_json::to_value(&live.messages()[3]).unwrap();
    assert_eq!(last["content"], "eight\n\n[callsheet: 1]\n[callsheet: 2]");
    assert_eq!(fold(&records), live);
    assert_eq!(live.request_messages().1, 0);
    assert_eq!((live.turns(), live.turns_with_calls()), (1, 1));
}

fn message_with_text(text: &str) -> ResponseMessage {
    ResponseMessage { text: text.into(), ..ResponseMessage::default() }
}

fn response(turn: u32, message: ResponseMessage) -> Record {
    Record::ResponseEnded {
        turn,
        attempt: 1,
        ending: callsheet_values::record::ResponseEnding::Complete,
        message: message.into(),
        finish_reason: None,
        usage: Usage::default(),
        dropped_calls: Vec::new(),
        displayed_segments: Vec::new(),
    }
}

/// The history of a running session, and its records. The owner of a turn records the commit before
/// the session receives it.
#[derive(Clone, Default)]
struct LiveAndRecorded {
    live: History,
    records: Vec<Record>,
    committed: Option<(u32, ResponseMessage)>,
}

impl LiveAndRecorded {
    fn start(&mut self, input: &str) {
        self.records.push(started(input.into()));
        self.live.begin_run(input.into());
    }

    fn steer(&mut self, follows_turn: u32, input: &str) {
        self.records.push(Record::Steered {
            input: input.into(),
            follows_turn,
            request: None,
            authored_by: None,
        });
        self.live.steer(follows_turn, input.into());
    }

    fn respond(&mut self, turn: u32) {
        let message = message_with_text(&format!("turn {turn}"));
        self.records.push(response(turn, message.clone()));
        self.committed = Some((turn, message));
    }

    fn record_commit(&mut self, turn: u32) {
        self.records.push(committed(turn));
    }

    fn hear_commit(&mut self) {
        let (turn, message) = self.committed.take().unwrap();
        self.live.commit(turn, Some(&Arc::new(message)), &[], CUT);
    }

    fn end(&mut self) {
        let (run_id, end) = (RunId("run_1".into()), callsheet_values::types::RunEnd::Stopped);
        self.records.push(Record::RunEnded {
            run_id,
            end,
            text: String::new(),
            error: None,
            output: None,
            into: None,
            stats: callsheet_values::event::StatsReport::default(),
            waiting: 0,
            finish_reason: None,
        });
        self.live.end_run();
    }

    #[track_caller]
    fn check(&self, expected: &[&str]) {
        assert_eq!(fold(&self.records), self.live);
        let texts: Vec<_> = self
            .live
            .messages()
            .iter()
            .map(|message| match message.as_ref() {
                Message::User { content } | Message::Summary { content } => content.text(),
                Message::Tool { content, .. } => (&**content).into(),
                Message::Assistant(message) => (&*message.text).into(),
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
            let mut both = LiveAndRecorded::default();
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
    let mut both = LiveAndRecorded::default();
    both.start("go");
    both.steer(1, "a");
    assert_eq!(both.live.pending_inputs(), 1);
    assert_eq!(fold(&both.records), both.live, "also while the turn goes on");
    both.end();
    both.check(&["go", "a"]);
    both.start("again");
    both.check(&["go", "a", "again"]);
    assert_eq!(both.live.pending_inputs(), 0);
}

fn seeded(messages: serde_json::Value) -> LiveAndRecorded {
    let serde_json::Value::Array(messages) = messages else { panic!("a list") };
    let live = History::from_initial(InitialHistory::parse(&messages).unwrap());
    let records = vec![Record::SessionOpened {
        agent: "default".into(),
        messages,
        metadata: callsheet_values::types::Metadata::default(),
        parent: None,
        client_tools: None,
    }];
    LiveAndRecorded { live, records, committed: None }
}

fn assistant(id: &str) -> serde_json::Value {
    let function = serde_json::json!({"name": "clock", "arguments": "{}"});
    let calls = [serde_json::json!({"id": id, "type": "function", "function": function})];
    serde_json::json!({"role": "assistant", "content": "turn 1", "tool_calls": calls})
}

#[test]
fn a_seed_counts_as_what_was_said_before() {
    let user = serde_json::json!({"role": "user", "content": "hi"});
    let answer = serde_json::json!({"role": "tool", "tool_call_id": "call_0_0", "content": ""});
    let mut both = seeded(serde_json::json!([user, assistant("call_0_0"), answer]));
    assert_eq!((both.live.turns(), both.live.turns_with_calls()), (0, 1));
    assert_eq!(*both.live.used_call_ids(), BTreeSet::from(["call_0_0".to_owned()]));
    assert_eq!(both.live.initial_calls(), None);
    both.start("go");
    both.check(&["hi", "turn 1", "", "go"]);
}

#[test]
fn the_first_input_stands_behind_the_answers_of_open_calls() {
    let mut both = seeded(serde_json::json!([assistant("call_7_1")]));
    assert_eq!((both.live.messages().len(), both.live.display_messages().len()), (0, 1));
    assert_eq!((both.live.turns_with_calls(), both.live.used_call_ids().len()), (0, 0));
    both.start("go");
    both.steer(1, "more");
    assert_eq!(fold(&both.records), both.live);
    assert_eq!(both.live.display_messages().len(), 1, "what the turn says is known");
    let message = both.live.initial_calls().unwrap().clone();
    let result = result(message.calls[0].clone(), "noon");
    both.records.push(response(1, message.clone()));
    both.records.push(ended(&result));
    both.record_commit(1);
    both.live.commit(1, Some(&Arc::new(message)), &[result], CUT);
    both.check(&["turn 1", "noon", "go", "more"]);
    assert_eq!((both.live.turns_with_calls(), both.live.used_call_ids().len()), (1, 1));
    assert_eq!((both.live.initial_calls(), both.live.request_messages().1), (None, 0));
}

#[test]
fn a_turn_that_was_given_up_leaves_nothing_to_the_next() {
    let mut both = LiveAndRecorded::default();
    both.start("go");
    // Its run ended as failed, without a commit.
    both.records.push(response(1, message_with_text("lost")));
    both.end();
    both.start("again");
    both.record_commit(2);
    both.live.commit(2, None, &[], CUT);
    both.check(&["go", "again"]);
}

#[test]
fn a_record_that_contradicts_those_before_it_is_named() {
    let opened = || Record::SessionOpened {
        agent: "default".into(),
        messages: Vec::new(),
        metadata: callsheet_values::types::Metadata::default(),
        parent: None,
        client_tools: None,
    };
    let over = |id: &str| Record::RunEnded {
        run_id: RunId(id.into()),
        end: callsheet_values::types::RunEnd::Stopped,
        text: String::new(),
        error: None,
        output: None,
        into: None,
        stats: callsheet_values::event::StatsReport::default(),
        waiting: 0,
        finish_reason: None,
    };
    let begun = || vec![opened(), started("go".into())];
    let one_call = || ResponseMessage { calls: vec![call(0)], ..ResponseMessage::default() };
    let seed = Record::SessionOpened {
        agent: "default".into(),
        messages: vec![1.into()],
        metadata: callsheet_values::types::Metadata::default(),
        parent: None,
        client_tools: None,
    };
    let with = |mut records: Vec<Record>, more: Vec<Record>| {
        records.extend(more);
        records
    };
    for (records, seq, what) in [
        (vec![], 1, "a session begins with the record that it was opened"),
        (vec![committed(1)], 1, "a session begins with the record that it was opened"),
        (vec![seed], 1, "it was opened with messages[0]"),
        (vec![opened(), opened()], 2, "the session was opened before"),
        (vec![opened(), committed(1)], 2, "no run goes on"),
        (vec![opened(), over("run_1")], 2, "no run goes on"),
        (vec![opened(), Record::SessionClosed, started("go".into())], 3, "the session is closed"),
        (with(begun(), vec![started("go".into())]), 3, "run run_1 has not ended"),
        (with(begun(), vec![over("run_2")]), 3, "run run_1 goes on, and it is the end of run_2"),
        (
            with(
                begun(),
                vec![response(1, message_with_text("")), response(2, message_with_text(""))],
            ),
            4,
            "it is of turn 2, and turn 1 goes on",
        ),
        (with(begun(), vec![committed(1), committed(1)]), 4, "it is of turn 1, and turn 1 is over"),
        (
            with(begun(), vec![response(1, one_call()), committed(1)]),
            4,
            "call t1a1c0 of the turn has no outcome",
        ),
    ] {
        let records: Vec<_> = records.into_iter().map(|record| (record, 0)).collect();
        let error = StoredSession::read(&entries(0, &records), &|_| SessionRunRules::default())
            .unwrap_err();
        assert_eq!(error.seq, Seq(seq), "{error}");
        assert!(error.what.starts_with(what), "{error}");
    }
    let mut gap = entries(0, &[(opened(), 0), (started("go".into()), 0)]);
    gap[1].seq = Seq(7);
    let error = StoredSession::read(&gap, &|_| SessionRunRules::default()).unwrap_err();
    assert_eq!(error.to_string(), "record 7 contradicts the ones before it: it follows record 1");
}

#[test]
fn a_fork_remembers_no_request_and_no_queue() {
    let request =
        || Some(callsheet_values::record::RequestKey { key: "k".into(), digest: "d".into() });
    let queued = Record::InputQueued {
        run_id: RunId("run_2".into()),
        input: "later".into(),
        overrides: Arc::default(),
        request: request(),
        trace: None,
        metadata: callsheet_values::types::Metadata::default(),
        into: None,
        authored_by: None,
    };
    let opened = Record::SessionOpened {
        agent: "default".into(),
        messages: Vec::new(),
        metadata: callsheet_values::types::Metadata::default(),
        parent: None,
        client_tools: None,
    };
    let mut records = vec![(opened, 5), (queued, 6)];
    let fold = |records: &[(Record, u64)]| {
        StoredSession::read(&entries(0, records), &|_| SessionRunRules::default()).unwrap()
    };
    let whole = fold(&records);
    assert_eq!((whole.opened, whole.session.queue().len()), (5, 1));
    let seen = whole.session.keys.find(request().as_ref()).unwrap().map(|seen| seen.seq);
    assert_eq!(seen, Some(Seq(2)));
    let from = callsheet_values::types::SessionId::parse("other").unwrap();
    let mut journal = entries(0, &records);
    journal.push(entries(2, &[(started("later".into()), 7)]).remove(0));
    let limits = |_: &RunOverrides| SessionRunRules::default();
    let forked = StoredSession::fork(&mut journal, from.clone(), Seq(2), 9, &limits).unwrap();
    records.push((Record::SessionForked { from, at: Seq(2) }, 9));
    assert_eq!((&journal, &forked), (&entries(0, &records), &fold(&records)));
    assert_eq!((forked.opened, forked.session.queue().len()), (9, 0));
    assert_eq!(forked.session.keys.find(request().as_ref()), Ok(None));
}

#[test]
fn a_fork_stops_the_run_that_is_open_in_the_other_session() {
    let opened = Record::SessionOpened {
        agent: "default".into(),
        messages: Vec::new(),
        metadata: callsheet_values::types::Metadata::default(),
        parent: None,
        client_tools: None,
    };
    let mut journal = entries(0, &[(opened, 1), (started("go".into()), 2)]);
    let from = callsheet_values::types::SessionId::parse("other").unwrap();
    let limits = |_: &RunOverrides| SessionRunRules::default();
    let forked = StoredSession::fork(&mut journal, from, Seq(2), 3, &limits).unwrap();
    let cancel = forked.session.run().unwrap().cancel;
    assert_eq!(cancel, Some(crate::turn::CancelReason::Stop));
}
