//! The clients that `tests/all.sh` installs, and how they are run.
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// Time limit for a client's script.
const SCRIPT_MAX: Duration = Duration::from_secs(90);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/faces")
}

/// Returns the program Node of the npm packages of `tests/mcp`: Debian's is too old for some clients.
fn node() -> PathBuf {
    let platform = if cfg!(target_arch = "aarch64") { "arm64" } else { "x64" };
    let file = format!("../mcp/node_modules/node-linux-{platform}/bin/node");
    folder().join(file)
}

fn python() -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    target.join("face-python/bin/python")
}

/// Runs the script of a client, `tests/faces/clients/NAME`, with the address of the host and further arguments. Returns
/// what it has printed: the last line, as JSON. `None` if the clients are not installed: that is a failure in CI.
pub(crate) async fn run_client(
    script: &str,
    host: SocketAddr,
    arguments: &[&str],
) -> Option<serde_json::Value> {
    let program = if script.ends_with(".py") { python() } else { node() };
    if !program.exists() {
        let message = format!("{} is missing: tests/all.sh installs it", program.display());
        let ci = std::env::var("CI").is_ok_and(|value| value == "true");
        assert!(!ci, "{message}");
        eprintln!("skipped: {message}");
        return None;
    }
    let mut command = tokio::process::Command::new(program);
    command.arg(folder().join("clients").join(script)).arg(format!("http://{host}"));
    command.args(arguments).current_dir(folder()).kill_on_drop(true).stdin(Stdio::null());
    let output = tokio::time::timeout(SCRIPT_MAX, command.output()).await.unwrap().unwrap();
    let [out, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{script} {arguments:?}: {}\n{out}\n{error}", output.status);
    let last = out.lines().last().unwrap_or_default();
    Some(serde_json::from_str(last).unwrap_or_else(|_| panic!("{script}: {out}\n{error}")))
}
