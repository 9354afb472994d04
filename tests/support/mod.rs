//! A host with one session, real HTTP, and a scripted provider on loopback.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    dead_code,
    reason = "helpers of tests, each of which uses a part"
)]

pub(crate) mod tools;

use std::time::Duration;

use callsheet::config::{BaseUrl, Config, JournalEngine};
use callsheet::rehearsal::{ReceivedRequest, Rehearsal, Script};
use callsheet::runtime::{Host, HostCounts, HostSetup, OpenSession, RunReport, SessionHandle};
use callsheet::telemetry::{FeedItem, Subscription};
use callsheet::tool::ToolRegistry;
use callsheet::types::{Execution, Wire};
use futures::StreamExt;
use serde_json::Value;

/// How long anything here may take before the test fails instead of hanging.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct World {
    pub(crate) model: Rehearsal,
    pub(crate) host: Host,
    pub(crate) session: SessionHandle,
}

/// A host whose only agent has all of `tools` and asks the scripted provider.
pub(crate) async fn world(
    script: Script,
    tools: ToolRegistry,
    change: impl FnOnce(&mut Config),
) -> World {
    let model = Rehearsal::with_script(script).await.unwrap();
    let mut config = Config::default();
    config.journal.engine = JournalEngine::Memory;
    config.set_rehearsal(BaseUrl::parse(&model.base_url()).unwrap());
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = tools.iter().map(|(name, _)| callsheet::config::ToolPattern::new(name)).collect();
    change(&mut config);
    let host = Host::start(HostSetup { config, tools }).await.unwrap();
    let session = host.open_session(OpenSession::default()).await.unwrap();
    World { model, host, session }
}

/// The same where the provider is asked over another wire.
pub(crate) async fn world_of(
    wire: Wire,
    script: Script,
    tools: ToolRegistry,
    change: impl FnOnce(&mut Config),
) -> World {
    let over_the_wire = |config: &mut Config| {
        config.models.values_mut().for_each(|model| model.wire = wire);
        change(config);
    };
    world(script, tools, over_the_wire).await
}

pub(crate) fn parallel(max: u32) -> impl FnOnce(&mut Config) {
    move |config| {
        config.agents.get_mut("default").unwrap().execution = Execution::Parallel { max };
    }
}

impl World {
    /// One run to its end.
    pub(crate) async fn run(&self, input: &str) -> RunReport {
        within(self.session.run(input)).await.unwrap()
    }

    /// What the provider was sent.
    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.model.requests()
    }

    /// The messages of the last request, in the provider's own form.
    pub(crate) fn last_messages(&self) -> Vec<Value> {
        let requests = self.model.requests();
        requests.last().unwrap().body["messages"].as_array().unwrap().clone()
    }

    /// Waits until nothing is left of the runs: no actor, no task, no tool.
    pub(crate) async fn until_idle(&self) {
        let idle = HostCounts { sessions: 1, awake: 1, ..HostCounts::default() };
        within(async {
            while self.host.counts() != idle {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        })
        .await;
    }

    /// The provider refused nothing, and nothing had to be repaired.
    #[track_caller]
    pub(crate) fn assert_paired(&self) {
        for request in self.model.requests() {
            assert_ne!(request.status, 400, "refused: {}", request.body);
        }
        let page = self.host.telemetry().render();
        assert!(page.contains("\ncallsheet_history_repairs_total 0\n"), "{page}");
    }
}

/// Fails instead of hanging.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("it ends in time")
}

/// The public events of a subscription until `stream_end`: each as its JSON.
pub(crate) async fn events(mut subscription: Subscription) -> Vec<Value> {
    let mut seen = Vec::new();
    within(async {
        while let Some(delivery) = subscription.next().await {
            let FeedItem::Event(published) = delivery else { panic!("too slow") };
            for event in published.public() {
                seen.push(serde_json::from_str(&event.json).unwrap());
            }
            if seen.last().is_some_and(|event: &Value| event["type"] == "stream_end") {
                return;
            }
        }
    })
    .await;
    seen
}

/// Waits for a public event.
pub(crate) async fn until_event(subscription: &mut Subscription, is_it: impl Fn(&Value) -> bool) {
    within(async {
        while let Some(FeedItem::Event(published)) = subscription.next().await {
            let mut public = published.public();
            if public.any(|event| is_it(&serde_json::from_str(&event.json).unwrap())) {
                return;
            }
        }
        panic!("the event never came");
    })
    .await;
}

/// `type` of each event, without the text pieces.
pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    let kinds = events.iter().map(|event| event["type"].as_str().unwrap());
    kinds.filter(|kind| !matches!(*kind, "content_delta" | "thinking")).collect()
}

/// The results that a request brings, as `(tool_call_id, content)`, in order.
pub(crate) fn results(messages: &[Value]) -> Vec<(&str, &str)> {
    let tools = messages.iter().filter(|message| message["role"] == "tool");
    tools
        .map(|message| {
            (message["tool_call_id"].as_str().unwrap(), message["content"].as_str().unwrap())
        })
        .collect()
}
