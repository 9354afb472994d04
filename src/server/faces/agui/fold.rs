//! The fold from the events of a run to the events of AG-UI 1.0. What its verifier demands: `RUN_STARTED` first, no
//! content without its start, nothing open at `RUN_FINISHED`, nothing behind `RUN_ERROR`, no null for what is absent.
//!
//! The protocol cannot take a call back, so calls are sent when their response has ended, and results in call order: a
//! client keeps them in the order of arrival. A message of an attempt that broke is dropped by a snapshot without it. A
//! client that joins gets what there is as a snapshot, and then the rest as it happens.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::super::chats;
use super::super::retries::RunPlace;
use super::super::stream::{FacePart, Fold};
use super::super::waits::{KnownWaits, WaitId, WaitingCalls, call_id};
use super::messages::{self, ThreadSnapshot};
use callsheet_host::runtime::HostError;
use callsheet_values::event::{
    ApprovalRequest, ChildEvent, Event, EventId, PublishedEvent, ResponseSummary,
};
use callsheet_values::types::{
    CallKey, Content, Metadata, Question, QuestionKind, ResultPart, RunEnd, Seq, SessionId,
    ToolCall, ToolResult, ToolStatus, WaitPhase,
};

/// The state of the thread at the client.
#[derive(Debug)]
pub(super) struct AguiFold {
    /// The run's id for the client.
    run_id: String,
    place: RunPlace,
    thread: ThreadSnapshot,
    open_calls: WaitingCalls,
    /// The last record that the snapshot has, if the client joins the run.
    upto: Seq,
    /// False while events are read that the snapshot will have.
    is_live: bool,
    has_started: bool,
    step: Option<String>,
    /// The thinking and the text of the response in progress.
    texts: [StreamedMessage; 2],
    /// The calls of the turn in order, with their results, and the number of those that were released.
    calls: Vec<ToolCall>,
    results: BTreeMap<CallKey, ToolResult>,
    released: usize,
    /// The user's messages that stand behind the turn.
    steers: Vec<(String, Content)>,
    /// The child sessions with the calls that they are below. `None`: it has ended, and the client must not see it again.
    children: BTreeMap<String, Option<CallKey>>,
    has_ended: bool,
    /// The client's events for the event that is read.
    out: Vec<Value>,
}

/// A message whose text is sent in pieces. Thinking is a message of the role `reasoning`.
#[derive(Debug)]
struct StreamedMessage {
    id: String,
    role: &'static str,
    text: String,
    is_open: bool,
}

const REASONING: &str = "reasoning";

impl StreamedMessage {
    fn new(id: String, role: &'static str) -> Self {
        Self { id, role, text: String::new(), is_open: false }
    }

    /// Returns the messages of a response: its thinking and its text.
    fn of_response(id: String) -> [Self; 2] {
        [Self::new(messages::reasoning_id(&id), REASONING), Self::new(id, "assistant")]
    }

    fn event(&self, kind: &str) -> Value {
        let message = if self.role == REASONING { "REASONING_MESSAGE" } else { "TEXT_MESSAGE" };
        json!({"type": format!("{message}_{kind}"), "messageId": self.id})
    }

    fn push(&mut self, text: &str, out: &mut Vec<Value>) {
        if !std::mem::replace(&mut self.is_open, true) {
            self.begin(out);
        }
        self.text.push_str(text);
        self.add(text, out);
    }

    fn begin(&self, out: &mut Vec<Value>) {
        if self.role == REASONING {
            out.push(json!({"type": "REASONING_START", "messageId": self.id}));
        }
        let mut start = self.event("START");
        start["role"] = self.role.into();
        out.push(start);
    }

    fn add(&self, text: &str, out: &mut Vec<Value>) {
        let mut content = self.event("CONTENT");
        content["delta"] = text.into();
        out.push(content);
    }

    fn end(&mut self, out: &mut Vec<Value>) {
        if std::mem::take(&mut self.is_open) {
            out.push(self.event("END"));
            if self.role == REASONING {
                out.push(json!({"type": "REASONING_END", "messageId": self.id}));
            }
        }
    }
}

