//! The fold from the events of a run to the events of AG-UI 1.0. What its verifier demands: `RUN_STARTED` first, no
//! content without its start, nothing open at `RUN_FINISHED`, nothing behind `RUN_ERROR`, no null for what is absent.
//!
//! The protocol cannot take a call back, so calls are sent when their response has ended, and results in call order: a
//! client keeps them in the order of arrival. A message of an attempt that broke is dropped by a snapshot without it. A
//! client that joins gets what there is as a snapshot, and then the rest as it happens.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::super::retries::RunPlace;
use super::super::stream::{FacePart, Fold};
use super::super::waits::{KnownWaits, WaitId, WaitingCalls};
use super::messages::{self, MessageIds};
use callsheet_host::runtime::HostError;
use callsheet_values::event::{
    ApprovalRequest, ChildEvent, Event, EventId, PublishedEvent, ResponseSummary, RunStats,
};
use callsheet_values::types::{
    CallKey, Content, Metadata, QuestionKind, ResultPart, RunEnd, RunError, Seq, SessionId,
    ToolCall, ToolResult, ToolStatus, Usage, WaitPhase,
};

/// The state of a thread at the beginning of an answer.
#[derive(Debug)]
pub(super) struct Beginning {
    /// The run's id for the client.
    pub(super) run_id: String,
    pub(super) place: RunPlace,
    /// The messages before the run.
    pub(super) messages: Vec<Value>,
    /// The ids of the client's messages that are not among them.
    pub(super) ids: MessageIds,
    /// The session's variables.
    pub(super) state: Map<String, Value>,
    pub(super) known: KnownWaits,
    /// True if the client joins the run: then the events up to `known.upto` are told by a snapshot.
    pub(super) joins: bool,
}

/// The state of the thread at the client.
#[derive(Debug)]
pub(super) struct AguiFold {
    run_id: String,
    place: RunPlace,
    messages: Vec<Value>,
    ids: MessageIds,
    state: Map<String, Value>,
    open_calls: WaitingCalls,
    upto: Seq,
    /// False while events are read that the snapshot will have.
    is_live: bool,
    has_started: bool,
    step: Option<String>,
    response: Response,
    /// The calls of the turn in order, with their results, and the number of those that were released.
    calls: Vec<ToolCall>,
    results: BTreeMap<CallKey, ToolResult>,
    released: usize,
    /// The user's messages that stand behind the turn.
    steers: Vec<(String, Content)>,
    /// The approvals and questions that are open: of the calls of this session, and of its children.
    interrupts: BTreeMap<String, Value>,
    /// The child sessions that are open, with the calls that they are below.
    children: BTreeMap<String, CallKey>,
    /// The child sessions that have ended. A client must not see them again.
    ended_children: BTreeSet<String>,
    has_ended: bool,
}

/// The response in progress.
#[derive(Debug, Default)]
struct Response {
    id: String,
    text: String,
    thinking: String,
    is_text_open: bool,
    is_thinking_open: bool,
}

impl AguiFold {
    pub(super) fn new(beginning: Beginning) -> Self {
        let Beginning { run_id, place, messages, ids, state, known, joins } = beginning;
        Self {
            run_id,
            place,
            messages,
            ids,
            state,
            upto: known.upto,
            open_calls: WaitingCalls::new(known),
            is_live: !joins,
            has_started: false,
            step: None,
            response: Response::default(),
            calls: Vec::new(),
            results: BTreeMap::new(),
            released: 0,
            steers: Vec::new(),
            interrupts: BTreeMap::new(),
            children: BTreeMap::new(),
            ended_children: BTreeSet::new(),
            has_ended: false,
        }
    }

    fn start(&mut self, out: &mut Out) {
        self.has_started = true;
        out.always(json!({
            "type": "RUN_STARTED", "threadId": self.place.session, "runId": self.run_id,
            "protocolVersion": "1.0",
            "metadata": {"session_id": self.place.session, "run_id": self.place.run},
        }));
        if self.is_live {
            out.add(json!({"type": "STATE_SNAPSHOT", "snapshot": self.state}));
        }
    }

