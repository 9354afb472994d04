//! The history: messages of the user and the model alternate, and the results of calls are the
//! first blocks of the user's next message.
//!
//! Rules: <https://docs.anthropic.com/en/api/messages> and
//! <https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking>. Further rules are known
//! from error messages of the service: it refuses texts of white space alone, repeated ids, thinking
//! at the end of a message, white space at the end of a response that it continues, and results of its own
//! tools without their calls.
//!
//! A message is written the same at the end of the history and within it, so that the service finds it in its cache.
//! The exceptions are breakpoints, and unanswered calls of the service (`ServerToolCalls`).

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::request::{CACHE_CONTROL, breakpoint, has_breakpoints};
use crate::ModelRequest;
use crate::call_ids::{sanitized, sanitized_tool_name};
use crate::extra_members::{arguments_object, write_members};
use crate::lenient::Scalar;
use crate::request_cache::HistoryWriter;
use callsheet_values::message::{Message, RequestPart, ResponseMessage, ResultContent};
use callsheet_values::types::{
    Content, ContentPart, Image, MessagePart, ModelOrigin, ReasoningRule, SendReasoning, ToolCall,
    Wire,
};

/// Stands for an empty message of a user, because the service refuses empty texts, and for the message before a
/// response that begins the history.
const EMPTY_MESSAGE: &str = "(nothing)";

/// Number of blocks between two breakpoints above which the earlier one is marked too. The service searches 20 blocks
/// before a breakpoint for what it has cached
/// (<https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching>). This is less, in case the service counts
/// otherwise than the host.
const LOOK_BACK: usize = 15;

/// The members of thinking that no service has signed.
const NO_SIGNATURE: &str = r#"{"signature":""}"#;

/// Maximum length of an id that every service of this wire accepts.
const ID_CHARS_MAX: usize = 64;

/// A message: consecutive blocks of one role.
#[derive(Debug, Serialize)]
struct MessageParam<'a> {
    role: Role,
    content: Vec<BlockParam<'a>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    User,
    Assistant,
}

#[derive(Debug)]
enum BlockParam<'a> {
    Text {
        text: &'a str,
        members: Option<&'a str>,
    },
    Thinking {
        text: &'a str,
        members: &'a str,
    },
    Image(&'a Image),
    Call {
        id: Cow<'a, str>,
        call: &'a ToolCall,
        members: Option<&'a str>,
    },
    Result {
        id: Cow<'a, str>,
        content: &'a ResultContent,
        is_error: bool,
    },
    Raw {
        json: &'a RawValue,
        is_thinking: bool,
    },
    /// The result of a call that the service began and did not end.
    ServiceError(ServerToolErrorResult),
    /// A block at which the service caches the prompt up to here.
    Breakpoint(Box<Self>),
}

/// Writes the messages of a request.
pub(super) fn write(request: &ModelRequest, writer: &mut HistoryWriter) {
    let (messages, reusable) = messages(request);
    writer.write_all(&messages, reusable, request.messages.len());
}

/// Returns the messages, and how many of them stay the same whatever follows. These may change: the last message;
/// with caching, the messages from the first of the two possible breakpoints on; and the messages from the one
/// before the first response with a call that the service may still be running, because the call is dropped or gets
/// a result if an input follows.
fn messages(request: &ModelRequest) -> (Vec<MessageParam<'_>>, usize) {
    let target_model = ModelOrigin { wire: Wire::AnthropicMessages, model: request.model.clone() };
    let history = &*request.messages;
    let mut builder = MessageBuilder {
        messages: Vec::new(),
        ids: CallIdMap::default(),
        reasoning: request.reasoning,
    };
    let mut service_calls = ServerToolCalls::new(history, &target_model);
    let mut reusable = usize::MAX;
    let last_response = history.iter().rposition(|m| matches!(**m, Message::Assistant(_)));
    let mut end_before = None;
    for (position, message) in history.iter().enumerate() {
        match message.as_ref() {
            Message::User { content } | Message::Summary { content } => {
                builder.add_service_errors(&mut service_calls);
                builder.user(content);
                service_calls.begin_exchange(history.get(position + 1..).unwrap_or_default());
            }
            Message::Assistant(message) => {
                if last_response == Some(position) {
                    end_before = builder.last_cacheable();
                }
                let before = builder.messages.len().saturating_sub(1);
                builder.assistant(message, &target_model, &mut service_calls);
                if service_calls.may_be_running {
                    reusable = reusable.min(before);
                }
            }
            Message::Tool { call_id, content, metadata, .. } => {
                let is_error = metadata.get("error") == Some(&Value::Bool(true));
                let id = builder.ids.result_id(call_id);
                builder.add(Role::User, [BlockParam::Result { id, content, is_error }]);
            }
        }
    }
    let end = builder.last_cacheable();
    let mut messages = builder.finish();
    if has_breakpoints(request) {
        let positions = breakpoints(&messages, end_before, end);
        // The next request has its breakpoints elsewhere.
        for position in [end_before, end].into_iter().flatten() {
            reusable = reusable.min(position.message);
        }
        positions.into_iter().flatten().for_each(|position| mark(&mut messages, position));
    }
    let reusable = reusable.min(messages.len().saturating_sub(1));
    (messages, reusable)
}

