//! Makes spans from events: `invoke_agent` for a run, and below it `chat` for each request to a model and
//! `execute_tool` for each started call that is not a copy of another.
//!
//! A span is made when it ends. Its times come from its last event and from the time at which the host handles
//! this event. Its id is the one that was sent with the request or passed to the tool.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::trace::{SpanKind, TraceContextExt as _, TraceId};
use opentelemetry::{Array, Context, InstrumentationScope, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{Config, SamplingDecision, ShouldSample};
use parking_lot::Mutex;

use super::TracedRun;
use super::contents;
use super::export::SpanExporterQueue;
use super::finished::{
    FinishedSpan, ServiceAttributes, SpanParent, attempt_error, context, count, text,
};
use crate::journal::unix_ms;
use crate::telemetry::Metrics;
use callsheet_values::config::{ModelConfig, displayed_model_name};
use callsheet_values::event::{Event, PublishedEvent, RunStats};
use callsheet_values::types::{
    ProviderError, ProviderErrorKind, RunEnd, RunError, RunId, RunTrace, SessionId, ToolResult,
    ToolStatus, TraceContext,
};
use callsheet_wire::ModelRequest;
use callsheet_wire::response::ResponseAssembler;

/// Maximum number of concurrently traced runs. Further runs have no spans.
const RUNS_MAX: usize = 100_000;

/// The environment variable that enables contents in spans.
const CAPTURE: &str = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT";

/// The spans of one host.
pub(super) struct Spans {
    /// The run in progress of each session.
    runs: Mutex<HashMap<SessionId, TracedOpenRun>>,
    /// The services of models, by the names of these in events.
    services: HashMap<String, ServiceAttributes>,
    sampler: Box<dyn ShouldSample>,
    captures: bool,
    scope: InstrumentationScope,
    exports: SpanExporterQueue,
}

/// A run in progress.
struct TracedOpenRun {
    id: RunId,
    trace: Arc<RunTrace>,
    /// The client's trace context.
    parent: Option<TraceContext>,
    agent: String,
    model: String,
    began: SystemTime,
    /// The time at which the run's clock was 0: the times of calls are relative to it. The clock stops while no host
    /// runs.
    clock: SystemTime,
    /// The current attempt of the turn.
    attempt: u32,
    /// Input, request and answer are there only if contents are captured.
    input: Option<String>,
    request: Option<Arc<ModelRequest>>,
    answer: Option<String>,
}

impl Spans {
    /// Creates the spans from the environment.
    ///
    /// # Errors
    /// If its variables are invalid.
    pub(super) fn from_env(
        models: &BTreeMap<String, ModelConfig>,
        metrics: &Metrics,
    ) -> Result<Self, String> {
        let services = models.iter().map(|(name, model)| {
            (displayed_model_name(models, name), ServiceAttributes::of(model))
        });
        let scope = InstrumentationScope::builder("callsheet");
        Ok(Self {
            runs: Mutex::default(),
            services: services.collect(),
            sampler: Config::default().sampler,
            captures: contents::is_wanted(std::env::var(CAPTURE).ok().as_deref()),
            scope: scope.with_version(env!("CARGO_PKG_VERSION")).build(),
            exports: SpanExporterQueue::from_env(metrics)?,
        })
    }

    /// Returns whether spans contain message contents.
    pub(super) fn captures(&self) -> bool {
        self.captures
    }

    pub(super) fn begin(&self, run: TracedRun<'_>) -> Arc<RunTrace> {
        let TracedRun { session, run: id, agent, model, given, began, elapsed, input } = run;
        let is_sampled = |trace_id| self.is_sampled(trace_id, given.as_ref(), agent);
        let trace = RunTrace::with_spans(session, id, given.as_ref(), is_sampled);
        let trace = Arc::new(trace);
        if !trace.run().is_sampled() {
            return trace;
        }
        let mut runs = self.runs.lock();
        if runs.len() >= RUNS_MAX && !runs.contains_key(session) {
            self.exports.count_dropped();
            return trace;
        }
        let ms = |ms| UNIX_EPOCH + Duration::from_millis(ms);
        let began = ms(began);
        // Rounding must not set the clock before the start of a run that was interrupted in its first millisecond.
        let clock = (ms(unix_ms()) - elapsed).max(began);
        // The same run, if it was resumed.
        let known = runs.remove(session).filter(|known| known.id == *id);
        let input = input.filter(|_| self.captures).map(contents::user);
        let open = TracedOpenRun {
            id: id.clone(),
            trace: Arc::clone(&trace),
            parent: given,
            agent: agent.to_owned(),
            model: model.to_owned(),
            began,
            clock,
            attempt: known.as_ref().map_or(1, |known| known.attempt),
            input: input.or_else(|| known.and_then(|known| known.input)),
            request: None,
            answer: None,
        };
        runs.insert(session.clone(), open);
        trace
    }

    fn is_sampled(&self, trace_id: [u8; 16], given: Option<&TraceContext>, agent: &str) -> bool {
        let parent =
            given.map(|given| Context::new().with_remote_span_context(context(given, true)));
        let sampled = self.sampler.should_sample(
            parent.as_ref(),
            TraceId::from_bytes(trace_id),
            &format!("invoke_agent {agent}"),
            &SpanKind::Internal,
            &[],
            &[],
        );
        sampled.decision == SamplingDecision::RecordAndSample
    }

    pub(super) fn request_started(&self, session: &SessionId, request: &Arc<ModelRequest>) {
        if let Some(run) = self.runs.lock().get_mut(session) {
            run.request = Some(Arc::clone(request));
        }
    }

    pub(super) fn answered(&self, session: &SessionId, response: &ResponseAssembler) {
        let finish = response.finish_reason().map(|finish| &*finish.raw);
        if let Some(run) = self.runs.lock().get_mut(session) {
            run.answer = Some(contents::output(response, finish));
        }
    }

    pub(super) fn observe(&self, published: &PublishedEvent) {
        let PublishedEvent { session, run: id, turn, event, .. } = published;
        let concerns_spans = matches!(
            event,
            Event::TurnStarted
                | Event::AttemptStarted { .. }
                | Event::AttemptEnded { .. }
                | Event::CallEnded { .. }
                | Event::RunEnded { .. }
        );
        if !concerns_spans {
            return;
        }
        let now = SystemTime::now();
        let mut runs = self.runs.lock();
        let Some(run) = runs.get_mut(session).filter(|run| run.id == *id) else { return };
        if let Event::TurnStarted = event {
            run.attempt = 1;
        } else if let Event::AttemptStarted { attempt, .. } = event {
            run.attempt = *attempt;
        } else if let Event::AttemptEnded { error, .. } = event {
            let is_refused = |error: &ProviderError| error.kind == ProviderErrorKind::BreakerOpen;
            if error.as_deref().is_some_and(is_refused) {
                // No request was sent.
                return;
            }
            let span = self.chat(run, session, *turn, now, event);
            self.exports.queue(span.data(&self.scope));
        } else if let Event::CallEnded { result, .. } = event {
            if let Some(span) = self.execute_tool(run, session, now, result) {
                self.exports.queue(span.data(&self.scope));
            }
        } else if let Event::RunEnded { end, text, error, stats, .. } = event {
            let span = self.invoke_agent(run, session, now, (*end, error.as_ref()), text, stats);
            runs.remove(session);
            drop(runs);
            self.exports.queue(span.data(&self.scope));
        }
    }

    pub(super) fn shutdown(&self, limit: Duration) {
        self.exports.shutdown(limit);
    }

    fn chat(
        &self,
        run: &mut TracedOpenRun,
        session: &SessionId,
        turn: u32,
        now: SystemTime,
        event: &Event,
    ) -> FinishedSpan {
        let mut span = FinishedSpan {
            name: "chat".to_owned(),
            kind: SpanKind::Client,
            context: run.trace.for_attempt(turn, run.attempt),
            parent: SpanParent::Ours(run.trace.run().clone()),
            start: now,
            end: now,
            attributes: vec![text("gen_ai.operation.name", "chat")],
            error: None,
        };
        let answer = run.answer.take();
        if let Event::AttemptEnded {
            model,
            streamed,
            duration,
            first_chunk,
            usage,
            finish_reason,
            error,
        } = event
        {
            let of_service = self.model_at_service(model);
            span.name = format!("chat {of_service}");
            span.start = (now - *duration).max(run.began);
            let attributes = &mut span.attributes;
            attributes.push(text("gen_ai.request.model", of_service));
            attributes.push(text("gen_ai.conversation.id", session.as_str()));
            self.put_service(attributes, model);
            attributes.push(count("gen_ai.usage.input_tokens", usage.input_tokens));
            attributes.push(count("gen_ai.usage.output_tokens", usage.output_tokens));
            for (key, tokens) in [
                ("gen_ai.usage.cache_read.input_tokens", usage.cached_tokens),
                ("gen_ai.usage.reasoning.output_tokens", usage.reasoning_tokens),
            ] {
                attributes.extend((tokens > 0).then(|| count(key, tokens)));
            }
            if let Some(reason) = finish_reason {
                let reasons = vec![StringValue::from(reason.raw.clone())];
                let reasons = Value::Array(Array::String(reasons));
                attributes.push(KeyValue::new("gen_ai.response.finish_reasons", reasons));
            }
            if let Some(first) = first_chunk {
                let seconds = first.as_secs_f64();
                attributes.push(KeyValue::new("gen_ai.response.time_to_first_chunk", seconds));
            }
            attributes.push(KeyValue::new("gen_ai.request.stream", *streamed));
            attributes.push(count("callsheet.turn", u64::from(turn)));
            attributes.push(count("callsheet.attempt", u64::from(run.attempt)));
            span.error = error.as_deref().map(attempt_error);
        }
        if let Some(request) = &run.request {
            span.attributes.push(text("gen_ai.input.messages", contents::input(request)));
            let system = contents::system(request);
            span.attributes.extend(system.map(|prompt| text("gen_ai.system_instructions", prompt)));
        }
        span.attributes.extend(answer.map(|answer| text("gen_ai.output.messages", answer)));
        span
    }

    /// Returns `None` for a call that never started or whose result is a copy.
    fn execute_tool(
        &self,
        run: &TracedOpenRun,
        session: &SessionId,
        now: SystemTime,
        result: &ToolResult,
    ) -> Option<FinishedSpan> {
        let ToolResult { call, outcome, notes, started, duration, .. } = result;
        if notes.duplicate_of.is_some() || notes.reused {
            return None;
        }
        let start = (run.clock + (*started)?).clamp(run.began, now.max(run.began));
        let mut attributes = vec![
            text("gen_ai.operation.name", "execute_tool"),
            text("gen_ai.tool.name", &*call.name),
            text("gen_ai.tool.call.id", &**call.provider_id.as_ref().unwrap_or(&call.id)),
            text("gen_ai.tool.type", "function"),
            text("gen_ai.agent.name", &run.agent),
            text("gen_ai.conversation.id", session.as_str()),
            text("callsheet.tool_id", call.key.to_string()),
        ];
        if self.captures {
            let arguments = contents::cut(&call.arguments_text());
            attributes.push(text("gen_ai.tool.call.arguments", arguments));
            attributes.push(text("gen_ai.tool.call.result", contents::cut(&outcome.content)));
        }
        let kind = || outcome.kind.map_or(outcome.status.as_str(), |kind| kind.as_str());
        // A tool's error message may be as private as its result.
        let error = (outcome.status != ToolStatus::Ok).then(|| (kind().to_owned(), String::new()));
        Some(FinishedSpan {
            name: format!("execute_tool {}", call.name),
            kind: SpanKind::Internal,
            context: run.trace.for_call(call.key),
            parent: SpanParent::Ours(run.trace.run().clone()),
            start,
            end: (start + *duration).min(now.max(start)),
            attributes,
            error,
        })
    }

    fn invoke_agent(
        &self,
        run: &TracedOpenRun,
        session: &SessionId,
        now: SystemTime,
        (end, error): (RunEnd, Option<&RunError>),
        answer: &str,
        stats: &RunStats,
    ) -> FinishedSpan {
        let mut attributes = vec![
            text("gen_ai.operation.name", "invoke_agent"),
            text("gen_ai.agent.name", &run.agent),
            text("gen_ai.conversation.id", session.as_str()),
            text("gen_ai.request.model", self.model_at_service(&run.model)),
            count("gen_ai.usage.input_tokens", stats.usage.input_tokens),
            count("gen_ai.usage.output_tokens", stats.usage.output_tokens),
            text("callsheet.run_id", run.id.to_string()),
            text("callsheet.run_end", end.as_str()),
            count("callsheet.turns", u64::from(stats.turns)),
            count("callsheet.tool_calls", u64::from(stats.tool_calls)),
        ];
        self.put_service(&mut attributes, &run.model);
        if self.captures {
            let input = run.input.clone();
            attributes.extend(input.map(|input| text("gen_ai.input.messages", input)));
            attributes.push(text("gen_ai.output.messages", contents::answer(answer, end)));
        }
        let failed = matches!(
            end,
            RunEnd::Failed | RunEnd::TimedOut | RunEnd::AllToolsFailed | RunEnd::LoopDetected
        );
        let error = match error {
            Some(RunError { code, message, .. }) => Some((code.to_string(), message.clone())),
            None => failed.then(|| (end.as_str().to_owned(), String::new())),
        };
        FinishedSpan {
            name: format!("invoke_agent {}", run.agent),
            kind: SpanKind::Internal,
            context: run.trace.run().clone(),
            parent: run.parent.clone().map_or(SpanParent::None, SpanParent::Remote),
            start: run.began,
            end: now.max(run.began),
            attributes,
            error,
        }
    }

    /// Returns the name of a model at its service.
    fn model_at_service<'a>(&'a self, displayed: &'a str) -> &'a str {
        self.services.get(displayed).map_or(displayed, |service| &service.model)
    }

    fn put_service(&self, attributes: &mut Vec<KeyValue>, model: &str) {
        if let Some(service) = self.services.get(model) {
            service.put_on(attributes);
        }
    }
}

impl std::fmt::Debug for Spans {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Spans").field("exports", &self.exports).finish_non_exhaustive()
    }
}
