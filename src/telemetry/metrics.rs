//! The one place where events become numbers.

use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram};

use super::families::{PerName, PerTool, PerValue, SharedRecorder};
use super::handles::{AgentHandles, ModelHandles, error_word};
use super::host::HostMetrics;
use super::journal::JournalMetrics;
use super::models::ModelMetrics;
use super::names;
use crate::config::Limits;
use crate::event::{ArgumentsAnomaly, Event, RunStats, ServiceCallStatus, TurnSummary};
use crate::types::{
    FailureKind, ProviderError, ProviderErrorKind, RunEnd, RunError, SessionState, ToolResult,
    Usage, Verdict,
};

/// The metrics of one host. [`Metrics::record`] feeds what events tell; what no event tells (how
/// many there are of something now) is set by its own method.
pub struct Metrics {
    pub(super) recorder: SharedRecorder,

    calls_per_turn: Histogram,
    multi_call_turns: Counter,
    /// All tools' running times, in nanoseconds.
    tool_time_ns: AtomicU64,
    tool_time_max: Histogram,
    opened: Counter,
    detected: Counter,
    detection_latency: Histogram,
    execution_latency: Histogram,
    rollbacks: Counter,
    fallbacks: Counter,

    seal_to_start: Histogram,
    starts_early: Counter,
    overlap_saved: Histogram,
    discarded: Counter,
    reorder_wait: Histogram,
    overhead: Histogram,
    approval_wait: Histogram,
    panics: Counter,
    late: Counter,
    repairs: Counter,
    dropped: Counter,
    service_calls: Counter,
    pub(super) watchers: Gauge,
    lagged: Counter,
    steers: Counter,
    runs_active: Gauge,
    queued_inputs: Gauge,
    calls_waiting: Gauge,
    threads_abandoned: Gauge,
    sessions: Vec<(SessionState, Gauge)>,
    journal: JournalMetrics,
    host: HostMetrics,

    tools: PerTool,
    models: PerName<ModelHandles>,
    agents: PerName<AgentHandles>,
    limits: PerName<Counter>,
    attempts: PerValue<Option<ProviderErrorKind>>,
    oddities: PerValue<ArgumentsAnomaly>,
    runs: PerValue<RunEnd>,
    approvals: PerValue<Verdict>,
}

const ATTEMPT_OUTCOMES: [Option<ProviderErrorKind>; 9] = [
    None,
    Some(ProviderErrorKind::Connect),
    Some(ProviderErrorKind::Timeout),
    Some(ProviderErrorKind::Transport),
    Some(ProviderErrorKind::Status),
    Some(ProviderErrorKind::InStream),
    Some(ProviderErrorKind::Malformed),
    Some(ProviderErrorKind::TooLarge),
    Some(ProviderErrorKind::Unavailable),
];

const ODDITIES: [ArgumentsAnomaly; 4] = [
    ArgumentsAnomaly::CutOff,
    ArgumentsAnomaly::Invalid,
    ArgumentsAnomaly::DecodedTwice,
    ArgumentsAnomaly::ChangedAfterSeal,
];