impl AguiFold {
    /// Creates the fold of a run whose client knows the thread before it. What is known of a run that the client joins
    /// is told by a snapshot.
    pub(super) fn new(
        run_id: String,
        place: RunPlace,
        thread: ThreadSnapshot,
        known: KnownWaits,
    ) -> Self {
        Self {
            run_id,
            place,
            thread,
            is_live: known.upto == Seq(0),
            upto: known.upto,
            open_calls: WaitingCalls::new(known),
            has_started: false,
            step: None,
            texts: StreamedMessage::of_response(String::new()),
            calls: Vec::new(),
            results: BTreeMap::new(),
            released: 0,
            steers: Vec::new(),
            children: BTreeMap::new(),
            has_ended: false,
            out: Vec::new(),
        }
    }

    fn add(&mut self, event: Value) {
        self.out.push(event);
    }

    fn start(&mut self) {
        if std::mem::replace(&mut self.has_started, true) {
            return;
        }
        let mut started = self.run_event("RUN_STARTED");
        started["protocolVersion"] = "1.0".into();
        self.add(started);
        if self.is_live {
            self.add(json!({"type": "STATE_SNAPSHOT", "snapshot": self.thread.variables}));
        }
    }

    fn run_event(&self, kind: &str) -> Value {
        json!({
            "type": kind, "threadId": self.place.session, "runId": self.run_id,
            "metadata": chats::run_names(&self.place),
        })
    }

    /// Tells the client that has joined what there is, and opens again what is open.
    fn go_live(&mut self) {
        if std::mem::replace(&mut self.is_live, true) {
            return;
        }
        self.out.clear();
        self.add(json!({"type": "STATE_SNAPSHOT", "snapshot": self.thread.variables}));
        self.add_snapshot();
        if let Some(step) = &self.step {
            self.out.push(json!({"type": "STEP_STARTED", "stepName": step}));
        }
        for message in self.texts.iter().filter(|message| message.is_open) {
            message.begin(&mut self.out);
            message.add(&message.text, &mut self.out);
        }
    }

    fn add_snapshot(&mut self) {
        self.add(json!({"type": "MESSAGES_SNAPSHOT", "messages": self.thread.messages}));
    }

    fn add_event(&mut self, published: &PublishedEvent) {
        let (event, turn) = (&published.event, published.turn);
        if let Event::RunStarted { input: Some(input), metadata, .. } = event {
            let id = self.thread.ids.find("user", &input.text());
            let id = id.unwrap_or_else(|| self.input_id(metadata));
            self.thread.messages.push(messages::user(&id, input));
        } else if let Event::TurnStarted = event {
            self.begin_turn(turn);
        } else if let Event::AttemptStarted { attempt, .. } | Event::AttemptVoided { attempt, .. } =
            event
        {
            self.begin_attempt(format!("t{turn}a{attempt}"));
        } else if let Some((is_thinking, text)) = event.text() {
            let [thinking, answer] = &mut self.texts;
            let message = if is_thinking { thinking } else { answer };
            message.push(text, &mut self.out);
        } else if let Event::ResponseEnded { response } = event {
            self.end_response(response);
        } else if let Event::TurnEnded { .. } = event {
            self.end_turn();
        } else if let Event::RunSteered { input, .. } = event {
            self.steers.push((chats::steer_id(published.id), input.clone()));
        } else if let Event::RunEnded { .. } = event {
            self.end(event);
        } else if let Event::InputRemoved { .. } = event {
            let finished = self.finished(&json!({"type": "cancelled"}));
            self.finish(finished);
        } else if let Event::OfChild { call, event } = event {
            self.add_child(*call, event);
        } else {
            self.add_call_event(event);
        }
    }

    fn input_id(&self, metadata: &Metadata) -> String {
        let id = messages::input_id(&self.place.run, metadata);
        match self.thread.messages.iter().any(|message| message["id"] == id) {
            true => messages::own_input_id(&self.place.run),
            false => id,
        }
    }

    fn begin_turn(&mut self, turn: u32) {
        self.texts = StreamedMessage::of_response(format!("t{turn}a1"));
        (self.calls, self.released) = (Vec::new(), 0);
        self.results.clear();
        let step = format!("turn {turn}");
        self.add(json!({"type": "STEP_STARTED", "stepName": step}));
        self.step = Some(step);
    }

