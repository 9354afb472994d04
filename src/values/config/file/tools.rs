//! Reads `[tools.NAME]`.

use std::net::IpAddr;
use std::path::PathBuf;

use toml::de::DeValue;

use super::process::proxy;
use super::source::Section;
use super::values::{self, Parsed};
use crate::config::key_table::KeyTable as _;
use crate::config::{ConfiguredTool, ToolOverride};

impl ToolOverride {
    pub(super) fn read(
        name: &str,
        section: &Section<'_, '_>,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Self {
        let mut tool_override = Self {
            blocking: section.read("blocking", values::boolean),
            timeout: section.read("timeout", values::positive_duration),
            definition: ConfiguredTool::read(section, env),
            ..Self::default()
        };
        tool_override.read_keys(section);
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
