//! What the rehearsal model is told to answer: the script.
//!
//! A script is JSON, or built in Rust. It is a list of responses; each request that passes the
//! strict check takes the first response that is left and whose `when` fits. When none is left,
//! the model improvises or says that it is done, as `then` says.
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
use serde_json::{Value, json};

use super::text::{last_user_text, turns_since_user, words};

/// The names of the scripts that are built in, for [`Script::named`].
pub const SCRIPT_NAMES: [&str; 3] = ["weather_and_news", "three_tools", "duplicate_calls"];

/// What a rehearsal server answers, request after request.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Script {
    /// The responses, in order.
    #[serde(default)]
    pub responses: Vec<Response>,
    /// What follows when no response is left that fits.
    #[serde(default)]
    pub then: Then,
}

/// What follows on the end of a script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// Behave plausibly with the prompt and the tools offered.
    #[default]
    Improvise,
    /// Answer with a short text that says the script is done.
    Done,
}

/// Which requests a response is for; what is absent fits anything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct When {
    /// The request's `model`.
    pub model: Option<String>,
    /// A part of the last user message's text.
    pub last_user: Option<String>,
    /// Whether the request asks for a stream.
    pub stream: Option<bool>,
    /// How many responses of the model stand behind the last user message.
    pub turns: Option<usize>,
}

/// One response of a script: what is said, how it is paced, and what goes wrong.
///
/// Chunks are counted from 0 in the order of sending: the opening chunk, reasoning, text, calls
/// (name first, then the pieces of the arguments), the finish, the usage, `[DONE]`. A plain
/// answer is sent as two chunks, its halves.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Response {
    /// Which requests it is for.
    pub when: When,
    /// Kept in the script after its use.
    pub repeat: bool,
    /// Pieces of the model's thinking, each a chunk.
    pub reasoning: Vec<String>,
    /// Pieces of the answer, each a chunk.
    pub text: Vec<String>,
    /// The tool calls, in order.
    pub calls: Vec<Call>,
    /// The finish reason: `tool_calls` or `stop` where it is absent, none is sent for `null`.
    #[serde(deserialize_with = "present")]
    pub finish_reason: Finish,
    /// The usage to send whether or not it was asked for; made up from the lengths where absent.
    pub usage: Option<Value>,
    /// A pause before every chunk but the first; the server's own where absent.
    pub chunk_delay_ms: Option<u64>,
    /// Further pauses.
    pub delays: Vec<Delay>,
    /// Places where the stream waits until the test releases it.
    pub holds: Vec<Hold>,
    /// Sent byte for byte instead of everything above (also if the request wants no stream).
    pub raw_chunks: Vec<RawChunk>,
    /// The content type of `raw_chunks`; `text/event-stream` where absent.
    pub content_type: Option<String>,
    /// The HTTP status. One of 400 and above is answered with `error` instead of a response,
    /// unless there are `raw_chunks`.
    pub status: Option<u16>,
    /// The `Retry-After` header.
    pub retry_after: Option<String>,
    /// Further headers of the answer.
    pub headers: BTreeMap<String, String>,
    /// The body of an error; made up from the status where absent.
    pub error: Option<Value>,
    /// Break the connection after so many bytes of the body.
    pub cut_after_bytes: Option<usize>,
    /// Break the connection after so many chunks.
    pub cut_after_chunks: Option<usize>,
    /// Send nothing more after so many chunks, until the client leaves.
    pub stall_after_chunks: Option<usize>,
    /// Send a comment every so many milliseconds of a stall.
    pub keep_alive_ms: Option<u64>,
    /// Send broken JSON in place of this chunk.
    pub malformed_at_chunk: Option<usize>,
    /// End the body in good order after the content: no finish, no usage, no `[DONE]`.
    pub truncate: bool,
    /// End the body in good order after so many chunks.
    pub truncate_after_chunks: Option<usize>,
    /// Leave out `[DONE]` alone.
    pub no_done: bool,
}

/// One tool call of a response.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Call {
    /// The id; one is made up where it is absent.
    pub id: Option<String>,
    /// Send no id at all.
    pub no_id: bool,
    /// The tool's name; none is sent where it is absent.
    pub name: Option<String>,
    /// The arguments as JSON.
    pub arguments: Option<Value>,
    /// The arguments as text, whatever it is; comes before `arguments`.
    pub arguments_raw: Option<String>,
    /// The index to send; its place in the list where absent.
    pub index: Option<u64>,
    /// Send no index at all.
    pub no_index: bool,
    /// In how many pieces the arguments are streamed; pieces of about 8 characters where absent.
    pub pieces: Option<usize>,
}

