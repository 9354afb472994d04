//! The public form of events: names and fields that clients rely on.

mod stats;
mod summary;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use serde_json::{Value, json};

pub use stats::StatsReport;

use super::{
    ApprovalRequest, CallLabel, ChildEvent, Event, PublishedEvent, ResponseSummary, RunStats,
    ServiceCall, ServiceCallStatus, TurnSummary, VoidedText, WaitingFor,
};
use crate::message::{content_bytes, json_bytes};
use crate::types::ResponseEnding;
use crate::types::{
    ApprovalVerdict, Author, CallKey, Content, Execution, FinishKind, FinishReason, Metadata,
    Question, READ_VAR, Reference, RefusalDetails, ResultPart, RunEnd, RunError, RunId, SessionId,
    SummaryFailure, ToolCall, ToolResult, ToolStatus, Usage, WaitPhase, millis,
};
use summary::{input_summary, is_understood, summary};

/// A public event, without its `id`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicEvent {
    /// The type, such as `content_delta`.
    pub kind: &'static str,
    /// One JSON object: `type, session_id, run_id, turn, timestamp` and the type's own fields.
    pub json: String,
}

/// The form of public events.
///
/// ```
/// use callsheet::events::{EventForm, PublishedEvent};
///
/// fn whole_results(published: &PublishedEvent) -> Vec<String> {
///     let events = published.public_as(EventForm::Full);
///     events.filter(|event| event.kind == "tool_result").map(|event| event.json).collect()
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EventForm {
    /// Inputs and outputs of tools are summaries, and the user's input is left out.
    #[default]
    Short,
    /// With the user's input, the arguments and results of calls, and the text of attempts that failed.
    Full,
}

/// The public events of one event. Only the end of a failed run has three.
type EventViews = [Option<PublicEvent>; 3];

impl PublishedEvent {
    /// Returns the public events in order. None for events that only concern the host.
    ///
    /// A text delta takes one allocation unless it has many escapes.
    pub fn public(&self) -> impl Iterator<Item = PublicEvent> + use<> {
        self.public_as(EventForm::Short)
    }

    /// Returns the public events in this form, in order.
    pub fn public_as(&self, form: EventForm) -> impl Iterator<Item = PublicEvent> + use<> {
        self.views(form).into_iter().flatten()
    }

