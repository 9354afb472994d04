//! Reads `[agents.NAME]`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use toml::de::DeValue;

use super::source::Section;
use super::values::{self, Parsed};
use crate::config::error::did_you_mean;
use crate::config::{
    AgentConfig, ContextPolicy, Execution, Limits, ModelConfig, OnRefusal, REHEARSAL, ToolLoading,
    ToolPattern,
};

/// Maximum of `output_retries`.
const OUTPUT_RETRIES_MAX: u32 = 10;

const TOOL_LOADINGS: [(&str, ToolLoading); 3] =
    [("all", ToolLoading::All), ("search", ToolLoading::Search), ("auto", ToolLoading::Auto)];

const ON_REFUSAL: [(&str, OnRefusal); 2] =
    [("end", OnRefusal::End), ("fallback", OnRefusal::Fallback)];

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
        let fallback_models = fallback_models(section, &model, models);
        let default = Self::new(model);
        let agent = Self {
            fallback_models,
            system: section.read("system", values::string).unwrap_or_default(),
            tools: section.list("tools", pattern).unwrap_or_default(),
            tool_loading: section
                .read("tool_loading", |value| values::one_of(value, &TOOL_LOADINGS))
                .unwrap_or_default(),
            multi_tool_calls: section
                .read("multi_tool_calls", values::boolean)
                .unwrap_or(default.multi_tool_calls),
            execution: section.read("execution", execution).unwrap_or(default.execution),
            early_start: section
                .read("early_start", values::boolean)
                .unwrap_or(default.early_start),
            on_refusal: section
                .read("on_refusal", |value| values::one_of(value, &ON_REFUSAL))
                .unwrap_or(default.on_refusal),
            allow_overrides: section
                .read("allow_overrides", values::boolean)
                .unwrap_or(default.allow_overrides),
            limits: Limits::read(&section.table("limits")),
            context: ContextPolicy::read(&section.table("context")),
            output_schema: output_schema(section),
            output_retries: section
                .read("output_retries", output_retries)
                .unwrap_or(default.output_retries),
            ..default
        };
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

fn output_retries(value: &DeValue<'_>) -> Parsed<u32> {
    match values::unsigned::<u32>(value)? {
        retries @ 0..=OUTPUT_RETRIES_MAX => Ok(retries),
        other => Err(format!("must be a number from 0 to {OUTPUT_RETRIES_MAX}, not {other}")),
    }
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

fn execution(value: &DeValue<'_>) -> Parsed<Execution> {
    const MAX: u32 = Execution::PARALLEL_MAX;
    let invalid = || {
        let expected = format!("\"sequential\" or {{ parallel = N }} with N from 1 to {MAX}");
        values::wrong_type(&expected, value)
    };
    if let Some(text) = value.as_str() {
        return text.parse().map_err(|_| invalid());
    }
    let table = value.as_table().filter(|table| table.len() == 1).ok_or_else(invalid)?;
    let max = table.get("parallel").ok_or_else(invalid)?;
    match values::unsigned::<u32>(max.get_ref()) {
        Ok(max) if (1..=MAX).contains(&max) => Ok(Execution::Parallel { max }),
        Ok(max) => Err(format!("parallel is a number from 1 to {MAX}, not {max}")),
        Err(error) => Err(format!("parallel: {error}")),
    }
}
