//! The messages of a thread, from those of the session's history. A message has the id that the client knows: the client
//! drops those that a snapshot does not have.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::super::chats::{self, ChatBody as _};
use super::request::{AguiMessage, RunAgentInput, text_of};
use callsheet_values::event::EventId;
use callsheet_values::message::Message;
use callsheet_values::record::{JournalEntry, Record};
use callsheet_values::types::{
    CallKey, Content, ContentPart, Image, Metadata, RunId, Seq, ToolCall,
};

/// Returns the id of the message with which a run began.
pub(super) fn input_id(run: &RunId, metadata: &Metadata) -> String {
    metadata.get(RunAgentInput::ID_PAIR).map_or_else(|| own_input_id(run), str::to_owned)
}

/// Returns the id of the message with which a run began, if the client's id cannot be used.
pub(super) fn own_input_id(run: &RunId) -> String {
    format!("{run}.input")
}

/// A thread before a run.
#[derive(Debug, Default)]
pub(super) struct ThreadSnapshot {
    pub(super) messages: Vec<Value>,
    /// The ids of the client's messages that are not among them.
    pub(super) ids: MessageIds,
    pub(super) variables: Map<String, Value>,
}

/// Messages of a thread in order, with their ids. Each is found once.
#[derive(Debug, Default)]
pub(super) struct MessageIds {
    messages: Vec<MessageId>,
    next: usize,
}

#[derive(Debug)]
struct MessageId {
    /// The message's record, if it is known.
    seq: Option<Seq>,
    id: String,
    role: String,
    text: String,
}

impl MessageIds {
    /// Adds the messages that a client has sent.
    pub(super) fn add_of_client<'a>(
        &mut self,
        messages: impl IntoIterator<Item = &'a AguiMessage>,
    ) {
        for AguiMessage { id, role, content, .. } in messages {
            self.push(None, role, id.clone(), &text_of(content));
        }
    }

    /// Returns the id of the next message of this role and with this text.
    pub(super) fn find(&mut self, role: &str, text: &str) -> Option<String> {
        let rest = self.messages.get(self.next..)?;
        let at = self.next + rest.iter().position(|of| of.role == role && of.text == text)?;
        self.next = at + 1;
        self.messages.get(at).map(|of| of.id.clone())
    }

    /// Returns the id of the message of a record.
    pub(super) fn of_record(&self, seq: Seq) -> Option<String> {
        self.messages.iter().find(|of| of.seq == Some(seq)).map(|of| of.id.clone())
    }

    /// Adds the message of a record, with the id that its run has given it. Those with calls have the ids of their calls.
    /// `taken`: the ids of clients that were added, because a client may give several messages the same one.
    pub(super) fn add(&mut self, entry: &JournalEntry, taken: &mut BTreeSet<String>) {
        if let Record::RunStarted { run_id, input, metadata, .. } = &entry.record {
            let id = input_id(run_id, metadata);
            let id = if taken.insert(id.clone()) { id } else { own_input_id(run_id) };
            self.push(Some(entry.seq), "user", id, &input.text());
        } else if let Record::Steered { input, .. } = &entry.record {
            let event = EventId { seq: entry.seq, bytes: 0 };
            self.push(Some(entry.seq), "user", chats::steer_id(Some(event)), &input.text());
        } else if let Record::ResponseEnded { turn, attempt, message, .. } = &entry.record
            && message.calls.is_empty()
        {
            let key = CallKey { turn: *turn, attempt: *attempt, index: 0 };
            self.push(Some(entry.seq), "assistant", response_id(key), &message.text);
        }
    }

    fn push(&mut self, seq: Option<Seq>, role: &str, id: String, text: &str) {
        self.messages.push(MessageId { seq, id, role: role.to_owned(), text: text.to_owned() });
    }
}

