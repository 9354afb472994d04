//! A host with one session and a scripted provider on loopback, over real HTTP.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

pub(crate) mod tools;

use std::time::Duration;

use callsheet::config::{BaseUrl, Config, JournalEngine};
use callsheet::runtime::{Host, HostCounts, OpenSession, RunReport, SessionHandle};
use callsheet::telemetry::{FeedItem, Subscription};
use callsheet::tool::ToolRegistry;
use callsheet::types::{Execution, Wire};
use callsheet_mock_provider::{MockProvider, ReceivedRequest, Script};
use futures::StreamExt;
use serde_json::Value;

/// Time limit of every wait, so that a test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A host, its only session, and the scripted provider.
pub(crate) struct World {
    pub(crate) model: MockProvider,
    pub(crate) host: Host,
    pub(crate) session: SessionHandle,
}

/// Starts a host whose only agent has all `tools` and uses the scripted provider.
pub(crate) async fn world(
    script: Script,
    tools: ToolRegistry,
    change: impl FnOnce(&mut Config),
) -> World {
    let model = MockProvider::with_script(script).await.unwrap();
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = tools.iter().map(|(name, _)| callsheet::config::ToolPattern::new(name)).collect();
    change(&mut config);
    let host = Host::builder().config(config).tools(tools).start().await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    World { model, host, session }
}

/// Starts a host as [`world`] does, with a provider of another dialect.
pub(crate) async fn world_of(
    wire: Wire,
    script: Script,
    tools: ToolRegistry,
    change: impl FnOnce(&mut Config),
) -> World {
    let with_wire = |config: &mut Config| {
        config.models.values_mut().for_each(|model| model.wire = wire);
        change(config);
    };
    world(script, tools, with_wire).await
}

pub(crate) fn parallel(max: u32) -> impl FnOnce(&mut Config) {
    move |config| {
        config.agents.get_mut("default").unwrap().execution = Execution::Parallel { max };
    }
}

impl World {
    /// Runs to the end.
    pub(crate) async fn run(&self, input: &str) -> RunReport {
        within(self.session.run(input)).await.unwrap()
    }

    /// Returns the requests that the provider received.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.model.requests()
    }

    /// Returns the messages of the last request, in the provider's format.
    pub(crate) fn last_messages(&self) -> Vec<Value> {
        let requests = self.model.requests();
        requests.last().unwrap().body["messages"].as_array().unwrap().clone()
    }

    /// Waits until no tool actor, task or tool of a run is left. The other three actors stay for the next run, with
    /// the timer of one of them.
    pub(crate) async fn until_idle(&self) {
        let is_idle = || {
            let counts = self.host.counts();
            let mut idle = HostCounts::default();
            (idle.sessions, idle.awake) = (1, 1);
            (idle.actors, idle.tasks) = (counts.actors.min(3), counts.tasks.min(1));
            counts == idle
        };
        within(async {
            while !is_idle() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }

    /// Checks that the provider refused no request and that no history was repaired.
    #[track_caller]
    pub(crate) fn assert_paired(&self) {
        for request in self.model.requests() {
            assert_ne!(request.status, 400, "refused: {}", request.body);
        }
        let page = self.host.telemetry().render();
        assert!(page.contains("\ncallsheet_history_repairs_total 0\n"), "{page}");
    }
}

/// Waits for a future, at most for [`PATIENCE`].
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it ends in time")
}

/// Collects the public events of a subscription as JSON, up to `stream_end`.
pub(crate) async fn events(mut subscription: Subscription) -> Vec<Value> {
    let mut collected = Vec::new();
    within(async {
        while let Some(delivery) = subscription.next().await {
            let FeedItem::Event(published) = delivery else { panic!("too slow") };
            for event in published.public() {
                collected.push(serde_json::from_str(&event.json).unwrap());
            }
            if collected.last().is_some_and(|event: &Value| event["type"] == "stream_end") {
                return;
            }
        }
    })
    .await;
    collected
}

/// Waits for a public event that satisfies the condition.
pub(crate) async fn until_event(subscription: &mut Subscription, matches: impl Fn(&Value) -> bool) {
    within(async {
        while let Some(FeedItem::Event(published)) = subscription.next().await {
            let mut public = published.public();
            if public.any(|event| matches(&serde_json::from_str(&event.json).unwrap())) {
                return;
            }
        }
        panic!("the event never came");
    })
    .await;
}

/// Returns the `type` of each event, without text deltas.
pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    kinds.filter(|kind| !matches!(*kind, "content_delta" | "thinking")).collect()
}

/// Returns the tool results of a request as `(tool_call_id, content)`, in order.
pub(crate) fn results(messages: &[Value]) -> Vec<(&str, &str)> {
    let tools = messages.iter().filter(|message| message["role"] == "tool");
    tools
        .map(|message| {
            (message["tool_call_id"].as_str().unwrap(), message["content"].as_str().unwrap())
        })
        .collect()
}