    fn begin_attempt(&mut self, id: String) {
        let broken = self.take_texts(id);
        if broken.iter().any(|message| !message.text.is_empty()) {
            self.add_snapshot();
        }
    }

    fn end_texts(&mut self) {
        self.texts.iter_mut().for_each(|message| message.end(&mut self.out));
    }

    /// Ends the response in progress. Returns its thinking and its text. `next`: the id of the next response.
    fn take_texts(&mut self, next: String) -> [StreamedMessage; 2] {
        self.end_texts();
        std::mem::replace(&mut self.texts, StreamedMessage::of_response(next))
    }

    fn end_response(&mut self, summary: &ResponseSummary) {
        let [thinking, StreamedMessage { id, text, .. }] = self.take_texts(String::new());
        self.thread.messages.extend(messages::reasoning(&id, &thinking.text));
        if !text.is_empty() || !summary.calls.is_empty() {
            self.thread.messages.push(messages::assistant(&id, &text, &summary.calls));
        }
        for call in &summary.calls {
            let (key, name, arguments) =
                (call.key.to_string(), &call.name, call.arguments.to_string());
            self.out.extend([
                json!({"type": "TOOL_CALL_START", "toolCallId": key, "toolCallName": name, "parentMessageId": id}),
                json!({"type": "TOOL_CALL_ARGS", "toolCallId": key, "delta": arguments}),
                json!({"type": "TOOL_CALL_END", "toolCallId": key}),
            ]);
        }
        self.calls.clone_from(&summary.calls);
        self.release();
    }

    /// Adds the results up to the first call that has none.
    fn release(&mut self) {
        while let Some(call) = self.calls.get(self.released) {
            let Some(result) = self.results.get(&call.key).cloned() else { return };
            self.released += 1;
            let (key, content) = (call.key.to_string(), content(&result));
            let mut message = messages::tool(&key, content.clone());
            if result.outcome.status != ToolStatus::Ok {
                message["error"] = Value::from(&*result.outcome.content);
            }
            self.end_child(&result);
            self.add(json!({
                "type": "TOOL_CALL_RESULT", "messageId": message["id"], "role": message["role"],
                "toolCallId": key, "content": content,
            }));
            self.thread.messages.push(message);
        }
    }

    fn end_turn(&mut self) {
        self.end_texts();
        self.release_steers();
        let mut changes = Vec::new();
        let results = self.calls.iter().filter_map(|call| self.results.get(&call.key));
        let results = results.filter(|result| !result.notes.writes_dropped);
        for (name, value) in results.flat_map(|result| &result.writes.0) {
            let path = format!("/{}", name.replace('~', "~0").replace('/', "~1"));
            changes.push(json!({"op": "add", "path": path, "value": value}));
            if self.is_live {
                self.thread.variables.insert(name.to_string(), (**value).clone());
            }
        }
        if !changes.is_empty() {
            self.add(json!({"type": "STATE_DELTA", "delta": changes}));
        }
        self.end_step();
        self.calls.clear();
    }

    fn release_steers(&mut self) {
        for (id, input) in std::mem::take(&mut self.steers) {
            let id = self.thread.ids.find("user", &input.text()).unwrap_or(id);
            self.thread.messages.push(messages::user(&id, &input));
            let mut message = StreamedMessage::new(id, "user");
            message.push(&input.text(), &mut self.out);
            message.end(&mut self.out);
        }
    }

    fn end_step(&mut self) {
        if let Some(step) = self.step.take() {
            self.add(json!({"type": "STEP_FINISHED", "stepName": step}));
        }
    }

    fn add_call_event(&mut self, event: &Event) {
        if let Event::CallEnded { result, .. } = event {
            self.results.insert(result.call.key, (**result).clone());
            self.release();
        } else if let Event::CallProgressed { key, text } = event {
            let content = json!({"tool_id": key.to_string(), "text": text});
            self.add(activity(&format!("{key}.progress"), "tool_progress", &content));
        } else if let Event::ServiceCallChanged { call, status } = event {
            let (id, name, status) = (call.tool_id(), &call.name, status.as_str());
            let content = json!({"tool_id": id, "tool_name": name, "status": status});
            self.add(activity(&format!("{id}.service"), "service_tool", &content));
        }
    }

