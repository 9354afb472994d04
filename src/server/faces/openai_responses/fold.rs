//! The fold from the events of a run to the events of a response.
//!
//! A run has several responses if its client has to act: an approval or a call of a client's tool ends the response, and
//! the next one begins with the record after. The point depends only on events with ids, so it is the same in a replay:
//! it is the first one at which each call of the turn that has no result waits for the client. A wait that a response has
//! told its client does not end another one.
//!
//! Numbers of events are positions ([`PartPosition`]). The parts of an event of text begin where its text begins, and say
//! which item of the attempt they are about ([`AttemptItems`]), so that they are the same for any pieces of the text.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::position::PartPosition;
use super::super::stream::{FacePart, Fold};
use super::ids::{ItemId, ResponseId};
use super::object::{ResponseSettings, refusal_content, text_content};
use callsheet_host::runtime::HostError;
use callsheet_values::config::{ShowTools, UnprovenText};
use callsheet_values::event::{ApprovalRequest, Event, EventId, PublishedEvent, VoidedText};
use callsheet_values::record::ResponseEnding;
use callsheet_values::types::{
    CallKey, FinishKind, FinishReason, RunEnd, RunError, Seq, ToolCall, ToolOutcome, ToolStatus,
    Usage, floor_char_boundary,
};

/// The label of the agent's own tools, which the items call a server.
pub(super) const SERVER_LABEL: &str = "callsheet";

/// Number of parts of a position that each item of an attempt has, and the items whose parts tell their number.
const ITEM_PARTS: u64 = 8;
const NUMBERED_ITEMS: u64 = 7;

/// The state of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseStatus {
    InProgress,
    Completed,
    Incomplete,
    Failed,
    /// The run was stopped. Streams say `incomplete`, because a helper knows no such event.
    Cancelled,
}

impl ResponseStatus {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A response of a run, as far as the events tell.
#[derive(Clone, Debug)]
pub(super) struct OpenResponse {
    pub(super) begins: Seq,
    pub(super) status: ResponseStatus,
    pub(super) incomplete_reason: Option<&'static str>,
    pub(super) error: Option<RunError>,
    pub(super) usage: Usage,
    pub(super) created_ms: u64,
    pub(super) ended_ms: Option<u64>,
    items: Vec<Item>,
}

impl OpenResponse {
    fn new(begins: Seq, created_ms: u64) -> Self {
        Self {
            begins,
            status: ResponseStatus::InProgress,
            incomplete_reason: None,
            error: None,
            usage: Usage::default(),
            created_ms,
            ended_ms: None,
            items: Vec::new(),
        }
    }

