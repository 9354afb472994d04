//! The script: the answers of the provider, with their pace and faults.
//!
//! A script is JSON, or built in Rust. It is a list of responses. Each request that passes the strict check gets
//! the first response whose `when` fits. That response is then removed, unless it repeats. If none fits, the answer is
//! that of the rehearsal model, or says that the script is done, as `then` decides.
//!
//! ```json
//! {"responses": [
//!    {"text": ["Let me ", "look."],
//!     "calls": [{"name": "get_weather", "arguments": {"city": "Tokyo"}, "pieces": 3}],
//!     "chunk_delay_ms": 5,
//!     "holds": [{"at": {"after_call": 0}, "name": "first"}]},
//!    {"status": 429, "retry_after": "1"},
//!    {"text": ["It is sunny."], "cut_after_chunks": 2}],
//!  "then": "improvise"}
//! ```

use std::collections::BTreeMap;

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::text::{last_user_text, split_every, split_in, turns_since_user, words};
use callsheet_rehearsal::RehearsedAnswer;

/// The answers of a provider, request after request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The responses, in order.
    #[serde(default)]
    pub responses: Vec<Response>,
    /// The behaviour when no response fits a request.
    #[serde(default)]
    pub then: Then,
}

/// The behaviour when no response of a script fits a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// Improvise from the prompt and the offered tools, as the rehearsal model does.
    #[default]
    Improvise,
    /// Answer with a short text that says that the script is done.
    Done,
}

/// The requests that a response is for. An absent member fits every request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// The request's `model`.
    pub model: Option<String>,
    /// A part of the last user message's text.
    pub last_user: Option<String>,
    /// True if the request asks for a stream.
    pub stream: Option<bool>,
    /// The number of model messages after the last user message.
    pub turns: Option<usize>,
    /// A part of the body as JSON, in the wire format of the request.
    pub contains: Option<String>,
}

/// One response of a script: its content, its pace and its faults.
///
/// Chunks are counted from 0 in the order of sending. In Chat Completions they are: the opening chunk, reasoning,
/// text, calls (name first, then the pieces of the arguments), the finish, the usage, `[DONE]`. Other wire formats
/// have the same order, but other chunks. A plain answer is sent as two chunks, its halves; an error as one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Response {
    /// The requests that it is for.
    pub when: When,
    /// Kept in the script after its use.
    pub repeat: bool,
    /// Pieces of the model's reasoning, one chunk each.
    pub reasoning: Vec<String>,
    /// Pieces of the answer, one chunk each.
    pub text: Vec<String>,
    /// The tool calls, in order.
    pub calls: Vec<Call>,
    /// The finish reason. Absent: `tool_calls` or `stop`, in the words of the wire format. `null`: none is
    /// sent.
    #[serde(deserialize_with = "present")]
    pub finish_reason: Finish,
    /// The usage, an object. Absent: estimated from the lengths, and in a stream of Chat Completions sent only
    /// if requested.
    #[serde(deserialize_with = "object")]
    pub usage: Option<Value>,
    /// The pause before every chunk but the first. Absent: the server's.
    pub chunk_delay_ms: Option<u64>,
    /// Further pauses.
    pub delays: Vec<Delay>,
    /// Positions where the stream waits until the test releases it.
    pub holds: Vec<Hold>,
    /// Raw chunks to send instead of reasoning, text, calls, finish reason and usage, also for a plain request.
    pub raw_chunks: Vec<RawChunk>,
    /// The content type of `raw_chunks`. Absent: `text/event-stream`.
    pub content_type: Option<String>,
    /// The HTTP status. Absent: 200. From 400 on, `error` is sent instead of a response, unless there are
    /// `raw_chunks`.
    pub status: Option<u16>,
    /// The `Retry-After` header.
    pub retry_after: Option<String>,
    /// Further headers of the answer.
    pub headers: BTreeMap<String, String>,
    /// The body of an error. Absent: made from the status.
    pub error: Option<Value>,
    /// Breaks the connection after this number of bytes of the body, or at its end.
    pub cut_after_bytes: Option<usize>,
    /// Breaks the connection after this number of chunks, or at the end.
    pub cut_after_chunks: Option<usize>,
    /// Sends nothing but keep-alives after this number of chunks, or at the end, until the client disconnects.
    pub stall_after_chunks: Option<usize>,
    /// The interval of keep-alives (a comment, a ping or an empty line) during a stall, in milliseconds. Absent:
    /// none are sent.
    pub keep_alive_ms: Option<u64>,
    /// Sends broken JSON in place of the chunk with this index.
    pub malformed_at_chunk: Option<usize>,
    /// Ends the body properly after the content: no finish reason, no `[DONE]`, and in a stream no usage after
    /// the content.
    pub truncate: bool,
    /// Ends the body properly after this number of chunks.
    pub truncate_after_chunks: Option<usize>,
    /// Omits only the end marker: `[DONE]`, Anthropic's `message_stop`, or `done: true` of Ollama.
    pub no_done: bool,
}