    /// Adds an event of a child session: a subagent, its text, and its approvals.
    fn add_child(&mut self, parent: CallKey, child: &ChildEvent) {
        let session = child.session.to_string();
        match self.children.get(&session) {
            Some(None) => return,
            Some(Some(_)) => {}
            None => {
                let name = child.agent_path.last().map_or("", |name| name);
                self.start_child(parent, &session, name);
            }
        }
        if let Event::CallStarted { call, .. } = &child.event {
            let content = json!({"tool_id": call.key.to_string(), "tool_name": call.name});
            let id = call_id(Some(&child.session), call.key);
            let mut activity = activity(&id, "subagent_tool", &content);
            activity["subagentRunId"] = session.into();
            self.add(activity);
        }
    }

    fn start_child(&mut self, parent: CallKey, session: &str, name: &str) {
        self.children.insert(session.to_owned(), Some(parent));
        self.add(json!({
            "type": "SUBAGENT_STARTED", "subagentRunId": session, "name": name,
            "parentToolCallId": parent.to_string(),
        }));
    }

    fn end_child(&mut self, result: &ToolResult) {
        let call = &result.call;
        if let Some(child) = &result.outcome.child {
            let session = child.session.to_string();
            if !self.children.contains_key(&session) {
                self.start_child(call.key, &session, &call.name);
            }
        }
        self.finish_children("success", |parent| parent == call.key);
    }

    fn finish_children(&mut self, outcome: &str, is_ended: impl Fn(CallKey) -> bool) {
        for (session, parent) in &mut self.children {
            if parent.take_if(|parent| is_ended(*parent)).is_some() {
                let outcome = json!({"type": outcome});
                self.out.push(
                    json!({"type": "SUBAGENT_FINISHED", "subagentRunId": session, "outcome": outcome}),
                );
            }
        }
    }

    fn end(&mut self, event: &Event) {
        let Event::RunEnded { end, output, error, stats, .. } = event else { return };
        // It goes on when the host is there again.
        if *end == RunEnd::Interrupted {
            return;
        }
        let mut usage = chats::usage(stats.usage);
        usage["totalTokens"] = stats.usage.total().into();
        if let Some(error) = error {
            let (message, code) = (&error.message, &error.code);
            self.finish(
                json!({"type": "RUN_ERROR", "message": message, "code": code, "usage": [usage]}),
            );
            return;
        }
        let outcome = if *end == RunEnd::Stopped { "cancelled" } else { "success" };
        let mut finished = self.finished(&json!({"type": outcome}));
        finished["metadata"]["run_end"] = json!(end);
        finished["usage"] = json!([usage]);
        if let Some(output) = output {
            finished["result"] = (**output).clone();
        }
        self.finish(finished);
    }

    /// Ends the client's run because the client must act: answer interrupts, or run calls.
    fn pause(&mut self) {
        let requests = self.open_calls.requests();
        let interrupts: Vec<_> = requests.map(|(id, request)| interrupt(id, request)).collect();
        let pending: Vec<String> = self.open_calls.of_client().map(|key| key.to_string()).collect();
        let outcome = match interrupts.is_empty() {
            true => json!({"type": "success", "pendingToolCallIds": pending}),
            false => json!({"type": "interrupt", "interrupts": interrupts}),
        };
        let finished = self.finished(&outcome);
        self.finish(finished);
    }

    fn finished(&self, outcome: &Value) -> Value {
        let mut finished = self.run_event("RUN_FINISHED");
        finished["outcome"] = outcome.clone();
        finished
    }

    /// Closes what is open, tells all messages, and adds the last event.
    fn finish(&mut self, last: Value) {
        self.go_live();
        let [_, StreamedMessage { id, text, .. }] = self.take_texts(String::new());
        if !text.is_empty() {
            self.thread.messages.push(messages::assistant(&id, &text, &[]));
        }
        self.release_steers();
        self.finish_children("suspended", |_| true);
        self.end_step();
        self.add_snapshot();
        self.add(last);
        self.has_ended = true;
    }

    /// Moves the client's events to `parts`. `id`: that of the event that is read.
    fn flush(&mut self, id: Option<EventId>, parts: &mut Vec<FacePart>) {
        for mut event in self.out.drain(..) {
            if let Some(id) = id {
                event["metadata"]["event_id"] = id.to_string().into();
            }
            parts.push(chats::part(id, &event));
        }
    }
}

