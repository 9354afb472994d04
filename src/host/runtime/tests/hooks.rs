//! Tests of hooks: their decisions outlive the death of actors and of the host.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;

use super::abandoned::{failing, run_again};
use super::provider::{Reply, answer_with, calls_to};
use super::recovery::{ACCUMULATOR, kill};
use super::*;
use crate::telemetry::LiveHook;
use callsheet_tools::{Hook, HookAnswer, HookError, HookInput, HookRule, RegisteredHook};
use callsheet_values::event::{Event, PublishedEvent};
use callsheet_values::record::Record;
use callsheet_values::types::{HookPoint, RunEnd};

/// A hook that counts its questions and waits for a permit before each answer.
struct Gated {
    asked: AtomicUsize,
    gate: tokio::sync::Semaphore,
    answer: HookAnswer,
}

impl Gated {
    fn new(answer: HookAnswer) -> Arc<Self> {
        Arc::new(Self { asked: AtomicUsize::new(0), gate: tokio::sync::Semaphore::new(0), answer })
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

struct Shared(Arc<Gated>);

#[async_trait]
impl Hook for Shared {
    async fn answer(&self, _: &HookInput) -> Result<HookAnswer, HookError> {
        self.0.asked.fetch_add(1, Ordering::SeqCst);
        self.0.gate.acquire().await.map_err(HookError::new)?.forget();
        Ok(self.0.answer.clone())
    }
}

/// Returns a registry with a tool that has effects, and a hook; and the number of times that the tool ran.
fn hooked(on: HookPoint, hook: &Arc<Gated>) -> (ToolRegistry, Arc<AtomicUsize>) {
    let ran = Arc::new(AtomicUsize::new(0));
    let pay = tool(ToolSpec { effect: Default::default(), ..spec("pay") }, {
        let ran = Arc::clone(&ran);
        move |context| {
            ran.fetch_add(1, Ordering::SeqCst);
            let arguments = context.arguments().to_string();
            async move { Ok(arguments.into()) }
        }
    });
    let mut registry = registry([pay]);
    let rule = HookRule::new("gated", on).timeout(SOON);
    registry.add_hook(RegisteredHook { rule, hook: Arc::new(Shared(Arc::clone(hook))) });
    (registry, ran)
}

async fn paying() -> Provider {
    Provider::new(|_, request| {
        let messages = request["messages"].as_array().unwrap();
        Reply::Sse(match messages.last().unwrap()["role"].as_str() {
            Some("tool") => answer_with("done"),
            _ => calls_to(&[("pay", r#"{"n": 1}"#)]),
        })
    })
    .await
}

#[tokio::test]
async fn hooks_are_asked_again_after_a_death_and_the_call_runs_once() {
    for on in [HookPoint::BeforeCall, HookPoint::AfterCall] {
        let answer = match on {
            HookPoint::BeforeCall => HookAnswer::allow().with_arguments(json!({"n": 2})),
            _ => HookAnswer::allow().with_result("other"),
        };
        let (provider, hook) = (paying().await, Gated::new(answer));
        let (registry, ran) = hooked(on, &hook);
        let host = host(&provider, registry, |_| ()).await;
        let session = session(&host).await;
        let run = session.start_run("go").await.unwrap();
        until("the hook is asked", || hook.asked() == 1).await;
        kill(&session, ACCUMULATOR).await;
        until("the hook is asked again", || hook.asked() == 2).await;
        hook.gate.add_permits(1);
        let report = timeout(SOON, run.report).await.unwrap().unwrap();
        let expected = if on == HookPoint::BeforeCall { r#"{"n":2}"# } else { "other" };
        assert_eq!(results(&report)["pay"], ("success", expected));
        assert_eq!((ran.load(Ordering::SeqCst), hook.asked()), (1, 2));
        nothing_left(&host).await;
    }
}

#[tokio::test]
async fn hooks_are_asked_again_after_the_end_of_a_host() {
    for on in [HookPoint::BeforeCall, HookPoint::AfterCall] {
        let (provider, hook) = (paying().await, Gated::new(HookAnswer::refuse("no")));
        let journal = Arc::new(crate::journal::MemoryJournal::new());
        let (registry, ran) = hooked(on, &hook);
        let first =
            start_on(setup(&provider, registry, |_| ()), Arc::clone(&journal) as Arc<dyn Journal>);
        let first = first.await.unwrap();
        let session = session(&first).await;
        let run = session.start_run("go").await.unwrap();
        until("the hook is asked", || hook.asked() == 1).await;
        let id = session.id().clone();
        drop((run, session));
        crash(first).await;
        let (registry, ran_again) = hooked(on, &hook);
        let setup = setup(&provider, registry, |_| ());
        let host = start_on(setup, Arc::clone(&journal) as Arc<dyn Journal>).await.unwrap();
        until("the hook is asked again", || hook.asked() == 2).await;
        hook.gate.add_permits(1);
        let session = host.session(&id);
        until("the run is over", || session.state() == SessionState::Idle).await;
        let entries = super::engine::entries(&*journal, &id);
        let ended = entries.iter().find_map(|entry| match &entry.record {
            Record::CallEnded { outcome, .. } => Some(outcome.status.as_str()),
            _ => None,
        });
        assert_eq!(ended, Some("refused"), "{on}");
        let runs = ran.load(Ordering::SeqCst) + ran_again.load(Ordering::SeqCst);
        assert_eq!(runs, usize::from(on == HookPoint::AfterCall), "{on}");
        nothing_left(&host).await;
    }
}

#[tokio::test]
async fn a_host_with_hooks_replays_its_sessions() {
    let hook = Gated::new(HookAnswer::ask().with_arguments(json!({"n": 3})));
    hook.gate.add_permits(9);
    let (provider, (registry, ran)) = (paying().await, hooked(HookPoint::BeforeCall, &hook));
    let host = host(&provider, registry, |_| ()).await;
    let session = session(&host).await;
    // No reader can approve, so the question of the hook is rejected.
    let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
    assert_eq!((report.run_end, ran.load(Ordering::SeqCst)), (RunEnd::Answered, 0));
    assert_eq!(results(&report)["pay"].0, "refused");
    nothing_left(&host).await;
}

#[tokio::test]
async fn hooks_about_requests_and_turns_leave_a_valid_journal() {
    for on in [HookPoint::BeforeRequest, HookPoint::AfterTurn] {
        for answer in [HookAnswer::allow(), HookAnswer::refuse("no")] {
            let is_refused = answer.verdict == callsheet_values::types::HookVerdict::Refuse;
            let hook = Gated::new(answer);
            hook.gate.add_permits(9);
            let (provider, (registry, _)) = (paying().await, hooked(on, &hook));
            let host = host(&provider, registry, |_| ()).await;
            let session = session(&host).await;
            let report = timeout(SOON, session.run("go")).await.unwrap().unwrap();
            let end = if is_refused { RunEnd::Refused } else { RunEnd::Answered };
            assert_eq!((report.run_end, report.error.is_some()), (end, is_refused), "{on}");
            nothing_left(&host).await;
        }
    }
}

/// Adds a message of a user at the end of each request.
struct Reminding;

#[async_trait]
impl Hook for Reminding {
    async fn answer(&self, input: &HookInput) -> Result<HookAnswer, HookError> {
        let messages = input.messages.as_deref().and_then(Value::as_array);
        let mut messages = messages.cloned().unwrap_or_default();
        messages.push(json!({"role": "user", "content": "Be careful."}));
        Ok(HookAnswer::allow().with_messages(messages.into()))
    }
}

#[tokio::test]
async fn a_call_by_hand_runs_once_although_a_message_follows_its_result() {
    let ran = Arc::new(AtomicUsize::new(0));
    let count = tool(spec("count"), {
        let ran = Arc::clone(&ran);
        move |_| {
            ran.fetch_add(1, Ordering::SeqCst);
            async { Ok("counted".into()) }
        }
    });
    let mut registry = registry([count]);
    let rule = HookRule::new("reminding", HookPoint::BeforeRequest);
    registry.add_hook(RegisteredHook { rule, hook: Arc::new(Reminding) });
    let provider = Provider::answering("no model is asked").await;
    let host = host(&provider, registry, |_| ()).await;
    let call = host.call_tool(None, "count", serde_json::Map::new(), false);
    let report = timeout(SOON, call).await.unwrap().unwrap();
    assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "counted"));
    assert_eq!((ran.load(Ordering::SeqCst), report.calls.len(), provider.count()), (1, 1, 0));
    nothing_left(&host).await;
}

/// Records how runs ended.
struct EndRecorder(Arc<Mutex<Vec<RunEnd>>>);

#[async_trait]
impl Hook for EndRecorder {
    async fn answer(&self, input: &HookInput) -> Result<HookAnswer, HookError> {
        self.0.lock().extend(input.run_end);
        Ok(HookAnswer::allow())
    }
}

#[tokio::test]
async fn hooks_are_not_notified_of_the_end_of_a_run_that_the_journal_has_lost() {
    let provider = Provider::answering("fine").await;
    let ends: Arc<Mutex<Vec<RunEnd>>> = Arc::default();
    let mut registry = ToolRegistry::new();
    let hook = Arc::new(EndRecorder(Arc::clone(&ends)));
    let rule = HookRule::new("recorder", HookPoint::RunEnd);
    registry.add_hook(RegisteredHook { rule, hook });
    let fails = Arc::new(AtomicBool::new(true));
    let engine = failing(&fails, |record| matches!(record, Record::RunEnded { .. }));
    let host = start_on(setup(&provider, registry, |_| ()), engine).await.unwrap();
    let session = session(&host).await;
    assert!(matches!(session.run("go").await, Err(HostError::Journal(_))));
    // The run gets another end before the next one starts.
    assert_eq!(run_again(&session).await.run_end, RunEnd::Answered);
    // The shutdown waits for the hooks.
    timeout(SOON, host.shutdown()).await.unwrap();
    let mut ends = std::mem::take(&mut *ends.lock());
    ends.sort();
    assert_eq!(ends, [RunEnd::Answered, RunEnd::Failed]);
}

/// A live hook that keeps what it receives, after a permit for each event.
struct Follower {
    received: Mutex<Vec<(PublishedEvent, u64)>>,
    gate: tokio::sync::Semaphore,
}

struct Following(Arc<Follower>);

#[async_trait]
impl LiveHook for Following {
    async fn receive(&self, event: &PublishedEvent, lost: u64) {
        self.0.gate.acquire().await.unwrap().forget();
        let count = {
            let mut received = self.0.received.lock();
            received.push((event.clone(), lost));
            received.len()
        };
        assert!(count != 1, "the hook panics at its first event");
    }
}

impl Follower {
    fn new(permits: usize) -> Arc<Self> {
        let gate = tokio::sync::Semaphore::new(permits);
        Arc::new(Self { received: Mutex::default(), gate })
    }

    fn has_run_end(&self) -> bool {
        let is_end = |event: &Event| matches!(event, Event::RunEnded { .. });
        self.received.lock().iter().any(|(event, _)| is_end(&event.event))
    }
}

async fn followed_host(provider: &Provider, follower: &Arc<Follower>) -> Host {
    let registry = registry([tool(spec("pay"), |_| async { Ok("paid".into()) })]);
    let mut setup = setup(provider, registry, |_| ());
    let hook: Arc<dyn LiveHook> = Arc::new(Following(Arc::clone(follower)));
    setup.live_hooks.0.push(("follower".to_owned(), hook));
    Host::start(setup).await.unwrap()
}

#[tokio::test]
async fn a_live_hook_follows_runs_that_no_client_watches_and_survives_its_panic() {
    let (provider, follower) = (paying().await, Follower::new(usize::MAX >> 4));
    let host = followed_host(&provider, &follower).await;
    let session = session(&host).await;
    session.run("go").await.unwrap();
    until("the hook has the end of the run", || follower.has_run_end()).await;
    let received = std::mem::take(&mut *follower.received.lock());
    assert!(received.iter().all(|(event, lost)| event.session == *session.id() && *lost == 0));
    let text: String =
        received.iter().filter_map(|(event, _)| event.event.text()).map(|(_, text)| text).collect();
    assert_eq!(text, "done");
    let has = |wanted: fn(&Event) -> bool| received.iter().any(|(event, _)| wanted(&event.event));
    assert!(has(|event| matches!(event, Event::CallDetected { .. })));
    assert!(has(|event| matches!(event, Event::CallEnded { .. })));
    nothing_left(&host).await;
}

#[cfg(feature = "prometheus")]
#[tokio::test]
async fn a_slow_live_hook_stops_no_run_and_is_told_what_it_has_lost() {
    let (provider, follower) = (paying().await, Follower::new(0));
    let host = followed_host(&provider, &follower).await;
    let session = session(&host).await;
    let lost = || {
        let page = host.telemetry().render();
        let line = page.lines().find(|line| line.starts_with("callsheet_hook_events_lost_total{"));
        line.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    while lost() < 10 {
        timeout(SOON, session.run("go")).await.unwrap().unwrap();
    }
    let all = lost();
    follower.gate.add_permits(usize::MAX >> 4);
    until("the hook has received its queue", || follower.received.lock().len() >= 1024).await;
    session.run("go").await.unwrap();
    until("the hook is told", || follower.received.lock().iter().any(|(_, lost)| *lost > 0)).await;
    let told: u64 = follower.received.lock().iter().map(|(_, lost)| lost).sum();
    assert_eq!(told, all);
    nothing_left(&host).await;
}