    pub(super) fn views(&self, form: EventForm) -> EventViews {
        let is_full = form == EventForm::Full;
        match &self.event {
            Event::RunStarted { agent, model, execution, input, metadata, reopened } => self
                .single(
                    "stream_start",
                    &StreamStartView {
                        agent,
                        model,
                        execution: AsDisplay(*execution),
                        metadata,
                        reopened: *reopened,
                        input: input.as_ref().filter(|_| is_full),
                    },
                    agent.len() + model.len(),
                ),
            Event::RunSteered { input, author } => {
                self.single("steered", &SteeredView { input, author: author.as_ref() }, 64)
            }
            Event::RunWaiting { waiting_for, servers } => self.single(
                "run_waiting",
                &RunWaitingView { waiting_for: *waiting_for, servers },
                64,
            ),
            Event::ToolsChanged { change } => self.single("tools_changed", &**change, 256),
            Event::ServerReleased { server } => {
                self.single("server_released", &ServerReleasedView { server }, server.len())
            }
            // An empty `thinking` tells clients that a turn has started.
            Event::TurnStarted => self.single("thinking", &TextView { text: "" }, 0),
            Event::ThinkingReceived { text } => {
                self.single("thinking", &TextView { text }, text.len())
            }
            Event::TextReceived { text } => {
                self.single("content_delta", &TextView { text }, text.len())
            }
            Event::CallOpened { call } => self.tool_use(&ToolUseView::new(call, "detected")),
            Event::ArgumentsReceived { call, offset, text } => self.single(
                "tool_input_delta",
                &ToolInputDeltaView {
                    call_index: call.key.index,
                    tool_id: AsDisplay(call.key),
                    offset: *offset,
                    text,
                },
                64 + text.len(),
            ),
            Event::CallWaiting { call, waiting_for, input_summary, arguments, by_client } => self
                .tool_use(&ToolUseView {
                    waiting_for: Some(*waiting_for),
                    input_summary: Some(summary(input_summary)),
                    by: by_client.then_some(CLIENT),
                    input: (is_full || *by_client).then_some(CallInput::Value(arguments)),
                    ..ToolUseView::new(call, "waiting")
                }),
            Event::CallStarted {
                call,
                input_summary,
                arguments,
                early,
                waited: _,
                queued: _,
                known_calls: _,
            } => self.tool_use(&ToolUseView {
                input_summary: Some(summary(input_summary)),
                early: Some(*early),
                input: is_full.then_some(CallInput::Value(arguments)),
                ..ToolUseView::new(call, "running")
            }),
            // It is unknown whether the call had started early.
            Event::CallDiscarded { call, had_result: _ } => {
                self.tool_use(&ToolUseView { early: None, ..ToolUseView::new(call, "discarded") })
            }
            Event::CallEnded { result, parallel: _, early } => {
                self.call_ended(result, *early, form)
            }
            Event::ServiceCallChanged { call, status } => {
                self.single("tool_use", &ServiceToolUseView::new(call, *status), 256)
            }
            Event::CallProgressed { key, text } => self.single(
                "tool_progress",
                &ToolProgressView { tool_id: AsDisplay(*key), text },
                text.len(),
            ),
            Event::TurnEnded { summary } => {
                self.single("turn_end", &TurnEndView::new(summary), 256)
            }
            Event::ResponseEnded { response } => {
                self.single("response_end", &ResponseEndView::new(response, form), 512)
            }
            Event::AttemptStarted { attempt, model, streamed, reason, wait, voided } => {
                let voided = voided.as_deref().filter(|_| is_full);
                let wait_ms = millis(*wait);
                self.attempt(&AttemptView {
                    attempt: *attempt,
                    model,
                    streamed: *streamed,
                    reason,
                    wait_ms,
                    voided,
                })
            }
            Event::AttemptVoided { attempt, model, streamed, reason, voided } => {
                let voided = voided.as_deref().filter(|_| is_full);
                self.attempt(&AttemptView {
                    attempt: *attempt,
                    model,
                    streamed: *streamed,
                    reason,
                    wait_ms: 0,
                    voided,
                })
            }
            Event::LimitReached { limit, value, maximum, action, reason } => self.single(
                "limit_reached",
                &LimitView {
                    limit,
                    value: *value,
                    maximum: *maximum,
                    action,
                    reason: reason.map(SummaryFailure::as_str),
                },
                limit.len() + action.len(),
            ),
            Event::ContextCompacted { kind, tokens_before, tokens_after, upto, messages } => self
                .single(
                    "context_compacted",
                    &ContextCompactedView {
                        kind: kind.as_str(),
                        tokens_before: *tokens_before,
                        tokens_after: *tokens_after,
                        upto: *upto,
                        messages,
                    },
                    96,
                ),
            Event::RunEnded {
                agent: _,
                metadata: _,
                end,
                text,
                output,
                error,
                finish_reason,
                stats,
            } => {
                let finish = finish_reason.as_ref();
                self.run_ended(*end, (text, output.as_deref()), error.as_ref(), finish, stats)
            }
            Event::ApprovalAsked { request } => {
                self.single("tool_approval", &ToolApprovalView::new(request), 512)
            }
            Event::ApprovalGiven { call, phase, verdict, message, author, waited: _ } => {
                let view = ApprovalDecidedView {
                    tool_id: AsDisplay(call.key),
                    tool_name: &call.name,
                    phase: *phase,
                    verdict: *verdict,
                    message: message.as_deref(),
                    author: author.as_ref(),
                };
                self.single(
                    "approval_decided",
                    &view,
                    128 + message.as_ref().map_or(0, String::len),
                )
            }
            Event::OfChild { event, .. } => child_views(event, form),
            Event::InputRemoved { waiting } => {
                self.single("input_removed", &InputRemovedView { waiting: *waiting }, 16)
            }
            Event::ToolSetAside { tool_name, model, reason } => self.single(
                "tool_set_aside",
                &ToolSetAsideView { tool_name, model, reason },
                tool_name.len() + model.len() + reason.len(),
            ),
            Event::CallDetected { .. }
            | Event::InputQueued { .. }
            | Event::ConflictFound { .. }
            | Event::ArgumentsAnomalyFound { .. }
            | Event::ArgumentsLost { .. }
            | Event::ResultReleased { .. }
            | Event::ResponseDecoded { .. }
            | Event::AttemptEnded { .. }
            | Event::AttemptFellBack { .. }
            | Event::OutcomeLate { .. }
            | Event::HistoryRepaired { .. } => [None, None, None],
        }
    }

