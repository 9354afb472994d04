//! The interface that the service of each wire format implements.

use serde_json::Value;

use super::encoded::{BodyChunk, Encoded};
use super::script::{Call, Response};

/// The name of the model in answers, whatever model was requested.
pub(super) const MODEL: &str = "mock";

/// The service of one wire format.
pub(super) trait ProviderService {
    /// Checks a request as a strict provider does, and converts it to the Chat Completions form that
    /// scripts and the improviser read: `model`, `stream`, `messages`, `tools`, `tool_choice`,
    /// `parallel_tool_calls`. Members that only the encoder reads may be added.
    ///
    /// # Errors
    /// The provider's refusal of the first fault.
    fn read(&self, request: &ProviderRequest<'_>) -> Result<Value, RequestRefusal>;

    /// Returns the chunks of an answer as a stream.
    fn stream(&self, answer: &ScriptedAnswer<'_>) -> Vec<BodyChunk>;

    /// Returns an answer as one plain body.
    fn plain(&self, answer: &ScriptedAnswer<'_>) -> Value;

    /// Returns a stream as a body: its chunks, its content type, and the bytes of malformed chunks and keep-alives.
    fn stream_body(&self, chunks: Vec<BodyChunk>) -> Encoded {
        Encoded::events(chunks)
    }

    /// Encodes an answer: as a stream if the request's `stream` is true.
    fn encode(&self, answer: &ScriptedAnswer<'_>) -> Encoded {
        if answer.request["stream"] == true {
            self.stream_body(self.stream(answer))
        } else {
            Encoded::plain(&self.plain(answer))
        }
    }

    /// Returns the body of an error in the provider's form.
    fn error(&self, status: u16, message: &str) -> Value;

    /// Returns the refusal of a request with the provider's message.
    fn refusal(&self, status: u16, message: &str) -> RequestRefusal {
        RequestRefusal { status, body: self.error(status, message) }
    }
}

/// A request as a client sent it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProviderRequest<'a> {
    /// The body; null if it was not JSON.
    pub(super) body: &'a Value,
    /// The last segment of a path that holds model and method, decoded; empty on other paths.
    pub(super) action: &'a str,
}

/// The refusal of a request: HTTP status and body.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RequestRefusal {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// A response of a script or of the improviser, and the request that it answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct ScriptedAnswer<'a> {
    pub(super) response: &'a Response,
    /// The request in the Chat Completions form.
    pub(super) request: &'a Value,
    /// The number of the request at this server; ids contain it.
    pub(super) number: u64,
    /// Unix time in seconds.
    pub(super) created: u64,
}

impl ScriptedAnswer<'_> {
    /// Returns the id of a call: the script's, or else one with this prefix. `None` if the script
    /// sends none.
    pub(super) fn call_id(&self, prefix: &str, index: usize, call: &Call) -> Option<String> {
        let generated = || format!("{prefix}_r{}_{index}", self.number);
        (!call.no_id).then(|| call.id.clone().unwrap_or_else(generated))
    }

    /// Returns the sizes from which the token counts are estimated.
    pub(super) fn sizes(&self) -> AnswerSizes {
        let Response { reasoning, text, calls, .. } = self.response;
        let calls: usize = calls.iter().map(|call| call.arguments_text().len() + 16).sum();
        let member = |name: &str| self.request[name].to_string().len();
        AnswerSizes {
            request: member("messages") + member("tools"),
            reasoning: reasoning.iter().map(String::len).sum(),
            content: text.iter().map(String::len).sum::<usize>() + calls,
        }
    }
}

/// The sizes of a request and of the parts of its answer, in bytes, from which tokens are estimated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnswerSizes {
    /// Messages and tools.
    pub(super) request: usize,
    pub(super) reasoning: usize,
    /// Text and arguments, and 16 bytes for the rest of each call.
    pub(super) content: usize,
}

/// Returns the estimated number of tokens: one for each four bytes, rounded up.
pub(super) fn tokens(bytes: usize) -> u64 {
    bytes.div_ceil(4) as u64
}

/// Sets a member of a JSON object, if it has a value.
pub(super) fn set(object: &mut Value, key: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        object[key] = value.into();
    }
}
