//! The messages of a request: the client's copy of the history, and the hash by which it is recognised.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::super::openai_error::{OpenAiError, wrong};
use callsheet_values::types::{Content, ContentPart, excerpt};

/// Maximum number of messages of a request.
const MESSAGES_MAX: usize = 10_000;

/// A message of the history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatMessage {
    User(Content),
    Assistant { text: String, calls: Vec<ChatCall> },
    Tool { call_id: String, content: Content },
}

/// A call in a message of the assistant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChatCall {
    pub(super) id: String,
    pub(super) name: String,
    /// The JSON text of an object.
    pub(super) arguments: String,
}

/// What a request brings beyond the history that the client has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ChatInput {
    /// A message of the user.
    User(Content),
    /// The results of calls that the client has run, and perhaps a message of the user behind them.
    Results(Vec<(String, Content)>, Option<Content>),
}

/// The messages of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChatMessages {
    /// The texts of the system and of the developer, one paragraph each.
    pub(super) instructions: Option<String>,
    /// All other messages but those of the input.
    pub(super) history: Vec<ChatMessage>,
    pub(super) input: ChatInput,
    /// The names of members that have no effect.
    pub(super) ignored: Vec<&'static str>,
}

impl ChatMessages {
    /// Parses `messages`.
    ///
    /// # Errors
    /// If a message is not valid, a call has no result, or the last message is the assistant's.
    pub(super) fn parse(value: &Value) -> Result<Self, OpenAiError> {
        let values = value.as_array().filter(|values| !values.is_empty());
        let values =
            values.ok_or_else(|| wrong("messages", "must be a list with at least one message"))?;
        if values.len() > MESSAGES_MAX {
            let problem = format!("must be at most {MESSAGES_MAX} messages, not {}", values.len());
            return Err(wrong("messages", problem));
        }
        let (mut instructions, mut all) = (Vec::new(), Vec::new());
        let mut ignored = BTreeSet::new();
        let mut open = BTreeSet::new();
        for (at, value) in values.iter().enumerate() {
            let path = format!("messages[{at}]");
            match parse_message(value, &path, &mut ignored)? {
                ParsedMessage::Instructions(text) => instructions.push(text),
                ParsedMessage::Message(ChatMessage::User(content)) if content.is_blank() => {
                    if at + 1 == values.len() {
                        return Err(wrong(format!("{path}.content"), "must not be empty"));
                    }
                }
                // Clients keep an answer of which they have received nothing.
                ParsedMessage::Message(ChatMessage::Assistant { text, calls })
                    if text.trim().is_empty() && calls.is_empty() => {}
                ParsedMessage::Message(message) => {
                    check_pairing(&message, &mut open, &path)?;
                    all.push(message);
                }
            }
        }
        if let Some(id) = open.first() {
            return Err(missing_result("messages", id));
        }
        instructions.retain(|text: &String| !text.trim().is_empty());
        let instructions = Some(instructions.join("\n\n")).filter(|text| !text.is_empty());
        let (history, input) = split(all)?;
        Ok(Self { instructions, history, input, ignored: ignored.into_iter().collect() })
    }

    /// Returns the history, with the results of calls, in the form in which a session is opened with it.
    pub(super) fn seed(&self) -> Vec<Value> {
        let results = match &self.input {
            ChatInput::User(_) => &[][..],
            ChatInput::Results(results, _) => results,
        };
        let results = results.iter().map(|(call_id, content)| {
            json!({"role": "tool", "tool_call_id": call_id, "content": content})
        });
        self.history.iter().map(ChatMessage::to_json).chain(results).collect()
    }
}

