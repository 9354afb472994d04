//! What fills the window of a session's model.

use super::SessionActorState;
use crate::context::tokens::{estimate_message, estimate_text, estimate_tool};
use crate::message::{Message, MessageList};
use crate::runtime::report::{ContextPartReport, ContextReport};

/// The parts of a context, in the order of the report.
const PARTS: [&str; 6] = ["tools", "system", "user", "assistant", "results", "summary"];

impl SessionActorState {
    /// Returns what fills the window. Counts the whole history, so it is made on request only.
    pub(super) fn context_report(&mut self) -> ContextReport {
        let agent = self.agents.current();
        let request = agent.request(MessageList::default(), false);
        let mut sizes = PARTS.map(|part| ContextPartReport { part, tokens: 0, bytes: 0 });
        let mut add = |part: &str, tokens: u64, bytes: usize| {
            if let Some(size) = sizes.iter_mut().find(|size| size.part == part) {
                size.tokens += tokens;
                size.bytes += u64::try_from(bytes).unwrap_or(u64::MAX);
            }
        };
        for tool in &*request.tools {
            let schema = serde_json::to_string(&tool.schema).unwrap_or_default();
            let bytes = tool.name.len() + tool.description.len() + schema.len();
            add("tools", estimate_tool(tool), bytes);
        }
        let system = request.system.as_deref().unwrap_or_default();
        add("system", estimate_text(system), system.len());
        for message in self.session.history().messages().iter() {
            let part = match &**message {
                Message::User { .. } => "user",
                Message::Assistant(_) => "assistant",
                Message::Tool { .. } => "results",
                Message::Summary { .. } => "summary",
            };
            add(part, estimate_message(message), message.approximate_bytes());
        }
        // The service's own counts correct the sum, so they correct the parts alike.
        let used = self.session.request_tokens(&agent.rules);
        let estimated = sizes.iter().map(|size| size.tokens).sum::<u64>().max(1);
        for size in &mut sizes {
            let share = u128::from(size.tokens) * u128::from(used) / u128::from(estimated);
            size.tokens = u64::try_from(share).unwrap_or(u64::MAX);
        }
        let window = self.session.window(&agent.rules);
        let is_configured = agent.rules.models.first().context_window.is_some();
        let source = window.map(|_| if is_configured { "config" } else { "learnt" });
        ContextReport { window, source, used, parts: sizes.to_vec() }
    }
}
