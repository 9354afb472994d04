//! The fold from the events of a run to the chunks of one answer.
//!
//! An answer ends with the run, or where a client or a person must act: the run goes on in a later answer then. Calls
//! that the client must run are sent when the response is certain, together with the end. Text that was sent cannot be
//! taken back: after an attempt that broke, text is held until its response has ended. What is equal is not sent twice.

use std::collections::{BTreeMap, BTreeSet};

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::super::openai_error::OpenAiError;
use super::super::stream::{FacePart, Fold};
use super::messages::{ChatCall, ChatMessage};
use callsheet_host::runtime::HostError;
use callsheet_values::event::{
    Event, EventId, PublishedEvent, ResponseSummary, VoidedText, WaitingFor,
};
use callsheet_values::types::{
    CallKey, Execution, FinishKind, FinishReason, RunEnd, RunError, Seq, SessionId, ToolCall, Usage,
};

/// Text between the text of an attempt that broke and the different one of the next attempt.
const BEGINS_AGAIN: &str = "\n\n[The answer broke off here. It begins again:]\n\n";

/// The beginning of the ids of calls: clients (agno 3.1.10) replace ids that do not begin so, or have more than 40
/// characters.
const CALL_PREFIX: &str = "call_";

/// Maximum size of an event that is sent beside the answer.
const STATE_BYTES_MAX: usize = 16 * 1024;

/// The settings of an answer. It also depends on the events.
#[derive(Clone, Debug)]
pub(super) struct AnswerSettings {
    /// The id of the completion.
    pub(super) id: String,
    /// The model that the client has named.
    pub(super) model: String,
    pub(super) session: SessionId,
    /// The names of the tools that the client runs.
    pub(super) client_tools: BTreeSet<String>,
    /// True if the answer is JSON by a schema: then all other text is left out.
    pub(super) is_typed: bool,
    /// True if text is sent when its response has ended.
    pub(super) holds_text: bool,
    /// True if the answer is sent in chunks, so that text which was sent cannot be taken back.
    pub(super) streamed: bool,
    pub(super) include_usage: bool,
    /// The address at which a person can decide about calls.
    pub(super) approve_at: String,
    /// Text of an earlier run that the client has not seen.
    pub(super) rest: String,
    /// The tool of a call that waited for a person before the answer began, in an answer that goes on with a run.
    pub(super) waiting_tool: Option<String>,
}

impl AnswerSettings {
    /// Returns the text for a call that waits for a person.
    pub(super) fn notice(&self, tool: &str) -> String {
        let at = &self.approve_at;
        format!("The call of `{tool}` waits for a person. Approve or reject it here: {at}")
    }

    /// Returns the id of a call for the client, which also names the session.
    fn call_id(&self, key: CallKey) -> String {
        format!("{CALL_PREFIX}{key}-{}", self.session)
    }
}

/// Returns the session and the `tool_id` that the id of a call names. In earlier versions it had no prefix.
pub(super) fn parse_call_id(id: &str) -> Option<(SessionId, &str)> {
    let (tool_id, session) = id.strip_prefix(CALL_PREFIX).unwrap_or(id).split_once('-')?;
    tool_id.parse::<CallKey>().ok()?;
    Some((SessionId::parse(session).ok()?, tool_id))
}

/// The end of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum AnswerEnd {
    /// With a finish reason.
    Finished(&'static str),
    Failed(OpenAiError),
}

