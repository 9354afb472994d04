//! The MCP servers and the conformance suite that `tests/all.sh` installs.
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::path::{Path, PathBuf};

/// Returns a file of the npm packages.
pub(crate) fn package(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp/node_modules").join(file)
}

/// Returns the program Node of the npm packages: the conformance suite needs a newer one than Debian's.
pub(crate) fn node() -> PathBuf {
    let platform = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    package(&format!("node-linux-{platform}/bin/node"))
}

/// Returns the program of the server `mcp-server-time`, which is written in Python.
pub(crate) fn time_server() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("mcp-python/bin/mcp-server-time")
}

/// Returns whether everything is installed. If not, says so, and fails in CI.
pub(crate) fn is_installed() -> bool {
    let missing = [node(), time_server()].into_iter().find(|file| !file.exists());
    let Some(missing) = missing else { return true };
    let message = format!("{} is missing: tests/all.sh installs it", missing.display());
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!ci, "{message}");
    eprintln!("skipped: {message}");
    false
}
