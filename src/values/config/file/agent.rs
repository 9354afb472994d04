//! Reads `[agents.NAME]`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use toml::de::DeValue;

use super::source::Section;
use super::values::{self, Parsed};
use crate::config::error::did_you_mean;
use crate::config::key_table::KeyTable as _;
use crate::config::{AgentConfig, ContextPolicy, Limits, ModelConfig, REHEARSAL, ToolPattern};

impl AgentConfig {
    /// Returns the agent of a file without agents. It uses the only model of the file, or the rehearsal model if
    /// there is none. Fails if there are several models.
    pub(super) fn default_for(models: &BTreeMap<String, ModelConfig>) -> Parsed<Self> {
        match implicit_model(models) {
            Some(model) => Ok(Self::default_with(model)),
            None => Err("several models but no agent: choose one, as in [agents.default] \
                         model = \"NAME\""
                .to_owned()),
        }
    }

    pub(super) fn read(section: &Section<'_, '_>, models: &BTreeMap<String, ModelConfig>) -> Self {
        let model =
            section.read("model", |value| known_model(value, models)).unwrap_or_else(|| {
                // A wrong model has its error. An implicit one would cause errors about the fallback models.
                let implicit = implicit_model(models).filter(|_| !section.has("model"));
                section.require("model", &implicit);
                implicit.unwrap_or_default().to_owned()
            });
        let mut agent = Self::new(model);
        agent.read_keys(section);
        agent.fallback_models = fallback_models(section, &agent.model, models);
        agent.tools = section.list("tools", pattern).unwrap_or_default();
        agent.limits = Limits::read_table(&section.table("limits"));
        agent.context = ContextPolicy::read_table(&section.table("context"));
        agent.output_schema = output_schema(section);
        section.report_unknown_keys();
        agent
    }
}

/// Reads the JSON schema of the answers from its file. The host checks at its start that it is a schema.
fn output_schema(section: &Section<'_, '_>) -> Option<Arc<Value>> {
    let path = section.path("output_schema")?;
    let parse = || -> Parsed<Value> {
        let text = std::fs::read_to_string(&path).map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    };
    parse()
        .map(Arc::new)
        .map_err(|error| section.add_error("output_schema", format!("{}: {error}", path.display())))
        .ok()
}

/// Returns the model of an agent that names none: the only model, or the rehearsal model if there is no model.
/// Returns `None` if there are several.
fn implicit_model(models: &BTreeMap<String, ModelConfig>) -> Option<&str> {
    let mut names = models.keys();
    match (names.next(), names.next()) {
        (None, _) => Some(REHEARSAL),
        (Some(name), None) => Some(name),
        (Some(_), Some(_)) => None,
    }
}

fn known_model(value: &DeValue<'_>, models: &BTreeMap<String, ModelConfig>) -> Parsed<String> {
    let name = values::string(value)?;
    if name == REHEARSAL || models.contains_key(&name) {
        return Ok(name);
    }
    let hint = did_you_mean(&name, models.keys().map(String::as_str));
    Err(format!("no model is called {name:?}{hint}"))
}

/// Parses the fallback models. Each may be listed only once, and must not be the agent's first model (`primary`).
fn fallback_models(
    section: &Section<'_, '_>,
    primary: &str,
    models: &BTreeMap<String, ModelConfig>,
) -> Vec<String> {
    let mut chosen = BTreeSet::new();
    let fallbacks = section.list("fallback_models", |value| {
        let name = known_model(value, models)?;
        if name == primary {
            return Err(format!("{name:?} is the agent's own model"));
        }
        if !chosen.insert(name.clone()) {
            return Err(format!("{name:?} is listed twice"));
        }
        Ok(name)
    });
    fallbacks.unwrap_or_default()
}

fn pattern(value: &DeValue<'_>) -> Parsed<ToolPattern> {
    let text = values::non_empty_string(value)?;
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'*' | b'?');
    if text.bytes().all(fits) {
        Ok(ToolPattern { text })
    } else {
        Err(format!(
            "must be a tool's name, in which * and ? stand for other characters, not {text:?}"
        ))
    }
}