    fn call_ended(&self, result: &ToolResult, early: bool, form: EventForm) -> EventViews {
        let call = &result.call;
        let is_full = form == EventForm::Full;
        let finished = ToolUseView {
            call_index: call.key.index,
            tool_id: AsDisplay(call.key),
            provider_id: call.provider_id.as_deref(),
            tool_name: &call.name,
            status: "finished",
            waiting_for: None,
            input_summary: Some(Cow::Owned(input_summary(call))),
            early: Some(early),
            by: result.notes.by_client.then_some(CLIENT),
            input: is_full.then(|| CallInput::of(call)),
        };
        let parts = result.outcome.parts().map(ResultContentView::Parts);
        let text = || {
            ResultContentView::Text([TextPartView { kind: "text", text: &result.outcome.content }])
        };
        let content = if is_full { parts.or_else(|| Some(text())) } else { parts };
        let content_bytes = content.as_ref().map_or(0, ResultContentView::bytes);
        let result_view = ToolResultView {
            call_index: call.key.index,
            tool_id: AsDisplay(call.key),
            provider_id: call.provider_id.as_deref(),
            tool_name: &call.name,
            status: result.outcome.status,
            output_summary: summary(&result.outcome.content),
            content,
            reference: (*call.name != *READ_VAR).then_some(AsDisplay(Reference::Result(call.key))),
            duration_ms: millis(result.duration),
            wait_ms: millis(result.wait),
            metadata: result.metadata(),
        };
        // A replay does not know the arguments of a call that was discarded.
        let is_known = !call.arguments.is_null();
        [
            is_known.then(|| self.view("tool_use", &finished, 256)),
            Some(self.view("tool_result", &result_view, 256 + content_bytes)),
            None,
        ]
    }

    fn run_ended(
        &self,
        end: RunEnd,
        (text, output): (&str, Option<&Value>),
        error: Option<&RunError>,
        finish: Option<&FinishReason>,
        stats: &RunStats,
    ) -> EventViews {
        let error_view = error.map(|error| self.view("error", error, error.message.len()));
        let error = error.map(|RunError { code, message, .. }| ErrorView { code, message });
        let stream_end = StreamEndView {
            run_end: end,
            text,
            output,
            finish_reason: finish.map(|finish| finish.kind),
            truncated: finish.is_some_and(FinishReason::is_truncated),
            refusal: finish.and_then(|finish| finish.refusal.as_deref()),
            usage: stats.usage,
            error,
        };
        [
            Some(self.view("session_stats", &session_stats(stats), 192)),
            error_view,
            Some(self.view("stream_end", &stream_end, text.len())),
        ]
    }

    fn tool_use(&self, fields: &ToolUseView<'_>) -> EventViews {
        self.single("tool_use", fields, 256)
    }

    fn attempt(&self, fields: &AttemptView<'_>) -> EventViews {
        let text = fields.voided.map_or(0, |voided| voided.text.len() + voided.thinking.len());
        self.single("attempt", fields, fields.model.len() + fields.reason.len() + text)
    }

    fn single(&self, kind: &'static str, fields: &impl Serialize, bytes: usize) -> EventViews {
        [Some(self.view(kind, fields, bytes)), None, None]
    }

    /// Serialises one object. `bytes` is the estimated size of its own fields.
    #[expect(clippy::expect_used, reason = "structs with named fields always have a JSON form")]
    fn view(&self, kind: &'static str, fields: &impl Serialize, bytes: usize) -> PublicEvent {
        // 192 bytes for the common fields, and one eighth of `bytes` for escapes.
        let mut json = Vec::with_capacity(192 + bytes + bytes / 8);
        let object = EventObject {
            kind,
            session_id: &self.session,
            run_id: Some(&self.run).filter(|run| !run.0.is_empty()),
            turn: self.turn,
            timestamp: self.timestamp_ms,
            fields,
        };
        serde_json::to_writer(&mut json, &object).expect("a struct of plain fields");
        PublicEvent { kind, json: String::from_utf8(json).expect("JSON is UTF-8") }
    }
}

impl Event {
    /// Returns about the number of bytes that the event keeps in memory and its public events in the short form do not
    /// show: the user's input, and the arguments of a response's calls.
    #[must_use]
    pub fn hidden_bytes(&self) -> usize {
        if let Self::RunStarted { input: Some(input), .. } = self {
            return content_bytes(input);
        }
        if let Self::ResponseEnded { response } = self {
            return response.calls.iter().map(|call| json_bytes(&call.arguments)).sum();
        }
        0
    }

    /// Returns whether the two forms of its public events may differ.
    pub(super) fn differs_in_full(&self) -> bool {
        let event = if let Self::OfChild { event, .. } = self { &event.event } else { self };
        matches!(
            event,
            Self::RunStarted { input: Some(_), .. }
                | Self::CallWaiting { .. }
                | Self::CallStarted { .. }
                | Self::CallEnded { .. }
                | Self::ResponseEnded { .. }
                | Self::AttemptStarted { voided: Some(_), .. }
                | Self::AttemptVoided { voided: Some(_), .. }
        )
    }
}

/// Returns the statistics as `session_stats` has them. `stream_end` has the other tokens.
fn session_stats(stats: &RunStats) -> StatsReport {
    StatsReport { cached_tokens: 0, reasoning_tokens: 0, ..StatsReport::from(stats) }
}