    /// Tells the client that has joined what there is, and opens again what is open.
    fn go_live(&mut self, out: &mut Out) {
        self.is_live = true;
        out.is_muted = false;
        out.add(json!({"type": "STATE_SNAPSHOT", "snapshot": self.state}));
        self.snapshot(out);
        if let Some(step) = &self.step {
            out.add(json!({"type": "STEP_STARTED", "stepName": step}));
        }
        let Response { id, text, thinking, is_text_open, is_thinking_open } = &self.response;
        if *is_thinking_open {
            out.begin_thinking(id);
            out.think(id, thinking);
        }
        if *is_text_open {
            out.begin_text(id, "assistant");
            out.add_text(id, text);
        }
    }

    fn snapshot(&self, out: &mut Out) {
        out.add(json!({"type": "MESSAGES_SNAPSHOT", "messages": self.messages}));
    }

    fn add_event(&mut self, published: &PublishedEvent, out: &mut Out) {
        if let Event::RunStarted { input: Some(input), metadata, .. } = &published.event {
            let id = self.ids.find("user", &input.text());
            let id = id.unwrap_or_else(|| self.input_id(metadata));
            self.messages.push(messages::user(&id, input));
        } else if let Event::TurnStarted = &published.event {
            self.begin_turn(published.turn, out);
        } else if let Event::AttemptStarted { attempt, .. } | Event::AttemptVoided { attempt, .. } =
            &published.event
        {
            self.begin_attempt(published.turn, *attempt, out);
        } else if let Some((is_thinking, text)) = published.event.text() {
            self.add_text(is_thinking, text, out);
        } else if let Event::ResponseEnded { response } = &published.event {
            self.end_response(response, out);
        } else if let Event::TurnEnded { .. } = &published.event {
            self.end_turn(out);
        } else if let Event::RunSteered { input, .. } = &published.event {
            let seq = published.id.map_or(Seq(0), |id| id.seq);
            self.steers.push((messages::steer_id(seq), input.clone()));
        } else if let Event::RunEnded { end, output, error, stats, .. } = &published.event {
            self.end(*end, output.as_deref(), error.as_ref(), stats, out);
        } else if let Event::InputRemoved { .. } = &published.event {
            self.finish(json!({"outcome": {"type": "cancelled"}}), out);
        } else {
            self.add_call_event(&published.event, out);
        }
    }

    fn input_id(&self, metadata: &Metadata) -> String {
        let id = messages::input_id(&self.place.run, metadata);
        match self.messages.iter().any(|message| message["id"] == id) {
            true => messages::own_input_id(&self.place.run),
            false => id,
        }
    }

    fn begin_turn(&mut self, turn: u32, out: &mut Out) {
        self.response = Response { id: format!("t{turn}a1"), ..Response::default() };
        (self.calls, self.released) = (Vec::new(), 0);
        self.results.clear();
        self.interrupts.clear();
        let step = format!("turn {turn}");
        out.add(json!({"type": "STEP_STARTED", "stepName": step}));
        self.step = Some(step);
    }

    fn begin_attempt(&mut self, turn: u32, attempt: u32, out: &mut Out) {
        let has_text = !self.response.text.is_empty() || !self.response.thinking.is_empty();
        self.close_response(out);
        self.response = Response { id: format!("t{turn}a{attempt}"), ..Response::default() };
        self.interrupts.clear();
        if has_text {
            self.snapshot(out);
        }
    }

    fn add_text(&mut self, is_thinking: bool, text: &str, out: &mut Out) {
        let response = &mut self.response;
        if is_thinking {
            if !std::mem::replace(&mut response.is_thinking_open, true) {
                out.begin_thinking(&response.id);
            }
            response.thinking.push_str(text);
            out.think(&response.id, text);
        } else {
            if !std::mem::replace(&mut response.is_text_open, true) {
                out.begin_text(&response.id, "assistant");
            }
            response.text.push_str(text);
            out.add_text(&response.id, text);
        }
    }

    fn close_response(&mut self, out: &mut Out) {
        let response = &mut self.response;
        if std::mem::take(&mut response.is_thinking_open) {
            out.end_thinking(&response.id);
        }
        if std::mem::take(&mut response.is_text_open) {
            out.add(json!({"type": "TEXT_MESSAGE_END", "messageId": response.id}));
        }
    }

