//! Checks the metrics page, the rules and the configuration with promtool, and the alerts with
//! `tests/alerts.yml`.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use callsheet::event::{ArgumentsAnomaly, CallLabel, Event, PublishedEvent, RunStats, TurnSummary};
use callsheet::runtime::BreakerState;
use callsheet::telemetry::metric_table;
use callsheet::telemetry::{Metrics, MetricsOptions, Telemetry, Traces, histogram_bounds};
use callsheet::types::{
    CallKey, ContextOverflow, HookPoint, Metadata, ProviderError, ProviderErrorKind, ResultNotes,
    RunEnd, RunError, RunId, SessionId, ToolCall, ToolOutcome, ToolResult, Usage,
};
use metrics::Recorder;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};

/// Records the metrics that no event feeds.
fn record_without_events(telemetry: &Telemetry) {
    let metrics = telemetry.metrics();
    metrics.model("main").queue_wait(Duration::from_secs(1));
    metrics.tool_breaker("clock", BreakerState::Open);
    metrics.mcp_server("files", "up", 1);
    metrics.mcp_operation("tools/call", Some("timeout"), Duration::from_secs(1));
    metrics.mcp_limit_reached("files", "line");
    metrics.console_measured(3, &[Duration::from_millis(40)]);
    metrics.hook_answered("guard", HookPoint::BeforeCall, "allow", Duration::from_secs(1));
    metrics.hook_event_lost("watch");
}

#[test]
fn promtool_accepts_the_metrics_page() {
    let telemetry = Telemetry::new(&["clock".to_owned()]);
    events().into_iter().for_each(|event| telemetry.observe(&published(event)));
    record_without_events(&telemetry);
    let page = telemetry.render();
    for metric in metric_table::ALL {
        let head = format!("# TYPE {} ", metric.name);
        assert!(page.contains(&head), "{} is not checked", metric.name);
    }
    promtool(&["check", "metrics"], &page);
}

#[test]
fn promtool_accepts_the_labelled_metrics_of_two_hosts_in_one_recorder() {
    let builder = histogram_bounds().fold(PrometheusBuilder::new(), |builder, (name, bounds)| {
        builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds).unwrap()
    });
    let recorder = builder.build_recorder();
    let page = recorder.handle();
    let recorder: Arc<dyn Recorder + Send + Sync> = Arc::new(recorder);
    for (name, recorder) in [("eu-1", Some(&recorder)), ("eu-2", Some(&recorder)), ("us-1", None)] {
        let labels = BTreeMap::from([("host".to_owned(), name.to_owned())]);
        let options = MetricsOptions { recorder: recorder.cloned(), labels };
        options.check().unwrap();
        let tools = ["clock".to_owned()];
        let traces = |_: &Metrics| Traces::default();
        let telemetry = Telemetry::with(&tools, &options, traces, Default::default());
        events().into_iter().for_each(|event| telemetry.observe(&published(event)));
        record_without_events(&telemetry);
        if let Some(own_page) = telemetry.page() {
            promtool(&["check", "metrics"], &own_page);
        }
    }
    let page = page.render();
    for metric in metric_table::ALL {
        let head = format!("# TYPE {} ", metric.name);
        assert_eq!(page.matches(&head).count(), 1, "{}", metric.name);
    }
    assert!(page.contains("host=\"eu-1\"") && page.contains("host=\"eu-2\""));
    promtool(&["check", "metrics"], &page);
}

#[test]
fn promtool_accepts_the_rules_and_the_configuration() {
    promtool(&["check", "rules", &path("dashboards/callsheet.rules.yml")], "");
    promtool(&["check", "config", &path("dashboards/prometheus.yml")], "");
    // The files that it names are in the container.
    promtool(&["check", "config", "--syntax-only", &path("deploy/prometheus.yml")], "");
}

#[test]
fn alerts_fire_clear_and_stay_silent() {
    promtool(&["test", "rules", &path("tests/alerts.yml")], "");
}

fn path(file: &str) -> String {
    format!("{}/{file}", env!("CARGO_MANIFEST_DIR"))
}

/// Fails if promtool reports a problem. Without promtool the check is skipped, unless `CI` is true.
fn promtool(arguments: &[&str], input: &str) {
    let child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            let ci = std::env::var("CI").is_ok_and(|value| value == "true");
            assert!(!ci, "promtool does not start: {error}");
            eprintln!("skipped: promtool does not start: {error}");
            return;
        }
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(stderr, "");
}

fn published(event: Event) -> PublishedEvent {
    PublishedEvent {
        id: None,
        stream_text: callsheet::event::EventStreamText::default(),
        session: SessionId::parse("s1").unwrap(),
        run: RunId("run_1".into()),
        turn: 1,
        timestamp_ms: 0,
        event,
    }
}

/// Events that fill every metric with labels. The other metrics are on the page from the start.
fn events() -> Vec<Event> {
    let key = CallKey { turn: 1, attempt: 1, index: 0 };
    let call = CallLabel { key, provider_id: None, name: "clock".into() };
    let second = Duration::from_secs(1);
    let mut overflow = ProviderError::new(ProviderErrorKind::Status, "prompt is too long");
    overflow.overflow = Some(ContextOverflow::default());
    let attempt = |error| Event::AttemptEnded {
        model: "org/model-1:latest \"quoted\"".into(),
        streamed: true,
        duration: second,
        first_chunk: Some(second),
        usage: Usage::default().with(|usage| (usage.input_tokens, usage.output_tokens) = (5, 6)),
        finish_reason: None,
        error,
    };
    let run = |end, error| Event::RunEnded {
        agent: "default".into(),
        metadata: Metadata::default(),
        end,
        text: String::new(),
        output: None,
        error,
        stats: Box::new(RunStats::default()),
        finish_reason: None,
    };
    let failed = serde_json::json!({ "code": "provider_error", "message": "it broke" });
    let failed: RunError = serde_json::from_value(failed).unwrap();
    let result = ToolResult {
        call: ToolCall {
            key,
            id: "call_0_0".into(),
            provider_id: None,
            name: "clock".into(),
            arguments: serde_json::json!({}).into(),
            raw: None,
            indirect: false,
        },
        outcome: ToolOutcome::ok("noon"),
        notes: ResultNotes::default(),
        started: Some(second),
        wait: second,
        duration: second,
        writes: callsheet::types::WriteSet::default(),
    };
    vec![
        Event::CallStarted {
            call: call.clone(),
            arguments: std::sync::Arc::default(),
            input_summary: "{}".into(),
            early: false,
            waited: second,
            queued: Some(second),
            known_calls: 1,
        },
        Event::ArgumentsAnomalyFound {
            call,
            id: "1".into(),
            anomaly: ArgumentsAnomaly::Invalid,
            raw: "[".into(),
        },
        Event::ArgumentsLost { model: "m".into(), reason: "they belong to no call".into() },
        Event::CallEnded { result: Box::new(result), parallel: false, early: false },
        attempt(None),
        attempt(Some(Box::new(overflow))),
        attempt(Some(Box::new(ProviderError::new(ProviderErrorKind::Timeout, "nothing came")))),
        Event::LimitReached {
            limit: "max_turns".into(),
            value: 11,
            maximum: 10,
            action: "none".into(),
            reason: None,
        },
        Event::TurnEnded { summary: Box::new(TurnSummary::default()) },
        run(RunEnd::Answered, None),
        run(RunEnd::Failed, Some(failed)),
    ]
}