/// A call of the response that the client must run.
#[derive(Clone, Debug)]
struct PendingCall {
    call: ChatCall,
    state: HandoffState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HandoffState {
    /// It is not known yet whether the client gets it now.
    Unknown,
    /// The client must run it.
    Handed,
    /// It waits for an earlier call, or for a person.
    Behind,
}

/// The chunks of one answer, and the message that they add up to.
#[derive(Debug)]
pub(super) struct ChatFold {
    settings: AnswerSettings,
    /// Unix time in seconds. `None` before the first event.
    created: Option<u64>,
    /// What all chunks begin with.
    head: String,
    /// The text that was sent.
    content: String,
    reasoning: String,
    refusal: Option<String>,
    /// The text of the current attempt.
    attempt: String,
    /// Number of bytes of its thinking.
    attempt_thinking: usize,
    /// The text of the current response that was sent.
    shown: String,
    /// The text of the last response, if the answer is to be JSON by a schema.
    untyped: String,
    /// True after an attempt that broke when some of its text was sent.
    has_broken: bool,
    /// True while no response is being received.
    is_certain: bool,
    /// True if calls of a response may run concurrently.
    is_parallel: bool,
    calls: BTreeMap<CallKey, PendingCall>,
    /// The client's calls of the turn that have ended.
    ended_calls: BTreeSet<CallKey>,
    sent_calls: Vec<ChatCall>,
    /// The calls that wait for a person, with the names of their tools. Those of a child have the key of its call.
    approvals: BTreeMap<CallKey, String>,
    /// True if the answer has ended because a call waits for a person.
    waits_for_people: bool,
    usage: Usage,
    last: EventId,
    end: Option<AnswerEnd>,
}

impl ChatFold {
    pub(super) fn new(settings: AnswerSettings) -> Self {
        Self {
            settings,
            created: None,
            head: String::new(),
            content: String::new(),
            reasoning: String::new(),
            refusal: None,
            attempt: String::new(),
            attempt_thinking: 0,
            shown: String::new(),
            untyped: String::new(),
            has_broken: false,
            is_certain: true,
            is_parallel: false,
            calls: BTreeMap::new(),
            ended_calls: BTreeSet::new(),
            sent_calls: Vec::new(),
            approvals: BTreeMap::new(),
            waits_for_people: false,
            usage: Usage::default(),
            last: EventId::default(),
            end: None,
        }
    }

    /// Adds the chunks of an answer without events: a call of this tool waits for a person.
    pub(super) fn push_notice(
        &mut self,
        tool: &str,
        seq: Seq,
        now: u64,
        parts: &mut Vec<FacePart>,
    ) {
        self.last = EventId { seq, bytes: 0 };
        self.begin(now, parts);
        self.end_with_notice(tool, parts);
    }

    fn end_with_notice(&mut self, tool: &str, parts: &mut Vec<FacePart>) {
        let notice = self.settings.notice(tool);
        self.show(&notice, parts);
        self.waits_for_people = true;
        self.finish("stop", parts);
    }

    /// Returns the last record that the answer shows.
    pub(super) fn last(&self) -> EventId {
        self.last
    }

    /// Returns whether the run waits for a person after this answer.
    pub(super) fn waits_for_people(&self) -> bool {
        self.waits_for_people
    }

    /// Returns the message as the client will send it back, if the answer has ended. Of one that has failed it keeps none.
    pub(super) fn message(&self) -> Option<Option<ChatMessage>> {
        match &self.end {
            Some(AnswerEnd::Finished(_)) => {
                let refusal = self.refusal.as_ref().filter(|_| self.content.is_empty());
                let text = refusal.unwrap_or(&self.content).clone();
                Some(Some(ChatMessage::Assistant { text, calls: self.sent_calls.clone() }))
            }
            // The run goes on later, in the answer to the same request.
            Some(AnswerEnd::Failed(error)) if error.status() == StatusCode::SERVICE_UNAVAILABLE => {
                None
            }
            Some(AnswerEnd::Failed(_)) => Some(None),
            None => None,
        }
    }

    /// Returns the text that was sent.
    pub(super) fn into_text(self) -> String {
        self.content
    }

    /// Returns the plain answer.
    pub(super) fn completion(&self) -> Result<Value, OpenAiError> {
        let finish_reason = match &self.end {
            Some(AnswerEnd::Finished(reason)) => reason,
            Some(AnswerEnd::Failed(error)) => return Err(error.clone()),
            None => return Err(interrupted("the run has not ended")),
        };
        let has_other = self.refusal.is_some() || !self.sent_calls.is_empty();
        let has_text = !self.content.is_empty() || !has_other;
        let mut message = json!({
            "role": "assistant",
            "content": Some(&self.content).filter(|_| has_text),
            "refusal": self.refusal,
        });
        if !self.reasoning.is_empty() {
            message["reasoning_content"] = self.reasoning.as_str().into();
        }
        if !self.sent_calls.is_empty() {
            message["tool_calls"] = self.sent_calls.iter().map(ChatCall::to_json).collect();
        }
        let choice = json!({
            "index": 0, "message": message, "logprobs": null, "finish_reason": finish_reason,
        });
        Ok(json!({
            "id": self.settings.id,
            "object": "chat.completion",
            "created": self.created.unwrap_or_default(),
            "model": self.settings.model,
            "choices": [choice],
            "usage": usage(&self.usage),
            "system_fingerprint": null,
        }))
    }