impl Metrics {
    /// Describes every metric to the recorder, and registers those whose labels are known.
    /// `tools` are the names that may become labels; any other tool is `other`.
    #[must_use]
    pub fn new(recorder: SharedRecorder, tools: &[String]) -> Self {
        names::ALL.iter().for_each(|metric| metric.describe(&recorder));
        // On the page from the start, whether spans are made or not.
        let _ = super::traces::counters(&recorder);
        let counter = |metric: names::Metric| metric.counter(&recorder, &[]);
        let gauge = |metric: names::Metric| metric.gauge(&recorder, &[]);
        let histogram = |metric: names::Metric| metric.histogram(&recorder, &[]);
        let sessions = |state: SessionState| {
            (state, names::SESSIONS.gauge(&recorder, &[("state", state.as_str())]))
        };
        Self {
            calls_per_turn: histogram(names::TOOL_CALLS_PER_TURN),
            multi_call_turns: counter(names::MULTI_TOOL_CALL_TURNS),
            tool_time_ns: AtomicU64::new(0),
            tool_time_max: histogram(names::TOOL_EXECUTION_TIME_MAX),
            opened: counter(names::CALLS_OPENED),
            detected: counter(names::CALLS_DETECTED),
            detection_latency: histogram(names::DETECTION_LATENCY),
            execution_latency: histogram(names::EXECUTION_LATENCY),
            rollbacks: counter(names::ROLLBACKS),
            fallbacks: counter(names::FALLBACKS),
            seal_to_start: histogram(names::SEAL_TO_START),
            starts_early: counter(names::STARTS_EARLY),
            overlap_saved: histogram(names::OVERLAP_SAVED),
            discarded: counter(names::RESULTS_DISCARDED),
            reorder_wait: histogram(names::REORDER_WAIT),
            overhead: histogram(names::TURN_OVERHEAD),
            approvals: PerValue::new(
                &recorder,
                names::APPROVALS,
                "verdict",
                &Verdict::ALL,
                Verdict::as_str,
            ),
            approval_wait: histogram(names::APPROVAL_WAIT),
            panics: counter(names::TOOL_PANICS),
            late: counter(names::LATE_OUTCOMES),
            repairs: counter(names::HISTORY_REPAIRS),
            dropped: counter(names::CALLS_DROPPED),
            service_calls: counter(names::SERVICE_CALLS),
            watchers: gauge(names::WATCHERS),
            lagged: counter(names::SUBSCRIBERS_LAGGED),
            steers: counter(names::STEERS),
            runs_active: gauge(names::RUNS_ACTIVE),
            queued_inputs: gauge(names::QUEUED_INPUTS),
            calls_waiting: gauge(names::CALLS_WAITING),
            threads_abandoned: gauge(names::THREADS_ABANDONED),
            sessions: SessionState::ALL.into_iter().map(sessions).collect(),
            journal: JournalMetrics::new(&recorder),
            host: HostMetrics::new(&recorder),
            tools: PerTool::new(&recorder, tools),
            models: PerName::default(),
            agents: PerName::default(),
            limits: PerName::known(&Limits::NAMES, |limit| {
                names::LIMITS_REACHED.counter(&recorder, &[("limit", limit)])
            }),
            attempts: PerValue::new(
                &recorder,
                names::ATTEMPTS,
                "outcome",
                &ATTEMPT_OUTCOMES,
                |kind| kind.map_or("ok", error_word),
            ),
            oddities: PerValue::new(
                &recorder,
                names::ARGUMENTS_ODD,
                "oddity",
                &ODDITIES,
                ArgumentsAnomaly::as_str,
            ),
            runs: PerValue::new(&recorder, names::RUNS, "run_end", &RunEnd::ALL, RunEnd::as_str),
            recorder,
        }
    }

