//! The history in the form of OpenAI's Chat Completions API reference.
//!
//! The metadata of a model's message (reasoning, members of calls) is sent only to the model that wrote it; any other
//! model gets the text and the calls. Reasoning goes back in the member in which it came (`ReasoningWriter`).
//! Consecutive messages of users are joined, because some services and many chat templates require alternating roles.

use std::borrow::Cow;
use std::iter::Peekable;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::request_cache::HistoryWriter;
use crate::tool_images::append_result_images;
use crate::{ModelRequest, call_ids};
use callsheet_values::message::{Message, RequestPart, ResponseMessage};
use callsheet_values::types::{
    Content, ContentPart, ModelOrigin, ReasoningField, ReasoningMembers, ReasoningRule,
    SendReasoning, ToolCall, Wire,
};

/// Writes the messages of a request, system prompt first.
///
/// The images of tool results are sent in a user message after the last result of the turn, because a tool message can
/// have only text. The next request can reuse the bytes up to the end of a model's message, or of a tool result if
/// there are no images before it in the turn and in it. A user message can still change: the next one is joined to it.
pub(super) fn write(request: &ModelRequest, writer: &mut HistoryWriter) {
    let target_model = ModelOrigin { wire: Wire::OpenaiChat, model: request.model.clone() };
    if let Some(content) = request.system.as_deref().filter(|text| !text.is_empty())
        && writer.is_empty()
    {
        writer.write(&TextMessage { role: "system", content });
    }
    let first = writer.first_message();
    writer.mark_reusable(first);
    let before = request.messages.iter().take(first).map(|message| &**message);
    let mut ids = CallIdMap { target_model: &target_model, last_author: last_author(before) };
    let mut reasoning = ReasoningWriter::new(request, &target_model);
    let new = request.messages.iter().map(|message| &**message).enumerate().skip(first);
    let mut messages = new.filter(|(_, message)| !is_empty_answer(message)).peekable();
    let mut images = None;
    while let Some((position, message)) = messages.next() {
        match message {
            Message::User { content } | Message::Summary { content } => {
                write_user(writer, content, &mut messages)
            }
            Message::Assistant(message) => {
                ids.last_author = message.origin.as_deref();
                writer.write(&AssistantMessage::new(message, position, &ids, &mut reasoning));
                writer.mark_reusable(position + 1);
            }
            Message::Tool { call_id, name: _, content, metadata: _ } => {
                let tool_call_id = ids.map(call_id);
                writer.write(&ToolMessage { role: "tool", tool_call_id, content });
                images = append_result_images(images, content);
                if images.is_none() {
                    writer.mark_reusable(position + 1);
                } else if !matches!(messages.peek(), Some((_, Message::Tool { .. })))
                    && let Some(images) = images.take()
                {
                    write_user(writer, &images, &mut messages);
                }
            }
        }
    }
}

/// Writes a message of a user, joined with the users' messages that follow.
fn write_user<'a>(
    writer: &mut HistoryWriter,
    content: &Content,
    messages: &mut Peekable<impl Iterator<Item = (usize, &'a Message)>>,
) {
    let mut more = Vec::new();
    while let Some((_, Message::User { content } | Message::Summary { content })) = messages.peek()
    {
        more.push(content);
        messages.next();
    }
    writer.write(&TextMessage { role: "user", content: &*join_contents(content, &more) });
}

/// Returns the origin, if it has one, of the last message of a model among these. Skips empty answers, which are
/// not sent.
fn last_author<'a>(
    messages: impl DoubleEndedIterator<Item = &'a Message>,
) -> Option<&'a ModelOrigin> {
    messages.rev().filter(|message| !is_empty_answer(message)).find_map(
        |message| match message {
            Message::Assistant(response) => Some(response.origin.as_deref()),
            Message::User { .. } | Message::Summary { .. } | Message::Tool { .. } => None,
        },
    )?
}

/// Returns whether a message is an empty answer of a model, which some services refuse (Mistral's
/// error: "Assistant message must have either content or tool_calls").
fn is_empty_answer(message: &Message) -> bool {
    match message {
        Message::Assistant(response) => response.text.is_empty() && response.calls.is_empty(),
        Message::User { .. } | Message::Summary { .. } | Message::Tool { .. } => false,
    }
}