    fn end_response(&mut self, summary: &ResponseSummary, out: &mut Out) {
        self.close_response(out);
        let Response { id, text, thinking, .. } = std::mem::take(&mut self.response);
        self.messages.extend(messages::reasoning(&id, &thinking));
        if !text.is_empty() || !summary.calls.is_empty() {
            self.messages.push(messages::assistant(&id, &text, &summary.calls));
        }
        for call in &summary.calls {
            let key = call.key.to_string();
            out.add(json!({
                "type": "TOOL_CALL_START", "toolCallId": key, "toolCallName": call.name,
                "parentMessageId": id,
            }));
            let arguments = call.arguments.to_string();
            out.add(json!({"type": "TOOL_CALL_ARGS", "toolCallId": key, "delta": arguments}));
            out.add(json!({"type": "TOOL_CALL_END", "toolCallId": key}));
        }
        self.calls.clone_from(&summary.calls);
        self.release(out);
    }

    /// Adds the results up to the first call that has none.
    fn release(&mut self, out: &mut Out) {
        while let Some(call) = self.calls.get(self.released) {
            let Some(result) = self.results.get(&call.key).cloned() else { return };
            self.released += 1;
            let key = call.key.to_string();
            let mut message = messages::tool(&key, content(&result));
            let mut event = message.clone();
            if let Some(fields) = event.as_object_mut() {
                fields.insert("type".to_owned(), "TOOL_CALL_RESULT".into());
                fields.insert("messageId".to_owned(), message["id"].clone());
                fields.remove("id");
            }
            if result.outcome.status != ToolStatus::Ok {
                message["error"] = Value::from(&*result.outcome.content);
            }
            self.end_child(&result, out);
            out.add(event);
            self.messages.push(message);
        }
    }

    fn end_turn(&mut self, out: &mut Out) {
        self.close_response(out);
        self.release_steers(out);
        let mut changes = Vec::new();
        for call in &self.calls {
            let result = self.results.get(&call.key).filter(|result| !result.notes.writes_dropped);
            for (name, value) in result.iter().flat_map(|result| &result.writes.0) {
                let path = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
                changes.push(json!({"op": "add", "path": path, "value": value}));
                if self.is_live {
                    self.state.insert(name.to_string(), (**value).clone());
                }
            }
        }
        if !changes.is_empty() {
            out.add(json!({"type": "STATE_DELTA", "delta": changes}));
        }
        self.end_step(out);
        self.calls.clear();
    }

    fn release_steers(&mut self, out: &mut Out) {
        for (id, input) in std::mem::take(&mut self.steers) {
            let id = self.ids.find("user", &input.text()).unwrap_or(id);
            out.begin_text(&id, "user");
            out.add_text(&id, &input.text());
            out.add(json!({"type": "TEXT_MESSAGE_END", "messageId": id}));
            self.messages.push(messages::user(&id, &input));
        }
    }

    fn end_step(&mut self, out: &mut Out) {
        if let Some(step) = self.step.take() {
            out.add(json!({"type": "STEP_FINISHED", "stepName": step}));
        }
    }

    fn add_call_event(&mut self, event: &Event, out: &mut Out) {
        if let Event::ApprovalAsked { request } = event {
            let id = WaitId::of_request(request, None);
            self.interrupts.insert(id.call_id(), interrupt(&id, request, None));
        } else if let Event::ApprovalGiven { call, .. } = event {
            self.interrupts.remove(&call.key.to_string());
        } else if let Event::CallEnded { result, .. } = event {
            self.interrupts.remove(&result.call.key.to_string());
            self.results.insert(result.call.key, (**result).clone());
            self.release(out);
        } else if let Event::CallProgressed { key, text } = event {
            out.add(json!({
                "type": "ACTIVITY_SNAPSHOT", "messageId": format!("{key}.progress"),
                "activityType": "tool_progress", "content": {"tool_id": key.to_string(), "text": text},
            }));
        } else if let Event::ServiceCallChanged { call, status } = event {
            let id = call.tool_id();
            out.add(json!({
                "type": "ACTIVITY_SNAPSHOT", "messageId": format!("{id}.service"),
                "activityType": "service_tool",
                "content": {"tool_id": id, "tool_name": call.name, "status": status.as_str()},
            }));
        } else if let Event::OfChild { call, event } = event {
            self.add_child(*call, event, out);
        }
    }