/// One tool call of a response.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Call {
    /// The id. Absent: a generated one; in Gemini none.
    pub id: Option<String>,
    /// Sends no id.
    pub no_id: bool,
    /// The tool's name. Absent: none is sent.
    pub name: Option<String>,
    /// The arguments as JSON.
    pub arguments: Option<Value>,
    /// The arguments as raw text, instead of `arguments`.
    pub arguments_raw: Option<String>,
    /// The index to send. Absent: the position in the list; in Anthropic and the Responses API the position in
    /// the whole content. Gemini sends none.
    pub index: Option<u64>,
    /// Sends no index.
    pub no_index: bool,
    /// The number of pieces in which the arguments are streamed. Absent: pieces of 8 characters. Gemini splits
    /// each text in the arguments, and without `pieces` sends them whole; Ollama always does.
    pub pieces: Option<usize>,
}

/// The finish reason of a response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Finish {
    /// The one that fits the response.
    #[default]
    Inferred,
    /// None.
    Null,
    /// This word. Those of Chat Completions are translated if the wire format has others.
    Word(String),
}

/// A position in a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScriptPosition {
    /// Before the status line, when nothing of the answer has been sent.
    Headers,
    /// Before the chunk with this index.
    Chunk(usize),
    /// Before the first chunk of this call.
    Call(usize),
    /// After the last piece of this call.
    AfterCall(usize),
    /// Before the finish.
    Finish,
    /// Before the end marker, such as `[DONE]`; without one at the end.
    Done,
}

/// A pause at a position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// The position.
    pub at: ScriptPosition,
    /// The length of the pause.
    pub ms: u64,
}

/// A named gate at a position.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// The position.
    pub at: ScriptPosition,
    /// The gate's name.
    pub name: String,
}

/// Raw bytes of a chunk; a string in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct RawChunk(pub Bytes);

impl From<String> for RawChunk {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl Script {
    /// Returns a script of these responses, which improvises after them.
    pub fn new(responses: impl IntoIterator<Item = Response>) -> Self {
        Self { responses: responses.into_iter().collect(), then: Then::Improvise }
    }

    /// Returns the script with [`Then::Done`] as its end instead of improvising.
    #[must_use]
    pub fn then_done(mut self) -> Self {
        self.then = Then::Done;
        self
    }

    /// Removes the response for a request from the script, or copies it if it repeats. `request` is the `body` in the
    /// form of Chat Completions.
    pub(super) fn next_response(&mut self, request: &Value, body: &Value) -> Option<Response> {
        let fits = |response: &Response| response.when.fits(request, body);
        let found = self.responses.iter().position(fits)?;
        if self.responses.get(found)?.repeat {
            return self.responses.get(found).cloned();
        }
        Some(self.responses.remove(found))
    }
}

impl From<RehearsedAnswer> for Response {
    fn from(answer: RehearsedAnswer) -> Self {
        let calls = answer.calls.iter().map(|call| Call::new(&call.name, call.arguments.clone()));
        Self { text: answer.text, ..Self::calls(calls) }
    }
}

impl When {
    fn fits(&self, request: &Value, body: &Value) -> bool {
        let streamed = request["stream"] == true;
        self.model.as_ref().is_none_or(|model| request["model"] == model.as_str())
            && self.stream.is_none_or(|wanted| wanted == streamed)
            && self.turns.is_none_or(|turns| turns == turns_since_user(request))
            && self.contains.as_ref().is_none_or(|part| body.to_string().contains(part))
            && self
                .last_user
                .as_ref()
                .is_none_or(|part| last_user_text(request).contains(part.as_str()))
    }
}

impl Response {
    /// Returns a response with a text in word-sized pieces.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self { text: words(text), ..Self::default() }
    }