#[derive(Serialize)]
struct TextMessage<'a, C: Serialize + ?Sized> {
    role: &'static str,
    content: &'a C,
}

#[derive(Serialize)]
struct ToolMessage<'a> {
    role: &'static str,
    tool_call_id: Cow<'a, str>,
    content: &'a str,
}

/// Joins consecutive contents of users. A single content is unchanged. Several contents that have only text become
/// one text, which every service accepts.
fn join_contents<'a>(first: &'a Content, more: &[&'a Content]) -> Cow<'a, Content> {
    if more.is_empty() {
        return Cow::Borrowed(first);
    }
    let all = || std::iter::once(first).chain(more.iter().copied());
    let parts = || all().flat_map(|content| content.parts());
    if parts().all(|part| part.as_text().is_some()) {
        let texts: Vec<Cow<'_, str>> = all().map(|content| content.text()).collect();
        return Cow::Owned(texts.join("\n\n").into());
    }
    Cow::Owned(parts().cloned().collect::<Vec<ContentPart>>().into())
}

/// Maps call ids to the form in which a call and its result are sent.
struct CallIdMap<'a> {
    /// The model that receives the request.
    target_model: &'a ModelOrigin,
    /// The model that made the calls; `None` for a message with which the session was opened.
    last_author: Option<&'a ModelOrigin>,
}

impl CallIdMap<'_> {
    /// Returns the id in the form in which it is sent. The form depends only on the model and on the
    /// message with the call, so that it is the same in each request to the model.
    ///
    /// An id that the model itself made is unchanged. An id of another model is mapped, even if that
    /// model has the same wire: Mistral refuses the ids of OpenAI, and OpenAI has refused ids of more
    /// than 40 characters (<https://github.com/agno-agi/agno/issues/5382>). The service that made an
    /// id of the opening messages is not known. Most services accept it, so it is mapped only for
    /// Mistral.
    fn map<'i>(&self, id: &'i str) -> Cow<'i, str> {
        let is_foreign = match self.last_author {
            Some(author) => author != self.target_model,
            None => is_mistral(&self.target_model.model),
        };
        if is_foreign { call_ids::nine_char_id(id) } else { Cow::Borrowed(id) }
    }
}

/// Returns whether a model is Mistral's, by its name: Mistral, Ministral, Magistral, Codestral,
/// Devstral, Mixtral, Pixtral, Voxtral.
fn is_mistral(model: &str) -> bool {
    let name = model.to_ascii_lowercase();
    name.contains("stral") || name.contains("xtral")
}

