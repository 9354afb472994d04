//! Metrics, logs, traces and the event feeds of sessions.
//!
//! Runs are observed through [`PublishedEvent`](crate::event::PublishedEvent)s. Gauges of the
//! host's current state are set by methods. Depends on neither HTTP nor actors. No metric and no recorder is
//! global to the process, so several hosts in one process each have a page of their own.

mod exporter;
pub mod feed;
mod host;
mod journal;
mod labelled_handles;
#[cfg(feature = "cli")]
mod log_output;
pub mod logs;
pub mod metric_table;
mod metrics;
mod models;
#[cfg(feature = "prometheus")]
mod prometheus_page;
mod traces;

pub use exporter::Telemetry;
pub use feed::{
    Feed, FeedItem, FeedPosition, FeedSnapshot, PendingSubscription, SourceRecord, Subscription,
    journal_failed,
};
#[cfg(feature = "cli")]
pub use log_output::{LogFormat, LogsError, init};
pub use metric_table::HostMetrics;
pub use metrics::Metrics;
pub use models::{GaugeGuard, ModelMetrics};
pub use traces::{TracedRun, Traces};
