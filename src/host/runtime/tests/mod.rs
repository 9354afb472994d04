//! Tests of the actors against a scripted provider on loopback.

mod abandoned;
mod approvals;
mod child_sessions;
mod client;
mod compactions;
mod deaths;
mod engine;
mod hooks;
mod host_events;
mod hostile;
mod inputs;
mod limits;
#[cfg(feature = "prometheus")]
mod prefixes;
mod provider;
mod questions;
mod random_trees;
mod recovery;
mod references;
mod replays;
mod retries;
mod runs;
mod several_hosts;
mod sleep;
mod stops;
mod survival;
mod tool_servers;
mod tools;
mod watching;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::journal::export::ChildSessions;
use crate::journal::{JournalFuture, SessionQuery, open_run_id, verify, verify_children};
use callsheet_tools::{ParsedSchema, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use callsheet_values::config::{BaseUrl, JournalEngine, ModelConfig, ToolPattern};
use callsheet_values::record::Seq;
use callsheet_values::types::SessionId;
use provider::Provider;

/// Time limit for an expected event.
const SOON: Duration = Duration::from_secs(20);

/// Spawns a task of a test.
#[expect(clippy::disallowed_methods, reason = "a test's task ends with its runtime")]
pub(super) fn spawn<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    tokio::spawn(future)
}

/// A deterministic random generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    fn pause(&mut self, max: u64) -> Duration {
        Duration::from_millis(self.below(max))
    }
}

/// Waits until a condition holds.
#[track_caller]
fn until(what: &str, is_so: impl Fn() -> bool) -> impl Future<Output = ()> {
    let what = what.to_owned();
    async move {
        let waited = timeout(SOON, async {
            while !is_so() {
                sleep(Duration::from_millis(1)).await;
            }
        });
        assert!(waited.await.is_ok(), "waited in vain until {what}");
    }
}

/// Starts a host with a provider, tools and a changed configuration.
async fn host(provider: &Provider, tools: ToolRegistry, change: impl FnOnce(&mut Config)) -> Host {
    Host::start(setup(provider, tools, change)).await.unwrap()
}

async fn start_on(setup: HostSetup, journal: Arc<dyn Journal>) -> Result<Host, HostError> {
    Host::start(HostSetup { journal: Some(journal), ..setup }).await
}

fn setup(provider: &Provider, tools: ToolRegistry, change: impl FnOnce(&mut Config)) -> HostSetup {
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.use_model("test", model(provider));
    config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("*")];
    change(&mut config);
    HostSetup::new(config, tools)
}

fn model(provider: &Provider) -> ModelConfig {
    ModelConfig::new(BaseUrl::parse(&provider.base_url()).unwrap(), "test-model")
}

async fn session(host: &Host) -> SessionHandle {
    host.open_session(OpenSession::default()).await.unwrap()
}

/// Stops the run actors of every session without an open run.
fn rest(host: &Host) {
    for (_, live) in host.inner.host_ref.shared.index.all_awake() {
        // A session actor that has ended has no run actors.
        let _ = live.actor.cast(SessionMessage::ReleaseActors);
    }
}

/// Drops a host, and waits until nothing of it is left that could append a record. Its handles must be dropped before.
async fn crash(host: Host) {
    let shared = Arc::downgrade(&host.inner.host_ref.shared);
    drop(host);
    until("nothing of the host is left", || shared.strong_count() == 0).await;
}

/// Waits until no actor or task of a run is alive.
async fn nothing_left(host: &Host) {
    let counted = host.clone();
    let waited = timeout(SOON, async move {
        loop {
            rest(&counted);
            let HostCounts {
                sessions: _,
                awake: _,
                abandoned_threads: _,
                runs,
                actors,
                tasks,
                tools_running,
                calls_waiting,
            } = counted.counts();
            if runs + actors + tasks + tools_running + calls_waiting == 0 {
                return;
            }
            sleep(Duration::from_millis(1)).await;
        }
    });
    assert!(waited.await.is_ok(), "left over: {:?}", host.counts());
    journals_are_whole(host);
    replays::all(host);
}

/// Returns what a journal in memory has: it is there at once.
pub(super) fn stored<T>(found: JournalFuture<'_, T>) -> T {
    found.now_or_never().unwrap().unwrap()
}

/// Checks that the records of every session are valid and that no run is open.
fn journals_are_whole(host: &Host) {
    let journal = &host.inner.host_ref.shared.journal;
    let all = SessionQuery::default().with(|query| query.children = true);
    for session in stored(journal.list(&all)) {
        let entries = stored(journal.read(&session.id, Seq(0)));
        let breaches = verify(&session.id, &entries);
        assert!(breaches.is_empty(), "{breaches:#?} in {entries:#?}");
        let read = |child: &SessionId| journal.read(child, Seq(0)).now_or_never().unwrap();
        let children = ChildSessions::read(&session.id, &entries, read);
        let breaches = verify_children(&session.id, &entries, &children);
        assert!(breaches.is_empty(), "{breaches:#?} in {entries:#?} and {children:#?}");
        assert_eq!(open_run_id(&entries), None);
    }
}

type Body = dyn Fn(ToolContext) -> BoxFuture<'static, Result<ToolOutput, ToolError>> + Send + Sync;

/// A tool that runs a closure.
struct Closure {
    spec: ToolSpec,
    body: Arc<Body>,
}

#[async_trait]
impl Tool for Closure {
    fn spec(&self) -> ToolSpec {
        self.spec.clone()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        (self.body)(context).await
    }
}

/// Returns the specification of a pure tool that accepts any arguments.
fn spec(name: &str) -> ToolSpec {
    let schema = ParsedSchema::parse(json!({"type": "object", "properties": {}})).unwrap();
    ToolSpec::with_schema(name, "for a test", schema).pure()
}

fn tool<F>(spec: ToolSpec, body: impl Fn(ToolContext) -> F + Send + Sync + 'static) -> Closure
where
    F: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
{
    Closure { spec, body: Arc::new(move |context| Box::pin(body(context))) }
}

/// Returns a tool whose result is its arguments.
fn echo(name: &str) -> Closure {
    tool(spec(name), |context| async move { Ok(context.arguments().to_string().into()) })
}

fn registry(tools: impl IntoIterator<Item = Closure>) -> ToolRegistry {
    let mut registry = ToolRegistry::new();
    for tool in tools {
        registry.register(tool).unwrap();
    }
    registry
}

/// Returns the results of a report by tool name: status and text.
fn results(report: &RunReport) -> BTreeMap<&str, (&'static str, &str)> {
    let calls = report.calls.iter();
    calls.map(|c| (&*c.tool_name, (c.status.as_str(), c.result.as_str()))).collect()
}