/// A message of a model.
#[derive(Serialize)]
struct AssistantMessage<'a> {
    role: &'static str,
    content: AssistantContent<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_text: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_details: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_opaque: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<CallParam<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum AssistantContent<'a> {
    Text(Option<&'a str>),
    /// Parts, of which one is the reasoning (Mistral's API reference).
    Parts(Vec<AssistantPart<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum AssistantPart<'a> {
    Thinking { thinking: [Box<Self>; 1] },
    Text { text: &'a str },
}

/// Decides in which members the reasoning of each message is sent.
///
/// The form of a message depends only on the rule and on the messages before it, so that it stays the same in each
/// request to the model: a message without reasoning gets an empty member only if an earlier message of the model has
/// the member, or if the rule demands it.
struct ReasoningWriter<'a> {
    rule: ReasoningRule,
    target_model: &'a ModelOrigin,
    messages: &'a [Arc<Message>],
    /// The member in which the reasoning of the last message with any came. The outer `None` means that the messages
    /// have not been searched yet.
    shown: Option<Option<ReasoningField>>,
}

/// The reasoning of one message as it is sent.
#[derive(Default)]
struct SentReasoning<'a> {
    /// The member of the text, and the text.
    text: Option<(ReasoningField, &'a str)>,
    details: Option<&'a RawValue>,
    opaque: Option<&'a RawValue>,
}

impl<'a> ReasoningWriter<'a> {
    fn new(request: &'a ModelRequest, target_model: &'a ModelOrigin) -> Self {
        let messages = &*request.messages;
        Self { rule: request.reasoning, target_model, messages, shown: None }
    }

    /// Returns whether the reasoning of a message is the target's own.
    fn is_own(&self, message: &ResponseMessage) -> bool {
        message.has_reasoning_of(self.target_model, self.rule.is_fallback)
    }

    /// Returns whether the reasoning of a message without reasoning parts is sent. An earlier version stored messages
    /// without calls so. Of a message with which the session was opened, the author is not known then, so it is sent
    /// only if the rule demands reasoning.
    fn sends_whole(&self, message: &ResponseMessage) -> bool {
        let is_known = message.origin.is_some() || self.rule.send == SendReasoning::All;
        is_known && self.is_own(message) && !message.has_reasoning_part()
    }

    /// Returns the reasoning of the message at `position`. `members` and `text` are those of its own parts.
    fn reasoning(
        &mut self,
        message: &ResponseMessage,
        position: usize,
        members: ReasoningMembers<'a>,
        text: &'a str,
    ) -> SentReasoning<'a> {
        let own = shown_field(&members);
        if own.is_some() {
            self.shown = Some(own);
        }
        if !self.rule.includes(!message.calls.is_empty()) {
            return SentReasoning::default();
        }
        let ReasoningMembers { field, reasoning_details: details, reasoning_opaque: opaque } =
            members;
        let demanded = self.rule.field;
        let mut sent = SentReasoning { text: None, details, opaque };
        // A demanded member is sent beside the details, which otherwise replace the text.
        let demanded_text = demanded.filter(|field| field.is_chat_text());
        if !text.is_empty() && (details.is_none() || demanded_text.is_some()) {
            let holds_text =
                |field: &ReasoningField| field.is_chat_text() || *field == ReasoningField::Content;
            let field = demanded_text.or(field.filter(holds_text));
            let field = field.or_else(|| self.default_field(position).filter(holds_text));
            sent.text = field.map(|field| (field, text));
        }
        let has_demanded = match demanded {
            Some(ReasoningField::ReasoningDetails) => details.is_some(),
            Some(_) => sent.text.is_some(),
            None => sent.text.is_some() || details.is_some(),
        };
        if !has_demanded {
            match demanded.or_else(|| self.default_field(position)) {
                Some(ReasoningField::ReasoningDetails) => sent.details = empty_list(),
                // A part of the content is never empty.
                Some(ReasoningField::Content | ReasoningField::Thinking) | None => {}
                Some(field) => sent.text = Some((field, self.rule.filler())),
            }
        }
        sent
    }

    /// Returns the member for a message whose reasoning has none: that of an earlier message, or if the rule demands
    /// one `reasoning_content`, which most services have.
    fn default_field(&mut self, position: usize) -> Option<ReasoningField> {
        let shown = match self.shown {
            Some(shown) => shown,
            None => {
                let before = self.messages.get(..position).unwrap_or_default();
                let mut sent = before.iter().rev().filter(|message| !is_empty_answer(message));
                let shown = sent.find_map(|message| match &**message {
                    // Most messages of models that do not think have no parts, which is found out fastest.
                    Message::Assistant(message)
                        if !message.parts.is_empty() && self.is_own(message) =>
                    {
                        shown_field(&message.reasoning_members())
                    }
                    Message::Assistant(_)
                    | Message::User { .. }
                    | Message::Summary { .. }
                    | Message::Tool { .. } => None,
                });
                *self.shown.insert(shown)
            }
        };
        let demanded = match self.rule.send {
            SendReasoning::All => Some(ReasoningField::ReasoningContent),
            SendReasoning::Auto | SendReasoning::Calls | SendReasoning::Never => None,
        };
        shown.or(demanded)
    }
}

/// Returns the member in which reasoning with these members came.
fn shown_field(members: &ReasoningMembers<'_>) -> Option<ReasoningField> {
    match members.reasoning_details {
        Some(_) => Some(ReasoningField::ReasoningDetails),
        None => members.field,
    }
}

