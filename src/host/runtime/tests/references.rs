//! Tests of references: results that are read in parts, and values that are put into arguments.

use super::provider::{Reply, answer_with, calls_to};
use super::*;
use callsheet_values::types::CallKey;

/// A tool whose result has 20,000 lines, and one with a value for programs.
fn sources() -> [Closure; 2] {
    let log = tool(spec("log"), |_| async {
        let lines: Vec<String> = (0..20_000).map(|n| format!("line {n}")).collect();
        Ok(lines.join("\n").into())
    });
    let table = tool(spec("table"), |_| async {
        Ok(ToolOutput::from("two rows").with_structured(json!({"rows": [1, 2]})))
    });
    [log, table]
}

/// Returns a tool with effects whose result is the number of bytes of its argument `text`.
fn measure() -> Closure {
    let measure = ToolSpec { effect: Default::default(), ..spec("measure") };
    tool(measure, |context| async move {
        let text = context.arguments()["text"].as_str().map(str::len);
        Ok(format!("{text:?}").into())
    })
}

fn tools() -> ToolRegistry {
    registry(sources().into_iter().chain([measure(), echo("echo")]))
}

/// Returns the contents of the tool messages that the last request ends with.
fn last_results(provider: &Provider) -> Vec<String> {
    let requests = provider.requests();
    let messages = requests.last().unwrap()["messages"].as_array().unwrap();
    let results = messages.iter().rev().take_while(|message| message["role"] == "tool");
    let mut results: Vec<_> =
        results.map(|message| message["content"].as_str().unwrap().to_owned()).collect();
    results.reverse();
    results
}