    /// Returns the items, without those that are void.
    pub(super) fn output(&self) -> impl Iterator<Item = &Value> {
        self.items.iter().filter(|item| !item.is_void).map(|item| &item.value)
    }
}

#[derive(Clone, Debug)]
struct Item {
    value: Value,
    /// The text is of an attempt that broke.
    is_void: bool,
}

/// The items of an attempt: thinking and text in turn. Item `k` of a kind has the parts from `8 * (2k + kind)`.
#[derive(Clone, Debug)]
struct AttemptItems {
    /// The record with which the attempt started.
    seq: Seq,
    count: u64,
    /// The first of them in the response.
    first: usize,
    open: Option<OpenText>,
    /// Text that is kept back until the response has ended.
    held: Vec<(TextKind, String)>,
}

#[derive(Clone, Debug)]
struct OpenText {
    kind: TextKind,
    item: usize,
    id: String,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TextKind {
    Thinking,
    Text,
}

/// A call of the turn whose response has ended.
#[derive(Clone, Debug)]
struct CertainCall {
    call: ToolCall,
    is_client: bool,
    is_shown: bool,
    /// The client has been told that it must act.
    is_told: bool,
    asked: Option<ApprovalRequest>,
}

/// What a fold makes.
#[derive(Clone, Debug)]
pub(super) struct FoldOptions {
    /// The response whose parts are wanted.
    pub(super) id: ResponseId,
    /// The position that the client has seen.
    pub(super) after: Option<PartPosition>,
    pub(super) show_tools: ShowTools,
    pub(super) unproven_text: UnprovenText,
    /// The address at which a person can decide about a call, up to the id of the session.
    pub(super) console: String,
    /// The settings of the request that started the run.
    pub(super) settings: Arc<ResponseSettings>,
}

/// The fold.
#[derive(Clone, Debug)]
pub(super) struct ResponseFold {
    options: FoldOptions,
    model: String,
    response: Option<OpenResponse>,
    has_ended: bool,
    run_end: Option<Seq>,
    /// The place of the next part.
    at: EventId,
    part: u64,
    attempt: Option<AttemptItems>,
    calls: Vec<CertainCall>,
    asked: BTreeMap<CallKey, ApprovalRequest>,
    outcomes: BTreeMap<CallKey, ToolOutcome>,
    last: Option<PartPosition>,
}

impl Fold for ResponseFold {
    fn push(&mut self, event: &PublishedEvent, parts: &mut Vec<FacePart>) {
        let Some(id) = event.id.filter(|_| !self.has_ended) else { return };
        let time = event.timestamp_ms;
        match &event.event {
            Event::RunStarted { agent, reopened: false, .. } => {
                self.model = self.options.settings.model(agent);
                self.open(self.options.id.run, time, parts);
            }
            Event::TurnStarted => self.start_attempt(id.seq),
            Event::ThinkingReceived { text } => {
                self.add_text(TextKind::Thinking, text, id, parts);
            }
            Event::TextReceived { text } => self.add_text(TextKind::Text, text, id, parts),
            Event::AttemptStarted { voided, .. } => {
                self.void_attempt(voided.as_deref(), id, parts);
                self.start_attempt(id.seq);
            }
            Event::AttemptVoided { voided, .. } => self.void_attempt(voided.as_deref(), id, parts),
            Event::ResponseEnded { response } => {
                self.add_usage(response.usage);
                self.end_text(response.ending, id, parts);
                self.begin_calls(&response.calls);
                self.advance_calls(id, time, parts);
            }
            Event::ApprovalAsked { request } => {
                self.ask(request);
                self.advance_calls(id, time, parts);
            }
            Event::CallEnded { result, .. } => {
                self.outcomes.insert(result.call.key, result.outcome.clone());
                self.advance_calls(id, time, parts);
            }
            Event::TurnEnded { .. } => self.end_turn(id, parts),
            Event::RunEnded { end, text: _, output, error, finish_reason, .. } => {
                self.run_end = Some(id.seq);
                self.end_turn(id, parts);
                if let Some(value) = output {
                    self.place(id, 0);
                    self.add_message(text_content(&value.to_string()), parts);
                }
                self.end_run(*end, error.as_ref(), finish_reason.as_ref(), time, parts);
            }
            // No part shows these.
            Event::RunStarted { reopened: true, .. }
            | Event::InputQueued { .. }
            | Event::InputRemoved { .. }
            | Event::RunSteered { .. }
            | Event::RunWaiting { .. }
            | Event::ToolsChanged { .. }
            | Event::ServerReleased { .. }
            | Event::CallOpened { .. }
            | Event::CallDetected { .. }
            | Event::ArgumentsReceived { .. }
            | Event::ArgumentsAnomalyFound { .. }
            | Event::ArgumentsLost { .. }
            | Event::CallWaiting { .. }
            | Event::CallStarted { .. }
            | Event::CallProgressed { .. }
            | Event::ApprovalGiven { .. }
            | Event::ConflictFound { .. }
            | Event::CallDiscarded { .. }
            | Event::ServiceCallChanged { .. }
            | Event::OutcomeLate { .. }
            | Event::ResultReleased { .. }
            | Event::ResponseDecoded { .. }
            | Event::AttemptEnded { .. }
            | Event::AttemptFellBack { .. }
            | Event::LimitReached { .. }
            | Event::ContextCompacted { .. }
            | Event::OfChild { .. }
            | Event::HistoryRepaired { .. }
            | Event::ToolSetAside { .. } => {}
        }
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn idle_part(&self) -> Option<FacePart> {
        // As in the first such event, the output is empty: clients have the items from their own events.
        let (mut response, position) = (self.object()?, self.last?);
        response["output"] = json!([]);
        let name = "response.in_progress";
        let data = json!({
            "type": name, "sequence_number": position.number(), "response": response,
        });
        Some(FacePart {
            position: Some(position),
            id: None,
            name: Some(name),
            data: data.to_string(),
        })
    }

    fn fail(&mut self, error: &HostError, parts: &mut Vec<FacePart>) -> bool {
        // The run goes on elsewhere, or later: the client joins it.
        if self.response.is_none() || matches!(error, HostError::ShuttingDown) {
            return false;
        }
        let code = error.api_code().to_owned();
        let error = RunError { code, message: error.to_string(), transient: error.is_transient() };
        self.close_text("incomplete", parts);
        self.finish(ResponseStatus::Failed, None, Some(&error), None, parts);
        true
    }
}

impl ResponseFold {
    pub(super) fn new(options: FoldOptions) -> Self {
        Self {
            options,
            model: String::new(),
            response: None,
            has_ended: false,
            run_end: None,
            at: EventId::default(),
            part: 0,
            attempt: None,
            calls: Vec::new(),
            asked: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            last: None,
        }
    }

    pub(super) fn options(&self) -> &FoldOptions {
        &self.options
    }

    /// Returns the response as an object, if it has begun.
    pub(super) fn object(&self) -> Option<Value> {
        let response = self.response.as_ref().filter(|_| self.is_wanted())?;
        Some(self.options.settings.object(&self.options.id, &self.model, response, false))
    }

    /// Returns the wanted response, if it has begun.
    pub(super) fn response(&self) -> Option<&OpenResponse> {
        self.response.as_ref().filter(|_| self.is_wanted())
    }

    /// Returns the last record of the run, if the response ended with it.
    pub(super) fn run_end(&self) -> Option<Seq> {
        self.run_end
    }

    /// Returns the record with which the response ended, so far.
    pub(super) fn ended_at(&self) -> Seq {
        self.at.seq
    }

    /// Returns the position of the last part.
    pub(super) fn last_position(&self) -> Option<PartPosition> {
        self.last
    }

    /// Returns the calls for which the response ended: ids of calls of the client, and of requests for approvals.
    pub(super) fn waits(&self) -> impl Iterator<Item = Wait<'_>> {
        let waiting = self.calls.iter().filter(|call| !self.outcomes.contains_key(&call.call.key));
        waiting.filter(|call| call.is_told).map(|call| match &call.asked {
            Some(request) => Wait::Approval(request, self.approval_id(request)),
            None => Wait::Client(self.call_id(call.call.key)),
        })
    }

    /// Returns the response that has ended for its client, with a text that says where a person can decide. Adds its
    /// parts.
    pub(super) fn repeated(mut self, parts: &mut Vec<FacePart>) -> Value {
        let text = self.approval_text();
        let begins = self.options.id.begins;
        self.has_ended = false;
        self.open(begins, self.response().map_or(0, |it| it.created_ms), parts);
        self.add_message(text_content(&text), parts);
        if self.options.show_tools == ShowTools::McpCall {
            let asked: Vec<Value> = self
                .calls
                .iter()
                .filter(|call| !self.outcomes.contains_key(&call.call.key))
                .filter_map(|call| Some(self.approval_item(call.asked.as_ref()?)))
                .collect();
            for value in asked {
                let item = self.add_item(value, parts);
                self.end_item(item, parts);
            }
        }
        self.finish(ResponseStatus::Completed, None, None, None, parts);
        self.object().unwrap_or_default()
    }