/// The position of a block: the indices of its message and of the block in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockPosition {
    message: usize,
    block: usize,
}

/// Returns the positions of the blocks that get a breakpoint: the last one, and the last one of the request before
/// if it is more than [`LOOK_BACK`] blocks earlier. The service would not find its cache entry otherwise.
fn breakpoints(
    messages: &[MessageParam<'_>],
    end_before: Option<BlockPosition>,
    end: Option<BlockPosition>,
) -> [Option<BlockPosition>; 2] {
    let number = |at: BlockPosition| {
        let before = messages.iter().take(at.message).map(|message| message.content.len());
        before.sum::<usize>() + at.block
    };
    let is_far =
        |before: &BlockPosition| end.is_some_and(|end| number(end) > number(*before) + LOOK_BACK);
    [end_before.filter(is_far), end]
}

fn mark(messages: &mut [MessageParam<'_>], position: BlockPosition) {
    let message = messages.get_mut(position.message);
    if let Some(block) = message.and_then(|message| message.content.get_mut(position.block)) {
        let inner = std::mem::replace(block, BlockParam::Text { text: "", members: None });
        *block = BlockParam::Breakpoint(Box::new(inner));
    }
}

struct MessageBuilder<'a> {
    messages: Vec<MessageParam<'a>>,
    ids: CallIdMap<'a>,
    reasoning: ReasoningRule,
}

impl<'a> MessageBuilder<'a> {
    fn user(&mut self, content: &'a Content) {
        self.add(Role::User, content.parts().iter().filter_map(content_block));
    }

    fn assistant(
        &mut self,
        message: &'a ResponseMessage,
        target_model: &ModelOrigin,
        service_calls: &mut ServerToolCalls<'_>,
    ) {
        let is_own = message.is_from(target_model);
        self.ids.next_message();
        let mut blocks = Vec::new();
        let includes_thinking = self.reasoning.includes(!message.calls.is_empty());
        for part in message.request_parts(target_model) {
            let block = match part {
                RequestPart::Text { text, members } => text_block(text, members),
                // Thinking that broke off has no members, and every service refuses it.
                RequestPart::Reasoning { text, members } => {
                    members.map(|members| BlockParam::Thinking { text, members })
                }
                RequestPart::Call { call, members } => {
                    let id = self.ids.call_id(&call.id, is_own);
                    Some(BlockParam::Call { id, call, members })
                }
                RequestPart::Raw(json) => service_calls.block(json),
            };
            blocks.extend(block.filter(|block| includes_thinking || !block.is_thinking()));
        }
        while blocks.last().is_some_and(BlockParam::is_thinking) {
            blocks.pop();
        }
        let demands_thinking = self.reasoning.send == SendReasoning::All && !blocks.is_empty();
        if demands_thinking && !blocks.iter().any(BlockParam::is_thinking) {
            blocks.insert(0, self.unsigned_thinking(message, target_model));
        }
        // The service refuses white space at the end of a response that it continues.
        if let Some(BlockParam::Text { text, .. }) = blocks.last_mut() {
            *text = text.trim_end();
        }
        self.add(Role::Assistant, blocks);
    }

    /// Returns thinking for a message without any, for a service that demands it (DeepSeek's endpoint of this wire):
    /// the model's own, which came without a signature, or else an empty one.
    fn unsigned_thinking(
        &self,
        message: &'a ResponseMessage,
        target_model: &ModelOrigin,
    ) -> BlockParam<'a> {
        let is_own = message.has_reasoning_of(target_model, self.reasoning.is_fallback);
        let own = Some(&*message.reasoning).filter(|text| is_own && !text.is_empty());
        let text = own.unwrap_or_else(|| self.reasoning.filler());
        BlockParam::Thinking { text, members: NO_SIGNATURE }
    }

    /// Adds results for the calls that the service did not answer, before an input of the user. They are added to
    /// the response before it. If results of other calls follow that response, they are a new message after these,
    /// as if the service had sent them.
    fn add_service_errors(&mut self, service_calls: &mut ServerToolCalls<'_>) {
        let errors = std::mem::take(&mut service_calls.errors);
        if !errors.is_empty() {
            self.add(Role::Assistant, errors.into_iter().map(BlockParam::ServiceError));
        }
    }

    fn add(&mut self, role: Role, blocks: impl IntoIterator<Item = BlockParam<'a>>) {
        let mut blocks = blocks.into_iter().peekable();
        match self.messages.last_mut() {
            Some(last) if last.role == role => last.content.extend(blocks),
            Some(_) | None => {
                // An empty message of a user is kept, because two messages of the model may not
                // follow each other.
                if role == Role::Assistant && blocks.peek().is_none() {
                    return;
                }
                if self.messages.is_empty() && role == Role::Assistant {
                    self.messages.push(MessageParam { role: Role::User, content: Vec::new() });
                }
                self.messages.push(MessageParam { role, content: blocks.collect() });
            }
        }
    }

    /// Returns the position of the last block that can have a breakpoint.
    fn last_cacheable(&self) -> Option<BlockPosition> {
        self.messages.iter().enumerate().rev().find_map(|(message, param)| {
            let block = param.content.iter().rposition(BlockParam::is_cacheable)?;
            Some(BlockPosition { message, block })
        })
    }

    fn finish(mut self) -> Vec<MessageParam<'a>> {
        for message in self.messages.iter_mut().filter(|message| message.content.is_empty()) {
            message.content.push(BlockParam::Text { text: EMPTY_MESSAGE, members: None });
        }
        self.messages
    }
}