#[tokio::test]
async fn a_long_result_is_cut_and_its_rest_is_read_searched_and_passed_on() {
    let provider = Provider::new(|n, _| {
        Reply::Sse(match n {
            0 => calls_to(&[("log", "{}"), ("table", "{}")]),
            1 => calls_to(&[
                ("read_var", r#"{"id": "t1a1c0", "offset": 50000, "limit": 30}"#),
                ("read_var", r#"{"id": "$VAR_REF{{t1a1c0}}", "pattern": "^line 1999\\d$"}"#),
                ("echo", r#"{"table": "$VAR_REF{{t1a1c1}}", "text": "rows: $VAR_REF{{t1a1c1}}"}"#),
                ("measure", r#"{"text": "$VAR_REF{{t1a1c0}}"}"#),
            ]),
            _ => answer_with("done"),
        })
    })
    .await;
    let host = host(&provider, tools(), |config| {
        config.agents.get_mut("default").unwrap().limits.max_result_bytes = 1000;
    })
    .await;
    let session = session(&host).await;
    session.run("go").await.unwrap();
    let requests = provider.requests();
    let messages = requests[1]["messages"].as_array().unwrap();
    let cut = messages[messages.len() - 2]["content"].as_str().unwrap();
    assert!(cut.starts_with("line 0\nline 1\n") && cut.ends_with("\nline 19999"), "{cut}");
    let note = " of 208889 bytes are left out here; the whole result is $VAR_REF{{t1a1c0}}]\n";
    assert!(cut.contains(note) && cut.len() < 1100, "{cut}");
    assert_eq!(messages.last().unwrap()["content"], "two rows");
    let [part, found, passed, measured] = &last_results(&provider)[..] else { panic!("four") };
    assert!(
        part.starts_with(
            "[$VAR_REF{{t1a1c0}}: bytes 50000 to 50030 of 208889; next offset: 50030]"
        ),
        "{part}"
    );
    assert_eq!(found.lines().count(), 11, "{found}");
    assert!(found.ends_with(": line 19999\n"), "{found}");
    let rows = r#"{"table":{"rows":[1,2]},"text":"rows: {\"rows\":[1,2]}"}"#;
    assert_eq!(passed, rows);
    assert_eq!(measured, "Some(208889)");
    // The history has the arguments of the model, and the journal the whole result.
    let sent = serde_json::to_string(&provider.requests()[2]).unwrap();
    assert!(sent.contains("$VAR_REF{{t1a1c0}}") && sent.len() < 20_000, "{}", sent.len());
    let stored = session.result(CallKey { turn: 1, attempt: 1, index: 0 }).await.unwrap();
    assert_eq!((&*stored.tool_name, stored.outcome.content.len()), ("log", 208_889));
    nothing_left(&host).await;
}

#[tokio::test]
async fn values_outlive_hibernation_and_forks_and_answers_can_be_referred_to() {
    let run_id = Arc::new(parking_lot::Mutex::new(String::new()));
    let known = Arc::clone(&run_id);
    let provider = Provider::new(move |n, _| {
        let run_id = known.lock();
        Reply::Sse(match n {
            0 => calls_to(&[("table", "{}")]),
            1 => answer_with("the first answer"),
            2 | 4 => {
                let answer = format!(r#"{{"text": "$VAR_REF{{{{{run_id}}}}}"}}"#);
                calls_to(&[
                    ("echo", r#"{"value": ["$VAR_REF{{t1a1c0}}"]}"#),
                    ("echo", &answer),
                    ("echo", r#"{"text": "$VAR_REF{{t1a1c0.arguments}}"}"#),
                ])
            }
            _ => answer_with("done"),
        })
    })
    .await;
    let host = host(&provider, tools(), |_| ()).await;
    let first = session(&host).await;
    let report = first.run("go").await.unwrap();
    *run_id.lock() = report.run_id.to_string();
    until("it hibernates", || {
        rest(&host);
        first.hibernate();
        first.state() == SessionState::Hibernated
    })
    .await;
    let snapshot = first.stored_snapshot().await.unwrap();
    let fork = host.fork(&first, snapshot.seq, None).await.unwrap();
    let expected =
        [r#"{"value":[{"rows":[1,2]}]}"#, r#"{"text":"the first answer"}"#, r#"{"text":{}}"#];
    for session in [&first, &fork] {
        session.run("use it").await.unwrap();
        assert_eq!(last_results(&provider), expected);
        let again = session.result(CallKey { turn: 1, attempt: 1, index: 0 }).await.unwrap();
        assert_eq!(&*again.outcome.content, "two rows");
    }
    nothing_left(&host).await;
}

#[tokio::test]
async fn references_without_a_value_answer_their_call() {
    let provider = Provider::new(|n, _| {
        Reply::Sse(match n {
            0 => calls_to(&[("table", "{}")]),
            1 => calls_to(&[
                ("table", r#"{"again": true}"#),
                ("measure", r#"{"text": "$VAR_REF{{t2a1c0}}"}"#),
                ("measure", r#"{"text": "$VAR_REF{{t1a1c7}}"}"#),
                ("measure", r#"{"text": "$VAR_REF{{run_0}}"}"#),
                ("read_var", r#"{"id": "t2a1c0"}"#),
                ("read_var", r#"{"id": "t1a2c0"}"#),
                ("measure", r#"{"text": "$VAR_REF{{t1a1}}"}"#),
            ]),
            _ => answer_with("done"),
        })
    })
    .await;
    let host = host(&provider, tools(), |_| ()).await;
    let session = session(&host).await;
    session.run("go").await.unwrap();
    let results = last_results(&provider);
    let expected = [
        "two rows",
        "$VAR_REF{{t2a1c0}}: it belongs to this response",
        "$VAR_REF{{t1a1c7}}: the session has no such result",
        "$VAR_REF{{run_0}}: the session has no run of this id",
        "$VAR_REF{{t2a1c0}}: it belongs to this response",
        "$VAR_REF{{t1a2c0}}: the session has no such result",
        "Some(16)",
    ];
    for (result, expected) in results.iter().zip(expected) {
        assert!(result.contains(expected), "{result}");
    }
    assert_eq!(results.len(), expected.len());
    let missing = session.result(CallKey { turn: 7, attempt: 1, index: 0 }).await;
    assert_eq!(missing.unwrap_err(), HostError::NoSuchResult("t7a1c0".to_owned()));
    nothing_left(&host).await;
}

#[tokio::test]
async fn read_var_is_offered_unless_references_are_off() {
    let provider = Provider::answering("done").await;
    for (references, offered) in [(true, true), (false, false)] {
        let host = host(&provider, tools(), |config| {
            config.agents.get_mut("default").unwrap().context.references = references;
        })
        .await;
        session(&host).await.run("go").await.unwrap();
        let request = provider.requests().pop().unwrap();
        let names = request["tools"].as_array().unwrap().iter();
        let names: Vec<_> = names.map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(names.contains(&"read_var"), offered, "{names:?}");
        assert!(names.is_sorted());
    }
}
