//! The fold from the events of a run to the chunks of a message of the assistant. The names and members of chunks are
//! those of `uiMessageChunkSchema` in `ai` 7.0.173.
//!
//! A turn is a step. A call has its part from the end of its response on at the latest; before, it has it as soon as its
//! name is known and the calls before it have theirs, so that parts are in call order. Text is numbered by its change with thinking, so that it has the same ids in a replay.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::super::chats;
use super::super::retries::RunPlace;
use super::super::stream::{FacePart, Fold};
use super::super::waits::{KnownWaits, WaitId, WaitingCalls, call_id};
use callsheet_values::event::{
    ApprovalRequest, CallLabel, ChildEvent, Event, EventForm, PublishedEvent, ResponseSummary,
};
use callsheet_values::types::{
    ApprovalVerdict, CallKey, Content, ContentPart, FinishReason, Image, RunEnd, Seq, ToolCall,
    ToolResult, ToolStatus,
};

/// The state of the message that the page builds.
#[derive(Debug)]
pub(super) struct UiFold {
    place: RunPlace,
    open_calls: WaitingCalls,
    /// The last record that the page may know.
    upto: Seq,
    /// True while events are read whose parts the page has.
    is_known_to_page: bool,
    has_started: bool,
    is_in_step: bool,
    attempt: UiAttempt,
    /// The last parts of the turn's calls that have ended.
    ended: BTreeMap<CallKey, ToolResult>,
    /// The calls of child sessions that have a part and have not ended: those that have waited for an approval, with the
    /// request unless the page has answered it.
    of_children: BTreeMap<String, Option<(WaitId, Box<ApprovalRequest>)>>,
    has_ended: bool,
    /// The chunks of the event that is read.
    chunks: Vec<Value>,
}

/// The parts of the attempt in progress.
#[derive(Debug, Default)]
struct UiAttempt {
    number: u32,
    /// The texts and the thinking. Only the last one may be open.
    blocks: Vec<Block>,
    /// The calls that have a part.
    shown: BTreeMap<CallKey, ShownCall>,
    /// The index of the next call that may get a part: any, when the response has ended.
    next_index: u32,
    /// The events of calls that wait for the part of an earlier call. A page that joins gets the ends of calls before the
    /// states of those that are open.
    held: Vec<Event>,
}

impl UiAttempt {
    fn new(number: u32) -> Self {
        Self { number, ..Self::default() }
    }

    /// Returns whether an event is one of a call, and an earlier call of the response in progress has no part yet.
    fn is_too_early(&self, event: &Event) -> bool {
        call_of(event).is_some_and(|key| key.attempt == self.number && key.index > self.next_index)
    }
}

/// A text or the thinking.
#[derive(Debug)]
struct Block {
    kind: &'static str,
    id: String,
    text: String,
    is_open: bool,
}

impl Block {
    fn chunk(&self, step: &str) -> Value {
        json!({"type": format!("{}-{step}", self.kind), "id": self.id})
    }

    fn delta(&self, text: &str) -> Value {
        json!({"type": format!("{}-delta", self.kind), "id": self.id, "delta": text})
    }
}

#[derive(Debug, Default)]
struct ShownCall {
    has_input: bool,
    /// Number of bytes of the arguments that were sent in pieces.
    arguments_bytes: u64,
    /// The last approval that was asked.
    asked: Option<Box<ApprovalRequest>>,
    /// The call, if the page has to run it, with its arguments.
    by_page: Option<(CallLabel, Arc<Value>)>,
}

impl UiFold {
    /// Creates the fold of a run's message. With answers of the page it begins behind the place where they were given.
    pub(super) fn new(place: RunPlace, known: KnownWaits) -> Self {
        let answered_children = known.answered.iter().filter(|id| id.child.is_some());
        Self {
            place,
            upto: known.upto,
            is_known_to_page: !known.answered.is_empty() || !known.answered_calls.is_empty(),
            of_children: answered_children.map(|id| (id.call_id(), None)).collect(),
            open_calls: WaitingCalls::new(known),
            has_started: false,
            is_in_step: false,
            attempt: UiAttempt::new(1),
            ended: BTreeMap::new(),
            has_ended: false,
            chunks: Vec::new(),
        }
    }

    fn add(&mut self, chunk: Value) {
        self.chunks.push(chunk);
    }

    /// Adds data that the page does not keep.
    fn add_transient(&mut self, kind: &str, data: &Value) {
        self.add(json!({"type": format!("data-{kind}"), "data": data, "transient": true}));
    }

