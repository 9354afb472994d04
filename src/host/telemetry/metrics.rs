//! Translates events into metrics.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram};

use super::faces::FaceMetrics;
use super::labelled_handles::{
    AgentHandles, PerName, PerTool, PerValue, RequestHandles, error_type,
};
use super::metric_table::{
    self as table, ConsoleMetrics, HostMetrics, JournalMetrics, MetricHandle, RunMetrics,
    SharedRecorder, SharingMetrics,
};
use super::models::ModelMetrics;
use super::sharing::TakeoverReason;
use crate::journal::JournalStatus;
use callsheet_machines::turn::BreakerState;
use callsheet_values::config::Limits;
use callsheet_values::event::{
    ArgumentsAnomaly, AttemptFallback, Event, RunStats, ServiceCallStatus, TurnSummary,
};
use callsheet_values::types::{
    ApprovalVerdict, CompactionKind, ContextPart, FailureKind, HookPoint, PartTokens,
    ProviderError, ProviderErrorKind, RunEnd, RunError, SessionState, ToolResult, Usage,
};
use callsheet_wire::PromptChange;

/// The counters of requests whose prompt does not begin with that of the session's previous request.
#[derive(Clone, Debug)]
pub struct PrefixBreakMetrics(Arc<PerValue<PromptChange>>);

impl PrefixBreakMetrics {
    /// Counts a break.
    pub fn increment(&self, reason: PromptChange) {
        self.0.increment(reason);
    }
}

/// The metrics of one host. [`Metrics::record`] translates events. Gauges of the host's current
/// state have methods of their own.
pub struct Metrics {
    pub(super) recorder: SharedRecorder,
    pub(super) runs: RunMetrics,
    journal: JournalMetrics,
    sharing: SharingMetrics,
    takeovers: PerValue<TakeoverReason>,
    unknown_commits: [Counter; 2],
    host: HostMetrics,
    console: ConsoleMetrics,
    faces: FaceMetrics,

    sessions: Vec<(SessionState, Gauge)>,
    runs_open: [Gauge; 3],
    tools: PerTool,
    models: PerName<RequestHandles>,
    overflows: PerName<Counter>,
    pieces_lost: PerName<Counter>,
    prefix_breaks: PrefixBreakMetrics,
    agents: PerName<AgentHandles>,
    limits: PerName<Counter>,
    attempts: PerValue<Option<ProviderErrorKind>>,
    anomalies: PerValue<ArgumentsAnomaly>,
    run_ends: PerValue<RunEnd>,
    approvals: PerValue<ApprovalVerdict>,
    http_refusals: PerValue<u16>,
    tokens_saved: PerValue<CompactionKind>,
    context_tokens: [Histogram; ContextPart::ALL.len()],
}

const ATTEMPT_OUTCOMES: [Option<ProviderErrorKind>; 12] = [
    None,
    Some(ProviderErrorKind::Connect),
    Some(ProviderErrorKind::Timeout),
    Some(ProviderErrorKind::Transport),
    Some(ProviderErrorKind::Status),
    Some(ProviderErrorKind::InStream),
    Some(ProviderErrorKind::Malformed),
    Some(ProviderErrorKind::TooLarge),
    Some(ProviderErrorKind::UnparsableOutput),
    Some(ProviderErrorKind::BreakerOpen),
    Some(ProviderErrorKind::EmptyAnswer),
    Some(ProviderErrorKind::Refused),
];

const ANOMALIES: [ArgumentsAnomaly; 5] = [
    ArgumentsAnomaly::CutOff,
    ArgumentsAnomaly::Invalid,
    ArgumentsAnomaly::DecodedTwice,
    ArgumentsAnomaly::Repaired,
    ArgumentsAnomaly::ChangedAfterSeal,
];

/// The statuses that `callsheet_http_refused_total` counts.
const HTTP_REFUSALS: [u16; 3] = [401, 403, 429];

