//! The table of all metrics: name, kind, unit, labels and description of each, and the handles through
//! which the host records the metrics whose labels are fixed.
//!
//! Metrics from OpenTelemetry's GenAI conventions have underscores instead of dots, in names and labels. Names
//! from Prometheus's client libraries begin with `process_`. Our own begin with `callsheet_`, or with `tool_`,
//! `multi_tool_` or `streaming_`. Labels have few values: never an id.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, Unit};

/// The recorder of one host, and the labels that all of the host's series have.
#[derive(Clone)]
pub struct SharedRecorder {
    recorder: Arc<dyn Recorder + Send + Sync>,
    labels: Vec<Label>,
    /// True if the host renders its own page, which has the sums of seconds in full.
    has_own_page: bool,
}

impl SharedRecorder {
    /// Creates the recorder of a host without a page.
    #[must_use]
    pub fn new(recorder: Arc<dyn Recorder + Send + Sync>, labels: Vec<Label>) -> Self {
        Self { recorder, labels, has_own_page: false }
    }

    /// Creates the recorder of a host's own page.
    #[cfg(feature = "prometheus")]
    pub(super) fn of_own_page(
        recorder: Arc<dyn Recorder + Send + Sync>,
        labels: Vec<Label>,
    ) -> Self {
        Self { recorder, labels, has_own_page: true }
    }
}

impl fmt::Debug for SharedRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRecorder").field("labels", &self.labels).finish_non_exhaustive()
    }
}

const METADATA: Metadata<'static> = Metadata::new("callsheet", Level::INFO, None);

/// The label value that replaces unknown names, so that no text from outside becomes a label.
pub(super) const OTHER: &str = "other";

/// The fixed properties of one metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The name on the metrics page.
    pub name: &'static str,
    /// The kind of metric.
    pub kind: MetricKind,
    /// The unit of its values.
    pub unit: Unit,
    /// The labels that its series may have.
    pub labels: &'static [&'static str],
    /// The description on the metrics page.
    pub help: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// A whole number that only grows.
    Counter,
    /// A sum of seconds that only grows. The exporter's counters are whole numbers, so the host's own
    /// page renders it itself. Another recorder gets whole seconds.
    SecondsSum,
    /// A number that goes up and down.
    Gauge,
    /// A histogram with these upper bounds.
    Histogram(&'static [f64]),
}

/// A handle that records the values of one series.
pub(super) trait MetricHandle {
    /// Registers the series of `metric` that has these labels.
    fn register(metric: &Metric, recorder: &SharedRecorder, labels: &[(&str, &str)]) -> Self;
}

impl MetricHandle for Counter {
    fn register(metric: &Metric, recorder: &SharedRecorder, labels: &[(&str, &str)]) -> Self {
        debug_assert_eq!(metric.kind, MetricKind::Counter, "{}", metric.name);
        recorder.recorder.register_counter(&metric.key(recorder, labels), &METADATA)
    }
}

impl MetricHandle for Gauge {
    fn register(metric: &Metric, recorder: &SharedRecorder, labels: &[(&str, &str)]) -> Self {
        debug_assert_eq!(metric.kind, MetricKind::Gauge, "{}", metric.name);
        recorder.recorder.register_gauge(&metric.key(recorder, labels), &METADATA)
    }
}

impl MetricHandle for Histogram {
    fn register(metric: &Metric, recorder: &SharedRecorder, labels: &[(&str, &str)]) -> Self {
        debug_assert!(matches!(metric.kind, MetricKind::Histogram(_)), "{}", metric.name);
        recorder.recorder.register_histogram(&metric.key(recorder, labels), &METADATA)
    }
}

/// A sum of durations. Cloning shares it.
#[derive(Clone, Debug)]
pub(super) struct SecondsSum {
    nanoseconds: Arc<AtomicU64>,
    /// Counts the whole seconds of the sum, unless the host's own page renders it.
    whole_seconds: Counter,
}

impl SecondsSum {
    pub(super) fn add(&self, time: Duration) {
        let added = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let before = self.nanoseconds.fetch_add(added, Ordering::Relaxed);
        let seconds = |nanoseconds| Duration::from_nanos(nanoseconds).as_secs();
        let more = seconds(before.saturating_add(added)) - seconds(before);
        self.whole_seconds.increment(more);
    }

