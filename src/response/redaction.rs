//! Replaces the host's secrets in the deltas of a response.
//!
//! A secret may be cut at any place into several deltas. The end of a text that may be the beginning of
//! a secret is therefore held back until the next delta decides.

use crate::types::{ProviderError, Secrets};
use crate::wire::{CallDelta, CallKind, Delta, ProviderMetadata};

/// Replaces secrets in the deltas of one response, which are given in order.
#[derive(Clone, Debug)]
pub struct DeltaRedactor {
    secrets: Secrets,
    /// The text that is held back, and where it belongs.
    held: Option<(HeldChannel, String)>,
}

/// The text of a response to which a delta adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeldChannel {
    Text,
    Reasoning,
    Refusal,
    /// The arguments of the newest call.
    Arguments {
        index: Option<u64>,
        kind: CallKind,
    },
}

impl DeltaRedactor {
    /// Creates a redactor for one response. Returns `None` if there are no secrets.
    #[must_use]
    pub fn new(secrets: &Secrets) -> Option<Self> {
        (!secrets.is_empty()).then(|| Self { secrets: secrets.clone(), held: None })
    }

    /// Replaces secrets in a batch.
    #[must_use]
    pub fn redact(&mut self, batch: Vec<Delta>) -> Vec<Delta> {
        let mut redacted = Vec::with_capacity(batch.len());
        for delta in batch {
            self.push(delta, &mut redacted);
        }
        redacted
    }

    /// Returns what was held back. Called at the end of the response.
    #[must_use]
    pub fn finish(&mut self) -> Option<Delta> {
        let (channel, text) = self.held.take()?;
        Some(channel.delta(self.secrets.redact(&text).into_owned()))
    }

    /// Replaces secrets in an error.
    pub fn redact_error(&self, error: &mut ProviderError) {
        self.secrets.redact_in_place(&mut error.message);
        if let Some(code) = &mut error.code {
            self.secrets.redact_in_place(code);
        }
    }

    fn push(&mut self, delta: Delta, out: &mut Vec<Delta>) {
        match delta {
            Delta::Text(text) => self.push_text(HeldChannel::Text, text, out),
            Delta::Reasoning(text) => self.push_text(HeldChannel::Reasoning, text, out),
            Delta::Refusal(text) => self.push_text(HeldChannel::Refusal, text, out),
            Delta::Call(piece) if piece.id.is_none() && piece.name.is_none() && !piece.begins => {
                let CallDelta { index, kind, arguments, .. } = piece;
                let channel = HeldChannel::Arguments { index, kind };
                self.push_text(channel, arguments.unwrap_or_default(), out);
            }
            // A piece with a name or an id is not divided, because both may begin another call.
            Delta::Call(mut piece) => {
                out.extend(self.finish());
                self.redact_labels(&mut piece);
                let channel = HeldChannel::Arguments { index: piece.index, kind: piece.kind };
                piece.arguments = piece.arguments.map(|text| self.hold_end(channel, text));
                out.push(Delta::Call(piece));
            }
            mut other => {
                out.extend(self.finish());
                self.redact_whole(&mut other);
                out.push(other);
            }
        }
    }

    fn push_text(&mut self, channel: HeldChannel, text: String, out: &mut Vec<Delta>) {
        if self.held.as_ref().is_some_and(|(held, _)| *held != channel) {
            out.extend(self.finish());
        }
        let text = match self.held.take() {
            Some((_, held)) => held + &text,
            None => text,
        };
        let text = self.hold_end(channel, text);
        if !text.is_empty() || self.held.is_none() {
            out.push(channel.delta(text));
        }
    }

    /// Replaces secrets in a text, and holds its end back if a secret may begin there.
    fn hold_end(&mut self, channel: HeldChannel, mut text: String) -> String {
        self.secrets.redact_in_place(&mut text);
        let begun = self.secrets.begun_at_end(&text);
        if begun > 0 {
            self.held = Some((channel, text.split_off(text.len() - begun)));
        }
        text
    }

    fn redact_labels(&self, piece: &mut CallDelta) {
        for text in [&mut piece.id, &mut piece.name].into_iter().flatten() {
            self.secrets.redact_in_place(text);
        }
    }