    /// Counts what an event tells. A piece of text or thinking tells nothing and costs nothing.
    pub fn record(&self, event: &Event) {
        match event {
            Event::TextReceived { .. }
            | Event::ThinkingReceived { .. }
            | Event::InputQueued { .. }
            | Event::RunStarted { .. }
            | Event::TurnStarted
            | Event::AttemptVoided { .. }
            | Event::CallOpened { .. }
            | Event::CallWaiting { .. }
            | Event::ApprovalAsked { .. }
            | Event::CallProgressed { .. } => {}
            Event::ApprovalGiven { verdict, waited, .. } => {
                self.approvals.increment(*verdict);
                self.approval_wait.record(*waited);
            }
            Event::ConflictFound { call, resolution, .. } => {
                self.tools.conflict(&self.recorder, &call.name, *resolution);
            }
            Event::RunSteered { .. } => self.steers.increment(1),
            Event::CallDetected { latency, .. } => self.detection_latency.record(*latency),
            Event::ArgumentsAnomalyFound { oddity, .. } => self.oddities.increment(*oddity),
            Event::CallStarted { call, early, waited, queued, .. } => {
                self.seal_to_start.record(*waited);
                if let Some(queued) = queued {
                    self.tools.queue_wait(&self.recorder, &call.name).record(*queued);
                }
                self.starts_early.increment(u64::from(*early));
            }
            Event::CallDiscarded { had_result, .. } => {
                self.discarded.increment(u64::from(*had_result));
            }
            Event::CallEnded { result, .. } => self.call_ended(result),
            Event::ServiceCallChanged { status, .. } => {
                self.service_calls.increment(u64::from(*status == ServiceCallStatus::Running));
            }
            Event::OutcomeLate { .. } => self.late.increment(1),
            Event::ResultReleased { reorder_wait, .. } => self.reorder_wait.record(*reorder_wait),
            Event::ResponseEnded { opened, detected, stopped, .. } => {
                if !stopped {
                    self.opened.increment(u64::from(*opened));
                    self.detected.increment(u64::from(*detected));
                }
            }
            Event::AttemptEnded {
                model, streamed, duration, first_chunk, usage, error, ..
            } => {
                let first_chunk = first_chunk.filter(|_| *streamed);
                self.attempt_ended(model, *duration, first_chunk, *usage, error.as_deref());
            }
            Event::AttemptStarted { rollback, fallback, .. } => {
                self.rollbacks.increment(u64::from(*rollback));
                self.fallbacks.increment(u64::from(*fallback));
            }
            Event::TurnEnded { summary } => self.turn_ended(summary),
            Event::LimitReached { limit, value, maximum, action: _ } => {
                // Half of a limit is told, but it is not reached.
                if value >= maximum {
                    let handle = self.limits.handles(limit, |limit| {
                        names::LIMITS_REACHED.counter(&self.recorder, &[("limit", limit)])
                    });
                    handle.increment(1);
                }
            }
            Event::HistoryRepaired { repairs } => self.repairs.increment(u64::from(*repairs)),
            Event::RunEnded { agent, end, error, stats, text: _ } => {
                self.run_ended(agent, *end, error.as_ref(), stats);
            }
        }
    }

    /// The metrics of a configured model.
    #[must_use]
    pub fn model(&self, name: &str) -> ModelMetrics {
        ModelMetrics::new(&self.recorder, name)
    }

    /// The metrics of the journal.
    #[must_use]
    pub fn journal(&self) -> &JournalMetrics {
        &self.journal
    }

    /// The metrics of the host as a process.
    #[must_use]
    pub fn host(&self) -> &HostMetrics {
        &self.host
    }

    /// Sets how many open sessions are in a state.
    pub fn sessions(&self, state: SessionState, count: usize) {
        if let Some((_, gauge)) = self.sessions.iter().find(|(known, _)| *known == state) {
            gauge.set(count as f64);
        }
    }

    /// Sets how many runs are going on.
    pub fn runs_active(&self, count: usize) {
        self.runs_active.set(count as f64);
    }

    /// Sets how many inputs wait for a run to end.
    pub fn queued_inputs(&self, count: usize) {
        self.queued_inputs.set(count as f64);
    }

    /// Sets how many calls wait for a place of their tool.
    pub fn calls_waiting(&self, count: usize) {
        self.calls_waiting.set(count as f64);
    }

    /// Sets how many threads of blocking tools were given up and have not come back.
    pub fn threads_abandoned(&self, count: usize) {
        self.threads_abandoned.set(count as f64);
    }

    /// Counts subscribers that were let go because they were too slow.
    pub fn subscribers_lagged(&self, count: usize) {
        self.lagged.increment(count as u64);
    }

