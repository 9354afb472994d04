//! An agent as its sessions use it: the configuration, resolved once.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::HostError;
use super::model::{ModelClient, ModelRequest};
use crate::config::{AgentConfig, Config, Limits, ModelConfig};
use crate::message::Message;
use crate::tool::{Registered, Registry};
use crate::turn::TurnRules;
use crate::wire::{ToolChoice, ToolDefinition};

/// What the sessions of one agent share.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) name: String,
    pub(super) client: ModelClient,
    pub(super) rules: Arc<TurnRules>,
    pub(super) tools: Arc<BTreeMap<String, Registered>>,
    /// A request without messages.
    blank: ModelRequest,
}

impl Agent {
    /// The agents of a configuration. Those that talk to the same model share its connections.
    pub(super) fn all(
        config: &Config,
        registry: &Registry,
    ) -> Result<BTreeMap<String, Arc<Self>>, HostError> {
        let mut clients = BTreeMap::new();
        for (name, model) in &config.models {
            let client =
                ModelClient::new(model).map_err(|e| HostError::Config(format!("{name}: {e}")))?;
            clients.insert(name.as_str(), (client, model));
        }
        let agents = config.agents.iter().map(|(name, agent)| {
            let Some((client, model)) = clients.get(agent.model.as_str()) else {
                let message = format!("agent {name:?}: there is no model {:?}", agent.model);
                return Err(HostError::Config(message));
            };
            let agent = Self::new(name, agent, client.clone(), model, registry);
            Ok((name.clone(), Arc::new(agent)))
        });
        agents.collect()
    }

    fn new(
        name: &str,
        agent: &AgentConfig,
        client: ModelClient,
        model: &ModelConfig,
        registry: &Registry,
    ) -> Self {
        let tools: BTreeMap<String, Registered> = registry
            .iter()
            .filter(|(name, _)| agent.tools.iter().any(|pattern| pattern.matches(name)))
            .map(|(name, tool)| (name.to_owned(), tool.clone()))
            .collect();
        let definitions = tools.values().map(|tool| ToolDefinition {
            name: tool.spec.name.clone(),
            description: tool.spec.description.clone(),
            schema: tool.spec.input.as_value().clone(),
        });
        let blank = ModelRequest {
            system: Some(agent.system.clone()).filter(|system| !system.is_empty()),
            tools: definitions.collect(),
            parallel_tool_calls: (!agent.multi_tool_calls).then_some(false),
            stream: model.stream,
            max_output_tokens: model.max_output_tokens,
            temperature: model.temperature,
            extra_body: model.extra_body.clone(),
            ..ModelRequest::new(model.model.clone(), Arc::new([]))
        };
        let rules = TurnRules {
            tools: tools.iter().map(|(k, tool)| (k.clone(), Arc::clone(&tool.spec))).collect(),
            limits: agent.limits.clone(),
            execution: agent.execution,
            multi_tool_calls: agent.multi_tool_calls,
            early_start: agent.early_start,
            model: model.model.clone(),
            streamed: model.stream,
            max_attempts: model.max_attempts,
        };
        Self {
            name: name.to_owned(),
            client,
            rules: Arc::new(rules),
            tools: Arc::new(tools),
            blank,
        }
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.rules.limits
    }

    /// What the model is asked in a turn.
    pub(super) fn request(&self, messages: Vec<Arc<Message>>, last: bool) -> ModelRequest {
        ModelRequest {
            messages: messages.into(),
            tool_choice: if last { ToolChoice::None } else { ToolChoice::Auto },
            ..self.blank.clone()
        }
    }
}
