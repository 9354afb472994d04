//! The limits of concurrent calls per tool in the whole host.

use std::collections::BTreeMap;
use std::sync::Arc;

use ractor::ActorId;

use super::fair_semaphore::{FairSemaphore, PermitRequest};
use super::gauge::Gauge;
use crate::tool::ToolRegistry;
use crate::turn::PermitReply;

/// The tools of a host that have a cap. Clones have the same places.
#[derive(Clone, Debug)]
pub(super) struct Caps {
    tools: Arc<BTreeMap<String, Arc<FairSemaphore>>>,
}

impl Caps {
    /// The caps of these tools; `waiting` counts the calls that wait.
    pub(super) fn new(tools: &ToolRegistry, waiting: &Gauge) -> Self {
        let caps = tools.iter().filter_map(|(name, tool)| {
            let max = tool.spec.max_concurrent?;
            Some((name.to_owned(), FairSemaphore::new(max, waiting.clone())))
        });
        Self { tools: Arc::new(caps.collect()) }
    }

    /// Takes a place of a tool for a call of a session, or one in the session's line, as
    /// [`Places::reserve`] does. Nothing is reserved of a tool without a cap.
    pub(super) fn reserve(
        &self,
        tool: &str,
        session: ActorId,
        granted: impl FnOnce() + Send + 'static,
    ) -> (PermitReply, Option<PermitRequest>) {
        let Some(places) = self.tools.get(tool) else { return (PermitReply::Granted, None) };
        let (place, reservation) = places.reserve(session, granted);
        (place, Some(reservation))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::{InputSchema, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};

    struct Capped(&'static str, Option<u32>);

    #[async_trait::async_trait]
    impl Tool for Capped {
        fn spec(&self) -> ToolSpec {
            let spec = ToolSpec::with_schema(self.0, "", InputSchema::of::<()>());
            match self.1 {
                Some(max) => spec.max_concurrent(max),
                None => spec,
            }
        }

        async fn run(&self, _: ToolContext) -> Result<ToolOutput, ToolError> {
            Ok("".into())
        }
    }

    #[test]
    fn each_tool_with_a_cap_has_its_own_places_and_the_others_need_none() {
        let mut tools = ToolRegistry::new();
        for tool in [Capped("one", Some(1)), Capped("other", Some(1)), Capped("free", None)] {
            tools.register(tool).unwrap();
        }
        let caps = Caps::new(&tools, &Gauge::default());
        let take = |tool| caps.reserve(tool, ActorId::Local(1), || ());
        let (place, one) = take("one");
        assert!(place == PermitReply::Granted && one.is_some());
        assert_eq!(take("one").0, PermitReply::Waiting);
        assert_eq!(take("other").0, PermitReply::Granted);
        let (place, none) = take("free");
        assert!(place == PermitReply::Granted && none.is_none());
    }
}
