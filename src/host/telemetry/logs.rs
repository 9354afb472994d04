//! Translates events into log lines.
//!
//! Texts of users, models and tools are logged only at the level trace. The exceptions are names, the first 200
//! characters of arguments with an anomaly and of the error of a request or a run (a service may quote the request
//! in it), because the warnings need them to explain the problem, and the metadata of a run.

use std::time::Duration;

use tracing::{debug, error, info, trace, warn};

use super::labelled_handles::error_type;
use callsheet_machines::turn::BreakerChange;
use callsheet_values::event::{CallLabel, Event, PublishedEvent, RunStats, TurnSummary};
use callsheet_values::types::{
    Author, CallKey, FailureKind, Metadata, ProviderError, RunEnd, RunError, ToolResult, excerpt,
    millis,
};

/// Maximum number of characters of an error's message or of arguments with an anomaly in a log line.
const EXCERPT_CHARS: usize = 200;

/// Logs a line with the fields that the lines of all events have.
macro_rules! line {
    ($level:ident, $published:expr, $($rest:tt)*) => {
        $level!(
            session = $published.session.as_str(),
            run = &*$published.run.0,
            turn = $published.turn,
            $($rest)*
        )
    };
}

/// Returns whether texts of users, models and tools are logged. Called for each text delta.
#[must_use]
pub fn logs_contents() -> bool {
    tracing::enabled!(tracing::Level::TRACE)
}

/// Logs an event. Cheap if its level is disabled.
pub fn log(published: &PublishedEvent) {
    match &published.event {
        Event::TextReceived { text } => line!(trace, published, text, "text_received"),
        Event::ThinkingReceived { text } => line!(trace, published, text, "thinking_received"),
        // `ResponseDecoded` has the line.
        Event::AttemptFellBack { .. }
        | Event::ArgumentsReceived { .. }
        | Event::ResponseEnded { .. } => {}
        Event::TurnStarted => line!(debug, published, "turn_started"),
        Event::InputQueued { input, waiting } => {
            line!(info, published, waiting, "input_queued");
            line!(trace, published, input = &*input.text(), "run_input");
        }
        Event::InputRemoved { waiting } => line!(info, published, waiting, "input_removed"),
        Event::RunSteered { input, author: _ } => {
            line!(info, published, "run_steered");
            line!(trace, published, input = &*input.text(), "run_input");
        }
        Event::RunStarted { agent, model, execution, metadata, reopened, input: _ } => {
            let metadata = metadata_json(metadata);
            if *reopened {
                line!(info, published, agent, model, %execution, metadata, "run_reopened");
            } else {
                line!(info, published, agent, model, %execution, metadata, "run_started");
            }
        }
        Event::RunEnded { end, metadata, text, error, stats, .. } => {
            run_ended(published, *end, metadata, error.as_ref(), stats);
            line!(trace, published, text, "run_text");
        }
        Event::RunWaiting { waiting_for: _, servers } => {
            line!(info, published, ?servers, "run_waits_for_servers");
        }
        // The line of the server itself has no session.
        Event::ToolsChanged { change } => {
            line!(debug, published, server = change.server, "session_told_of_changed_tools");
        }
        Event::ServerReleased { server } => {
            line!(debug, published, server = &**server, "session_told_of_released_server");
        }
        Event::CallOpened { .. }
        | Event::CallDetected { .. }
        | Event::ArgumentsAnomalyFound { .. }
        | Event::CallWaiting { .. }
        | Event::CallStarted { .. }
        | Event::CallProgressed { .. }
        | Event::CallDiscarded { .. }
        | Event::CallEnded { .. }
        | Event::ServiceCallChanged { .. }
        | Event::OutcomeLate { .. }
        | Event::ResultReleased { .. } => call(published),
        Event::ApprovalAsked { .. } | Event::ApprovalGiven { .. } | Event::ConflictFound { .. } => {
            approval_or_conflict(published);
        }
        Event::ResponseDecoded { names, .. } => {
            if !names.is_empty() {
                line!(info, published, count = names.len(), ?names, "tool_calls_detected");
            }
        }
        Event::AttemptEnded { model, error: Some(error), .. } => {
            attempt_failed(published, model, error)
        }
        Event::AttemptEnded { model, duration, error: None, .. } => {
            line!(debug, published, model, duration_ms = millis(*duration), "attempt_ended");
        }
        Event::AttemptStarted { attempt, model, streamed, wait, .. } => {
            let wait_ms = millis(*wait);
            line!(info, published, attempt, model, streamed, wait_ms, "attempt_started");
        }
        Event::ArgumentsLost { model, reason } => {
            line!(warn, published, model, reason, "arguments_lost");
        }
        Event::AttemptVoided { attempt, model, streamed: _, reason: _, voided: _ } => {
            line!(debug, published, attempt, model, "attempt_voided");
        }
        Event::TurnEnded { summary } => turn_ended(published, summary),
        Event::LimitReached { limit, value, maximum, action, reason: Some(reason) } => {
            let reason = reason.as_str();
            line!(warn, published, limit, value, maximum, action, reason, "limit_reached");
        }
        Event::LimitReached { limit, value, maximum, action, reason: None } => {
            if value < maximum {
                line!(info, published, limit, value, maximum, action, "limit_half_used");
            } else {
                line!(warn, published, limit, value, maximum, action, "limit_reached");
            }
        }
        Event::ContextCompacted { kind, tokens_before, tokens_after, upto, messages } => {
            let (kind, messages) = (kind.as_str(), messages.join(", "));
            let messages = Some(messages).filter(|messages| !messages.is_empty());
            line!(
                info,
                published,
                kind,
                tokens_before,
                tokens_after,
                upto,
                messages,
                "context_compacted"
            );
        }
        // The child session has logged it.
        Event::OfChild { .. } => {}
        Event::HistoryRepaired { repairs } => line!(error, published, repairs, "history_repaired"),
        Event::ToolSetAside { tool_name, model, reason } => {
            let (tool, reason) = (&**tool_name, excerpt(reason, EXCERPT_CHARS));
            line!(warn, published, tool, model, reason, "tool_set_aside");
        }
    }
}

