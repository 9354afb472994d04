//! The request cache: each request body reuses the bytes of the previous one.
//!
//! A session sends requests whose history grows at its end. The history stands behind all other members
//! except the cache key, so the next body begins with the same bytes: the members for model and tools, and
//! every message that later messages do not change. The first request of a session reuses the members for
//! model and tools that another session has sent.
//!
//! The cache also detects prompts that do not begin with the previous one (`prefix.rs`), because the
//! service's prompt cache then misses. Reused bytes are equal by construction, so usually only the bytes
//! after them are compared.

mod history_writer;
mod prefix;

use std::sync::Arc;

use bytes::Bytes;

use super::{ModelRequest, PromptChange, Wire};
use callsheet_values::message::{Message, MessageList};
use callsheet_values::types::ReasoningRule;
pub(super) use history_writer::{HistoryWriter, ReusablePrefix, head};
use prefix::Continuation;

/// The largest number of heads that are kept for one model.
const HEADS_MAX: usize = 8;

/// Caches heads: the encoded members before the history. The sessions of a model share them, so the
/// tools of an agent are encoded once.
#[derive(Debug, Default)]
pub struct HeadCache {
    /// Each head with its request without the messages. The oldest is first.
    heads: Vec<(ModelRequest, Bytes)>,
}

impl HeadCache {
    /// Returns the head of the body of a request, which is given without its messages. All requests
    /// to one cache have the same wire.
    pub fn head(&mut self, wire: Wire, request: &ModelRequest) -> Bytes {
        let is_same =
            |(cached, _): &&(ModelRequest, Bytes)| cached.is_same_without_messages(request);
        if let Some((_, head)) = self.heads.iter().find(is_same) {
            return head.clone();
        }
        let head = Bytes::from(super::write_head(wire, request));
        if self.heads.len() >= HEADS_MAX {
            self.heads.remove(0);
        }
        self.heads.push((request.clone(), head.clone()));
        head
    }
}

/// The last request of a session, whose bytes the next one reuses.
///
/// It stays in memory while the session is awake: the size of the last body, and at most as much
/// again as spare capacity.
#[derive(Debug, Default)]
pub struct RequestCache {
    last: Option<CachedRequest>,
    prompt_break: Option<PromptChange>,
    /// True if a hook changed the last request. The next prompt then possibly does not begin with that one.
    was_hooked: bool,
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

impl RequestCache {
    /// Returns the reason why the prompt of the last request did not begin with that of the one before it. If
    /// that one is not in memory, nothing is compared: it is the reason that the request itself gives.
    pub fn prompt_break(&self) -> Option<PromptChange> {
        self.prompt_break
    }

