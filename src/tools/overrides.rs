//! Overrides of the configuration (`[tools.NAME]`), applied to the specs of registered tools.

use std::collections::BTreeMap;

use super::{ToolRegistry, ToolSpec};
use callsheet_values::config::ToolOverride;

impl ToolRegistry {
    /// Applies the `[tools.NAME]` overrides to the specs of registered tools. Ignores names without
    /// a tool: [`Config::check_tools`](callsheet_values::config::Config::check_tools) reports them.
    pub fn apply_overrides(&mut self, overrides: &BTreeMap<String, ToolOverride>) {
        for (name, tool_override) in overrides {
            self.apply_override(name, tool_override);
        }
    }

    /// Applies the override of one tool to its spec.
    pub fn apply_override(&mut self, name: &str, tool_override: &ToolOverride) {
        self.update_spec(name, |spec| apply_override(spec, tool_override));
    }
}

pub(super) fn apply_override(spec: &mut ToolSpec, tool_override: &ToolOverride) {
    spec.effect = tool_override.effect.unwrap_or(spec.effect);
    spec.start = tool_override.start.unwrap_or(spec.start);
    spec.destructive = tool_override.destructive.unwrap_or(spec.destructive);
    spec.exclusive = tool_override.exclusive.unwrap_or(spec.exclusive);
    spec.idempotent = tool_override.idempotent.unwrap_or(spec.idempotent);
    spec.keep = tool_override.keep.unwrap_or(spec.keep);
    spec.repeatable = tool_override.repeatable.unwrap_or(spec.repeatable);
    spec.blocking = tool_override.blocking.unwrap_or(spec.blocking);
    spec.timeout = tool_override.timeout.or(spec.timeout);
    spec.approval = tool_override.approval.unwrap_or(spec.approval);
    spec.approval_timeout = tool_override.approval_timeout.unwrap_or(spec.approval_timeout);
    spec.max_concurrent = tool_override.max_concurrent.or(spec.max_concurrent);
    spec.retries = tool_override.retries.unwrap_or(spec.retries);
    spec.rate = tool_override.rate.or(spec.rate);
    spec.breaker_failures = tool_override.breaker_failures.unwrap_or(spec.breaker_failures);
    spec.breaker_open_for = tool_override.breaker_open_for.unwrap_or(spec.breaker_open_for);
    spec.max_result_bytes = tool_override.max_result_bytes.or(spec.max_result_bytes);
}

#[cfg(test)]
mod tests {
    use std::num::{NonZeroU32, NonZeroUsize};
    use std::time::Duration;

    use async_trait::async_trait;

    use super::*;
    use crate::{ParsedSchema, Tool, ToolContext, ToolError, ToolOutput};
    use callsheet_values::config::{ApprovalPolicy, StartPolicy, ToolEffect};

    struct NoOpTool;

    #[async_trait]
    impl Tool for NoOpTool {
        fn spec(&self) -> ToolSpec {
            ToolSpec::with_schema("no_op", "does nothing", ParsedSchema::of::<()>())
        }

        async fn run(&self, _context: ToolContext) -> Result<ToolOutput, ToolError> {
            Ok("done".into())
        }
    }

    #[test]
    fn overrides_replace_only_the_fields_they_set() {
        let mut registry = ToolRegistry::new();
        registry.register(NoOpTool).expect("register");
        let original = registry.tool("no_op").expect("find").spec.as_ref().clone();
        let empty_override = BTreeMap::from([("no_op".to_owned(), ToolOverride::default())]);
        registry.apply_overrides(&empty_override);
        assert_eq!(*registry.tool("no_op").expect("find").spec, original);
        let tool_override = ToolOverride {
            effect: Some(ToolEffect::None),
            start: Some(StartPolicy::OnSeal),
            destructive: Some(false),
            exclusive: Some(true),
            idempotent: Some(true),
            repeatable: Some(true),
            keep: Some(true),
            blocking: Some(true),
            timeout: Some(Duration::from_secs(2)),
            approval: Some(ApprovalPolicy::AFTER),
            approval_timeout: Some(Duration::from_secs(3)),
            max_concurrent: NonZeroU32::new(4),
            retries: Some(2),
            rate: "10/s".parse().ok(),
            breaker_failures: Some(5),
            breaker_open_for: Some(Duration::from_secs(7)),
            max_result_bytes: NonZeroUsize::new(100),
            ..ToolOverride::default()
        };
        registry.apply_overrides(&BTreeMap::from([("no_op".to_owned(), tool_override)]));
        let expected = original
            .pure()
            .start_on_seal()
            .not_destructive()
            .exclusive()
            .idempotent()
            .repeatable()
            .keep()
            .blocking()
            .timeout(Duration::from_secs(2))
            .max_concurrent(4)
            .retries(2)
            .rate("10/s".parse().expect("a rate"))
            .breaker(5, Duration::from_secs(7))
            .max_result_bytes(100)
            .approval(ApprovalPolicy::AFTER);
        let expected = expected.approval_timeout(Duration::from_secs(3));
        assert_eq!(*registry.tool("no_op").expect("find").spec, expected);
    }
}
