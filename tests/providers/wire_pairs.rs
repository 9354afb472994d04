//! A session changes its model during the conversation: a history of each wire is sent over every
//! other wire, to a service that refuses whatever breaks its rules.
#![expect(clippy::unwrap_used, reason = "a test")]

use crate::support::tools::{CallControl, registry};
use crate::support::{World, parallel, within, world_of};
use callsheet::config::RunOverrides;
use callsheet::runtime::{RunReport, RunRequest};
use callsheet::types::{RunEnd, Wire};
use callsheet_mock_provider::{Call, Finish, Response, Script};
use serde_json::{Value, json};

/// Returns three responses: thinking, text and two calls with ids that other services refuse; a
/// single call that is cut off; and an answer.
fn responses(name: &str, wire: Wire) -> [Response; 3] {
    let long = "long".repeat(11);
    let (short, long) = match wire {
        // These two services refuse what their own models never send.
        Wire::AnthropicMessages => (format!("toolu_{name}"), format!("toolu-{name}-{long}")),
        Wire::OpenaiResponses => (format!("call_{name}"), format!("call.:{name}:{long}")),
        Wire::OpenaiChat | Wire::GeminiGenerate | Wire::OllamaChat => {
            ("functions.quick:0".to_owned(), format!("{name} {long}{long}"))
        }
    };
    let calls = [
        Call::new("quick", json!({"id": "1"})).id(&short),
        Call::new("quick", json!({"id": "2"})).id(&long),
    ];
    let both = Response {
        reasoning: vec![format!("{name} thinks")],
        text: vec![format!("{name} calls.")],
        ..Response::calls(calls)
    };
    let cut = Call { arguments_raw: Some("{\"id\": \"3".into()), ..Call::new("writes", json!({})) };
    let cut = Response { finish_reason: Finish::Word("length".into()), ..Response::calls([cut]) };
    [both, cut, Response::text(&format!("{name} is done."))]
}

/// Starts a host with two models: the same scripted provider over two wires.
async fn world_with_two_models(from: Wire, to: Wire, stream: bool) -> World {
    let script = Script::new(
        [responses("first", from), responses("second", to), responses("third", from)]
            .into_iter()
            .flatten(),
    );
    world_of(from, script, registry(&CallControl::new()), |config| {
        let mut other = config.models["rehearsal"].clone();
        other.wire = to;
        other.model = "other".into();
        config.models.insert("other".into(), other);
        config.models.values_mut().for_each(|model| model.stream = stream);
        config.agents.get_mut("default").unwrap().fallback_models = vec!["other".into()];
        parallel(4)(config);
    })
    .await
}

async fn run(world: &World, input: &str, model: &str) -> RunReport {
    let overrides = RunOverrides::default().with(|new| new.model = Some(model.to_owned()));
    let request = RunRequest::from(input).with(|new| new.overrides = overrides);
    within(world.session.run(request)).await.unwrap()
}

#[track_caller]
fn check_run(report: &RunReport, name: &str, pair: &str) {
    assert_eq!(report.run_end, RunEnd::Answered, "{pair}: {:?}", report.error);
    assert_eq!(report.text, format!("{name} is done."), "{pair}");
    let calls: Vec<&str> = report.calls.iter().map(|call| &*call.tool_name).collect();
    assert_eq!(calls, ["quick", "quick", "writes"], "{pair}");
}

/// Collects every text of a request, whatever its wire.
fn texts(body: &Value, found: &mut Vec<String>) {
    match body {
        Value::String(text) => found.push(text.clone()),
        Value::Array(items) => items.iter().for_each(|item| texts(item, found)),
        Value::Object(map) => map.values().for_each(|value| texts(value, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

async fn check(from: Wire, to: Wire, stream: bool) {
    let pair = format!("{from} to {to}, stream {stream}");
    let world = world_with_two_models(from, to, stream).await;
    check_run(&run(&world, "begin", "rehearsal").await, "first", &pair);
    check_run(&run(&world, "go on", "other").await, "second", &pair);
    check_run(&run(&world, "and back", "rehearsal").await, "third", &pair);
    world.assert_paired();
    let requests = world.requests();
    let wires: Vec<Wire> = requests.iter().map(|request| request.wire).collect();
    assert_eq!(wires, [[from; 3], [to; 3], [from; 3]].concat(), "{pair}");
    assert!(requests.iter().all(|request| request.status == 200), "{pair}");
    // Messages from each wire reach the service of the other.
    for (request, name) in [(&requests[3], vec!["first"]), (&requests[6], vec!["first", "second"])]
    {
        let mut sent = Vec::new();
        texts(&request.body, &mut sent);
        for name in name {
            for text in [format!("{name} calls."), format!("{name} is done.")] {
                assert!(sent.iter().any(|sent| sent.contains(&text)), "{pair}: {text}");
            }
        }
        // The result says what was cut off: the call or the response.
        assert!(sent.iter().any(|text| text.contains("cut off")), "{pair}");
    }
    // Reasoning goes back only to the model that wrote it.
    let mut sent = Vec::new();
    texts(&requests[3].body, &mut sent);
    assert!(!sent.iter().any(|text| text.contains("first thinks")), "{pair}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_of_every_wire_is_accepted_by_every_other() {
    for (_, from) in Wire::NAMES {
        for (_, to) in Wire::NAMES {
            check(from, to, true).await;
            check(from, to, false).await;
        }
    }
}