/// Returns the history and the input of all messages.
fn split(mut all: Vec<ChatMessage>) -> Result<(Vec<ChatMessage>, ChatInput), OpenAiError> {
    let user = match all.pop() {
        Some(ChatMessage::User(content)) => Some(content),
        Some(message @ ChatMessage::Tool { .. }) => {
            all.push(message);
            None
        }
        Some(ChatMessage::Assistant { .. }) | None => {
            let problem = "the last message must be a user's, or the result of a call";
            return Err(wrong("messages", problem));
        }
    };
    let is_result = |message: &ChatMessage| matches!(message, ChatMessage::Tool { .. });
    let first = all.len() - all.iter().rev().take_while(|message| is_result(message)).count();
    let results: Vec<_> = all
        .split_off(first)
        .into_iter()
        .filter_map(|message| match message {
            ChatMessage::Tool { call_id, content } => Some((call_id, content)),
            ChatMessage::User(_) | ChatMessage::Assistant { .. } => None,
        })
        .collect();
    let input = match user {
        Some(content) if results.is_empty() => ChatInput::User(content),
        user => ChatInput::Results(results, user),
    };
    Ok((all, input))
}

fn check_pairing(
    message: &ChatMessage,
    open: &mut BTreeSet<String>,
    path: &str,
) -> Result<(), OpenAiError> {
    match message {
        ChatMessage::Tool { call_id, .. } if open.remove(call_id) => Ok(()),
        ChatMessage::Tool { call_id, .. } => {
            let id = excerpt(call_id, 64);
            let problem = format!("{id:?} is no call of the message before, or has a result");
            Err(wrong(format!("{path}.tool_call_id"), problem))
        }
        ChatMessage::User(_) | ChatMessage::Assistant { .. } if !open.is_empty() => {
            Err(missing_result(path, open.first().map_or("", |id| id)))
        }
        ChatMessage::User(_) => Ok(()),
        ChatMessage::Assistant { calls, .. } => {
            open.extend(calls.iter().map(|call| call.id.clone()));
            Ok(())
        }
    }
}

fn missing_result(path: &str, id: &str) -> OpenAiError {
    let problem =
        format!("the call {:?} has no result: add a message of the role \"tool\"", excerpt(id, 64));
    wrong(path, problem)
}

enum ParsedMessage {
    Instructions(String),
    Message(ChatMessage),
}

fn parse_message(
    value: &Value,
    path: &str,
    ignored: &mut BTreeSet<&'static str>,
) -> Result<ParsedMessage, OpenAiError> {
    let fields = value.as_object().ok_or_else(|| wrong(path, "must be an object"))?;
    if fields.get("name").is_some_and(|name| !name.is_null()) {
        ignored.insert("messages[].name");
    }
    let message = match fields.get("role").and_then(Value::as_str) {
        Some("system" | "developer") => {
            return Ok(ParsedMessage::Instructions(content(fields, path)?.text().into_owned()));
        }
        Some("user") => ChatMessage::User(media_content(fields, path, ignored)?),
        Some("assistant") => parse_assistant(fields, path)?,
        Some("tool") => ChatMessage::Tool {
            call_id: text_of(fields, "tool_call_id", path)?,
            content: media_content(fields, path, ignored)?,
        },
        Some(_) | None => {
            let problem = "must be system, developer, user, assistant or tool";
            return Err(wrong(format!("{path}.role"), problem));
        }
    };
    Ok(ParsedMessage::Message(message))
}

fn parse_assistant(fields: &Map<String, Value>, path: &str) -> Result<ChatMessage, OpenAiError> {
    for name in ["audio", "function_call"] {
        if fields.get(name).is_some_and(|value| !value.is_null()) {
            return Err(wrong(format!("{path}.{name}"), "is not supported"));
        }
    }
    let text = match fields.get("content") {
        None | Some(Value::Null) => {
            fields.get("refusal").and_then(Value::as_str).unwrap_or_default().to_owned()
        }
        Some(Value::Array(parts)) => {
            let text = |part: &Value| {
                let text = part.get("text").or_else(|| part.get("refusal"));
                text.and_then(Value::as_str).map(str::to_owned)
            };
            let texts: Option<Vec<_>> = parts.iter().map(text).collect();
            let problem = "must be a text, or a list of texts";
            texts.ok_or_else(|| wrong(format!("{path}.content"), problem))?.join("\n")
        }
        Some(_) => content(fields, path)?.text().into_owned(),
    };
    let calls = match fields.get("tool_calls") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(calls)) => {
            let calls = calls.iter().enumerate();
            calls
                .map(|(at, call)| parse_call(call, &format!("{path}.tool_calls[{at}]")))
                .collect::<Result<_, _>>()?
        }
        Some(_) => return Err(wrong(format!("{path}.tool_calls"), "must be a list")),
    };
    Ok(ChatMessage::Assistant { text, calls })
}

