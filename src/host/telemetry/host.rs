//! Records the metrics of the host process: memory, the async runtime, queues and limits.

use std::time::Duration;

use tokio::runtime::Handle;

use super::metric_table::HostMetrics;

impl HostMetrics {
    /// Sets the maximum numbers of sessions and of concurrent runs.
    pub fn set_limits(&self, sessions_max: usize, runs_max: usize) {
        self.sessions_max.set(sessions_max as f64);
        self.runs_max.set(runs_max as f64);
    }

    /// Sets the number of events in the longest queue of a subscriber.
    pub fn set_watcher_queue(&self, events: usize) {
        self.watcher_queue.set(events as f64);
    }

    /// Sets the number of open connections of the HTTP server.
    pub fn set_connections(&self, open: usize) {
        self.connections.set(open as f64);
    }

    /// Counts a connection that was refused, or closed to make room.
    pub fn connection_refused(&self) {
        self.connections_refused.increment(1);
    }

    /// Reads memory and tasks of the process. A value that the system does not report stays as it is.
    pub fn update(&self) {
        if let Some(bytes) = resident_bytes() {
            self.resident_memory.set(bytes as f64);
        }
        if let Ok(runtime) = Handle::try_current() {
            let runtime = runtime.metrics();
            self.tasks.set(runtime.num_alive_tasks() as f64);
            self.tasks_queued.set(runtime.global_queue_depth() as f64);
        }
    }

    /// Records the delay of a timer.
    pub fn event_loop_lag(&self, delay: Duration) {
        self.event_loop_lag.record(delay);
    }

    /// Records how long a message to the host actor waited in its mailbox.
    pub fn mailbox_wait(&self, waited: Duration) {
        self.mailbox_wait.record(waited);
    }
}

/// Reads the resident memory of the process on Linux (`man 5 proc_pid_status`).
fn resident_bytes() -> Option<u64> {
    resident_in(&std::fs::read_to_string("/proc/self/status").ok()?)
}

fn resident_in(status: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = value.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_parsed_from_proc_status() {
        let status = "VmHWM:\t   20000 kB\nVmRSS:\t   12345 kB\nThreads:\t3\n";
        assert_eq!(resident_in(status), Some(12_345 * 1024));
        assert_eq!(resident_in("VmRSS:\t many kB\n"), None);
        assert_eq!(resident_in(""), None);
        if cfg!(target_os = "linux") {
            assert!(resident_bytes().unwrap() > 100_000);
        }
    }
}
