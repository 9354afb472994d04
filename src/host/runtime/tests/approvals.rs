//! Tests of approvals while time passes and actors die.

use futures::{FutureExt as _, StreamExt as _};

use super::super::publish::SUBSCRIBER_EVENTS_MAX;
use super::engine::Engine;
use super::provider::{Reply, answer_with, calls_to, text};
use super::recovery::{ACCUMULATOR, SUPERVISOR, actors, kill};
use super::*;
use crate::journal::JournalEntry;
use crate::telemetry::{FeedItem, Subscription};
use callsheet_machines::turn::{ApprovalDecision, ApprovalError};
use callsheet_values::config::ApprovalPolicy;
use callsheet_values::event::{ApprovalRequest, Event};
use callsheet_values::record::Record;
use callsheet_values::types::{ApprovalVerdict, CallKey, Execution, RunEnd};

const HOUR: Duration = Duration::from_secs(60 * 60);

/// Returns the specification of a tool with effects that needs approval.
fn paying(approval: ApprovalPolicy) -> ToolSpec {
    ToolSpec { effect: Default::default(), ..spec("pay") }.approval(approval)
}

/// Waits for the next approval request.
pub(super) async fn question(events: &mut Subscription) -> ApprovalRequest {
    let request = timeout(SOON, async {
        while let Some(delivery) = events.next().await {
            let FeedItem::Event(published) = delivery else { panic!("too slow") };
            if let Event::ApprovalAsked { request } = &published.event {
                return ApprovalRequest::clone(request);
            }
        }
        panic!("nothing was asked");
    });
    request.await.expect("it is asked soon")
}

/// Waits until the snapshot holds the approval request after the actors were replaced.
async fn standing(session: &SessionHandle) {
    let stands = timeout(SOON, async {
        loop {
            let current = session.snapshot().await.unwrap().current_run.expect("a run goes on");
            if current.approvals.len() == 1 {
                return;
            }
            tokio::task::yield_now().await;
        }
    });
    stands.await.expect("it stands soon");
}

/// Returns the number of approval requests that can be read now.
fn questions(events: &mut Subscription) -> usize {
    let mut request = 0;
    while let Some(Some(FeedItem::Event(published))) = events.next().now_or_never() {
        request += usize::from(matches!(published.event, Event::ApprovalAsked { .. }));
    }
    request
}

pub(super) async fn decide(
    session: &SessionHandle,
    request: &ApprovalRequest,
    verdict: ApprovalVerdict,
) {
    let arguments_sha256 = request.arguments_sha256.clone();
    let phase = Some(request.phase);
    let decision = ApprovalDecision {
        phase,
        verdict,
        message: None,
        arguments_sha256,
        content: None,
        author: None,
    };
    session.decide(request.call.key, decision).await.expect("it counts");
}