/// Returns a block for a text, unless it is white space alone, which the service refuses.
fn text_block<'a>(text: &'a str, members: Option<&'a str>) -> Option<BlockParam<'a>> {
    (!text.trim().is_empty()).then_some(BlockParam::Text { text, members })
}

fn content_block(part: &ContentPart) -> Option<BlockParam<'_>> {
    match part {
        ContentPart::Text(text) => text_block(text, None),
        ContentPart::Image(image) => Some(BlockParam::Image(image)),
    }
}

impl BlockParam<'_> {
    fn is_thinking(&self) -> bool {
        match self {
            Self::Thinking { .. } => true,
            Self::Raw { is_thinking, .. } => *is_thinking,
            Self::Text { .. }
            | Self::Image(_)
            | Self::Call { .. }
            | Self::Result { .. }
            | Self::ServiceError(_)
            | Self::Breakpoint(_) => false,
        }
    }

    /// Returns whether the service accepts a breakpoint here. It refuses them at thinking.
    fn is_cacheable(&self) -> bool {
        match self {
            Self::Text { .. } | Self::Image(_) | Self::Call { .. } | Self::Result { .. } => true,
            Self::Thinking { .. }
            | Self::Raw { .. }
            | Self::ServiceError(_)
            | Self::Breakpoint(_) => false,
        }
    }
}

/// Maps call ids to unique ids of allowed characters. Ids that the model itself made stay unchanged
/// unless they repeat, because services of other vendors with this wire have ids of other forms.
#[derive(Debug, Default)]
struct CallIdMap<'a> {
    used: BTreeSet<String>,
    /// The ids of the last message's calls and the ids that were sent for them.
    last_calls: Vec<(&'a str, Cow<'a, str>)>,
}

impl<'a> CallIdMap<'a> {
    fn next_message(&mut self) {
        self.last_calls.clear();
    }

