//! Tests of what a tool's own limits do to its calls: retries, circuit breaker, rate, size of results.

use std::sync::atomic::AtomicU32;

use futures::StreamExt as _;

use super::approvals::{pass, question};
use super::provider::{Reply, answer_with, calls_to};
use super::*;
use crate::telemetry::FeedItem;
use callsheet_tools::Question;
use callsheet_values::event::{Event, WaitingFor};
use callsheet_values::record::Record;
use callsheet_values::types::FailureKind;

/// Returns a tool that fails in `failures` attempts, each time with the error that `error` makes, and then works. The
/// counter counts attempts.
fn flaky(
    spec: ToolSpec,
    failures: u32,
    error: impl Fn() -> ToolError + Send + Sync + 'static,
) -> (Closure, Arc<AtomicU32>) {
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let tool = tool(spec, move |context| {
        let attempt = counted.fetch_add(1, Ordering::SeqCst) + 1;
        context.set(&format!("attempt {attempt}"), context.idempotency_key()).unwrap();
        std::future::ready(if attempt > failures { Ok("worked".into()) } else { Err(error()) })
    });
    (tool, attempts)
}

fn unlucky() -> ToolError {
    ToolError::new("no luck")
}

/// Returns the specification of a tool with effects.
fn effectful() -> ToolSpec {
    ToolSpec { effect: Default::default(), ..spec("flaky") }
}

/// Runs one call of the tool `flaky`.
async fn run_once(flaky: Closure) -> (RunReport, Host) {
    let provider = Provider::calling(&[("flaky", "{}")]).await;
    let host = host(&provider, registry([flaky]), |_| ()).await;
    let report = session(&host).await.run("go").await.unwrap();
    (report, host)
}

#[tokio::test]
async fn a_failed_call_is_tried_again_as_the_same_call() {
    let (tool, attempts) = flaky(effectful().idempotent().retries(2), 2, unlucky);
    let (report, host) = run_once(tool).await;
    assert_eq!(results(&report)["flaky"], ("success", "worked"));
    assert_eq!(attempts.load(Ordering::SeqCst), 3);
    let shared = Arc::clone(&host.inner.host_ref.shared);
    let stored = shared.journal.list(&SessionQuery::default()).await.unwrap();
    let entries = shared.journal.read(&stored[0].id, Seq(0)).await.unwrap();
    let (mut keys, mut ends) = (Vec::new(), Vec::new());
    for entry in &entries {
        if let Record::CallIntended { idempotency_key, .. } = &entry.record {
            keys.push(idempotency_key);
        } else if let Record::CallEnded { outcome, writes, .. } = &entry.record {
            // The writes of a failed attempt are lost, as with every failed call.
            let names: Vec<_> = writes.0.keys().map(|name| name.to_string()).collect();
            ends.push((outcome.attempts.map(|attempts| attempts.get()), names));
        }
    }
    assert_eq!(keys.len(), 1, "one intent");
    assert_eq!(ends, [(Some(3), vec!["attempt 3".to_owned()])]);
    #[cfg(feature = "prometheus")]
    {
        let page = host.telemetry().render();
        assert!(page.contains("callsheet_tool_attempts_total{tool=\"flaky\"} 3\n"), "{page}");
    }
    nothing_left(&host).await;
}

#[tokio::test]
async fn only_calls_that_may_be_sent_twice_are_tried_again() {
    let unsent = || unlucky().with_kind(FailureKind::NotSent);
    let late = || unlucky().retry_after(Duration::from_secs(3600));
    let twice = effectful().idempotent().retries(2);
    for (why, (tool, attempts), expected) in [
        ("it has effects", flaky(effectful().retries(2), 1, unlucky), (1, "Error: no luck")),
        ("it was not sent", flaky(effectful().retries(2), 1, unsent), (2, "worked")),
        ("it is pure", flaky(spec("flaky").pure().retries(2), 1, unlucky), (2, "worked")),
        (
            "it always fails",
            flaky(twice.clone(), 9, unlucky),
            (3, "Error: no luck (after 3 attempts)"),
        ),
        (
            "the error is permanent",
            flaky(twice.clone(), 1, || unlucky().permanent()),
            (1, "Error: no luck"),
        ),
        (
            "there is no time",
            flaky(twice.timeout(Duration::from_secs(60)), 1, late),
            (1, "Error: no luck"),
        ),
    ] {
        let (report, host) = run_once(tool).await;
        let found = (attempts.load(Ordering::SeqCst), results(&report)["flaky"].1);
        assert_eq!(found, expected, "{why}");
        nothing_left(&host).await;
    }
}

