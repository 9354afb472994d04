//! The fold from the events of a run to the chunks of a message of the assistant. The names and members of chunks are
//! those of `uiMessageChunkSchema` in `ai` 7.0.173.
//!
//! A turn is a step. A call has its part from the end of its response on at the latest; before, it has it as soon as its
//! name is known and the calls before it have theirs, so that parts are in call order. Text is numbered by its change with thinking, so that it has the same ids in a replay.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::super::retries::RunPlace;
use super::super::stream::{FacePart, Fold};
use super::super::waits::{KnownWaits, WaitId, WaitingCalls};
use callsheet_host::runtime::HostError;
use callsheet_values::event::{
    ApprovalRequest, CallLabel, ChildEvent, Event, EventForm, PublishedEvent, ResponseSummary,
    RunStats,
};
use callsheet_values::types::{
    ApprovalVerdict, CallKey, Content, ContentPart, FinishReason, Image, Question, RunEnd,
    RunError, Seq, ToolResult, ToolStatus, Usage, VerdictWithMessage,
};

/// The state of the message that the page builds.
#[derive(Debug)]
pub(super) struct UiFold {
    place: RunPlace,
    open_calls: WaitingCalls,
    /// The last record that the page may know, and whether the page has the parts of the events that are read.
    upto: Seq,
    is_known_to_page: bool,
    has_started: bool,
    is_in_step: bool,
    attempt: u32,
    /// The texts and the thinking of the attempt, and whether the last one is open.
    blocks: Vec<Block>,
    is_block_open: bool,
    /// The calls of the step that have a part.
    shown: BTreeMap<CallKey, ShownCall>,
    /// The index of the attempt's next call.
    next_index: u32,
    has_response_ended: bool,
    /// The events of calls that wait for the part of an earlier call. A page that joins gets the ends of calls before the
    /// states of those that are open.
    held: Vec<Event>,
    /// The last parts of the turn's calls that have ended.
    ended: BTreeMap<CallKey, ToolResult>,
    /// The calls of child sessions that have a part and have not ended: those that have waited for an approval, with the
    /// request unless the page has answered it.
    of_children: BTreeMap<String, Option<(WaitId, Box<ApprovalRequest>)>>,
    has_ended: bool,
}

