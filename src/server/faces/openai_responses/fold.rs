//! The fold from the events of a run to the events of a response.
//!
//! A run has several responses if its client has to act: an approval or a call of a client's tool ends the response, and
//! the next one begins with the record after. The point depends only on events with ids, so it is the same in a replay:
//! it is the first one at which each call of the turn that has no result waits for the client. A wait that a response has
//! told its client does not end another one.
//!
//! Numbers of events are positions ([`PartPosition`]). The parts of an event of text begin where its text begins, and say
//! which items the attempt has ([`AttemptItems`]), so that they are the same for any pieces of the text.
//!
//! An item of text ends when its attempt has: until then it is not certain that it counts. The index of an item follows
//! from the records alone, so that it is the same for each client. No record says which items an attempt had whose text
//! a kill of the host has lost: those that a client has not seen are empty.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::position::PartPosition;
use super::super::stream::{FacePart, Fold};
use super::ids::{ItemId, ResponseId};
use super::object::{ResponseSettings, refusal_content, text_content};
use callsheet_host::runtime::HostError;
use callsheet_machines::turn::{
    CONTENT_REFUSED, HOST_STOPPED_REASON, MAX_CALLS_KEY, refusal_message,
};
use callsheet_values::config::{ShowTools, UnprovenText};
use callsheet_values::event::{ApprovalRequest, Event, EventId, PublishedEvent, VoidedText};
use callsheet_values::record::ResponseEnding;
use callsheet_values::types::{
    CallKey, FinishKind, FinishReason, RunEnd, RunError, Seq, ToolCall, ToolOutcome, ToolStatus,
    Usage, floor_char_boundary,
};

/// The label of the agent's own tools, which the items call a server.
pub(super) const SERVER_LABEL: &str = "callsheet";

/// The first part of a position of text. Those before it are of records.
const TEXT_PARTS: u64 = 16;

/// Number of parts of a position of text for each order of an attempt's items.
const ORDER_PARTS: u64 = 8;

/// The orders of an attempt's items. Order `k` has the parts from `TEXT_PARTS + k * ORDER_PARTS`.
const ORDERS: [&[TextKind]; 4] = [
    &[TextKind::Thinking],
    &[TextKind::Text],
    &[TextKind::Thinking, TextKind::Text],
    &[TextKind::Text, TextKind::Thinking],
];

/// The parts of a position of text: the start of the item, a delta, the end of a part of the item, the start of another
/// part, and the end of the items of an attempt that broke.
const PART_ITEM: u64 = 0;
const PART_DELTA: u64 = 2;
const PART_DONE: u64 = 3;
const PART_NEXT: u64 = 5;
const PART_VOID: u64 = 6;

/// Number of items of an attempt that are not known: it has one of each kind at most.
const LOST_ITEMS: u64 = 2;

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
    /// The response of the run that it goes on from.
    pub(super) previous: Option<Seq>,
    pub(super) status: ResponseStatus,
    pub(super) incomplete_reason: Option<&'static str>,
    pub(super) error: Option<RunError>,
    pub(super) usage: Usage,
    pub(super) created_ms: u64,
    pub(super) ended_ms: Option<u64>,
    items: Vec<Item>,
    /// The index of the next item.
    next_index: u64,
}