    /// Appends the one sum that has a fraction to a page in Prometheus's text form.
    pub(super) fn write_sums(&self, page: &mut String) {
        let names::Metric { name, help, .. } = names::TOOL_EXECUTION_TIME;
        let seconds = Duration::from_nanos(self.tool_time_ns.load(Ordering::Relaxed)).as_secs_f64();
        // Writing to a string cannot fail.
        let _ok = writeln!(page, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {seconds}\n");
    }

    fn call_ended(&self, result: &ToolResult) {
        let status = result.outcome.status;
        let handles = self.tools.handles(&self.recorder, &result.call.name, status);
        if let Some((_, handles)) = handles {
            handles.results.increment(1);
        }
        // A copy of another call's outcome took no time, and its panic was another's. What became
        // malformed after its start was answered by us, and if its tool had ended, that was told.
        let copied = result.notes.duplicate_of.is_some() || result.notes.reused;
        let malformed = result.outcome.kind == Some(FailureKind::Malformed);
        if copied || malformed || result.started.is_none() {
            return;
        }
        if let Some((tool, handles)) = handles {
            handles.duration(&self.recorder, tool).record(result.duration);
        }
        self.execution_latency.record(result.wait.saturating_add(result.duration));
        if result.outcome.kind == Some(FailureKind::Panic) {
            self.panics.increment(1);
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
        if error.is_some_and(|error| error.kind == ProviderErrorKind::Unavailable) {
            // Nobody was asked, and so nothing took any time.
            return;
        }
        let handles = self.models.handles(model, |model| ModelHandles::new(&self.recorder, model));
        match error {
            None => handles.duration.record(duration),
            // Trouble is rare enough to ask the recorder for its series each time.
            Some(error) => names::OPERATION_DURATION
                .histogram(
                    &self.recorder,
                    &[
                        ("gen_ai_operation_name", "chat"),
                        ("gen_ai_request_model", &handles.name),
                        ("error_type", error_word(error.kind)),
                    ],
                )
                .record(duration),
        }
        if let Some(first_chunk) = first_chunk {
            handles.first_chunk.record(first_chunk);
        }
        // A service that counts no tokens says so by counting none of either kind.
        if usage.input_tokens > 0 || usage.output_tokens > 0 {
            handles.input_tokens.record(usage.input_tokens as f64);
            handles.output_tokens.record(usage.output_tokens as f64);
        }
    }

    fn turn_ended(&self, turn: &TurnSummary) {
        let calls = turn.tool_names.len();
        self.calls_per_turn.record(calls as f64);
        self.multi_call_turns.increment(u64::from(calls > 1));
        self.dropped.increment(u64::from(turn.dropped_calls));
        self.overhead.record(turn.times.overhead);
        if calls > 0 {
            let sum_ns = u64::try_from(turn.times.tools_sum.as_nanos()).unwrap_or(u64::MAX);
            self.tool_time_ns.fetch_add(sum_ns, Ordering::Relaxed);
            self.tool_time_max.record(turn.times.tools_longest);
            self.overlap_saved.record(turn.times.overlap);
        }
    }

    fn run_ended(&self, agent: &str, end: RunEnd, error: Option<&RunError>, stats: &RunStats) {
        self.runs.increment(end);
        let handles = self.agents.handles(agent, |agent| AgentHandles::new(&self.recorder, agent));
        handles.tool_calls.record(f64::from(stats.tool_calls));
        if error.is_none() {
            handles.duration.record(stats.duration);
            return;
        }
        let labels = [
            ("gen_ai_operation_name", "invoke_agent"),
            ("gen_ai_agent_name", handles.name.as_str()),
            ("error_type", end.as_str()),
        ];
        names::INVOKE_AGENT_DURATION.histogram(&self.recorder, &labels).record(stats.duration);
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Telemetry;
    use super::super::families::PerTool;
    use super::*;
    use crate::event::samples;
    use crate::types::{ToolOutcome, ToolStatus};

    fn telemetry() -> Telemetry {
        Telemetry::new(&["clock".to_owned(), "calculator".to_owned()])
    }

    /// The page's value of a series, written as on the page.
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
        for metric in names::ALL.iter().filter(|metric| metric.labels.is_empty()) {
            match metric.kind {
                names::MetricKind::Histogram(_) => {
                    assert_eq!(value(&page, &format!("{}_count", metric.name)), 0.0);
                }
                names::MetricKind::Counter | names::MetricKind::Sum | names::MetricKind::Gauge => {
                    assert_eq!(value(&page, metric.name), 0.0);
                }
            }
        }
    }

    #[test]
    fn every_metric_has_help_and_is_what_it_says() {
        let telemetry = telemetry();
        for event in samples::every() {
            telemetry.metrics().record(&event);
        }
        let _model = telemetry.metrics().model("main");
        let page = telemetry.render();
        for metric in names::ALL {
            let (name, help) = (metric.name, metric.help);
            let kind = match metric.kind {
                names::MetricKind::Counter | names::MetricKind::Sum => "counter",
                names::MetricKind::Gauge => "gauge",
                names::MetricKind::Histogram(_) => "histogram",
            };
            let head = format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name}");
            assert!(page.contains(&head), "{head} is not in\n{page}");
        }
        let known = |name: &str| names::ALL.iter().any(|metric| metric.name == name);
        for line in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            assert!(line.split(' ').next().is_some_and(known), "{line} is no constant");
        }
    }

