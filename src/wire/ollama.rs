//! Ollama's own chat: not spoken yet, so no word of configuration names it.

use super::dialect::{Dialect, KeyHeader};
use super::{Delta, Framing, ModelRequest};
use crate::types::{ProviderError, ProviderErrorKind};

/// The dialect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Ollama {}

impl Dialect for Ollama {
    const STREAM_FRAMING: Framing = Framing::Sse;
    const KEY_HEADER: KeyHeader = KeyHeader::BEARER;

    fn url(base: &str, _model: &str, _stream: bool) -> String {
        base.to_owned()
    }

    fn request_body(_request: &ModelRequest) -> Vec<u8> {
        Vec::new()
    }

    fn payload(&mut self, _event: &str, _text: &str, out: &mut Vec<Delta>) {
        let message = "this wire is not spoken yet";
        out.push(Delta::Error(ProviderError::new(ProviderErrorKind::Malformed, message)));
    }
}