impl Metrics {
    /// Describes every metric to the recorder, and registers those whose label values are known.
    /// `tools` are the names that may become label values, with those of [`Self::add_tools`]; any other tool is
    /// `other`.
    #[must_use]
    pub fn new(recorder: SharedRecorder, tools: &[String]) -> Self {
        table::ALL.iter().for_each(|metric| metric.describe(&recorder));
        // These are on the page even if the host makes no spans.
        let _ = super::traces::counters(&recorder);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        Gauge::register(&table::BUILD_INFO, &recorder, &version).set(1.0);
        let session_count = |state: SessionState| {
            (state, table::SESSIONS.series(&recorder, &[("state", state.as_str())]))
        };
        Self {
            runs: RunMetrics::register(&recorder, &[]),
            journal: JournalMetrics::register(&recorder, &[]),
            sharing: SharingMetrics::register(&recorder, &[]),
            takeovers: PerValue::new(
                &recorder,
                table::TAKEOVERS,
                "reason",
                &TakeoverReason::ALL,
                TakeoverReason::as_str,
            ),
            unknown_commits: ["stored", "lost"]
                .map(|fate| table::UNKNOWN_COMMITS.series(&recorder, &[("fate", fate)])),
            host: HostMetrics::register(&recorder, &[]),
            console: ConsoleMetrics::register(&recorder, &[]),
            faces: FaceMetrics::new(&recorder),
            sessions: SessionState::ALL.into_iter().map(session_count).collect(),
            runs_open: ["running", "waiting", "sleeping"]
                .map(|state| table::RUNS_OPEN.series(&recorder, &[("state", state)])),
            tools: PerTool::new(&recorder, tools),
            models: PerName::default(),
            overflows: PerName::default(),
            pieces_lost: PerName::default(),
            prefix_breaks: PrefixBreakMetrics(Arc::new(PerValue::new(
                &recorder,
                table::PREFIX_BREAKS,
                "reason",
                &PromptChange::ALL,
                PromptChange::as_str,
            ))),
            agents: PerName::default(),
            limits: PerName::with_names(&Limits::NAMES, |limit| {
                table::LIMITS_REACHED.series(&recorder, &[("limit", limit)])
            }),
            attempts: PerValue::new(
                &recorder,
                table::ATTEMPTS,
                "outcome",
                &ATTEMPT_OUTCOMES,
                |kind| kind.map_or("ok", error_type),
            ),
            anomalies: PerValue::new(
                &recorder,
                table::ARGUMENTS_ANOMALIES,
                "oddity",
                &ANOMALIES,
                ArgumentsAnomaly::as_str,
            ),
            http_refusals: PerValue::new(
                &recorder,
                table::HTTP_REFUSED,
                "status",
                &HTTP_REFUSALS,
                |status| match status {
                    401 => "401",
                    403 => "403",
                    _ => "429",
                },
            ),
            run_ends: PerValue::new(
                &recorder,
                table::RUNS,
                "run_end",
                &RunEnd::ALL,
                RunEnd::as_str,
            ),
            approvals: PerValue::new(
                &recorder,
                table::APPROVALS,
                "verdict",
                &ApprovalVerdict::ALL,
                ApprovalVerdict::as_str,
            ),
            tokens_saved: PerValue::new(
                &recorder,
                table::CONTEXT_TOKENS_SAVED,
                "kind",
                &CompactionKind::ALL,
                CompactionKind::as_str,
            ),
            context_tokens: ContextPart::ALL
                .map(|part| table::CONTEXT_TOKENS.series(&recorder, &[("part", part.as_str())])),
            recorder,
        }
    }