#[derive(Debug)]
struct Block {
    is_thinking: bool,
    id: String,
    text: String,
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
        let upto = known.upto;
        let is_known_to_page = !known.answered.is_empty() || !known.answered_calls.is_empty();
        let of_children = known.decided_children.iter().map(|id| (id.clone(), None)).collect();
        Self {
            place,
            open_calls: WaitingCalls::new(known),
            upto,
            is_known_to_page,
            has_started: false,
            is_in_step: false,
            attempt: 1,
            blocks: Vec::new(),
            is_block_open: false,
            shown: BTreeMap::new(),
            next_index: 0,
            has_response_ended: false,
            held: Vec::new(),
            ended: BTreeMap::new(),
            of_children,
            has_ended: false,
        }
    }

    fn metadata(&self) -> Value {
        json!({"session_id": self.place.session, "run_id": self.place.run})
    }

    fn start(&mut self) -> Value {
        self.has_started = true;
        json!({"type": "start", "messageId": self.place.run, "messageMetadata": self.metadata()})
    }

    fn add_event(&mut self, published: &PublishedEvent, chunks: &mut Chunks) {
        if let Event::OfChild { call, event } = &published.event {
            self.add_child(*call, event, chunks);
        } else if let Event::RunEnded { end, output, error, finish_reason, stats, .. } =
            &published.event
        {
            self.end(
                *end,
                output.as_deref(),
                (error.as_ref(), finish_reason.as_ref()),
                stats,
                chunks,
            );
        } else if let Event::InputRemoved { .. } = &published.event {
            self.finish("other", json!({}), chunks);
        } else if let Some((is_thinking, text)) = published.event.text() {
            self.add_text(published.turn, is_thinking, text, chunks);
        } else {
            self.add_step_event(published, chunks);
            self.add_call_event(&published.event, chunks);
        }
    }

    fn add_step_event(&mut self, published: &PublishedEvent, chunks: &mut Chunks) {
        if let Event::TurnStarted = &published.event {
            self.begin_attempt(1);
            self.ended.clear();
            self.is_in_step = true;
            chunks.add(json!({"type": "start-step"}));
        } else if let Event::AttemptStarted { attempt, .. } | Event::AttemptVoided { attempt, .. } =
            &published.event
        {
            self.begin_attempt(*attempt);
            chunks.add(json!({"type": "reset-step"}));
        } else if let Event::ResponseEnded { response } = &published.event {
            self.end_response(response, chunks);
        } else if let Event::TurnEnded { .. } = &published.event {
            self.end_step(chunks);
        } else if let Event::RunSteered { input, .. } = &published.event {
            let seq = published.id.map_or(Seq(0), |id| id.seq);
            let parts: Vec<Value> = user_parts(input).collect();
            chunks.add(
                json!({"type": "steering-message", "id": format!("steer_{seq}"), "parts": parts}),
            );
        }
    }

    fn begin_attempt(&mut self, attempt: u32) {
        self.attempt = attempt;
        (self.blocks, self.is_block_open) = (Vec::new(), false);
        self.shown.clear();
        (self.next_index, self.has_response_ended) = (0, false);
        self.held.clear();
    }

    fn add_text(&mut self, turn: u32, is_thinking: bool, text: &str, chunks: &mut Chunks) {
        if self.blocks.last().is_some_and(|block| block.is_thinking != is_thinking) {
            self.end_block(chunks);
        }
        if !std::mem::replace(&mut self.is_block_open, true) {
            let id = format!("t{turn}a{}.{}", self.attempt, self.blocks.len());
            chunks.add(json!({"type": format!("{}-start", block_kind(is_thinking)), "id": id}));
            self.blocks.push(Block { is_thinking, id, text: String::new() });
        }
        if let Some(block) = self.blocks.last_mut() {
            block.text.push_str(text);
            chunks.add(block_delta(block, text));
        }
    }

    fn end_block(&mut self, chunks: &mut Chunks) {
        let block = self.blocks.last().filter(|_| self.is_block_open);
        if let Some(Block { is_thinking, id, .. }) = block {
            chunks.add(json!({"type": format!("{}-end", block_kind(*is_thinking)), "id": id}));
        }
        self.is_block_open = false;
    }

    /// Adds the parts of the step again, without those of calls that wait for an earlier one: as long as a call has
    /// neither a result nor a question, a page does not send what its user has decided.
    fn hide_blocked_calls(&mut self, chunks: &mut Chunks) {
        let is_blocked = |(key, shown): (&CallKey, &ShownCall)| {
            !self.ended.contains_key(key) && shown.asked.is_none() && shown.by_page.is_none()
        };
        if !self.shown.iter().any(is_blocked) {
            return;
        }
        chunks.add(json!({"type": "reset-step"}));
        for block in &self.blocks {
            let (kind, id) = (block_kind(block.is_thinking), &block.id);
            chunks.add(json!({"type": format!("{kind}-start"), "id": id}));
            chunks.add(block_delta(block, &block.text));
            chunks.add(json!({"type": format!("{kind}-end"), "id": id}));
        }
        for (key, shown) in std::mem::take(&mut self.shown) {
            if let Some(request) = &shown.asked {
                self.ask(request, chunks);
            }
            if let Some((call, input)) = &shown.by_page {
                self.give_to_page(call, input, chunks);
            }
            if let Some(result) = self.ended.get(&key).cloned() {
                self.add_result(&result, chunks);
            }
        }
        for (id, request) in self.of_children.values().flatten() {
            add_child_request(id, request, chunks);
        }
    }

    fn end_response(&mut self, response: &ResponseSummary, chunks: &mut Chunks) {
        self.end_block(chunks);
        for call in &response.calls {
            let is_new = !self.shown.contains_key(&call.key);
            self.show(call.key, &call.name, chunks);
            // After a restart the calls that were kept have lost their parts.
            if let Some(result) = self.ended.get(&call.key).filter(|_| is_new).cloned() {
                self.add_result(&result, chunks);
            }
        }
        self.has_response_ended = true;
        self.release(chunks);
    }

    fn end_step(&mut self, chunks: &mut Chunks) {
        self.has_response_ended = true;
        self.release(chunks);
        self.end_block(chunks);
        if std::mem::take(&mut self.is_in_step) {
            chunks.add(json!({"type": "finish-step"}));
        }
    }

    fn add_call_event(&mut self, event: &Event, chunks: &mut Chunks) {
        if call_of(event).is_some_and(|key| self.is_too_early(key)) {
            self.held.push(event.clone());
            return;
        }
        self.show_call_event(event, chunks);
        self.release(chunks);
    }

    /// Returns whether an earlier call of the response in progress has no part yet.
    fn is_too_early(&self, key: CallKey) -> bool {
        let is_of_attempt = key.attempt == self.attempt && !self.has_response_ended;
        is_of_attempt && key.index > self.next_index
    }

    /// Adds the events of the calls that wait no more.
    fn release(&mut self, chunks: &mut Chunks) {
        let is_ready =
            |fold: &Self, event: &Event| call_of(event).is_none_or(|key| !fold.is_too_early(key));
        while let Some(at) = self.held.iter().position(|event| is_ready(self, event)) {
            let event = self.held.remove(at);
            self.show_call_event(&event, chunks);
        }
    }

    fn show_call_event(&mut self, event: &Event, chunks: &mut Chunks) {
        if let Event::CallOpened { call } | Event::CallWaiting { call, by_client: false, .. } =
            event
        {
            self.show(call.key, &call.name, chunks);
        } else if let Event::ArgumentsReceived { call, offset, text } = event {
            self.add_arguments(call, *offset, text, chunks);
        } else if let Event::CallStarted { call, arguments, .. } = event {
            self.show_input(call, arguments, chunks);
        } else if let Event::CallWaiting { call, arguments, by_client: true, .. } = event {
            self.give_to_page(call, arguments, chunks);
        } else if let Event::ApprovalAsked { request } = event {
            self.ask(request, chunks);
        } else if let Event::ApprovalGiven { call, verdict, message, .. } = event {
            let given = VerdictWithMessage { verdict: *verdict, message: message.clone() };
            self.add_decision(call.key, &given, chunks);
        } else if let Event::CallEnded { result, .. } = event {
            self.ended.insert(result.call.key, (**result).clone());
            self.add_result(result, chunks);
        } else if let Event::CallDiscarded { call, .. } = event {
            if self.shown.remove(&call.key).is_some() {
                let id = call.key.to_string();
                let text = "the call was discarded";
                chunks
                    .add(json!({"type": "tool-output-error", "toolCallId": id, "errorText": text}));
            }
        } else if let Event::CallProgressed { key, text } = event {
            let data = json!({"tool_id": key.to_string(), "text": text});
            chunks.add(json!({"type": "data-progress", "data": data, "transient": true}));
        } else if let Event::ServiceCallChanged { call, status } = event {
            let data = json!({
                "tool_id": call.tool_id(), "tool_name": call.name, "status": status.as_str(),
            });
            chunks.add(json!({"type": "data-service-tool", "data": data, "transient": true}));
        }
    }

    /// Adds the part of a call, if it has none.
    fn show(&mut self, key: CallKey, name: &str, chunks: &mut Chunks) {
        if self.shown.contains_key(&key) {
            return;
        }
        self.shown.insert(key, ShownCall::default());
        self.next_index = self.next_index.max(key.index + 1);
        let id = key.to_string();
        chunks.add(json!({"type": "tool-input-start", "toolCallId": id, "toolName": name}));
    }

    fn add_arguments(&mut self, call: &CallLabel, offset: u64, text: &str, chunks: &mut Chunks) {
        self.show(call.key, &call.name, chunks);
        let Some(shown) = self.shown.get_mut(&call.key) else { return };
        // A page that has joined meanwhile gets them as a whole.
        if shown.has_input || shown.arguments_bytes != offset {
            return;
        }
        shown.arguments_bytes += text.len() as u64;
        let id = call.key.to_string();
        chunks.add(json!({"type": "tool-input-delta", "toolCallId": id, "inputTextDelta": text}));
    }

    /// Adds the arguments of a call. "Executed by the provider" tells the page that it does not have to run the call.
    fn show_input(&mut self, call: &CallLabel, input: &Value, chunks: &mut Chunks) {
        self.show(call.key, &call.name, chunks);
        let Some(shown) = self.shown.get_mut(&call.key) else { return };
        if !std::mem::replace(&mut shown.has_input, true) {
            chunks.add(input_available(&call.key.to_string(), &call.name, input, true));
        }
    }

    /// Notes a call that the page has to run. The page gets its arguments with the end of the stream: it runs the call
    /// when it sees them, whatever becomes of the stream.
    fn give_to_page(&mut self, call: &CallLabel, input: &Arc<Value>, chunks: &mut Chunks) {
        self.show(call.key, &call.name, chunks);
        if let Some(shown) = self.shown.get_mut(&call.key) {
            shown.by_page = Some((call.clone(), Arc::clone(input)));
        }
    }

    /// Ends the stream until the page has acted.
    fn pause(&mut self, chunks: &mut Chunks) {
        self.hide_blocked_calls(chunks);
        for (call, input) in self.shown.values().filter_map(|shown| shown.by_page.as_ref()) {
            chunks.add(input_available(&call.key.to_string(), &call.name, input, false));
        }
        self.finish("tool-calls", json!({}), chunks);
    }

    fn ask(&mut self, request: &ApprovalRequest, chunks: &mut Chunks) {
        self.show_input(&request.call, &request.arguments, chunks);
        chunks.add(approval_request(&WaitId::of_request(request, None), request));
        if let Some(shown) = self.shown.get_mut(&request.call.key) {
            shown.asked = Some(Box::new(request.clone()));
        }
    }

    fn add_decision(&mut self, key: CallKey, given: &VerdictWithMessage, chunks: &mut Chunks) {
        let asked = self.shown.get(&key).and_then(|shown| shown.asked.as_deref());
        let Some(asked) = asked else { return };
        let id = WaitId::of_request(asked, None).to_string();
        let mut chunk = json!({
            "type": "tool-approval-response",
            "approvalId": id,
            "approved": given.verdict == ApprovalVerdict::Approved,
        });
        if let Some(message) = &given.message {
            chunk["reason"] = message.as_str().into();
        }
        chunks.add(chunk);
    }

    fn add_result(&mut self, result: &ToolResult, chunks: &mut Chunks) {
        let (key, id) = (result.call.key, result.call.key.to_string());
        let label = CallLabel { key, provider_id: None, name: result.call.name.clone() };
        let raw = result.call.raw.as_deref().map(Value::from);
        let is_empty = result.call.arguments.as_object().is_none_or(serde_json::Map::is_empty);
        let input = raw.filter(|_| is_empty);
        let input = input.as_ref().unwrap_or(&result.call.arguments);
        self.show_input(&label, input, chunks);
        let given = [&result.notes.before, &result.notes.after].into_iter().flatten().last();
        if let Some(given) = given {
            self.add_decision(key, given, chunks);
        }
        let was_asked = self.shown.get(&key).is_some_and(|shown| shown.asked.is_some());
        chunks.add(ended(&id, result, was_asked));
        self.end_child(result, chunks);
    }

    /// Adds what is known of the child session of a call when the call has ended.
    fn end_child(&mut self, result: &ToolResult, chunks: &mut Chunks) {
        let Some(child) = &result.outcome.child else { return };
        let of_child = format!("{}.", child.session);
        self.of_children.retain(|id, _| {
            let is_open = !id.starts_with(&of_child);
            if !is_open {
                let text = format!("ended: GET /v1/sessions/{} tells how", child.session);
                chunks.add(
                    json!({"type": "tool-output-available", "toolCallId": id, "output": text}),
                );
            }
            is_open
        });
        let data = json!({
            "session_id": child.session, "run_id": child.run, "tool_id": result.call.key.to_string(),
            "tokens": child.tokens, "tool_calls": child.calls,
        });
        chunks.add(json!({"type": "data-child", "id": child.session, "data": data}));
    }

    /// Adds an event of a child session, as our own API sends it. A call of the child that waits has a part of its own,
    /// so that the page can decide about it.
    fn add_child(&mut self, parent: CallKey, child: &ChildEvent, chunks: &mut Chunks) {
        for event in child.published().public_as(EventForm::Full) {
            let data: Value = serde_json::from_str(&event.json).unwrap_or_default();
            let data =
                json!({"tool_id": parent.to_string(), "session_id": child.session, "event": data});
            chunks.add(json!({"type": "data-child-event", "data": data, "transient": true}));
        }
        if let Event::ApprovalAsked { request } = &child.event {
            let id = WaitId::of_request(request, Some(&child.session));
            add_child_request(&id, request, chunks);
            self.of_children.insert(id.call_id(), Some((id, request.clone())));
        } else if let Event::CallEnded { result, .. } = &child.event {
            let id = format!("{}.{}", child.session, result.call.key);
            if self.of_children.remove(&id).is_some() {
                chunks.add(ended(&id, result, true));
            }
        }
    }

    fn end(
        &mut self,
        end: RunEnd,
        output: Option<&Value>,
        (error, finish): (Option<&RunError>, Option<&FinishReason>),
        stats: &RunStats,
        chunks: &mut Chunks,
    ) {
        // It goes on when the host is there again.
        if end == RunEnd::Interrupted {
            return;
        }
        if let Some(output) = output {
            chunks.add(json!({"type": "data-output", "id": "output", "data": output}));
        }
        let of_run = json!({"run_end": end, "usage": usage(stats.usage)});
        if let Some(error) = error {
            // Clients read nothing behind the error.
            self.end_step(chunks);
            let metadata = merged(self.metadata(), &of_run);
            chunks.add(json!({"type": "message-metadata", "messageMetadata": metadata}));
            let text = format!("{}: {}", error.code, error.message);
            chunks.add(json!({"type": "error", "errorText": text}));
        }
        let reason = match end {
            RunEnd::Answered if finish.is_some_and(FinishReason::is_truncated) => "length",
            RunEnd::Answered => "stop",
            RunEnd::MaxTurns | RunEnd::Budget | RunEnd::TimedOut => "length",
            RunEnd::Refused => "content-filter",
            RunEnd::Stopped | RunEnd::Interrupted => "interrupted",
            RunEnd::Failed | RunEnd::AllToolsFailed | RunEnd::LoopDetected => "error",
        };
        self.finish(reason, of_run, chunks);
    }

    fn finish(&mut self, reason: &str, more: Value, chunks: &mut Chunks) {
        chunks.is_muted = false;
        self.end_step(chunks);
        let metadata = merged(self.metadata(), &more);
        chunks.add(json!({"type": "finish", "finishReason": reason, "messageMetadata": metadata}));
        self.has_ended = true;
    }

    /// Returns whether the page has the parts of this event.
    fn is_known(&mut self, published: &PublishedEvent) -> bool {
        if !self.is_known_to_page {
            return false;
        }
        // What has no id is a state of now, which comes after all that is stored.
        self.is_known_to_page = published.id.is_some_and(|id| id.seq <= self.upto);
        self.is_known_to_page
    }
}