/// The ids of a thread's messages.
#[derive(Debug)]
pub(super) struct ThreadIds {
    /// Of the messages that the client has sent.
    pub(super) client: MessageIds,
    /// Of the messages that the session's records have.
    recorded: MessageIds,
}

impl ThreadIds {
    /// `sent`: the messages that the client has sent.
    pub(super) fn new(sent: &[AguiMessage], recorded: MessageIds) -> Self {
        let mut client = MessageIds::default();
        client.add_of_client(sent);
        Self { client, recorded }
    }

    fn find(&mut self, role: &str, text: &str) -> Option<String> {
        let recorded = self.recorded.find(role, text);
        self.client.find(role, text).or(recorded)
    }
}

/// Returns the messages of a history, and whether each has an id that is more than its place in the history.
pub(super) fn of_history(history: &[Arc<Message>], ids: &mut ThreadIds) -> (Vec<Value>, bool) {
    let (mut messages, mut calls, mut has_all_ids) = (Vec::new(), BTreeMap::new(), true);
    for (index, message) in history.iter().enumerate() {
        let mut id_of = |role: &str, text: &str| {
            ids.find(role, text).unwrap_or_else(|| {
                has_all_ids = false;
                format!("h{index}")
            })
        };
        match &**message {
            Message::User { content } | Message::Summary { content } => {
                let id = id_of("user", &content.text());
                messages.push(user(&id, content));
            }
            Message::Assistant(response) => {
                let id = match response.calls.first() {
                    Some(call) => response_id(call.key),
                    None => id_of("assistant", &response.text),
                };
                messages.extend(reasoning(&id, &response.reasoning));
                messages.push(assistant(&id, &response.text, &response.calls));
                calls.extend(response.calls.iter().map(|call| (call.id.clone(), call.key)));
            }
            Message::Tool { call_id, content, .. } => {
                let key =
                    calls.get(call_id).map_or_else(|| call_id.to_string(), CallKey::to_string);
                messages.push(tool(&key, Value::from(&**content)));
            }
        }
    }
    (messages, has_all_ids)
}

/// Returns the id of the message of a response, from the key of one of its calls.
pub(super) fn response_id(key: CallKey) -> String {
    format!("t{}a{}", key.turn, key.attempt)
}

pub(super) fn user(id: &str, content: &Content) -> Value {
    json!({"id": id, "role": "user", "content": input_content(content)})
}

pub(super) fn reasoning_id(id: &str) -> String {
    format!("{id}.reasoning")
}

pub(super) fn reasoning(id: &str, text: &str) -> Option<Value> {
    let message = json!({"id": reasoning_id(id), "role": "reasoning", "content": text});
    (!text.is_empty()).then_some(message)
}

pub(super) fn assistant(id: &str, text: &str, calls: &[ToolCall]) -> Value {
    let mut message = json!({"id": id, "role": "assistant"});
    if !text.is_empty() {
        message["content"] = text.into();
    }
    if !calls.is_empty() {
        let calls = calls.iter().map(|call| {
            let function = json!({"name": call.name, "arguments": call.arguments.to_string()});
            json!({"id": call.key.to_string(), "type": "function", "function": function})
        });
        message["toolCalls"] = calls.collect();
    }
    message
}

pub(super) fn tool(key: &str, content: Value) -> Value {
    json!({"id": format!("{key}.result"), "role": "tool", "toolCallId": key, "content": content})
}

fn input_content(content: &Content) -> Value {
    if content.images().next().is_none() {
        return content.text().into();
    }
    let parts = content.parts().iter().map(|part| match part {
        ContentPart::Text(text) => json!({"type": "text", "text": text}),
        ContentPart::Image(image) => json!({"type": "image", "source": source(image)}),
    });
    parts.collect()
}

pub(super) fn source(image: &Image) -> Value {
    match image {
        Image::Base64 { media_type, data } => {
            json!({"type": "data", "value": data, "mimeType": media_type})
        }
        Image::Url(url) => json!({"type": "url", "value": url}),
    }
}