fn parse_call(value: &Value, path: &str) -> Result<ChatCall, OpenAiError> {
    let fields = value.as_object().ok_or_else(|| wrong(path, "must be an object"))?;
    if fields.get("type").is_some_and(|kind| kind != "function") {
        return Err(wrong(format!("{path}.type"), "must be \"function\""));
    }
    let id = text_of(fields, "id", path)?;
    let path = format!("{path}.function");
    let function = fields.get("function").and_then(Value::as_object);
    let function = function.ok_or_else(|| wrong(&path, "must be an object"))?;
    let name = text_of(function, "name", &path)?;
    let arguments = match function.get("arguments").and_then(Value::as_str) {
        Some("") => Some(json!({})),
        Some(text) => serde_json::from_str(text).ok().filter(Value::is_object),
        None => None,
    };
    let problem = "must be the JSON text of an object";
    let arguments = arguments.ok_or_else(|| wrong(format!("{path}.arguments"), problem))?;
    Ok(ChatCall { id, name, arguments: arguments.to_string() })
}

fn content(fields: &Map<String, Value>, path: &str) -> Result<Content, OpenAiError> {
    let content = match fields.get("content") {
        None | Some(Value::Null) => return Ok(Content::default()),
        Some(value) => Content::parse(value),
    };
    content.map_err(|error| {
        let part = error.part().map(|at| format!("[{at}]")).unwrap_or_default();
        wrong(format!("{path}.content{part}"), error.problem())
    })
}

/// Members of parts of a content that have no effect, with their names: clients write them unasked.
const IGNORED_OF_PARTS: [(&str, &str); 3] = [
    ("/image_url/detail", "messages[].content[].image_url.detail"),
    ("/image_url/format", "messages[].content[].image_url.format"),
    ("/cache_control", "messages[].content[].cache_control"),
];

/// Returns a content that may have images.
fn media_content(
    fields: &Map<String, Value>,
    path: &str,
    ignored: &mut BTreeSet<&'static str>,
) -> Result<Content, OpenAiError> {
    let mut fields = fields.clone();
    let parts = fields.get_mut("content").and_then(Value::as_array_mut);
    for part in parts.into_iter().flatten() {
        for (pointer, name) in IGNORED_OF_PARTS {
            let member = part.pointer_mut(pointer).filter(|it| !it.is_null() && **it != "auto");
            if let Some(member) = member {
                *member = Value::Null;
                ignored.insert(name);
            }
        }
    }
    content(&fields, path)
}

fn text_of(fields: &Map<String, Value>, name: &str, path: &str) -> Result<String, OpenAiError> {
    let text = fields.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
    let problem = "must be a string that is not empty";
    text.map(str::to_owned).ok_or_else(|| wrong(format!("{path}.{name}"), problem))
}

impl ChatMessage {
    fn to_json(&self) -> Value {
        match self {
            Self::User(content) => json!({"role": "user", "content": content}),
            Self::Assistant { text, calls } => {
                let calls: Vec<Value> = calls.iter().map(ChatCall::to_json).collect();
                json!({"role": "assistant", "content": text, "tool_calls": calls})
            }
            Self::Tool { call_id, content } => {
                json!({"role": "tool", "tool_call_id": call_id, "content": content})
            }
        }
    }
}

impl ChatCall {
    /// Returns the call as a message of the assistant has it.
    pub(super) fn to_json(&self) -> Value {
        let Self { id, name, arguments } = self;
        let function = json!({"name": name, "arguments": arguments});
        json!({"id": id, "type": "function", "function": function})
    }
}

