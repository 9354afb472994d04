//! The order in which a response's parts came, and what its service wants back with them.

use std::sync::Arc;

use crate::types::MessagePart;
use crate::wire::ProviderMetadata;

/// Parts of one response that are told apart. Beyond that, what belongs to them is given up.
const PARTS_MAX: usize = 4096;

/// The parts of one response, as far as it has come.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ContentParts {
    parts: Vec<MessagePart>,
    /// True if the service wants anything back.
    wanted: bool,
    /// The last part is closed: what follows is another.
    closed: bool,
    /// Bytes of members and of parts of the service's own.
    kept_bytes: usize,
    /// There were too many.
    given_up: bool,
}

impl ContentParts {
    /// What the service wants back, in order; empty where it wants nothing.
    pub(super) fn wanted(&self) -> &[MessagePart] {
        if self.wanted && !self.given_up { &self.parts } else { &[] }
    }

    /// More text came.
    pub(super) fn text(&mut self, more: usize) {
        match self.parts.last_mut() {
            Some(MessagePart::Text { bytes, .. }) if !self.closed => *bytes += more,
            Some(_) | None => self.push(MessagePart::Text { bytes: more, members: None }),
        }
    }

    /// More reasoning came.
    pub(super) fn reasoning(&mut self, more: usize) {
        match self.parts.last_mut() {
            Some(MessagePart::Reasoning { bytes, .. }) if !self.closed => *bytes += more,
            Some(_) | None => self.push(MessagePart::Reasoning { bytes: more, members: None }),
        }
    }

    /// A call was opened.
    pub(super) fn call(&mut self, index: usize) {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.push(MessagePart::Call { index, members: None });
    }

    /// Takes what the service wants back, and says whether there was room for it. `call_at` finds
    /// the place of a call by the wire's index.
    pub(super) fn keep(
        &mut self,
        keep: &ProviderMetadata,
        call_at: impl Fn(u64) -> Option<usize>,
        bytes_max: usize,
    ) -> bool {
        let more = match keep {
            ProviderMetadata::Text { members } | ProviderMetadata::Reasoning { members } => {
                members.as_ref().map_or(0, |members| members.len())
            }
            ProviderMetadata::Call { members: json, .. }
            | ProviderMetadata::LastCall { members: json }
            | ProviderMetadata::Part(json) => json.len(),
        };
        if self.kept_bytes.saturating_add(more) > bytes_max {
            return false;
        }
        self.kept_bytes += more;
        self.wanted |= more > 0;
        match keep {
            ProviderMetadata::Text { members } => match (self.parts.last_mut(), shared(members)) {
                (Some(MessagePart::Text { members: old, .. }), new) if !self.closed => *old = new,
                (Some(_) | None, None) => {}
                (Some(_) | None, members) => self.push(MessagePart::Text { bytes: 0, members }),
            },
            ProviderMetadata::Reasoning { members } => {
                match (self.parts.last_mut(), shared(members)) {
                    (Some(MessagePart::Reasoning { members: old, .. }), new) if !self.closed => {
                        *old = new
                    }
                    (Some(_) | None, None) => {}
                    (Some(_) | None, members) => {
                        self.push(MessagePart::Reasoning { bytes: 0, members })
                    }
                }
            }
            ProviderMetadata::Call { index, members } => {
                let at = call_at(*index).and_then(|at| u32::try_from(at).ok());
                self.keep_with_call(|index| Some(index) == at, members);
                return true;
            }
            ProviderMetadata::LastCall { members } => {
                self.keep_with_call(|_| true, members);
                return true;
            }
            ProviderMetadata::Part(json) => {
                self.push(MessagePart::Raw { json: Arc::from(&**json) })
            }
        }
        self.closed = true;
        true
    }

    fn keep_with_call(&mut self, is_it: impl Fn(u32) -> bool, kept: &str) {
        for part in self.parts.iter_mut().rev() {
            if let MessagePart::Call { index, members } = part
                && is_it(*index)
            {
                *members = Some(kept.into());
                return;
            }
        }
    }

    fn push(&mut self, part: MessagePart) {
        self.closed = false;
        if self.parts.len() < PARTS_MAX {
            self.parts.push(part);
        } else {
            self.given_up = true;
            self.parts = Vec::new();
        }
    }
}

fn shared(members: &Option<Box<str>>) -> Option<Arc<str>> {
    members.as_deref().map(Arc::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(members: Option<&str>) -> ProviderMetadata {
        ProviderMetadata::Text { members: members.map(Into::into) }
    }

    fn thought(members: Option<&str>) -> ProviderMetadata {
        ProviderMetadata::Reasoning { members: members.map(Into::into) }
    }

    fn keep(parts: &mut ContentParts, keep: &ProviderMetadata) {
        assert!(parts.keep(keep, |index| usize::try_from(index).ok(), 100));
    }

    #[test]
    fn parts_keep_their_order_and_what_belongs_to_them() {
        let mut parts = ContentParts::default();
        parts.reasoning(2);
        parts.reasoning(1);
        keep(&mut parts, &thought(Some("{1}")));
        keep(&mut parts, &thought(Some("{2}")));
        parts.text(4);
        keep(&mut parts, &text(None));
        parts.text(5);
        keep(&mut parts, &text(Some("{3}")));
        parts.call(0);
        keep(&mut parts, &ProviderMetadata::Part("{4}".into()));
        parts.call(1);
        keep(&mut parts, &ProviderMetadata::Call { index: 0, members: "{5}".into() });
        keep(&mut parts, &ProviderMetadata::LastCall { members: "{6}".into() });
        let reasoning =
            |bytes, members: &str| MessagePart::Reasoning { bytes, members: Some(members.into()) };
        let expected = [
            reasoning(3, "{1}"),
            reasoning(0, "{2}"),
            MessagePart::Text { bytes: 4, members: None },
            MessagePart::Text { bytes: 5, members: Some("{3}".into()) },
            MessagePart::Call { index: 0, members: Some("{5}".into()) },
            MessagePart::Raw { json: "{4}".into() },
            MessagePart::Call { index: 1, members: Some("{6}".into()) },
        ];
        assert_eq!(parts.wanted(), expected);
    }

    #[test]
    fn where_nothing_is_wanted_back_there_are_no_parts() {
        let mut parts = ContentParts::default();
        parts.text(4);
        keep(&mut parts, &text(None));
        parts.call(0);
        assert_eq!(parts.wanted(), []);
    }

    #[test]
    fn what_is_kept_has_a_limit() {
        let mut parts = ContentParts::default();
        let long = ProviderMetadata::Part("x".repeat(60).into());
        keep(&mut parts, &long);
        assert!(!parts.keep(&long, |_| None, 100));
        for _ in 0..2 * PARTS_MAX {
            parts.text(1);
            parts.reasoning(1);
        }
        assert_eq!(parts.wanted(), []);
        assert!(parts.parts.len() <= PARTS_MAX);
    }
}