#[tokio::test]
async fn a_stopped_run_does_not_wait_for_the_next_attempt() {
    let long = || unlucky().retry_after(Duration::from_secs(3600));
    let (tool, attempts) = flaky(effectful().idempotent().retries(1), 9, long);
    let provider = Provider::calling(&[("flaky", "{}")]).await;
    let host = host(&provider, registry([tool]), |config| {
        config.agents.get_mut("default").unwrap().limits.tool_timeout = None;
    })
    .await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the tool has failed", || attempts.load(Ordering::SeqCst) == 1).await;
    session.stop(callsheet_values::record::StopMode::Now).await.unwrap();
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report)["flaky"].0, "cancelled");
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    nothing_left(&host).await;
}

#[cfg(feature = "prometheus")]
#[tokio::test]
async fn an_open_breaker_answers_at_once_and_a_probe_closes_it() {
    let open_for = Duration::from_millis(300);
    let (tool, attempts) =
        flaky(spec("flaky").pure().repeatable().breaker(2, open_for), 2, unlucky);
    let calls = &[("flaky", "{}"); 4];
    let provider = Provider::new(move |n, _| {
        Reply::Sse(if n % 2 == 0 { calls_to(calls) } else { answer_with("done") })
    })
    .await;
    let host = host(&provider, registry([tool]), |_| ()).await;
    let session = session(&host).await;
    let report = session.run("go").await.unwrap();
    let calls: Vec<_> = report.calls.iter().map(|call| (&*call.result, &call.metadata)).collect();
    assert_eq!((calls[0].0, calls[1].0), ("Error: no luck", "Error: no luck"));
    for (result, metadata) in &calls[2..] {
        let refused =
            "Error: flaky is not available, and was not called: its last 2 calls failed; ";
        assert!(result.starts_with(refused), "{result}");
        assert_eq!(metadata["kind"], "not_sent");
    }
    assert_eq!(attempts.load(Ordering::SeqCst), 2);
    let state = || {
        host.update_metrics();
        let page = host.telemetry().render();
        let line = page.lines().find(|line| line.starts_with("callsheet_tool_breaker_state{"));
        line.unwrap().to_owned()
    };
    sleep(open_for).await;
    assert_eq!(state(), "callsheet_tool_breaker_state{tool=\"flaky\"} 1");
    let report = session.run("go").await.unwrap();
    assert!(report.calls.iter().all(|call| call.result == "worked"), "{report:?}");
    assert_eq!(state(), "callsheet_tool_breaker_state{tool=\"flaky\"} 0");
    nothing_left(&host).await;
}