/// The hash of a history up to a message. Each message continues the hash of those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct HistoryHash([u8; 32]);

impl HistoryHash {
    /// Returns the hash of an empty history. Histories of other tokens and agents never have the same hash.
    pub(super) fn new(token: Option<&str>, agent: &str) -> Self {
        Self([0; 32]).with(["v1", token.unwrap_or_default(), agent])
    }

    /// Continues with a message. Parts of a text, and white space around it, make no difference, and neither does an
    /// answer without text and calls.
    pub(super) fn with_message(self, message: &ChatMessage) -> Self {
        let images = |content: &Content| -> Vec<String> {
            content.images().map(|image| image.url().into_owned()).collect()
        };
        match message {
            ChatMessage::User(content) => {
                let images = images(content);
                let text = content.text();
                let fields = ["user", text.trim()].into_iter();
                self.with(fields.chain(images.iter().map(String::as_str)))
            }
            ChatMessage::Assistant { text, calls }
                if text.trim().is_empty() && calls.is_empty() =>
            {
                self
            }
            ChatMessage::Assistant { text, calls } => {
                let fields = ["assistant", text.trim()].into_iter();
                let calls = calls.iter().flat_map(|call| {
                    [call.id.as_str(), call.name.as_str(), call.arguments.as_str()]
                });
                self.with(fields.chain(calls))
            }
            ChatMessage::Tool { call_id, content } => {
                let images = images(content);
                let text = content.text();
                let fields = ["tool", call_id.as_str(), text.trim()].into_iter();
                self.with(fields.chain(images.iter().map(String::as_str)))
            }
        }
    }

    /// Continues with the messages of the input.
    pub(super) fn with_input(self, input: &ChatInput) -> Self {
        let with_user =
            |hash: Self, content: &Content| hash.with_message(&ChatMessage::User(content.clone()));
        match input {
            ChatInput::User(content) => with_user(self, content),
            ChatInput::Results(results, user) => {
                let hash = results.iter().fold(self, |hash, (call_id, content)| {
                    let (call_id, content) = (call_id.clone(), content.clone());
                    hash.with_message(&ChatMessage::Tool { call_id, content })
                });
                user.iter().fold(hash, with_user)
            }
        }
    }

    fn with<'a>(self, fields: impl IntoIterator<Item = &'a str>) -> Self {
        let mut sha = Sha256::new();
        sha.update(self.0);
        for field in fields {
            sha.update((field.len() as u64).to_le_bytes());
            sha.update(field);
        }
        Self(sha.finalize().into())
    }

    /// Returns the hex digits.
    pub(super) fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Returns the content as the output of a tool.
