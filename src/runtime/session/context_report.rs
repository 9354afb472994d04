//! The report of the parts of a context and their sizes.

use super::SessionActorState;
use crate::context::tokens::part_of;
use crate::message::MessageList;
use crate::runtime::report::{ContextPartReport, ContextReport};
use crate::types::{ContextPart, RequestKind};

impl SessionActorState {
    /// Returns the parts of the context. Counts the bytes of the whole history, so it is made on request only.
    pub(super) fn context_report(&mut self) -> ContextReport {
        let agent = self.agents.current();
        let tokens = self.session.part_tokens(&agent.rules);
        let part = |(part, tokens): (ContextPart, u64)| ContextPartReport {
            part: part.as_str(),
            tokens,
            bytes: 0,
        };
        let mut parts: Vec<ContextPartReport> = tokens.iter().map(part).collect();
        let mut add_bytes = |part: ContextPart, bytes: usize| {
            if let Some(size) = parts.iter_mut().find(|size| size.part == part.as_str()) {
                size.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
            }
        };
        let request = agent.request(MessageList::default(), RequestKind::Ordinary);
        for tool in &*request.tools {
            let schema = serde_json::to_string(&tool.schema).unwrap_or_default();
            let bytes = tool.name.len() + tool.description.len() + schema.len();
            add_bytes(ContextPart::Tools, bytes);
        }
        add_bytes(ContextPart::System, request.system.as_deref().unwrap_or_default().len());
        for message in self.session.history().messages().iter() {
            add_bytes(part_of(message), message.approximate_bytes());
        }
        let used = self.session.request_tokens(&agent.rules);
        let window = self.session.window(&agent.rules);
        let is_configured = agent.rules.models.first().context_window.is_some();
        let source = window.map(|_| if is_configured { "config" } else { "learnt" });
        ContextReport { window, source, used, parts }
    }
}