    /// Records an event. Text and thinking change no metric and cost nothing.
    pub fn record(&self, event: &Event) {
        match event {
            Event::TextReceived { .. }
            | Event::ThinkingReceived { .. }
            | Event::InputQueued { .. }
            | Event::InputRemoved { .. }
            | Event::RunStarted { .. }
            | Event::RunWaiting { .. }
            | Event::ToolsChanged { .. }
            | Event::ServerReleased { .. }
            | Event::TurnStarted
            | Event::AttemptVoided { .. }
            | Event::CallOpened { .. }
            | Event::ArgumentsReceived { .. }
            | Event::ResponseEnded { .. }
            | Event::CallWaiting { .. }
            | Event::ApprovalAsked { .. }
            | Event::CallProgressed { .. } => {}
            Event::ApprovalGiven { verdict, waited, .. } => {
                self.approvals.increment(*verdict);
                self.runs.approval_wait.record(*waited);
            }
            Event::ConflictFound { call, resolution, .. } => {
                let tool = self.tools.get_or_register(&self.recorder, &call.name);
                tool.conflicts.increment(*resolution);
            }
            Event::RunSteered { .. } => self.runs.steers.increment(1),
            Event::CallDetected { latency, .. } => self.runs.detection_latency.record(*latency),
            Event::ArgumentsAnomalyFound { anomaly, .. } => self.anomalies.increment(*anomaly),
            Event::ArgumentsLost { model, reason: _ } => {
                let of_model =
                    |model: &str| table::PIECES_LOST.series(&self.recorder, &[("model", model)]);
                self.pieces_lost.get_or_register(model, of_model).increment(1);
            }
            Event::CallStarted { call, early, waited, queued, .. } => {
                self.runs.seal_to_start.record(*waited);
                if let Some(queued) = queued {
                    let tool = self.tools.get_or_register(&self.recorder, &call.name);
                    tool.queue_wait(&self.recorder).record(*queued);
                }
                self.runs.starts_early.increment(u64::from(*early));
            }
            Event::CallDiscarded { had_result, .. } => {
                self.runs.results_discarded.increment(u64::from(*had_result));
            }
            Event::CallEnded { result, .. } => self.call_ended(result),
            Event::ServiceCallChanged { status, .. } => {
                self.runs.service_calls.increment(u64::from(*status == ServiceCallStatus::Running));
            }
            Event::OutcomeLate { .. } => self.runs.late_outcomes.increment(1),
            Event::ResultReleased { reorder_wait, .. } => {
                self.runs.reorder_wait.record(*reorder_wait)
            }
            Event::ResponseDecoded { opened, detected, stopped, .. } => {
                if !stopped {
                    self.runs.calls_opened.increment(u64::from(*opened));
                    self.runs.calls_detected.increment(u64::from(*detected));
                }
            }
            Event::AttemptEnded {
                model, streamed, duration, first_chunk, usage, error, ..
            } => {
                let first_chunk = first_chunk.filter(|_| *streamed);
                self.attempt_ended(model, *duration, first_chunk, *usage, error.as_deref());
            }
            Event::AttemptFellBack { to } => match to {
                AttemptFallback::PlainAnswer => self.runs.rollbacks.increment(1),
                AttemptFallback::NextModel => self.runs.model_fallbacks.increment(1),
            },
            Event::TurnEnded { summary } => self.turn_ended(summary),
            Event::LimitReached { limit, value, maximum, action: _, reason: _ } => {
                // The event is published at half of the limit too.
                if value >= maximum {
                    let handle = self.limits.get_or_register(limit, |limit| {
                        table::LIMITS_REACHED.series(&self.recorder, &[("limit", limit)])
                    });
                    handle.increment(1);
                }
            }
            Event::ContextCompacted { kind, tokens_before, tokens_after, .. } => {
                self.tokens_saved.add(*kind, tokens_before.saturating_sub(*tokens_after));
            }
            // The child session has counted it.
            Event::OfChild { .. } => {}
            Event::AttemptStarted { .. } => {}
            // The gauge follows what the host has stored of the model.
            Event::ToolSetAside { .. } => {}
            Event::HistoryRepaired { repairs } => {
                self.runs.history_repairs.increment(u64::from(*repairs))
            }
            Event::RunEnded { agent, end, error, stats, .. } => {
                self.run_ended(agent, *end, error.as_ref(), stats);
            }
        }
    }

    /// Records the tokens of each part of a turn's request.
    pub fn context_tokens(&self, sizes: PartTokens) {
        for (histogram, (_, tokens)) in self.context_tokens.iter().zip(sizes.iter()) {
            histogram.record(tokens as f64);
        }
    }

    /// Returns the counters of requests that do not begin with the session's previous prompt.
    #[must_use]
    pub fn prefix_breaks(&self) -> &PrefixBreakMetrics {
        &self.prefix_breaks
    }

    /// Registers the metrics of a configured model.
    #[must_use]
    pub fn model(&self, name: &str) -> ModelMetrics {
        ModelMetrics::new(&self.recorder, name)
    }

    /// Returns the metrics of the journal.
    #[must_use]
    pub fn journal(&self) -> &JournalMetrics {
        &self.journal
    }

    /// Sets what the engine of the journal reports.
    pub fn set_journal_status(&self, status: JournalStatus) {
        self.journal.set_status(status);
        self.sharing.set_status(status.owned, status.heartbeat_age);
        let [stored, lost] = &self.unknown_commits;
        stored.absolute(status.unknown_stored);
        lost.absolute(status.unknown_lost);
    }

    /// Counts sessions with unfinished runs that this host has taken.
    pub fn taken_over(&self, reason: TakeoverReason, sessions: usize) {
        self.takeovers.add(reason, sessions as u64);
    }

    /// Returns the metrics of a host that shares its journal.
    #[must_use]
    pub fn sharing(&self) -> &SharingMetrics {
        &self.sharing
    }

    /// Returns the metrics of the faces.
    #[must_use]
    pub fn faces(&self) -> &FaceMetrics {
        &self.faces
    }

    /// Returns the metrics of the host process.
    #[must_use]
    pub fn host(&self) -> &HostMetrics {
        &self.host
    }

    /// Records what a page of the console has measured: the number of long frames, and the times from
    /// events to their painting.
    pub fn console_measured(&self, long_frames: u64, event_to_paint: &[Duration]) {
        self.console.long_frames.increment(long_frames);
        event_to_paint.iter().for_each(|time| self.console.event_to_paint.record(*time));
    }

    /// Sets the number of open sessions in a state.
    pub fn set_session_count(&self, state: SessionState, count: usize) {
        if let Some((_, gauge)) = self.sessions.iter().find(|(known, _)| *known == state) {
            gauge.set(count as f64);
        }
    }