    fn add_event(&mut self, published: &PublishedEvent) {
        let event = &published.event;
        if let Some((is_thinking, text)) = event.text() {
            self.add_text(published.turn, is_thinking, text);
        } else if let Event::TurnStarted = event {
            self.attempt = UiAttempt::new(1);
            self.ended.clear();
            self.is_in_step = true;
            self.add(json!({"type": "start-step"}));
        } else if let Event::AttemptStarted { attempt, .. } | Event::AttemptVoided { attempt, .. } =
            event
        {
            self.attempt = UiAttempt::new(*attempt);
            self.add(json!({"type": "reset-step"}));
        } else if let Event::ResponseEnded { response } = event {
            self.end_response(response);
        } else if let Event::TurnEnded { .. } = event {
            self.end_step();
        } else if let Event::RunSteered { input, .. } = event {
            let (id, parts) = (chats::steer_id(published.id), user_parts(input));
            self.add(json!({"type": "steering-message", "id": id, "parts": parts}));
        } else if let Event::OfChild { call, event } = event {
            self.add_child(*call, event);
        } else if let Event::RunEnded { .. } = event {
            self.end(event);
        } else if let Event::InputRemoved { .. } = event {
            self.finish("other", &chats::run_names(&self.place));
        } else if self.attempt.is_too_early(event) {
            self.attempt.held.push(event.clone());
        } else {
            self.add_call_event(event);
            self.release();
        }
    }

    fn add_text(&mut self, turn: u32, is_thinking: bool, text: &str) {
        let kind = if is_thinking { "reasoning" } else { "text" };
        let last = self.attempt.blocks.last();
        if !last.is_some_and(|block| block.is_open && block.kind == kind) {
            self.end_block();
            let id = format!("t{turn}a{}.{}", self.attempt.number, self.attempt.blocks.len());
            let block = Block { kind, id, text: String::new(), is_open: true };
            self.chunks.push(block.chunk("start"));
            self.attempt.blocks.push(block);
        }
        if let Some(block) = self.attempt.blocks.last_mut() {
            block.text.push_str(text);
            self.chunks.push(block.delta(text));
        }
    }

    fn end_block(&mut self) {
        if let Some(block) = self.attempt.blocks.last_mut()
            && std::mem::take(&mut block.is_open)
        {
            self.chunks.push(block.chunk("end"));
        }
    }

    fn end_response(&mut self, response: &ResponseSummary) {
        self.end_block();
        for call in &response.calls {
            let is_new = !self.attempt.shown.contains_key(&call.key);
            self.show(call.key, &call.name);
            // After a restart the calls that were kept have lost their parts.
            if let Some(result) = self.ended.get(&call.key).filter(|_| is_new).cloned() {
                self.add_result(&result);
            }
        }
        self.release_all();
    }

    fn end_step(&mut self) {
        self.release_all();
        self.end_block();
        if std::mem::take(&mut self.is_in_step) {
            self.add(json!({"type": "finish-step"}));
        }
    }

    fn release_all(&mut self) {
        self.attempt.next_index = u32::MAX;
        self.release();
    }

    /// Adds the events of the calls that wait no more.
    fn release(&mut self) {
        let is_ready = |attempt: &UiAttempt| {
            attempt.held.iter().position(|event| !attempt.is_too_early(event))
        };
        while let Some(at) = is_ready(&self.attempt) {
            let event = self.attempt.held.remove(at);
            self.add_call_event(&event);
        }
    }

    fn add_call_event(&mut self, event: &Event) {
        if let Event::CallOpened { call } | Event::CallWaiting { call, by_client: false, .. } =
            event
        {
            self.show(call.key, &call.name);
        } else if let Event::ArgumentsReceived { call, offset, text } = event {
            self.add_arguments(call, *offset, text);
        } else if let Event::CallStarted { call, arguments, .. } = event {
            self.show_input(call.key, &call.name, arguments);
        } else if let Event::CallWaiting { call, arguments, by_client: true, .. } = event {
            self.give_to_page(call, arguments);
        } else if let Event::ApprovalAsked { request } = event {
            self.ask(request);
        } else if let Event::ApprovalGiven { call, verdict, message, .. } = event {
            self.add_decision(call.key, *verdict, message.as_deref());
        } else if let Event::CallEnded { result, .. } = event {
            self.ended.insert(result.call.key, (**result).clone());
            self.add_result(result);
        } else if let Event::CallDiscarded { call, .. } = event {
            if self.attempt.shown.remove(&call.key).is_some() {
                self.add(output_error(&call.key.to_string(), "the call was discarded"));
            }
        } else if let Event::CallProgressed { key, text } = event {
            self.add_transient("progress", &json!({"tool_id": key.to_string(), "text": text}));
        } else if let Event::ServiceCallChanged { call, status } = event {
            let (id, name, status) = (call.tool_id(), &call.name, status.as_str());
            let data = json!({"tool_id": id, "tool_name": name, "status": status});
            self.add_transient("service-tool", &data);
        }
    }