    /// Returns a response with these calls.
    pub fn calls(calls: impl IntoIterator<Item = Call>) -> Self {
        Self { calls: calls.into_iter().collect(), ..Self::default() }
    }

    /// Returns a response of raw bytes, with one write per item.
    pub fn raw<B: Into<Bytes>>(content_type: &str, chunks: impl IntoIterator<Item = B>) -> Self {
        Self {
            raw_chunks: chunks.into_iter().map(|chunk| RawChunk(chunk.into())).collect(),
            content_type: Some(content_type.to_owned()),
            ..Self::default()
        }
    }

    /// Returns an error with this status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// Adds a gate: the stream waits at the position until the test releases it.
    #[must_use]
    pub fn hold(mut self, at: ScriptPosition, name: &str) -> Self {
        self.holds.push(Hold { at, name: name.to_owned() });
        self
    }

    /// Adds a pause at a position.
    #[must_use]
    pub fn delay(mut self, at: ScriptPosition, ms: u64) -> Self {
        self.delays.push(Delay { at, ms });
        self
    }

    /// Returns the finish reason to send, with the words of Chat Completions translated by a table.
    pub(super) fn finish_word(&self, translations: &[(&str, &str)]) -> Option<String> {
        let word = match &self.finish_reason {
            Finish::Word(word) => word.as_str(),
            Finish::Null => return None,
            Finish::Inferred if self.calls.is_empty() => "stop",
            Finish::Inferred => "tool_calls",
        };
        let translated = translations.iter().find(|(from, _)| *from == word);
        Some(translated.map_or(word, |(_, to)| to).to_owned())
    }

    /// Changes members that have no method of their own.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Call {
    /// Returns a call of a tool with arguments.
    #[must_use]
    pub fn new(name: &str, arguments: Value) -> Self {
        Self { name: Some(name.to_owned()), arguments: Some(arguments), ..Self::default() }
    }

    /// Returns a call with raw arguments.
    #[must_use]
    pub fn raw(name: &str, arguments: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            arguments_raw: Some(arguments.to_owned()),
            ..Self::default()
        }
    }

    /// Sets the id.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }

    /// Returns the arguments as text.
    pub(super) fn arguments_text(&self) -> String {
        match (&self.arguments_raw, &self.arguments) {
            (Some(raw), _) => raw.clone(),
            (None, Some(arguments)) => arguments.to_string(),
            (None, None) => String::new(),
        }
    }

    /// Returns the pieces in which the arguments are streamed.
    pub(super) fn argument_pieces(&self) -> Vec<String> {
        let text = self.arguments_text();
        match self.pieces {
            Some(count) => split_in(&text, count),
            None => split_every(&text, 8),
        }
    }
}

/// Distinguishes an absent finish reason from `null`: serde calls it only for a present member.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Finish, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map_or(Finish::Null, Finish::Word))
}

