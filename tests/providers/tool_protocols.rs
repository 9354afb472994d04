//! Models without tool calling, over real HTTP: tools in the system prompt, calls and results in the text.
#![expect(clippy::unwrap_used, reason = "a test")]

use crate::support::tools::{CallControl, registry};
use crate::support::{World, parallel, within, world_of};
use callsheet::config::{Config, RunOverrides, ToolProtocol};
use callsheet::runtime::{RunReport, RunRequest};
use callsheet::types::{RunEnd, ToolStatus, Wire};
use callsheet_mock_provider::{Call, Finish, ReceivedRequest, Response, Script, ScriptPosition};
use serde_json::{Value, json};

/// The protocols with calls of `quick` for the ids `a` and `b`, as many as a response may have.
const CALLS: [(ToolProtocol, &str); 5] = [
    (
        ToolProtocol::Hermes,
        "<tool_call>\n{\"name\": \"quick\", \"arguments\": {\"id\":\"a\"}}\n</tool_call>\n\
         <tool_call>\n{\"name\": \"quick\", \"arguments\": {\"id\":\"b\"}}\n</tool_call>",
    ),
    (
        ToolProtocol::Xml,
        "<tool_call>\n<function=quick>\n<parameter=id>\na\n</parameter>\n</function>\n</tool_call>\n\
         <tool_call>\n<function=quick>\n<parameter=id>\nb\n</parameter>\n</function>\n</tool_call>",
    ),
    (
        ToolProtocol::React,
        "Action: quick\nAction Input: {\"id\":\"a\"}\nAction: quick\nAction Input: {\"id\":\"b\"}",
    ),
    (ToolProtocol::Pythonic, "[quick(id=\"a\"), quick(id=\"b\")]"),
    (ToolProtocol::Arrow, "=>#quick {\"id\":\"a\"}"),
];

fn ids(protocol: ToolProtocol) -> &'static [&'static str] {
    if protocol == ToolProtocol::Arrow { &["a"] } else { &["a", "b"] }
}

/// Returns a response whose text comes in pieces of three characters.
fn in_pieces(text: &str) -> Response {
    let chars: Vec<char> = text.chars().collect();
    let pieces = chars.chunks(3).map(|piece| piece.iter().collect());
    Response { text: pieces.collect(), ..Response::default() }
}