    fn is_wanted(&self) -> bool {
        self.response.as_ref().is_some_and(|it| it.begins == self.options.id.begins)
    }

    fn open(&mut self, begins: Seq, time: u64, parts: &mut Vec<FacePart>) {
        self.response = Some(OpenResponse::new(begins, time));
        self.place(EventId { seq: begins, bytes: 0 }, 0);
        for name in ["response.created", "response.in_progress"] {
            let response = self.object();
            self.emit(name, json!({"response": response}), parts);
        }
    }

    /// Moves to the place of an event, and there at least to this part.
    fn place(&mut self, id: EventId, part: u64) {
        if self.at != id {
            (self.at, self.part) = (id, 0);
        }
        self.part = self.part.max(part);
    }

    fn emit(&mut self, name: &'static str, mut data: Value, parts: &mut Vec<FacePart>) {
        self.emit_text(name, parts, |number| {
            data["type"] = name.into();
            data["sequence_number"] = number.into();
            data.to_string()
        });
    }

    /// Adds an event, whose data is made with its number.
    fn emit_text(
        &mut self,
        name: &'static str,
        parts: &mut Vec<FacePart>,
        data: impl FnOnce(u64) -> String,
    ) {
        // Beyond 128 parts, those of the next bytes follow: records with so many have no text behind them.
        let first = PartPosition::new(self.options.id.run, self.at, 0).number();
        let position = PartPosition::from_number(first + self.part);
        self.part += 1;
        if !self.is_wanted() {
            return;
        }
        self.last = position;
        let number = position.map_or(0, PartPosition::number);
        parts.push(FacePart { position, id: None, name: Some(name), data: data(number) });
    }

    fn start_attempt(&mut self, seq: Seq) {
        let first = self.response.as_ref().map_or(0, |response| response.items.len());
        self.attempt = Some(AttemptItems { seq, count: 0, first, open: None, held: Vec::new() });
        self.calls.clear();
    }

    fn add_usage(&mut self, usage: Usage) {
        if let Some(response) = &mut self.response {
            response.usage += usage;
        }
    }

    /// Returns whether text of this kind is not shown before the end of the run: the typed answer is the text then.
    fn is_hidden(&self, kind: TextKind) -> bool {
        kind == TextKind::Text && self.options.settings.overrides.output.is_some()
    }

    fn add_text(&mut self, kind: TextKind, text: &str, id: EventId, parts: &mut Vec<FacePart>) {
        if self.is_hidden(kind) || text.is_empty() {
            return;
        }
        match self.options.unproven_text {
            UnprovenText::Show => self.show_text(kind, text, id, parts),
            UnprovenText::Hold => {
                let Some(attempt) = &mut self.attempt else { return };
                match attempt.held.last_mut() {
                    Some((last, held)) if *last == kind => held.push_str(text),
                    Some(_) | None => attempt.held.push((kind, text.to_owned())),
                }
            }
        }
    }

    /// Shows the text that ends at `id`.
    fn show_text(&mut self, kind: TextKind, text: &str, id: EventId, parts: &mut Vec<FacePart>) {
        let begins = EventId { bytes: id.bytes.saturating_sub(text.len() as u64), ..id };
        let is_open =
            self.attempt.as_ref().and_then(|it| it.open.as_ref()).map(|it| it.kind) == Some(kind);
        if !is_open {
            self.place(begins, 0);
            self.close_text("completed", parts);
            self.open_text(kind, parts);
        }
        let part = self.item_part(kind, self.attempt.as_ref().map_or(0, |it| it.count - 1));
        self.place(id, part + 2);
        self.add_delta(text, unseen(text, begins, id, self.after()), parts);
    }

    /// Returns the position after which the client wants parts, as an event.
    fn after(&self) -> Option<EventId> {
        self.options.after.map(|after| after.event(self.options.id.run))
    }

    fn item_part(&self, kind: TextKind, number: u64) -> u64 {
        ITEM_PARTS * (2 * number.min(NUMBERED_ITEMS - 1) + u64::from(kind == TextKind::Text))
    }

    fn open_text(&mut self, kind: TextKind, parts: &mut Vec<FacePart>) {
        let Some((seq, number)) = self.attempt.as_ref().map(|it| (it.seq, it.count)) else {
            return;
        };
        let (at, part) = (self.at, self.item_part(kind, number));
        self.place(at, part);
        let of = format!("{seq}-{number}");
        let (value, added, content) = match kind {
            TextKind::Thinking => (
                json!({"type": "reasoning", "id": self.id("rs", &of), "summary": []}),
                "response.reasoning_summary_part.added",
                json!({"summary_index": 0, "part": {"type": "summary_text", "text": ""}}),
            ),
            TextKind::Text => (
                message(&self.id("msg", &of), "in_progress", None),
                "response.content_part.added",
                json!({"content_index": 0, "part": text_content("")}),
            ),
        };
        let id = value["id"].as_str().unwrap_or_default().to_owned();
        let item = self.add_item(value, parts);
        self.emit_of(item, added, content, parts);
        if let Some(attempt) = &mut self.attempt {
            attempt.count += 1;
            attempt.open = Some(OpenText { kind, item, id, text: String::new() });
        }
    }