    fn call_id(&mut self, id: &'a str, is_own: bool) -> Cow<'a, str> {
        let mut sent =
            if is_own { Cow::Borrowed(id) } else { sanitized(id, is_allowed, ID_CHARS_MAX) };
        let mut times = 1;
        while self.used.contains(&*sent) {
            times += 1;
            let again = format!("{id}_{times}");
            sent = Cow::Owned(sanitized(&again, is_allowed, ID_CHARS_MAX).into_owned());
        }
        self.used.insert(sent.clone().into_owned());
        self.last_calls.push((id, sent.clone()));
        sent
    }

    fn result_id(&self, id: &'a str) -> Cow<'a, str> {
        let called = self.last_calls.iter().find(|(called, _)| *called == id);
        called.map_or_else(|| sanitized(id, is_allowed, ID_CHARS_MAX), |(_, sent)| sent.clone())
    }
}

pub(super) fn is_allowed(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

/// The calls that the service ran itself. It accepts a call and its result only together, unless the
/// call may still be running, because the response paused or waits for the results of other calls.
///
/// An exchange consists of the messages between an input of the user and the next one. A call of an exchange is
/// answered within it, or never.
#[derive(Debug, Default)]
struct ServerToolCalls<'a> {
    target_model: Option<&'a ModelOrigin>,
    /// The calls of the exchange that have a result.
    answered: BTreeSet<String>,
    /// The calls of the exchange so far.
    called: BTreeSet<String>,
    /// An input of the user ends the exchange.
    is_over: bool,
    /// The exchange has a call that may still be running.
    may_be_running: bool,
    /// The results of calls that the exchange leaves without one.
    errors: Vec<ServerToolErrorResult>,
}

/// The result of a call that the service began and did not end, in the form of the service's own errors
/// (<https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/web-search-tool>, "Errors").
#[derive(Clone, Debug, PartialEq, Eq)]
struct ServerToolErrorResult {
    /// The tool, as in the type of its results. `None` for the tools of MCP servers.
    tool: Option<&'static str>,
    call_id: String,
}

impl ServerToolErrorResult {
    /// Returns the result of a call, or `None` if the form of its tool's errors is not known.
    fn of(kind: &str, name: &str, call_id: &str) -> Option<Self> {
        let tool = match (kind, name) {
            ("mcp_tool_use", _) => None,
            (_, "web_search") => Some("web_search"),
            (_, "web_fetch") => Some("web_fetch"),
            (_, "code_execution") => Some("code_execution"),
            (_, "bash_code_execution") => Some("bash_code_execution"),
            (_, "text_editor_code_execution") => Some("text_editor_code_execution"),
            (_, _) => return None,
        };
        Some(Self { tool, call_id: call_id.to_owned() })
    }

    fn to_json(&self) -> Value {
        match self.tool {
            Some(tool) => json!({
                "type": format!("{tool}_tool_result"),
                "tool_use_id": self.call_id,
                "content": {
                    "type": format!("{tool}_tool_result_error"),
                    "error_code": "unavailable",
                },
            }),
            None => json!({
                "type": "mcp_tool_result",
                "tool_use_id": self.call_id,
                "is_error": true,
                "content": [{"type": "text", "text": "The call was not completed."}],
            }),
        }
    }
}

/// The members of a kept block that decide whether it can go back.
#[derive(Default, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
struct BlockHeader<'a> {
    #[serde(rename = "type")]
    kind: Scalar<'a>,
    id: Scalar<'a>,
    name: Scalar<'a>,
    tool_use_id: Scalar<'a>,
}

impl<'a> ServerToolCalls<'a> {
    fn new(history: &[Arc<Message>], target_model: &'a ModelOrigin) -> Self {
        let mut calls = Self { target_model: Some(target_model), ..Self::default() };
        calls.begin_exchange(history);
        calls
    }

    /// Starts the exchange at the beginning of `messages`: finds its end and its answered calls.
    fn begin_exchange(&mut self, messages: &[Arc<Message>]) {
        self.called.clear();
        self.answered.clear();
        self.errors.clear();
        let end = messages.iter().position(|message| is_input(message));
        (self.is_over, self.may_be_running) = (end.is_some(), false);
        let mut called = BTreeSet::new();
        for message in messages.get(..end.unwrap_or(messages.len())).unwrap_or_default() {
            let Message::Assistant(response) = &**message else { continue };
            if !self.target_model.is_some_and(|target| response.is_from(target)) {
                continue;
            }
            for part in &response.parts {
                let MessagePart::Raw { json } = part else { continue };
                let BlockHeader { kind, id, tool_use_id, .. } = block_header(json);
                if kind.as_text().is_some_and(|kind| kind.ends_with("tool_use")) {
                    called.extend(id.into_text());
                } else {
                    let id = tool_use_id.into_text().filter(|id| called.contains(id));
                    self.answered.extend(id);
                }
            }
        }
    }

    /// Returns a kept block if the service accepts it.
    fn block<'b>(&mut self, json: &'b str) -> Option<BlockParam<'b>> {
        let BlockHeader { kind, id, name, tool_use_id } = block_header(json);
        let kind = kind.as_text().unwrap_or_default();
        let is_accepted = if kind.ends_with("tool_use") {
            let id = id.into_text().unwrap_or_default();
            let is_accepted = self.answered.contains(&id) || {
                let is_new = self.called.insert(id.clone());
                self.accept_unanswered(kind, name.as_text().unwrap_or_default(), &id, is_new)
            };
            self.called.insert(id);
            is_accepted
        } else {
            tool_use_id.into_text().is_none_or(|id| self.called.contains(&id))
        };
        let json = serde_json::from_str(json).ok().filter(|_| is_accepted)?;
        Some(BlockParam::Raw { json, is_thinking: kind == "redacted_thinking" })
    }

    /// Returns true if a call without a result can go back: while it may be running, or because its result is
    /// added.
    fn accept_unanswered(&mut self, kind: &str, name: &str, id: &str, is_new: bool) -> bool {
        if !self.is_over {
            self.may_be_running = true;
            return true;
        }
        let error = ServerToolErrorResult::of(kind, name, id).filter(|_| is_new);
        let is_accepted = error.is_some();
        self.errors.extend(error);
        is_accepted
    }
}