impl Fold for UiFold {
    fn push(&mut self, published: &PublishedEvent, parts: &mut Vec<FacePart>) {
        let mut chunks = Chunks { parts, is_muted: false };
        if !self.has_started {
            let start = self.start();
            chunks.add(start);
        }
        chunks.is_muted = self.is_known(published);
        self.open_calls.push(published);
        self.add_event(published, &mut chunks);
        if self.is_known_to_page && self.open_calls.are_at_answers() {
            self.is_known_to_page = false;
            chunks.is_muted = false;
        }
        if !self.has_ended && self.open_calls.wait_for_client() && !self.is_known_to_page {
            self.pause(&mut chunks);
        }
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn idle_part(&self) -> Option<FacePart> {
        None
    }

    fn fail(&mut self, _: &HostError, _: &mut Vec<FacePart>) -> bool {
        false
    }
}

/// The chunks of an event.
struct Chunks<'a> {
    parts: &'a mut Vec<FacePart>,
    /// True if the page has them.
    is_muted: bool,
}

impl Chunks<'_> {
    fn add(&mut self, chunk: Value) {
        if !self.is_muted {
            self.parts.push(FacePart {
                position: None,
                id: None,
                name: None,
                data: chunk.to_string(),
            });
        }
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

fn block_kind(is_thinking: bool) -> &'static str {
    if is_thinking { "reasoning" } else { "text" }
}

