//! The request cache: each request body reuses the bytes of the previous one.
//!
//! A session sends requests whose history grows at its end. The history is the last member of a
//! body, so the next body begins with the same bytes: the members for model and tools, and every
//! message that later messages do not change.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use super::dialect::Dialect;
use super::{ModelRequest, Wire};
use crate::message::{Message, MessageList};

/// Spare capacity of a body beyond the bytes that it reuses.
const SPARE_BYTES: usize = 1024;

/// The last request of a session, whose bytes the next one reuses.
///
/// It stays in memory while the session is awake: the size of the last body, and at most as much
/// again as spare capacity.
#[derive(Debug, Default)]
pub(crate) struct RequestCache {
    last: Option<CachedRequest>,
}

#[derive(Debug)]
struct CachedRequest {
    wire: Wire,
    /// The request without its messages.
    request: ModelRequest,
    /// The messages in the reusable prefix. Holding them ensures that none is changed in place.
    messages: Vec<Arc<Message>>,
    prefix: ReusablePrefix,
    body: Bytes,
}

/// The part of a body that the next body can reuse.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReusablePrefix {
    /// Number of leading messages that must be identical.
    messages: usize,
    /// Number of history elements in the prefix.
    elements: usize,
    /// Number of leading bytes.
    bytes: usize,
}

impl RequestCache {
    /// Returns the body of the next request: the same bytes as [`Wire::request_body`]. The last
    /// body is extended in place if nothing else refers to it.
    pub(crate) fn body(&mut self, wire: Wire, request: &ModelRequest) -> Bytes {
        let last = self.last.take().filter(|last| last.is_prefix_of(wire, request));
        let (shared, mut messages, writer) = match last {
            Some(CachedRequest { request, messages, prefix, body, .. }) => {
                (request, messages, HistoryWriter::after(body, prefix))
            }
            None => {
                let messages = MessageList::default();
                let shared = ModelRequest { messages, ..request.clone() };
                (shared, Vec::new(), HistoryWriter::default())
            }
        };
        let (body, prefix) = wire.write_body(request, writer);
        let body = Bytes::from(body);
        let new = request.messages.get(messages.len()..prefix.messages).unwrap_or_default();
        messages.extend_from_slice(new);
        let body_shared = body.clone();
        self.last =
            Some(CachedRequest { wire, request: shared, messages, prefix, body: body_shared });
        body
    }
}

impl CachedRequest {
    /// Returns whether the body of this request begins with the reusable prefix.
    fn is_prefix_of(&self, wire: Wire, request: &ModelRequest) -> bool {
        let leading = request.messages.get(..self.messages.len());
        let is_same = |(old, new)| Arc::ptr_eq(old, new);
        self.wire == wire
            && self.request.differs_only_in_messages(request)
            && leading.is_some_and(|leading| self.messages.iter().zip(leading).all(is_same))
    }
}

/// Returns the first bytes of a body, with spare capacity.
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

/// Writes a body, or the part of it that the writer does not hold yet.
pub(super) fn write_body<D: Dialect>(
    request: &ModelRequest,
    mut writer: HistoryWriter,
) -> (Vec<u8>, ReusablePrefix) {
    if writer.body.is_empty() {
        writer.open(&D::request_head(request), D::HISTORY_MEMBER);
    }
    D::write_history(request, &mut writer);
    writer.body.extend_from_slice(b"]}");
    (writer.body, writer.reusable)
}

/// Writes the history of a body: a list of elements, of which the first may be reused.
#[derive(Debug, Default)]
pub(super) struct HistoryWriter {
    body: Vec<u8>,
    /// The prefix that this body reuses.
    reused: ReusablePrefix,
    /// The prefix of this body that the next one can reuse.
    reusable: ReusablePrefix,
    /// Number of elements so far.
    elements: usize,
}

impl HistoryWriter {
    /// Continues the list after the reusable prefix of a body.
    fn after(body: Bytes, prefix: ReusablePrefix) -> Self {
        let body = leading_bytes(body, prefix.bytes);
        Self { body, reused: prefix, reusable: prefix, elements: prefix.elements }
    }

    /// Begins the body with the members other than the history.
    fn open(&mut self, head: &impl Serialize, history_member: &str) {
        self.body.reserve(SPARE_BYTES);
        append_json(&mut self.body, head);
        // Removes the closing brace, because the history belongs into the same object.
        self.body.pop();
        if self.body.len() > 1 {
            self.body.push(b',');
        }
        append_json(&mut self.body, history_member);
        self.body.extend_from_slice(b":[");
    }

    /// Returns the position of the first message that is not in the reused prefix.
    pub(super) fn first_message(&self) -> usize {
        self.reused.messages
    }

    /// Returns whether the list has no element yet.
    pub(super) fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Writes an element.
    pub(super) fn write(&mut self, element: &(impl Serialize + ?Sized)) {
        if !self.is_empty() {
            self.body.push(b',');
        }
        append_json(&mut self.body, element);
        self.elements += 1;
    }

    /// Marks the elements so far as reusable: every history that begins with the same `messages`
    /// first messages begins with these elements.
    pub(super) fn mark_reusable(&mut self, messages: usize) {
        let (elements, bytes) = (self.elements, self.body.len());
        self.reusable = ReusablePrefix { messages, elements, bytes };
    }

    /// Writes those of the elements that are not in the reused prefix. `elements` are made of the
    /// whole history of `messages` messages. The first `reusable` of them stay the same whatever
    /// messages follow.
    pub(super) fn write_all(
        &mut self,
        elements: &[impl Serialize],
        reusable: usize,
        messages: usize,
    ) {
        for (place, element) in elements.iter().enumerate().skip(self.reused.elements) {
            if place == reusable {
                self.mark_reusable(messages);
            }
            self.write(element);
        }
    }
}

/// Appends JSON. It cannot fail: all keys are strings, and writing to memory does not fail.
fn append_json(body: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let written = serde_json::to_writer(body, value);
    debug_assert!(written.is_ok(), "{written:?}");
}

#[cfg(test)]
mod tests;