    /// Returns the body of the next request: the same bytes as `Wire::request_body`. The last
    /// body is extended in place if nothing else refers to it.
    /// `head` returns the head of a request without messages.
    pub fn encode_body(
        &mut self,
        wire: Wire,
        request: &ModelRequest,
        head: impl FnOnce(&ModelRequest) -> Bytes,
    ) -> Bytes {
        let last = self.last.take();
        let before = last.as_ref().map(|last| PreviousPrompt::new(last, wire, request));
        let last = last.filter(|last| last.can_extend_to(wire, request));
        let (shared, mut messages, writer) = match last {
            Some(CachedRequest { request, messages, prefix, body, .. }) => {
                (request, messages, HistoryWriter::after(body, prefix))
            }
            None => {
                let messages = MessageList::default();
                let shared = ModelRequest { messages, ..request.clone() };
                let writer = HistoryWriter::new(&head(&shared));
                (shared, Vec::new(), writer)
            }
        };
        let (body, prefix) = super::write_history(wire, request, writer);
        let body = Bytes::from(body);
        let hooked = self.was_hooked.then_some(PromptChange::Hook);
        let change = request.prompt_change.or(hooked);
        self.was_hooked = request.prompt_change == Some(PromptChange::Hook);
        self.prompt_break = match before {
            Some(before) => before.find_break(wire, request, change, &body, prefix),
            // No previous request is in memory.
            None => change,
        };
        let new = request.messages.get(messages.len()..prefix.messages).unwrap_or_default();
        messages.extend_from_slice(new);
        self.last =
            Some(CachedRequest { wire, request: shared, messages, prefix, body: body.clone() });
        body
    }
}

/// The prompt of the previous request.
#[derive(Debug)]
enum PreviousPrompt {
    /// The next prompt begins with the reusable prefix of this one. `history_bytes` is the number of
    /// bytes of that prefix that belong to the history. `rest` is the history after it, copied because the
    /// old body may be extended in place.
    SharedPrefix { history_bytes: usize, rest: Vec<u8> },
    /// Head, wire or messages differ, so the whole bodies are compared.
    Other { wire: Wire, model: String, reasoning: ReasoningRule, body: Bytes },
}

impl PreviousPrompt {
    /// Compares head and messages of the last request with those of the next one.
    fn new(last: &CachedRequest, wire: Wire, request: &ModelRequest) -> Self {
        let CachedRequest { prefix, body, .. } = last;
        let has_same_prompt_members =
            last.wire == wire && last.request.has_same_prompt_members(request);
        if has_same_prompt_members && last.begins_messages_of(request) {
            let rest = body.get(prefix.bytes..prefix.history_end).unwrap_or_default();
            let history_bytes = prefix.bytes.saturating_sub(prefix.head_end);
            return Self::SharedPrefix { history_bytes, rest: rest.to_vec() };
        }
        let ModelRequest { model, reasoning, .. } = &last.request;
        let (wire, model, reasoning) = (last.wire, model.clone(), *reasoning);
        Self::Other { wire, model, reasoning, body: body.clone() }
    }

    /// Returns the reason if the body of the next request does not continue this prompt.
    fn find_break(
        self,
        wire: Wire,
        request: &ModelRequest,
        change: Option<PromptChange>,
        body: &[u8],
        written: ReusablePrefix,
    ) -> Option<PromptChange> {
        let (before, change, continuation) = match &self {
            Self::SharedPrefix { history_bytes, rest } => {
                let start = written.head_end + history_bytes;
                let after = body.get(start..written.history_end).unwrap_or_default();
                ((wire, &*request.model), change, prefix::continuation(rest, after))
            }
            Self::Other { wire: before, model, reasoning, body: old } => {
                let continuation = match *before == wire {
                    true => prefix::body_continuation(super::history_member(wire), old, body),
                    false => Continuation::Breaks,
                };
                let learnt = (*reasoning != request.reasoning).then_some(PromptChange::Reasoning);
                ((*before, &**model), change.or(learnt), continuation)
            }
        };
        (continuation != Continuation::Continues)
            .then(|| prefix::reason(before, (wire, &request.model), continuation, change))
    }
}

impl CachedRequest {
    /// Returns whether a request begins with the same messages as the reusable prefix.
    fn begins_messages_of(&self, request: &ModelRequest) -> bool {
        let leading = request.messages.get(..self.messages.len());
        let is_same =
            |(old, new): (&Arc<Message>, &Arc<Message>)| Arc::ptr_eq(old, new) || old == new;
        leading.is_some_and(|leading| self.messages.iter().zip(leading).all(is_same))
    }

    /// Returns whether the body of the next request begins with the reusable prefix of this one.
    fn can_extend_to(&self, wire: Wire, request: &ModelRequest) -> bool {
        let leading = request.messages.get(..self.messages.len());
        // Compares only pointers: equal messages in other allocations cost one new body.
        let is_same = |(old, new)| Arc::ptr_eq(old, new);
        self.wire == wire
            && self.request.is_same_without_messages(request)
            && leading.is_some_and(|leading| self.messages.iter().zip(leading).all(is_same))
    }
}

#[cfg(test)]
mod tests;