    /// Returns the state of a call's part, which is added if the call has none.
    fn show(&mut self, key: CallKey, name: &str) -> &mut ShownCall {
        let UiAttempt { shown, next_index, .. } = &mut self.attempt;
        shown.entry(key).or_insert_with(|| {
            *next_index = (*next_index).max(key.index + 1);
            self.chunks.push(input_start(&key.to_string(), name));
            ShownCall::default()
        })
    }

    fn add_arguments(&mut self, call: &CallLabel, offset: u64, text: &str) {
        let shown = self.show(call.key, &call.name);
        // A page that has joined meanwhile gets them as a whole.
        if !shown.has_input && shown.arguments_bytes == offset {
            shown.arguments_bytes += text.len() as u64;
            let id = call.key.to_string();
            self.add(json!({"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": text}));
        }
    }

    fn show_input(&mut self, key: CallKey, name: &str, input: &Value) {
        if !std::mem::replace(&mut self.show(key, name).has_input, true) {
            self.add(input_available(&key.to_string(), name, input, true));
        }
    }

    /// Notes a call that the page has to run. The page gets its arguments with the end of the stream: it runs the call
    /// when it sees them, whatever becomes of the stream.
    fn give_to_page(&mut self, call: &CallLabel, input: &Arc<Value>) {
        self.show(call.key, &call.name).by_page = Some((call.clone(), Arc::clone(input)));
    }

    fn ask(&mut self, request: &ApprovalRequest) {
        let CallLabel { key, name, .. } = &request.call;
        self.show_input(*key, name, &request.arguments);
        self.add(approval_request(&WaitId::of_request(request, None), request));
        self.show(*key, name).asked = Some(Box::new(request.clone()));
    }

    fn add_decision(&mut self, key: CallKey, verdict: ApprovalVerdict, message: Option<&str>) {
        let shown = self.attempt.shown.get(&key);
        let Some(asked) = shown.and_then(|shown| shown.asked.as_deref()) else { return };
        let id = WaitId::of_request(asked, None).to_string();
        let is_approved = verdict == ApprovalVerdict::Approved;
        let mut chunk =
            json!({"type": "tool-approval-response", "approvalId": id, "approved": is_approved});
        if let Some(message) = message {
            chunk["reason"] = message.into();
        }
        self.add(chunk);
    }

    fn add_result(&mut self, result: &ToolResult) {
        let ToolCall { key, name, arguments, raw, .. } = &result.call;
        let is_empty = arguments.as_object().is_none_or(Map::is_empty);
        let raw = raw.as_deref().filter(|_| is_empty).map(Value::from);
        self.show_input(*key, name, raw.as_ref().unwrap_or(arguments));
        if let Some(given) = result.notes.after.as_ref().or(result.notes.before.as_ref()) {
            self.add_decision(*key, given.verdict, given.message.as_deref());
        }
        let was_asked = self.attempt.shown.get(key).is_some_and(|shown| shown.asked.is_some());
        self.add(output(&key.to_string(), result, was_asked));
        self.end_child(result);
    }

    /// Adds what is known of the child session of a call when the call has ended.
    fn end_child(&mut self, result: &ToolResult) {
        let Some(child) = &result.outcome.child else { return };
        let of_child = format!("{}.", child.session);
        for id in self.of_children.keys().filter(|id| id.starts_with(&of_child)) {
            let text = format!("ended: GET /v1/sessions/{} tells how", child.session);
            self.chunks.push(output_available(id, &text.into()));
        }
        self.of_children.retain(|id, _| !id.starts_with(&of_child));
        let data = json!({
            "session_id": child.session, "run_id": child.run, "tool_id": result.call.key.to_string(),
            "tokens": child.tokens, "tool_calls": child.calls,
        });
        self.add(json!({"type": "data-child", "id": child.session, "data": data}));
    }

