//! The limit of open files of the process (`man 2 getrlimit`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit. Returns the number of connections that the server may have:
/// at most `max_connections`, and at most three quarters of the limit, because requests to models, the journal and
/// tools need files, too.
pub(super) fn raise_open_file_limit(max_connections: usize) -> usize {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If it cannot be raised, the current limit holds.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    // `None` means that there is no limit.
    let Some(files) = getrlimit(Resource::Nofile).current else { return max_connections };
    let connections_max = usize::try_from(files - files / 4).unwrap_or(usize::MAX);
    if connections_max < max_connections {
        tracing::debug!(
            open_files = files,
            max_connections = connections_max,
            "connections_limited: the system's limit of open files (ulimit -n) allows no more"
        );
    }
    max_connections.min(connections_max)
}
