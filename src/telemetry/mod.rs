//! What the outside sees of a host: metrics, logs, and the subscribers of a session.
//!
//! What happens in runs is told by [`PublishedEvent`](crate::event::PublishedEvent) events; what is true of
//! the host as a whole is set by its own methods. Nothing here knows of HTTP, of actors or of how
//! a turn works. No metric and no recorder is global to the process, so
//! that several hosts in one process each have their own page.

mod exporter;
pub mod feed;
mod host;
mod journal;
mod labelled_handles;
pub mod logs;
pub mod metric_table;
mod metrics;
mod models;
mod traces;

pub use exporter::Telemetry;
pub use feed::{
    Feed, FeedItem, FeedPosition, FeedSnapshot, PendingSubscription, RecordPosition, Subscription,
    journal_failed,
};
pub use logs::{LogFormat, init};
pub use metric_table::HostMetrics;
pub use metrics::Metrics;
pub use models::{GaugeGuard, ModelMetrics};
pub use traces::{TracedRun, Traces};