    /// Adds text to the open item. The client has seen all but `unseen` of it.
    fn add_delta(&mut self, text: &str, unseen: &str, parts: &mut Vec<FacePart>) {
        let Some(open) = self.attempt.as_mut().and_then(|it| it.open.as_mut()) else { return };
        open.text.push_str(text);
        let item = open.item;
        let name = match open.kind {
            TextKind::Thinking => "response.reasoning_summary_text.delta",
            TextKind::Text => "response.output_text.delta",
        };
        let rest = match open.kind {
            TextKind::Thinking => r#""summary_index":0"#,
            TextKind::Text => r#""content_index":0,"logprobs":[]"#,
        };
        let id = open.id.clone();
        // Formatted by hand: most events of a stream are these. An id has no characters that JSON escapes.
        self.emit_text(name, parts, |number| {
            let delta = serde_json::to_string(unseen).unwrap_or_default();
            format!(
                r#"{{"type":"{name}","sequence_number":{number},"item_id":"{id}","output_index":{item},{rest},"delta":{delta}}}"#
            )
        });
    }

    fn close_text(&mut self, status: &'static str, parts: &mut Vec<FacePart>) {
        let Some(OpenText { kind, item, id: _, text }) =
            self.attempt.as_mut().and_then(|attempt| attempt.open.take())
        else {
            return;
        };
        match kind {
            TextKind::Thinking => {
                let part = json!({"type": "summary_text", "text": text});
                let done = json!({"summary_index": 0, "text": text});
                self.emit_of(item, "response.reasoning_summary_text.done", done, parts);
                let done = json!({"summary_index": 0, "part": part});
                self.emit_of(item, "response.reasoning_summary_part.done", done, parts);
                self.set(item, "summary", json!([part]));
            }
            TextKind::Text => {
                let done = json!({"content_index": 0, "text": text, "logprobs": []});
                self.emit_of(item, "response.output_text.done", done, parts);
                let part = text_content(&text);
                let done = json!({"content_index": 0, "part": part});
                self.emit_of(item, "response.content_part.done", done, parts);
                self.set(item, "content", json!([part]));
                self.set(item, "status", status.into());
            }
        }
        self.end_item(item, parts);
    }

    /// Ends the text of a response.
    fn end_text(&mut self, ending: ResponseEnding, id: EventId, parts: &mut Vec<FacePart>) {
        self.place(id, 0);
        let status = match ending {
            ResponseEnding::Complete | ResponseEnding::Refused | ResponseEnding::TooManyCalls => {
                "completed"
            }
            ResponseEnding::Length | ResponseEnding::BrokenKept | ResponseEnding::Cancelled => {
                "incomplete"
            }
        };
        let held = self.attempt.as_mut().map(|it| std::mem::take(&mut it.held));
        for (kind, text) in held.unwrap_or_default() {
            self.close_text("completed", parts);
            self.open_text(kind, parts);
            self.add_delta(&text, &text, parts);
        }
        self.close_text(status, parts);
    }

    /// Ends the items of an attempt that broke. A replay does not have their text, and shows what it knows of it.
    fn void_attempt(
        &mut self,
        voided: Option<&VoidedText>,
        id: EventId,
        parts: &mut Vec<FacePart>,
    ) {
        if self.attempt.as_ref().is_some_and(|it| it.count == 0)
            && self.options.unproven_text == UnprovenText::Show
        {
            match voided {
                Some(voided) => self.show_voided(voided, parts),
                None => self.reopen_seen(id, parts),
            }
        }
        self.place(id, 0);
        self.close_text("incomplete", parts);
        let Some(attempt) = self.attempt.take() else { return };
        if let Some(response) = &mut self.response {
            response.items.iter_mut().skip(attempt.first).for_each(|item| item.is_void = true);
        }
    }

    fn show_voided(&mut self, voided: &VoidedText, parts: &mut Vec<FacePart>) {
        let Some(seq) = self.attempt.as_ref().map(|attempt| attempt.seq) else { return };
        let mut bytes = 0;
        for (kind, text) in [(TextKind::Thinking, &voided.thinking), (TextKind::Text, &voided.text)]
        {
            bytes += text.len() as u64;
            if !text.is_empty() && !self.is_hidden(kind) {
                self.show_text(kind, text, EventId { seq, bytes }, parts);
            }
        }
    }

    /// Opens the items of an attempt whose text nobody knows any more, but which the client has seen.
    fn reopen_seen(&mut self, upto: EventId, parts: &mut Vec<FacePart>) {
        let (Some(after), Some(seq)) = (self.options.after, self.attempt.as_ref().map(|it| it.seq))
        else {
            return;
        };
        let event = after.event(self.options.id.run);
        if event.seq < seq || event.seq >= upto.seq {
            return;
        }
        let code = after.part() / ITEM_PARTS;
        let (last, is_text) = (code / 2, code % 2 == 1);
        self.place(EventId { seq, bytes: 0 }, 0);
        for number in 0..=last {
            let is_text = is_text == ((last - number) % 2 == 0);
            self.close_text("completed", parts);
            self.open_text(if is_text { TextKind::Text } else { TextKind::Thinking }, parts);
        }
    }

    fn begin_calls(&mut self, calls: &[ToolCall]) {
        let calls = calls.iter().map(|call| CertainCall {
            is_client: self.options.settings.is_client_tool(&call.name),
            is_shown: false,
            is_told: false,
            asked: self.asked.get(&call.key).cloned(),
            call: call.clone(),
        });
        self.calls = calls.collect();
    }