/// Returns the JSON of an empty list.
fn empty_list<'a>() -> Option<&'a RawValue> {
    serde_json::from_str("[]").ok()
}

impl<'a> AssistantMessage<'a> {
    /// Makes the message at `position` of the history.
    fn new(
        message: &'a ResponseMessage,
        position: usize,
        ids: &CallIdMap<'_>,
        reasoning: &mut ReasoningWriter<'a>,
    ) -> Self {
        let is_own = reasoning.is_own(message);
        let mut members = ReasoningMembers::default();
        let mut reasoning_bytes = 0;
        let mut tool_calls = Vec::with_capacity(message.calls.len());
        for part in message.parts_for(is_own) {
            match part {
                RequestPart::Reasoning { text, members: found } => {
                    reasoning_bytes += text.len();
                    members.add(read_members(found));
                }
                RequestPart::Call { call, members } => {
                    tool_calls.push(CallParam::new(call, ids.map(&call.id), members));
                }
                // The text parts are the message's text. This dialect writes no raw parts.
                RequestPart::Text { .. } | RequestPart::Raw(_) => {}
            }
        }
        // The texts of the reasoning parts, in order, are the beginning of `message.reasoning`.
        let text = match reasoning.sends_whole(message) {
            true => &*message.reasoning,
            false => message.reasoning.get(..reasoning_bytes).unwrap_or_default(),
        };
        let SentReasoning { text: sent, details, opaque } =
            reasoning.reasoning(message, position, members, text);
        let reasoning_in =
            |this: ReasoningField| sent.filter(|(field, _)| *field == this).map(|(_, text)| text);
        let text = Some(&*message.text).filter(|text| !text.is_empty());
        let content = match reasoning_in(ReasoningField::Content) {
            None => AssistantContent::Text(text),
            Some(thinking) => {
                let thinking = [Box::new(AssistantPart::Text { text: thinking })];
                let text = text.map(|text| AssistantPart::Text { text });
                let parts = [AssistantPart::Thinking { thinking }].into_iter().chain(text);
                AssistantContent::Parts(parts.collect())
            }
        };
        Self {
            role: "assistant",
            content,
            reasoning_content: reasoning_in(ReasoningField::ReasoningContent),
            reasoning: reasoning_in(ReasoningField::Reasoning),
            reasoning_text: reasoning_in(ReasoningField::ReasoningText),
            reasoning_details: details,
            reasoning_opaque: opaque,
            tool_calls,
        }
    }
}

/// Reads members that this dialect wrote itself.
fn read_members<'a, T: serde::Deserialize<'a> + Default>(members: Option<&'a str>) -> T {
    members.and_then(|members| serde_json::from_str(members).ok()).unwrap_or_default()
}

/// A call together with the members that go back with it.
#[derive(Serialize)]
struct CallParam<'a> {
    id: Cow<'a, str>,
    #[serde(rename = "type")]
    kind: &'static str,
    function: FunctionParam<'a>,
    #[serde(flatten)]
    members: Map<String, Value>,
}

#[derive(Serialize)]
struct FunctionParam<'a> {
    name: Cow<'a, str>,
    arguments: String,
    #[serde(flatten)]
    members: Map<String, Value>,
}