    /// Adds an event of a child session: a subagent, its text, and its approvals.
    fn add_child(&mut self, parent: CallKey, child: &ChildEvent, out: &mut Out) {
        let session = child.session.to_string();
        if self.ended_children.contains(&session) {
            return;
        }
        if !self.children.contains_key(&session) {
            let name = child.agent_path.last().map_or("", |name| name);
            self.start_child(parent, &session, name, out);
        }
        if let Event::ApprovalAsked { request } = &child.event {
            let id = WaitId::of_request(request, Some(&child.session));
            self.interrupts.insert(id.call_id(), interrupt(&id, request, Some(&session)));
        } else if let Event::ApprovalGiven { call, .. } = &child.event {
            self.interrupts.remove(&format!("{session}.{}", call.key));
        } else if let Event::CallEnded { result, .. } = &child.event {
            self.interrupts.remove(&format!("{session}.{}", result.call.key));
        } else if let Event::CallStarted { call, .. } = &child.event {
            out.add(json!({
                "type": "ACTIVITY_SNAPSHOT", "messageId": format!("{session}.{}", call.key),
                "activityType": "subagent_tool", "subagentRunId": session,
                "content": {"tool_id": call.key.to_string(), "tool_name": call.name},
            }));
        }
    }

    fn start_child(&mut self, parent: CallKey, session: &str, name: &str, out: &mut Out) {
        self.children.insert(session.to_owned(), parent);
        out.add(json!({
            "type": "SUBAGENT_STARTED", "subagentRunId": session, "name": name,
            "parentToolCallId": parent.to_string(),
        }));
    }

    fn end_child(&mut self, result: &ToolResult, out: &mut Out) {
        let below = |(_, parent): &(&String, &CallKey)| **parent == result.call.key;
        let mut ended: Vec<String> =
            self.children.iter().filter(below).map(|(session, _)| session.clone()).collect();
        if let Some(child) = &result.outcome.child {
            let session = child.session.to_string();
            if !ended.contains(&session) && !self.ended_children.contains(&session) {
                self.start_child(result.call.key, &session, &result.call.name, out);
                ended.push(session);
            }
        }
        for session in ended {
            self.children.remove(&session);
            let of_child = format!("{session}.");
            self.interrupts.retain(|id, _| !id.starts_with(&of_child));
            out.add(json!({"type": "SUBAGENT_FINISHED", "subagentRunId": session, "outcome": {"type": "success"}}));
            self.ended_children.insert(session);
        }
    }

    fn end(
        &mut self,
        end: RunEnd,
        output: Option<&Value>,
        error: Option<&RunError>,
        stats: &RunStats,
        out: &mut Out,
    ) {
        // It goes on when the host is there again.
        if end == RunEnd::Interrupted {
            return;
        }
        let usage = json!([usage(stats.usage)]);
        if let Some(error) = error {
            self.close(out);
            out.add(json!({
                "type": "RUN_ERROR", "message": error.message, "code": error.code, "usage": usage,
            }));
            self.has_ended = true;
            return;
        }
        let outcome = if end == RunEnd::Stopped { "cancelled" } else { "success" };
        let mut more = json!({"outcome": {"type": outcome}, "usage": usage});
        if let Some(output) = output {
            more["result"] = output.clone();
        }
        more["run_end"] = json!(end);
        self.finish(more, out);
    }

    /// Ends the client's run because the client must act: answer interrupts, or run calls.
    fn pause(&mut self, out: &mut Out) {
        let interrupts: Vec<Value> = self.interrupts.values().cloned().collect();
        let pending: Vec<String> = self.open_calls.of_client().map(|key| key.to_string()).collect();
        let outcome = match interrupts.is_empty() {
            true => json!({"type": "success", "pendingToolCallIds": pending}),
            false => json!({"type": "interrupt", "interrupts": interrupts}),
        };
        self.finish(json!({"outcome": outcome}), out);
    }