    #[test]
    fn turns_are_counted_by_their_calls() {
        let times = crate::event::TurnTimes {
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
    fn a_stopped_response_does_not_count_as_undetected() {
        let ended = |stopped| Event::ResponseEnded {
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
    fn a_call_of_the_service_counts_as_it_begins_and_for_nothing_else() {
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
    fn results_are_counted_by_tool_and_status_and_only_real_runs_take_time() {
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
    fn attempts_tell_of_good_and_bad_exchanges() {
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
        let unasked = ProviderError::new(ProviderErrorKind::Unavailable, "it is not asked");
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
    }

    #[test]
    fn each_value_of_each_enum_has_its_series() {
        let telemetry = telemetry();
        let metrics = telemetry.metrics();
        RunEnd::ALL.iter().for_each(|end| metrics.runs.increment(*end));
        ODDITIES.iter().for_each(|oddity| metrics.oddities.increment(*oddity));
        ATTEMPT_OUTCOMES.iter().for_each(|outcome| metrics.attempts.increment(*outcome));
        metrics.sessions(SessionState::Idle, 3);
        metrics.sessions(SessionState::Running, 2);
        metrics.runs_active(2);
        metrics.queued_inputs(3);
        metrics.threads_abandoned(1);
        metrics.subscribers_lagged(4);
        let page = telemetry.render();
        let ones = |name: &str| {
            page.lines()
                .filter(|line| line.starts_with(&format!("{name}{{")) && line.ends_with(" 1"))
                .count()
        };
        assert_eq!(ones(names::RUNS.name), 10);
        assert_eq!(ones(names::ARGUMENTS_ODD.name), 4);
        assert_eq!(ones(names::ATTEMPTS.name), 9);
        assert_eq!(value(&page, "callsheet_sessions{state=\"idle\"}"), 3.0);
        assert_eq!(value(&page, "callsheet_queued_inputs"), 3.0);
        assert_eq!(value(&page, "callsheet_sessions{state=\"running\"}"), 2.0);
        assert_eq!(value(&page, "callsheet_runs_active"), 2.0);
        assert_eq!(value(&page, "callsheet_threads_abandoned"), 1.0);
        assert_eq!(value(&page, "callsheet_subscribers_lagged_total"), 4.0);
        for status in PerTool::STATUSES {
            assert!(metrics.tools.handles(&metrics.recorder, "clock", status).is_some());
        }
    }

    #[test]
    fn strangers_names_share_one_series() {
        let telemetry = telemetry();
        for number in 0..1_000 {
            let limit = format!("limit_{number}");
            telemetry.metrics().record(&Event::LimitReached {
                limit,
                value: 1,
                maximum: 1,
                action: String::new(),
            });
        }
        let page = telemetry.render();
        let name = names::LIMITS_REACHED.name;
        let series = page.lines().filter(|line| line.starts_with(&format!("{name}{{"))).count();
        assert_eq!(series, 65);
        let own = 64 - Limits::NAMES.len();
        let other = value(&page, &format!("{name}{{limit=\"other\"}}"));
        assert_eq!(other, (1_000 - own) as f64);
    }

    #[test]
    fn a_thousand_tools_do_not_explode_the_page() {
        let called = |name: &str| Event::CallStarted {
            call: crate::event::CallLabel { name: name.into(), ..samples::label() },
            input_summary: String::new(),
            early: false,
            waited: Duration::ZERO,
            queued: Some(Duration::ZERO),
            of: 1,
        };
        let ended = |name: &str| {
            let mut result = Box::new(samples::result());
            result.call.name = name.into();
            result.started = Some(Duration::ZERO);
            Event::CallEnded { result, parallel: false, early: false }
        };
        let tools: Vec<String> = (0..1_000).map(|number| format!("tool_{number}")).collect();
        // As many as the host has, and as many that it has not.
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