/// Logs that a model's circuit breaker opened or closed. The line belongs to no run.
pub(super) fn breaker_changed(model: &str, change: BreakerChange) {
    match change {
        BreakerChange::Opened { failures, open_for } => {
            warn!(model, failures, open_for_ms = millis(open_for), "model_breaker_opened");
        }
        BreakerChange::Closed => info!(model, "model_breaker_closed"),
    }
}

/// Logs the events of one call.
fn call(published: &PublishedEvent) {
    match &published.event {
        Event::CallDetected { call, arguments: _, latency, stream_position, streaming } => {
            detected(published, &call.name, *latency, *stream_position, *streaming);
        }
        Event::ArgumentsAnomalyFound { call, id, anomaly, raw } => {
            let arguments = excerpt(raw, EXCERPT_CHARS);
            let oddity = anomaly.as_str();
            let (tool_name, id) = (&*call.name, &**id);
            line!(warn, published, tool_name, id, oddity, arguments, "tool_arguments_odd");
        }
        Event::CallStarted {
            call,
            input_summary,
            arguments: _,
            early,
            waited,
            queued,
            known_calls: count,
        } => {
            let CallLabel { key, name, .. } = call;
            line!(
                debug,
                published,
                tool_id = %key,
                tool_name = &**name,
                call = call_position(*key, (!early).then_some(*count)),
                early,
                waited_ms = millis(*waited),
                queued_ms = queued.map(millis),
                "tool_call_started"
            );
            line!(
                trace,
                published,
                tool_id = %key,
                arguments = input_summary,
                "tool_call_arguments"
            );
        }
        Event::CallEnded { result, parallel, early: _ } => call_ended(published, result, *parallel),
        Event::CallOpened { call } => {
            line!(
                debug,
                published,
                tool_id = %call.key,
                tool_name = &*call.name,
                "tool_call_opened"
            );
        }
        Event::CallWaiting { call, waiting_for, .. } => {
            line!(debug, published, tool_id = %call.key, ?waiting_for, "tool_call_waiting");
        }
        Event::CallDiscarded { call, had_result } => {
            line!(debug, published, tool_id = %call.key, had_result, "tool_call_discarded");
        }
        Event::ServiceCallChanged { call, status } => {
            let (tool_name, status) = (&*call.name, status.as_str());
            line!(
                debug,
                published,
                tool_id = call.tool_id(),
                tool_name,
                status,
                "service_tool_call"
            );
            line!(
                trace,
                published,
                tool_id = call.tool_id(),
                arguments = call.input_summary,
                "service_tool_call_arguments"
            );
        }
        Event::OutcomeLate { call } => {
            line!(debug, published, tool_id = %call.key, "tool_outcome_late");
        }
        Event::CallProgressed { key, text } => {
            line!(trace, published, tool_id = %key, text, "tool_call_progressed");
        }
        Event::ResultReleased { key, reorder_wait } => {
            let reorder_wait_ms = millis(*reorder_wait);
            line!(trace, published, tool_id = %key, reorder_wait_ms, "tool_result_released");
        }
        Event::RunStarted { .. }
        | Event::InputQueued { .. }
        | Event::InputRemoved { .. }
        | Event::RunSteered { .. }
        | Event::RunWaiting { .. }
        | Event::ToolsChanged { .. }
        | Event::ServerReleased { .. }
        | Event::TurnStarted
        | Event::ThinkingReceived { .. }
        | Event::TextReceived { .. }
        | Event::ArgumentsReceived { .. }
        | Event::ResponseEnded { .. }
        | Event::ResponseDecoded { .. }
        | Event::AttemptEnded { .. }
        | Event::AttemptFellBack { .. }
        | Event::AttemptStarted { .. }
        | Event::AttemptVoided { .. }
        | Event::ArgumentsLost { .. }
        | Event::TurnEnded { .. }
        | Event::LimitReached { .. }
        | Event::ContextCompacted { .. }
        | Event::OfChild { .. }
        | Event::HistoryRepaired { .. }
        | Event::ToolSetAside { .. }
        | Event::ApprovalAsked { .. }
        | Event::ApprovalGiven { .. }
        | Event::ConflictFound { .. }
        | Event::RunEnded { .. } => {}
    }
}

