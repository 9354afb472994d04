//! What a wire is: the one shape of the five dialects.

use serde::Serialize;

use super::body::Elements;
use super::piece::{Outline, Piece};
use super::{Delta, Framing, ModelRequest};

/// One wire: how a service is asked, and how its payloads are read.
///
/// A value reads one response. It decides nothing about calls: which piece belongs to which call,
/// and when one is whole, is the accumulator's business.
pub(super) trait Dialect: Default {
    /// How a streamed response is framed.
    const STREAM_FRAMING: Framing;

    /// The header in which the service wants its key.
    const KEY_HEADER: KeyHeader;

    /// The member of a body that holds the history. It stands last.
    const HISTORY: &'static str;

    /// Headers that every request needs.
    const HEADERS: &'static [(&'static str, &'static str)] = &[];

    /// The address that takes a request. `base` has no slash at its end, and may leave out the
    /// version where the service has only one.
    fn url(base: &str, model: &str, stream: bool) -> String;

    /// All other members of a body.
    fn head(request: &ModelRequest) -> impl Serialize;

    /// Writes the elements of the history, from where they stand, and says how far that is
    /// settled.
    fn history(request: &ModelRequest, elements: &mut Elements);

    /// Reads one JSON object: a payload of a stream, or a whole plain body. `event` is the event's
    /// name, where it has one; those named `error` are read by [`super::payload`].
    ///
    /// Where all that it reads of an object is one piece, it may say where that stands. It says so
    /// of the text alone, whatever has come before; see [`Self::piece`].
    ///
    /// # Errors
    /// It is no JSON. Then nothing was read of it.
    fn object<'p>(
        &mut self,
        event: &str,
        text: &'p str,
        out: &mut Vec<Delta>,
    ) -> serde_json::Result<Option<Outline<'p>>>;

    /// Reads an object that holds this piece and nothing else. It comes to the same as
    /// [`Self::object`] on such an object, in any state.
    fn piece(&mut self, _piece: &Piece<'_>, _out: &mut Vec<Delta>) {}

    /// The payload `[DONE]` came. It is a word of Chat Completions alone; on other wires relays say
    /// it after any end, so it proves nothing.
    fn done_word(&mut self, _out: &mut Vec<Delta>) {}

    /// Says that the body has ended.
    fn end(&mut self, _out: &mut Vec<Delta>) {}
}

/// The header in which a service wants its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHeader {
    /// The header's name, in lower case.
    pub name: &'static str,
    /// What stands before the key.
    pub prefix: &'static str,
}

impl KeyHeader {
    pub(super) const BEARER: Self = Self { name: "authorization", prefix: "Bearer " };
}

/// Whether an address names a version in its path, such as `v1`, `v1beta` or `v1alpha2`.
pub(super) fn has_version(base: &str) -> bool {
    let is_version = |segment: &str| {
        let number = segment.strip_prefix('v').unwrap_or_default();
        number.starts_with(|c: char| c.is_ascii_digit())
            && number.bytes().all(|byte| byte.is_ascii_alphanumeric())
    };
    base.split('/').skip(3).any(is_version)
}