impl Fold for AguiFold {
    fn push(&mut self, published: &PublishedEvent, parts: &mut Vec<FacePart>) {
        self.start();
        self.flush(published.id, parts);
        // The events of stored records come first, then the states of what is in progress.
        let seq = published.id.map(|id| id.seq);
        if seq.is_none_or(|seq| seq > self.upto) {
            self.go_live();
        }
        self.open_calls.push(published);
        self.add_event(published);
        if seq == Some(self.upto) {
            self.go_live();
        }
        if !self.has_ended && self.open_calls.wait_for_client() {
            self.pause();
        }
        if !self.is_live {
            self.out.clear();
        }
        self.flush(published.id, parts);
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// A client takes a stream that ends without a terminal event for a success, and cannot catch all of a broken one.
    fn fail(&mut self, error: &HostError, parts: &mut Vec<FacePart>) -> bool {
        self.start();
        let message = format!("{error}; the run may go on: join its stream");
        self.add(json!({"type": "RUN_ERROR", "message": message, "code": error.api_code()}));
        self.flush(None, parts);
        self.has_ended = true;
        true
    }
}

/// Returns the events that tell a thread without a run in progress, as the text of a stream.
pub(super) fn at_rest(session: &SessionId, thread: &ThreadSnapshot) -> String {
    let events = [
        json!({"type": "RUN_STARTED", "threadId": session, "runId": "none", "protocolVersion": "1.0"}),
        json!({"type": "STATE_SNAPSHOT", "snapshot": thread.variables}),
        json!({"type": "MESSAGES_SNAPSHOT", "messages": thread.messages}),
        json!({"type": "RUN_FINISHED", "threadId": session, "runId": "none"}),
    ];
    events.iter().map(|event| format!("data: {event}\n\n")).collect()
}

fn activity(id: &str, kind: &str, content: &Value) -> Value {
    json!({"type": "ACTIVITY_SNAPSHOT", "messageId": id, "activityType": kind, "content": content})
}

fn interrupt(id: &WaitId, request: &ApprovalRequest) -> Value {
    let approval = json!({
        "type": "object", "required": ["approved"],
        "properties": {"approved": {"type": "boolean"}, "message": {"type": "string"}},
    });
    let (reason, message, schema) = match request.question.as_deref() {
        None => ("tool_approval", format!("Approve the call of {}?", request.call.name), approval),
        Some(Question { message, kind: QuestionKind::Form(schema), .. }) => {
            ("question", message.clone(), (**schema).clone())
        }
        Some(Question { message, kind: QuestionKind::Url(url), .. }) => {
            ("question", format!("{message} {url}"), approval)
        }
    };
    let mut metadata = json!({
        "tool_name": request.call.name, "phase": request.phase, "arguments": request.arguments,
    });
    if let (WaitPhase::After, Some(output)) = (request.phase, &request.output_summary) {
        metadata["output_summary"] = output.as_str().into();
    }
    let mut interrupt = json!({
        "id": id.to_string(), "reason": reason, "message": message, "toolCallId": id.call_id(),
        "responseSchema": schema, "metadata": metadata,
    });
    if let Some(child) = &id.child {
        interrupt["subagentRunId"] = child.as_str().into();
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

#[cfg(test)]
mod tests {
    use super::*;
    use callsheet_values::event::samples::{self, published};
    use callsheet_values::types::RunId;
    use serde_json::Map;

    #[test]
    fn no_event_has_a_null() {
        let session = SessionId::parse("s1").unwrap();
        let mut parts = Vec::new();
        for (joins, event) in
            samples::every().into_iter().flat_map(|it| [(true, it.clone()), (false, it)])
        {
            let place =
                RunPlace { session: session.clone(), run: RunId("run_1".into()), seq: Seq(1) };
            let known = KnownWaits { upto: Seq(joins.into()), ..KnownWaits::default() };
            let mut fold = AguiFold::new("r1".to_owned(), place, ThreadSnapshot::default(), known);
            fold.push(&published(event), &mut parts);
        }
        for part in parts {
            let event: Map<String, Value> = serde_json::from_str(&part.data).unwrap();
            assert!(event.values().all(|value| !value.is_null()), "{event:?}");
        }
    }
}
