//! What the outside sees of a host: metrics, logs, and the subscribers of a session.
//!
//! Everything here is fed by [`Published`](crate::event::Published) events, and knows nothing of
//! HTTP, of actors or of how a turn works. No metric and no recorder is global to the process, so
//! that several hosts in one process each have their own page.

pub mod bus;
mod exporter;
mod families;
mod handles;
pub mod logs;
mod metrics;
pub mod names;

pub use bus::{Bus, Delivery, Subscription};
pub use exporter::Telemetry;
pub use logs::{LogFormat, init};
pub use metrics::Metrics;