    fn ask(&mut self, request: &ApprovalRequest) {
        let key = request.call.key;
        self.asked.insert(key, request.clone());
        if let Some(call) = self.calls.iter_mut().find(|call| call.call.key == key) {
            (call.asked, call.is_told) = (Some(request.clone()), false);
        }
    }

    /// Adds a call with its arguments.
    fn add_function_call(&mut self, call: &ToolCall, parts: &mut Vec<FacePart>) {
        let arguments = call.arguments_text();
        let value = json!({
            "type": "function_call",
            "id": self.id("fc", &call.key.to_string()),
            "call_id": self.call_id(call.key),
            "name": call.name,
            "arguments": "",
            "status": "in_progress",
        });
        let item = self.add_item(value, parts);
        let delta = json!({"delta": arguments});
        self.emit_of(item, "response.function_call_arguments.delta", delta, parts);
        let done = json!({"arguments": arguments, "name": call.name});
        self.emit_of(item, "response.function_call_arguments.done", done, parts);
        self.set(item, "arguments", arguments.into());
        self.set(item, "status", "completed".into());
        self.end_item(item, parts);
    }

    /// Shows the calls whose results are released, in call order. If the others wait for the client, ends the response.
    fn advance_calls(&mut self, id: EventId, time: u64, parts: &mut Vec<FacePart>) {
        self.place(id, 0);
        for at in 0..self.calls.len() {
            if !self.show_call(at, parts) {
                break;
            }
        }
        let mut open =
            self.calls.iter().filter(|it| !self.outcomes.contains_key(&it.call.key)).peekable();
        let waits = |call: &CertainCall| !call.is_told && (call.is_client || call.asked.is_some());
        if open.peek().is_some() && open.all(waits) {
            self.end_for_client(id, time, parts);
        }
    }

    /// Shows a call that has an outcome, and returns whether it has one. A call is shown with its outcome, and not
    /// before: until then it may still have to be approved, and clients take an item that ends for a result.
    fn show_call(&mut self, at: usize, parts: &mut Vec<FacePart>) -> bool {
        let Some(shown) = self.calls.get_mut(at) else { return false };
        let Some(outcome) = self.outcomes.get(&shown.call.key).cloned() else { return false };
        if std::mem::replace(&mut shown.is_shown, true) || shown.is_client {
            return true;
        }
        let (call, asked) = (shown.call.clone(), shown.asked.clone());
        match self.options.show_tools {
            ShowTools::None => {}
            ShowTools::FunctionCall => {
                self.add_function_call(&call, parts);
                let output = json!({
                    "type": "function_call_output",
                    "id": self.id("fco", &call.key.to_string()),
                    "call_id": self.call_id(call.key),
                    "output": &*outcome.content,
                    "status": "completed",
                });
                let item = self.add_item(output, parts);
                self.end_item(item, parts);
            }
            ShowTools::McpCall => self.add_mcp_call(&call, asked.as_ref(), &outcome, parts),
        }
        true
    }

    fn add_mcp_call(
        &mut self,
        call: &ToolCall,
        asked: Option<&ApprovalRequest>,
        outcome: &ToolOutcome,
        parts: &mut Vec<FacePart>,
    ) {
        let arguments = call.arguments_text();
        let value = json!({
            "type": "mcp_call",
            "id": self.id("mcp", &call.key.to_string()),
            "server_label": SERVER_LABEL,
            "name": call.name,
            "arguments": arguments,
            "approval_request_id": asked.map(|request| self.approval_id(request)),
            "output": null,
            "error": null,
            "status": "in_progress",
        });
        let item = self.add_item(value, parts);
        self.emit_of(item, "response.mcp_call.in_progress", json!({}), parts);
        let done = json!({"arguments": arguments});
        self.emit_of(item, "response.mcp_call_arguments.done", done, parts);
        let content = &*outcome.content;
        let (field, value, status, name) = match outcome.status {
            ToolStatus::Ok => {
                ("output", content.into(), "completed", "response.mcp_call.completed")
            }
            ToolStatus::Failed
            | ToolStatus::TimedOut
            | ToolStatus::Cancelled
            | ToolStatus::Refused
            | ToolStatus::Unknown => {
                let content = json!([{"type": "text", "text": content}]);
                let error = json!({"type": "mcp_tool_execution_error", "content": content});
                ("error", error, "failed", "response.mcp_call.failed")
            }
        };
        self.set(item, field, value);
        self.set(item, "status", status.into());
        self.emit_of(item, name, json!({}), parts);
        self.end_item(item, parts);
    }

    /// Ends the response because its client must act.
    fn end_for_client(&mut self, id: EventId, time: u64, parts: &mut Vec<FacePart>) {
        for at in 0..self.calls.len() {
            self.show_call(at, parts);
        }
        let mut open = Vec::new();
        for call in &mut self.calls {
            if !self.outcomes.contains_key(&call.call.key) {
                call.is_told = true;
                open.push((call.call.clone(), call.asked.clone()));
            }
        }
        let mut has_text = false;
        for (call, asked) in open {
            match asked {
                None => self.add_function_call(&call, parts),
                Some(request) if self.options.show_tools == ShowTools::McpCall => {
                    let item = self.add_item(self.approval_item(&request), parts);
                    self.end_item(item, parts);
                }
                Some(_) => has_text = true,
            }
        }
        if has_text {
            let text = self.approval_text();
            self.add_message(text_content(&text), parts);
        }
        self.finish(ResponseStatus::Completed, None, None, Some(time), parts);
        if !self.has_ended {
            self.open(Seq(id.seq.0 + 1), time, parts);
        }
    }