    #[cfg(feature = "prometheus")]
    pub(super) fn seconds(&self) -> f64 {
        Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)).as_secs_f64()
    }
}

impl MetricHandle for SecondsSum {
    fn register(metric: &Metric, recorder: &SharedRecorder, labels: &[(&str, &str)]) -> Self {
        debug_assert_eq!(metric.kind, MetricKind::SecondsSum, "{}", metric.name);
        let whole_seconds = match recorder.has_own_page {
            true => Counter::noop(),
            false => recorder.recorder.register_counter(&metric.key(recorder, labels), &METADATA),
        };
        Self { nanoseconds: Arc::default(), whole_seconds }
    }
}

impl Metric {
    /// Passes name, unit and description to the recorder.
    pub(super) fn describe(&self, recorder: &SharedRecorder) {
        let (name, unit, help) = (self.name.into(), Some(self.unit), self.help.into());
        let SharedRecorder { recorder, has_own_page, .. } = recorder;
        match self.kind {
            MetricKind::SecondsSum if *has_own_page => {}
            MetricKind::Counter | MetricKind::SecondsSum => {
                recorder.describe_counter(name, unit, help);
            }
            MetricKind::Gauge => recorder.describe_gauge(name, unit, help),
            MetricKind::Histogram(_) => recorder.describe_histogram(name, unit, help),
        }
    }

    /// Registers the series that has these labels.
    pub(super) fn series<H: MetricHandle>(
        &self,
        recorder: &SharedRecorder,
        labels: &[(&str, &str)],
    ) -> H {
        H::register(self, recorder, labels)
    }

    fn key(&self, recorder: &SharedRecorder, labels: &[(&str, &str)]) -> Key {
        debug_assert!(labels.iter().all(|(name, _)| self.labels.contains(name)), "{}", self.name);
        let labels: Vec<Label> = labels
            .iter()
            .map(|(name, value)| Label::new((*name).to_owned(), (*value).to_owned()))
            .chain(recorder.labels.iter().cloned())
            .collect();
        Key::from_parts(self.name, labels)
    }
}

/// Returns the upper bounds of each histogram's buckets, by the name of the metric.
pub fn histogram_bounds() -> impl Iterator<Item = (&'static str, &'static [f64])> {
    ALL.iter().filter_map(|metric| match metric.kind {
        MetricKind::Histogram(bounds) => Some((metric.name, bounds)),
        MetricKind::Counter | MetricKind::Gauge | MetricKind::SecondsSum => None,
    })
}

/// Upper bounds for delays that the host itself causes, in seconds.
const SHORT: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// Upper bounds for tools and for parts of a response, in seconds.
const MIDDLE: &[f64] = &[
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];

/// Upper bounds that the GenAI conventions recommend for the duration of an operation, in seconds,
/// and three more for whole runs.
const LONG: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
    327.68, 655.36,
];

/// Upper bounds that the GenAI conventions recommend for the time to the first chunk, in seconds.
const FIRST_CHUNK: &[f64] =
    &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// Upper bounds that the GenAI conventions recommend for numbers of tokens.
const TOKENS: &[f64] = &[
    1.0,
    4.0,
    16.0,
    64.0,
    256.0,
    1_024.0,
    4_096.0,
    16_384.0,
    65_536.0,
    262_144.0,
    1_048_576.0,
    4_194_304.0,
    16_777_216.0,
    67_108_864.0,
];

/// Upper bounds for numbers of records.
const RECORDS: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

/// Upper bounds for numbers of calls. The first separates 0 from 1.
const CALLS: &[f64] =
    &[0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0];