impl<'a> CallParam<'a> {
    fn new(call: &'a ToolCall, id: Cow<'a, str>, members: Option<&str>) -> Self {
        let mut members: Map<String, Value> = read_members(members);
        let function_members = match members.remove("function") {
            Some(Value::Object(members)) => members,
            Some(_) | None => Map::new(),
        };
        let function = FunctionParam {
            name: call_ids::sanitized_tool_name(&call.name),
            arguments: call.arguments_text(),
            members: function_members,
        };
        Self { id, kind: "function", function, members }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::WireFormat as _;
    use SendReasoning::{All, Auto, Calls, Never};
    use callsheet_values::types::{CallKey, Image, MessagePart};

    fn call(index: u32, id: &str) -> ToolCall {
        ToolCall {
            key: CallKey { turn: 1, attempt: 1, index },
            id: id.into(),
            provider_id: None,
            name: "add".into(),
            arguments: json!({"a": 1}).into(),
            raw: None,
            indirect: false,
        }
    }

    fn result(id: &str) -> Message {
        Message::Tool {
            call_id: id.into(),
            name: "add".into(),
            content: "3".into(),
            metadata: json!({"error": true}),
        }
    }

    fn origin(wire: Wire, model: &str) -> Option<Arc<ModelOrigin>> {
        Some(Arc::new(ModelOrigin { wire, model: model.into() }))
    }

    fn reasoning_part(bytes: usize, members: &Value) -> MessagePart {
        MessagePart::Reasoning { bytes, members: Some(members.to_string().into()) }
    }

    /// Returns a message with two bytes of reasoning, two bytes of text, and two calls.
    fn model_message(parts: Vec<MessagePart>) -> ResponseMessage {
        ResponseMessage {
            text: "ok".into(),
            reasoning: "hm".into(),
            calls: vec![call(0, "c0"), call(1, "c1")],
            origin: origin(Wire::OpenaiChat, "m"),
            parts,
            hint_bytes: None,
        }
    }

    fn sent_to(model: &str, messages: Vec<Message>) -> Value {
        sent_with(model, ReasoningRule::default(), messages)
    }

    fn sent_with(model: &str, reasoning: ReasoningRule, messages: Vec<Message>) -> Value {
        let messages: Vec<_> = messages.into_iter().map(Arc::new).collect();
        let request = ModelRequest { reasoning, ..ModelRequest::new(model, messages.into()) };
        let body = Wire::OpenaiChat.request_body(&request);
        serde_json::from_slice::<Value>(&body).unwrap()["messages"].take()
    }

    fn user(text: &str) -> Message {
        Message::User { content: text.into() }
    }

    #[test]
    fn a_call_of_an_unknown_tool_goes_back_under_a_valid_name() {
        let mut message = model_message(vec![]);
        message.calls[0].name = "multi_tool_use.parallel".into();
        for model in ["m", "other"] {
            let sent = sent_to(model, vec![Message::Assistant(message.clone().into())]);
            let name = &sent[0]["tool_calls"][0]["function"]["name"];
            assert_eq!(name, "multi_tool_use_parallel_41c06c9e");
            assert_eq!(sent[0]["tool_calls"][1]["function"]["name"], "add");
        }
    }

    #[test]
    fn reasoning_goes_back_in_its_field_to_the_model_that_wrote_it() {
        let text = MessagePart::Text { bytes: 2, members: None };
        for (field, member, content) in [
            ("reasoning_content", "reasoning_content", json!("ok")),
            ("reasoning", "reasoning", json!("ok")),
            ("reasoning_text", "reasoning_text", json!("ok")),
            (
                "content",
                "none",
                json!([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                    {"type": "text", "text": "ok"}]),
            ),
        ] {
            let message =
                model_message(vec![reasoning_part(2, &json!({ "field": field })), text.clone()]);
            let own = sent_to("m", vec![Message::Assistant(message.clone().into())]);
            assert_eq!(
                (&own[0]["content"], own[0].get(member).is_some()),
                (&content, member != "none")
            );
            let other = sent_to("other", vec![Message::Assistant(message.clone().into())]);
            assert_eq!((&other[0]["content"], other[0].get(member)), (&json!("ok"), None));
            let answer = ResponseMessage { calls: vec![], ..message };
            let answers = vec![Message::Assistant(answer.into())];
            let sent = sent_to("m", answers.clone());
            assert_eq!(
                (&sent[0]["content"], sent[0].get(member).is_some()),
                (&content, member != "none")
            );
            let bare = json!([{"role": "assistant", "content": "ok"}]);
            for (model, rule) in [("other", Auto), ("m", Calls), ("m", Never)] {
                assert_eq!(sent_with(model, rule_of(rule), answers.clone()), bare, "{rule:?}");
            }
        }
    }

    fn rule_of(send: SendReasoning) -> ReasoningRule {
        ReasoningRule { send, ..ReasoningRule::default() }
    }

    /// Returns a text of the model `m`, with this reasoning in this member.
    fn answer(text: &str, reasoning: &str, members: &Value) -> Message {
        let parts = match reasoning {
            "" if !members.is_object() => vec![],
            reasoning => vec![
                MessagePart::Text { bytes: text.len(), members: None },
                reasoning_part(reasoning.len(), members),
            ],
        };
        let (text, reasoning) = (text.to_owned(), reasoning.to_owned());
        let origin = origin(Wire::OpenaiChat, "m");
        let message = ResponseMessage { text, reasoning, origin, parts, ..Default::default() };
        Message::Assistant(message.into())
    }

    /// Checks one member of each message that is sent with this rule; `null` where it is not sent.
    #[track_caller]
    fn check_member(rule: ReasoningRule, messages: &[Message], member: &str, expected: Value) {
        let sent = sent_with("m", rule, messages.to_vec());
        let members: Vec<_> = sent.as_array().unwrap().iter().map(|m| &m[member]).collect();
        assert_eq!(json!(members), expected, "{rule:?}");
        // The form of a message does not depend on those after it.
        for count in 0..messages.len() {
            let first = sent_with("m", rule, messages[..count].to_vec());
            assert_eq!(first.as_array().unwrap()[..], sent.as_array().unwrap()[..count]);
        }
    }

    #[test]
    fn a_message_without_reasoning_gets_an_empty_member_if_an_earlier_one_has_the_member() {
        let field = json!({"field": "reasoning"});
        let foreign = ResponseMessage { text: "f".into(), ..ResponseMessage::default() };
        let messages = [
            answer("a", "", &Value::Null),
            answer("b", "hm", &field),
            answer("c", "", &Value::Null),
            Message::Assistant(foreign.into()),
        ];
        let all = json!([null, "hm", "", ""]);
        check_member(rule_of(Auto), &messages, "reasoning", all);
        check_member(rule_of(Calls), &messages, "reasoning", json!([null, null, null, null]));
        check_member(rule_of(Never), &messages, "reasoning", json!([null, null, null, null]));
        // All messages of a service that demands it have it.
        check_member(rule_of(All), &messages, "reasoning", json!([null, "hm", "", ""]));
        check_member(rule_of(All), &messages, "reasoning_content", json!(["", null, null, null]));
        let demanded = ReasoningRule {
            field: Some(ReasoningField::ReasoningContent),
            refuses_empty: true,
            ..rule_of(All)
        };
        check_member(demanded, &messages, "reasoning_content", json!([" ", "hm", " ", " "]));
        check_member(demanded, &messages, "reasoning", json!([null, null, null, null]));
        // With calls only.
        let mut call_without = model_message(vec![]);
        call_without.reasoning = String::new();
        let mut with_calls = model_message(vec![reasoning_part(2, &field)]);
        with_calls.text = String::new();
        let messages =
            [with_calls, call_without].map(|message| Message::Assistant(Arc::new(message)));
        check_member(rule_of(Calls), &messages, "reasoning", json!(["hm", ""]));
    }

    #[test]
    fn details_and_parts_of_the_content_have_their_own_empty_form() {
        let details = json!([{"type": "reasoning.text", "text": "hm"}]);
        let members = json!({"field": "reasoning", "reasoning_details": details});
        let messages = [answer("a", "hm", &members), answer("b", "", &Value::Null)];
        check_member(rule_of(Auto), &messages, "reasoning_details", json!([details, []]));
        check_member(rule_of(Auto), &messages, "reasoning", json!([null, null]));
        let demanded =
            ReasoningRule { field: Some(ReasoningField::ReasoningContent), ..rule_of(All) };
        check_member(demanded, &messages, "reasoning_content", json!(["hm", ""]));
        check_member(demanded, &messages, "reasoning_details", json!([details, null]));
        let demanded =
            ReasoningRule { field: Some(ReasoningField::ReasoningDetails), ..rule_of(All) };
        check_member(demanded, &messages, "reasoning_details", json!([details, []]));
        let messages =
            [answer("a", "hm", &json!({"field": "content"})), answer("b", "", &Value::Null)];
        let thinking = json!([{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
            {"type": "text", "text": "a"}]);
        check_member(rule_of(Auto), &messages, "content", json!([thinking, "b"]));
    }

    #[test]
    fn an_answer_that_an_earlier_version_stored_without_a_member_gets_that_of_the_calls() {
        let answer = ResponseMessage { calls: vec![], ..model_message(vec![]) };
        let calls = model_message(vec![reasoning_part(2, &json!({"field": "reasoning"}))]);
        let messages = [calls, answer].map(|message| Message::Assistant(Arc::new(message)));
        check_member(rule_of(Auto), &messages, "reasoning", json!(["hm", "hm"]));
        check_member(rule_of(Auto), &messages[1..], "reasoning", json!([null]));
        check_member(rule_of(All), &messages[1..], "reasoning_content", json!(["hm"]));
    }

    #[test]
    fn the_reasoning_of_opening_messages_goes_to_the_sessions_own_model() {
        let opening = ResponseMessage {
            origin: None,
            calls: vec![],
            ..model_message(vec![reasoning_part(2, &json!({"field": "reasoning_content"}))])
        };
        // The metadata of an exported message alone do not say where its reasoning came from.
        let exported = ResponseMessage { parts: vec![], ..opening.clone() };
        let messages = [exported, opening].map(|message| Message::Assistant(Arc::new(message)));
        check_member(rule_of(Auto), &messages, "reasoning_content", json!([null, "hm"]));
        check_member(rule_of(All), &messages, "reasoning_content", json!(["hm", "hm"]));
        let fallback = ReasoningRule { is_fallback: true, ..rule_of(Auto) };
        check_member(fallback, &messages, "reasoning_content", json!([null, null]));
        let fallback = ReasoningRule { is_fallback: true, ..rule_of(All) };
        check_member(fallback, &messages, "reasoning_content", json!(["", ""]));
    }

    #[test]
    fn reasoning_details_go_back_instead_of_the_text() {
        let details = json!([{"type": "reasoning.encrypted", "data": "x", "index": 0}]);
        let parts = vec![
            reasoning_part(2, &json!({"field": "reasoning"})),
            reasoning_part(0, &json!({"field": "reasoning", "reasoning_details": details})),
        ];
        let sent = sent_to("m", vec![Message::Assistant(model_message(parts).into())]);
        assert_eq!((&sent[0]["reasoning_details"], sent[0].get("reasoning")), (&details, None));
    }

    #[test]
    fn an_empty_answer_is_not_sent() {
        let silent = ResponseMessage { reasoning: "hm".into(), ..ResponseMessage::default() };
        let messages = vec![user("a"), Message::Assistant(silent.into()), user("b")];
        assert_eq!(sent_to("m", messages), json!([{"role": "user", "content": "a\n\nb"}]));
    }

    #[test]
    fn reasoning_opaque_goes_back_beside_the_text() {
        let parts = vec![
            reasoning_part(2, &json!({"field": "reasoning_text"})),
            reasoning_part(0, &json!({"field": "reasoning_text", "reasoning_opaque": "x"})),
        ];
        let message = model_message(parts);
        let sent = sent_to("m", vec![Message::Assistant(message.clone().into())]);
        assert_eq!(
            (&sent[0]["reasoning_text"], &sent[0]["reasoning_opaque"]),
            (&json!("hm"), &json!("x"))
        );
        let other = sent_to("other", vec![Message::Assistant(message.into())]);
        assert_eq!(other[0].get("reasoning_opaque"), None);
    }

    #[test]
    fn an_invalid_tool_name_is_sanitized() {
        let named = |name: &str| {
            let calls = vec![ToolCall { name: name.into(), ..call(0, "c0") }];
            let message = ResponseMessage { calls, ..ResponseMessage::default() };
            let sent = sent_to("m", vec![Message::Assistant(message.into()), result("c0")]);
            sent[0]["tool_calls"][0]["function"]["name"].as_str().unwrap().to_owned()
        };
        for fits in ["add", "A-b_9", &"n".repeat(64)] {
            assert_eq!(named(fits), fits);
        }
        for invalid in ["a.b", "a b", "é", &"n".repeat(65)] {
            let sent = named(invalid);
            assert!(sent.len() <= 64, "{sent}");
            assert!(
                sent.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b)),
                "{sent}"
            );
        }
        assert_ne!(named("a.b"), named("a b"));
    }

