//! Every metric: its name, kind, unit, labels and help, in one place.
//!
//! Names from the conventions of OpenTelemetry's GenAI group keep theirs with dots turned into
//! underscores, in names and labels, and those of Prometheus's client libraries begin with
//! `process_`; our own begin with `callsheet_`. Labels are of low
//! cardinality: never an id.

use ::metrics::Unit;

/// What is fixed of one metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name on the page.
    pub name: &'static str,
    /// What it is to Prometheus.
    pub kind: MetricKind,
    /// What it counts.
    pub unit: Unit,
    /// The labels that its series may have.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

/// What a metric is to Prometheus.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum MetricKind {
    /// A whole number that only grows.
    Counter,
    /// A number with a fraction that only grows. The exporter's counters are whole numbers, so
    /// this one is kept and written by [`Metrics`](super::Metrics).
    Sum,
    /// A number that goes up and down.
    Gauge,
    /// A histogram with these upper bounds.
    Histogram(&'static [f64]),
}

/// What takes the place of a name that is not known, so that no stranger's text becomes a label.
pub const OTHER: &str = "other";

/// Bounds for what the host itself makes somebody wait, in seconds.
const SHORT: &[f64] = &[
    0.000_01, 0.000_025, 0.000_05, 0.000_1, 0.000_25, 0.000_5, 0.001, 0.002_5, 0.005, 0.01, 0.025,
    0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
];

/// Bounds for tools and for parts of a response, in seconds.
const MIDDLE: &[f64] = &[
    0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    120.0, 300.0,
];

/// Bounds that the conventions advise for an operation's duration, in seconds, and three more for
/// whole runs.
const LONG: &[f64] = &[
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92, 163.84,
    327.68, 655.36,
];

/// Bounds that the conventions advise for the time to the first chunk, in seconds.
const FIRST_CHUNK: &[f64] =
    &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// Bounds that the conventions advise for tokens.
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

/// Bounds for numbers of records.
const RECORDS: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0];

/// Bounds for numbers of calls; the first keeps none apart from one.
const CALLS: &[f64] =
    &[0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 64.0, 128.0];