pub(super) fn output(content: &Content) -> callsheet_tools::ToolOutput {
    use callsheet_values::types::ResultPart;
    if content.images().next().is_none() {
        return content.text().into_owned().into();
    }
    content.parts().iter().fold(callsheet_tools::ToolOutput::default(), |output, part| {
        output.with_part(match part {
            ContentPart::Text(text) => ResultPart::Text { text: text.clone() },
            ContentPart::Image(image) => ResultPart::Image(image.clone()),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(messages: Value) -> ChatMessages {
        ChatMessages::parse(&messages).unwrap()
    }

    fn hash(messages: Value) -> HistoryHash {
        let ChatMessages { history, input, .. } = parsed(messages);
        let empty = HistoryHash::new(Some("ada"), "default");
        history.iter().fold(empty, HistoryHash::with_message).with_input(&input)
    }

    fn call(id: &str, arguments: &str) -> Value {
        json!({"role": "assistant", "content": null, "tool_calls": [
            {"id": id, "type": "function", "function": {"name": "open", "arguments": arguments}},
        ]})
    }

    #[test]
    fn messages_are_split_into_instructions_history_and_input() {
        let all = parsed(json!([
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "b", "refusal": null, "annotations": []},
            {"role": "assistant", "content": ""},
            {"role": "developer", "content": [{"type": "text", "text": "In French."}]},
            {"role": "user", "content": "c"},
        ]));
        assert_eq!(all.instructions.as_deref(), Some("Be brief.\n\nIn French."));
        assert_eq!(all.input, ChatInput::User("c".into()));
        let text = |role: &str, text: &str| json!({"role": role, "content": text});
        let assistant = json!({"role": "assistant", "content": "b", "tool_calls": []});
        assert_eq!(all.seed(), [text("user", "a"), assistant]);
        let tool = json!({"role": "tool", "tool_call_id": "x", "content": "done"});
        let results = vec![("x".to_owned(), Content::from("done"))];
        let all = parsed(json!([text("user", "a"), call("x", "{}"), tool]));
        assert_eq!((all.history.len(), all.input), (2, ChatInput::Results(results.clone(), None)));
        let all = parsed(json!([text("user", "a"), call("x", ""), tool, text("user", "b")]));
        assert_eq!(all.input, ChatInput::Results(results, Some("b".into())));
        assert_eq!(all.history.len(), 2);
    }

    #[test]
    fn messages_without_content_are_left_out() {
        let user = |text: &str| json!({"role": "user", "content": text});
        let tool = json!({"role": "tool", "tool_call_id": "x", "content": "done"});
        let all = parsed(json!([user(""), user("a"), call("x", "{}"), user(" "), tool, user("b")]));
        assert_eq!(all.history.len(), 2);
        assert_eq!(all.history[0], ChatMessage::User("a".into()));
    }

    #[test]
    fn invalid_messages_are_named() {
        let user = json!({"role": "user", "content": "a"});
        for (messages, problem) in [
            (json!("a"), "messages: must be a list"),
            (json!([]), "messages: must be a list"),
            (json!([{"role": "bot"}]), "messages[0].role: must be"),
            (json!([{"role": "user", "content": " "}]), "messages[0].content: must not be empty"),
            (json!([user, call("x", "{}"), user]), "messages[2]: the call \"x\" has no result"),
            (json!([user, call("x", "{}")]), "messages: the call \"x\" has no result"),
            (json!([user, call("x", "{")]), "messages[1].tool_calls[0].function.arguments: must"),
            (
                json!([{"role": "tool", "tool_call_id": "y", "content": ""}]),
                "messages[0].tool_call_id: \"y\" is no call",
            ),
            (
                json!([{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]),
                "messages[0].content[0]: its \"type\" must be",
            ),
            (json!([user, {"role": "assistant", "content": "b"}]), "messages: the last message"),
            (json!(vec![user; 10_001]), "messages: must be at most 10000 messages"),
        ] {
            let error = ChatMessages::parse(&messages).unwrap_err();
            assert!(error.to_string().starts_with(problem), "{error}");
        }
    }

    #[test]
    fn equal_histories_have_equal_hashes() {
        let user = |content: Value| json!([{"role": "user", "content": content}]);
        let text = |text: &str| json!({"type": "text", "text": text});
        assert_eq!(hash(user(json!("a"))), hash(user(json!([text("a\n")]))));
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let seen = hash(user(json!([text("a"), image("https://a/1.png")])));
        assert_ne!(seen, hash(user(json!("a"))));
        assert_ne!(seen, hash(user(json!([text("a"), image("https://a/2.png")]))));
        let tool = json!({"role": "tool", "tool_call_id": "x", "content": "done"});
        let spaced = hash(json!([call("x", "{\"b\": 1, \"a\": 2}"), tool]));
        assert_eq!(spaced, hash(json!([call("x", "{\"a\":2,\"b\":1}"), tool])));
        assert_ne!(spaced, hash(json!([call("x", "{\"a\":2}"), tool])));
        let [ada, bob, other] = [("ada", "a"), ("bob", "a"), ("ada", "b")]
            .map(|(token, agent)| HistoryHash::new(Some(token), agent).hex());
        assert!(ada != bob && ada != other);
    }
}
