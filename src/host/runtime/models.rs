//! The configured models, and the order in which a run uses them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::error::HostError;
use super::model::{HostLagClock, ModelClient, ModelRequest, ModelService, ModelSource};
use super::model_limiter::{ModelLimiter, ModelReport, ModelStatus};
use super::model_tokens::{Learnt, LearntTokens};
use super::set_aside_tools::SetAsideTools;
use crate::journal::Journal;
use crate::telemetry::{ModelMetrics, PrefixBreakMetrics, Telemetry};
use callsheet_machines::turn::{ModelPlan, ModelPlans};
use callsheet_values::config::{Config, ModelConfig, displayed_model_name};
use callsheet_values::types::{
    LearntReasoning, ModelOrigin, ProviderError, ReasoningRule, Secrets, SendReasoning, SessionId,
    Wire,
};

/// The models that the program implements itself, by name.
#[derive(Clone, Default)]
pub struct ModelSources(pub BTreeMap<String, Arc<dyn ModelSource>>);

impl fmt::Debug for ModelSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A configured model, with the changes of a run.
#[derive(Clone, Debug)]
pub(super) struct Model {
    /// Its name in the configuration.
    pub(super) name: String,
    pub(super) service: ModelService,
    /// The secrets of the host, which are replaced in responses.
    pub(super) secrets: Secrets,
    pub(super) limiter: Arc<ModelLimiter>,
    plan: ModelPlan,
    max_output_tokens: Option<u32>,
    temperature: Option<f64>,
    extra_body: Map<String, Value>,
    /// The members instead of `extra_body` in the host's own requests.
    extra_body_internal: Map<String, Value>,
    omit_body: BTreeSet<String>,
    prompt_cache: bool,
    send_reasoning: SendReasoning,
    /// Counts the requests whose prompt does not begin with that of the session's request before.
    pub(super) prefix_breaks: PrefixBreakMetrics,
    /// The numbers that all sessions have learnt of it.
    pub(super) learnt: LearntTokens,
    /// The reasoning that its service wants back, as far as refusals have shown it.
    pub(super) learnt_reasoning: Learnt<LearntReasoning>,
    /// The tools that its service refuses.
    pub(super) set_aside: SetAsideTools,
}

impl Model {
    /// Creates the models of a configuration, by name. Agents with the same model share its
    /// connections, its permits and its circuit breaker.
    pub(super) fn all(
        config: &Config,
        sources: &ModelSources,
        telemetry: &Telemetry,
        lag_clock: &HostLagClock,
        secrets: &Secrets,
    ) -> Result<BTreeMap<String, Arc<Self>>, HostError> {
        let models = config.models.iter().map(|(name, model)| {
            let metrics = telemetry.metrics().model(name);
            let limiter = ModelLimiter::new(model, metrics.clone());
            let service = match sources.0.get(name) {
                Some(source) => {
                    let (source, config) = (Arc::clone(source), Arc::new(model.clone()));
                    ModelService::Source { source, config, lag_clock: lag_clock.clone() }
                }
                None => {
                    let client = ModelClient::of_host(model, lag_clock.clone(), secrets);
                    ModelService::Http(
                        client.map_err(|e| HostError::Config(format!("{name}: {e}")))?,
                    )
                }
            };
            let metrics = (metrics, telemetry.metrics().prefix_breaks().clone());
            let names = (name.as_str(), displayed_model_name(&config.models, name).into());
            let model = Self::new(names, model, service, secrets.clone(), limiter, metrics);
            Ok((name.clone(), Arc::new(model)))
        });
        models.collect()
    }