    #[test]
    fn a_complete_history_for_its_own_model() {
        let extra = json!({"extra_content": {"google": {"thought_signature": "s"}},
            "function": {"thought_signature": "t"}});
        let parts = vec![
            reasoning_part(2, &json!({"field": "reasoning_content"})),
            MessagePart::Text { bytes: 2, members: None },
            MessagePart::Call { index: 0, members: Some(extra.to_string().into()) },
            MessagePart::Call { index: 1, members: None },
        ];
        let history = vec![
            user("1 + 2?"),
            Message::Assistant(model_message(parts).into()),
            result("c0"),
            result("c1"),
            user("And?"),
        ];
        insta::assert_json_snapshot!("own_model", sent_to("m", history.clone()));
        insta::assert_json_snapshot!("other_model", sent_to("other", history));
    }

    /// Checks the ids that a model gets for a call of a message with this origin, and for its result.
    #[track_caller]
    fn check_sent_id(from: Option<Arc<ModelOrigin>>, model: &str, id: &str, expected: &str) {
        let calls = vec![call(0, id)];
        let message = ResponseMessage { calls, origin: from, ..ResponseMessage::default() };
        let sent = sent_to(model, vec![Message::Assistant(message.into()), result(id)]);
        let sent_ids = (&sent[0]["tool_calls"][0]["id"], &sent[1]["tool_call_id"]);
        assert_eq!(sent_ids, (&json!(expected), &json!(expected)), "{id} to {model}");
    }