#[tokio::test]
async fn an_open_breaker_ends_calls_that_could_be_tried_again() {
    // The first call opens the breaker, and so has no second attempt. The second call is refused.
    let tool = spec("flaky").pure().repeatable().retries(2).breaker(1, Duration::from_secs(3600));
    let (tool, attempts) = flaky(tool, 9, unlucky);
    let provider = Provider::calling(&[("flaky", "{}"); 2]).await;
    let host = host(&provider, registry([tool]), |_| ()).await;
    let report = session(&host).await.run("go").await.unwrap();
    let found: Vec<_> = report.calls.iter().map(|call| &*call.result).collect();
    assert_eq!(found[0], "Error: no luck");
    assert!(found[1].starts_with("Error: flaky is not available, and was not called"), "{found:?}");
    assert!(!found[1].contains("attempts"), "{found:?}");
    assert_eq!(attempts.load(Ordering::SeqCst), 1);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_stopped_run_does_not_open_the_breaker_of_its_tool() {
    let attempts = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&attempts);
    let spec = spec("flaky").pure().repeatable().breaker(1, Duration::from_secs(3600));
    let tool = tool(spec, move |context| {
        let is_first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            if is_first {
                context.cancelled().await;
                return Err(unlucky());
            }
            Ok("worked".into())
        }
    });
    let provider = Provider::new(|n, _| {
        Reply::Sse(if n < 2 { calls_to(&[("flaky", "{}")]) } else { answer_with("done") })
    })
    .await;
    let host = host(&provider, registry([tool]), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the tool runs", || attempts.load(Ordering::SeqCst) == 1).await;
    session.stop(callsheet_values::record::StopMode::Now).await.unwrap();
    timeout(SOON, run.report).await.unwrap().unwrap();
    let report = session.run("go").await.unwrap();
    assert_eq!(results(&report)["flaky"], ("success", "worked"));
    nothing_left(&host).await;
}

#[tokio::test]
async fn the_time_of_a_question_of_a_stopped_run_does_not_open_the_breaker_of_its_tool() {
    let hour = Duration::from_secs(3600);
    let ask = tool(spec("ask").breaker(1, hour), |context| async move {
        let question = Question::url("Sign in.", "https://example.com/in");
        Ok(format!("{:?}", context.ask(question).await?).into())
    });
    let provider = Provider::calling(&[("ask", "{}")]).await;
    let host = host(&provider, registry([ask]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    question(&mut run.events).await;
    // The timeout of a tool is 30 s.
    pass(hour).await;
    session.stop(callsheet_values::record::StopMode::Now).await.unwrap();
    timeout(SOON, run.report).await.unwrap().unwrap();
    nothing_left(&host).await;
    let states = host.inner.host_ref.shared.catalog.tool_limiters.breaker_states();
    assert_eq!(states, [("ask".to_owned(), BreakerState::Closed)]);
}

#[tokio::test]
async fn a_call_that_waits_for_its_rate_says_so() {
    let tool = tool(spec("flaky").pure().repeatable().rate("2/s".parse().unwrap()), |_| {
        std::future::ready(Ok("worked".into()))
    });
    let provider = Provider::calling(&[("flaky", "{}"); 3]).await;
    let host = host(&provider, registry([tool]), |config| {
        let agent = config.agents.get_mut("default").unwrap();
        agent.execution = callsheet_values::config::Execution::Parallel { max: 8 };
    })
    .await;
    let mut run = session(&host).await.start_run("go").await.unwrap();
    let mut waits = 0;
    while let Some(item) = run.events.next().await {
        let FeedItem::Event(published) = item else { continue };
        let for_rate =
            matches!(published.event, Event::CallWaiting { waiting_for: WaitingFor::Rate, .. });
        waits += usize::from(for_rate);
        if matches!(published.event, Event::RunEnded { .. }) {
            break;
        }
    }
    assert!(waits >= 1, "no event says that a call waits for its rate");
    let report = run.report.await.unwrap();
    assert!(report.calls.iter().all(|call| call.result == "worked"));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_tool_has_its_own_limit_of_what_the_model_sees() {
    let long = "x".repeat(100);
    let tool = tool(spec("flaky").pure().max_result_bytes(10), move |_| {
        std::future::ready(Ok(long.as_str().into()))
    });
    let provider = Provider::calling(&[("flaky", "{}")]).await;
    let host = host(&provider, registry([tool]), |_| ()).await;
    let report = session(&host).await.run("go").await.unwrap();
    assert_eq!(results(&report)["flaky"].1.len(), 100, "the report has all of it");
    let sent = &provider.requests()[1]["messages"];
    let last = sent.as_array().unwrap().last().unwrap();
    let cut =
        "xxxxxxx\n[90 of 100 bytes are left out here; the whole result is $VAR_REF{{t1a1c0}}]\nxxx";
    assert_eq!(last["content"], cut);
    // The session's history is the same after a restart.
    replays::all(&host);
    nothing_left(&host).await;
}