fn block_delta(block: &Block, text: &str) -> Value {
    let kind = block_kind(block.is_thinking);
    json!({"type": format!("{kind}-delta"), "id": block.id, "delta": text})
}

fn input_available(id: &str, name: &str, input: &Value, is_ours: bool) -> Value {
    json!({
        "type": "tool-input-available", "toolCallId": id, "toolName": name, "input": input,
        "providerExecuted": is_ours,
    })
}

fn approval_request(id: &WaitId, request: &ApprovalRequest) -> Value {
    let mut descriptor = json!({"phase": request.phase});
    if let Some(output) = &request.output_summary {
        descriptor["output_summary"] = output.as_str().into();
    }
    let mut chunk = json!({
        "type": "tool-approval-request",
        "approvalId": id.to_string(),
        "toolCallId": id.call_id(),
    });
    if let Some(question) = request.question.as_deref() {
        let Question { message, kind, .. } = question;
        chunk["reason"] = message.as_str().into();
        descriptor["question"] = json!(kind);
    }
    chunk["approvalDescriptor"] = descriptor;
    chunk
}

fn add_child_request(id: &WaitId, request: &ApprovalRequest, chunks: &mut Chunks) {
    let (call, name) = (id.call_id(), &request.call.name);
    chunks.add(json!({"type": "tool-input-start", "toolCallId": call, "toolName": name}));
    chunks.add(input_available(&call, name, &request.arguments, true));
    chunks.add(approval_request(id, request));
}