/// Returns the public events of a child's event, with the fields that name its parent.
fn child_views(child: &ChildEvent, form: EventForm) -> EventViews {
    let parent = json!({
        "parent_session_id": child.parent_session, "parent_tool_id": child.parent_call.to_string(),
        "agent_path": child.agent_path,
    });
    let parent = parent.to_string();
    // Both texts are non-empty objects, so a comma joins their members.
    let fields = parent.strip_prefix('{').unwrap_or_default();
    child.published().views(form).map(|view| {
        let PublicEvent { kind, mut json } = view?;
        json.pop();
        json.push(',');
        json.push_str(fields);
        Some(PublicEvent { kind, json })
    })
}

#[derive(Serialize)]
struct EventObject<'a, F: Serialize> {
    #[serde(rename = "type")]
    kind: &'static str,
    session_id: &'a SessionId,
    run_id: Option<&'a RunId>,
    turn: u32,
    timestamp: u64,
    #[serde(flatten)]
    fields: &'a F,
}

#[derive(Serialize)]
struct StreamStartView<'a> {
    agent: &'a str,
    model: &'a str,
    execution: AsDisplay<Execution>,
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    metadata: &'a Metadata,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reopened: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<&'a Content>,
}

#[derive(Serialize)]
struct SteeredView<'a> {
    input: &'a Content,
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<&'a Author>,
}

#[derive(Serialize)]
struct ToolInputDeltaView<'a> {
    call_index: u32,
    tool_id: AsDisplay<CallKey>,
    offset: u64,
    text: &'a str,
}

#[derive(Serialize)]
struct RunWaitingView<'a> {
    waiting_for: WaitingFor,
    servers: &'a [String],
}

#[derive(Serialize)]
struct ServerReleasedView<'a> {
    server: &'a str,
}

#[derive(Serialize)]
struct TextView<'a> {
    text: &'a str,
}

/// The value of `by` for a call that the client runs.
const CLIENT: &str = "client";

#[derive(Serialize)]
struct ToolUseView<'a> {
    call_index: u32,
    tool_id: AsDisplay<CallKey>,
    provider_id: Option<&'a str>,
    tool_name: &'a str,
    status: &'static str,
    waiting_for: Option<WaitingFor>,
    input_summary: Option<Cow<'a, str>>,
    early: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'static str>,
    /// All arguments, in the full form or if the client runs the call.
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<CallInput<'a>>,
}

/// The arguments of a call.
#[derive(Serialize)]
#[serde(untagged)]
enum CallInput<'a> {
    Value(&'a Value),
    /// The text as the model wrote it, because it is no object.
    Raw(&'a str),
}

impl<'a> CallInput<'a> {
    fn of(call: &'a ToolCall) -> Self {
        match call.raw.as_deref() {
            Some(raw) if !is_understood(call) => Self::Raw(raw),
            Some(_) | None => Self::Value(&call.arguments),
        }
    }
}

impl<'a> ToolUseView<'a> {
    fn new(call: &'a CallLabel, status: &'static str) -> Self {
        Self {
            call_index: call.key.index,
            tool_id: AsDisplay(call.key),
            provider_id: call.provider_id.as_deref(),
            tool_name: &call.name,
            status,
            waiting_for: None,
            input_summary: None,
            early: Some(false),
            by: None,
            input: None,
        }
    }
}

/// A call that the service runs itself, with the fields of the host's calls.
#[derive(Serialize)]
struct ServiceToolUseView<'a> {
    call_index: Option<u32>,
    tool_id: String,
    provider_id: Option<&'a str>,
    tool_name: &'a str,
    status: &'static str,
    waiting_for: Option<WaitingFor>,
    input_summary: Option<Cow<'a, str>>,
    early: bool,
    by: &'static str,
}

impl<'a> ServiceToolUseView<'a> {
    fn new(call: &'a ServiceCall, status: ServiceCallStatus) -> Self {
        let input = Some(call.input_summary.as_str()).filter(|input| !input.is_empty());
        Self {
            call_index: None,
            tool_id: call.tool_id(),
            provider_id: call.provider_id.as_deref(),
            tool_name: &call.name,
            status: status.as_str(),
            waiting_for: None,
            input_summary: input.map(summary),
            early: false,
            by: "service",
        }
    }
}

#[derive(Serialize)]
struct ToolProgressView<'a> {
    tool_id: AsDisplay<CallKey>,
    text: &'a str,
}

#[derive(Serialize)]
struct ToolApprovalView<'a> {
    call_index: u32,
    tool_id: AsDisplay<CallKey>,
    tool_name: &'a str,
    phase: WaitPhase,
    input: &'a Value,
    arguments_sha256: &'a str,
    output_summary: Option<Cow<'a, str>>,
    #[serde(flatten)]
    question: Option<&'a Question>,
}

#[derive(Serialize)]
struct ApprovalDecidedView<'a> {
    tool_id: AsDisplay<CallKey>,
    tool_name: &'a str,
    phase: WaitPhase,
    verdict: ApprovalVerdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    message: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    author: Option<&'a Author>,
}