    fn approval_item(&self, request: &ApprovalRequest) -> Value {
        let arguments = match &request.question {
            None => request.arguments.to_string(),
            Some(question) => serde_json::to_string(question).unwrap_or_default(),
        };
        json!({
            "type": "mcp_approval_request",
            "id": self.approval_id(request),
            "server_label": SERVER_LABEL,
            "name": request.call.name,
            "arguments": arguments,
        })
    }

    /// Returns the text that says which calls wait, and where a person can decide.
    fn approval_text(&self) -> String {
        let mut text = String::new();
        for wait in self.waits() {
            if let Wait::Approval(request, _) = wait {
                let (name, arguments) = (&request.call.name, &request.arguments);
                text.push_str(&match &request.question {
                    None => format!("{name} {arguments} waits for approval.\n"),
                    Some(question) => format!("{name} asks: {}\n", question.message),
                });
            }
        }
        format!("{text}Decide here: {}{}", self.options.console, self.options.id.session)
    }

    fn end_turn(&mut self, id: EventId, parts: &mut Vec<FacePart>) {
        self.place(id, 0);
        for at in 0..self.calls.len() {
            self.show_call(at, parts);
        }
        self.calls.clear();
        self.outcomes.clear();
        self.asked.clear();
    }

    fn end_run(
        &mut self,
        end: RunEnd,
        error: Option<&RunError>,
        finish: Option<&FinishReason>,
        time: u64,
        parts: &mut Vec<FacePart>,
    ) {
        self.close_text("incomplete", parts);
        let is_cut = finish.is_some_and(|finish| finish.kind == FinishKind::Length);
        let (status, reason) = match end {
            RunEnd::Answered if is_cut => (ResponseStatus::Incomplete, Some("max_output_tokens")),
            RunEnd::Answered => (ResponseStatus::Completed, None),
            RunEnd::Refused => {
                let message = error.map_or("the model refused to answer", |it| &it.message);
                self.add_message(refusal_content(message), parts);
                (ResponseStatus::Completed, None)
            }
            RunEnd::MaxTurns | RunEnd::Budget => {
                (ResponseStatus::Incomplete, Some("max_output_tokens"))
            }
            RunEnd::TimedOut => (ResponseStatus::Incomplete, Some("timed_out")),
            RunEnd::Stopped => (ResponseStatus::Cancelled, Some("stopped")),
            RunEnd::Failed | RunEnd::AllToolsFailed | RunEnd::LoopDetected => {
                (ResponseStatus::Failed, None)
            }
            // The run goes on when its host does.
            RunEnd::Interrupted => {
                self.run_end = None;
                return;
            }
        };
        self.finish(status, reason, error, Some(time), parts);
    }

    fn finish(
        &mut self,
        status: ResponseStatus,
        reason: Option<&'static str>,
        error: Option<&RunError>,
        time: Option<u64>,
        parts: &mut Vec<FacePart>,
    ) {
        let is_wanted = self.is_wanted();
        let Some(response) = &mut self.response else { return };
        response.status = status;
        response.incomplete_reason = reason;
        response.ended_ms = time;
        if status == ResponseStatus::Failed {
            let unknown = || RunError {
                code: "server_error".to_owned(),
                message: "the run failed".to_owned(),
                transient: false,
            };
            response.error = Some(error.cloned().unwrap_or_else(unknown));
        }
        let failed = response.error.clone();
        let name = match status {
            ResponseStatus::InProgress | ResponseStatus::Completed => "response.completed",
            ResponseStatus::Incomplete | ResponseStatus::Cancelled => "response.incomplete",
            ResponseStatus::Failed => "response.failed",
        };
        let response = self.response().map(|response| {
            self.options.settings.object(&self.options.id, &self.model, response, true)
        });
        self.emit(name, json!({"response": response}), parts);
        if let Some(RunError { code, message, .. }) = failed {
            let error =
                json!({"type": "server_error", "code": code, "message": message, "param": null});
            let both = json!({"code": code, "message": message, "param": null, "error": error});
            self.emit("error", both, parts);
        }
        self.has_ended |= is_wanted;
    }

    fn add_message(&mut self, content: Value, parts: &mut Vec<FacePart>) {
        let number = self.response.as_ref().map_or(0, |response| response.items.len());
        let id = self.id("msg", &format!("{}-m{number}", self.at.seq));
        let item = self.add_item(message(&id, "in_progress", None), parts);
        let is_refusal = content["type"] == "refusal";
        let (mut empty, field) = (content.clone(), if is_refusal { "refusal" } else { "text" });
        let text = std::mem::replace(&mut empty[field], "".into());
        let added = json!({"content_index": 0, "part": empty});
        self.emit_of(item, "response.content_part.added", added, parts);
        let (delta, done) = match is_refusal {
            true => ("response.refusal.delta", "response.refusal.done"),
            false => ("response.output_text.delta", "response.output_text.done"),
        };
        let mut data = json!({"content_index": 0, "delta": text});
        let mut end = json!({"content_index": 0, field: text});
        if !is_refusal {
            data["logprobs"] = json!([]);
            end["logprobs"] = json!([]);
        }
        self.emit_of(item, delta, data, parts);
        self.emit_of(item, done, end, parts);
        let part = json!({"content_index": 0, "part": content});
        self.emit_of(item, "response.content_part.done", part, parts);
        self.set(item, "content", json!([content]));
        self.set(item, "status", "completed".into());
        self.end_item(item, parts);
    }

    fn add_item(&mut self, value: Value, parts: &mut Vec<FacePart>) -> usize {
        let Some(response) = &mut self.response else { return 0 };
        let index = response.items.len();
        response.items.push(Item { value: value.clone(), is_void: false });
        let data = json!({"output_index": index, "item": value});
        self.emit("response.output_item.added", data, parts);
        index
    }