/// What finish reason a response gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Finish {
    /// What fits the response.
    #[default]
    Inferred,
    /// None.
    Null,
    /// This word.
    Word(String),
}

/// A place in a response: before a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum At {
    /// Before the status line: nothing of the answer is sent yet.
    Headers,
    /// Before the chunk of this number.
    Chunk(usize),
    /// Before the first chunk of this call.
    Call(usize),
    /// After the last piece of this call.
    AfterCall(usize),
    /// Before the finish.
    Finish,
    /// Before `[DONE]`.
    Done,
}

/// A pause at a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delay {
    /// Where.
    pub at: At,
    /// How long.
    pub ms: u64,
}

/// A named gate at a place.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hold {
    /// Where.
    pub at: At,
    /// Its name.
    pub name: String,
}

/// Bytes that are sent as they are; text in JSON.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub struct RawChunk(pub Bytes);

impl From<String> for RawChunk {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl Script {
    /// Parses a script from JSON.
    ///
    /// # Errors
    /// Says where the text is no script.
    pub fn from_json(text: &str) -> Result<Self, InvalidScript> {
        serde_json::from_str(text).map_err(|error| InvalidScript(error.to_string()))
    }

    /// One of the built-in scripts, for tools `get_weather {city}`, `get_news {topic}` and
    /// `get_time {zone}`; they do the same whatever the prompt.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let weather = || Call::new("get_weather", json!({"city": "Tokyo"}));
        let news = || Call::new("get_news", json!({"topic": "technology"}));
        let time = || Call::new("get_time", json!({"zone": "Asia/Tokyo"}));
        let (calls, answer) = match name {
            "weather_and_news" => {
                (vec![weather(), news()], "That is the weather in Tokyo, and the news.")
            }
            "three_tools" => {
                (vec![weather(), news(), time()], "That is the weather, the news and the time.")
            }
            "duplicate_calls" => {
                (vec![weather(), weather()], "I asked for the same weather twice.")
            }
            _ => return None,
        };
        let mut asking = Response::text("Let me look that up.");
        asking.calls = calls;
        Some(Self::of([asking, Response::text(&format!("(offline rehearsal model) {answer}"))]))
    }

    /// A script of these responses, improvising after them.
    pub fn of(responses: impl IntoIterator<Item = Response>) -> Self {
        Self { responses: responses.into_iter().collect(), then: Then::Improvise }
    }

    /// Says that it is done when no response is left, instead of improvising.
    #[must_use]
    pub fn then_done(mut self) -> Self {
        self.then = Then::Done;
        self
    }

    /// Takes the response for a request out of the script (or copies it, if it repeats).
    pub(super) fn take(&mut self, request: &Value) -> Option<Response> {
        let found = self.responses.iter().position(|response| response.when.fits(request))?;
        if self.responses.get(found)?.repeat {
            return self.responses.get(found).cloned();
        }
        Some(self.responses.remove(found))
    }
}

impl When {
    fn fits(&self, request: &Value) -> bool {
        let streamed = request["stream"] == true;
        self.model.as_ref().is_none_or(|model| request["model"] == model.as_str())
            && self.stream.is_none_or(|wanted| wanted == streamed)
            && self.turns.is_none_or(|turns| turns == turns_since_user(request))
            && self
                .last_user
                .as_ref()
                .is_none_or(|part| last_user_text(request).contains(part.as_str()))
    }
}

impl Response {
    /// A response that says a text, in word-sized pieces.
    #[must_use]
    pub fn text(text: &str) -> Self {
        Self { text: words(text), ..Self::default() }
    }

    /// A response that makes these calls.
    pub fn calls(calls: impl IntoIterator<Item = Call>) -> Self {
        Self { calls: calls.into_iter().collect(), ..Self::default() }
    }

    /// A response of bytes that are sent as they are, each item in its own write.
    pub fn raw<B: Into<Bytes>>(content_type: &str, chunks: impl IntoIterator<Item = B>) -> Self {
        Self {
            raw_chunks: chunks.into_iter().map(|chunk| RawChunk(chunk.into())).collect(),
            content_type: Some(content_type.to_owned()),
            ..Self::default()
        }
    }

    /// An error of a status.
    #[must_use]
    pub fn status(status: u16) -> Self {
        Self { status: Some(status), ..Self::default() }
    }

    /// Waits at a place until the test releases the gate.
    #[must_use]
    pub fn hold(mut self, at: At, name: &str) -> Self {
        self.holds.push(Hold { at, name: name.to_owned() });
        self
    }

