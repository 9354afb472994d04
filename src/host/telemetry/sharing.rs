//! Records the metrics of a host that shares its journal with others.

use std::time::Duration;

use super::metric_table::SharingMetrics;

/// Why a host has taken sessions that no living host had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeoverReason {
    /// It started.
    Start,
    /// Another host has ended.
    HostEnded,
}

impl TakeoverReason {
    pub(super) const ALL: [Self; 2] = [Self::Start, Self::HostEnded];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::HostEnded => "host_ended",
        }
    }
}

impl SharingMetrics {
    /// Sets the number of hosts that live.
    pub fn set_hosts(&self, hosts: usize) {
        self.hosts.set(hosts as f64);
    }

    pub(super) fn set_status(&self, owned: Option<usize>, heartbeat_age: Option<Duration>) {
        self.sessions_owned.set(owned.unwrap_or(0) as f64);
        self.heartbeat_age.set(heartbeat_age.unwrap_or_default().as_secs_f64());
    }

    /// Counts a session that another host has taken.
    pub fn session_lost(&self) {
        self.fenced_appends.increment(1);
    }

    /// Counts a request that was passed on to another host.
    pub fn request_passed_on(&self) {
        self.proxied_requests.increment(1);
    }
}