/// Returns the position of a call in its response. `count` is the number of calls; it is `None` until the response
/// has ended, because more calls may follow.
fn call_position(key: CallKey, count: Option<u32>) -> String {
    let position = key.index.saturating_add(1);
    count.map_or_else(|| position.to_string(), |count| format!("{position} of {count}"))
}

fn detected(
    published: &PublishedEvent,
    tool_name: &str,
    latency: Duration,
    position: u64,
    streaming: bool,
) {
    let detection_latency_ms = millis(latency);
    if streaming {
        let stream_position = position;
        line!(
            info,
            published,
            tool_name,
            detection_latency_ms,
            stream_position,
            "streaming_tool_call_detected"
        );
    } else {
        line!(debug, published, tool_name, detection_latency_ms, "tool_call_detected");
    }
}

/// Logs approvals and conflicts of variables.
fn approval_or_conflict(published: &PublishedEvent) {
    if let Event::ApprovalAsked { request } = &published.event {
        let (tool_id, tool_name) = (request.call.key, &*request.call.name);
        line!(
            info,
            published,
            %tool_id,
            tool_name,
            phase = request.phase.as_str(),
            "tool_approval_asked"
        );
    } else if let Event::ApprovalGiven { call, phase, verdict, message: _, author, waited } =
        &published.event
    {
        let (tool_id, tool_name, phase) = (call.key, &*call.name, phase.as_str());
        let (verdict, waited_ms) = (verdict.as_str(), millis(*waited));
        let author = author.as_ref().map(Author::as_str);
        line!(
            info,
            published,
            %tool_id,
            tool_name,
            phase,
            verdict,
            author,
            waited_ms,
            "tool_approval_given"
        );
    } else if let Event::ConflictFound { call, names, resolution } = &published.event {
        let (tool_id, tool_name) = (call.key, &*call.name);
        line!(
            warn,
            published,
            %tool_id,
            tool_name,
            ?names,
            resolution = resolution.as_str(),
            "variable_conflict"
        );
    }
}

