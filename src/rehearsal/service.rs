//! The interface that the rehearsal service of each wire format implements.

use serde_json::Value;

use super::encoded::Encoded;
use super::script::Response;

/// The name under which the rehearsal model answers, whatever model was requested.
pub const MODEL: &str = "rehearsal";

/// The service of one wire format.
pub(super) trait ProviderService {
    /// Checks a request as strictly as the provider does, and converts it to the Chat Completions
    /// form that scripts and the improviser read: `model`, `stream`, `messages`, `tools`,
    /// `tool_choice`.
    ///
    /// # Errors
    /// The provider's refusal of the first fault.
    fn read(asked: &ProviderRequest<'_>) -> Result<Value, RequestRefusal>;

    /// Encodes a response to a request of that form: as a stream if `stream` is true.
    fn encode(response: &Response, request: &Value, stamp: ResponseStamp) -> Encoded;

    /// Returns the body of an error in the provider's form.
    fn error(status: u16, message: &str) -> Value;
}

/// A request as a client sent it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProviderRequest<'a> {
    /// The body; null if it was not JSON.
    pub(super) body: &'a Value,
    /// The last segment of the path, which holds model and method on some services.
    pub(super) action: &'a str,
}

/// The refusal of a request: HTTP status and body.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RequestRefusal {
    pub(super) status: u16,
    pub(super) body: Value,
}

/// The values that differ between two equal responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResponseStamp {
    /// The number of the request at this server; ids contain it.
    pub(super) number: u64,
    /// Unix time in seconds.
    pub(super) created: u64,
}