    fn new(
        (name, displayed_name): (&str, Arc<str>),
        config: &ModelConfig,
        service: ModelService,
        secrets: Secrets,
        limiter: Arc<ModelLimiter>,
        (metrics, prefix_breaks): (ModelMetrics, PrefixBreakMetrics),
    ) -> Self {
        Self {
            name: name.to_owned(),
            service,
            secrets,
            limiter,
            plan: ModelPlan {
                origin: Arc::new(ModelOrigin { wire: config.wire, model: config.model.clone() }),
                displayed_name,
                streamed: config.stream,
                max_attempts: config.max_attempts,
                context_window: config.configured_context_window(),
            },
            max_output_tokens: config.max_output_tokens,
            temperature: config.temperature,
            extra_body: config.extra_body.clone(),
            extra_body_internal: config
                .extra_body_internal
                .as_ref()
                .unwrap_or(&config.extra_body)
                .clone(),
            omit_body: config.omit_body.clone(),
            prompt_cache: config.sends_prompt_cache(),
            send_reasoning: config.send_reasoning,
            prefix_breaks,
            learnt: LearntTokens::new(name, config),
            learnt_reasoning: Learnt::new(name, config),
            set_aside: SetAsideTools::new(name, config, metrics),
        }
    }

    /// Creates a model that the program implements, besides the configured ones.
    pub(super) fn from_source(
        name: &str,
        source: impl ModelSource,
        telemetry: &Telemetry,
        lag_clock: HostLagClock,
        secrets: Secrets,
    ) -> Self {
        let config = ModelConfig::for_source(name);
        let metrics = telemetry.metrics().model(name);
        let limiter = ModelLimiter::new(&config, metrics.clone());
        let metrics = (metrics, telemetry.metrics().prefix_breaks().clone());
        let (source, of) = (Arc::new(source), Arc::new(config.clone()));
        let service = ModelService::Source { source, config: of, lag_clock };
        Self::new((name, name.into()), &config, service, secrets, limiter, metrics)
    }

    /// Returns whether it has made a message with this origin.
    pub(super) fn has_origin(&self, origin: &Arc<ModelOrigin>) -> bool {
        Arc::ptr_eq(&self.plan.origin, origin) || self.plan.origin == *origin
    }

    /// Returns its wire format.
    pub(super) fn wire(&self) -> Wire {
        self.plan.origin.wire
    }

    /// Returns whether its configuration names its window.
    pub(super) fn has_window(&self) -> bool {
        self.plan.context_window.is_some()
    }

    /// Returns its window, in tokens: the configured one, or the one that its service has shown.
    pub(super) fn window(&self) -> Option<u64> {
        self.plan.context_window.or(self.learnt.get().window())
    }

    /// Returns the maximum length of a response, in tokens: that of the run, or the configured one.
    pub(super) fn max_output_tokens(&self) -> Option<u32> {
        self.max_output_tokens
    }

    /// Returns its current status.
    pub(super) fn status(&self) -> ModelStatus {
        self.limiter.status(&self.name)
    }

    /// Returns its configuration, status and failures.
    pub(super) fn report(&self) -> ModelReport {
        let ModelOrigin { wire, model } = &*self.plan.origin;
        self.limiter.report(&self.name, *wire, model)
    }

    /// Returns the additional members of a request's body.
    pub(super) fn extra_body_of(&self, request: &ModelRequest) -> &Map<String, Value> {
        if request.is_internal { &self.extra_body_internal } else { &self.extra_body }
    }

    /// Returns the request with the fields of this model. Messages and tools stay shared.
    pub(super) fn adapt(&self, request: ModelRequest, streamed: bool) -> ModelRequest {
        let extra_body = self.extra_body_of(&request).clone();
        ModelRequest {
            model: self.plan.origin.model.clone(),
            stream: streamed,
            max_output_tokens: self.max_output_tokens,
            temperature: self.temperature,
            extra_body,
            omit_body: self.omit_body.clone(),
            prompt_cache: self.prompt_cache,
            reasoning: self.reasoning_rule(false),
            ..request
        }
    }