    /// Pauses at a place.
    #[must_use]
    pub fn delay(mut self, at: At, ms: u64) -> Self {
        self.delays.push(Delay { at, ms });
        self
    }

    /// Changes the response in place: for fields that have no method here.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }
}

impl Call {
    /// A call of a tool with arguments.
    #[must_use]
    pub fn new(name: &str, arguments: Value) -> Self {
        Self { name: Some(name.to_owned()), arguments: Some(arguments), ..Self::default() }
    }

    /// A call whose arguments are this text, whatever it is.
    #[must_use]
    pub fn raw(name: &str, arguments: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            arguments_raw: Some(arguments.to_owned()),
            ..Self::default()
        }
    }

    /// Gives the call an id.
    #[must_use]
    pub fn id(mut self, id: &str) -> Self {
        self.id = Some(id.to_owned());
        self
    }

    /// The text of the arguments.
    pub(super) fn arguments_text(&self) -> String {
        match (&self.arguments_raw, &self.arguments) {
            (Some(raw), _) => raw.clone(),
            (None, Some(arguments)) => arguments.to_string(),
            (None, None) => String::new(),
        }
    }
}

/// The text is no script.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid script: {0}")]
pub struct InvalidScript(String);

/// Tells an absent finish reason from `null`: it is only called when the field is there.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Finish, D::Error> {
    Ok(Option::<String>::deserialize(from)?.map_or(Finish::Null, Finish::Word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_part_of_the_format() {
        let script = Script::from_json(
            r#"{"then": "done", "responses": [
                {"when": {"model": "m", "last_user": "hi", "stream": true, "turns": 0}, "repeat": true,
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
        assert_eq!(first.delays, [Delay { at: At::Call(1), ms: 5 }]);
        assert_eq!(first.holds[0], Hold { at: At::Finish, name: "g".into() });
        assert_eq!(first.holds[1].at, At::Chunk(2));
        assert_eq!(script.responses[1].finish_reason, Finish::Inferred);
        assert_eq!(script.responses[1].raw_chunks[0].0, "data: x\n\n");
        assert_eq!(script.responses[3].finish_reason, Finish::Word("length".into()));
        let error = Script::from_json(r#"{"responses": [{"txt": []}]}"#).unwrap_err().to_string();
        assert!(error.contains("unknown field `txt`"), "{error}");
    }

    #[test]
    fn takes_the_first_response_that_fits() {
        let mut script = Script::of([
            Response::text("for a").with(|r| r.when.model = Some("a".into())),
            Response::text("for hi").with(|r| {
                r.when.last_user = Some("hi".into());
                r.repeat = true;
            }),
            Response::text("for any"),
        ]);
        let asks = |model: &str, text: &str| json!({"model": model, "messages": [{"role": "user", "content": text}]});
        let mut take = |request: Value| script.take(&request).map(|r| r.text.concat());
        assert_eq!(take(asks("b", "hi there")).as_deref(), Some("for hi"));
        assert_eq!(take(asks("b", "hi again")).as_deref(), Some("for hi"));
        assert_eq!(take(asks("b", "bye")).as_deref(), Some("for any"));
        assert_eq!(take(asks("b", "bye")), None);
        assert_eq!(take(asks("a", "hi")).as_deref(), Some("for a"));
    }

    #[test]
    fn a_response_may_be_for_a_place_in_the_conversation() {
        let of = |turns| {
            move |response: &mut Response| {
                response.when.turns = Some(turns);
                response.repeat = true;
            }
        };
        let mut script =
            Script::of([Response::text("second").with(of(1)), Response::text("first").with(of(0))]);
        let roles = ["user", "assistant", "tool", "tool", "assistant", "user", "assistant", "tool"];
        let messages: Vec<Value> = roles.iter().map(|role| json!({"role": role})).collect();
        for (count, expect) in [
            (1, Some("first")),
            (4, Some("second")),
            (5, None),
            (6, Some("first")),
            (8, Some("second")),
        ] {
            let taken = script.take(&json!({"messages": messages[..count]}));
            assert_eq!(taken.map(|response| response.text.concat()).as_deref(), expect, "{count}");
        }
    }

    #[test]
    fn every_named_script_is_there() {
        for name in SCRIPT_NAMES {
            let script = Script::named(name).unwrap();
            assert!(script.responses[0].calls.len() >= 2, "{name}");
            assert!(script.responses[1].calls.is_empty(), "{name}");
        }
        assert_eq!(Script::named("no_such"), None);
    }
}