    /// Closes what is open, and tells all messages.
    fn close(&mut self, out: &mut Out) {
        if !self.is_live {
            self.go_live(out);
        }
        self.close_response(out);
        let Response { id, text, .. } = std::mem::take(&mut self.response);
        if !text.is_empty() {
            self.messages.push(messages::assistant(&id, &text, &[]));
        }
        self.release_steers(out);
        for session in std::mem::take(&mut self.children).into_keys() {
            out.add(json!({
                "type": "SUBAGENT_FINISHED", "subagentRunId": session, "outcome": {"type": "suspended"},
            }));
        }
        self.end_step(out);
        self.snapshot(out);
    }

    fn finish(&mut self, more: Value, out: &mut Out) {
        self.close(out);
        let mut event = json!({
            "type": "RUN_FINISHED", "threadId": self.place.session, "runId": self.run_id,
            "metadata": {"session_id": self.place.session, "run_id": self.place.run},
        });
        for (name, value) in more.as_object().into_iter().flatten() {
            match name.as_str() {
                "run_end" => event["metadata"][name] = value.clone(),
                _ => event[name] = value.clone(),
            }
        }
        out.add(event);
        self.has_ended = true;
    }
}

impl Fold for AguiFold {
    fn push(&mut self, published: &PublishedEvent, parts: &mut Vec<FacePart>) {
        let mut out = Out { parts, id: published.id, is_muted: !self.is_live };
        if !self.has_started {
            self.start(&mut out);
        }
        // The events of stored records come first, then the states of what is in progress.
        let is_known = published.id.is_some_and(|id| id.seq <= self.upto);
        if !self.is_live && !is_known {
            self.go_live(&mut out);
        }
        self.open_calls.push(published);
        self.add_event(published, &mut out);
        let is_last_known = published.id.is_some_and(|id| id.seq == self.upto);
        if !self.is_live && is_last_known {
            self.go_live(&mut out);
        }
        if !self.has_ended && self.open_calls.wait_for_client() {
            self.pause(&mut out);
        }
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn idle_part(&self) -> Option<FacePart> {
        None
    }

    /// A client takes a stream that ends without a terminal event for a success, and cannot catch all of a broken one.
    fn fail(&mut self, error: &HostError, parts: &mut Vec<FacePart>) -> bool {
        let mut out = Out { parts, id: None, is_muted: false };
        if !self.has_started {
            self.start(&mut out);
        }
        let message = format!("{error}; the run may go on: join its stream");
        out.add(json!({"type": "RUN_ERROR", "message": message, "code": error.api_code()}));
        self.has_ended = true;
        true
    }
}

/// Returns the events that tell a thread without a run in progress, as the text of a stream.
pub(super) fn at_rest(
    session: &SessionId,
    messages: &[Value],
    state: &Map<String, Value>,
) -> String {
    let run = json!({"threadId": session, "runId": "none"});
    let (mut started, mut finished) = (run.clone(), run);
    started["type"] = "RUN_STARTED".into();
    started["protocolVersion"] = "1.0".into();
    finished["type"] = "RUN_FINISHED".into();
    let events = [
        started,
        json!({"type": "STATE_SNAPSHOT", "snapshot": state}),
        json!({"type": "MESSAGES_SNAPSHOT", "messages": messages}),
        finished,
    ];
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

/// The events that follow from one of ours.
struct Out<'a> {
    parts: &'a mut Vec<FacePart>,
    id: Option<EventId>,
    is_muted: bool,
}

impl Out<'_> {
    fn add(&mut self, event: Value) {
        if !self.is_muted {
            self.always(event);
        }
    }

    fn always(&mut self, mut event: Value) {
        if let Some(id) = self.id {
            event["metadata"]["event_id"] = id.to_string().into();
        }
        self.parts.push(FacePart {
            position: None,
            id: self.id,
            name: None,
            data: event.to_string(),
        });
    }

    fn begin_text(&mut self, id: &str, role: &str) {
        self.add(json!({"type": "TEXT_MESSAGE_START", "messageId": id, "role": role}));
    }