    /// Returns the current rule for the reasoning of its messages. `is_fallback` says that the request is to it as a
    /// fallback model.
    pub(super) fn reasoning_rule(&self, is_fallback: bool) -> ReasoningRule {
        self.learnt_reasoning.get().rule(self.send_reasoning, is_fallback)
    }

    /// Learns from an error whether its service wants reasoning back. `sent` is the rule of the failed request. Keeps
    /// the refusal in the error only if the next request differs.
    pub(super) fn learn_reasoning(
        &self,
        error: &mut ProviderError,
        sent: ReasoningRule,
        journal: &Arc<dyn Journal>,
    ) {
        let Some(refusal) = error.reasoning else { return };
        let (wire, configured) = (self.plan.origin.wire, self.send_reasoning);
        let is_new = self
            .learnt_reasoning
            .update(|learnt| learnt.handle_refusal(refusal, wire, configured, sent));
        if is_new {
            self.learnt_reasoning.store_soon(journal);
        } else {
            error.reasoning = None;
        }
    }
}

/// Returns the name of a session's prompt in the caches of services. It does not reveal the session's id.
pub(super) fn prompt_cache_key(session: &SessionId) -> Arc<str> {
    let digest = Sha256::new().chain_update("callsheet session ").chain_update(session.as_str());
    let digest = digest.finalize();
    let half = digest.iter().take(16).fold(0_u128, |half, byte| half << 8 | u128::from(*byte));
    format!("{half:032x}").into()
}

/// The models of an agent or of one run, in the order of use: at least one.
#[derive(Clone, Debug)]
pub(super) struct ModelChain {
    first: Arc<Model>,
    fallbacks: Vec<Arc<Model>>,
}

impl ModelChain {
    pub(super) fn new(first: Arc<Model>, fallbacks: Vec<Arc<Model>>) -> Self {
        Self { first, fallbacks }
    }

    /// Returns the chain with this model first. The others follow in their order.
    pub(super) fn starting_with(&self, first: &Arc<Model>) -> Self {
        let others = self.iter().filter(|model| model.name != first.name);
        Self { first: Arc::clone(first), fallbacks: others.cloned().collect() }
    }

    /// Returns the chain with the temperature and the maximum length of responses of a run. A fallback keeps
    /// its own maximum where that is lower.
    pub(super) fn with_parameters(
        &self,
        temperature: Option<f64>,
        max_output_tokens: Option<u32>,
    ) -> Self {
        let change = |model: &Arc<Model>, maximum: Option<u32>| {
            Arc::new(Model {
                temperature: temperature.or(model.temperature),
                max_output_tokens: maximum.or(model.max_output_tokens),
                ..Model::clone(model)
            })
        };
        let change_fallback = |model: &Arc<Model>| {
            let both = max_output_tokens.zip(model.max_output_tokens);
            change(model, both.map(|(new, own)| new.min(own)).or(max_output_tokens))
        };
        Self {
            first: change(&self.first, max_output_tokens),
            fallbacks: self.fallbacks.iter().map(change_fallback).collect(),
        }
    }

    pub(super) fn first(&self) -> &Arc<Model> {
        &self.first
    }

    /// Returns the model at an index, or the first one if there is none.
    pub(super) fn at(&self, index: usize) -> &Arc<Model> {
        self.iter().nth(index).unwrap_or(&self.first)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Model>> {
        std::iter::once(&self.first).chain(&self.fallbacks)
    }

    /// Returns their names in the configuration, separated by commas.
    pub(super) fn names(&self) -> String {
        self.iter().map(|model| model.name.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the plans for a turn; `stream` applies to all models.
    pub(super) fn plans(&self, stream: Option<bool>) -> ModelPlans {
        let plan = |model: &Arc<Model>| ModelPlan {
            streamed: stream.unwrap_or(model.plan.streamed),
            ..model.plan.clone()
        };
        ModelPlans::new(plan(&self.first), self.fallbacks.iter().map(plan).collect())
    }
}