fn with_protocol(protocol: ToolProtocol) -> impl FnOnce(&mut Config) {
    move |config| {
        parallel(4)(config);
        config.models.values_mut().for_each(|model| model.tool_protocol = protocol);
        let agent = config.agents.get_mut("default").unwrap();
        agent.system = "Be brief.".into();
    }
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

/// Returns the texts of a request that contain a part.
fn texts_with(request: &ReceivedRequest, part: &str) -> Vec<String> {
    let mut found = Vec::new();
    texts(&request.body, &mut found);
    found.retain(|text| text.contains(part));
    found
}

#[track_caller]
fn check_answered(report: &RunReport, text: &str, calls: &[&str]) {
    assert_eq!(report.run_end, RunEnd::Answered, "{:?}", report.error);
    assert_eq!(report.text, text);
    let made: Vec<_> = report.calls.iter().map(|call| call.arguments["id"].as_str()).collect();
    assert_eq!(made, calls.iter().copied().map(Some).collect::<Vec<_>>());
    assert!(report.calls.iter().all(|call| call.status == ToolStatus::Ok));
}

impl World {
    /// Returns the count of prompts that did not continue the one before, for a reason.
    fn prefix_breaks(&self, reason: &str) -> f64 {
        let page = self.host.telemetry().render();
        let line = format!("callsheet_prompt_prefix_breaks_total{{reason=\"{reason}\"}} ");
        let count = page.lines().find_map(|found| found.strip_prefix(&line));
        count.map_or(0.0, |count| count.parse().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_protocol_works_over_every_wire() {
    for (_, wire) in Wire::NAMES {
        for (protocol, call) in CALLS {
            for stream in [true, false] {
                let script = Script::new([
                    in_pieces(&format!("I look.\n{call}")),
                    in_pieces("It is done."),
                    Response::text("Again."),
                ]);
                let tools = registry(&CallControl::new());
                let world = world_of(wire, script, tools, |config| {
                    with_protocol(protocol)(config);
                    config.models.values_mut().for_each(|model| model.stream = stream);
                })
                .await;
                check_answered(&world.run("go").await, "It is done.", ids(protocol));
                check_answered(&world.run("more").await, "Again.", &[]);
                world.assert_paired();
                let requests = world.requests();
                assert_eq!(requests.len(), 3, "{wire} {protocol:?}");
                for request in &requests {
                    let body = &request.body;
                    assert!(body.get("tools").is_none() && body.get("tool_choice").is_none());
                    // The same text of the tools each time.
                    let system = texts_with(request, "\"name\":\"quick\"");
                    assert_eq!(system, texts_with(&requests[0], "\"name\":\"quick\""));
                    assert!(system.len() == 1 && system[0].starts_with("Be brief.\n\n# Tools"));
                }
                // The calls as the model wrote them, and the results in one message.
                let written = texts_with(&requests[1], "I look.");
                assert_eq!(written, [format!("I look.\n{call}")], "{wire} {protocol:?}");
                let results = texts_with(&requests[1], "done a");
                assert_eq!(results.len(), 1, "{wire} {protocol:?}");
                assert!(ids(protocol).iter().all(|id| results[0].contains(&format!("done {id}"))));
                assert!(results[0].contains("call_0_0"), "{results:?}");
                assert_eq!(world.prefix_breaks("unexplained"), 0.0, "{wire} {protocol:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_starts_at_the_end_of_its_call() {
    for wire in [Wire::OpenaiChat, Wire::AnthropicMessages, Wire::OllamaChat] {
        for (protocol, call) in CALLS {
            let control = CallControl::new();
            let mut response = in_pieces(&format!("{call}\nMore text follows."));
            // Within the last word, long after the calls.
            let last = response.text.len() - 1;
            response.text.insert(last, " and follows".into());
            let script = Script::new([
                response.hold(ScriptPosition::Finish, "end"),
                Response::text("Done."),
            ]);
            let world = world_of(wire, script, registry(&control), with_protocol(protocol)).await;
            let run = world.session.start_run("go").await.unwrap();
            for id in ids(protocol) {
                control.until_logged(&format!("end {id}")).await;
            }
            assert_eq!(world.requests().len(), 1, "the response has not ended");
            world.model.open_gate("end");
            check_answered(&within(run.report).await.unwrap(), "Done.", ids(protocol));
        }
    }
}

async fn run_with(world: &World, model: &str) -> RunReport {
    let overrides = RunOverrides::default().with(|new| new.model = Some(model.to_owned()));
    let request = RunRequest::from("go").with(|new| new.overrides = overrides);
    within(world.session.run(request)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_changes_between_models_with_and_without_tool_calling() {
    for (_, native) in Wire::NAMES {
        for (protocol, call) in CALLS {
            let calls = |ids: &[&str]| {
                Response::calls(ids.iter().map(|id| Call::new("quick", json!({"id": id}))))
            };
            let script = Script::new([
                calls(&["x", "y"]),
                Response::text("First."),
                in_pieces(call),
                Response::text("Second."),
                calls(&["z"]),
                Response::text("Third."),
            ]);
            let world = world_of(native, script, registry(&CallControl::new()), |config| {
                parallel(4)(config);
                let mut local = config.models["rehearsal"].clone();
                (local.wire, local.model) = (Wire::OpenaiChat, "local".into());
                local.tool_protocol = protocol;
                config.models.insert("local".into(), local);
                let agent = config.agents.get_mut("default").unwrap();
                agent.fallback_models = vec!["local".into()];
            })
            .await;
            check_answered(&run_with(&world, "rehearsal").await, "First.", &["x", "y"]);
            check_answered(&run_with(&world, "local").await, "Second.", ids(protocol));
            check_answered(&run_with(&world, "rehearsal").await, "Third.", &["z"]);
            world.assert_paired();
            let requests = world.requests();
            assert_eq!(requests.len(), 6);
            // The model without tool calling sees the calls of the other in its own form, and back.
            assert_eq!(texts_with(&requests[2], "done y").len(), 1);
            assert!(requests[2].body.get("tools").is_none());
            assert!(requests[4].body.get("tools").is_some());
            assert_eq!(texts_with(&requests[4], "# Tools"), Vec::<String>::new());
            assert_eq!(texts_with(&requests[4], "tool_response"), Vec::<String>::new());
            assert_eq!(world.prefix_breaks("unexplained"), 0.0, "{native} {protocol:?}");
        }
    }
}

#[tokio::test]
async fn a_fallback_has_its_own_protocol() {
    let script = Script::new([
        Response::status(401),
        in_pieces("<tool_call>{\"name\": \"quick\", \"arguments\": {\"id\": \"a\"}}</tool_call>"),
        Response::calls([Call::new("quick", json!({"id": "b"}))]),
        Response::text("Done."),
    ]);
    let world = world_of(Wire::OpenaiChat, script, registry(&CallControl::new()), |config| {
        let mut local = config.models["rehearsal"].clone();
        local.tool_protocol = ToolProtocol::Hermes;
        config.models.insert("local".into(), local);
        config.agents.get_mut("default").unwrap().fallback_models = vec!["local".into()];
    })
    .await;
    check_answered(&world.run("go").await, "Done.", &["a", "b"]);
    // Both have the same wire and the same name at the service.
    assert_eq!(world.prefix_breaks("unexplained"), 0.0);
    assert_eq!(world.prefix_breaks("fallback"), 2.0);
    assert_eq!(crate::support::results(&world.last_messages()).len(), 2);
}

#[tokio::test]
async fn a_final_answer_is_asked_for_in_words() {
    let call = "<tool_call>{\"name\": \"quick\", \"arguments\": {\"id\": \"a\"}}</tool_call>";
    let script = Script::new([
        in_pieces(call),
        // The model calls all the same: the call is dropped.
        in_pieces(&format!("So far so good. {call}")),
        Response::text("Next."),
    ]);
    let world = world_of(Wire::OpenaiChat, script, registry(&CallControl::new()), |config| {
        with_protocol(ToolProtocol::Hermes)(config);
        config.agents.get_mut("default").unwrap().limits.max_turns = Some(1);
    })
    .await;
    let report = world.run("go").await;
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::MaxTurns, "So far so good. "));
    let requests = world.requests();
    let words = "Do not call a tool in this response.";
    assert_eq!(texts_with(&requests[1], words).len(), 1);
    assert_eq!(texts_with(&requests[1], "# Tools"), texts_with(&requests[0], "# Tools"));
    world.run("more").await;
    assert_eq!(texts_with(&world.requests()[2], words), Vec::<String>::new());
    assert_eq!((world.prefix_breaks("unexplained"), world.prefix_breaks("output")), (0.0, 1.0));
}

#[tokio::test]
async fn calls_that_are_broken_are_repaired_or_answered() {
    let script = Script::new([
        in_pieces(
            "<tool_call>{'name': 'quick', 'arguments': {'id': 'a',}}</tool_call>\n\
             <tool_call>{\"name\": \"quick\", \"arguments\": {\"id\": b}}</tool_call>\n\
             <tool_call>{\"name\": \"missing\", \"arguments\": {}}</tool_call>",
        ),
        Response {
            finish_reason: Finish::Word("length".into()),
            ..in_pieces("<tool_call>{\"name\": \"quick\", \"arguments\": {\"id\": \"c\"}}")
        },
        Response {
            finish_reason: Finish::Word("length".into()),
            ..in_pieces("I call <tool_call>{\"name\": \"quick\", \"argu")
        },
        Response::text("Done."),
    ]);
    let control = CallControl::new();
    let world =
        world_of(Wire::OpenaiChat, script, registry(&control), with_protocol(ToolProtocol::Hermes))
            .await;
    let report = world.run("go").await;
    assert_eq!(report.text, "Done.");
    let statuses: Vec<_> = report.calls.iter().map(|call| call.status).collect();
    use ToolStatus::{Cancelled, Failed, Ok};
    assert_eq!(statuses, [Ok, Failed, Failed, Cancelled, Cancelled]);
    assert_eq!(control.log(), ["start a", "end a"]);
    let page = world.host.telemetry().render();
    let line = "callsheet_arguments_odd_total{oddity=\"repaired\"} 1";
    assert!(page.contains(line), "{page}");
    let results = texts_with(&world.requests()[1], "<tool_response");
    for part in ["done a", "invalid arguments", "there is no tool \\\"missing\\\""] {
        let part = part.replace("\\\"", "\"");
        assert!(results.iter().any(|text| text.contains(&part)), "{part}: {results:?}");
    }
    assert!(!texts_with(&world.requests()[2], "not run: the response was cut off").is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_other_forms_that_can_mean_nothing_else_run() {
    let object = "{\"name\": \"quick\", \"arguments\": {\"id\": \"a\"}}";
    let tagged = [
        format!("{object}</tool_call>"),
        format!("<think>\nI look.\n</think>\n\n{object}\n</tool_call>"),
        format!("<tools>\n{object}\n</tools>"),
    ];
    let whole = [
        object.to_owned(),
        format!("```json\n{object}\n```"),
        format!("<think>I look.</think>{object}"),
        "<|tool_call>call:quick{id:<|\"|>a<|\"|>}<tool_call|>".to_owned(),
    ];
    for (protocol, _) in CALLS {
        let has_tags = matches!(protocol, ToolProtocol::Hermes | ToolProtocol::Xml);
        for call in whole.iter().chain(tagged.iter().filter(|_| has_tags)) {
            for (wire, stream) in [
                (Wire::OpenaiChat, true),
                (Wire::OllamaChat, true),
                (Wire::AnthropicMessages, false),
            ] {
                let script = Script::new([in_pieces(call), in_pieces("It is done.")]);
                let tools = registry(&CallControl::new());
                let world = world_of(wire, script, tools, |config| {
                    with_protocol(protocol)(config);
                    config.models.values_mut().for_each(|model| model.stream = stream);
                })
                .await;
                check_answered(&world.run("go").await, "It is done.", &["a"]);
                world.assert_paired();
            }
        }
    }
}

#[tokio::test]
async fn objects_in_quotations_and_prose_stay_text() {
    let object = "{\"name\": \"quick\", \"arguments\": {\"id\": \"a\"}}";
    for text in [
        format!("It would be\n```json\n{object}\n```\nin the end."),
        format!("> {object}</tool_call>"),
        format!("The object {object} names it."),
        "{\"name\": \"Ada\", \"age\": 36}".to_owned(),
    ] {
        let tools = registry(&CallControl::new());
        let world = world_of(
            Wire::OpenaiChat,
            Script::new([in_pieces(&text)]),
            tools,
            with_protocol(ToolProtocol::Hermes),
        )
        .await;
        check_answered(&world.run("go").await, &text, &[]);
    }
}

#[tokio::test]
async fn a_second_call_in_the_protocol_arrow_is_counted_as_dropped() {
    let script = Script::new([
        in_pieces("=>#quick {\"id\":\"a\"}\n=>#quick {\"id\":\"b\"}"),
        Response::text("Done."),
    ]);
    let tools = registry(&CallControl::new());
    let world = world_of(Wire::OpenaiChat, script, tools, with_protocol(ToolProtocol::Arrow)).await;
    check_answered(&world.run("go").await, "Done.", &["a"]);
    let page = world.host.telemetry().render();
    assert!(page.contains("\ncallsheet_tool_calls_dropped_total 1\n"), "{page}");
}

#[tokio::test]
async fn a_grammar_holds_only_for_requests_that_may_call() {
    let call = "<tool_call>{\"name\": \"quick\", \"arguments\": {\"id\": \"a\"}}</tool_call>";
    for internal in [Some(json!({"seed": 4})), None] {
        let script = Script::new([in_pieces(call), Response::text("It is done.")]);
        let world = world_of(Wire::OpenaiChat, script, registry(&CallControl::new()), |config| {
            with_protocol(ToolProtocol::Hermes)(config);
            config.agents.get_mut("default").unwrap().limits.max_turns = Some(1);
            let model = config.models.get_mut("rehearsal").unwrap();
            model.extra_body.insert("grammar".into(), json!("root ::= \"a\""));
            model.extra_body_internal =
                internal.as_ref().and_then(|body| body.as_object().cloned());
        })
        .await;
        assert_eq!(world.run("go").await.run_end, RunEnd::MaxTurns);
        let requests = world.requests();
        let sent = |at: usize| {
            let body = &requests[at].body;
            (body.get("grammar").is_some(), body.get("seed").is_some())
        };
        assert_eq!(sent(0), (true, false));
        assert_eq!(sent(1), if internal.is_some() { (false, true) } else { (true, false) });
        assert_eq!(world.prefix_breaks("unexplained"), 0.0);
    }
}
