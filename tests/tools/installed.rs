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

/// An environment of Python with a version of the SDK.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Python {
    Sdk1,
    /// It has FastMCP 4 and the server `mcp-server-time` too.
    Sdk2,
}

impl Python {
    /// Returns a program of the environment.
    pub(crate) fn program(self, name: &str) -> PathBuf {
        let folder = match self {
            Self::Sdk1 => "mcp-python-1",
            Self::Sdk2 => "mcp-python-2",
        };
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        target.join(folder).join("bin").join(name)
    }
}

/// Returns whether everything is installed. If not, says so, and fails in CI.
pub(crate) fn is_installed() -> bool {
    let files = [
        node(),
        // A package that an older installation lacks.
        package("@modelcontextprotocol/server/package.json"),
        Python::Sdk1.program("python"),
        Python::Sdk2.program("mcp-server-time"),
    ];
    let missing = files.into_iter().find(|file| !file.exists());
    let Some(missing) = missing else { return true };
    let message = format!("{} is missing: tests/all.sh installs it", missing.display());
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!ci, "{message}");
    eprintln!("skipped: {message}");
    false
}
