//! Reads `[tools.NAME]`.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use toml::de::DeValue;

use super::process::proxy;
use super::source::Section;
use super::values::{self, Parsed};
use crate::config::{ApprovalPolicy, ConfiguredTool, StartPolicy, ToolEffect, ToolOverride};

impl ToolOverride {
    /// Reads the policy keys that `[tools.NAME]` and `[mcp.NAME]` have in common, except `timeout`, which has
    /// another meaning for a server.
    pub(super) fn read_policy(section: &Section<'_, '_>) -> Self {
        Self {
            effect: section.read("effect", |value| values::one_of(value, &ToolEffect::NAMES)),
            start: section.read("start", |value| values::one_of(value, &StartPolicy::NAMES)),
            destructive: section.read("destructive", values::boolean),
            exclusive: section.read("exclusive", values::boolean),
            idempotent: section.read("idempotent", values::boolean),
            repeatable: section.read("repeatable", values::boolean),
            keep: section.read("keep", values::boolean),
            approval: section
                .read("approval", |value| values::one_of(value, &ApprovalPolicy::NAMES)),
            approval_timeout: section.read("approval_timeout", values::positive_duration),
            max_concurrent: section
                .read("max_concurrent", values::positive)
                .and_then(NonZeroU32::new),
            retries: section.read("retries", values::unsigned),
            rate: section.read("rate", |value| values::string(value)?.parse()),
            breaker_failures: section.read("breaker_failures", values::unsigned),
            breaker_open_for: section.read("breaker_open_for", values::positive_duration),
            max_result_bytes: section
                .read("max_result_bytes", values::positive)
                .and_then(NonZeroUsize::new),
            ..Self::default()
        }
    }

    pub(super) fn read(
        name: &str,
        section: &Section<'_, '_>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let mut tool_override = Self {
            blocking: section.read("blocking", values::boolean),
            timeout: section.read("timeout", values::positive_duration),
            definition: ConfiguredTool::read(section, env),
            ..Self::read_policy(section)
        };
        if tool_override.definition.is_some() {
            section.report_unknown_keys();
            return tool_override;
        }
        if section.has("kind") {
            // The kind is wrong. The keys of a table depend on its kind, so unknown keys are not reported.
            return tool_override;
        }
        if name == "read_file" {
            tool_override.root = section.read("root", values::non_empty_string).map(PathBuf::from);
            section.require("root", &tool_override.root);
        }
        if name == "http_get" {
            tool_override.allow = section.list("allow", parse_allow_entry).unwrap_or_default();
            tool_override.proxy = proxy(section);
        }
        section.report_unknown_keys();
        tool_override
    }
}

impl ToolEffect {
    const NAMES: [(&'static str, Self); 2] = [("none", Self::None), ("some", Self::Some)];
}

impl StartPolicy {
    const NAMES: [(&'static str, Self); 2] =
        [("on_finish", Self::OnFinish), ("on_seal", Self::OnSeal)];
}

/// Parses an entry of `allow`: a target that may be reached although it is not public.
pub(super) fn parse_allow_entry(value: &DeValue<'_>) -> Parsed<String> {
    let text = values::string(value)?;
    if is_network(&text) || is_host_or_host_port(&text) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(format!("must be a host, \"host:port\" or a network such as \"10.0.0.0/8\", not {text:?}"))
}

fn is_network(text: &str) -> bool {
    let Some((address, prefix_len)) = text.split_once('/') else { return false };
    let (Ok(address), Ok(prefix_len)) = (address.parse::<IpAddr>(), prefix_len.parse::<u8>())
    else {
        return false;
    };
    prefix_len <= if address.is_ipv4() { 32 } else { 128 }
}

fn is_host_or_host_port(text: &str) -> bool {
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    let (name, port) = values::split_port(text);
    values::is_host_name(name)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}