/// Refuses values other than an object or `null`.
fn object<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Ok(Option::<Map<String, Value>>::deserialize(from)?.map(Value::Object))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_every_part_of_the_format() {
        let script: Script = serde_json::from_str(
            r#"{"then": "done", "responses": [
                {"when": {"model": "m", "last_user": "hi", "stream": true, "turns": 0,
                  "contains": "x"}, "repeat": true,
                 "reasoning": ["hm"], "text": ["a", "b"], "finish_reason": null,
                 "calls": [{"id": "x", "name": "n", "arguments": {"a": 1}, "pieces": 2},
                           {"name": "n", "arguments_raw": "{", "no_index": true, "no_id": true}],
                 "usage": {"prompt_tokens": 1}, "chunk_delay_ms": 3,
                 "delays": [{"at": {"call": 1}, "ms": 5}],
                 "holds": [{"at": "finish", "name": "g"}, {"at": {"chunk": 2}, "name": "h"}]},
                {"raw_chunks": ["data: x\n\n"], "content_type": "text/plain", "status": 200},
                {"status": 429, "retry_after": "2", "error": {"error": {}}},
                {"finish_reason": "length", "cut_after_bytes": 9, "cut_after_chunks": 1,
                 "stall_after_chunks": 2, "keep_alive_ms": 10, "malformed_at_chunk": 1,
                 "truncate": true, "truncate_after_chunks": 4, "no_done": true}]}"#,
        )
        .unwrap();
        assert_eq!(script.then, Then::Done);
        let first = &script.responses[0];
        assert_eq!(first.finish_reason, Finish::Null);
        assert_eq!(first.calls[0].arguments_text(), r#"{"a":1}"#);
        assert_eq!(first.calls[1].arguments_text(), "{");
        assert_eq!(first.delays, [Delay { at: ScriptPosition::Call(1), ms: 5 }]);
        assert_eq!(first.holds[0], Hold { at: ScriptPosition::Finish, name: "g".into() });
        assert_eq!(first.holds[1].at, ScriptPosition::Chunk(2));
        assert_eq!(script.responses[1].finish_reason, Finish::Inferred);
        assert_eq!(script.responses[1].raw_chunks[0].0, "data: x\n\n");
        assert_eq!(script.responses[3].finish_reason, Finish::Word("length".into()));
        let error = serde_json::from_str::<Script>(r#"{"responses": [{"txt": []}]}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("unknown field `txt`"), "{error}");
        let error = serde_json::from_str::<Script>(r#"{"responses": [{"usage": 5}]}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("expected a map"), "{error}");
    }

    #[test]
    fn takes_the_first_response_that_fits() {
        let mut script = Script::new([
            Response::text("for a").with(|r| r.when.model = Some("a".into())),
            Response::text("for hi").with(|r| {
                r.when.last_user = Some("hi".into());
                r.repeat = true;
            }),
            Response::text("for any"),
            Response::text("for more").with(|r| r.when.contains = Some("content\":\"more".into())),
        ]);
        let asks = |model: &str, text: &str| json!({"model": model, "messages": [{"role": "user", "content": text}]});
        let mut next =
            |request: Value| script.next_response(&request, &request).map(|r| r.text.concat());
        assert_eq!(next(asks("b", "hi there")).as_deref(), Some("for hi"));
        assert_eq!(next(asks("b", "hi again")).as_deref(), Some("for hi"));
        assert_eq!(next(asks("b", "bye")).as_deref(), Some("for any"));
        assert_eq!(next(asks("b", "bye")), None);
        assert_eq!(next(asks("b", "more")).as_deref(), Some("for more"));
        assert_eq!(next(asks("a", "hi")).as_deref(), Some("for a"));
    }

    #[test]
    fn a_response_may_be_for_a_place_in_the_conversation() {
        let of = |turns| {
            move |response: &mut Response| {
                response.when.turns = Some(turns);
                response.repeat = true;
            }
        };
        let mut script = Script::new([
            Response::text("second").with(of(1)),
            Response::text("first").with(of(0)),
        ]);
        let roles = ["user", "assistant", "tool", "tool", "assistant", "user", "assistant", "tool"];
        let messages: Vec<Value> = roles.iter().map(|role| json!({"role": role})).collect();
        for (count, expect) in [
            (1, Some("first")),
            (4, Some("second")),
            (5, None),
            (6, Some("first")),
            (8, Some("second")),
        ] {
            let request = json!({"messages": messages[..count]});
            let taken = script.next_response(&request, &request);
            assert_eq!(taken.map(|response| response.text.concat()).as_deref(), expect, "{count}");
        }
    }
}
