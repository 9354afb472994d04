//! The limits of concurrent calls per tool in the whole host.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use ractor::ActorId;

use super::fair_semaphore::{FairSemaphore, PermitRequest};
use super::gauge::Gauge;
use crate::tool::ToolRegistry;
use crate::tool::ToolSpec;
use crate::turn::PermitReply;

/// The semaphores of the tools that have a limit (`max_concurrent`). Clones share them.
#[derive(Clone, Debug)]
pub(super) struct Caps {
    tools: Arc<RwLock<BTreeMap<String, Arc<FairSemaphore>>>>,
    waiting: Gauge,
}

impl Caps {
    /// Creates the semaphores of these tools. `waiting` counts the calls that wait.
    pub(super) fn new(tools: &ToolRegistry, waiting: &Gauge) -> Self {
        let caps = Self { tools: Arc::default(), waiting: waiting.clone() };
        for (_, tool) in tools.iter() {
            caps.add(&tool.spec);
        }
        caps
    }

    /// Adds the semaphore of a tool, unless there is one of this name.
    pub(super) fn add(&self, tool: &ToolSpec) {
        let Some(max) = tool.max_concurrent else { return };
        if !self.tools.read().contains_key(&tool.name) {
            let semaphore = FairSemaphore::new(max, self.waiting.clone());
            self.tools.write().entry(tool.name.clone()).or_insert(semaphore);
        }
    }

    /// Requests a permit of a tool for a call of a session, as [`FairSemaphore::request`] does. A
    /// tool without a limit needs no permit: it is granted at once, without a request.
    pub(super) fn request_permit(
        &self,
        tool: &str,
        session: ActorId,
        granted: impl FnOnce() + Send + 'static,
    ) -> (PermitReply, Option<PermitRequest>) {
        let Some(semaphore) = self.tools.read().get(tool).cloned() else {
            return (PermitReply::Granted, None);
        };
        let (reply, request) = semaphore.request(session, granted);
        (reply, Some(request))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tool::{InputSchema, Tool, ToolContext, ToolError, ToolOutput};

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
    fn each_tool_with_a_limit_has_its_own_permits_and_other_tools_need_none() {
        let mut tools = ToolRegistry::new();
        for tool in [Capped("one", Some(1)), Capped("other", Some(1)), Capped("free", None)] {
            tools.register(tool).unwrap();
        }
        let caps = Caps::new(&tools, &Gauge::default());
        let request = |tool| caps.request_permit(tool, ActorId::Local(1), || ());
        let (reply, one) = request("one");
        assert!(reply == PermitReply::Granted && one.is_some());
        assert_eq!(request("one").0, PermitReply::Waiting);
        assert_eq!(request("other").0, PermitReply::Granted);
        let (reply, none) = request("free");
        assert!(reply == PermitReply::Granted && none.is_none());
    }
}
