//! The two traits that each of the five dialects implements: one for requests, one for responses.

use serde_json::Value;

use super::fast_path::{TemplateFields, TemplateMatch};
use super::request_cache::HistoryWriter;
use super::{Delta, Framing, ModelRequest};

/// The form of one wire's requests.
pub(super) trait RequestFormat {
    /// The framing of a streamed response.
    const STREAM_FRAMING: Framing;

    /// The header that carries the API key.
    const KEY_HEADER: KeyHeader;

    /// The member of the request body that holds the history. Only [`Self::CACHE_KEY_MEMBER`]
    /// is written after it.
    const HISTORY_MEMBER: &'static str;

    /// The members other than the history on which the host relies. `extra_body` and `omit_body` of the
    /// configuration do not change them.
    const PROTECTED_MEMBERS: &'static [&'static str] = &["model", "tools", "stream"];

    /// The member that names the prompt in the service's cache. It follows the history, so that the
    /// sessions of a model share the bytes before it.
    const CACHE_KEY_MEMBER: Option<&'static str> = None;

    /// Headers that every request needs.
    const HEADERS: &'static [(&'static str, &'static str)] = &[];

    /// Returns the address for requests. `base` does not end with a slash. It may lack the version
    /// if the service has only one.
    fn url(base: &str, model: &str, stream: bool) -> String;

    /// Returns the members of the request body other than the history: a JSON object, in which
    /// null stands for a member that is not sent.
    fn head(request: &ModelRequest) -> Value;

    /// Writes the elements of the history that are not in the prefix that the writer reuses, and marks
    /// which of them later requests can reuse.
    fn write_history(request: &ModelRequest, writer: &mut HistoryWriter);
}

/// Decodes the payloads of one response.
///
/// If a wire does not mark the starts and ends of calls, the decoder decides neither which piece
/// belongs to which call nor when a call is complete. The assembler of the response decides both.
pub(super) trait PayloadDecoder {
    /// Parses one JSON object, either a payload of a stream or a complete plain body, and appends
    /// its deltas to `out`. `event` is the name of the server-sent event, or empty. Events named
    /// `error` do not come here; [`super::decoder`] reads them.
    ///
    /// If the object holds a single change, may return the members that vary between payloads of this form.
    /// [`super::fast_path`] makes a template of them, so that later payloads of the form are not parsed. They must
    /// depend on `event` and `text` alone, not on the state of the decoder.
    ///
    /// # Errors
    /// The text is not valid JSON, or cannot be read for another reason, such as a repeated key. Then no delta
    /// was appended, and the state is unchanged.
    fn parse_payload<'p>(
        &mut self,
        event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<TemplateFields<'p>>>;

    /// Decodes a payload that matched a template. In every state the deltas are the same as those
    /// of [`Self::parse_payload`], except that consecutive pieces may be joined to one delta.
    fn apply_match(&mut self, _matched: &TemplateMatch<'_>, _out: &mut Vec<Delta>) {}

    /// Handles the payload `[DONE]`. Only Chat Completions defines it. On other wires relays send
    /// it after any end, so it proves nothing.
    fn done_marker(&mut self, _out: &mut Vec<Delta>) {}

    /// Handles the end of the body.
    fn end_of_body(&mut self, _out: &mut Vec<Delta>) {}
}

/// The header that carries the API key of a service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHeader {
    /// The header's name, in lower case.
    pub name: &'static str,
    /// The text before the key in the header's value.
    pub prefix: &'static str,
}

impl KeyHeader {
    pub(super) const BEARER: Self = Self { name: "authorization", prefix: "Bearer " };
}

/// Returns whether the path of an address has a version segment such as `v1`, `v1beta` or
/// `v1alpha2`.
pub(super) fn has_version(base: &str) -> bool {
    let is_version = |segment: &str| {
        let number = segment.strip_prefix('v').unwrap_or_default();
        number.starts_with(|c: char| c.is_ascii_digit())
            && number.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    base.split('/').skip(3).any(is_version)
}