    /// Sets the numbers of runs that have not ended: those in memory of which no approval is open, those of which one is
    /// open, and the others.
    pub fn set_runs_open(&self, running: usize, waiting: usize, sleeping: usize) {
        for (gauge, count) in self.runs_open.iter().zip([running, waiting, sleeping]) {
            gauge.set(count as f64);
        }
    }

    /// Sets the number of runs in progress.
    pub fn set_runs_active(&self, count: usize) {
        self.runs.runs_active.set(count as f64);
    }

    /// Sets the number of approvals that wait for a person, and the age of the oldest.
    pub fn set_open_approvals(&self, count: usize, oldest: Duration) {
        self.runs.approvals_open.set(count as f64);
        self.runs.approvals_oldest.set(oldest.as_secs_f64());
    }

    /// Sets the number of inputs that wait for a run to end.
    pub fn set_queued_inputs(&self, count: usize) {
        self.runs.queued_inputs.set(count as f64);
    }

    /// Sets the number of calls that wait for a permit of their tool or for their server.
    pub fn set_calls_waiting(&self, count: usize) {
        self.runs.calls_waiting.set(count as f64);
    }

    /// Lets these names of tools become label values, up to 64 in all.
    pub fn add_tools<'n>(&self, names: impl Iterator<Item = &'n str>) {
        self.tools.add_names(names);
    }

    /// Sets the state of the circuit breaker of a tool.
    pub fn tool_breaker(&self, tool: &str, state: BreakerState) {
        let gauge: Gauge = table::TOOL_BREAKER_STATE.series(&self.recorder, &[("tool", tool)]);
        gauge.set(f64::from(state.as_number()));
    }

    /// Counts a request that the HTTP server refused with a status. Counts no others than 401, 403 and 429.
    pub fn http_refused(&self, status: u16) {
        self.http_refusals.increment(status);
    }

    /// Sets the number of connections to an MCP server in a state.
    pub fn mcp_server(&self, server: &str, state: &str, connections: usize) {
        let labels = [("server", server), ("state", state)];
        let gauge: Gauge = table::MCP_SERVERS.series(&self.recorder, &labels);
        gauge.set(connections as f64);
    }

    /// Records the duration of a request to an MCP server, with the type of its error.
    pub fn mcp_operation(&self, method: &str, error_type: Option<&str>, duration: Duration) {
        let error = error_type.map(|error| ("error_type", error));
        let labels: Vec<(&str, &str)> = [("method", method)].into_iter().chain(error).collect();
        let histogram: Histogram = table::MCP_OPERATION_DURATION.series(&self.recorder, &labels);
        histogram.record(duration);
    }

    /// Counts that an MCP server has reached a limit.
    pub fn mcp_limit_reached(&self, server: &str, limit: &str) {
        let labels = [("server", server), ("limit", limit)];
        let counter: Counter = table::MCP_LIMITS_REACHED.series(&self.recorder, &labels);
        counter.increment(1);
    }

    /// Records the time until a hook answered.
    pub fn hook_answered(&self, hook: &str, on: HookPoint, outcome: &str, duration: Duration) {
        let labels = [("hook", hook), ("on", on.as_str()), ("outcome", outcome)];
        let histogram: Histogram = table::HOOK_DURATION.series(&self.recorder, &labels);
        histogram.record(duration);
    }

    /// Counts an event that a live hook has lost.
    pub fn hook_event_lost(&self, hook: &str) {
        let counter: Counter = table::HOOK_EVENTS_LOST.series(&self.recorder, &[("hook", hook)]);
        counter.increment(1);
    }

    /// Sets the number of abandoned threads of blocking tools.
    pub fn set_threads_abandoned(&self, count: usize) {
        self.runs.threads_abandoned.set(count as f64);
    }

    /// Counts subscribers that were removed because they were too slow.
    pub fn subscribers_lagged(&self, count: usize) {
        self.runs.subscribers_lagged.increment(count as u64);
    }

    /// Returns the seconds that tools have run.
    #[cfg(feature = "prometheus")]
    pub(super) fn tool_execution_seconds(&self) -> f64 {
        self.runs.tool_execution_time.seconds()
    }

    fn call_ended(&self, result: &ToolResult) {
        let status = result.outcome.status;
        let tool = self.tools.get_or_register(&self.recorder, &result.call.name);
        let handles = tool.for_status(status);
        if let Some(handles) = handles {
            handles.results.increment(1);
        }
        // The copy of another call's outcome took no time. A call whose arguments changed after its
        // start was answered by the host, not by its tool.
        let copied = result.notes.duplicate_of.is_some() || result.notes.reused;
        let malformed = result.outcome.kind == Some(FailureKind::Malformed);
        if copied || malformed || result.started.is_none() {
            return;
        }
        tool.attempts
            .increment(result.outcome.attempts.map_or(1, |attempts| attempts.get().into()));
        if let Some(handles) = handles {
            handles.duration(&self.recorder, &tool.label).record(result.duration);
        }
        self.runs.execution_latency.record(result.wait.saturating_add(result.duration));
        if result.outcome.kind == Some(FailureKind::Panic) {
            self.runs.tool_panics.increment(1);
        }
    }

    fn attempt_ended(
        &self,
        model: &str,
        duration: Duration,
        first_chunk: Option<Duration>,
        usage: Usage,
        error: Option<&ProviderError>,
    ) {
        self.attempts.increment(error.map(|error| error.kind));
        if error.is_some_and(|error| error.kind == ProviderErrorKind::BreakerOpen) {
            // No request was sent.
            return;
        }
        if error.is_some_and(ProviderError::is_context_overflow) {
            let of_model =
                |model: &str| table::CONTEXT_OVERFLOWS.series(&self.recorder, &[("model", model)]);
            self.overflows.get_or_register(model, of_model).increment(1);
        }
        let handles =
            self.models.get_or_register(model, |model| RequestHandles::new(&self.recorder, model));
        match error {
            None => handles.duration.record(duration),
            // Errors are rare, so their series is not cached.
            Some(error) => {
                let labels = [
                    ("gen_ai_operation_name", "chat"),
                    ("gen_ai_request_model", &handles.model),
                    ("error_type", error_type(error.kind)),
                ];
                Histogram::register(&table::OPERATION_DURATION, &self.recorder, &labels)
                    .record(duration);
            }
        }
        if let Some(first_chunk) = first_chunk {
            handles.first_chunk.record(first_chunk);
        }
        // A service that does not count tokens reports 0 for both kinds.
        if usage.input_tokens > 0 || usage.output_tokens > 0 {
            handles.input_tokens.record(usage.input_tokens as f64);
            handles.output_tokens.record(usage.output_tokens as f64);
            handles.cached_tokens.increment(usage.cached_tokens);
        }
    }

    fn turn_ended(&self, turn: &TurnSummary) {
        let calls = turn.tool_names.len();
        self.runs.tool_calls_per_turn.record(calls as f64);
        self.runs.multi_tool_call_turns.increment(u64::from(calls > 1));
        self.runs.calls_dropped.increment(u64::from(turn.dropped_calls));
        self.runs.turn_overhead.record(turn.times.overhead);
        if calls > 0 {
            self.runs.tool_execution_time.add(turn.times.tools_sum);
            self.runs.tool_execution_time_max.record(turn.times.tools_longest);
            self.runs.overlap_saved.record(turn.times.overlap);
        }
    }

    fn run_ended(&self, agent: &str, end: RunEnd, error: Option<&RunError>, stats: &RunStats) {
        self.run_ends.increment(end);
        let handles =
            self.agents.get_or_register(agent, |agent| AgentHandles::new(&self.recorder, agent));
        handles.tool_calls.record(f64::from(stats.tool_calls));
        if error.is_none() {
            handles.duration.record(stats.duration);
            return;
        }
        let labels = [
            ("gen_ai_operation_name", "invoke_agent"),
            ("gen_ai_agent_name", handles.agent.as_str()),
            ("error_type", end.as_str()),
        ];
        Histogram::register(&table::INVOKE_AGENT_DURATION, &self.recorder, &labels)
            .record(stats.duration);
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
#[cfg(feature = "prometheus")]
mod tests {
    use super::super::Telemetry;
    use super::super::labelled_handles::PerTool;
    use super::super::metric_table::MetricKind;
    use super::*;
    use callsheet_values::event::samples;
    use callsheet_values::types::{ContextOverflow, ToolOutcome, ToolStatus};

    fn telemetry() -> Telemetry {
        Telemetry::new(&["clock".to_owned(), "calculator".to_owned()])
    }

    /// Returns the value of a series on the page.
    fn value(page: &str, series: &str) -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("no {series} in\n{page}")).parse().unwrap()
    }

    fn check(events: &[Event], expect: &[(&str, f64)]) {
        let telemetry = telemetry();
        for event in events {
            telemetry.metrics().record(event);
        }
        let page = telemetry.render();
        for (series, expected) in expect {
            assert_eq!(value(&page, series), *expected, "{series}");
        }
    }

    #[test]
    fn whole_numbers_without_labels_begin_at_zero() {
        let page = telemetry().render();
        for metric in table::ALL.iter().filter(|metric| metric.labels.is_empty()) {
            match metric.kind {
                MetricKind::Histogram(_) => {
                    assert_eq!(value(&page, &format!("{}_count", metric.name)), 0.0);
                }
                MetricKind::Counter | MetricKind::SecondsSum | MetricKind::Gauge => {
                    assert_eq!(value(&page, metric.name), 0.0);
                }
            }
        }
    }

    #[test]
    fn every_metric_is_rendered_with_its_description_and_type() {
        let telemetry = telemetry();
        for event in samples::every() {
            telemetry.metrics().record(&event);
        }
        let mut overflow = ProviderError::new(ProviderErrorKind::Status, "prompt is too long");
        overflow.overflow = Some(ContextOverflow::default());
        telemetry.metrics().attempt_ended(
            "m",
            Duration::ZERO,
            None,
            Usage::default(),
            Some(&overflow),
        );
        let _model = telemetry.metrics().model("main");
        telemetry.metrics().tool_breaker("clock", BreakerState::Open);
        telemetry.metrics().mcp_server("files", "up", 1);
        telemetry.metrics().mcp_operation("tools/call", None, Duration::from_secs(1));
        telemetry.metrics().mcp_limit_reached("files", "line");
        telemetry.metrics().hook_answered("guard", HookPoint::BeforeCall, "allow", Duration::ZERO);
        telemetry.metrics().hook_event_lost("watch");
        let page = telemetry.render();
        for metric in table::ALL {
            let (name, help) = (metric.name, metric.help);
            let kind = match metric.kind {
                MetricKind::Counter | MetricKind::SecondsSum => "counter",
                MetricKind::Gauge => "gauge",
                MetricKind::Histogram(_) => "histogram",
            };
            let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name}");
            assert!(page.contains(&head), "{head} is not in\n{page}");
        }
        let known = |name: &str| table::ALL.iter().any(|metric| metric.name == name);
        for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            assert!(line.split(' ').next().is_some_and(known), "{line} is not a constant");
        }
    }

    #[test]
    fn turns_are_counted_by_their_calls() {
        let times = callsheet_values::event::TurnTimes {
            tools_sum: Duration::from_millis(800),
            tools_longest: Duration::from_millis(100),
            overlap: Duration::from_millis(40),
            overhead: Duration::from_millis(2),
            ..Default::default()
        };
        let turn = |names: &[&str], dropped_calls| Event::TurnEnded {
            summary: Box::new(TurnSummary {
                tool_names: names.iter().map(|name| (*name).into()).collect(),
                dropped_calls,
                times,
                ..Default::default()
            }),
        };
        check(
            &[turn(&[], 0), turn(&["clock"], 2), turn(&["clock", "clock"], 0)],
            &[
                ("tool_calls_per_turn_bucket{le=\"0\"}", 1.0),
                ("tool_calls_per_turn_bucket{le=\"1\"}", 2.0),
                ("tool_calls_per_turn_count", 3.0),
                ("tool_calls_per_turn_sum", 3.0),
                ("multi_tool_call_turns_total", 1.0),
                ("tool_execution_time_seconds_total", 1.6),
                ("tool_execution_time_max_seconds_count", 2.0),
                ("callsheet_overlap_saved_seconds_sum", 0.08),
                ("callsheet_turn_overhead_seconds_count", 3.0),
                ("callsheet_tool_calls_dropped_total", 2.0),
            ],
        );
    }

    #[test]
    fn a_cancelled_response_is_not_counted() {
        let ended = |stopped| Event::ResponseDecoded {
            names: vec!["clock".into()],
            opened: 3,
            detected: 2,
            stopped,
        };
        check(
            &[ended(false), ended(true)],
            &[
                ("streaming_tool_calls_opened_total", 3.0),
                ("streaming_tool_calls_detected_total", 2.0),
            ],
        );
    }

    #[test]
    fn a_call_of_the_service_is_counted_once_at_its_start() {
        use ServiceCallStatus::{Discarded, Finished, Running};
        let shown =
            |status| Event::ServiceCallChanged { call: Box::new(samples::service_call()), status };
        check(
            &[shown(Running), shown(Finished), shown(Running), shown(Discarded)],
            &[
                ("callsheet_service_tool_calls_total", 2.0),
                ("callsheet_results_discarded_total", 0.0),
                ("streaming_tool_calls_opened_total", 0.0),
            ],
        );
    }

    #[test]
    fn results_are_counted_by_tool_and_status_and_only_executed_calls_have_durations() {
        let ended = |name: &str, change: fn(&mut ToolResult)| {
            let mut result = samples::result();
            result.call.name = name.into();
            change(&mut result);
            Event::CallEnded { result: Box::new(result), parallel: true, early: true }
        };
        check(
            &[
                ended("clock", |_| {}),
                ended("clock", |result| result.notes.duplicate_of = Some(result.call.key)),
                ended("clock", |result| result.notes.reused = true),
                ended("calculator", |_| {}),
                ended("calculator", |result| {
                    result.outcome = ToolOutcome::not_ok(
                        ToolStatus::Failed,
                        FailureKind::Malformed,
                        "The arguments changed.",
                    );
                }),
                ended("rm -rf", |result| {
                    result.started = None;
                    result.outcome.status = ToolStatus::Failed;
                }),
                Event::CallEnded {
                    result: Box::new(ToolResult {
                        outcome: ToolOutcome::not_ok(
                            ToolStatus::Failed,
                            FailureKind::Panic,
                            "boom",
                        ),
                        ..samples::result()
                    }),
                    parallel: false,
                    early: false,
                },
            ],
            &[
                ("callsheet_tool_results_total{tool=\"clock\",status=\"success\"}", 3.0),
                ("callsheet_tool_results_total{tool=\"other\",status=\"error\"}", 1.0),
                (
                    "gen_ai_execute_tool_duration_seconds_count{gen_ai_operation_name=\"execute_tool\",gen_ai_tool_name=\"clock\",status=\"success\"}",
                    1.0,
                ),
                (
                    "gen_ai_execute_tool_duration_seconds_count{gen_ai_operation_name=\"execute_tool\",gen_ai_tool_name=\"clock\",status=\"error\"}",
                    1.0,
                ),
                ("callsheet_tool_results_total{tool=\"calculator\",status=\"error\"}", 1.0),
                ("streaming_tool_execution_latency_seconds_count", 3.0),
                ("callsheet_tool_panics_total", 1.0),
            ],
        );
    }

    #[test]
    fn attempts_are_recorded_by_outcome() {
        let ended = |error| Event::AttemptEnded {
            model: "m".into(),
            streamed: true,
            duration: Duration::from_secs(2),
            first_chunk: Some(Duration::from_millis(200)),
            usage: Usage { input_tokens: 100, output_tokens: 7, ..Default::default() },
            finish_reason: None,
            error,
        };
        let trouble = ProviderError::new(ProviderErrorKind::InStream, "broke");
        let unasked = ProviderError::new(ProviderErrorKind::BreakerOpen, "it is not asked");
        let model = "gen_ai_operation_name=\"chat\",gen_ai_request_model=\"m\"";
        let series = |name: &str, more: &str| format!("{name}{{{model}{more}}}");
        let duration = "gen_ai_client_operation_duration_seconds_count";
        let tokens = "gen_ai_client_token_usage_sum";
        check(
            &[ended(None), ended(Some(Box::new(trouble))), ended(Some(Box::new(unasked)))],
            &[
                ("callsheet_attempts_total{outcome=\"ok\"}", 1.0),
                ("callsheet_attempts_total{outcome=\"unavailable\"}", 1.0),
                ("callsheet_attempts_total{outcome=\"in_stream\"}", 1.0),
                (&series(duration, ""), 1.0),
                (&series(duration, ",error_type=\"in_stream\""), 1.0),
                (&series(tokens, ",gen_ai_token_type=\"input\""), 200.0),
                (&series(tokens, ",gen_ai_token_type=\"output\""), 14.0),
                (&series("gen_ai_client_operation_time_to_first_chunk_seconds_count", ""), 2.0),
            ],
        );
        let mut overflow = ProviderError::new(ProviderErrorKind::Status, "prompt is too long");
        overflow.overflow = Some(ContextOverflow::of_window(None, None));
        check(
            &[ended(Some(Box::new(overflow)))],
            &[("callsheet_context_overflows_total{model=\"m\"}", 1.0)],
        );
        check(
            &[Event::ArgumentsLost { model: "m".into(), reason: "no call".into() }],
            &[("callsheet_response_pieces_lost_total{model=\"m\"}", 1.0)],
        );
    }

    #[test]
    fn each_value_of_each_enum_has_its_series() {
        let telemetry = telemetry();
        let metrics = telemetry.metrics();
        RunEnd::ALL.iter().for_each(|end| metrics.run_ends.increment(*end));
        ANOMALIES.iter().for_each(|anomaly| metrics.anomalies.increment(*anomaly));
        ATTEMPT_OUTCOMES.iter().for_each(|outcome| metrics.attempts.increment(*outcome));
        metrics.set_session_count(SessionState::Idle, 3);
        metrics.set_session_count(SessionState::Running, 2);
        metrics.set_runs_active(2);
        metrics.set_queued_inputs(3);
        metrics.set_threads_abandoned(1);
        metrics.subscribers_lagged(4);
        let page = telemetry.render();
        let ones = |name: &str| {
            page.lines()
                .filter(|line| line.starts_with(&format!("{name}{{")) && line.ends_with(" 1"))
                .count()
        };
        assert_eq!(ones(table::RUNS.name), 10);
        assert_eq!(ones(table::ARGUMENTS_ANOMALIES.name), 5);
        assert_eq!(ones(table::ATTEMPTS.name), ATTEMPT_OUTCOMES.len());
        assert_eq!(value(&page, "callsheet_sessions{state=\"idle\"}"), 3.0);
        assert_eq!(value(&page, "callsheet_queued_inputs"), 3.0);
        assert_eq!(value(&page, "callsheet_sessions{state=\"running\"}"), 2.0);
        assert_eq!(value(&page, "callsheet_runs_active"), 2.0);
        assert_eq!(value(&page, "callsheet_threads_abandoned"), 1.0);
        assert_eq!(value(&page, "callsheet_subscribers_lagged_total"), 4.0);
        metrics.tool_breaker("clock", BreakerState::Open);
        metrics.mcp_server("files", "up", 1);
        metrics.mcp_server("files", "up", 0);
        metrics.mcp_server("files", "down", 1);
        metrics.mcp_operation("tools/call", Some("timeout"), Duration::from_secs(1));
        let page = telemetry.render();
        assert_eq!(value(&page, "callsheet_tool_breaker_state{tool=\"clock\"}"), 2.0);
        assert_eq!(value(&page, "callsheet_mcp_servers{server=\"files\",state=\"up\"}"), 0.0);
        assert_eq!(value(&page, "callsheet_mcp_servers{server=\"files\",state=\"down\"}"), 1.0);
        let timeouts = "mcp_client_operation_duration_seconds_count{method=\"tools/call\",\
                        error_type=\"timeout\"}";
        assert_eq!(value(&page, timeouts), 1.0);
        for status in PerTool::STATUSES {
            assert!(
                metrics
                    .tools
                    .get_or_register(&metrics.recorder, "clock")
                    .for_status(status)
                    .is_some()
            );
        }
    }

    #[test]
    fn further_names_share_one_series() {
        let telemetry = telemetry();
        for number in 0..1_000 {
            let limit = format!("limit_{number}");
            telemetry.metrics().record(&Event::LimitReached {
                limit,
                value: 1,
                maximum: 1,
                action: String::new(),
                reason: None,
            });
        }
        let page = telemetry.render();
        let name = table::LIMITS_REACHED.name;
        let series = page.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count();
        assert_eq!(series, 65);
        let own = 64 - Limits::NAMES.len();
        let other = value(&page, &format!("{name}{{limit=\"other\"}}"));
        assert_eq!(other, (1_000 - own) as f64);
    }

    #[test]
    fn a_thousand_tools_have_at_most_64_series_of_their_own() {
        let called = |name: &str| Event::CallStarted {
            call: callsheet_values::event::CallLabel { name: name.into(), ..samples::label() },
            arguments: std::sync::Arc::default(),
            input_summary: String::new(),
            early: false,
            waited: Duration::ZERO,
            queued: Some(Duration::ZERO),
            known_calls: 1,
        };
        let ended = |name: &str| {
            let mut result = Box::new(samples::result());
            result.call.name = name.into();
            result.started = Some(Duration::ZERO);
            Event::CallEnded { result, parallel: false, early: false }
        };
        let tools: Vec<String> = (0..1_000).map(|number| format!("tool_{number}")).collect();
        // A host with all of these tools, and one with only two of them.
        for known in [&tools[..], &tools[..2]] {
            let telemetry = Telemetry::new(known);
            for tool in tools.iter().chain(&tools) {
                telemetry.metrics().record(&called(tool));
                telemetry.metrics().record(&ended(tool));
            }
            let page = telemetry.render();
            let tool_of = |line: &str| {
                let (_, rest) = line.split_once("tool=\"").or(line.split_once("tool_name=\""))?;
                rest.split('"').next().map(str::to_owned)
            };
            let shown: std::collections::BTreeSet<String> =
                page.lines().filter_map(tool_of).collect();
            assert_eq!(shown.len(), known.len().min(64) + 1, "{shown:?}");
            let counted: f64 = page
                .lines()
                .filter(|line| line.starts_with("callsheet_tool_results_total{"))
                .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap())
                .sum();
            assert_eq!(counted, 2_000.0);
        }
    }

    #[test]
    fn two_hosts_in_one_process_have_their_own_pages() {
        let (one, other) = (telemetry(), telemetry());
        let clone = one.clone();
        clone.metrics().record(&Event::HistoryRepaired { repairs: 2 });
        assert_eq!(value(&one.render(), "callsheet_history_repairs_total"), 2.0);
        assert_eq!(value(&other.render(), "callsheet_history_repairs_total"), 0.0);
    }
}
