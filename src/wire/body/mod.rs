//! Bodies of requests, each as the one before it and what is new.
//!
//! A session asks again and again with a history that has grown at its end. The history is a
//! body's last member, so that the next body begins as the last one did: with all that is said of
//! model and tools, and with every message that later ones do not change.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use super::dialect::Dialect;
use super::{ModelRequest, Wire};
use crate::message::{Message, MessageList};

/// How much room a body has at once behind what it repeats.
const ROOM_BYTES: usize = 1024;

/// The last body of a session, of which the next one repeats what is the same.
///
/// While a session is awake that stays in memory with it: as much as was sent last, and at most as
/// much again as room for more.
#[derive(Debug, Default)]
pub(crate) struct RequestCache {
    last: Option<Last>,
}

#[derive(Debug)]
struct Last {
    wire: Wire,
    /// The request without its messages.
    asked: ModelRequest,
    /// The messages before the cut. They are held, so that none of them can change in its place.
    messages: Vec<Arc<Message>>,
    cut: Cut,
    body: Bytes,
}

/// Up to where the next body can repeat one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cut {
    /// The messages that have to be the very same.
    messages: usize,
    /// The history's elements before it.
    elements: usize,
    /// The body's bytes before it.
    bytes: usize,
}

impl RequestCache {
    /// The body of the next request: the same bytes as [`Wire::request_body`] gives. Where nobody
    /// holds the last body any more, it is the one that is written on.
    pub(crate) fn next(&mut self, wire: Wire, request: &ModelRequest) -> Bytes {
        let last = self.last.take().filter(|last| last.is_before(wire, request));
        let (asked, mut messages, elements) = match last {
            Some(Last { asked, messages, cut, body, .. }) => {
                (asked, messages, Elements::after(body, cut))
            }
            None => {
                let messages = MessageList::default();
                (ModelRequest { messages, ..request.clone() }, Vec::new(), Elements::default())
            }
        };
        let (body, cut) = wire.written_on(request, elements);
        let body = Bytes::from(body);
        let new = request.messages.get(messages.len()..cut.messages).unwrap_or_default();
        messages.extend_from_slice(new);
        self.last = Some(Last { wire, asked, messages, cut, body: body.clone() });
        body
    }
}

impl Last {
    /// Whether the body of this request begins as this one does up to its cut.
    fn is_before(&self, wire: Wire, request: &ModelRequest) -> bool {
        let begin = request.messages.get(..self.messages.len());
        let same = |(old, new)| Arc::ptr_eq(old, new);
        self.wire == wire
            && self.asked.is_like(request)
            && begin.is_some_and(|begin| self.messages.iter().zip(begin).all(same))
    }
}

/// The first bytes of a body, and room behind them.
fn beginning(body: Bytes, bytes: usize) -> Vec<u8> {
    if body.is_unique() {
        let mut begin = Vec::from(body);
        begin.truncate(bytes);
        return begin;
    }
    let mut begin = Vec::with_capacity(bytes + ROOM_BYTES);
    begin.extend_from_slice(body.get(..bytes).unwrap_or_default());
    begin
}

/// Writes a body, or what is new in it.
pub(super) fn written_on<D: Dialect>(
    request: &ModelRequest,
    mut elements: Elements,
) -> (Vec<u8>, Cut) {
    if elements.body.is_empty() {
        elements.open(&D::head(request), D::HISTORY);
    }
    D::history(request, &mut elements);
    elements.body.extend_from_slice(b"]}");
    (elements.body, elements.cut)
}

/// The history of a body that is being written: a list of elements, of which the first ones may
/// have been repeated.
#[derive(Debug, Default)]
pub(super) struct Elements {
    body: Vec<u8>,
    /// What was repeated.
    begin: Cut,
    /// What can be repeated of this body.
    cut: Cut,
    /// How many there are.
    elements: usize,
}

impl Elements {
    /// The list as it was at the cut of a body.
    fn after(body: Bytes, cut: Cut) -> Self {
        let body = beginning(body, cut.bytes);
        Self { body, begin: cut, cut, elements: cut.elements }
    }

    /// Begins the body with all of its other members.
    fn open(&mut self, head: &impl Serialize, history: &str) {
        self.body.reserve(ROOM_BYTES);
        write(&mut self.body, head);
        // The history belongs into the same object.
        self.body.pop();
        if self.body.len() > 1 {
            self.body.push(b',');
        }
        write(&mut self.body, history);
        self.body.extend_from_slice(b":[");
    }

    /// The place of the first message that is to be written.
    pub(super) fn first_message(&self) -> usize {
        self.begin.messages
    }

    /// Whether it has no element yet.
    pub(super) fn is_empty(&self) -> bool {
        self.elements == 0
    }

    /// Writes an element.
    pub(super) fn put(&mut self, element: &(impl Serialize + ?Sized)) {
        if !self.is_empty() {
            self.body.push(b',');
        }
        write(&mut self.body, element);
        self.elements += 1;
    }

    /// Says that the elements so far are the first ones of every history that begins with as many
    /// of these very messages.
    pub(super) fn settle(&mut self, messages: usize) {
        let (elements, bytes) = (self.elements, self.body.len());
        self.cut = Cut { messages, elements, bytes };
    }

    /// Writes elements that were made of a whole history, of so many messages, but for those that
    /// were repeated. However that goes on, its first elements are the `settled` first ones of these.
    pub(super) fn put_all(&mut self, elements: &[impl Serialize], settled: usize, messages: usize) {
        for (place, element) in elements.iter().enumerate().skip(self.begin.elements) {
            if place == settled {
                self.settle(messages);
            }
            self.put(element);
        }
    }
}

/// Appends JSON. Every key of ours is a string and no writer fails, so nothing here can.
fn write(body: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let written = serde_json::to_writer(body, value);
    debug_assert!(written.is_ok(), "{written:?}");
}

#[cfg(test)]
mod tests;
