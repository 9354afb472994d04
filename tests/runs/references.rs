//! References over restarts and forks, and `GET /v1/sessions/{id}/results/{tool_id}`.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::host_directory::HostDirectory;
use serde_json::{Value, json};

fn call(tool: &str, arguments: Value) -> Value {
    json!({"name": tool, "arguments": arguments})
}

fn calculate(expression: &str) -> Value {
    call("calculator", json!({"expression": expression}))
}

/// Returns the contents of the tool messages of a session.
fn tool_contents(snapshot: &Value) -> Vec<&str> {
    let history = snapshot["history"].as_array().unwrap().iter();
    let results = history.filter(|message| message["role"] == "tool");
    results.map(|message| message["content"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn results_are_read_after_a_crash_and_in_a_fork() {
    let directory = HostDirectory::new(json!({"responses": [
        {"calls": [call("set_variable", json!({"name": "city", "value": ["Ulm"]})), calculate("6*7")]},
        {"text": ["It is 42."]},
        {"calls": [
            calculate("$VAR_REF{{t1a1c1}}+1"),
            call("read_var", json!({"id": "t1a1c1"})),
            call("set_variable", json!({"name": "copy", "value": "$VAR_REF{{var:city}}"})),
        ]},
        {"text": ["It is 43."]},
        {"calls": [calculate("$VAR_REF{{t3a1c0}}*2")]},
        {"text": ["It is 86."]},
    ]}))
    .await;
    let served = directory.start("", "").await;
    served.open("s").await;
    served.run("s", "go").await;
    served.crash().await;
    let served = directory.start("", "").await;
    served.run("s", "go on").await;
    let snapshot = served.snapshot("s").await;
    assert_eq!(
        tool_contents(&snapshot)[2..4],
        ["43", "[$VAR_REF{{t1a1c1}}: bytes 0 to 2 of 2]\n42"]
    );
    assert_eq!(snapshot["variables"]["copy"], json!(["Ulm"]));
    let fork = json!({"at": snapshot["seq"], "id": "f"});
    assert_eq!(served.post("/v1/sessions/s/fork", fork).await.status, 201);
    served.run("f", "double it").await;
    assert_eq!(tool_contents(&served.snapshot("f").await).last(), Some(&"86"));
    for (path, expected) in [
        (
            "s/results/t3a1c0",
            json!({"tool_id": "t3a1c0", "tool_name": "calculator", "status": "success", "content": "43"}),
        ),
        (
            "f/results/t5a1c0?offset=1&limit=9",
            json!({"tool_id": "t5a1c0", "tool_name": "calculator", "status": "success", "content": "6"}),
        ),
    ] {
        let answer = served.get(&format!("/v1/sessions/{path}")).await;
        assert_eq!((answer.status, answer.json()), (200, expected));
    }
    for path in ["s/results/t9a1c0", "s/results/t3a2c0", "s/results/x"] {
        let answer = served.get(&format!("/v1/sessions/{path}")).await;
        assert_eq!(answer.error(), (404, "no_such_result".to_owned()), "{path}");
    }
    served.shutdown().await;
    directory.verify();
}
