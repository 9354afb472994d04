//! One call while its pieces arrive.

use std::sync::Arc;

use crate::wire::{CallDelta, CallKind};

/// One call while its pieces arrive.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PartialCall {
    /// The wire's own index, if it sent one.
    pub wire_index: Option<u64>,
    /// The first id that the provider sent.
    pub provider_id: Option<Arc<str>>,
    /// The first name of the tool that the provider sent.
    pub name: Arc<str>,
    /// The text of the arguments so far.
    pub raw: String,
    /// The kind of the call.
    pub kind: CallKind,
    /// True if the arguments are complete.
    pub sealed: bool,
    /// True if bytes arrived after the seal: the call is malformed.
    pub changed_after_seal: bool,
    /// True if the arguments were repaired.
    pub is_repaired: bool,
    /// True if the arguments exceed the limit. `raw` holds only their beginning.
    pub oversize: bool,
    /// Number of calls of any kind that were opened before it.
    pub arrival: usize,
    /// True if the wire itself marks the end of the arguments.
    pub(super) has_own_seal: bool,
    end_scanner: JsonEndScanner,
}

impl PartialCall {
    /// Creates the call that a piece begins, without the arguments of the piece.
    pub(super) fn begin(piece: &CallDelta, arrival: usize) -> Self {
        let mut call = Self { arrival, has_own_seal: piece.begins, ..Self::default() };
        call.fill(piece);
        call
    }

    /// Sets the members that are still missing.
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
        self.is_repaired |= piece.is_repaired;
        if piece.kind != CallKind::Function {
            self.kind = piece.kind;
        }
    }

    /// Appends the arguments of a piece, up to the limit.
    pub(super) fn append(&mut self, piece: &CallDelta, bytes_max: usize) {
        let Some(text) = &piece.arguments else { return };
        if self.oversize || self.raw.len() + text.len() > bytes_max {
            self.oversize = true;
        } else {
            self.raw.push_str(text);
        }
    }

    /// Replaces the arguments by the complete ones, unless these exceed the limit.
    pub(super) fn replace(&mut self, complete: &str, bytes_max: usize) {
        self.oversize = complete.len() > bytes_max;
        if !self.oversize {
            complete.clone_into(&mut self.raw);
        }
    }

    /// Returns whether a piece that would belong to this call begins another call instead.
    ///
    /// A new id together with a name begins another call. If the arguments so far are a complete
    /// object, no text continues them. Another name then begins a call too, and so does the same
    /// name together with an object. Services that send calls without index and id, or all calls
    /// under the same index, need this rule.
    pub(super) fn is_followed_by(&mut self, piece: &CallDelta) -> bool {
        let has_other_id = match (&piece.id, &self.provider_id) {
            (Some(new), Some(old)) => **new != **old,
            (Some(_) | None, None) | (None, Some(_)) => false,
        };
        let Some(name) = &piece.name else {
            return has_other_id
                && piece.index.is_none()
                && begins_value(piece)
                && self.is_closed();
        };
        if has_other_id || self.name.is_empty() {
            return has_other_id;
        }
        if **name != *self.name {
            return self.is_closed() || (begins_value(piece) && !self.has_arguments());
        }
        match (&piece.id, &self.provider_id) {
            // The id may come late, but not after the arguments.
            (Some(_), None) => self.has_arguments(),
            // A piece with the same index, id and name belongs to the same call.
            (Some(_), Some(_)) if piece.index.is_some() => false,
            (Some(_) | None, Some(_)) | (None, None) => begins_value(piece) && self.is_closed(),
        }
    }

    /// Returns whether arguments other than white space have arrived.
    pub(super) fn has_arguments(&self) -> bool {
        !self.raw.trim_ascii().is_empty()
    }

    /// Returns whether the arguments so far are one complete JSON value.
    fn is_closed(&mut self) -> bool {
        self.end_scanner.scan(&self.raw);
        self.end_scanner.is_closed()
    }
}

fn begins_value(piece: &CallDelta) -> bool {
    piece.arguments.as_deref().is_some_and(|text| text.trim_ascii_start().starts_with(['{', '"']))
}

/// Finds the end of a JSON value in a text that grows, without scanning any byte twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct JsonEndScanner {
    /// Number of bytes that were scanned.
    scanned: usize,
    /// Number of open brackets.
    depth: usize,
    begun: bool,
    in_string: bool,
    escaped: bool,
}

impl JsonEndScanner {
    fn scan(&mut self, text: &str) {
        for byte in text.as_bytes().iter().skip(self.scanned) {
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
        self.scanned = text.len();
    }

    fn is_closed(self) -> bool {
        self.begun && self.depth == 0 && !self.in_string
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scanner_finds_the_end_of_a_value_in_any_pieces() {
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
                end_scanner.scan(&text[..cut]);
                end_scanner.scan(text);
                assert_eq!(end_scanner.is_closed(), closed, "{text} cut at {cut}");
            }
        }
    }
}