/// Makes a constant of each line, and [`ALL`] of all of them, so that none can be forgotten.
macro_rules! metrics {
    ($($constant:ident $name:literal $kind:expr, $unit:ident, $labels:expr, $help:literal;)*) => {
        $(
            #[doc = $help]
            pub const $constant: Metric = Metric {
                name: $name,
                kind: $kind,
                unit: Unit::$unit,
                labels: &$labels,
                help: $help,
            };
        )*

        /// Every metric, in the order of this file.
        pub const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    TOOL_CALLS_PER_TURN "tool_calls_per_turn" MetricKind::Histogram(CALLS), Count, [],
        "Tool calls answered in a turn, 0 included.";
    MULTI_TOOL_CALL_TURNS "multi_tool_call_turns_total" MetricKind::Counter, Count, [],
        "Turns in which at least two tool calls were answered.";
    TOOL_EXECUTION_TIME "tool_execution_time_seconds_total" MetricKind::Sum, Seconds, [],
        "Running times of all tools of all turns added up.";
    TOOL_EXECUTION_TIME_MAX "tool_execution_time_max_seconds" MetricKind::Histogram(MIDDLE), Seconds, [],
        "The longest running time of one tool in a turn with calls.";
    CALLS_OPENED "streaming_tool_calls_opened_total" MetricKind::Counter, Count, [],
        "Tool calls that responses opened, counted when the response has ended and no user stopped it.";
    CALLS_DETECTED "streaming_tool_calls_detected_total" MetricKind::Counter, Count, [],
        "Tool calls sealed with valid arguments, counted when the response has ended and no user stopped it.";
    DETECTION_LATENCY "streaming_tool_detection_latency_seconds" MetricKind::Histogram(MIDDLE), Seconds, [],
        "From the request to the seal of a tool call with valid arguments.";
    EXECUTION_LATENCY "streaming_tool_execution_latency_seconds" MetricKind::Histogram(MIDDLE), Seconds, [],
        "From a tool call's seal to its outcome, for calls that were run.";
    ROLLBACKS "streaming_rollbacks_total" MetricKind::Counter, Count, [],
        "Attempts that asked for the plain answer because streams broke.";

    OPERATION_DURATION "gen_ai_client_operation_duration_seconds" MetricKind::Histogram(LONG), Seconds,
        ["gen_ai_operation_name", "gen_ai_request_model", "error_type"],
        "Exchanges with a model, from the request to the end; error_type only on those that failed.";
    FIRST_CHUNK_TIME "gen_ai_client_operation_time_to_first_chunk_seconds" MetricKind::Histogram(FIRST_CHUNK), Seconds,
        ["gen_ai_operation_name", "gen_ai_request_model"],
        "From a request to the first delta of its streamed answer.";
    TOKEN_USAGE "gen_ai_client_token_usage" MetricKind::Histogram(TOKENS), Count,
        ["gen_ai_operation_name", "gen_ai_request_model", "gen_ai_token_type"],
        "Tokens of an exchange with a model, where the service counted them.";
    EXECUTE_TOOL_DURATION "gen_ai_execute_tool_duration_seconds" MetricKind::Histogram(MIDDLE), Seconds,
        ["gen_ai_operation_name", "gen_ai_tool_name", "status"],
        "Running times of tools, from start to outcome.";
    INVOKE_AGENT_DURATION "gen_ai_invoke_agent_duration_seconds" MetricKind::Histogram(LONG), Seconds,
        ["gen_ai_operation_name", "gen_ai_agent_name", "error_type"],
        "Runs from start to end; error_type, the run's end, only on those that ended with an error.";
    INVOKE_AGENT_TOOL_CALLS "gen_ai_invoke_agent_tool_calls" MetricKind::Histogram(CALLS), Count,
        ["gen_ai_operation_name", "gen_ai_agent_name"],
        "Tool calls answered in a run, 0 included.";

    SEAL_TO_START "callsheet_seal_to_start_seconds" MetricKind::Histogram(SHORT), Seconds, [],
        "From a tool call's seal to its start.";
    QUEUE_WAIT "callsheet_tool_queue_wait_seconds" MetricKind::Histogram(SHORT), Seconds, ["tool"],
        "How long calls of a tool with max_concurrent waited for one of its places before they started, 0 included.";
    STARTS_EARLY "callsheet_tool_starts_early_total" MetricKind::Counter, Count, [],
        "Tool calls started while their response was still coming.";
    OVERLAP_SAVED "callsheet_overlap_saved_seconds" MetricKind::Histogram(SHORT), Seconds, [],
        "Time of a turn with calls in which tools ran beside the stream.";
    RESULTS_DISCARDED "callsheet_results_discarded_total" MetricKind::Counter, Count, [],
        "Results thrown away because their response was void.";
    REORDER_WAIT "callsheet_reorder_wait_seconds" MetricKind::Histogram(SHORT), Seconds, [],
        "How long an outcome waited for earlier calls and for the response's ending.";
    TURN_OVERHEAD "callsheet_turn_overhead_seconds" MetricKind::Histogram(SHORT), Seconds, [],
        "Time of a turn in which neither the model nor a tool was at work, no call waited for a place of its tool, and the turn did not wait for people alone.";
    APPROVALS "callsheet_approvals_total" MetricKind::Counter, Count, ["verdict"],
        "Questions to people about tool calls that were settled, by what was decided.";
    APPROVAL_WAIT "callsheet_approval_wait_seconds" MetricKind::Histogram(LONG), Seconds, [],
        "How long tool calls waited for a person's decision.";
    CONFLICTS "callsheet_variable_conflicts_total" MetricKind::Counter, Count, ["tool", "resolution"],
        "Tool calls that had read variables which an earlier call of the turn wrote meanwhile: rerun, or kept without their writes, or kept as they had written nothing.";
    TOOL_PANICS "callsheet_tool_panics_total" MetricKind::Counter, Count, [],
        "Tool calls that ended in a panic of the tool.";
    LATE_OUTCOMES "callsheet_late_outcomes_total" MetricKind::Counter, Count, [],
        "Outcomes dropped because their call had one.";
    HISTORY_REPAIRS "callsheet_history_repairs_total" MetricKind::Counter, Count, [],
        "Messages added or left out to satisfy a provider's pairing rule; not 0 is a bug of the host.";
    SERVICE_CALLS "callsheet_service_tool_calls_total" MetricKind::Counter, Count, [],
        "Tool calls that a model's service began to run itself.";
    CALLS_DROPPED "callsheet_tool_calls_dropped_total" MetricKind::Counter, Count, [],
        "Tool calls that were decoded but not kept.";
    TOOL_RESULTS "callsheet_tool_results_total" MetricKind::Counter, Count, ["tool", "status"],
        "Outcomes of tool calls, those that never ran included.";
    ATTEMPTS "callsheet_attempts_total" MetricKind::Counter, Count, ["outcome"],
        "Exchanges with a model by outcome: ok, or the kind of trouble.";
    FALLBACKS "callsheet_model_fallbacks_total" MetricKind::Counter, Count, [],
        "Times that a turn went on with the next of its agent's models.";
    MODEL_REQUESTS "callsheet_model_requests_in_flight" MetricKind::Gauge, Count, ["model"],
        "Requests to a configured model whose response has not ended.";
    MODEL_WAITING "callsheet_model_requests_waiting" MetricKind::Gauge, Count, ["model"],
        "Requests that wait because max_concurrent_requests of their model are open.";
    MODEL_QUEUE_WAIT "callsheet_model_queue_wait_seconds" MetricKind::Histogram(MIDDLE), Seconds, ["model"],
        "How long requests that were sent had waited because max_concurrent_requests of their model were open, 0 included.";
    BREAKER_STATE "callsheet_model_breaker_state" MetricKind::Gauge, Count, ["model"],
        "Whether a configured model is asked: 0 it is, 1 one request at a time finds out, 2 it is not because it failed too often.";
    BREAKER_OPENED "callsheet_model_breaker_opened_total" MetricKind::Counter, Count, ["model"],
        "Times that a configured model was not asked any more for a while because it failed too often.";
    ARGUMENTS_ODD "callsheet_arguments_odd_total" MetricKind::Counter, Count, ["oddity"],
        "Tool calls with arguments that were cut off, invalid, encoded twice or changed after the seal.";
    LIMITS_REACHED "callsheet_limits_reached_total" MetricKind::Counter, Count, ["limit"],
        "Limits that were reached, by their name in the configuration.";
    RUNS "callsheet_runs_total" MetricKind::Counter, Count, ["run_end"],
        "Runs that are over, by how they ended.";
    STEERS "callsheet_steers_total" MetricKind::Counter, Count, [],
        "Inputs that users gave to a run that was going on.";
    RUNS_ACTIVE "callsheet_runs_active" MetricKind::Gauge, Count, [],
        "Runs that are going on.";
    QUEUED_INPUTS "callsheet_queued_inputs" MetricKind::Gauge, Count, [],
        "Inputs that wait for a run of their session to end.";
    CALLS_WAITING "callsheet_tool_calls_waiting" MetricKind::Gauge, Count, [],
        "Tool calls that wait for a place of their tool.";
    THREADS_ABANDONED "callsheet_threads_abandoned" MetricKind::Gauge, Count, [],
        "Threads of blocking tools that were given up and have not come back.";
    SESSIONS "callsheet_sessions" MetricKind::Gauge, Count, ["state"],
        "Open sessions by state.";
    SESSIONS_MAX "callsheet_sessions_max" MetricKind::Gauge, Count, [],
        "How many sessions there may be: max_sessions of the configuration.";
    RUNS_MAX "callsheet_runs_max" MetricKind::Gauge, Count, [],
        "How many runs may go on at once: max_concurrent_runs of the configuration.";
    JOURNAL_COMMIT "callsheet_journal_commit_seconds" MetricKind::Histogram(SHORT), Seconds, [],
        "Time of a transaction of the journal, without its fsync.";
    JOURNAL_BATCH "callsheet_journal_commit_records" MetricKind::Histogram(RECORDS), Count, [],
        "Records that were stored in one transaction.";
    JOURNAL_FSYNC "callsheet_journal_fsync_seconds" MetricKind::Histogram(SHORT), Seconds, [],
        "Time of an fsync of the journal: one for each transaction, or with relaxed durability one for many.";
    JOURNAL_QUEUED "callsheet_journal_queued" MetricKind::Gauge, Count, [],
        "Batches of records that wait to be stored.";
    JOURNAL_BYTES "callsheet_journal_size_bytes" MetricKind::Gauge, Bytes, [],
        "What the journal takes on the disk.";
    JOURNAL_FAILURES "callsheet_journal_failures_total" MetricKind::Counter, Count, [],
        "Sessions that left memory because a record of theirs could not be stored.";
    RECOVERED "callsheet_runs_recovered_total" MetricKind::Counter, Count, [],
        "Runs that went on after their host had ended.";
    RECOVERY "callsheet_recovery_seconds" MetricKind::Gauge, Seconds, [],
        "From the host's start until every unfinished run went on.";
    WATCHERS "callsheet_watchers" MetricKind::Gauge, Count, [],
        "Subscribers that listen to a session or to one of its runs.";
    SUBSCRIBERS_LAGGED "callsheet_subscribers_lagged_total" MetricKind::Counter, Count, [],
        "Subscribers that were too slow, were told to read again, and were let go.";
    SPANS "callsheet_spans_total" MetricKind::Counter, Count, ["result"],
        "Spans of traces: exported, failed (the collector did not take them) or dropped (too many waited for it).";
    WATCHER_QUEUE "callsheet_watcher_queue_events" MetricKind::Gauge, Count, [],
        "Events that wait in the fullest queue of a subscriber; it is let go when 1,024 do.";

    HOST_MAILBOX_WAIT "callsheet_host_mailbox_wait_seconds" MetricKind::Histogram(SHORT), Seconds, [],
        "How long a message to the supervisor of all sessions waited in its mailbox, looked at every few seconds.";
    EVENT_LOOP_LAG "callsheet_event_loop_lag_seconds" MetricKind::Histogram(SHORT), Seconds, [],
        "How late a task was woken that sleeps a tenth of a second again and again.";
    TASKS "callsheet_tasks" MetricKind::Gauge, Count, [],
        "Tasks of the async runtime that are alive, those of actors included.";
    TASKS_QUEUED "callsheet_tasks_queued" MetricKind::Gauge, Count, [],
        "Tasks that wait in the async runtime's common queue for a thread.";
    MEMORY "process_resident_memory_bytes" MetricKind::Gauge, Bytes, [],
        "Memory of the process that is in RAM.";
    BUILD_INFO "callsheet_build_info" MetricKind::Gauge, Count, ["version"],
        "Always 1; the label is the version of the host.";
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
            let total = matches!(metric.kind, MetricKind::Counter | MetricKind::Sum);
            assert_eq!(metric.name.ends_with("_total"), total, "{}", metric.name);
            let seconds = metric.name.trim_end_matches("_total").ends_with("_seconds");
            assert_eq!(seconds, matches!(metric.unit, Unit::Seconds), "{}", metric.name);
            assert!(metric.help.ends_with('.'), "{}", metric.name);
        }
    }

    #[test]
    fn bounds_rise() {
        for metric in ALL {
            if let MetricKind::Histogram(bounds) = metric.kind {
                assert!(!bounds.is_empty(), "{}", metric.name);
                assert!(bounds.windows(2).all(|pair| pair[0] < pair[1]), "{}", metric.name);
            }
        }
    }
}