    fn set(&mut self, item: usize, field: &str, value: Value) {
        if let Some(item) = self.response.as_mut().and_then(|it| it.items.get_mut(item)) {
            item.value[field] = value;
        }
    }

    fn end_item(&mut self, item: usize, parts: &mut Vec<FacePart>) {
        let value = self.response.as_ref().and_then(|it| it.items.get(item));
        let data = json!({"output_index": item, "item": value.map(|item| item.value.clone())});
        self.emit("response.output_item.done", data, parts);
    }

    /// Adds an event about an item.
    fn emit_of(
        &mut self,
        item: usize,
        name: &'static str,
        mut data: Value,
        parts: &mut Vec<FacePart>,
    ) {
        let id = self.response.as_ref().and_then(|it| it.items.get(item));
        data["item_id"] = id.map(|item| item.value["id"].clone()).unwrap_or_default();
        data["output_index"] = item.into();
        self.emit(name, data, parts);
    }

    fn id(&self, kind: &str, of: &str) -> String {
        let ResponseId { session, run, .. } = &self.options.id;
        ItemId { kind, run: *run, of, session: session.clone() }.to_string()
    }

    fn call_id(&self, key: CallKey) -> String {
        self.id("call", &key.to_string())
    }

    fn approval_id(&self, request: &ApprovalRequest) -> String {
        let ApprovalRequest { call, phase, arguments_sha256, .. } = request;
        self.id("mcpr", &format!("{}.{}.{arguments_sha256}", call.key, phase.as_str()))
    }
}

/// What a response that has ended waits for.
pub(super) enum Wait<'a> {
    /// A decision, with the id of the request.
    Approval(&'a ApprovalRequest, String),
    /// The result of a call that the client runs, by its id.
    Client(String),
}

fn message(id: &str, status: &str, content: Option<Value>) -> Value {
    let content: Vec<Value> = content.into_iter().collect();
    json!({"type": "message", "id": id, "status": status, "role": "assistant", "content": content})
}

/// Returns the part of a text, from `begins` to `ends`, that a client has not seen yet.
fn unseen(text: &str, begins: EventId, ends: EventId, after: Option<EventId>) -> &str {
    let seen = match after {
        Some(after) if after.seq == ends.seq && after.bytes < ends.bytes => {
            after.bytes.saturating_sub(begins.bytes)
        }
        Some(_) | None => 0,
    };
    let seen = floor_char_boundary(text, usize::try_from(seen).unwrap_or(usize::MAX));
    text.get(seen..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use callsheet_values::config::{ClientTool, RunOverrides};
    use callsheet_values::event::{ResponseSummary, samples};
    use callsheet_values::types::SessionId;

    use super::*;

    const RUN: Seq = Seq(2);

    /// The events of a run, with their positions.
    struct Run {
        at: EventId,
        events: Vec<PublishedEvent>,
    }

    impl Run {
        fn new() -> Self {
            Self { at: EventId { seq: Seq(1), bytes: 0 }, events: Vec::new() }
        }

        /// Adds the view of a record.
        fn record(mut self, event: Event) -> Self {
            let seq = Seq(self.at.seq.0 + 1);
            self.at = EventId::for_record(seq, self.at.bytes, &event);
            self.add(event)
        }

        fn text(mut self, event: Event) -> Self {
            self.at = self.at.after(&event);
            self.add(event)
        }

        fn add(mut self, event: Event) -> Self {
            self.events.push(PublishedEvent { id: Some(self.at), ..samples::published(event) });
            self
        }

        fn started() -> Self {
            let event = Event::RunStarted {
                agent: "a".to_owned(),
                model: "m".to_owned(),
                execution: callsheet_values::types::Execution::Sequential,
                input: Some("go".into()),
                metadata: Default::default(),
                reopened: false,
            };
            Self::new().record(event).record(Event::TurnStarted)
        }

        fn thinks(self, text: &str) -> Self {
            self.text(Event::ThinkingReceived { text: text.to_owned() })
        }

        fn says(self, text: &str) -> Self {
            self.text(Event::TextReceived { text: text.to_owned() })
        }

        fn breaks(self, voided: Option<VoidedText>) -> Self {
            self.record(Event::AttemptStarted {
                attempt: 2,
                model: "m".to_owned(),
                streamed: true,
                reason: "broke".to_owned(),
                wait: std::time::Duration::ZERO,
                voided: voided.map(Arc::new),
            })
        }

        fn calls(self, names: &[&str]) -> Self {
            let calls = names.iter().zip(0..).map(|(name, index)| call(name, index)).collect();
            let response = Arc::new(ResponseSummary { calls, ..samples::response() });
            self.record(Event::ResponseEnded { response })
        }

        fn call_ends(self, index: u32) -> Self {
            let result = samples::result();
            let result =
                Box::new(callsheet_values::types::ToolResult { call: call("x", index), ..result });
            self.record(Event::CallEnded { result, parallel: true, early: false })
        }

        fn asks(self, name: &str, index: u32) -> Self {
            let ToolCall { key, name, .. } = call(name, index);
            let call = callsheet_values::event::CallLabel { key, provider_id: None, name };
            let request = Box::new(ApprovalRequest {
                call,
                phase: callsheet_values::types::WaitPhase::Before,
                arguments: Arc::default(),
                arguments_sha256: "ff".to_owned(),
                output_summary: None,
                question: None,
            });
            self.record(Event::ApprovalAsked { request })
        }

        /// Folds the events to the response that begins with a record, for a client that has seen a position.
        fn fold(&self, begins: Seq, after: Option<PartPosition>) -> (ResponseFold, Vec<Value>) {
            let weather = ClientTool::new("weather", "", json!({"type": "object"}));
            let overrides = RunOverrides::default()
                .with(|overrides| overrides.client_tools = Some([weather].into()));
            let settings =
                ResponseSettings { overrides: Arc::new(overrides), ..ResponseSettings::default() };
            let session = SessionId::parse("s").unwrap();
            let mut fold = ResponseFold::new(FoldOptions {
                id: ResponseId { session, run: RUN, begins },
                after,
                show_tools: ShowTools::McpCall,
                unproven_text: UnprovenText::Show,
                console: String::new(),
                settings: Arc::new(settings),
            });
            let mut parts = Vec::new();
            self.events.iter().for_each(|event| fold.push(event, &mut parts));
            parts.retain(|part| part.position > after);
            let numbers: Vec<_> = parts.iter().map(|part| part.position).collect();
            assert!(numbers.is_sorted_by(|a, b| a < b), "{parts:#?}");
            let parts = parts.iter().map(|part| serde_json::from_str(&part.data).unwrap());
            (fold, parts.collect())
        }
    }

    fn call(name: &str, index: u32) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: "x".into(),
            provider_id: None,
            name: name.into(),
            arguments: Arc::new(json!({})),
            raw: None,
            indirect: false,
        }
    }