/// Defines every metric once.
///
/// A `struct` becomes a struct of handles with a function that registers them; its metrics have the
/// labels in its brackets. A line of `constants` becomes a [`Metric`] whose series are registered
/// elsewhere, with label values that are known only there. [`ALL`] holds all of them.
macro_rules! metric_table {
    (
        $(
            $(#[$doc:meta])*
            struct $group:ident $group_labels:tt {
                $($field:ident: $field_kind:ident $(($field_bounds:ident))?, $field_unit:ident,
                    $field_name:literal, $field_help:literal;)*
            }
        )*
        constants {
            $($constant:ident: $kind:ident $(($bounds:ident))?, $unit:ident, $labels:tt,
                $name:literal, $help:literal;)*
        }
    ) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug)]
            pub struct $group {
                $(#[doc = $field_help] pub(super) $field: $field_kind,)*
            }

            impl $group {
                /// Registers the series with these labels.
                pub(super) fn register(recorder: &SharedRecorder, labels: &[(&str, &str)]) -> Self {
                    Self {
                        $($field: metric_table!(
                            @metric $field_kind $(($field_bounds))?, $field_unit, $group_labels,
                            $field_name, $field_help
                        ).series(recorder, labels),)*
                    }
                }
            }
        )*

        $(
            #[doc = $help]
            pub(super) const $constant: Metric =
                metric_table!(@metric $kind $(($bounds))?, $unit, $labels, $name, $help);
        )*

        /// Every metric, in the order of the table.
        pub const ALL: &[Metric] = &[
            $($(metric_table!(
                @metric $field_kind $(($field_bounds))?, $field_unit, $group_labels, $field_name,
                $field_help
            ),)*)*
            $($constant,)*
        ];
    };
    (@metric $kind:ident $(($bounds:ident))?, $unit:ident, $labels:tt, $name:literal, $help:literal) => {
        Metric {
            name: $name,
            kind: MetricKind::$kind $(($bounds))?,
            unit: Unit::$unit,
            labels: &$labels,
            help: $help,
        }
    };
}