fn is_input(message: &Message) -> bool {
    match message {
        Message::User { .. } | Message::Summary { .. } => true,
        Message::Assistant(_) | Message::Tool { .. } => false,
    }
}

fn block_header(json: &str) -> BlockHeader<'_> {
    serde_json::from_str(json).unwrap_or_default()
}

impl Serialize for BlockParam<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Raw { json, .. } => return json.serialize(serializer),
            Self::ServiceError(error) => return error.to_json().serialize(serializer),
            Self::Text { .. }
            | Self::Thinking { .. }
            | Self::Image(_)
            | Self::Call { .. }
            | Self::Result { .. }
            | Self::Breakpoint(_) => {}
        }
        let mut map = serializer.serialize_map(None)?;
        let (block, is_breakpoint) = match self {
            Self::Breakpoint(block) => (&**block, true),
            block @ (Self::Text { .. }
            | Self::Thinking { .. }
            | Self::Image(_)
            | Self::Call { .. }
            | Self::Result { .. }
            | Self::Raw { .. }
            | Self::ServiceError(_)) => (block, false),
        };
        match block {
            Self::Text { text, members } => {
                map.serialize_entry("type", "text")?;
                map.serialize_entry("text", text)?;
                write_members(&mut map, *members)?;
            }
            Self::Thinking { text, members } => {
                map.serialize_entry("type", "thinking")?;
                map.serialize_entry("thinking", text)?;
                write_members(&mut map, Some(members))?;
            }
            Self::Image(image) => match source(image) {
                Some(source) => {
                    map.serialize_entry("type", "image")?;
                    map.serialize_entry("source", &source)?;
                }
                None => {
                    map.serialize_entry("type", "text")?;
                    map.serialize_entry("text", &image.model_text())?;
                }
            },
            Self::Call { id, call, members } => {
                map.serialize_entry("type", "tool_use")?;
                map.serialize_entry("id", id)?;
                map.serialize_entry("name", &sanitized_tool_name(&call.name))?;
                map.serialize_entry("input", &arguments_object(call))?;
                write_members(&mut map, *members)?;
            }
            Self::Result { id, content, is_error } => {
                map.serialize_entry("type", "tool_result")?;
                map.serialize_entry("tool_use_id", id)?;
                // The service refuses images here if the call failed: "all content must be type `text` if
                // `is_error` is true". The text has a line for each image.
                let text: &str = content;
                if let Some(parts) = content.parts().filter(|_| !*is_error) {
                    let blocks: Vec<_> = parts.parts().iter().filter_map(content_block).collect();
                    map.serialize_entry("content", &blocks)?;
                } else if !text.trim().is_empty() {
                    map.serialize_entry("content", text)?;
                }
                if *is_error {
                    map.serialize_entry("is_error", &true)?;
                }
            }
            Self::Raw { .. } | Self::ServiceError(_) | Self::Breakpoint(_) => {}
        }
        if is_breakpoint {
            map.serialize_entry(CACHE_CONTROL, &breakpoint())?;
        }
        map.end()
    }
}

/// Returns the source of an image, or `None` if the service does not accept the image's media type.
fn source(image: &Image) -> Option<Value> {
    match image {
        Image::Url(url) => Some(json!({"type": "url", "url": &**url})),
        Image::Base64 { media_type, data } => {
            let media_type = accepted_media_type(media_type)?;
            Some(json!({"type": "base64", "media_type": media_type, "data": &**data}))
        }
    }
}

/// Returns the service's name of a media type, or `None` if the service refuses images of that type
/// (<https://docs.anthropic.com/en/docs/build-with-claude/vision>).
fn accepted_media_type(media_type: &str) -> Option<&'static str> {
    match media_type.to_ascii_lowercase().as_str() {
        "image/jpeg" | "image/jpg" => Some("image/jpeg"),
        "image/png" => Some("image/png"),
        "image/gif" => Some("image/gif"),
        "image/webp" => Some("image/webp"),
        _ => None,
    }
}