    #[test]
    fn ids_of_other_models_are_mapped_and_results_like_their_calls() {
        let long = "c".repeat(41);
        for (from, id) in [
            (origin(Wire::AnthropicMessages, "m"), "toolu_1"),
            (origin(Wire::GeminiGenerate, "other"), "call_0_0"),
            (origin(Wire::OpenaiChat, "other"), "call_PTLP8xhu3uwZk4l3nlnrrJha"),
            (origin(Wire::OpenaiChat, "other"), "call_1_0"),
            (origin(Wire::OpenaiChat, "other"), &*long),
        ] {
            let mapped = call_ids::nine_char_id(id);
            assert_ne!(mapped, id);
            check_sent_id(from, "m", id, &mapped);
        }
        for (from, id) in [
            (origin(Wire::OpenaiChat, "other"), "D681PevKs"),
            (origin(Wire::OpenaiChat, "m"), "call_1_0"),
            (origin(Wire::OpenaiChat, "m"), "functions.add:0"),
            (origin(Wire::OpenaiChat, "m"), &*long),
        ] {
            check_sent_id(from, "m", id, id);
        }
    }

    #[test]
    fn ids_of_opening_messages_are_mapped_for_mistral_alone() {
        for model in ["mistral-large-latest", "mistralai/Mixtral-8x7B", "Codestral-2501"] {
            check_sent_id(None, model, "call_a", &call_ids::nine_char_id("call_a"));
            check_sent_id(None, model, "D681PevKs", "D681PevKs");
            check_sent_id(origin(Wire::OpenaiChat, model), model, "call_a", "call_a");
        }
        for model in ["gpt-5", "moonshotai/kimi-k2", "deepseek-chat", "m"] {
            check_sent_id(None, model, "call_a", "call_a");
        }
    }

    #[test]
    fn consecutive_user_messages_are_joined() {
        let text = |text: &str| ContentPart::Text(text.into());
        let image = ContentPart::Image(Image::parse("https://example.com/a.png").unwrap());
        let with_image = Message::User { content: vec![text("see"), image].into() };
        let in_parts = Message::User { content: vec![text("b"), text("c")].into() };
        assert_eq!(
            sent_to("m", vec![user("a"), in_parts, user("d")]),
            json!([{"role": "user", "content": "a\n\nb\nc\n\nd"}])
        );
        let image = json!({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}});
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(
            sent_to("m", vec![user("a"), with_image]),
            json!([{"role": "user", "content": [text("a"), text("see"), image]}])
        );
    }
}