    /// Returns a chunk: `choices` and what follows them is JSON text.
    fn chunk(&self, choices: &str, members: &str) -> FacePart {
        // As in OpenAI's streams, all other chunks have no usage if one is to come.
        let usage = match self.settings.include_usage && !members.starts_with(",\"usage\"") {
            true => ",\"usage\":null",
            false => "",
        };
        let data = [&self.head, "\"choices\":[", choices, "]", members, usage, "}"].concat();
        FacePart { position: None, id: Some(self.last), name: None, data }
    }

    /// Returns a chunk with more text of this member.
    fn text_delta(&self, member: &str, text: &str) -> FacePart {
        // Cannot fail: a text always has a JSON form.
        let text = serde_json::to_string(text).unwrap_or_default();
        self.chunk(
            &format!("{{\"index\":0,\"delta\":{{\"{member}\":{text}}},\"finish_reason\":null}}"),
            "",
        )
    }

    fn delta(&self, delta: &Value, finish: Option<&str>) -> FacePart {
        let finish = finish.map_or("null".to_owned(), |reason| format!("\"{reason}\""));
        self.chunk(&format!("{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}"), "")
    }

    fn begin(&mut self, timestamp_ms: u64, parts: &mut Vec<FacePart>) {
        if self.created.is_some() {
            return;
        }
        let created = timestamp_ms / 1000;
        let (id, model) = (&self.settings.id, Value::from(self.settings.model.as_str()));
        self.head = format!(
            "{{\"id\":\"{id}\",\"object\":\"chat.completion.chunk\",\"created\":{created},\"model\":{model},"
        );
        self.created = Some(created);
        parts.push(self.delta(&json!({"role": "assistant", "content": ""}), None));
        let rest = std::mem::take(&mut self.settings.rest);
        if !rest.is_empty() {
            self.show(&rest, parts);
            self.shown.clear();
        }
    }

    /// Sends text of the current response. A blank line separates it from that of the response before.
    fn show(&mut self, text: &str, parts: &mut Vec<FacePart>) {
        if text.is_empty() {
            return;
        }
        let is_separate = self.content.is_empty() || !self.shown.is_empty();
        let separator = if is_separate { "" } else { "\n\n" };
        self.shown.push_str(text);
        let text = format!("{separator}{text}");
        self.content.push_str(&text);
        parts.push(self.text_delta("content", &text));
    }

    fn show_thinking(&mut self, text: &str, parts: &mut Vec<FacePart>) {
        self.attempt_thinking += text.len();
        self.reasoning.push_str(text);
        parts.push(self.text_delta("reasoning_content", text));
    }

    fn holds_text(&self) -> bool {
        self.settings.holds_text || self.settings.is_typed || self.has_broken
    }

    /// Sends the text of the response that was held, now that it has ended. A refusal is no part of the text.
    fn show_held(&mut self, refusal: Option<&str>, parts: &mut Vec<FacePart>) {
        let mut text = std::mem::take(&mut self.attempt);
        text.truncate(without_refusal(&text, refusal));
        self.attempt_thinking = 0;
        if self.settings.is_typed && !text.is_empty() {
            self.untyped = text;
        } else if self.holds_text() {
            match text.strip_prefix(&self.shown) {
                Some(rest) => self.show(rest, parts),
                None if self.shown.starts_with(&text) => {}
                None => self.show(&format!("{BEGINS_AGAIN}{text}"), parts),
            }
        }
        self.shown.clear();
    }

    /// Voids the text of an attempt. A replay has it only here.
    fn void(&mut self, voided: Option<&VoidedText>, parts: &mut Vec<FacePart>) {
        let missing = voided.and_then(|voided| voided.text.strip_prefix(&self.shown));
        if let Some(missing) = missing.filter(|_| !self.holds_text()) {
            self.show(missing, parts);
        }
        let thinking = voided.and_then(|voided| voided.thinking.get(self.attempt_thinking..));
        if let Some(missing) = thinking.filter(|missing| !missing.is_empty()) {
            self.show_thinking(missing, parts);
        }
        self.attempt.clear();
        self.attempt_thinking = 0;
        self.has_broken |= !self.shown.is_empty();
        self.is_certain = false;
    }