fn call_ended(published: &PublishedEvent, result: &ToolResult, is_parallel: bool) {
    let tool_name = &*result.call.name;
    let tool_id = result.call.key;
    let is_copy = result.notes.duplicate_of.is_some() || result.notes.reused;
    let status = result.outcome.status.as_str();
    if result.started.is_some() && !is_copy {
        let execution_latency_ms = millis(result.wait.saturating_add(result.duration));
        line!(
            info,
            published,
            tool_name,
            status,
            kind = result.outcome.kind.map(FailureKind::as_str),
            execution_latency_ms,
            is_parallel,
            "streaming_tool_executed"
        );
    }
    let duration_ms = millis(result.duration);
    if result.outcome.kind == Some(FailureKind::Panic) {
        line!(warn, published, %tool_id, tool_name, duration_ms, "tool_panicked");
    }
    let result_bytes = result.outcome.content.len();
    line!(
        debug,
        published,
        %tool_id,
        tool_name,
        status,
        duration_ms,
        result_bytes,
        "tool_call_completed"
    );
    line!(trace, published, %tool_id, result = &*result.outcome.content, "tool_call_result");
}

fn attempt_failed(published: &PublishedEvent, model: &str, error: &ProviderError) {
    let transient = error.is_transient();
    let message = excerpt(&error.message, EXCERPT_CHARS);
    let (kind, status) = (error_type(error.kind), error.status);
    line!(warn, published, model, kind, status, transient, error = message, "attempt_failed");
}

fn turn_ended(published: &PublishedEvent, turn: &TurnSummary) {
    let count = turn.tool_names.len();
    if count > 0 {
        let seconds = turn.times.tools.as_secs_f64();
        let execution = if turn.parallel { "parallel" } else { "sequential" };
        line!(info, published, count, seconds, execution, "tool_calls_completed");
    }
    if turn.dropped_calls > 0 {
        line!(warn, published, count = turn.dropped_calls, "tool_calls_dropped");
    }
    line!(debug, published, total_ms = millis(turn.times.total), "turn_ended");
}

fn run_ended(
    published: &PublishedEvent,
    end: RunEnd,
    metadata: &Metadata,
    error: Option<&RunError>,
    stats: &RunStats,
) {
    /// Logs the line with the fields that it has with and without an error.
    macro_rules! ended {
        ($level:ident $($error:tt)*) => {
            line!(
                $level,
                published,
                run_end = end.as_str(),
                turns = stats.turns,
                tool_calls = stats.tool_calls,
                seconds = stats.duration.as_secs_f64(),
                model_ms = millis(stats.model),
                tools_ms = millis(stats.tools),
                people_ms = millis(stats.people),
                waits_ms = millis(stats.waits),
                overhead_ms = millis(stats.overhead),
                metadata = metadata_json(metadata)
                $($error)*,
                "run_ended"
            )
        };
    }
    match error {
        None => ended!(info),
        Some(RunError { code, message, .. }) => {
            ended!(warn, code, error = excerpt(message, EXCERPT_CHARS));
        }
    }
}

