//! Reads `[tools.NAME]`.

use std::net::IpAddr;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use toml::de::DeValue;

use super::source::Section;
use super::values::{self, Parsed};
use crate::config::{ApprovalPolicy, ConfiguredTool, StartPolicy, ToolEffect, ToolOverride};

impl ToolOverride {
    /// Reads the keys that tools of every origin have, except `timeout`.
    pub(super) fn read_policy(section: &Section<'_, '_>) -> Self {
        let effects = [("none", ToolEffect::None), ("some", ToolEffect::Some)];
        let starts = [("on_finish", StartPolicy::OnFinish), ("on_seal", StartPolicy::OnSeal)];
        Self {
            effect: section.read("effect", |value| values::word(value, &effects)),
            start: section.read("start", |value| values::word(value, &starts)),
            destructive: section.read("destructive", values::switch),
            exclusive: section.read("exclusive", values::switch),
            idempotent: section.read("idempotent", values::switch),
            repeatable: section.read("repeatable", values::switch),
            keep: section.read("keep", values::switch),
            approval: section.read("approval", |value| values::word(value, &ApprovalPolicy::WORDS)),
            approval_timeout: section.read("approval_timeout", values::positive_duration),
            max_concurrent: section.read("max_concurrent", values::count).and_then(NonZeroU32::new),
            retries: section.read("retries", values::number),
            rate: section.read("rate", |value| values::text(value)?.parse()),
            breaker_failures: section.read("breaker_failures", values::number),
            breaker_open_for: section.read("breaker_open_for", values::positive_duration),
            max_result_bytes: section
                .read("max_result_bytes", values::count)
                .and_then(NonZeroUsize::new),
            ..Self::default()
        }
    }

    pub(super) fn read(
        name: &str,
        section: &Section<'_, '_>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let mut change = Self {
            blocking: section.read("blocking", values::switch),
            timeout: section.read("timeout", values::positive_duration),
            definition: ConfiguredTool::read(section, env),
            ..Self::read_policy(section)
        };
        if change.definition.is_some() {
            section.finish();
            return change;
        }
        if section.has("kind") {
            // The kind is wrong, so it is not known which other keys belong to it.
            return change;
        }
        if name == "read_file" {
            change.root = section.read("root", values::non_empty_string).map(PathBuf::from);
            section.require("root", change.root.is_none());
        }
        if name == "http_get" {
            change.allow = section.list("allow", allow).unwrap_or_default();
        }
        section.finish();
        change
    }
}

/// Parses a target that tools may reach although it is not public.
pub(super) fn allow(value: &DeValue<'_>) -> Parsed<String> {
    let text = values::text(value)?;
    if is_network(&text) || is_host(&text) {
        return Ok(text.to_ascii_lowercase());
    }
    Err(format!("must be a host, \"host:port\" or a network such as \"10.0.0.0/8\", not {text:?}"))
}

fn is_network(text: &str) -> bool {
    let Some((address, bits)) = text.split_once('/') else { return false };
    let (Ok(address), Ok(bits)) = (address.parse::<IpAddr>(), bits.parse::<u8>()) else {
        return false;
    };
    bits <= if address.is_ipv4() { 32 } else { 128 }
}

fn is_host(text: &str) -> bool {
    if text.parse::<IpAddr>().is_ok() {
        return true;
    }
    let (name, port) = values::split_port(text);
    values::is_host_name(name)
        && port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
}