/// Advances the host's clock.
pub(super) async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn clocks_stop_while_a_turn_waits_only_for_peoples() {
    let provider = Provider::calling(&[("pay", "{}")]).await;
    let pay = tool(paying(ApprovalPolicy::BEFORE.union(ApprovalPolicy::AFTER)), |_| async {
        Ok("paid".into())
    });
    let host = host(&provider, registry([pay]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    for _ in 0..2 {
        let request = question(&mut run.events).await;
        pass(20 * HOUR).await;
        decide(&session, &request, ApprovalVerdict::Approved).await;
    }
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(results(&report)["pay"], ("success", "paid"));
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_decision_about_a_past_turn_reads_the_records_of_that_turn_only() {
    let provider = Provider::calling(&[("pay", "{}")]).await;
    let pay = tool(paying(ApprovalPolicy::BEFORE), |_| async { Ok("paid".into()) });
    let engine = Engine::new(|inner, batch| inner.append(batch));
    let journal = Arc::clone(&engine) as Arc<dyn Journal>;
    let host = start_on(setup(&provider, registry([pay]), |_| ()), journal).await.unwrap();
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let request = question(&mut run.events).await;
    decide(&session, &request, ApprovalVerdict::Approved).await;
    timeout(SOON, run.report).await.unwrap().unwrap();
    // The same decision again is no error.
    decide(&session, &request, ApprovalVerdict::Approved).await;
    let decision = ApprovalDecision {
        phase: Some(request.phase),
        verdict: ApprovalVerdict::Rejected,
        message: None,
        arguments_sha256: request.arguments_sha256.clone(),
        content: None,
        author: None,
    };
    let decided = |key| timeout(SOON, session.decide(key, decision.clone()));
    let other = decided(request.call.key).await.unwrap();
    assert!(matches!(other, Err(HostError::Approval(_))), "{other:?}");
    engine.hold_reads(Some(session.id().clone()));
    let wrong = decided(CallKey { turn: 99, ..request.call.key }).await.expect("nothing is read");
    assert!(matches!(wrong, Err(HostError::Approval(ApprovalError::NoSuchApproval))), "{wrong:?}");
    engine.hold_reads(None);
    nothing_left(&host).await;
}

#[tokio::test]
async fn an_approval_expires_after_a_day() {
    let provider = Provider::calling(&[("pay", "{}")]).await;
    let pay = tool(paying(ApprovalPolicy::BEFORE), |_| async { Ok("paid".into()) });
    let host = host(&provider, registry([pay]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    question(&mut run.events).await;
    pass(24 * HOUR).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(report.calls[0].approval, Some(ApprovalVerdict::Expired));
}

#[tokio::test]
async fn an_approval_with_an_unrepresentable_timeout_never_expires() {
    let provider = Provider::calling(&[("pay", "{}")]).await;
    let ever = Duration::from_secs(u64::MAX / 2);
    let patient =
        ToolSpec { approval_timeout: ever, ..paying(ApprovalPolicy::BEFORE).timeout(ever) };
    let pay = tool(patient, |_| async { Ok("paid".into()) });
    let host = host(&provider, registry([pay]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let request = question(&mut run.events).await;
    decide(&session, &request, ApprovalVerdict::Approved).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report)["pay"], ("success", "paid"));
}

#[tokio::test]
async fn clocks_run_while_a_tool_runs() {
    let provider = Provider::calling(&[("hang", "{}"), ("pay", "{}")]).await;
    let pay = tool(paying(ApprovalPolicy::BEFORE), |_| async { Ok("paid".into()) });
    let hang = tool(spec("hang"), |_| std::future::pending());
    let host = host(&provider, registry([pay, hang]), |config| {
        let agent = config.agents.get_mut("default").unwrap();
        agent.execution = Execution::Parallel { max: 4 };
        agent.limits.tool_timeout = None;
        agent.limits.cancel_grace = Duration::from_millis(20);
    })
    .await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    question(&mut run.events).await;
    pass(Duration::from_secs(31 * 60)).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::TimedOut);
    let outcomes = results(&report);
    assert_eq!(outcomes["hang"], ("cancelled", "Error: cancelled while running"));
    assert_eq!(outcomes["pay"], ("cancelled", "Error: not started: the run was ended before"));
    nothing_left(&host).await;
}

#[tokio::test]
async fn an_approval_request_survives_its_actors_and_does_not_count_as_run_time() {
    let provider = Provider::calling(&[("pay", "{}")]).await;
    let pay = tool(paying(ApprovalPolicy::BEFORE), |_| async { Ok("paid".into()) });
    let host = host(&provider, registry([pay]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let request = question(&mut run.events).await;
    pass(20 * HOUR).await;
    let before = actors(&session).await;
    before[ACCUMULATOR].kill();
    let replaced = timeout(SOON, async {
        let mut is_replaced = false;
        while !is_replaced {
            is_replaced = actors(&session).await[ACCUMULATOR] != before[ACCUMULATOR];
            // A snapshot waits for the report of the new accumulator.
            assert_eq!(session.approvals().await.unwrap().len(), 1);
        }
    });
    replaced.await.expect("it is replaced soon");
    decide(&session, &request, ApprovalVerdict::Approved).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(report.run_end, RunEnd::Answered);
    assert_eq!(results(&report)["pay"], ("success", "paid"));
    assert_eq!(questions(&mut run.events), 0, "the request is not repeated");
}

#[tokio::test]
async fn a_decision_survives_its_actors() {
    let provider = Provider::calling(&[("pay", "{}")]).await;
    let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let pay = tool(paying(ApprovalPolicy::BEFORE).idempotent(), {
        let begun = Arc::clone(&begun);
        move |_| {
            let first = begun.fetch_add(1, Ordering::SeqCst) == 0;
            async move { if first { std::future::pending().await } else { Ok("paid".into()) } }
        }
    });
    let host = host(&provider, registry([pay]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let request = question(&mut run.events).await;
    decide(&session, &request, ApprovalVerdict::Approved).await;
    until("the call runs", || begun.load(Ordering::SeqCst) == 1).await;
    kill(&session, SUPERVISOR).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report)["pay"], ("success", "paid"));
    assert_eq!(report.calls[0].approval, Some(ApprovalVerdict::Approved));
    assert_eq!(questions(&mut run.events), 0, "the request is not repeated");
}

#[tokio::test]
async fn a_decision_during_an_actors_death_is_not_lost() {
    let provider = Provider::calling(&[("pay", "{}")]).await;
    let pay = tool(paying(ApprovalPolicy::BEFORE), |_| async { Ok("paid".into()) });
    let host = host(&provider, registry([pay]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let request = question(&mut run.events).await;
    actors(&session).await[ACCUMULATOR].kill();
    decide(&session, &request, ApprovalVerdict::Approved).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report)["pay"], ("success", "paid"));
}

#[tokio::test]
async fn a_rejected_result_is_only_in_the_journal() {
    let provider = Provider::calling(&[("pay", "{}")]).await;
    let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let pay = tool(paying(ApprovalPolicy::AFTER), {
        let begun = Arc::clone(&begun);
        move |context| {
            begun.fetch_add(1, Ordering::SeqCst);
            context.set("paid", true).expect("it is small");
            async { Ok("secret".into()) }
        }
    });
    let journal = Arc::new(crate::journal::MemoryJournal::new());
    let setup = setup(&provider, registry([pay]), |_| ());
    let host = start_on(setup, Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    let request = question(&mut run.events).await;
    assert_eq!(request.output_summary.as_deref(), Some("secret"));
    // Its actor dies. The call does not run again, and the approval request stays.
    kill(&session, ACCUMULATOR).await;
    standing(&session).await;
    decide(&session, &request, ApprovalVerdict::Rejected).await;
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(begun.load(Ordering::SeqCst), 1);
    assert_eq!(report.calls[0].status.as_str(), "refused");
    let published = serde_json::to_string(&(&report, session.snapshot().await.unwrap())).unwrap();
    assert!(!published.contains("secret"), "{published}");
    for request in provider.requests() {
        assert!(!request.to_string().contains("secret"), "{request}");
    }
    let entries = super::engine::entries(&*journal, session.id());
    let reported = entries.iter().find_map(|JournalEntry { record, .. }| {
        let Record::CallReported { outcome, .. } = record else { return None };
        Some(&*outcome.content)
    });
    assert_eq!(reported, Some("secret"));
    assert!(session.snapshot().await.unwrap().variables.get("paid").is_none());
}

#[tokio::test]
async fn a_shutdown_does_not_wait_for_approvals() {
    let provider = Provider::calling(&[("pay", "{}")]).await;
    let pay = tool(paying(ApprovalPolicy::BEFORE), |_| async { Ok("paid".into()) });
    let patient = |config: &mut Config| config.host.shutdown_grace = HOUR;
    let host = host(&provider, registry([pay]), patient).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    question(&mut run.events).await;
    timeout(SOON, host.shutdown()).await.expect("the shutdown does not wait");
    let events = async {
        while run.next_event().await?.is_some() {}
        Ok::<(), HostError>(())
    };
    assert_eq!(timeout(SOON, events).await.unwrap(), Err(HostError::ShuttingDown));
    let report = timeout(SOON, run.report).await.unwrap();
    assert_eq!(report.unwrap_err(), HostError::ShuttingDown, "the run has not ended");
}

#[tokio::test]
async fn a_call_is_rejected_at_once_if_nobody_can_be_asked() {
    let provider = Provider::new(move |_, request| {
        let messages = request["messages"].as_array().unwrap();
        Reply::Sse(match messages.last().unwrap()["role"].as_str() {
            Some("tool") => answer_with("done"),
            _ => calls_to(&[("pay", "{}")]),
        })
    })
    .await;
    let pay = tool(paying(ApprovalPolicy::BEFORE), |_| async { Ok("paid".into()) });
    let host = host(&provider, registry([pay]), |_| ()).await;
    let session = session(&host).await;
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    let (status, text) = results(&report)["pay"];
    assert_eq!(status, "refused");
    assert!(text.contains("nobody can be asked"), "{text}");
    assert!(!text.contains("approval ="), "the model can set no key: {text}");

    // A subscriber can be asked.
    let mut events = session.subscribe().await.unwrap();
    let (report, ()) = tokio::join!(session.run("go"), async {
        let request = question(&mut events).await;
        decide(&session, &request, ApprovalVerdict::Approved).await;
    });
    assert_eq!(results(&report.unwrap())["pay"], ("success", "paid"));
    drop(events);

    // So can a program that looks for pending approvals.
    assert!(session.approvals().await.unwrap().is_empty());
    let (report, ()) = tokio::join!(session.run("go"), async {
        standing(&session).await;
        session.approvals().await.unwrap().remove(0).approve().await.unwrap();
    });
    assert_eq!(results(&report.unwrap())["pay"], ("success", "paid"));
    nothing_left(&host).await;
}

/// The reader of a run falls behind before an approval is asked for. The call waits for it, and the reader has
/// every event, also if it often stops waiting.
#[tokio::test]
async fn a_reader_that_is_behind_can_be_asked() {
    let provider = Provider::new(move |n, _| match n {
        0 => {
            let mut response = vec![text("a "); 3 * SUBSCRIBER_EVENTS_MAX];
            response.extend(calls_to(&[("pay", "{}")]));
            Reply::Sse(response)
        }
        _ => Reply::Sse(answer_with("done")),
    })
    .await;
    let pay = tool(paying(ApprovalPolicy::BEFORE), |_| async { Ok("paid".into()) });
    let host = host(&provider, registry([pay]), |_| ()).await;
    let session = session(&host).await;
    let mut run = session.start_run("go").await.unwrap();
    standing(&session).await;
    let mut seen = String::new();
    let all_events = async {
        loop {
            let Some(event) = run.next_event().now_or_never() else {
                tokio::task::yield_now().await;
                continue;
            };
            match event.unwrap() {
                Some(RunEvent::Text(text)) => seen.push_str(&text),
                Some(RunEvent::ApprovalRequested(question)) => question.approve().await.unwrap(),
                Some(_) => {}
                None => break,
            }
        }
    };
    timeout(SOON, all_events).await.expect("the run ends");
    assert_eq!(seen, "a ".repeat(3 * SUBSCRIBER_EVENTS_MAX) + "done");
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert_eq!(results(&report)["pay"], ("success", "paid"));
    nothing_left(&host).await;
}