    fn response_ended(&mut self, response: &ResponseSummary, parts: &mut Vec<FacePart>) {
        self.usage += response.usage;
        self.show_held(response.finish_reason.as_ref().and_then(refusal), parts);
        self.is_certain = true;
        // A call that was handed out early is known already.
        for call in &response.calls {
            let is_known =
                self.calls.contains_key(&call.key) || self.ended_calls.contains(&call.key);
            if self.is_of_client(&call.name) && !is_known {
                self.set_call(call.key, &call.name, call.arguments_text(), HandoffState::Unknown);
            }
        }
        self.calls.retain(|key, _| response.calls.iter().any(|call| call.key == *key));
    }

    fn is_of_client(&self, tool: &str) -> bool {
        self.settings.client_tools.contains(tool)
    }

    fn set_call(&mut self, key: CallKey, name: &str, arguments: String, state: HandoffState) {
        let call = ChatCall { id: self.settings.call_id(key), name: name.to_owned(), arguments };
        self.calls.insert(key, PendingCall { call, state });
    }

    /// Handles the end of a call of the client. In a replay it may be the first that tells that the client had it.
    fn client_call_ended(&mut self, call: &ToolCall, by_client: bool) {
        self.ended_calls.insert(call.key);
        if !by_client {
            self.calls.remove(&call.key);
            return;
        }
        if !self.calls.contains_key(&call.key) {
            return;
        }
        for (key, pending) in &mut self.calls {
            if pending.state == HandoffState::Unknown {
                let is_handed = self.is_parallel || *key == call.key;
                pending.state = if is_handed { HandoffState::Handed } else { HandoffState::Behind };
            }
        }
    }

    /// Ends the answer if the client or a person must act now.
    fn end_if_waiting(&mut self, parts: &mut Vec<FacePart>) {
        let is_undecided = self.calls.values().any(|call| call.state == HandoffState::Unknown);
        if !self.is_certain || is_undecided || self.end.is_some() {
            return;
        }
        let is_handed = |call: &&PendingCall| call.state == HandoffState::Handed;
        let handed: Vec<ChatCall> =
            self.calls.values().filter(is_handed).map(|call| call.call.clone()).collect();
        if !handed.is_empty() {
            self.send_calls(handed, parts);
        } else if let Some(tool) = self.approvals.values().next().cloned() {
            self.end_with_notice(&tool, parts);
        }
    }

    /// Sends calls in the only form that all clients read, and the end.
    fn send_calls(&mut self, calls: Vec<ChatCall>, parts: &mut Vec<FacePart>) {
        for (index, call) in calls.iter().enumerate() {
            let ChatCall { id, name, arguments } = call;
            let function = json!({"name": name, "arguments": ""});
            let head = json!({"index": index, "id": id, "type": "function", "function": function});
            parts.push(self.delta(&json!({"tool_calls": [head]}), None));
            let more = json!({"index": index, "function": {"arguments": arguments}});
            parts.push(self.delta(&json!({"tool_calls": [more]}), None));
        }
        self.sent_calls = calls;
        self.finish("tool_calls", parts);
    }

    fn finish(&mut self, reason: &'static str, parts: &mut Vec<FacePart>) {
        self.end = Some(AnswerEnd::Finished(reason));
        parts.push(self.delta(&json!({}), Some(reason)));
        if self.settings.include_usage {
            parts.push(self.chunk("", &format!(",\"usage\":{}", usage(&self.usage))));
        }
    }

    fn fail_with(&mut self, error: OpenAiError, parts: &mut Vec<FacePart>) {
        let data = error.to_json().to_string();
        parts.push(FacePart { position: None, id: Some(self.last), name: None, data });
        self.end = Some(AnswerEnd::Failed(error));
    }

