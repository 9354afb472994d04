//! The console in a real browser: `tests/console` drives Debian's Chromium against a host of the binary.
//! Screenshots of every view are in `target/tmp/console`.

use std::io;
use std::path::Path;
use std::process::Command;

/// The folder of the tests that run in Node.
const PROJECT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/console");

/// Returns true if Node, its packages and, where it is needed, Chromium are installed. In CI they must be.
fn is_installed(needs_browser: bool) -> bool {
    let node = Command::new("node").arg("--version").output();
    let packages = Path::new(PROJECT).join("node_modules/typescript/bin/tsc").exists();
    let browser = std::env::var("CHROMIUM").unwrap_or_else(|_| "/usr/bin/chromium".to_owned());
    let missing = if node.is_err() || !packages {
        "node or its packages are missing: npm ci --prefix tests/console"
    } else if needs_browser && !Path::new(&browser).exists() {
        "chromium is missing: apt-get install chromium"
    } else {
        return true;
    };
    let ci = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!ci, "{missing}");
    eprintln!("skipped: {missing}");
    false
}

fn run(command: &mut Command) -> io::Result<()> {
    let done = command.current_dir(PROJECT).output()?;
    let output = String::from_utf8_lossy(&done.stdout);
    let errors = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{output}{errors}");
    for line in output.lines().filter(|line| line.starts_with("ok") || line.starts_with("# \\#")) {
        println!("{line}");
    }
    Ok(())
}

#[test]
fn the_types_are_right() {
    if is_installed(false) {
        run(Command::new("node").args(["node_modules/typescript/bin/tsc", "--project", "."]))
            .unwrap();
    }
}

#[test]
fn records_and_events_lead_to_the_same_session() {
    if is_installed(false) {
        run(Command::new("node").args(["--test", "--test-reporter=tap", "timeline.test.mjs"]))
            .unwrap();
    }
}

#[test]
fn every_view_works_in_a_browser() {
    if !is_installed(true) {
        return;
    }
    let output = Path::new(env!("CARGO_TARGET_TMPDIR")).join("console");
    run(Command::new("node")
        .args(["--test", "--test-reporter=tap", "console.test.mjs"])
        .env("CALLSHEET_BINARY", env!("CARGO_BIN_EXE_callsheet"))
        .env("CONSOLE_OUTPUT", output))
    .unwrap();
}
