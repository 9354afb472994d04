//! One call while its pieces come.

use std::sync::Arc;

use crate::wire::{CallDelta, CallKind};

/// One call while its pieces come: what the wire said of it, and what is known of its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PartialCall {
    /// The wire's own index, if it sent one.
    pub wire_index: Option<u64>,
    /// The provider's id: the first that came.
    pub provider_id: Option<Arc<str>>,
    /// The tool's name: the first that came.
    pub name: Arc<str>,
    /// The text of the arguments, everything that came.
    pub raw: String,
    /// What kind of call it is.
    pub kind: CallKind,
    /// The arguments are whole.
    pub sealed: bool,
    /// Bytes came after the seal, so the call is malformed.
    pub changed_after_seal: bool,
    /// The arguments are longer than is allowed, and `raw` is only their beginning.
    pub oversize: bool,
    /// How many calls of any kind were opened before it.
    pub arrival: usize,
    /// The wire itself says where it ends.
    pub(super) has_own_seal: bool,
    /// How far `raw` has been looked at for its end. Looked at only when it matters.
    end_scanner: JsonEndScanner,
}

impl PartialCall {
    /// A bucket for the call that a piece begins; its arguments are not yet taken.
    pub(super) fn begin(piece: &CallDelta, arrival: usize) -> Self {
        Self {
            wire_index: piece.index,
            provider_id: piece.id.as_deref().map(Arc::from),
            name: piece.name.as_deref().unwrap_or_default().into(),
            raw: String::new(),
            kind: piece.kind,
            sealed: false,
            changed_after_seal: false,
            oversize: false,
            arrival,
            has_own_seal: piece.begins,
            end_scanner: JsonEndScanner::default(),
        }
    }

    /// Takes id and name where they are still missing.
    pub(super) fn fill(&mut self, piece: &CallDelta) {
        if self.provider_id.is_none() {
            self.provider_id = piece.id.as_deref().map(Arc::from);
        }
        if let (true, Some(name)) = (self.name.is_empty(), &piece.name) {
            self.name = name.as_str().into();
        }
        if self.wire_index.is_none() {
            self.wire_index = piece.index;
        }
        if piece.kind != CallKind::Function {
            self.kind = piece.kind;
        }
    }

    /// Appends a piece of the arguments as far as it is allowed.
    pub(super) fn append(&mut self, piece: &CallDelta, bytes_max: usize) {
        let Some(text) = &piece.arguments else { return };
        if self.oversize || self.raw.len() + text.len() > bytes_max {
            self.oversize = true;
        } else {
            self.raw.push_str(text);
        }
    }

    /// Puts the whole arguments in the place of what came, as far as it is allowed.
    pub(super) fn replace(&mut self, whole: &str, bytes_max: usize) {
        self.oversize = whole.len() > bytes_max;
        if !self.oversize {
            whole.clone_into(&mut self.raw);
        }
    }

    /// Returns whether a piece that would belong here begins another call instead.
    ///
    /// A new id together with a name does. So does a name with an object of its own after an
    /// object that is closed, because no text continues a closed object: services that send
    /// whole calls without index and id, or all under the same one, are told apart that way.
    pub(super) fn is_followed_by(&mut self, piece: &CallDelta) -> bool {
        let other_id = match (&piece.id, &self.provider_id) {
            (Some(new), Some(old)) => **new != **old,
            (Some(_) | None, None) | (None, Some(_)) => false,
        };
        let Some(name) = &piece.name else {
            return other_id && piece.index.is_none() && begins_value(piece) && self.is_closed();
        };
        if other_id || self.name.is_empty() {
            return other_id;
        }
        let says_nothing_yet = self.raw.trim_ascii().is_empty();
        if **name != *self.name {
            return begins_value(piece) && (says_nothing_yet || self.is_closed());
        }
        match (&piece.id, &self.provider_id) {
            // The id may come late, but not after the arguments.
            (Some(_), None) => !says_nothing_yet,
            // With the same index, id and name it is the same call, whatever it sends.
            (Some(_), Some(_)) if piece.index.is_some() => false,
            (Some(_) | None, Some(_)) | (None, None) => begins_value(piece) && self.is_closed(),
        }
    }

    /// Returns whether any of the arguments have come.
    pub(super) fn has_arguments(&self) -> bool {
        !self.raw.trim_ascii().is_empty()
    }

    fn is_closed(&mut self) -> bool {
        self.end_scanner.follow(&self.raw);
        self.end_scanner.is_closed()
    }
}

fn begins_value(piece: &CallDelta) -> bool {
    piece.arguments.as_deref().is_some_and(|text| text.trim_ascii_start().starts_with(['{', '"']))
}

/// Where brackets and quotes stand in JSON text, so that its end is found without parsing it
/// again for every piece.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct JsonEndScanner {
    seen: usize,
    depth: usize,
    begun: bool,
    in_string: bool,
    escaped: bool,
}

impl JsonEndScanner {
    fn follow(&mut self, text: &str) {
        for byte in text.as_bytes().iter().skip(self.seen) {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => {
                    self.in_string = !self.in_string;
                    self.begun = true;
                }
                _ if self.in_string => {}
                b'{' | b'[' => {
                    self.depth += 1;
                    self.begun = true;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        self.seen = text.len();
    }

    fn is_closed(self) -> bool {
        self.begun && self.depth == 0 && !self.in_string
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outline_finds_the_end_of_a_value_in_any_pieces() {
        for (text, closed) in [
            ("", false),
            ("{", false),
            ("{}", true),
            (r#"{"a":"}"#, false),
            (r#"{"a":"}\""}"#, true),
            (r#"{"a":{"b":[]}"#, false),
            (r#""{}""#, true),
            (r#""{}"#, false),
        ] {
            for cut in 0..=text.len() {
                let mut end_scanner = JsonEndScanner::default();
                end_scanner.follow(&text[..cut]);
                end_scanner.follow(text);
                assert_eq!(end_scanner.is_closed(), closed, "{text} cut at {cut}");
            }
        }
    }
}