/// Returns the last part of a call.
fn ended(id: &str, result: &ToolResult, was_asked: bool) -> Value {
    let is_denied = result.outcome.status == ToolStatus::Refused
        && was_asked
        && result.notes.rejection().is_some();
    match result.outcome.status {
        _ if is_denied => json!({"type": "tool-output-denied", "toolCallId": id}),
        ToolStatus::Ok => {
            json!({"type": "tool-output-available", "toolCallId": id, "output": output(result)})
        }
        ToolStatus::Failed
        | ToolStatus::TimedOut
        | ToolStatus::Cancelled
        | ToolStatus::Refused
        | ToolStatus::Unknown => {
            let text = &*result.outcome.content;
            json!({"type": "tool-output-error", "toolCallId": id, "errorText": text})
        }
    }
}

/// Returns the structured value of a result, or its parts, or its text.
fn output(result: &ToolResult) -> Value {
    let structured = result.outcome.full.as_ref().and_then(|full| full.structured.as_ref());
    if let Some(value) = structured {
        return value.clone();
    }
    match result.outcome.parts() {
        Some(parts) => json!(parts),
        None => Value::from(&*result.outcome.content),
    }
}

fn user_parts(input: &Content) -> impl Iterator<Item = Value> {
    input.parts().iter().map(|part| match part {
        ContentPart::Text(text) => json!({"type": "text", "text": text}),
        ContentPart::Image(image) => {
            let media_type = match image {
                Image::Base64 { media_type, .. } => media_type.to_string(),
                Image::Url(_) => "image/*".to_owned(),
            };
            json!({"type": "file", "mediaType": media_type, "url": image.url()})
        }
    })
}

fn usage(usage: Usage) -> Value {
    json!({
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "cachedInputTokens": usage.cached_tokens,
        "reasoningTokens": usage.reasoning_tokens,
    })
}

/// Returns an object with the members of both.
fn merged(mut object: Value, more: &Value) -> Value {
    if let (Some(members), Some(more)) = (object.as_object_mut(), more.as_object()) {
        members.extend(more.clone());
    }
    object
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