    fn run_ended(
        &mut self,
        (end, error): (RunEnd, Option<&RunError>),
        output: Option<&Value>,
        finish: Option<&FinishReason>,
        parts: &mut Vec<FacePart>,
    ) {
        let refusal = finish.and_then(refusal).filter(|_| end == RunEnd::Refused);
        self.show_held(refusal, parts);
        if self.settings.is_typed && matches!(end, RunEnd::Answered) {
            // The run has no schema if it was started by a request without one.
            let untyped = std::mem::take(&mut self.untyped);
            let text = output.map_or(untyped, Value::to_string);
            self.show(&text, parts);
        }
        match end {
            RunEnd::Answered => {
                let reason = match finish.map(|finish| finish.kind) {
                    Some(FinishKind::Length) => "length",
                    Some(FinishKind::ContentFilter) => "content_filter",
                    Some(
                        FinishKind::Stop
                        | FinishKind::ToolCalls
                        | FinishKind::Pause
                        | FinishKind::Error
                        | FinishKind::Other,
                    )
                    | None => "stop",
                };
                self.finish(reason, parts);
            }
            // No finish reason says this, and what was sent is not the whole answer.
            RunEnd::Stopped => {
                let status = StatusCode::UNPROCESSABLE_ENTITY;
                let error = OpenAiError::new(status, "run_stopped", "the run was stopped");
                self.fail_with(error, parts);
            }
            RunEnd::MaxTurns | RunEnd::Budget | RunEnd::TimedOut => self.finish("length", parts),
            RunEnd::Refused => {
                let Some(text) = refusal else {
                    // A filter of the service.
                    self.finish("content_filter", parts);
                    return;
                };
                if !self.settings.streamed {
                    self.content.truncate(without_refusal(&self.content, refusal));
                }
                parts.push(self.delta(&json!({"refusal": text}), None));
                self.refusal = Some(text.to_owned());
                self.finish("stop", parts);
            }
            RunEnd::Interrupted => {
                self.fail_with(interrupted("the host was stopped; the run goes on later"), parts);
            }
            RunEnd::Failed | RunEnd::AllToolsFailed | RunEnd::LoopDetected => {
                let (code, message) = match error {
                    Some(error) => (error.code.as_str(), error.message.as_str()),
                    None => (end.as_str(), "the run could not go on"),
                };
                self.fail_with(OpenAiError::of_ended_run(code, message), parts);
            }
        }
    }

