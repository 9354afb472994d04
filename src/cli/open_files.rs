//! The limit of open files of the process (`man 2 getrlimit`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of open files as far as the system allows, and returns how many connections the
/// server may have: `wanted`, or three quarters of the limit, so that requests to models, the journal and
/// tools have files, too.
pub(super) fn limit_connections(wanted: usize) -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If it cannot be raised, the current limit holds.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // `None` means that there is no limit.
    let Some(files) = getrlimit(Resource::Nofile).current else { return wanted };
    let allowed = usize::try_from(files - files / 4).unwrap_or(usize::MAX);
    if allowed < wanted {
        tracing::debug!(
            open_files = files,
            max_connections = allowed,
            "connections_limited: the system's limit of open files (ulimit -n) allows no more"
        );
    }
    wanted.min(allowed)
}