    fn kinds(fold: &ResponseFold) -> Vec<&str> {
        let output = fold.response().unwrap().output();
        output.map(|item| item["type"].as_str().unwrap()).collect()
    }

    fn position(part: &Value) -> Option<PartPosition> {
        PartPosition::from_number(part["sequence_number"].as_u64().unwrap())
    }

    #[test]
    fn parts_do_not_depend_on_the_pieces_of_text() {
        let live =
            Run::started().thinks("Hm").thinks(".").says("Gr").says("ü").says("n").calls(&[]);
        let replay = Run::started().thinks("Hm.").says("Grün").calls(&[]);
        let (_, seen) = live.fold(RUN, None);
        let whole = folded(&seen);
        for (at, part) in seen.iter().enumerate() {
            let (_, rest) = replay.fold(RUN, position(part));
            let both: Vec<Value> = seen.iter().take(at + 1).chain(&rest).cloned().collect();
            assert_eq!(folded(&both), whole, "after {part}");
            let added = both.iter().filter(|it| it["type"] == "response.output_item.added");
            assert_eq!(added.count(), 2, "after {part}");
        }
    }

    fn folded(parts: &[Value]) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::<String, String>::new();
        for part in parts {
            if let (Some(item), Some(delta)) = (part["item_id"].as_str(), part["delta"].as_str()) {
                texts.entry(item.to_owned()).or_default().push_str(delta);
            }
        }
        texts
    }

    #[test]
    fn items_of_text_that_nobody_knows_any_more_keep_their_numbers() {
        let live = Run::started().thinks("Hm.").says("It ").says("is");
        let (_, seen) = live.fold(RUN, None);
        let after = position(seen.last().unwrap());
        let replay = Run::started().breaks(None).says("Done.").calls(&[]);
        let (_, rest) = replay.fold(RUN, after);
        let done: Vec<_> =
            rest.iter().filter(|it| it["type"] == "response.output_item.done").collect();
        let places: Vec<_> = done
            .iter()
            .map(|it| (it["output_index"].clone(), it["item"]["status"].clone()))
            .collect();
        assert_eq!(places, [(1.into(), "incomplete".into()), (2.into(), "completed".into())]);
        let added = seen.iter().find(|it| it["item"]["type"] == "message").unwrap();
        assert_eq!(done[0]["item"]["id"], added["item"]["id"]);
        // A live watcher and a replay that knows the text agree.
        let voided = VoidedText::of_attempt(["It is", ""], "Hm.");
        let whole = Run::started().thinks("Hm.").says("It is").breaks(voided.clone());
        let known = Run::started().breaks(voided);
        assert_eq!(whole.fold(RUN, None).1, known.fold(RUN, None).1);
    }

    #[test]
    fn a_response_ends_when_each_open_call_waits_for_its_client() {
        let names = ["pay", "weather", "quick", "pay"];
        let run = Run::started().calls(&names).asks("pay", 0).call_ends(2);
        assert!(!run.fold(RUN, None).0.has_ended());
        let run = run.asks("pay", 3);
        let (fold, _) = run.fold(RUN, None);
        assert!(fold.has_ended());
        let waiting = ["mcp_call", "mcp_approval_request", "function_call", "mcp_approval_request"];
        assert_eq!(kinds(&fold), waiting);
        assert_eq!((fold.waits().count(), fold.ended_at()), (3, Seq(7)));
        // Results come in any order, and a call that asks again ends the next response.
        let run = run.call_ends(1).call_ends(3).asks("pay", 0);
        let (next, _) = run.fold(Seq(8), None);
        assert_eq!(kinds(&next), ["mcp_call", "mcp_approval_request"]);
        assert_eq!(next.ended_at(), Seq(10));
        assert_eq!(run.fold(Seq(9), None).0.response().map(|it| it.begins), None);
    }

    #[test]
    fn numbers_of_many_parts_at_one_event_are_unique() {
        let names = ["quick"; 60];
        let mut run = Run::started().calls(&names);
        for index in (0..60).rev() {
            run = run.call_ends(index);
        }
        let (fold, parts) = run.fold(RUN, None);
        assert_eq!(kinds(&fold).len(), 60);
        for part in parts.iter().rev().take(200) {
            let rest = run.fold(RUN, position(part)).1;
            assert_eq!(rest.len() + 1, parts.iter().skip_while(|it| *it != part).count());
        }
    }
}
