//! `callsheet sessions audit`: who requested what.

use std::io::Read as _;

use crate::cli::{Folder, ServeProcess, send, serve, signal, stderr, stdout};
use serde_json::{Value, json};

#[test]
fn requests_are_listed_with_their_authors_also_of_deleted_sessions() {
    let config = "[host]\ntoken_file = \"host.token\"\n[[tokens]]\nname = \"ada\"\n\
                  file = \"ada.token\"\nscope = [\"run\"]\n";
    let folder = Folder::new("audit")
        .with("callsheet.toml", config)
        .with("host.token", "token-of-the-host\n")
        .with("ada.token", "token-of-ada\n");
    let ServeProcess { mut child, addr, mut err, .. } =
        serve(&folder, &["--config", "callsheet.toml"]);
    let ask = |method: &str, path: &str, token: &str, body: &str| {
        let length = body.len();
        let request = format!(
            "{method} /v1/sessions{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\nauthorization: Bearer token-of-{token}\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        let answer = send(addr, &request);
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    };
    let empty = folder.run(&["sessions", "audit"]);
    assert_eq!((stdout(&empty), stderr(&empty)), (String::new(), String::new()));
    ask("POST", "", "the-host", "{\"id\":\"s\"}");
    ask("POST", "/s/runs", "ada", "{\"input\":\"a secret wish\",\"wait\":true}");
    ask("POST", "/s/fork", "ada", "{\"at\":1,\"id\":\"f\"}");
    ask("POST", "/f/runs", "the-host", "{\"input\":\"another one\",\"wait\":true}");
    ask("DELETE", "/s", "ada", "");
    let audited = || -> Vec<Value> {
        let output = folder.run(&["sessions", "audit", "--json"]);
        assert_eq!(stderr(&output), "");
        stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let facts: Vec<Value> = audited()
        .iter()
        .map(|line| json!([line["request"], line["session_id"], line["author"]]))
        .collect();
    let expected = json!([["fork", "f", null], ["run", "f", null], ["delete", "s", "ada"]]);
    assert_eq!(json!(facts), expected);
    ask("POST", "/f/runs", "ada", "{\"input\":\"a secret wish\",\"wait\":true}");
    let last = audited().pop().unwrap();
    assert_eq!((&last["request"], &last["author"]), (&json!("run"), &json!("ada")));
    let text = stdout(&folder.run(&["sessions", "audit"]));
    let last = last["run_id"].as_str().unwrap();
    assert!(text.ends_with(&format!("  ada  f  run     {last}\n")), "{text}");
    assert!(text.contains("  ada  s  delete  agent default\n"), "{text}");
    assert!(!text.contains("wish") && !text.contains("another"), "{text}");
    let replayed = folder.run(&["replay", "f"]);
    assert_eq!(replayed.status.code(), Some(0), "{}", stderr(&replayed));
    signal(&child, "TERM");
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{rest}");
    assert!(rest.contains("session_deleted") && rest.contains("author=\"ada\""), "{rest}");
    // The list survives the host, and a backup has it.
    assert_eq!(audited().iter().filter(|line| line["request"] == "delete").count(), 1);
}
