//! The resources that this process has used, as reported by the system.

use std::fs;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

use super::LoadError;

/// The number of files that the process has open besides its connections.
const OTHER_FILES: u64 = 128;

/// Returns the CPU time of the process: user and system time of all threads, including ended
/// ones.
#[must_use]
pub fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or_default();
    Duration::new(u64::try_from(time.tv_sec).unwrap_or_default(), nanos)
}

/// The resident memory of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessMemory {
    /// The current size.
    pub now_kb: u64,
    /// The largest size so far.
    pub peak_kb: u64,
}

/// Returns the resident memory of this process; `None` on systems without `/proc`.
#[must_use]
pub fn memory() -> Option<ProcessMemory> {
    memory_in(&fs::read_to_string("/proc/self/status").ok()?)
}

fn memory_in(status: &str) -> Option<ProcessMemory> {
    let kb = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(ProcessMemory { now_kb: kb("VmRSS:")?, peak_kb: kb("VmHWM:")? })
}

/// Raises the limit of open files so that each session can have a connection.
///
/// # Errors
/// If the limit cannot be raised far enough.
pub fn raise_open_files(sessions: u32) -> Result<(), LoadError> {
    let needed = u64::from(sessions) + OTHER_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` means that there is no limit.
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    let allowed = maximum.unwrap_or(needed);
    if allowed < needed {
        return Err(LoadError::OpenFiles { sessions, needed, allowed });
    }
    let raised = Rlimit { current: Some(needed), maximum };
    setrlimit(Resource::Nofile, raised).map_err(|_| {
        let allowed = current.unwrap_or_default();
        LoadError::OpenFiles { sessions, needed, allowed }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_status_file_of_linux() {
        let status = "Name:\tx\nVmPeak:\t  9 kB\nVmHWM:\t   2048 kB\nVmRSS:\t   1024 kB\n";
        assert_eq!(memory_in(status), Some(ProcessMemory { now_kb: 1024, peak_kb: 2048 }));
        assert_eq!(memory_in("Name:\tx\n"), None);
        assert!(cpu_time() > Duration::ZERO);
    }

    #[test]
    fn too_many_files_is_an_error_that_names_the_limit() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        let Some(allowed) = maximum.filter(|allowed| *allowed < u64::from(u32::MAX)) else {
            return;
        };
        let error = raise_open_files(u32::MAX).unwrap_err().to_string();
        assert!(error.contains(&format!("may have {allowed}: raise the limit (ulimit -n ")));
        raise_open_files(1).unwrap();
    }
}
