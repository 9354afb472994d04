//! A program that embeds Callsheet names its launcher, or is refused.
#![cfg(target_os = "linux")]

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use callsheet::config::Config;
use callsheet::tool::ToolRegistry;
use callsheet::tool::testing::ToolTest;
use serde_json::json;

#[tokio::test]
async fn a_missing_launcher_is_named() {
    let text = "[tools.t]\nkind = \"command\"\ndescription = \"d\"\ncommand = [\"true\", \
                \"{text}\", \"{text}\", \"{text}\", \"{text}\", \"{text}\", \"{text}\"]\n\
                input = { text = { type = \"string\" } }\n";
    let config = Config::parse(text, "callsheet.toml", &|_| None).unwrap();
    let registry = || {
        let mut registry = ToolRegistry::new();
        registry.register_configured(&config).map(|()| registry).map_err(|error| error.to_string())
    };
    let expected = "callsheet.toml:4: tools.t.command: no launcher: call \
                    callsheet::launcher::run_if_launched() first in main, or \
                    callsheet::launcher::use_binary(..) with the path of the callsheet binary";
    assert_eq!(registry().unwrap_err(), expected);

    callsheet::launcher::use_binary("/nowhere/callsheet");
    let expected =
        "callsheet.toml:4: tools.t.command: the launcher /nowhere/callsheet is not a file";
    assert_eq!(registry().unwrap_err(), expected);

    callsheet::launcher::use_binary("/bin/true");
    let registry = registry().unwrap();
    let mut tool = ToolTest::new(Arc::clone(&registry.tool("t").unwrap().tool));
    // The long request fills the buffer of the socket, so that it breaks while it is sent.
    for length in [1, 10_000, 120_000] {
        let call = tool.call(json!({"text": "x".repeat(length)})).await;
        let message = call.error().message();
        assert!(message.contains("did not answer as a launcher: it must call"), "{message}");
    }

    // A launcher that kills the program before it reports the start.
    let binary = Path::new(env!("CARGO_TARGET_TMPDIR")).join("launcher-that-kills");
    let text = "#!/bin/sh\necho '\"too_many_processes\"' >&0\nexec cat >/dev/null\n";
    std::fs::write(&binary, text).unwrap();
    std::fs::set_permissions(&binary, PermissionsExt::from_mode(0o755)).unwrap();
    callsheet::launcher::use_binary(binary);
    let call = tool.call(json!({"text": ""})).await;
    let expected = "the program did not start: it was killed at its start: it had more processes than \
                    max_processes";
    assert_eq!(call.error().message(), expected);
}
