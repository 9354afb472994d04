//! Metrics, logs, traces and the event feeds of sessions.
//!
//! Runs are observed through [`PublishedEvent`](callsheet_values::event::PublishedEvent)s. Metrics of the
//! host, the journal and the models are set by methods. Depends on neither the HTTP server nor actors. No metric and no
//! recorder is global to the process: each host has a page of its own, or a recorder that the program
//! gives it.
//!
//! | subject | file |
//! | --- | --- |
//! | event feed of a session: order, durability before delivery, fan-out to subscribers | `feed/` |
//! | slow subscribers: bounded queue, lag, `resync` | `feed/` |
//! | catch-up of a subscriber that joins during an attempt | `feed/catch_up` |
//! | names, units and labels of all metrics | `metric_table` |
//! | metrics of runs, turns, calls and subscribers, from events | `metrics` |
//! | metrics of the process, of the journal and of a model | `host`, `journal`, `models` |
//! | metrics whose label values are known only at run time; limit on their cardinality | `labelled_handles` |
//! | recorder of the program; labels that tell hosts apart | `metrics_options` |
//! | metrics page for Prometheus | `prometheus_page` |
//! | log lines from events, and which texts they may contain (log redaction); log output of the binary | `logs`, `log_output`; secrets: `types::secrets` |
//! | hooks of the program that follow all events | `live_hooks` |
//! | traces (OpenTelemetry, OTLP): spans, message contents, export | `traces/`; trace propagation (`traceparent`): `types::trace` |
//! | the telemetry of one host as a whole | `host_telemetry` |

mod faces;
pub mod feed;
mod host;
mod host_telemetry;
mod journal;
mod labelled_handles;
mod live_hooks;
#[cfg(feature = "logs")]
mod log_output;
pub mod logs;
pub mod metric_table;
mod metrics;
mod metrics_options;
mod models;
#[cfg(feature = "prometheus")]
mod prometheus_page;
mod sharing;
mod traces;

pub use faces::{FaceEnd, FaceKind, FaceMetrics};
pub use feed::{
    Feed, FeedItem, FeedPosition, FeedSnapshot, ReaderGuard, Subscription, journal_failed,
};
pub use host_telemetry::Telemetry;
pub use live_hooks::{LiveHook, RegisteredLiveHooks};
#[cfg(feature = "logs")]
pub use log_output::{LogFormat, LogsError, init_logs, limit_server_logs, redact_logs};
pub use metric_table::{HostMetrics, SharedRecorder, histogram_bounds};
pub use metrics::{Metrics, PrefixBreakMetrics};
pub use metrics_options::MetricsOptions;
pub use models::{GaugeGuard, ModelMetrics};
pub use sharing::TakeoverReason;
pub use traces::{TracedRun, Traces};