    /// Sends the state of a call of the agent's own tools, as our own events have it.
    fn show_state(&self, event: &PublishedEvent, parts: &mut Vec<FacePart>) {
        let states = event.public().filter(|state| state.json.len() <= STATE_BYTES_MAX);
        parts.extend(states.map(|state| {
            let choice = "{\"index\":0,\"delta\":{},\"finish_reason\":null}";
            self.chunk(choice, &format!(",\"callsheet\":{}", state.json))
        }));
    }
}

impl Fold for ChatFold {
    fn push(&mut self, event: &PublishedEvent, parts: &mut Vec<FacePart>) {
        self.last = event.id.unwrap_or(self.last);
        if let Some(tool) = self.settings.waiting_tool.take()
            && !matches!(event.event, Event::RunStarted { .. })
        {
            self.approvals.insert(CallKey { turn: 0, attempt: 0, index: 0 }, tool);
        }
        self.begin(event.timestamp_ms, parts);
        match &event.event {
            Event::TurnStarted => {
                self.is_certain = false;
                self.ended_calls.clear();
            }
            Event::TextReceived { text } => {
                self.is_certain = false;
                self.attempt.push_str(text);
                if !self.holds_text() {
                    self.show(text, parts);
                }
            }
            Event::ThinkingReceived { text } => {
                self.is_certain = false;
                self.show_thinking(text, parts);
            }
            Event::AttemptStarted { voided, .. } | Event::AttemptVoided { voided, .. } => {
                self.void(voided.as_deref(), parts);
            }
            Event::ResponseEnded { response } => self.response_ended(response, parts),
            Event::CallWaiting { call, waiting_for, arguments, by_client, .. }
                if self.is_of_client(&call.name) =>
            {
                let state = match (by_client, waiting_for) {
                    (true, _) => HandoffState::Handed,
                    (false, WaitingFor::Finish | WaitingFor::Hook | WaitingFor::Client) => {
                        HandoffState::Unknown
                    }
                    // In parallel it gets its ticket soon, without the end of another call.
                    (false, WaitingFor::Ticket) if self.is_parallel => HandoffState::Unknown,
                    (
                        false,
                        WaitingFor::Ticket
                        | WaitingFor::Exclusive
                        | WaitingFor::Capacity
                        | WaitingFor::Rate
                        | WaitingFor::Approval
                        | WaitingFor::Server,
                    ) => HandoffState::Behind,
                };
                self.set_call(call.key, &call.name, arguments.to_string(), state);
            }
            Event::CallEnded { result, parallel, .. } => {
                self.is_parallel = *parallel;
                self.approvals.remove(&result.call.key);
                match self.is_of_client(&result.call.name) {
                    true => self.client_call_ended(&result.call, result.notes.by_client),
                    false => self.show_state(event, parts),
                }
            }
            Event::CallDiscarded { call, .. } if self.is_of_client(&call.name) => {
                self.calls.remove(&call.key);
            }
            Event::CallOpened { call } | Event::CallStarted { call, .. }
                if self.is_of_client(&call.name) => {}
            Event::ApprovalAsked { request } => {
                self.approvals.insert(request.call.key, request.call.name.to_string());
                self.show_state(event, parts);
            }
            Event::OfChild { call, event: child } => {
                if let Event::ApprovalAsked { request } = &child.event {
                    self.approvals.insert(*call, request.call.name.to_string());
                } else if let Event::ApprovalGiven { .. } = &child.event {
                    self.approvals.remove(call);
                }
            }
            Event::ApprovalGiven { call, .. } => {
                self.approvals.remove(&call.key);
            }
            Event::CallOpened { .. }
            | Event::CallWaiting { .. }
            | Event::CallStarted { .. }
            | Event::CallProgressed { .. }
            | Event::CallDiscarded { .. }
            | Event::ServiceCallChanged { .. } => self.show_state(event, parts),
            Event::TurnEnded { .. } => {
                self.calls.clear();
                self.approvals.clear();
            }
            Event::RunEnded { end, output, error, finish_reason, .. } => {
                let end = (*end, error.as_ref());
                self.run_ended(end, output.as_deref(), finish_reason.as_ref(), parts);
            }
            Event::InputRemoved { .. } => {
                let message = "the input was taken back before its run began";
                let error =
                    OpenAiError::new(StatusCode::UNPROCESSABLE_ENTITY, "input_removed", message);
                self.fail_with(error, parts);
            }
            Event::RunStarted { execution, .. } => {
                self.is_parallel = *execution != Execution::Sequential;
            }
            Event::InputQueued { .. }
            | Event::RunSteered { .. }
            | Event::RunWaiting { .. }
            | Event::ToolsChanged { .. }
            | Event::ServerReleased { .. }
            | Event::CallDetected { .. }
            | Event::ArgumentsReceived { .. }
            | Event::ArgumentsAnomalyFound { .. }
            | Event::ArgumentsLost { .. }
            | Event::ConflictFound { .. }
            | Event::OutcomeLate { .. }
            | Event::ResultReleased { .. }
            | Event::ResponseDecoded { .. }
            | Event::AttemptEnded { .. }
            | Event::AttemptFellBack { .. }
            | Event::LimitReached { .. }
            | Event::ContextCompacted { .. }
            | Event::HistoryRepaired { .. }
            | Event::ToolSetAside { .. } => {}
        }
        self.end_if_waiting(parts);
    }

    fn has_ended(&self) -> bool {
        self.end.is_some()
    }

    fn idle_part(&self) -> Option<FacePart> {
        self.created.map(|_| self.delta(&json!({}), None))
    }

    fn fail(&mut self, error: &HostError, parts: &mut Vec<FacePart>) -> bool {
        self.fail_with(error.clone().into(), parts);
        true
    }
}

/// Returns the words with which the model has refused to answer.
fn refusal(finish: &FinishReason) -> Option<&str> {
    finish.refusal.as_ref()?.explanation.as_deref()
}

/// Returns the length of a text without the refusal at its end.
fn without_refusal(text: &str, refusal: Option<&str>) -> usize {
    match refusal.and_then(|refusal| text.strip_suffix(refusal)) {
        Some(rest) => rest.trim_end().len(),
        None => text.len(),
    }
}

fn interrupted(message: &str) -> OpenAiError {
    OpenAiError::new(StatusCode::SERVICE_UNAVAILABLE, "interrupted", message)
}

fn usage(usage: &Usage) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total(),
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
    })
}
