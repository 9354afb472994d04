//! Finds the descendants of this process and signals them.

use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, waitid};

/// Time between two attempts to kill what is left.
pub(super) const KILL_INTERVAL: Duration = Duration::from_millis(2);

/// Maximum number of attempts: at least 10 seconds. A process that survives them hangs in the kernel.
const KILL_ATTEMPTS_MAX: u32 = 5000;

/// Returns the processes below this one, parents before their children.
///
/// This process is a child subreaper, so all processes that the program has started are among them,
/// whatever groups and sessions they are in. The kernel lists children by thread
/// (`/proc/PID/task/TID/children`).
pub(super) fn descendants() -> Vec<Pid> {
    let mut found = Vec::new();
    let mut remaining = vec![getpid()];
    while let Some(pid) = remaining.pop() {
        let children = children(pid);
        found.extend(&children);
        remaining.extend(children);
    }
    found
}

/// Returns whether the kernel lists children.
pub(super) fn are_listed() -> bool {
    let pid = getpid().as_raw_nonzero();
    Path::new(&format!("/proc/{pid}/task/{pid}/children")).exists()
}

/// Sends a signal to all descendants but `except`, once each.
pub(super) fn signal(signal: Signal, except: Option<Pid>) {
    for pid in descendants().into_iter().filter(|pid| Some(*pid) != except) {
        // The process may have ended by now.
        let _ = kill_process(pid, signal);
    }
}

/// Kills all descendants, and those that they start meanwhile. Another thread must reap the children, or this
/// goes on for all attempts.
pub(super) fn kill_all() {
    for _ in 0..KILL_ATTEMPTS_MAX {
        // The list can miss a child while others end. This call misses none.
        let any = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        if waitid(WaitId::All, any).is_err_and(|error| error == Errno::CHILD) {
            return;
        }
        signal(Signal::KILL, None);
        thread::sleep(KILL_INTERVAL);
    }
}

fn children(pid: Pid) -> Vec<Pid> {
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    let Ok(tasks) = std::fs::read_dir(tasks) else { return Vec::new() };
    let lists = tasks.flatten().filter_map(|task| {
        let list = std::fs::read_to_string(task.path().join("children")).ok()?;
        Some(list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
    });
    lists.collect::<Vec<Vec<Pid>>>().concat()
}
