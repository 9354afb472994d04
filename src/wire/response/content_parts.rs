//! The order in which the parts of a response arrived, and the metadata that the service wants back
//! with them.

use std::sync::Arc;

use crate::ProviderMetadata;
use callsheet_values::types::MessagePart;

/// Maximum number of parts of one response. With more parts, the metadata of all is dropped.
const PARTS_MAX: usize = 4096;

/// The parts of one response, as far as it has arrived.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct ContentParts {
    parts: Vec<MessagePart>,
    /// True if the service wants metadata back.
    has_metadata: bool,
    /// True if the last part is complete, so that further text begins a new one.
    is_last_complete: bool,
    metadata_bytes: usize,
    /// True if there were more than [`PARTS_MAX`] parts.
    is_over_limit: bool,
}

impl ContentParts {
    /// Returns the parts in their order if the service wants metadata back, and otherwise none.
    pub(super) fn with_metadata(&self) -> &[MessagePart] {
        if self.has_metadata && !self.is_over_limit { &self.parts } else { &[] }
    }

    /// Adds the length of a piece of text.
    pub(super) fn add_text(&mut self, more: usize) {
        match self.parts.last_mut() {
            Some(MessagePart::Text { bytes, .. }) if !self.is_last_complete => *bytes += more,
            Some(_) | None => self.push(MessagePart::Text { bytes: more, members: None }),
        }
    }

    /// Adds the length of a piece of reasoning.
    pub(super) fn add_reasoning(&mut self, more: usize) {
        match self.parts.last_mut() {
            Some(MessagePart::Reasoning { bytes, .. }) if !self.is_last_complete => *bytes += more,
            Some(_) | None => self.push(MessagePart::Reasoning { bytes: more, members: None }),
        }
    }

    /// Adds a call.
    pub(super) fn add_call(&mut self, index: usize) {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.push(MessagePart::Call { index, members: None });
    }

    /// Adds metadata. Returns whether it fits within the limit. `call_at` returns the position of a
    /// call by the wire's index.
    pub(super) fn add_metadata(
        &mut self,
        metadata: &ProviderMetadata,
        call_at: impl Fn(u64) -> Option<usize>,
        bytes_max: usize,
    ) -> bool {
        let more = match metadata {
            ProviderMetadata::Text { members } | ProviderMetadata::Reasoning { members } => {
                members.as_ref().map_or(0, |members| members.len())
            }
            ProviderMetadata::ReasoningTags { open, close } => open.len() + close.len(),
            ProviderMetadata::Call { members: json, .. }
            | ProviderMetadata::LastCall { members: json }
            | ProviderMetadata::RawPart(json) => json.len(),
        };
        if self.metadata_bytes.saturating_add(more) > bytes_max {
            return false;
        }
        self.metadata_bytes += more;
        self.has_metadata |= more > 0;
        let shared = |members: &Option<Box<str>>| members.as_deref().map(Arc::from);
        match metadata {
            ProviderMetadata::Text { members } => {
                self.complete(MessagePart::Text { bytes: 0, members: shared(members) });
            }
            ProviderMetadata::Reasoning { members } => {
                self.complete(MessagePart::Reasoning { bytes: 0, members: shared(members) });
            }
            ProviderMetadata::ReasoningTags { open, close } => {
                self.complete_tagged(open, close);
            }
            ProviderMetadata::Call { index, members } => {
                let at = call_at(*index).and_then(|at| u32::try_from(at).ok());
                self.set_call_members(|index| Some(index) == at, members);
            }
            ProviderMetadata::LastCall { members } => self.set_call_members(|_| true, members),
            ProviderMetadata::RawPart(json) => {
                self.push(MessagePart::Raw { json: Arc::from(&**json) });
                self.is_last_complete = true;
            }
        }
        true
    }

    /// Completes the last part with the members of `part`. If the last part is of another kind or
    /// complete, the members become a new part without a text.
    fn complete(&mut self, part: MessagePart) {
        match (self.parts.last_mut(), part) {
            (Some(MessagePart::Text { members, .. }), MessagePart::Text { members: new, .. })
            | (
                Some(MessagePart::Reasoning { members, .. }),
                MessagePart::Reasoning { members: new, .. },
            ) if !self.is_last_complete => *members = new,
            (
                _,
                MessagePart::Text { members: None, .. }
                | MessagePart::Reasoning { members: None, .. },
            ) => {}
            (_, part) => self.push(part),
        }
        self.is_last_complete = true;
    }

    /// Completes the last part as reasoning in tags.
    fn complete_tagged(&mut self, open: &str, close: &str) {
        let bytes = match self.parts.last() {
            Some(MessagePart::Reasoning { bytes, members: None }) if !self.is_last_complete => {
                *bytes
            }
            Some(_) | None => 0,
        };
        if bytes > 0 {
            self.parts.pop();
        }
        self.push(MessagePart::TaggedReasoning { bytes, open: open.into(), close: close.into() });
        self.is_last_complete = true;
    }

    fn set_call_members(&mut self, is_wanted: impl Fn(u32) -> bool, new: &str) {
        for part in self.parts.iter_mut().rev() {
            if let MessagePart::Call { index, members } = part
                && is_wanted(*index)
            {
                *members = Some(new.into());
                return;
            }
        }
    }

    fn push(&mut self, part: MessagePart) {
        self.is_last_complete = false;
        if self.parts.len() < PARTS_MAX {
            self.parts.push(part);
        } else {
            self.is_over_limit = true;
            self.parts = Vec::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(members: Option<&str>) -> ProviderMetadata {
        ProviderMetadata::Text { members: members.map(Into::into) }
    }

    fn reasoning(members: Option<&str>) -> ProviderMetadata {
        ProviderMetadata::Reasoning { members: members.map(Into::into) }
    }

    fn add(parts: &mut ContentParts, metadata: &ProviderMetadata) {
        assert!(parts.add_metadata(metadata, |index| usize::try_from(index).ok(), 100));
    }

    #[test]
    fn parts_keep_their_order_and_their_metadata() {
        let mut parts = ContentParts::default();
        parts.add_reasoning(2);
        parts.add_reasoning(1);
        add(&mut parts, &reasoning(Some("{1}")));
        add(&mut parts, &reasoning(Some("{2}")));
        parts.add_text(4);
        add(&mut parts, &text(None));
        parts.add_text(5);
        add(&mut parts, &text(Some("{3}")));
        parts.add_call(0);
        add(&mut parts, &ProviderMetadata::RawPart("{4}".into()));
        parts.add_call(1);
        add(&mut parts, &ProviderMetadata::Call { index: 0, members: "{5}".into() });
        add(&mut parts, &ProviderMetadata::LastCall { members: "{6}".into() });
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
        assert_eq!(parts.with_metadata(), expected);
    }

    #[test]
    fn without_metadata_there_are_no_parts() {
        let mut parts = ContentParts::default();
        parts.add_text(4);
        add(&mut parts, &text(None));
        parts.add_call(0);
        assert_eq!(parts.with_metadata(), []);
    }

    #[test]
    fn metadata_and_parts_have_a_limit() {
        let mut parts = ContentParts::default();
        let long = ProviderMetadata::RawPart("x".repeat(60).into());
        add(&mut parts, &long);
        assert!(!parts.add_metadata(&long, |_| None, 100));
        for _ in 0..2 * PARTS_MAX {
            parts.add_text(1);
            parts.add_reasoning(1);
        }
        assert_eq!(parts.with_metadata(), []);
        assert!(parts.parts.len() <= PARTS_MAX);
    }
}
