//! A server of the protocol of 2025-11-25. Its process is the test's own binary, which runs one test.
#![expect(clippy::unwrap_used, reason = "a test's helper may fail loudly")]

use std::io::{BufRead as _, Write as _};

use serde_json::{Value, json};

use crate::folder::Folder;

/// Answers the requests of the standard input, and ends the process when it ends. `answer` receives the method and
/// the parameters of each message. Without an answer, the method is not known.
pub(crate) fn serve(mut answer: impl FnMut(&str, &Value) -> Option<Value>) {
    for line in std::io::stdin().lock().lines() {
        let message: Value = serde_json::from_str(&line.unwrap()).unwrap();
        let (id, method) = (&message["id"], message["method"].as_str().unwrap_or_default());
        let result = answer(method, &message["params"]);
        let result = result.or_else(|| (method == "initialize").then(initialized));
        let answer = match result {
            _ if id.is_null() => continue,
            Some(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
            None => json!({"jsonrpc": "2.0", "id": id, "error": {"code": -32601, "message": "no"}}),
        };
        let mut out = std::io::stdout().lock();
        writeln!(out, "{answer}").unwrap();
        out.flush().unwrap();
    }
    std::process::exit(0);
}

fn initialized() -> Value {
    json!({
        "protocolVersion": "2025-11-25", "capabilities": {"tools": {"listChanged": true}},
        "serverInfo": {"name": "test", "version": "1"},
    })
}

/// Returns the result of a call.
pub(crate) fn content(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// Returns the table of a server whose process runs the test `test`. `environment` are members of a table in TOML.
pub(crate) fn table(folder: &Folder, test: &str, name: &str, environment: &str) -> String {
    let binary = std::env::current_exe().unwrap().display().to_string();
    folder.server(name, &[&binary, "--exact", test, "--nocapture"], environment)
}
