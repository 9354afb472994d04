//! Hooks that follow the events of all runs, each with a bounded queue and a task.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures::FutureExt as _;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::metrics::Metrics;
use callsheet_values::event::{Event, PublishedEvent};

/// The number of events that may wait for a hook. Further ones are lost.
const QUEUE_EVENTS_MAX: usize = 1024;

/// Code that follows the events of all sessions of a host as they happen: the text of responses while it
/// streams, thinking, calls and their ends. It can change nothing, and no run waits for it. It may receive an
/// event before the record of the event is stored, so that after a crash the journal may lack it.
///
/// `HostBuilder::live_hook` registers one.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # use callsheet::model::ModelReply;
/// # use callsheet::testing::FakeModel;
/// use callsheet::events::{LiveHook, PublishedEvent};
/// use callsheet::prelude::*;
/// use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
///
/// struct Watch(UnboundedSender<String>);
///
/// #[async_trait::async_trait]
/// impl LiveHook for Watch {
///     async fn receive(&self, event: &PublishedEvent, _lost: u64) {
///         for part in event.public().filter(|part| part.kind == "content_delta") {
///             let _ = self.0.send(format!("{}: {}", event.session, part.json));
///         }
///     }
/// }
///
/// # let model = FakeModel::replies([ModelReply::text("Hello.")]);
/// let (sender, mut texts) = unbounded_channel();
/// # let host = Host::builder().model_source("fake", model);
/// # #[cfg(any())]
/// let host = Host::builder();
/// let host = host.live_hook("watch", Watch(sender)).start().await?;
/// host.open_session("demo").await?.run("Hello?").await?;
/// assert!(texts.recv().await.is_some_and(|text| text.starts_with("demo: ")));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[async_trait]
pub trait LiveHook: Send + Sync + 'static {
    /// Receives the next event. `lost` events before it did not fit into the queue of the hook, because the
    /// hook was too slow. A panic ends only this call.
    async fn receive(&self, event: &PublishedEvent, lost: u64);
}

/// The live hooks of a program, with their names.
#[derive(Clone, Default)]
pub struct RegisteredLiveHooks(pub Vec<(String, Arc<dyn LiveHook>)>);

impl fmt::Debug for RegisteredLiveHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// The queues of the live hooks of a host. The task of each ends when the host does.
#[derive(Debug, Default)]
pub(super) struct LiveHooks(Vec<LiveQueue>);

#[derive(Debug)]
struct LiveQueue {
    name: String,
    events: Sender<(Arc<PublishedEvent>, u64)>,
    /// The number of events that were lost since the last one in the queue.
    lost: AtomicU64,
}

impl LiveHooks {
    /// Starts the tasks of the hooks. Without hooks, no Tokio runtime is needed.
    pub(super) fn start(RegisteredLiveHooks(hooks): RegisteredLiveHooks) -> Self {
        let queues = hooks.into_iter().map(|(name, hook)| {
            let (events, received) = channel(QUEUE_EVENTS_MAX);
            spawn(deliver_events(name.clone(), hook, received));
            LiveQueue { name, events, lost: AtomicU64::new(0) }
        });
        Self(queues.collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sends an event to each hook. A hook whose queue is full loses it. Skips [`Event::OfChild`]: the child
    /// session sends the event itself.
    pub(super) fn send(&self, published: &PublishedEvent, metrics: &Metrics) {
        if self.is_empty() || matches!(published.event, Event::OfChild { .. }) {
            return;
        }
        let event = Arc::new(published.clone());
        for queue in &self.0 {
            let lost = queue.lost.swap(0, Ordering::Relaxed);
            if queue.events.try_send((Arc::clone(&event), lost)).is_err() {
                queue.lost.fetch_add(lost + 1, Ordering::Relaxed);
                metrics.hook_event_lost(&queue.name);
            }
        }
    }
}

/// Passes the events of a queue to its hook, one at a time, until the host ends.
async fn deliver_events(
    name: String,
    hook: Arc<dyn LiveHook>,
    mut events: Receiver<(Arc<PublishedEvent>, u64)>,
) {
    while let Some((event, lost)) = events.recv().await {
        let handled = AssertUnwindSafe(hook.receive(&event, lost)).catch_unwind().await;
        if handled.is_err() {
            tracing::warn!(hook = name, "live_hook_panicked");
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the task ends with its queue")]
fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(task);
}
