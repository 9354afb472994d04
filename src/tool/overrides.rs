//! What the configuration changes about registered tools.

use std::collections::BTreeMap;

use super::{ToolRegistry, ToolSpec};
use crate::config::ToolOverride;

impl ToolRegistry {
    /// Changes the specs of registered tools as `[tools.NAME]` says. Names without a tool are
    /// passed over: [`Config::check_tools`](crate::config::Config::check_tools) finds them.
    pub fn apply_overrides(&mut self, overrides: &BTreeMap<String, ToolOverride>) {
        for (name, change) in overrides {
            self.update_spec(name, |spec| change_spec(spec, change));
        }
    }
}

fn change_spec(spec: &mut ToolSpec, change: &ToolOverride) {
    spec.effect = change.effect.unwrap_or(spec.effect);
    spec.start = change.start.unwrap_or(spec.start);
    spec.exclusive = change.exclusive.unwrap_or(spec.exclusive);
    spec.idempotent = change.idempotent.unwrap_or(spec.idempotent);
    spec.repeatable = change.repeatable.unwrap_or(spec.repeatable);
    spec.blocking = change.blocking.unwrap_or(spec.blocking);
    spec.timeout = change.timeout.or(spec.timeout);
    spec.approval = change.approval.unwrap_or(spec.approval);
    spec.approval_timeout = change.approval_timeout.unwrap_or(spec.approval_timeout);
    spec.max_concurrent = change.max_concurrent.or(spec.max_concurrent);
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::time::Duration;

    use async_trait::async_trait;

    use super::*;
    use crate::config::{ApprovalPolicy, StartPolicy, ToolEffect};
    use crate::tool::{InputSchema, Tool, ToolContext, ToolError, ToolOutput};

    struct NoOpTool;

    #[async_trait]
    impl Tool for NoOpTool {
        fn spec(&self) -> ToolSpec {
            ToolSpec::with_schema("plain", "does nothing", InputSchema::of::<()>())
        }

        async fn run(&self, _context: ToolContext) -> Result<ToolOutput, ToolError> {
            Ok("done".into())
        }
    }

    #[test]
    fn what_is_set_changes_and_the_rest_stays() {
        let mut registry = ToolRegistry::new();
        registry.register(NoOpTool).expect("register");
        let author = registry.tool("plain").expect("find").spec.as_ref().clone();
        let nothing = BTreeMap::from([("plain".to_owned(), ToolOverride::default())]);
        registry.apply_overrides(&nothing);
        assert_eq!(*registry.tool("plain").expect("find").spec, author);
        let change = ToolOverride {
            effect: Some(ToolEffect::None),
            start: Some(StartPolicy::OnSeal),
            exclusive: Some(true),
            idempotent: Some(true),
            repeatable: Some(true),
            blocking: Some(true),
            timeout: Some(Duration::from_secs(2)),
            approval: Some(ApprovalPolicy::AFTER),
            approval_timeout: Some(Duration::from_secs(3)),
            max_concurrent: NonZeroU32::new(4),
            ..ToolOverride::default()
        };
        registry.apply_overrides(&BTreeMap::from([("plain".to_owned(), change)]));
        let expected = author
            .pure()
            .start_on_seal()
            .exclusive()
            .idempotent()
            .repeatable()
            .blocking()
            .timeout(Duration::from_secs(2))
            .max_concurrent(4)
            .approval(ApprovalPolicy::AFTER);
        let expected = ToolSpec { approval_timeout: Duration::from_secs(3), ..expected };
        assert_eq!(*registry.tool("plain").expect("find").spec, expected);
    }
}
