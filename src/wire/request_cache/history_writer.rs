//! Writes the history of a request body, and records the part of it that the next body can reuse.

use bytes::Bytes;
use serde::Serialize;

/// Spare capacity of a body beyond the bytes that it reuses.
const SPARE_BYTES: usize = 1024;

/// The part of a body that the next body can reuse.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReusablePrefix {
    /// Number of leading messages that must be identical.
    pub(super) messages: usize,
    /// Number of history elements in the prefix.
    pub(super) elements: usize,
    /// Number of leading bytes.
    pub(super) bytes: usize,
    /// Number of bytes of the body before the first element of its history.
    pub(super) head_end: usize,
    /// Number of bytes of the body up to the end of its history.
    pub(super) history_end: usize,
}

/// Writes the history of a body: a list of elements, the first of which may be reused bytes.
#[derive(Debug)]
pub(crate) struct HistoryWriter {
    body: Vec<u8>,
    /// The prefix that this body reuses.
    reused: ReusablePrefix,
    /// The prefix of this body that the next one can reuse.
    reusable: ReusablePrefix,
    /// Number of elements so far.
    elements: usize,
}

impl HistoryWriter {
    /// Begins the list after the head of a body.
    pub(crate) fn new(head: &[u8]) -> Self {
        let mut body = Vec::with_capacity(head.len() + SPARE_BYTES);
        body.extend_from_slice(head);
        let (bytes, head_end) = (head.len(), head.len());
        let prefix = ReusablePrefix { bytes, head_end, ..ReusablePrefix::default() };
        Self { body, reused: prefix, reusable: prefix, elements: 0 }
    }

    /// Continues the list after the reusable prefix of a body.
    pub(crate) fn after(body: Bytes, prefix: ReusablePrefix) -> Self {
        let body = leading_bytes(body, prefix.bytes);
        Self { body, reused: prefix, reusable: prefix, elements: prefix.elements }
    }

    /// Closes the list, writes the last member if there is one, and closes the body. Returns the body and the
    /// prefix that the next one can reuse.
    pub(crate) fn finish(mut self, last: Option<(&str, &str)>) -> (Vec<u8>, ReusablePrefix) {
        self.reusable.history_end = self.body.len();
        self.body.push(b']');
        if let Some((member, value)) = last {
            self.body.push(b',');
            append_json(&mut self.body, member);
            self.body.push(b':');
            append_json(&mut self.body, value);
        }
        self.body.push(b'}');
        (self.body, self.reusable)
    }

    /// Returns the position of the first message that is not in the reused prefix.
    pub(crate) fn first_message(&self) -> usize {
        self.reused.messages
    }

    /// Returns whether the list has no element yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Writes an element.
    pub(crate) fn write(&mut self, element: &(impl Serialize + ?Sized)) {
        if !self.is_empty() {
            self.body.push(b',');
        }
        append_json(&mut self.body, element);
        self.elements += 1;
    }

    /// Marks the elements so far as reusable: every history that begins with the same `messages`
    /// first messages begins with these elements.
    pub(crate) fn mark_reusable(&mut self, messages: usize) {
        let (elements, bytes) = (self.elements, self.body.len());
        self.reusable = ReusablePrefix { messages, elements, bytes, ..self.reusable };
    }

    /// Writes those of the elements that are not in the reused prefix. `elements` are made of the
    /// whole history of `messages` messages. The first `reusable` of them stay the same whatever
    /// messages follow. If `reusable` is the number of elements, it marks nothing as reusable.
    pub(crate) fn write_all(
        &mut self,
        elements: &[impl Serialize],
        reusable: usize,
        messages: usize,
    ) {
        for (index, element) in elements.iter().enumerate().skip(self.reused.elements) {
            if index == reusable {
                self.mark_reusable(messages);
            }
            self.write(element);
        }
    }
}

/// Returns the head of a body: the members other than the history, and the beginning of the history.
pub(crate) fn head(members: &impl Serialize, history_member: &str) -> Vec<u8> {
    let mut head = Vec::new();
    append_json(&mut head, members);
    // Removes the closing brace, because the history belongs into the same object.
    head.pop();
    if head.len() > 1 {
        head.push(b',');
    }
    append_json(&mut head, history_member);
    head.extend_from_slice(b":[");
    head
}

/// Appends JSON. It cannot fail: all keys are strings, and writing to memory does not fail.
fn append_json(body: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let written = serde_json::to_writer(body, value);
    debug_assert!(written.is_ok(), "{written:?}");
}

/// Returns the first bytes of a body: in its own memory if nothing else refers to it, else as a copy with
/// spare capacity.
fn leading_bytes(body: Bytes, bytes: usize) -> Vec<u8> {
    if body.is_unique() {
        let mut leading = Vec::from(body);
        leading.truncate(bytes);
        return leading;
    }
    let mut leading = Vec::with_capacity(bytes + SPARE_BYTES);
    leading.extend_from_slice(body.get(..bytes).unwrap_or_default());
    leading
}
