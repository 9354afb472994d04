//! Metrics of the host as a process: memory, its async runtime, its queues, and how much it takes.

use std::time::Duration;

use ::metrics::{Gauge, Histogram};
use tokio::runtime::Handle;

use super::families::SharedRecorder;
use super::names;

/// What is measured of the host as a process.
pub struct HostMetrics {
    memory: Gauge,
    tasks: Gauge,
    tasks_queued: Gauge,
    lag: Histogram,
    mailbox_wait: Histogram,
    watcher_queue: Gauge,
    sessions_max: Gauge,
    runs_max: Gauge,
}

impl HostMetrics {
    pub(super) fn new(recorder: &SharedRecorder) -> Self {
        names::BUILD_INFO.gauge(recorder, &[("version", env!("CARGO_PKG_VERSION"))]).set(1.0);
        Self {
            memory: names::MEMORY.gauge(recorder, &[]),
            tasks: names::TASKS.gauge(recorder, &[]),
            tasks_queued: names::TASKS_QUEUED.gauge(recorder, &[]),
            lag: names::EVENT_LOOP_LAG.histogram(recorder, &[]),
            mailbox_wait: names::HOST_MAILBOX_WAIT.histogram(recorder, &[]),
            watcher_queue: names::WATCHER_QUEUE.gauge(recorder, &[]),
            sessions_max: names::SESSIONS_MAX.gauge(recorder, &[]),
            runs_max: names::RUNS_MAX.gauge(recorder, &[]),
        }
    }

    /// Sets how many sessions there may be, and how many runs at once.
    pub fn limits(&self, sessions_max: usize, runs_max: usize) {
        self.sessions_max.set(sessions_max as f64);
        self.runs_max.set(runs_max as f64);
    }

    /// Sets how many events wait in the fullest queue of a subscriber.
    pub fn watcher_queue(&self, events: usize) {
        self.watcher_queue.set(events as f64);
    }

    /// Sets what there is to know of the process now. What the system does not tell stays as it is.
    pub fn look(&self) {
        if let Some(bytes) = resident_bytes() {
            self.memory.set(bytes as f64);
        }
        if let Ok(runtime) = Handle::try_current() {
            let runtime = runtime.metrics();
            self.tasks.set(runtime.num_alive_tasks() as f64);
            self.tasks_queued.set(runtime.global_queue_depth() as f64);
        }
    }

    /// Counts how late a task was woken.
    pub fn lag(&self, late: Duration) {
        self.lag.record(late);
    }

    /// Counts how long a message to the host's supervisor waited.
    pub fn mailbox_wait(&self, waited: Duration) {
        self.mailbox_wait.record(waited);
    }
}

impl std::fmt::Debug for HostMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostMeter").finish_non_exhaustive()
    }
}

/// Memory in RAM, as Linux tells it (`man 5 proc_pid_status`).
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
    fn memory_is_read_from_the_systems_words() {
        let status = "VmHWM:\t   20000 kB\nVmRSS:\t   12345 kB\nThreads:\t3\n";
        assert_eq!(resident_in(status), Some(12_345 * 1024));
        assert_eq!(resident_in("VmRSS:\t many kB\n"), None);
        assert_eq!(resident_in(""), None);
        if cfg!(target_os = "linux") {
            assert!(resident_bytes().unwrap() > 100_000);
        }
    }
}