    /// Replaces secrets in a delta that is not continued by the next one.
    fn redact_whole(&self, delta: &mut Delta) {
        match delta {
            Delta::Call(piece) => self.redact_labels(piece),
            Delta::Seal { arguments: Some(text), .. } => self.secrets.redact_in_place(text),
            Delta::Metadata(
                ProviderMetadata::Text { members: Some(json) }
                | ProviderMetadata::Reasoning { members: Some(json) }
                | ProviderMetadata::Call { members: json, .. }
                | ProviderMetadata::LastCall { members: json }
                | ProviderMetadata::Part(json),
            ) => *json = self.secrets.redact(json).into(),
            Delta::Finish(reason) => reason.raw = self.secrets.redact(&reason.raw).into(),
            Delta::Usage { raw, .. } => *raw = self.secrets.redact(raw).into(),
            Delta::Error(error) => self.redact_error(error),
            Delta::Problem(problem) => self.secrets.redact_in_place(&mut problem.detail),
            Delta::Text(_)
            | Delta::Reasoning(_)
            | Delta::Refusal(_)
            | Delta::Seal { arguments: None, .. }
            | Delta::Metadata(
                ProviderMetadata::Text { members: None }
                | ProviderMetadata::Reasoning { members: None },
            )
            | Delta::Done => {}
        }
    }
}

impl HeldChannel {
    fn delta(self, text: String) -> Delta {
        match self {
            Self::Text => Delta::Text(text),
            Self::Reasoning => Delta::Reasoning(text),
            Self::Refusal => Delta::Refusal(text),
            Self::Arguments { index, kind } => Delta::Call(CallDelta {
                index,
                kind,
                arguments: Some(text),
                ..CallDelta::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::response::{ResponseAssembler, ResponseLimits};
    use crate::types::{FinishKind, FinishReason, ProviderErrorKind};

    const KEY: &str = "sk-live-0123456789";

    /// Returns the deltas of a response whose texts are cut into pieces of this many bytes.
    fn deltas(size: usize) -> Vec<Delta> {
        let pieces = |text: &str| -> Vec<String> {
            let chars: Vec<char> = text.chars().collect();
            chars.chunks(size).map(|piece| piece.iter().collect()).collect()
        };
        let text = format!("a {KEY} b sk-live-x {KEY}{KEY}");
        let mut deltas: Vec<_> = pieces(&text).into_iter().map(Delta::Text).collect();
        deltas.extend(pieces(&format!("hm {KEY}")).into_iter().map(Delta::Reasoning));
        for index in 0..2 {
            deltas.push(Delta::Call(CallDelta {
                index: Some(index),
                id: Some(format!("c{index}")),
                name: Some("f".to_owned()),
                arguments: Some(String::new()),
                ..CallDelta::default()
            }));
            let arguments = format!("{{\"key\":\"{KEY}\"}}");
            deltas.extend(pieces(&arguments).into_iter().map(|piece| {
                let (index, arguments) = (Some(index), Some(piece));
                Delta::Call(CallDelta { index, arguments, ..CallDelta::default() })
            }));
        }
        let (kind, raw) = (FinishKind::ToolCalls, "tool_calls".into());
        deltas.push(Delta::Finish(FinishReason { kind, raw }));
        deltas.push(Delta::Done);
        deltas
    }

    #[test]
    fn a_secret_is_replaced_however_it_is_cut() {
        for size in 1..KEY.len() + 2 {
            let mut redactor = DeltaRedactor::new(&Secrets::new([KEY])).unwrap();
            let mut response = ResponseAssembler::new(ResponseLimits::default());
            let mut push = |batch: Vec<Delta>| {
                for delta in &batch {
                    assert!(!format!("{delta:?}").contains(KEY), "{delta:?}");
                    response.push(delta);
                }
            };
            for delta in deltas(size) {
                push(redactor.redact(vec![delta]));
            }
            push(redactor.finish().into_iter().collect());
            response.end(true);
            assert_eq!(response.text(), "a [redacted] b sk-live-x [redacted][redacted]", "{size}");
            assert_eq!(response.reasoning(), "hm [redacted]");
            let calls: Vec<_> = response.calls().iter().map(|call| call.raw.as_str()).collect();
            assert_eq!(calls, ["{\"key\":\"[redacted]\"}"; 2], "{size}");
        }
    }

    #[test]
    fn what_begins_no_secret_passes_unchanged() {
        let secrets = Secrets::new(["another-secret"]);
        let mut redactor = DeltaRedactor::new(&secrets).unwrap();
        for delta in deltas(3) {
            let redacted = redactor.redact(vec![delta.clone()]);
            let is_held = matches!(&delta, Delta::Text(text) if text.ends_with('a'));
            assert!(redacted == [delta.clone()] || is_held || redactor.held.is_none(), "{delta:?}");
        }
        assert!(DeltaRedactor::new(&Secrets::default()).is_none());
    }

    #[test]
    fn errors_are_redacted() {
        let redactor = DeltaRedactor::new(&Secrets::new([KEY])).unwrap();
        let mut error = ProviderError::new(ProviderErrorKind::Status, format!("bad key {KEY}"));
        redactor.redact_error(&mut error);
        assert_eq!(error.message, "bad key [redacted]");
    }
}