    /// Adds an event of a child session, as our own API sends it. A call of the child that waits has a part of its own,
    /// so that the page can decide about it.
    fn add_child(&mut self, parent: CallKey, child: &ChildEvent) {
        for event in child.published().public_as(EventForm::Full) {
            let event: Value = serde_json::from_str(&event.json).unwrap_or_default();
            let (call, session) = (parent.to_string(), &child.session);
            let data = json!({"tool_id": call, "session_id": session, "event": event});
            self.add_transient("child-event", &data);
        }
        if let Event::ApprovalAsked { request } = &child.event {
            let id = WaitId::of_request(request, Some(&child.session));
            self.chunks.extend(child_request(&id, request));
            self.of_children.insert(id.call_id(), Some((id, request.clone())));
        } else if let Event::CallEnded { result, .. } = &child.event {
            let id = call_id(Some(&child.session), result.call.key);
            if self.of_children.remove(&id).is_some() {
                self.add(output(&id, result, true));
            }
        }
    }

    /// Ends the stream until the page has acted.
    fn pause(&mut self) {
        self.hide_blocked_calls();
        for (call, input) in self.attempt.shown.values().filter_map(|shown| shown.by_page.as_ref())
        {
            self.chunks.push(input_available(&call.key.to_string(), &call.name, input, false));
        }
        self.finish("tool-calls", &chats::run_names(&self.place));
    }

    /// Adds the parts of the step again, without those of calls that wait for an earlier one: as long as a call has
    /// neither a result nor a question, a page does not send what its user has decided.
    fn hide_blocked_calls(&mut self) {
        let is_blocked = |(key, shown): (&CallKey, &ShownCall)| {
            !self.ended.contains_key(key) && shown.asked.is_none() && shown.by_page.is_none()
        };
        if !self.attempt.shown.iter().any(is_blocked) {
            return;
        }
        self.add(json!({"type": "reset-step"}));
        for block in &self.attempt.blocks {
            self.chunks.extend([
                block.chunk("start"),
                block.delta(&block.text),
                block.chunk("end"),
            ]);
        }
        for (key, shown) in std::mem::take(&mut self.attempt.shown) {
            if let Some(request) = &shown.asked {
                self.ask(request);
            }
            if let Some((call, input)) = &shown.by_page {
                self.give_to_page(call, input);
            }
            if let Some(result) = self.ended.get(&key).cloned() {
                self.add_result(&result);
            }
        }
        let requests = self.of_children.values().flatten();
        self.chunks.extend(requests.flat_map(|(id, request)| child_request(id, request)));
    }

    fn end(&mut self, event: &Event) {
        let Event::RunEnded { end, output, error, finish_reason, stats, .. } = event else {
            return;
        };
        let is_truncated = finish_reason.as_ref().is_some_and(FinishReason::is_truncated);
        let reason = match end {
            // It goes on when the host is there again.
            RunEnd::Interrupted => return,
            RunEnd::Answered if is_truncated => "length",
            RunEnd::Answered => "stop",
            RunEnd::MaxTurns | RunEnd::Budget | RunEnd::TimedOut => "length",
            RunEnd::Refused => "content-filter",
            RunEnd::Stopped => "interrupted",
            RunEnd::Failed | RunEnd::AllToolsFailed | RunEnd::LoopDetected => "error",
        };
        if let Some(output) = output {
            self.add(json!({"type": "data-output", "id": "output", "data": output}));
        }
        let mut metadata = chats::run_names(&self.place);
        metadata["run_end"] = json!(end);
        metadata["usage"] = chats::usage(stats.usage);
        if let Some(error) = error {
            // Clients read nothing behind the error.
            self.end_step();
            self.add(json!({"type": "message-metadata", "messageMetadata": metadata}));
            let text = format!("{}: {}", error.code, error.message);
            self.add(json!({"type": "error", "errorText": text}));
        }
        self.finish(reason, &metadata);
    }

    fn finish(&mut self, reason: &str, metadata: &Value) {
        self.end_known();
        self.end_step();
        self.add(json!({"type": "finish", "finishReason": reason, "messageMetadata": metadata}));
        self.has_ended = true;
    }

    /// Drops the chunks up to here if the page has them. It has not those that follow.
    fn end_known(&mut self) {
        if std::mem::take(&mut self.is_known_to_page) {
            self.chunks.clear();
        }
    }
}

impl Fold for UiFold {
    fn push(&mut self, published: &PublishedEvent, parts: &mut Vec<FacePart>) {
        if !std::mem::replace(&mut self.has_started, true) {
            let (id, metadata) = (&self.place.run, chats::run_names(&self.place));
            let start = json!({"type": "start", "messageId": id, "messageMetadata": metadata});
            parts.push(chats::part(None, &start));
        }
        // Events without an id are of no record: they come behind all stored ones.
        self.is_known_to_page &= published.id.is_some_and(|id| id.seq <= self.upto);
        self.open_calls.push(published);
        self.add_event(published);
        if self.open_calls.are_at_answers() {
            self.end_known();
        }
        if self.is_known_to_page {
            self.chunks.clear();
        } else if !self.has_ended && self.open_calls.wait_for_client() {
            self.pause();
        }
        parts.extend(self.chunks.drain(..).map(|chunk| chats::part(None, &chunk)));
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }
}