impl OpenResponse {
    fn new(begins: Seq, previous: Option<Seq>, created_ms: u64) -> Self {
        Self {
            begins,
            previous,
            status: ResponseStatus::InProgress,
            incomplete_reason: None,
            error: None,
            usage: Usage::default(),
            created_ms,
            ended_ms: None,
            items: Vec::new(),
            next_index: 0,
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
    index: u64,
    /// The text is of an attempt that broke.
    is_void: bool,
}

/// The items of an attempt: at most one for its thinking and one for its text. If the two alternate, each piece is a
/// part of its item.
#[derive(Clone, Debug)]
struct AttemptItems {
    /// The record with which the attempt started.
    seq: Seq,
    /// The index of its first item.
    first_index: u64,
    /// In the order in which they began.
    items: Vec<TextItem>,
    /// The item that has an open part.
    open: Option<usize>,
    /// The item whose part ended last.
    latest: Option<usize>,
    /// Text that is kept back until the response has ended.
    held: Vec<(TextKind, String)>,
}

#[derive(Clone, Debug)]
struct TextItem {
    kind: TextKind,
    /// Its place in the response.
    item: usize,
    id: String,
    /// The parts that have ended.
    ended: Vec<String>,
    /// The text of the open part.
    text: String,
    /// The part that says that the model refused.
    refusal: Option<Value>,
}

impl AttemptItems {
    /// Returns the first of the parts that positions have for the items that there are.
    fn first_part(&self) -> u64 {
        let kinds = self.items.iter().map(|item| item.kind);
        let order = ORDERS.iter().position(|order| kinds.clone().eq(order.iter().copied()));
        TEXT_PARTS + ORDER_PARTS * order.unwrap_or_default() as u64
    }

    fn open_item(&mut self) -> Option<&mut TextItem> {
        self.items.get_mut(self.open?)
    }
}

/// The items of an attempt whose text is not whole.
#[derive(Clone, Copy, Debug)]
enum CutItems {
    None,
    /// The one that had text last.
    Latest,
    All,
}

/// The items of an attempt that a client has seen, and the position up to which it has.
#[derive(Clone, Copy, Debug)]
struct SeenItems {
    upto: EventId,
    kinds: &'static [TextKind],
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
    /// The response of the attempt was refused, and its text ends with the run.
    is_refused: bool,
    /// The limit of calls has ended the run.
    is_out_of_calls: bool,
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
            Event::TurnStarted => {
                self.place(id, 0);
                self.end_items(CutItems::None, parts);
                self.start_attempt(id.seq);
            }
            Event::ThinkingReceived { text } => {
                self.add_text(TextKind::Thinking, text, id, parts);
            }
            Event::TextReceived { text } => self.add_text(TextKind::Text, text, id, parts),
            Event::AttemptStarted { voided, reason, .. } => {
                self.void_attempt(voided.as_deref(), reason, id, parts);
                self.start_attempt(id.seq);
            }
            Event::AttemptVoided { voided, reason, .. } => {
                self.void_attempt(voided.as_deref(), reason, id, parts);
            }
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
            Event::LimitReached { limit, action, .. } => {
                self.is_out_of_calls |= limit == MAX_CALLS_KEY && action == "ended";
            }
            // It goes on when its host does.
            Event::RunEnded { end: RunEnd::Interrupted, .. } => {}
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
        self.close_part(parts);
        self.end_items(CutItems::Latest, parts);
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
            is_refused: false,
            is_out_of_calls: false,
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
        let previous = self.response.as_ref().map(|response| response.begins);
        let previous = previous.filter(|previous| *previous < begins);
        self.response = Some(OpenResponse::new(begins, previous, time));
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
        let first_index = self.response.as_ref().map_or(0, |response| response.next_index);
        let (items, held) = (Vec::new(), Vec::new());
        self.is_refused = false;
        self.attempt =
            Some(AttemptItems { seq, first_index, items, open: None, latest: None, held });
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
        let open = self.attempt.as_mut().and_then(AttemptItems::open_item);
        if open.map(|it| it.kind) != Some(kind) {
            self.place(begins, 0);
            self.place_text(begins, PART_DONE);
            self.close_part(parts);
            self.open_part(kind, parts);
        }
        self.place_text(id, PART_DELTA);
        self.add_delta(text, unseen(text, begins, id, self.after()), parts);
    }

    /// Returns the position after which the client wants parts, as an event.
    fn after(&self) -> Option<EventId> {
        self.options.after.map(|after| after.event(self.options.id.run))
    }

    /// Moves to the place of text, and there at least to this part of the attempt's items, if there are any.
    fn place_text(&mut self, id: EventId, part: u64) {
        if let Some(attempt) = self.attempt.as_ref().filter(|it| !it.items.is_empty()) {
            let first = attempt.first_part();
            self.place(id, first + part);
        }
    }

    /// Begins a part of the attempt's item of this kind, and the item if there is none.
    fn open_part(&mut self, kind: TextKind, parts: &mut Vec<FacePart>) {
        let Some(attempt) = &mut self.attempt else { return };
        let at = self.at;
        if let Some(found) = attempt.items.iter().position(|item| item.kind == kind) {
            attempt.open = Some(found);
            self.place_text(at, PART_NEXT);
        } else {
            let (seq, number) = (attempt.seq, attempt.items.len());
            let of = format!("{seq}-{number}");
            let value = match kind {
                TextKind::Thinking => {
                    json!({"type": "reasoning", "id": self.id("rs", &of), "summary": []})
                }
                TextKind::Text => message(&self.id("msg", &of), "in_progress", None),
            };
            let id = value["id"].as_str().unwrap_or_default().to_owned();
            let item = self.push_item(value);
            if let Some(attempt) = &mut self.attempt {
                let (ended, text) = (Vec::new(), String::new());
                attempt.items.push(TextItem { kind, item, id, ended, text, refusal: None });
                attempt.open = Some(number);
            }
            self.place_text(at, PART_ITEM);
            self.begin_item(item, parts);
        }
        let Some(TextItem { item, ended, .. }) =
            self.attempt.as_mut().and_then(AttemptItems::open_item)
        else {
            return;
        };
        let (item, number) = (*item, ended.len());
        let (added, data) = match kind {
            TextKind::Thinking => (
                "response.reasoning_summary_part.added",
                json!({"summary_index": number, "part": {"type": "summary_text", "text": ""}}),
            ),
            TextKind::Text => (
                "response.content_part.added",
                json!({"content_index": number, "part": text_content("")}),
            ),
        };
        self.emit_of(item, added, data, parts);
    }

    /// Adds text to the open part. The client has seen all but `unseen` of it.
    fn add_delta(&mut self, text: &str, unseen: &str, parts: &mut Vec<FacePart>) {
        let Some(open) = self.attempt.as_mut().and_then(AttemptItems::open_item) else { return };
        open.text.push_str(text);
        let (item, part) = (open.item, open.ended.len());
        let (name, rest) = match open.kind {
            TextKind::Thinking => {
                ("response.reasoning_summary_text.delta", format!(r#""summary_index":{part}"#))
            }
            TextKind::Text => {
                ("response.output_text.delta", format!(r#""content_index":{part},"logprobs":[]"#))
            }
        };
        let (id, index) = (open.id.clone(), self.index_of(item));
        // Formatted by hand: most events of a stream are these. An id has no characters that JSON escapes.
        self.emit_text(name, parts, |number| {
            let delta = serde_json::to_string(unseen).unwrap_or_default();
            format!(
                r#"{{"type":"{name}","sequence_number":{number},"item_id":"{id}","output_index":{index},{rest},"delta":{delta}}}"#
            )
        });
    }

    /// Ends the open part. Its item goes on until the attempt has ended.
    fn close_part(&mut self, parts: &mut Vec<FacePart>) {
        let Some(attempt) = &mut self.attempt else { return };
        let Some(TextItem { kind, item, ended, text, .. }) = attempt.open_item() else { return };
        let (kind, item, number) = (*kind, *item, ended.len());
        let text = std::mem::take(text);
        ended.push(text.clone());
        attempt.latest = attempt.open.take();
        match kind {
            TextKind::Thinking => {
                let done = json!({"summary_index": number, "text": text});
                self.emit_of(item, "response.reasoning_summary_text.done", done, parts);
                let done = json!({"summary_index": number, "part": summary(&text)});
                self.emit_of(item, "response.reasoning_summary_part.done", done, parts);
            }
            TextKind::Text => {
                let done = json!({"content_index": number, "text": text, "logprobs": []});
                self.emit_of(item, "response.output_text.done", done, parts);
                let done = json!({"content_index": number, "part": text_content(&text)});
                self.emit_of(item, "response.content_part.done", done, parts);
            }
        }
    }

    /// Ends the items of the attempt, which has ended. `cut` are those whose text is not whole.
    fn end_items(&mut self, cut: CutItems, parts: &mut Vec<FacePart>) {
        let Some(attempt) = self.attempt.take() else { return };
        for (number, item) in attempt.items.into_iter().enumerate() {
            let is_cut = match cut {
                CutItems::None => false,
                CutItems::Latest => attempt.latest == Some(number),
                CutItems::All => true,
            };
            match item.kind {
                TextKind::Thinking => {
                    let summary = item.ended.iter().map(|text| summary(text)).collect();
                    self.set(item.item, "summary", summary);
                    if is_cut {
                        self.set(item.item, "status", "incomplete".into());
                    }
                }
                TextKind::Text => {
                    let content = item.ended.iter().map(|text| text_content(text));
                    let content = content.chain(item.refusal).collect();
                    let status = if is_cut { "incomplete" } else { "completed" };
                    self.set(item.item, "content", content);
                    self.set(item.item, "status", status.into());
                }
            }
            self.end_item(item.item, parts);
        }
    }

    /// Ends the text of a response.
    fn end_text(&mut self, ending: ResponseEnding, id: EventId, parts: &mut Vec<FacePart>) {
        self.place(id, 0);
        let held = self.attempt.as_mut().map(|it| std::mem::take(&mut it.held));
        for (kind, text) in held.unwrap_or_default() {
            self.close_part(parts);
            self.open_part(kind, parts);
            self.add_delta(&text, &text, parts);
        }
        self.close_part(parts);
        match ending {
            // Of a response that broke, the text before a call that had started is kept: it is part of the history.
            ResponseEnding::Complete
            | ResponseEnding::TooManyCalls
            | ResponseEnding::BrokenKept => {
                self.end_items(CutItems::None, parts);
            }
            ResponseEnding::Refused => self.is_refused = true,
            ResponseEnding::Length | ResponseEnding::Cancelled => {
                self.end_items(CutItems::Latest, parts);
            }
        }
    }

    /// Ends the items of an attempt that broke. A replay does not have their text, and shows what it knows of it.
    fn void_attempt(
        &mut self,
        voided: Option<&VoidedText>,
        reason: &str,
        id: EventId,
        parts: &mut Vec<FacePart>,
    ) {
        let is_shown = self.options.unproven_text == UnprovenText::Show;
        let seen = self.seen_items(id);
        let Some(attempt) = &self.attempt else { return };
        let (count, first_index, seq) = (attempt.items.len(), attempt.first_index, attempt.seq);
        if is_shown && count == 0 {
            match (voided, seen) {
                (Some(voided), None) => self.show_voided(voided, None, parts),
                // The client has seen more than the record has.
                (Some(voided), Some(seen)) if voided.omitted_bytes == 0 => {
                    self.show_voided(voided, Some(seen), parts);
                }
                (Some(_) | None, Some(seen)) => self.reopen_seen(seen, parts),
                (None, None) => {}
            }
        }
        let at = seen.map_or(self.at, |seen| seen.upto.max(self.at));
        self.place_text(at, PART_DONE);
        self.close_part(parts);
        self.place_text(at, PART_VOID);
        let reserved = match voided {
            Some(voided) => self.voided_kinds(voided, seen).count() as u64,
            None if reason == HOST_STOPPED_REASON => LOST_ITEMS,
            None => 0,
        };
        let items = self.attempt.as_ref().map(|it| it.items.iter().map(|item| item.item));
        let items: Vec<usize> = items.into_iter().flatten().collect();
        self.end_items(CutItems::All, parts);
        items.into_iter().for_each(|item| self.void(item));
        let Some(response) = &self.response else { return };
        let shown = response.next_index - first_index;
        if is_shown {
            (shown..reserved).for_each(|number| self.add_lost_item((seq, number), id, parts));
        }
    }

    /// Adds an empty item for one that an attempt may have had, because helpers of clients count the items. Its parts have
    /// a place of their own, also for a client that has seen the items before it.
    fn add_lost_item(&mut self, (seq, number): (Seq, u64), id: EventId, parts: &mut Vec<FacePart>) {
        let of = format!("{seq}-{number}");
        self.place(id, 2 * number);
        let value = json!({"type": "reasoning", "id": self.id("rs", &of), "summary": []});
        let item = self.add_item(value, parts);
        self.set(item, "status", "incomplete".into());
        self.end_item(item, parts);
        self.void(item);
    }

    fn void(&mut self, item: usize) {
        if let Some(item) = self.response.as_mut().and_then(|it| it.items.get_mut(item)) {
            item.is_void = true;
        }
    }

    /// Returns the kinds of a void text in the order of their items.
    fn voided_kinds(
        &self,
        voided: &VoidedText,
        seen: Option<SeenItems>,
    ) -> impl Iterator<Item = TextKind> {
        let kinds = match seen.and_then(|seen| seen.kinds.first()) {
            Some(TextKind::Text) => [TextKind::Text, TextKind::Thinking],
            Some(TextKind::Thinking) | None => [TextKind::Thinking, TextKind::Text],
        };
        kinds
            .into_iter()
            .filter(|kind| !voided_text(voided, *kind).is_empty() && !self.is_hidden(*kind))
    }

    fn show_voided(
        &mut self,
        voided: &VoidedText,
        seen: Option<SeenItems>,
        parts: &mut Vec<FacePart>,
    ) {
        let Some(started) = self.attempt.as_ref().map(|attempt| attempt.seq) else { return };
        let (seq, mut bytes) = (seen.map_or(started, |seen| seen.upto.seq), 0);
        let kinds: Vec<TextKind> = self.voided_kinds(voided, seen).collect();
        for kind in kinds {
            let text = voided_text(voided, kind);
            bytes += text.len() as u64;
            self.show_text(kind, text, EventId { seq, bytes }, parts);
        }
    }

    /// Returns the items of the attempt that the client has seen. `None` if its position is before or after the attempt.
    fn seen_items(&self, next: EventId) -> Option<SeenItems> {
        let (upto, attempt) = (self.after()?, self.attempt.as_ref()?);
        if upto.seq < attempt.seq || upto.seq >= next.seq {
            return None;
        }
        let part = self.options.after?.part().checked_sub(TEXT_PARTS)?;
        let kinds = ORDERS.get(usize::try_from(part / ORDER_PARTS).ok()?)?;
        Some(SeenItems { upto, kinds })
    }

    /// Opens the items that the client has seen of an attempt whose text is lost. Their parts do not end, because the
    /// events of their ends repeat the text.
    fn reopen_seen(&mut self, seen: SeenItems, parts: &mut Vec<FacePart>) {
        let Some(seq) = self.attempt.as_ref().map(|it| it.seq) else { return };
        let last = seen.kinds.len().saturating_sub(1);
        for (number, kind) in seen.kinds.iter().enumerate() {
            let at = if number < last { EventId { seq, bytes: 0 } } else { seen.upto };
            self.place(at, 0);
            self.open_part(*kind, parts);
            if let Some(attempt) = &mut self.attempt {
                attempt.open = None;
            }
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
    /// before: until then it may still have to be approved, and clients (`@ai-sdk/openai` 4.0.118) would take the item that
    /// ends for that as a result.
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
            "arguments": "",
            "approval_request_id": asked.map(|request| self.approval_id(request)),
            "output": null,
            "error": null,
            "status": "in_progress",
        });
        let item = self.add_item(value, parts);
        self.emit_of(item, "response.mcp_call.in_progress", json!({}), parts);
        let delta = json!({"delta": arguments});
        self.emit_of(item, "response.mcp_call_arguments.delta", delta, parts);
        let done = json!({"arguments": arguments});
        self.emit_of(item, "response.mcp_call_arguments.done", done, parts);
        self.set(item, "arguments", arguments.into());
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
        if end == RunEnd::Refused {
            self.end_refused(error, finish, parts);
        }
        self.close_part(parts);
        let cut = if self.is_refused { CutItems::None } else { CutItems::Latest };
        self.end_items(cut, parts);
        let is_cut = finish.is_some_and(|finish| finish.kind == FinishKind::Length);
        let (status, reason) = match end {
            RunEnd::Answered if is_cut => (ResponseStatus::Incomplete, Some("max_output_tokens")),
            RunEnd::Answered => (ResponseStatus::Completed, None),
            RunEnd::Refused => (ResponseStatus::Completed, None),
            RunEnd::Budget if self.is_out_of_calls => {
                (ResponseStatus::Incomplete, Some("max_tool_calls"))
            }
            RunEnd::MaxTurns | RunEnd::Budget => {
                (ResponseStatus::Incomplete, Some("max_output_tokens"))
            }
            RunEnd::TimedOut => (ResponseStatus::Incomplete, Some("timed_out")),
            RunEnd::Stopped => (ResponseStatus::Cancelled, Some("stopped")),
            RunEnd::Failed | RunEnd::AllToolsFailed | RunEnd::LoopDetected => {
                (ResponseStatus::Failed, None)
            }
            RunEnd::Interrupted => return,
        };
        self.finish(status, reason, error, Some(time), parts);
    }

    /// Adds the refusal to the message of the response, or as a message of its own if there is none. Its text is the
    /// explanation of the service, the text of the model, or the message of the hook that refused the turn.
    fn end_refused(
        &mut self,
        error: Option<&RunError>,
        finish: Option<&FinishReason>,
        parts: &mut Vec<FacePart>,
    ) {
        let items = self.attempt.as_ref().map(|it| it.items.as_slice()).unwrap_or_default();
        let message = items.iter().find(|item| item.kind == TextKind::Text);
        let text = message.map(|message| message.ended.concat()).unwrap_or_default();
        let message = message.map(|message| (message.item, message.ended.len()));
        let details = finish.and_then(|finish| finish.refusal.as_deref());
        let explanation = details.and_then(|details| details.explanation.clone());
        let refusal = match error.filter(|error| error.code != CONTENT_REFUSED) {
            Some(error) => error.message.clone(),
            None => explanation
                .or_else(|| Some(text.clone()).filter(|text| !text.trim().is_empty()))
                .unwrap_or_else(|| refusal_message(details)),
        };
        let content = refusal_content(&refusal);
        let Some((item, number)) = message else {
            self.end_items(CutItems::None, parts);
            self.add_message(content, parts);
            return;
        };
        self.add_content(item, number, &content, refusal != text, parts);
        let items = self.attempt.iter_mut().flat_map(|attempt| &mut attempt.items);
        items.filter(|it| it.item == item).for_each(|it| it.refusal = Some(content.clone()));
        self.end_items(CutItems::None, parts);
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
        let number = self.response.as_ref().map_or(0, |response| response.next_index);
        let id = self.id("msg", &format!("{}-m{number}", self.at.seq));
        let item = self.add_item(message(&id, "in_progress", None), parts);
        self.add_content(item, 0, &content, true, parts);
        self.set(item, "content", json!([content]));
        self.set(item, "status", "completed".into());
        self.end_item(item, parts);
    }

    /// Adds a part of a message as a whole. `is_new` is false if the client has its text from another part.
    fn add_content(
        &mut self,
        item: usize,
        number: usize,
        content: &Value,
        is_new: bool,
        parts: &mut Vec<FacePart>,
    ) {
        let is_refusal = content["type"] == "refusal";
        let (mut empty, field) = (content.clone(), if is_refusal { "refusal" } else { "text" });
        let text = std::mem::replace(&mut empty[field], "".into());
        let added = json!({"content_index": number, "part": empty});
        self.emit_of(item, "response.content_part.added", added, parts);
        let (delta, done) = match is_refusal {
            true => ("response.refusal.delta", "response.refusal.done"),
            false => ("response.output_text.delta", "response.output_text.done"),
        };
        let mut data = json!({"content_index": number, "delta": text});
        let mut end = json!({"content_index": number, field: text});
        if !is_refusal {
            data["logprobs"] = json!([]);
            end["logprobs"] = json!([]);
        }
        if is_new {
            self.emit_of(item, delta, data, parts);
        }
        self.emit_of(item, done, end, parts);
        let part = json!({"content_index": number, "part": content});
        self.emit_of(item, "response.content_part.done", part, parts);
    }

    fn add_item(&mut self, value: Value, parts: &mut Vec<FacePart>) -> usize {
        let item = self.push_item(value);
        self.begin_item(item, parts);
        item
    }

    /// Adds an item without its event. Returns its place in the response.
    fn push_item(&mut self, value: Value) -> usize {
        let Some(response) = &mut self.response else { return 0 };
        response.items.push(Item { value, index: response.next_index, is_void: false });
        response.next_index += 1;
        response.items.len() - 1
    }

    fn item(&self, item: usize) -> Option<&Item> {
        self.response.as_ref()?.items.get(item)
    }

    fn index_of(&self, item: usize) -> u64 {
        self.item(item).map_or(0, |item| item.index)
    }

    fn begin_item(&mut self, item: usize, parts: &mut Vec<FacePart>) {
        let value = self.item(item).map(|item| item.value.clone());
        let data = json!({"output_index": self.index_of(item), "item": value});
        self.emit("response.output_item.added", data, parts);
    }

    fn set(&mut self, item: usize, field: &str, value: Value) {
        if let Some(item) = self.response.as_mut().and_then(|it| it.items.get_mut(item)) {
            item.value[field] = value;
        }
    }

    fn end_item(&mut self, item: usize, parts: &mut Vec<FacePart>) {
        let value = self.item(item).map(|item| item.value.clone());
        let data = json!({"output_index": self.index_of(item), "item": value});
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
        data["item_id"] = self.item(item).map(|it| it.value["id"].clone()).unwrap_or_default();
        data["output_index"] = self.index_of(item).into();
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
        self.id("mcpr", &approval_place(request))
    }
}

/// Returns what the id of a request for an approval names in its run.
pub(super) fn approval_place(request: &ApprovalRequest) -> String {
    let ApprovalRequest { call, phase, arguments_sha256, .. } = request;
    format!("{}.{}.{arguments_sha256}", call.key, phase.as_str())
}

/// What a response that has ended waits for.
pub(super) enum Wait<'a> {
    /// A decision, with the id of the request.
    Approval(&'a ApprovalRequest, String),
    /// The result of a call that the client runs, by its id.
    Client(String),
}

fn summary(text: &str) -> Value {
    json!({"type": "summary_text", "text": text})
}

fn voided_text(voided: &VoidedText, kind: TextKind) -> &str {
    match kind {
        TextKind::Thinking => &voided.thinking,
        TextKind::Text => &voided.text,
    }
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
            self.retries("broke", voided)
        }

        /// The host was killed.
        fn loses_its_host(self) -> Self {
            self.retries(HOST_STOPPED_REASON, None)
        }

        fn retries(self, reason: &str, voided: Option<VoidedText>) -> Self {
            self.record(Event::AttemptStarted {
                attempt: 2,
                model: "m".to_owned(),
                streamed: true,
                reason: reason.to_owned(),
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

    /// Returns index, id and status of the items that have ended.
    fn ended(parts: &[Value]) -> Vec<(u64, String, Value)> {
        let ended = parts.iter().filter(|it| it["type"] == "response.output_item.done");
        let item = |it: &Value| {
            let id = it["item"]["id"].as_str().unwrap().to_owned();
            (it["output_index"].as_u64().unwrap(), id, it["item"]["status"].clone())
        };
        ended.map(item).collect()
    }

    fn added(parts: &[Value]) -> Vec<(u64, String)> {
        let added = parts.iter().filter(|it| it["type"] == "response.output_item.added");
        let item = |it: &Value| {
            (it["output_index"].as_u64().unwrap(), it["item"]["id"].as_str().unwrap().to_owned())
        };
        added.map(item).collect()
    }

    #[test]
    fn items_of_lost_text_end_and_no_index_is_left_out() {
        let attempts = [
            Run::started().thinks("Hm.").says("It ").says("is"),
            Run::started().says("It is"),
            Run::started().thinks("Hm.").thinks("Hm."),
            Run::started().says("It ").thinks("Hm.").says("is").thinks("so."),
        ];
        for attempt in attempts {
            let (_, before) = attempt.fold(RUN, None);
            // Two kills: nothing came between them.
            let run = Run::started()
                .loses_its_host()
                .loses_its_host()
                .thinks("Oh.")
                .says("Done.")
                .calls(&[]);
            for at in 0..before.len() {
                let seen: Vec<Value> = before.iter().take(at + 1).cloned().collect();
                let (_, rest) = run.fold(RUN, position(seen.last().unwrap()));
                let both: Vec<Value> = seen.iter().chain(&rest).cloned().collect();
                for again in at..both.len() {
                    let (_, rest) = run.fold(RUN, position(&both[again]));
                    let all: Vec<Value> =
                        both.iter().take(again + 1).chain(&rest).cloned().collect();
                    let what = format!("{} {}", both[at], both[again]);
                    let (added, ended) = (added(&all), ended(&all));
                    let names: Vec<_> =
                        ended.iter().map(|(index, id, _)| (*index, id.clone())).collect();
                    assert_eq!(added, names, "{what}");
                    let indexes: Vec<_> = ended.iter().map(|(index, ..)| *index).collect();
                    assert_eq!(indexes, [0, 1, 2, 3, 4, 5], "{what}");
                    let lost = ended.iter().map(|(.., status)| *status == "incomplete");
                    let is_lost = [true, true, true, true, false, false];
                    assert_eq!(lost.collect::<Vec<_>>(), is_lost, "{what}");
                }
            }
        }
    }

    #[test]
    fn a_replay_that_knows_the_text_of_a_broken_attempt_shows_what_a_watcher_saw() {
        let voided = VoidedText::of_attempt(["It is", ""], "Hm.");
        let runs = [
            (Run::started().thinks("Hm.").says("It is"), voided.clone()),
            (Run::started().says("It is").thinks("Hm."), voided),
            (Run::started().says("It "), VoidedText::of_attempt(["It ", ""], "")),
        ];
        for (run, voided) in runs {
            let rest = |run: Run| run.says("Done.").calls(&[]);
            let (_, seen) = rest(run.breaks(voided.clone())).fold(RUN, None);
            let replay = rest(Run::started().breaks(voided));
            for at in 2..seen.len() {
                let (_, rest) = replay.fold(RUN, position(&seen[at]));
                let both: Vec<Value> = seen.iter().take(at + 1).chain(&rest).cloned().collect();
                assert_eq!(
                    (ended(&both), added(&both)),
                    (ended(&seen), added(&seen)),
                    "{}",
                    seen[at]
                );
                assert_eq!(folded(&both), folded(&seen), "{}", seen[at]);
            }
        }
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

    #[test]
    fn a_run_that_a_restart_interrupts_keeps_its_calls() {
        let run = Run::started().calls(&["quick", "quick"]).call_ends(1);
        let run = run.record(samples::run_ended(RunEnd::Interrupted, None));
        let (fold, _) = run.call_ends(0).fold(RUN, None);
        assert!(!fold.has_ended());
        assert_eq!(kinds(&fold), ["mcp_call", "mcp_call"]);
    }
}