impl<'a> ToolApprovalView<'a> {
    fn new(request: &'a ApprovalRequest) -> Self {
        Self {
            call_index: request.call.key.index,
            tool_id: AsDisplay(request.call.key),
            tool_name: &request.call.name,
            phase: request.phase,
            input: &request.arguments,
            arguments_sha256: &request.arguments_sha256,
            output_summary: request.output_summary.as_deref().map(summary),
            question: request.question.as_deref(),
        }
    }
}

#[derive(Serialize)]
struct ToolResultView<'a> {
    call_index: u32,
    tool_id: AsDisplay<CallKey>,
    provider_id: Option<&'a str>,
    tool_name: &'a str,
    status: ToolStatus,
    output_summary: Cow<'a, str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<ResultContentView<'a>>,
    /// The reference of the result. A result of `read_var` is a part of another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    reference: Option<AsDisplay<Reference>>,
    duration_ms: u64,
    wait_ms: u64,
    metadata: Value,
}

/// The content of a result.
#[derive(Serialize)]
#[serde(untagged)]
enum ResultContentView<'a> {
    Parts(&'a [ResultPart]),
    /// The text of a result that is no more than text, in the form of the parts.
    Text([TextPartView<'a>; 1]),
}

#[derive(Serialize)]
struct TextPartView<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    text: &'a str,
}

impl ResultContentView<'_> {
    fn bytes(&self) -> usize {
        match self {
            Self::Parts(parts) => parts.iter().map(ResultPart::bytes).sum(),
            Self::Text([part]) => part.text.len(),
        }
    }
}

#[derive(Serialize)]
struct ResponseEndView<'a> {
    attempt: u32,
    model: &'a str,
    ending: &'static str,
    finish_reason: Option<FinishKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a RefusalDetails>,
    calls: Vec<EndedCallView<'a>>,
    dropped_calls: usize,
    usage: Usage,
}

/// A call that is kept when its response ends.
#[derive(Serialize)]
struct EndedCallView<'a> {
    call_index: u32,
    tool_id: AsDisplay<CallKey>,
    provider_id: Option<&'a str>,
    tool_name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    input: Option<CallInput<'a>>,
}

impl<'a> ResponseEndView<'a> {
    fn new(response: &'a ResponseSummary, form: EventForm) -> Self {
        let calls = response.calls.iter().map(|call| EndedCallView {
            call_index: call.key.index,
            tool_id: AsDisplay(call.key),
            provider_id: call.provider_id.as_deref(),
            tool_name: &call.name,
            input: (form == EventForm::Full).then(|| CallInput::of(call)),
        });
        let finish = response.finish_reason.as_ref();
        Self {
            attempt: response.attempt,
            model: &response.model,
            ending: ending_name(response.ending),
            finish_reason: finish.map(|finish| finish.kind),
            refusal: finish.and_then(|finish| finish.refusal.as_deref()),
            calls: calls.collect(),
            dropped_calls: response.dropped_calls.len(),
            usage: response.usage,
        }
    }
}

fn ending_name(ending: ResponseEnding) -> &'static str {
    match ending {
        ResponseEnding::Complete => "complete",
        ResponseEnding::Length => "length",
        ResponseEnding::Refused => "refused",
        ResponseEnding::BrokenKept => "broken",
        ResponseEnding::TooManyCalls => "too_many_calls",
        ResponseEnding::Cancelled => "cancelled",
    }
}

#[derive(Serialize)]
struct TurnEndView<'a> {
    tool_calls: usize,
    tool_names: &'a [Arc<str>],
    dropped_calls: u32,
    finish_reason: Option<FinishKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a RefusalDetails>,
    usage: Usage,
}

impl<'a> TurnEndView<'a> {
    fn new(turn: &'a TurnSummary) -> Self {
        Self {
            tool_calls: turn.tool_names.len(),
            tool_names: &turn.tool_names,
            dropped_calls: turn.dropped_calls,
            finish_reason: turn.finish_reason.as_ref().map(|reason| reason.kind),
            refusal: turn.finish_reason.as_ref().and_then(|reason| reason.refusal.as_deref()),
            usage: turn.usage,
        }
    }
}

#[derive(Serialize)]
struct AttemptView<'a> {
    attempt: u32,
    model: &'a str,
    streamed: bool,
    reason: &'a str,
    wait_ms: u64,
    /// The text that is void.
    #[serde(skip_serializing_if = "Option::is_none")]
    voided: Option<&'a VoidedText>,
}

#[derive(Serialize)]
struct LimitView<'a> {
    limit: &'a str,
    value: u64,
    maximum: u64,
    action: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'static str>,
}