/// Returns the call of this session that an event gives a part.
fn call_of(event: &Event) -> Option<CallKey> {
    if let Event::CallOpened { call }
    | Event::ArgumentsReceived { call, .. }
    | Event::CallStarted { call, .. }
    | Event::CallWaiting { call, .. }
    | Event::CallDiscarded { call, .. } = event
    {
        return Some(call.key);
    }
    if let Event::ApprovalAsked { request } = event {
        return Some(request.call.key);
    }
    if let Event::CallEnded { result, .. } = event { Some(result.call.key) } else { None }
}

fn input_start(id: &str, name: &str) -> Value {
    json!({"type": "tool-input-start", "toolCallId": id, "toolName": name})
}

/// Returns the chunk with the arguments of a call. "Executed by the provider" tells the page that it does not have to run
/// the call.
fn input_available(id: &str, name: &str, input: &Value, is_ours: bool) -> Value {
    json!({
        "type": "tool-input-available", "toolCallId": id, "toolName": name, "input": input,
        "providerExecuted": is_ours,
    })
}

fn output_available(id: &str, output: &Value) -> Value {
    json!({"type": "tool-output-available", "toolCallId": id, "output": output})
}

fn output_error(id: &str, text: &str) -> Value {
    json!({"type": "tool-output-error", "toolCallId": id, "errorText": text})
}

fn approval_request(id: &WaitId, request: &ApprovalRequest) -> Value {
    let mut descriptor = json!({"phase": request.phase});
    if let Some(output) = &request.output_summary {
        descriptor["output_summary"] = output.as_str().into();
    }
    let (approval, call) = (id.to_string(), id.call_id());
    let mut chunk =
        json!({"type": "tool-approval-request", "approvalId": approval, "toolCallId": call});
    if let Some(question) = request.question.as_deref() {
        chunk["reason"] = question.message.as_str().into();
        descriptor["question"] = json!(question.kind);
    }
    chunk["approvalDescriptor"] = descriptor;
    chunk
}

fn child_request(id: &WaitId, request: &ApprovalRequest) -> [Value; 3] {
    let (call, name) = (id.call_id(), &request.call.name);
    [
        input_start(&call, name),
        input_available(&call, name, &request.arguments, true),
        approval_request(id, request),
    ]
}

/// Returns the last part of a call: the structured value of its result, or its parts, or its text.
fn output(id: &str, result: &ToolResult, was_asked: bool) -> Value {
    let outcome = &result.outcome;
    let is_rejected = was_asked && result.notes.rejection().is_some();
    if outcome.status == ToolStatus::Refused && is_rejected {
        return json!({"type": "tool-output-denied", "toolCallId": id});
    }
    if outcome.status != ToolStatus::Ok {
        return output_error(id, &outcome.content);
    }
    let structured = outcome.full.as_ref().and_then(|full| full.structured.as_ref());
    if let Some(value) = structured {
        return output_available(id, value);
    }
    let parts = outcome.parts().map(|parts| json!(parts));
    output_available(id, &parts.unwrap_or_else(|| Value::from(&*outcome.content)))
}

fn user_parts(input: &Content) -> Vec<Value> {
    let parts = input.parts().iter().map(|part| match part {
        ContentPart::Text(text) => json!({"type": "text", "text": text}),
        ContentPart::Image(image) => {
            let media_type = match image {
                Image::Base64 { media_type, .. } => &**media_type,
                Image::Url(_) => "image/*",
            };
            json!({"type": "file", "mediaType": media_type, "url": image.url()})
        }
    });
    parts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::event::samples::{self, published};
    use callsheet_values::types::{RunId, SessionId};

    #[test]
    fn every_event_has_chunks_of_a_known_type() {
        let place = RunPlace {
            session: SessionId::parse("s1").unwrap(),
            run: RunId("run_1".into()),
            seq: Seq(1),
        };
        let mut parts = Vec::new();
        for event in samples::every() {
            let mut fold = UiFold::new(place.clone(), KnownWaits::default());
            fold.push(&published(event), &mut parts);
        }
        for part in parts {
            let chunk: Value = serde_json::from_str(&part.data).unwrap();
            assert!(chunk["type"].is_string() && !part.data.contains('\n'), "{}", part.data);
        }
    }
}