metric_table! {
    /// The metrics of runs that have no labels, and the gauges of the host's current state.
    struct RunMetrics [] {
        tool_calls_per_turn: Histogram(CALLS), Count, "tool_calls_per_turn",
            "Number of tool calls answered in each turn. A turn without calls counts as 0.";
        multi_tool_call_turns: Counter, Count, "multi_tool_call_turns_total",
            "Turns in which at least two tool calls were answered.";
        tool_execution_time: SecondsSum, Seconds, "tool_execution_time_seconds_total",
            "Sum of the running times of all tools in all turns.";
        tool_execution_time_max: Histogram(MIDDLE), Seconds, "tool_execution_time_max_seconds",
            "Longest running time of a tool in each turn that has calls.";
        calls_opened: Counter, Count, "streaming_tool_calls_opened_total",
            "Tool calls that responses opened. Counted at the end of a response, unless it was cancelled.";
        calls_detected: Counter, Count, "streaming_tool_calls_detected_total",
            "Tool calls that were sealed with valid arguments. Counted at the end of a response, unless it was cancelled.";
        detection_latency: Histogram(MIDDLE), Seconds, "streaming_tool_detection_latency_seconds",
            "Time from the request to the seal of a tool call with valid arguments.";
        execution_latency: Histogram(MIDDLE), Seconds, "streaming_tool_execution_latency_seconds",
            "Time from the seal of a tool call to its outcome, for calls that ran.";
        rollbacks: Counter, Count, "streaming_rollbacks_total",
            "Attempts that requested a plain answer because streams had broken.";
        seal_to_start: Histogram(SHORT), Seconds, "callsheet_seal_to_start_seconds",
            "Time from the seal of a tool call to its start.";
        starts_early: Counter, Count, "callsheet_tool_starts_early_total",
            "Tool calls that started before the end of their response.";
        overlap_saved: Histogram(SHORT), Seconds, "callsheet_overlap_saved_seconds",
            "Time in which tools ran while the response was streamed, for each turn that has calls.";
        results_discarded: Counter, Count, "callsheet_results_discarded_total",
            "Tool results that were discarded because their response was void.";
        reorder_wait: Histogram(SHORT), Seconds, "callsheet_reorder_wait_seconds",
            "Time that outcomes waited for earlier calls and for the end of the response.";
        turn_overhead: Histogram(SHORT), Seconds, "callsheet_turn_overhead_seconds",
            "Time of a turn in which no model request was open, no tool ran, nothing waited for a permit or for the delay of a retry, and the turn did not wait for people alone.";
        approval_wait: Histogram(LONG), Seconds, "callsheet_approval_wait_seconds",
            "Time that tool calls waited for an approval decision, or for an answer to a question.";
        tool_panics: Counter, Count, "callsheet_tool_panics_total",
            "Tool calls that ended in a panic of the tool.";
        late_outcomes: Counter, Count, "callsheet_late_outcomes_total",
            "Outcomes that were dropped because their call already had one.";
        history_repairs: Counter, Count, "callsheet_history_repairs_total",
            "Messages that were added or removed to satisfy a provider's pairing rule. A value above 0 is a bug of the host.";
        service_calls: Counter, Count, "callsheet_service_tool_calls_total",
            "Tool calls that a model's service started to run itself.";
        calls_dropped: Counter, Count, "callsheet_tool_calls_dropped_total",
            "Tool calls that were decoded but not kept.";
        model_fallbacks: Counter, Count, "callsheet_model_fallbacks_total",
            "Attempts that switched to the next model of the agent.";
        steers: Counter, Count, "callsheet_steers_total",
            "Inputs that users gave to a run in progress.";
        runs_active: Gauge, Count, "callsheet_runs_active",
            "Runs in progress.";
        approvals_open: Gauge, Count, "callsheet_approvals_open",
            "Approvals and questions that wait for a person, in all sessions.";
        approvals_oldest: Gauge, Seconds, "callsheet_approvals_oldest_seconds",
            "Age of the oldest of them. 0 if none waits.";
        queued_inputs: Gauge, Count, "callsheet_queued_inputs",
            "Inputs that wait for a run of their session to end.";
        calls_waiting: Gauge, Count, "callsheet_tool_calls_waiting",
            "Tool calls that wait for a permit of their tool or for their server.";
        threads_abandoned: Gauge, Count, "callsheet_threads_abandoned",
            "Threads of blocking tools that were abandoned and have not returned.";
        watchers: Gauge, Count, "callsheet_watchers",
            "Subscribers to the events of a session or of a run.";
        subscribers_lagged: Counter, Count, "callsheet_subscribers_lagged_total",
            "Subscribers that were removed because they were too slow.";
    }

    /// The metrics of the journal. Cloning shares them.
    struct JournalMetrics [] {
        commit_time: Histogram(SHORT), Seconds, "callsheet_journal_commit_seconds",
            "Duration of a journal transaction, without its fsync.";
        commit_records: Histogram(RECORDS), Count, "callsheet_journal_commit_records",
            "Records that were stored in one transaction.";
        fsync_time: Histogram(SHORT), Seconds, "callsheet_journal_fsync_seconds",
            "Duration of an fsync of the journal. With relaxed durability, one fsync serves many transactions.";
        write_time: Histogram(SHORT), Seconds, "callsheet_journal_write_seconds",
            "Time until PostgreSQL had answered a request to store records, or the time limit of the request.";
        queued: Gauge, Count, "callsheet_journal_queued",
            "Batches of records that wait to be stored.";
        size: Gauge, Bytes, "callsheet_journal_size_bytes",
            "Size of the journal on disk.";
        log_size: Gauge, Bytes, "callsheet_journal_wal_bytes",
            "Size of the journal's write-ahead log on disk. It grows while another program reads the database.";
        disk_free: Gauge, Bytes, "callsheet_journal_disk_free_bytes",
            "Free space of the file system of the journal. 0 if the journal is in memory.";
        sessions_stored: Gauge, Count, "callsheet_sessions_stored",
            "Stored sessions, asleep or awake.";
        sessions_stored_max: Gauge, Count, "callsheet_sessions_stored_max",
            "Maximum number of stored sessions: max_stored_sessions of the configuration. 0: no limit.";
        failures: Counter, Count, "callsheet_journal_failures_total",
            "Sessions that were unloaded because a record could not be stored.";
        runs_recovered: Counter, Count, "callsheet_runs_recovered_total",
            "Runs that were resumed after their host had ended.";
        runs_quarantined: Gauge, Count, "callsheet_runs_quarantined",
            "Runs that are set aside, because the host ended each time they went on.";
        recovery_time: Gauge, Seconds, "callsheet_recovery_seconds",
            "Time from the start of the host until every unfinished run was resumed.";
    }

    /// The metrics of a host that shares its journal with others. Cloning shares them.
    struct SharingMetrics [] {
        hosts: Gauge, Count, "callsheet_hosts",
            "Hosts with the same journal that live, as this host knows. 0 if it does not share its journal.";
        sessions_owned: Gauge, Count, "callsheet_sessions_owned",
            "Sessions, without child sessions, that this host has, if it shares its journal.";
        heartbeat_age: Gauge, Seconds, "callsheet_heartbeat_age_seconds",
            "Time since the last renewal of the host's lease that succeeded, with a journal in PostgreSQL.";
        fenced_appends: Counter, Count, "callsheet_fenced_appends_total",
            "Sessions in memory that this host has lost, because another host has them. Their last records were not stored.";
        proxied_requests: Counter, Count, "callsheet_proxied_requests_total",
            "Requests that this host has passed on to another host, each attempt.";
    }

    /// The metrics of the host process.
    struct HostMetrics [] {
        sessions_max: Gauge, Count, "callsheet_sessions_max",
            "Maximum number of sessions in memory: max_sessions of the configuration.";
        runs_max: Gauge, Count, "callsheet_runs_max",
            "Maximum number of concurrent runs: max_concurrent_runs of the configuration.";
        watcher_queue: Gauge, Count, "callsheet_watcher_queue_events",
            "Events in the longest queue of a subscriber. A subscriber is removed when its queue holds 1,024.";
        connections: Gauge, Count, "callsheet_connections",
            "Open connections of the HTTP server.";
        connections_refused: Counter, Count, "callsheet_connections_refused_total",
            "Connections that were refused, or closed without a request, because max_connections were open or the process had no file descriptor left.";
        mailbox_wait: Histogram(SHORT), Seconds, "callsheet_host_mailbox_wait_seconds",
            "Time that a message waited in the mailbox of the host actor, measured every few seconds.";
        event_loop_lag: Histogram(SHORT), Seconds, "callsheet_event_loop_lag_seconds",
            "Delay of a timer that fires every 0.1 s.";
        tasks: Gauge, Count, "callsheet_tasks",
            "Live tasks of the async runtime, including actors.";
        tasks_queued: Gauge, Count, "callsheet_tasks_queued",
            "Tasks in the async runtime's global queue.";
        resident_memory: Gauge, Bytes, "process_resident_memory_bytes",
            "Resident memory of the process.";
    }

    /// The metrics that pages of the console report. Cloning shares them.
    struct ConsoleMetrics [] {
        long_frames: Counter, Count, "callsheet_ui_long_frames_total",
            "Animation frames of the console that took more than 50 ms, as the pages report them. Only browsers that measure them do.";
        event_to_paint: Histogram(MIDDLE), Seconds, "callsheet_ui_event_to_paint_seconds",
            "Time from an event's timestamp until a page of the console has painted it, as the pages report it.";
    }

    /// The handles of one configured model.
    struct ModelHandles ["model"] {
        requests_in_flight: Gauge, Count, "callsheet_model_requests_in_flight",
            "Requests to a configured model whose response has not ended.";
        requests_waiting: Gauge, Count, "callsheet_model_requests_waiting",
            "Requests that wait because max_concurrent_requests of their model are open.";
        queue_wait: Histogram(MIDDLE), Seconds, "callsheet_model_queue_wait_seconds",
            "Time that requests waited because max_concurrent_requests of their model were open. A request that did not wait counts as 0.";
        breaker_state: Gauge, Count, "callsheet_model_breaker_state",
            "State of a model's circuit breaker: 0 closed, 1 half-open (one probe request at a time), 2 open (no requests).";
        breaker_opened: Counter, Count, "callsheet_model_breaker_opened_total",
            "Times that a model's circuit breaker opened.";
        tools_set_aside: Gauge, Count, "callsheet_tools_set_aside",
            "Tools that the service of a model refuses, so that requests to the model leave them out.";
    }

    constants {
        OPERATION_DURATION: Histogram(LONG), Seconds,
            ["gen_ai_operation_name", "gen_ai_request_model", "error_type"],
            "gen_ai_client_operation_duration_seconds",
            "Duration of model requests, from the request to the end. Only failed ones have error_type.";
        FIRST_CHUNK_TIME: Histogram(FIRST_CHUNK), Seconds,
            ["gen_ai_operation_name", "gen_ai_request_model"],
            "gen_ai_client_operation_time_to_first_chunk_seconds",
            "Time from a request to the first delta of its streamed answer.";
        TOKEN_USAGE: Histogram(TOKENS), Count,
            ["gen_ai_operation_name", "gen_ai_request_model", "gen_ai_token_type"],
            "gen_ai_client_token_usage",
            "Tokens of a model request, if the service counted them.";
        EXECUTE_TOOL_DURATION: Histogram(MIDDLE), Seconds,
            ["gen_ai_operation_name", "gen_ai_tool_name", "status"],
            "gen_ai_execute_tool_duration_seconds",
            "Running time of tool calls, from start to outcome.";
        INVOKE_AGENT_DURATION: Histogram(LONG), Seconds,
            ["gen_ai_operation_name", "gen_ai_agent_name", "error_type"],
            "gen_ai_invoke_agent_duration_seconds",
            "Duration of runs. Only runs that ended with an error have error_type, which is the run end.";
        INVOKE_AGENT_TOOL_CALLS: Histogram(CALLS), Count,
            ["gen_ai_operation_name", "gen_ai_agent_name"],
            "gen_ai_invoke_agent_tool_calls",
            "Number of tool calls answered in each run. A run without calls counts as 0.";
        TOOL_QUEUE_WAIT: Histogram(SHORT), Seconds, ["tool"], "callsheet_tool_queue_wait_seconds",
            "Time that calls of a tool with max_concurrent or rate waited. A call that did not wait counts as 0.";
        TOOL_ATTEMPTS: Counter, Count, ["tool"], "callsheet_tool_attempts_total",
            "Attempts of tool calls that ran. A call that was tried again has several.";
        TOOL_BREAKER_STATE: Gauge, Count, ["tool"], "callsheet_tool_breaker_state",
            "State of the circuit breaker of a tool with breaker_failures: 0 closed, 1 half-open (one call at a time), 2 open (calls are answered at once).";
        MCP_SERVERS: Gauge, Count, ["server", "state"], "callsheet_mcp_servers",
            "Connections to MCP servers by state: one for each server, or with share = \"session\" one for each session that is awake. `released`: ended for another session (max_connections).";
        MCP_OPERATION_DURATION: Histogram(LONG), Seconds, ["method", "error_type"],
            "mcp_client_operation_duration_seconds",
            "Duration of requests to MCP servers. Only failed ones have error_type: of a call `cancelled`, `http_status`, `invalid_answer`, `not_sent`, `refused`, `server_down`, `timeout` or `tool_changed`, of another request `failed`.";
        MCP_LIMITS_REACHED: Counter, Count, ["server", "limit"], "callsheet_mcp_limits_reached_total",
            "Limits that an MCP server has reached: `questions` (declined), `messages` and `requests` (times that its output waited), `line` (a line without end) and `replies` (they were not read; its process was ended each time), `tools` and `definition_depth` (lists with tools that were left out), `reconnects` (failed attempts to connect after the longest wait).";
        HTTP_REFUSED: Counter, Count, ["status"], "callsheet_http_refused_total",
            "Requests that the HTTP server refused: 401 without the token, 403 for a foreign host or origin, 429 beyond a limit.";
        HOOK_DURATION: Histogram(LONG), Seconds, ["hook", "on", "outcome"],
            "callsheet_hook_duration_seconds",
            "Time until a hook answered, by its verdict; `failed`: its failure refused, `failure_ignored`: its failure allowed.";
        HOOK_EVENTS_LOST: Counter, Count, ["hook"], "callsheet_hook_events_lost_total",
            "Events that a live hook of the program has lost, because it was too slow.";
        TOOL_RESULTS: Counter, Count, ["tool", "status"], "callsheet_tool_results_total",
            "Outcomes of tool calls, including calls that never ran.";
        VARIABLE_CONFLICTS: Counter, Count, ["tool", "resolution"], "callsheet_variable_conflicts_total",
            "Tool calls that read variables which an earlier call of the turn then wrote. They ran again, lost their writes, or had written nothing.";
        APPROVALS: Counter, Count, ["verdict"], "callsheet_approvals_total",
            "Approval requests, and questions of tools, by verdict; `withdrawn`: the tool stopped waiting.";
        ATTEMPTS: Counter, Count, ["outcome"], "callsheet_attempts_total",
            "Model requests by outcome: ok, or the kind of error.";
        ARGUMENTS_ANOMALIES: Counter, Count, ["oddity"], "callsheet_arguments_odd_total",
            "Tool calls whose arguments were truncated, invalid, encoded twice, repaired or changed after the seal.";
        LIMITS_REACHED: Counter, Count, ["limit"], "callsheet_limits_reached_total",
            "Limits that were reached, by configuration key.";
        CACHED_TOKENS: Counter, Count, ["gen_ai_request_model"], "callsheet_cached_input_tokens_total",
            "Input tokens of model requests that the service read from its prompt cache, if it counted them. They are input tokens of gen_ai_client_token_usage too.";
        CONTEXT_TOKENS: Histogram(TOKENS), Count, ["part"], "callsheet_context_tokens",
            "Tokens of the first request of each turn, by part: tools, system, user (inputs), assistant (responses), results, summary. Estimated, and corrected by the service's counts.";
        CONTEXT_TOKENS_SAVED: Counter, Count, ["kind"], "callsheet_context_tokens_saved_total",
            "Tokens that changes of contexts saved in the next request, by estimate: cleared, formatted or summarised.";
        TAKEOVERS: Counter, Count, ["reason"], "callsheet_takeovers_total",
            "Sessions with unfinished runs that this host has taken because no living host had them, by reason: `start` of this host, or `host_ended`.";
        FACE_REQUESTS: Counter, Count, ["face", "end"], "callsheet_face_requests_total",
            "Requests of clients of other systems, by protocol and by the end of the answer: `delivered`, `cut` by the client, `refused`, or `aborted` by this host because it could not be completed.";
        FACE_STREAMS: Gauge, Count, [], "callsheet_face_streams",
            "Answers to clients of other systems that are being sent in parts.";
        FACE_JOINS: Counter, Count, ["face"], "callsheet_face_joins_total",
            "Requests of clients of other systems that have joined a run which was started before, by protocol.";
        UNKNOWN_COMMITS: Counter, Count, ["fate"], "callsheet_journal_unknown_commits_total",
            "Batches of records of which the database's answer was lost, by what was found then: `stored` or `lost`. Lost ones are stored again.";
        PREFIX_BREAKS: Counter, Count, ["reason"], "callsheet_prompt_prefix_breaks_total",
            "Requests whose tools, system text and messages did not begin with those of the session's request before, by reason. A value above 0 of `unexplained` is a bug of the host.";
        CONTEXT_OVERFLOWS: Counter, Count, ["model"], "callsheet_context_overflows_total",
            "Requests that were larger than the context window of their model.";
        PIECES_LOST: Counter, Count, ["model"], "callsheet_response_pieces_lost_total",
            "Responses that counted as broken because arguments arrived that belong to no tool call, or to another one.";
        RUNS: Counter, Count, ["run_end"], "callsheet_runs_total",
            "Runs that ended, by run end.";
        SESSIONS: Gauge, Count, ["state"], "callsheet_sessions",
            "Sessions by state, as `GET /v1/sessions` lists them. `hibernated`: not in memory, and without a run.";
        RUNS_OPEN: Gauge, Count, ["state"], "callsheet_runs_open",
            "Runs that have not ended, also of sessions that are not in memory. `waiting`: an approval or a question is open; `sleeping`: not in memory, and none is open.";
        SPANS: Counter, Count, ["result"], "callsheet_spans_total",
            "Trace spans by result: exported, failed (the collector rejected them) or dropped (the queue was full).";
        BUILD_INFO: Gauge, Count, ["version"], "callsheet_build_info",
            "Always 1. The label is the version of the host.";
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_follow_the_conventions() {
        let names: BTreeSet<_> = ALL.iter().map(|metric| metric.name).collect();
        assert_eq!(names.len(), ALL.len());
        for metric in ALL {
            let total = matches!(metric.kind, MetricKind::Counter | MetricKind::SecondsSum);
            assert_eq!(metric.name.ends_with("_total"), total, "{}", metric.name);
            let seconds = metric.name.trim_end_matches("_total").ends_with("_seconds");
            assert_eq!(seconds, matches!(metric.unit, Unit::Seconds), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn histogram_bounds_are_in_ascending_order() {
        for metric in ALL {
            if let MetricKind::Histogram(bounds) = metric.kind {
                assert!(!bounds.is_empty(), "{}", metric.name);
                assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{}", metric.name);
            }
        }
    }
}