    fn add_text(&mut self, id: &str, text: &str) {
        self.add(json!({"type": "TEXT_MESSAGE_CONTENT", "messageId": id, "delta": text}));
    }

    fn begin_thinking(&mut self, id: &str) {
        let id = messages::reasoning_id(id);
        self.add(json!({"type": "REASONING_START", "messageId": id}));
        self.add(json!({"type": "REASONING_MESSAGE_START", "messageId": id, "role": "reasoning"}));
    }

    fn think(&mut self, id: &str, text: &str) {
        let id = messages::reasoning_id(id);
        self.add(json!({"type": "REASONING_MESSAGE_CONTENT", "messageId": id, "delta": text}));
    }

    fn end_thinking(&mut self, id: &str) {
        let id = messages::reasoning_id(id);
        self.add(json!({"type": "REASONING_MESSAGE_END", "messageId": id}));
        self.add(json!({"type": "REASONING_END", "messageId": id}));
    }
}

fn interrupt(id: &WaitId, request: &ApprovalRequest, child: Option<&str>) -> Value {
    let approval = json!({
        "type": "object", "required": ["approved"],
        "properties": {"approved": {"type": "boolean"}, "message": {"type": "string"}},
    });
    let (reason, message, schema) = match request.question.as_deref() {
        Some(question) => match &question.kind {
            QuestionKind::Form(schema) => {
                ("question", question.message.clone(), (**schema).clone())
            }
            QuestionKind::Url(url) => ("question", format!("{} {url}", question.message), approval),
        },
        None => ("tool_approval", format!("Approve the call of {}?", request.call.name), approval),
    };
    let mut metadata = json!({
        "tool_name": request.call.name, "phase": request.phase, "arguments": request.arguments,
    });
    if let Some(output) =
        request.output_summary.as_ref().filter(|_| request.phase == WaitPhase::After)
    {
        metadata["output_summary"] = output.as_str().into();
    }
    let mut interrupt = json!({
        "id": id.to_string(), "reason": reason, "message": message, "toolCallId": id.call_id(),
        "responseSchema": schema, "metadata": metadata,
    });
    if let Some(child) = child {
        interrupt["subagentRunId"] = child.into();
    }
    interrupt
}

/// Returns the text of a result, or its parts if it has more than text.
fn content(result: &ToolResult) -> Value {
    let Some(parts) = result.outcome.parts() else {
        return Value::from(&*result.outcome.content);
    };
    let parts = parts.iter().map(|part| match part {
        ResultPart::Text { text } => json!({"type": "text", "text": text}),
        ResultPart::Image(image) => json!({"type": "image", "source": messages::source(image)}),
        ResultPart::Resource(resource) => {
            let text =
                resource.text.clone().unwrap_or_else(|| format!("[resource {}]", resource.name));
            json!({"type": "text", "text": text})
        }
    });
    parts.collect()
}

fn usage(usage: Usage) -> Value {
    json!({
        "inputTokens": usage.input_tokens,
        "outputTokens": usage.output_tokens,
        "totalTokens": usage.total(),
        "cachedInputTokens": usage.cached_tokens,
        "reasoningTokens": usage.reasoning_tokens,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::event::samples::{self, published};
    use callsheet_values::types::RunId;

    #[test]
    fn no_event_has_a_null() {
        let session = SessionId::parse("s1").unwrap();
        let mut parts = Vec::new();
        for (joins, event) in
            samples::every().into_iter().flat_map(|it| [(true, it.clone()), (false, it)])
        {
            let mut fold = AguiFold::new(Beginning {
                run_id: "r1".to_owned(),
                place: RunPlace {
                    session: session.clone(),
                    run: RunId("run_1".into()),
                    seq: Seq(1),
                },
                messages: Vec::new(),
                ids: MessageIds::default(),
                state: Map::new(),
                known: KnownWaits::default(),
                joins,
            });
            fold.push(&published(event), &mut parts);
        }
        for part in parts {
            let event: Map<String, Value> = serde_json::from_str(&part.data).unwrap();
            assert!(event.values().all(|value| !value.is_null()), "{event:?}");
        }
    }
}