#[derive(Serialize)]
struct ToolSetAsideView<'a> {
    tool_name: &'a str,
    model: &'a str,
    reason: &'a str,
}

#[derive(Serialize)]
struct InputRemovedView {
    waiting: usize,
}

#[derive(Serialize)]
struct ContextCompactedView<'a> {
    kind: &'static str,
    tokens_before: u64,
    tokens_after: u64,
    upto: u32,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    messages: &'a [String],
}

#[derive(Serialize)]
struct StreamEndView<'a> {
    run_end: RunEnd,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<&'a Value>,
    finish_reason: Option<FinishKind>,
    truncated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<&'a RefusalDetails>,
    usage: Usage,
    error: Option<ErrorView<'a>>,
}

#[derive(Serialize)]
struct ErrorView<'a> {
    code: &'a str,
    message: &'a str,
}

/// Serialises the `Display` form without an intermediate string.
struct AsDisplay<T>(T);

impl<T: fmt::Display> Serialize for AsDisplay<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;
    use crate::event::samples::{self, published};
    use crate::types::{FailureKind, ToolOutcome};

    /// Checks the public events of an event: their types, and their fields without the common ones.
    fn check(event: Event, expect: &[(&str, Value)]) {
        let views: Vec<_> = published(event).public().collect();
        let seen: Vec<(&str, Value)> = views
            .iter()
            .map(|public| (public.kind, serde_json::from_str(&public.json).unwrap()))
            .collect();
        let expect: Vec<(&str, Value)> = expect
            .iter()
            .map(|(kind, fields)| {
                let mut object = json!({
                    "type": kind,
                    "session_id": "s1",
                    "run_id": "run_1",
                    "turn": 3,
                    "timestamp": 1_700_000_000_123_u64,
                });
                let all = object.as_object_mut().unwrap();
                all.extend(fields.as_object().unwrap().clone());
                (*kind, object)
            })
            .collect();
        assert_eq!(seen, expect);
    }

    fn tool_use(status: &str, more: Value) -> (&'static str, Value) {
        let mut fields = json!({
            "call_index": 2,
            "tool_id": "t3a1c2",
            "provider_id": "call_x",
            "tool_name": "clock",
            "status": status,
            "waiting_for": null,
            "input_summary": null,
            "early": false,
        });
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        ("tool_use", fields)
    }

    #[test]
    fn an_object_begins_with_the_common_fields() {
        let views: Vec<_> =
            published(Event::TextReceived { text: "a \"b\"\n é".into() }).public().collect();
        let json = concat!(
            r#"{"type":"content_delta","session_id":"s1","run_id":"run_1","turn":3,"#,
            r#""timestamp":1700000000123,"text":"a \"b\"\n é"}"#
        );
        assert_eq!(views, [PublicEvent { kind: "content_delta", json: json.to_owned() }]);
    }

    #[test]
    fn a_text_delta_fits_its_first_allocation() {
        for text in ["", "word", &"long ".repeat(400)] {
            let views = published(Event::TextReceived { text: text.to_owned() }).public();
            for view in views {
                assert_eq!(view.json.capacity(), 192 + text.len() + text.len() / 8);
            }
        }
    }

    #[test]
    fn every_event_has_the_documented_public_events() {
        let mut events = samples::every().into_iter();
        let mut next = |expect: &[(&str, Value)]| check(events.next().unwrap(), expect);
        next(&[(
            "stream_start",
            json!({"agent": "default", "model": "m", "execution": "parallel:4"}),
        )]);
        next(&[]); // InputQueued
        next(&[("input_removed", json!({"waiting": 0}))]);
        next(&[("steered", json!({"input": "And in Beijing?", "author": "ada"}))]);
        next(&[("run_waiting", json!({"waiting_for": "server", "servers": ["files"]}))]);
        next(&[(
            "tools_changed",
            json!({
                "server": "files",
                "added": ["files__write"],
                "removed": [],
                "changed": ["files__read"],
            }),
        )]);
        next(&[("server_released", json!({"server": "files"}))]);
        next(&[("thinking", json!({"text": ""}))]);
        next(&[("thinking", json!({"text": "Hm."}))]);
        next(&[("content_delta", json!({"text": "Noon \"there\"\n"}))]);
        next(&[tool_use("detected", json!({}))]);
        next(&[]); // CallDetected
        next(&[(
            "tool_input_delta",
            json!({"call_index": 2, "tool_id": "t3a1c2", "offset": 9, "text": "\"Asia"}),
        )]);
        next(&[]); // ArgumentsAnomalyFound
        next(&[]); // ArgumentsLost
        next(&[tool_use("waiting", json!({"waiting_for": "capacity", "input_summary": "{}"}))]);
        let input_summary = "{\"zone\":\"Asia/Tokyo\"}";
        let known = json!({"input_summary": input_summary, "early": true});
        next(&[tool_use("running", known.clone())]);
        next(&[("tool_progress", json!({"tool_id": "t3a1c2", "text": "half"}))]);
        next(&[(
            "tool_approval",
            json!({
                "call_index": 2,
                "tool_id": "t3a1c2",
                "tool_name": "clock",
                "phase": "before",
                "input": {"zone": "Asia/Tokyo"},
                "arguments_sha256": "5f70",
                "output_summary": null,
            }),
        )]);
        next(&[(
            "approval_decided",
            json!({
                "tool_id": "t3a1c2",
                "tool_name": "clock",
                "phase": "before",
                "verdict": "approved",
                "message": "once",
                "author": "ada",
            }),
        )]);
        next(&[]); // ConflictFound
        next(&[tool_use("discarded", json!({"early": null}))]);
        next(&[
            tool_use("finished", known),
            (
                "tool_result",
                json!({
                    "call_index": 2,
                    "tool_id": "t3a1c2",
                    "provider_id": "call_x",
                    "tool_name": "clock",
                    "status": "success",
                    "output_summary": "12:00",
                    "reference": "$VAR_REF{{t3a1c2}}",
                    "duration_ms": 1500,
                    "wait_ms": 20,
                    "metadata": {},
                }),
            ),
        ]);
        next(&[(
            "tool_use",
            json!({
                "call_index": null,
                "tool_id": "t3a1s0",
                "provider_id": "srv_x",
                "tool_name": "web_search",
                "status": "running",
                "waiting_for": null,
                "input_summary": null,
                "early": false,
                "by": "service",
            }),
        )]);
        next(&[]); // OutcomeLate
        next(&[]); // ResultReleased
        let usage = json!({"input_tokens": 10, "output_tokens": 5, "cached_tokens": 2, "reasoning_tokens": 1});
        next(&[(
            "response_end",
            json!({
                "attempt": 1,
                "model": "m",
                "ending": "complete",
                "finish_reason": "tool_calls",
                "calls": [
                    {"call_index": 2, "tool_id": "t3a1c2", "provider_id": "call_x", "tool_name": "clock"},
                ],
                "dropped_calls": 1,
                "usage": usage,
            }),
        )]);
        next(&[]); // ResponseDecoded
        next(&[]); // AttemptEnded, without an error
        next(&[]); // AttemptEnded, with an error
        next(&[(
            "attempt",
            json!({"attempt": 2, "model": "m", "streamed": false, "reason": "it broke", "wait_ms": 250}),
        )]);
        next(&[(
            "attempt",
            json!({"attempt": 3, "model": "m", "streamed": true, "reason": "it broke", "wait_ms": 0}),
        )]);
        next(&[(
            "turn_end",
            json!({
                "tool_calls": 2,
                "tool_names": ["clock", "calculator"],
                "dropped_calls": 1,
                "finish_reason": "tool_calls",
                "usage": {"input_tokens": 10, "output_tokens": 5, "cached_tokens": 2, "reasoning_tokens": 1},
            }),
        )]);
        next(&[(
            "limit_reached",
            json!({"limit": "max_turns", "value": 11, "maximum": 10, "action": "asked for a final answer"}),
        )]);
        next(&[(
            "context_compacted",
            json!({"kind": "cleared", "messages": ["t1a1c0"], "tokens_before": 120_000, "tokens_after": 60_000, "upto": 7}),
        )]);
        next(&[tool_use(
            "detected",
            json!({
                "session_id": "sub_00000000000000000000000000000000",
                "run_id": "run_00000000000000000000000000000000", "turn": 1, "early": false,
                "parent_session_id": "s1", "parent_tool_id": "t3a1c2",
                "agent_path": ["default", "researcher"],
            }),
        )]);
        next(&[]); // HistoryRepaired
        next(&[]); // AttemptFellBack
        next(&[("tool_set_aside", json!({"tool_name": "clock", "model": "m", "reason": "no"}))]);
        let run_usage = json!({"input_tokens": 20, "output_tokens": 9, "cached_tokens": 7, "reasoning_tokens": 4});
        let stats = json!({
            "turns": 2, "tool_calls": 3, "input_tokens": 20, "output_tokens": 9, "duration_ms": 3000,
            "model_ms": 1800, "tools_ms": 1500, "overhead_ms": 2, "overlap_saved_ms": 302,
        });
        next(&[
            ("session_stats", stats.clone()),
            (
                "stream_end",
                json!({
                    "run_end": "answered", "text": "It is noon.", "finish_reason": "stop",
                    "truncated": false, "error": null, "usage": run_usage,
                }),
            ),
        ]);
        let broke = json!({"code": "provider_error", "message": "it broke"});
        next(&[
            ("session_stats", stats),
            ("error", json!({"code": "provider_error", "message": "it broke", "transient": true})),
            (
                "stream_end",
                json!({
                    "run_end": "failed", "text": "It is noon.", "finish_reason": "stop",
                    "truncated": false, "error": broke, "usage": run_usage,
                }),
            ),
        ]);
        assert_eq!(events.next(), None);
    }

    /// Returns the fields that the full form of an event has beyond the short one.
    fn full_fields(event: Event) -> Vec<(&'static str, Value)> {
        let published = published(event);
        let short: Vec<Value> =
            published.public().map(|event| serde_json::from_str(&event.json).unwrap()).collect();
        let full = published.public_as(EventForm::Full).zip(short).map(|(event, short)| {
            let mut fields: Value = serde_json::from_str(&event.json).unwrap();
            fields.as_object_mut().unwrap().retain(|name, value| short.get(name) != Some(value));
            (event.kind, fields)
        });
        full.collect()
    }

    #[test]
    fn the_full_form_adds_inputs_and_outputs() {
        let zone = json!({"zone": "Asia/Tokyo"});
        let mut seen = Vec::new();
        for event in samples::every() {
            let differs = event.differs_in_full();
            let fields = full_fields(event);
            let added = fields.iter().filter(|(_, fields)| *fields != json!({})).cloned();
            let added: Vec<_> = added.collect();
            assert!(differs || added.is_empty(), "{added:?}");
            seen.extend(added);
        }
        let response_calls = json!([{
            "call_index": 2, "tool_id": "t3a1c2", "provider_id": "call_x", "tool_name": "clock", "input": zone,
        }]);
        assert_eq!(
            seen,
            [
                ("stream_start", json!({"input": "And in Tokyo?"})),
                ("tool_use", json!({"input": zone})),
                ("tool_use", json!({"input": zone})),
                ("tool_use", json!({"input": zone})),
                ("tool_result", json!({"content": [{"type": "text", "text": "12:00"}]})),
                ("response_end", json!({"calls": response_calls})),
                (
                    "attempt",
                    json!({"voided": {"text": "It is", "thinking": "Hm.", "omitted_bytes": 3}})
                ),
            ]
        );
        assert!(!samples::every().iter().all(Event::differs_in_full));
    }

    #[test]
    fn the_input_of_a_call_that_is_no_object_is_its_text() {
        let mut result = samples::result();
        result.call.arguments = json!({}).into();
        result.call.raw = Some("{\"zone\": \"As".into());
        let ended = Event::CallEnded { result: Box::new(result), parallel: false, early: false };
        let fields = full_fields(ended);
        assert_eq!(fields[0], ("tool_use", json!({"input": "{\"zone\": \"As"})));
    }

    #[test]
    fn both_forms_share_their_text_if_they_are_equal() {
        let of_text = published(Event::TextReceived { text: "a".into() });
        let (short, full) =
            (of_text.stream_text(EventForm::Short), of_text.stream_text(EventForm::Full));
        assert_eq!((short.as_ptr(), short.len()), (full.as_ptr(), full.len()));
        let ended = published(Event::CallEnded {
            result: Box::new(samples::result()),
            parallel: false,
            early: false,
        });
        assert_ne!(ended.stream_text(EventForm::Short), ended.stream_text(EventForm::Full));
        let child = Arc::new(ChildEvent { event: ended.event, ..samples::child_event() });
        let of_child = published(Event::OfChild { call: samples::key(), event: child });
        let full = of_child.stream_text(EventForm::Full);
        assert!(full.contains(r#""input":{"zone":"Asia/Tokyo"}"#), "{full}");
        assert!(!of_child.stream_text(EventForm::Short).contains(r#""input":{"#));
    }

    #[test]
    fn a_failed_call_has_its_reason() {
        let mut result = samples::result();
        result.call.provider_id = None;
        result.call.arguments = json!({}).into();
        result.call.raw = Some("{\"zone\": \"As".into());
        result.outcome = ToolOutcome::not_ok(
            ToolStatus::Failed,
            FailureKind::CutOffArguments,
            "The arguments end in the middle.",
        );
        result.started = None;
        result.duration = Duration::ZERO;
        let finished = json!({"provider_id": null, "input_summary": "{\"zone\": \"As"});
        check(
            Event::CallEnded { result: Box::new(result), parallel: false, early: false },
            &[
                tool_use("finished", finished),
                (
                    "tool_result",
                    json!({
                        "call_index": 2,
                        "tool_id": "t3a1c2",
                        "provider_id": null,
                        "tool_name": "clock",
                        "status": "error",
                        "output_summary": "The arguments end in the middle.",
                        "reference": "$VAR_REF{{t3a1c2}}",
                        "duration_ms": 0,
                        "wait_ms": 20,
                        "metadata": {"error": true, "kind": "cut_off_arguments"},
                    }),
                ),
            ],
        );
    }
}