/// Returns the metadata of a run as a field of a line, which has none if there are no pairs.
fn metadata_json(metadata: &Metadata) -> Option<String> {
    (!metadata.is_empty()).then(|| serde_json::to_string(metadata).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use tracing_subscriber::EnvFilter;

    use super::super::log_output::{LogFormat, filter, subscriber};
    use super::*;
    use callsheet_values::event::samples::{self, published};
    use callsheet_values::types::{ToolOutcome, ToolStatus};

    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Installs a global subscriber. Without one, a log line that another test's thread reaches first
    /// can be cached as disabled while this test installs its own subscriber.
    fn enable_every_line() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let all = subscriber(LogFormat::Text, EnvFilter::new("trace"), false, std::io::sink);
            tracing::subscriber::set_global_default(all).unwrap();
            samples::every().into_iter().for_each(|event| log(&published(event)));
            CHANGES.into_iter().for_each(|change| breaker_changed("main", change));
        });
    }

    const CHANGES: [BreakerChange; 2] = [
        BreakerChange::Opened { failures: 5, open_for: Duration::from_secs(30) },
        BreakerChange::Closed,
    ];

    /// Returns the log of these events at a level.
    fn log_of(format: LogFormat, level: &str, events: &[Event]) -> String {
        enable_every_line();
        let page = LogBuffer::default();
        let writer = page.clone();
        let subscriber = subscriber(format, EnvFilter::new(level), false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            events.iter().for_each(|event| log(&published(event.clone())));
        });
        String::from_utf8(std::mem::take(&mut page.0.lock())).unwrap()
    }

    #[test]
    fn a_line_does_not_begin_with_spans_of_other_crates() {
        let page = LogBuffer::default();
        let writer = page.clone();
        let filter = filter(|_| None).unwrap();
        let subscriber = subscriber(LogFormat::Text, filter, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!(target: "library::actor", "Actor", id = 7);
            span.in_scope(|| info!("a line"));
        });
        let page = String::from_utf8(std::mem::take(&mut page.0.lock())).unwrap();
        assert!(page.contains("INFO a line") && !page.contains("Actor"), "{page}");
    }

    /// Returns the log as JSON lines, without their timestamps.
    fn lines(level: &str, events: &[Event]) -> Vec<Value> {
        let page = log_of(LogFormat::Json, level, events);
        page.lines()
            .map(|line| {
                let mut line: Value = serde_json::from_str(line).unwrap();
                assert!(line.as_object_mut().unwrap().remove("timestamp").is_some());
                line
            })
            .collect()
    }

    fn check(level: &str, event: Event, expect: &[(&str, Value)]) {
        let expect: Vec<_> = expect
            .iter()
            .map(|(level, fields)| {
                let mut line = json!({"level": level, "session": "s1", "run": "run_1", "turn": 3});
                let all = line.as_object_mut().unwrap();
                all.extend(fields.as_object().unwrap().clone());
                line
            })
            .collect();
        assert_eq!(lines(level, &[event]), expect);
    }

    #[test]
    fn the_lines_of_tool_calls_have_the_documented_fields() {
        let call = samples::label();
        check(
            "info",
            Event::ResponseDecoded {
                names: vec!["clock".into(), "calculator".into()],
                opened: 3,
                detected: 2,
                stopped: false,
            },
            &[(
                "INFO",
                json!({"message": "tool_calls_detected", "count": 2, "names": "[\"clock\", \"calculator\"]"}),
            )],
        );
        check(
            "info",
            Event::TurnEnded {
                summary: Box::new(TurnSummary { dropped_calls: 0, ..samples::summary() }),
            },
            &[(
                "INFO",
                json!({"message": "tool_calls_completed", "count": 2, "seconds": 1.5, "execution": "parallel"}),
            )],
        );
        check(
            "info",
            Event::CallDetected {
                call: call.clone(),
                arguments: Arc::default(),
                latency: Duration::from_millis(420),
                stream_position: 17,
                streaming: true,
            },
            &[(
                "INFO",
                json!({
                    "message": "streaming_tool_call_detected",
                    "tool_name": "clock",
                    "detection_latency_ms": 420,
                    "stream_position": 17,
                }),
            )],
        );
        check(
            "info",
            Event::CallEnded { result: Box::new(samples::result()), parallel: true, early: false },
            &[(
                "INFO",
                json!({
                    "message": "streaming_tool_executed",
                    "tool_name": "clock",
                    "status": "success",
                    "execution_latency_ms": 1520,
                    "is_parallel": true,
                }),
            )],
        );
        let mut failed = samples::result();
        failed.outcome = ToolOutcome::not_ok(
            ToolStatus::TimedOut,
            FailureKind::Timeout,
            "no answer within 30 s",
        );
        check(
            "info",
            Event::CallEnded { result: Box::new(failed), parallel: false, early: false },
            &[(
                "INFO",
                json!({
                    "message": "streaming_tool_executed",
                    "tool_name": "clock",
                    "status": "timeout",
                    "kind": "timeout",
                    "execution_latency_ms": 1520,
                    "is_parallel": false,
                }),
            )],
        );
        // Before the end of the response, the number of its calls is unknown.
        for (early, position) in [(false, "3 of 4"), (true, "3")] {
            check(
                "debug",
                Event::CallStarted {
                    call: call.clone(),
                    arguments: Arc::default(),
                    input_summary: "{}".into(),
                    early,
                    waited: Duration::from_millis(20),
                    queued: Some(Duration::from_millis(10)),
                    known_calls: 4,
                },
                &[(
                    "DEBUG",
                    json!({
                        "message": "tool_call_started",
                        "tool_id": "t3a1c2",
                        "tool_name": "clock",
                        "call": position,
                        "early": early,
                        "waited_ms": 20,
                        "queued_ms": 10,
                    }),
                )],
            );
        }
        // A call that never ran was not executed.
        let mut refused = samples::result();
        refused.started = None;
        check(
            "debug",
            Event::CallEnded { result: Box::new(refused), parallel: true, early: false },
            &[(
                "DEBUG",
                json!({
                    "message": "tool_call_completed",
                    "tool_id": "t3a1c2",
                    "tool_name": "clock",
                    "status": "success",
                    "duration_ms": 1500,
                    "result_bytes": 5,
                }),
            )],
        );
    }

    #[test]
    fn the_line_of_a_run_that_ended_has_the_division_of_its_time_and_its_metadata() {
        let failed = json!({"code": "provider_error", "message": "it broke"});
        for (end, error, level, further) in [
            (RunEnd::Answered, None, "INFO", json!({})),
            (
                RunEnd::Failed,
                Some(serde_json::from_value(failed).unwrap()),
                "WARN",
                json!({"code": "provider_error", "error": "it broke"}),
            ),
        ] {
            let mut ended = samples::run_ended(end, error);
            let mut line = json!({
                "message": "run_ended",
                "run_end": end.as_str(),
                "turns": 2,
                "tool_calls": 3,
                "seconds": 3.0,
                "model_ms": 1800,
                "tools_ms": 1500,
                "people_ms": 0,
                "waits_ms": 0,
                "overhead_ms": 2,
            });
            line.as_object_mut().unwrap().extend(further.as_object().unwrap().clone());
            check("info", ended.clone(), &[(level, line.clone())]);
            if let Event::RunEnded { metadata, .. } = &mut ended {
                *metadata = Metadata::new([("user", "u-17")]).unwrap();
            }
            line["metadata"] = json!("{\"user\":\"u-17\"}");
            check("info", ended, &[(level, line)]);
        }
    }

    #[test]
    fn invalid_arguments_and_failed_attempts_are_warnings() {
        check(
            "warn",
            Event::ArgumentsAnomalyFound {
                call: samples::label(),
                id: "call_0_2".into(),
                anomaly: callsheet_values::event::ArgumentsAnomaly::CutOff,
                raw: "é".repeat(300),
            },
            &[(
                "WARN",
                json!({
                    "message": "tool_arguments_odd",
                    "tool_name": "clock",
                    "id": "call_0_2",
                    "oddity": "cut_off",
                    "arguments": excerpt(&"é".repeat(300), 200),
                }),
            )],
        );
        let error = ProviderError {
            status: Some(429),
            ..ProviderError::new(callsheet_values::types::ProviderErrorKind::Status, "slow down")
        };
        check(
            "warn",
            samples::attempt_ended(Some(error)),
            &[(
                "WARN",
                json!({
                    "message": "attempt_failed",
                    "model": "m",
                    "kind": "status",
                    "status": 429,
                    "transient": true,
                    "error": "slow down",
                }),
            )],
        );
    }

    #[test]
    fn a_breaker_that_opens_is_a_warning_and_one_that_closes_is_information() {
        enable_every_line();
        let page = LogBuffer::default();
        let writer = page.clone();
        let filter = EnvFilter::new("info");
        let subscriber = subscriber(LogFormat::Text, filter, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            CHANGES.into_iter().for_each(|to| breaker_changed("main", to))
        });
        let text = String::from_utf8(std::mem::take(&mut page.0.lock())).unwrap();
        let (opened, closed) = text.split_once('\n').unwrap();
        assert!(opened.contains("WARN") && closed.contains("INFO"), "{text}");
        let fields = "model_breaker_opened model=\"main\" failures=5 open_for_ms=30000";
        assert!(opened.ends_with(fields), "{text}");
        assert!(closed.trim_end().ends_with("model_breaker_closed model=\"main\""), "{text}");
    }

    #[test]
    fn turns_without_calls_and_plain_answers_log_nothing_at_info() {
        let quiet = [
            Event::ResponseDecoded { names: vec![], opened: 0, detected: 0, stopped: false },
            Event::TurnEnded { summary: Box::default() },
            Event::CallDetected {
                call: samples::label(),
                arguments: Arc::default(),
                latency: Duration::ZERO,
                stream_position: 1,
                streaming: false,
            },
        ];
        assert_eq!(lines("info", &quiet), Vec::<Value>::new());
    }

    #[test]
    fn contents_are_logged_only_at_trace() {
        let secret = "swordfish";
        let mut result = samples::result();
        result.outcome.content = secret.into();
        let events = [
            Event::TextReceived { text: secret.into() },
            Event::ThinkingReceived { text: secret.into() },
            Event::InputQueued { input: secret.into(), waiting: 1 },
            Event::RunSteered { input: secret.into(), author: None },
            Event::CallStarted {
                call: samples::label(),
                arguments: Arc::default(),
                input_summary: secret.into(),
                early: false,
                waited: Duration::ZERO,
                queued: None,
                known_calls: 1,
            },
            Event::CallWaiting {
                arguments: Arc::new(Value::from(secret)),
                by_client: false,
                call: samples::label(),
                waiting_for: callsheet_values::event::WaitingFor::Finish,
                input_summary: secret.into(),
            },
            Event::CallProgressed { key: samples::key(), text: secret.into() },
            Event::ServiceCallChanged {
                call: Box::new(callsheet_values::event::ServiceCall {
                    input_summary: secret.into(),
                    ..samples::service_call()
                }),
                status: callsheet_values::event::ServiceCallStatus::Finished,
            },
            Event::CallEnded { result: Box::new(result), parallel: false, early: false },
            Event::RunEnded {
                agent: "default".into(),
                metadata: Metadata::default(),
                end: RunEnd::Answered,
                text: secret.into(),
                output: None,
                error: None,
                stats: Box::new(samples::stats()),
                finish_reason: None,
            },
        ];
        assert!(!log_of(LogFormat::Text, "debug", &events).contains(secret));
        assert_eq!(log_of(LogFormat::Text, "trace", &events).matches(secret).count(), 9);
    }

    #[test]
    fn every_line_names_session_run_and_turn() {
        let lines = lines("trace", &samples::every());
        assert!(lines.len() >= samples::every().len(), "{lines:#?}");
        for line in lines {
            assert_eq!(
                (&line["session"], &line["run"], &line["turn"]),
                (&json!("s1"), &json!("run_1"), &json!(3)),
            );
        }
    }

    #[test]
    fn an_event_with_line_breaks_is_logged_as_one_line() {
        let mut call = samples::label();
        call.name = "clock\n\u{1b}[31mERROR forged".into();
        let event = Event::CallDetected {
            call,
            arguments: Arc::default(),
            latency: Duration::from_millis(420),
            stream_position: 17,
            streaming: true,
        };
        let page = log_of(LogFormat::Text, "info", &[event]);
        assert_eq!(page.lines().count(), 1, "{page}");
        assert!(page.contains("INFO streaming_tool_call_detected session=\"s1\""), "{page}");
        assert!(!page.contains('\u{1b}'), "{page}");
    }

    #[test]
    fn the_environment_sets_the_filter() {
        let check = |own: Option<&str>, rust: Option<&str>, expect: &str| {
            let seen = filter(|variable| match variable {
                "CALLSHEET_LOG" => own.map(str::to_owned),
                "RUST_LOG" => rust.map(str::to_owned),
                other => panic!("{other} is unexpected"),
            });
            let seen = seen.map_or_else(|error| error.to_string(), |filter| filter.to_string());
            assert_eq!(seen, expect);
        };
        check(None, None, "callsheet=info,warn");
        // The library for MCP logs what servers send, and that of the actors has a span for each.
        check(None, Some("debug"), "ractor=warn,rmcp=warn,debug");
        check(Some("callsheet=trace"), None, "callsheet=trace");
        check(Some("info,rmcp=debug"), None, "ractor=warn,rmcp=debug,info");
        check(Some("warn"), Some("debug"), "warn");
        check(Some(""), Some("debug"), "ractor=warn,rmcp=warn,debug");
        let broken = filter(|_| Some("a=b=c".to_owned())).unwrap_err().to_string();
        assert!(
            broken.starts_with("set up logs: CALLSHEET_LOG is not a valid filter: "),
            "{broken}"
        );
        assert_eq!("json".parse::<LogFormat>().ok(), Some(LogFormat::Json));
        assert_eq!("text".parse::<LogFormat>().ok(), Some(LogFormat::Text));
        assert!("xml".parse::<LogFormat>().is_err());
    }
}
