//! The options of a run: the rule for calling tools, a system prompt, parameters of the model, metadata and a
//! variable for its answer.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::client::Service;
use crate::support::{World, events, within, world, world_of};
use callsheet::config::{BaseUrl, Config, RunOverrides, Temperature, ToolChoice, ToolPattern};
use callsheet::journal::verify;
use callsheet::runtime::{AgentRules, OpenSession, RunRequest};
use callsheet::session::replay;
use callsheet::tool::{IntoTool, ToolRegistry, ToolSpec};
use callsheet::types::{RunEnd, Seq, Wire};
use callsheet::{Metadata, SessionQuery};
use callsheet_mock_provider::{Call, Response, Script};
use serde_json::{Value, json};

fn tools() -> ToolRegistry {
    let mut tools = ToolRegistry::default();
    let add = ToolSpec::named("add", "Adds two numbers.").repeatable();
    tools.register(add.into_tool(async |_: (), _| Ok("5"))).unwrap();
    tools
}

fn add() -> Response {
    Response::calls([Call::new("add", json!({}))])
}

fn with(change: impl FnOnce(&mut RunOverrides)) -> RunRequest {
    let overrides = RunOverrides::default().with(change);
    RunRequest::from("Add 2 and 3.").with(|new| new.overrides = overrides)
}

fn choosing(choice: &str) -> RunRequest {
    with(|new| new.tool_choice = Some(ToolChoice::from(choice)))
}

/// Checks that the records are valid and replay the same with the configuration of the world.
async fn check_records(world: &World, change: impl FnOnce(&mut Config)) {
    let entries = world.session.records(Seq(0)).await.unwrap();
    assert_eq!(verify(world.session.id(), &entries), []);
    let mut config = Config::default();
    config.set_rehearsal(BaseUrl::parse(&world.model.base_url()).unwrap());
    config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("add")];
    change(&mut config);
    let rules = AgentRules::new(&config, tools()).unwrap();
    let rules_of = |agent: &str, overrides: &RunOverrides, frozen: Option<&str>| {
        rules.rules(agent, overrides, frozen).map_err(|error| error.to_string())
    };
    if let Err(difference) = replay(&entries, rules_of) {
        let text: String = callsheet::journal::export::text(&entries).collect();
        panic!("{difference}\n{text}");
    }
    world.assert_paired();
}

fn choice_of(wire: Wire, body: &Value) -> Value {
    let is_gemini = wire == Wire::GeminiGenerate;
    let pointer = if is_gemini { "/toolConfig/functionCallingConfig" } else { "/tool_choice" };
    body.pointer(pointer).cloned().unwrap_or_default()
}

#[tokio::test]
async fn every_wire_forces_a_call_in_the_first_turn_only() {
    let function = json!({"type": "function", "function": {"name": "add"}});
    let gemini = |mode: &str| json!({"mode": mode});
    let allowed = json!({"mode": "ANY", "allowedFunctionNames": ["add"]});
    for (wire, required, named, auto) in [
        (Wire::OpenaiChat, json!("required"), function, json!("auto")),
        (
            Wire::OpenaiResponses,
            json!("required"),
            json!({"type": "function", "name": "add"}),
            json!("auto"),
        ),
        (
            Wire::AnthropicMessages,
            json!({"type": "any"}),
            json!({"type": "tool", "name": "add"}),
            json!({"type": "auto"}),
        ),
        (Wire::GeminiGenerate, gemini("ANY"), allowed, gemini("AUTO")),
        (Wire::OllamaChat, Value::Null, Value::Null, Value::Null),
    ] {
        for (choice, expected) in [("required", required), ("add", named)] {
            let script = Script::new([add(), Response::text("It is 5.")]);
            let world = world_of(wire, script, tools(), |_| {}).await;
            let report = within(world.session.run(choosing(choice))).await.unwrap();
            assert_eq!((report.run_end, report.calls.len()), (RunEnd::Answered, 1), "{wire:?}");
            let choices: Vec<_> =
                world.requests().iter().map(|r| choice_of(wire, &r.body)).collect();
            assert_eq!(choices, [expected, auto.clone()], "{wire:?} {choice}");
        }
    }
}

#[tokio::test]
async fn a_run_without_the_required_call_asks_once_more_and_then_says_so() {
    // An empty answer is asked for again unchanged first.
    for (responses, requests, calls, asked_again) in [
        (vec![Response::text("5"), add(), Response::text("It is 5.")], 3, 1, 1),
        (vec![Response::text("5"), Response::text("It is 5.")], 2, 0, 1),
        (vec![Response::text(""), Response::text(""), Response::text("It is 5.")], 3, 0, 2),
    ] {
        let world = world(Script::new(responses).then_done(), tools(), |config| {
            config.agents.get_mut("default").unwrap().limits.max_turns = Some(2);
        })
        .await;
        let started = world.session.start_run(choosing("required")).await.unwrap();
        let events = events(started.events).await;
        let report = within(started.report).await.unwrap();
        assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "It is 5."));
        assert_eq!((world.requests().len(), report.calls.len()), (requests, calls));
        let again = &world.requests()[asked_again].body;
        assert_eq!(again["tool_choice"], "required");
        assert!(again["messages"].to_string().contains("Call one of your tools"), "{again}");
        let limit = events.iter().find(|event| event["limit"] == "tool_choice");
        assert_eq!(limit.is_some(), calls == 0, "{events:#?}");
        if let Some(limit) = limit {
            let found = (&limit["type"], &limit["value"], &limit["maximum"]);
            assert_eq!(found, (&json!("limit_reached"), &json!(2), &json!(2)));
        }
        check_records(&world, |config| {
            config.agents.get_mut("default").unwrap().limits.max_turns = Some(2);
        })
        .await;
    }
}

#[tokio::test]
async fn a_run_that_may_call_no_tool_drops_calls() {
    let script = Script::new([add(), Response::text("It is 5.")]);
    let world = world(script, tools(), |_| {}).await;
    let report = within(world.session.run(choosing("none"))).await.unwrap();
    assert_eq!((report.text.as_str(), report.calls.len()), ("It is 5.", 0));
    assert!(world.requests().iter().all(|request| request.body["tool_choice"] == "none"));
    check_records(&world, |_| {}).await;
}

#[tokio::test]
async fn a_system_prompt_and_a_temperature_hold_for_their_run_and_its_fallbacks() {
    let script = Script::new([
        Response::text("one"),
        Response::status(500),
        Response::text("two"),
        Response::text("three"),
    ]);
    let change = |config: &mut Config| {
        let mut model = config.models.values().next().unwrap().clone();
        (model.max_attempts, model.max_output_tokens) = (1, Some(100));
        let second = model.clone();
        config.models.values_mut().for_each(|first| *first = model.clone());
        config.models.insert("second".to_owned(), second);
        let agent = config.agents.get_mut("default").unwrap();
        agent.fallback_models = vec!["second".to_owned()];
        (agent.allow_overrides, agent.system) = (true, "Own.".to_owned());
    };
    let world = world(script, tools(), change).await;
    world.run("go").await;
    let request = with(|new| {
        new.system = Some("Other.".to_owned());
        new.temperature = Some(Temperature::new(0.5).unwrap());
        new.max_output_tokens = std::num::NonZeroU32::new(50);
    });
    within(world.session.run(request)).await.unwrap();
    world.run("go").await;
    let sent: Vec<_> = world
        .requests()
        .iter()
        .map(|request| {
            let body = &request.body;
            let system = body["messages"][0]["content"].as_str().unwrap().to_owned();
            (system, body["temperature"].as_f64(), body["max_tokens"].as_u64())
        })
        .collect();
    let own = ("Own.".to_owned(), None, Some(100));
    let other = ("Other.".to_owned(), Some(0.5), Some(50));
    assert_eq!(sent, [own.clone(), other.clone(), other, own]);
    let page = world.host.telemetry().render();
    assert!(page.contains("prompt_prefix_breaks_total{reason=\"run_override\"} 2"), "{page}");
    check_records(&world, |config| {
        change(config);
        // The run was admitted once.
        config.agents.get_mut("default").unwrap().allow_overrides = false;
    })
    .await;
}

#[tokio::test]
async fn a_fallback_keeps_its_own_maximum_length_where_that_is_lower() {
    for (may_raise, own, requested, expected) in [
        (true, Some(30), 200, [200, 30]),
        (true, None, 200, [200, 200]),
        (false, Some(30), 50, [50, 30]),
    ] {
        let script = Script::new([Response::status(401), Response::text("Here.")]);
        let world = world(script, tools(), |config| {
            let first = config.models.values_mut().next().unwrap();
            first.max_output_tokens = Some(100);
            let second = first.clone().with(|new| new.max_output_tokens = own);
            config.models.insert("second".to_owned(), second);
            let agent = config.agents.get_mut("default").unwrap();
            agent.fallback_models = vec!["second".to_owned()];
            agent.allow_overrides = may_raise;
        })
        .await;
        let request = with(|new| new.max_output_tokens = std::num::NonZeroU32::new(requested));
        within(world.session.run(request)).await.unwrap();
        let requests = world.requests();
        let sent: Vec<_> =
            requests.iter().map(|request| request.body["max_tokens"].as_u64()).collect();
        assert_eq!(sent, expected.map(Some), "{may_raise} {own:?}");
    }
}

#[tokio::test]
async fn metadata_is_in_lists_events_reports_of_state_and_exports_and_not_in_metrics() {
    let world = world(Script::new([Response::text("Hello.")]), tools(), |_| {}).await;
    let open = OpenSession::from("m").with_metadata(Metadata::new([("user", "u-17")]).unwrap());
    let session = world.host.open_session(open).await.unwrap();
    let metadata = Metadata::new([("order", "o-4711")]).unwrap();
    let request = RunRequest::from("Hello?").with_metadata(metadata);
    let started = session.start_run(request).await.unwrap();
    let events = events(started.events).await;
    assert_eq!(events[0]["metadata"], json!({"user": "u-17", "order": "o-4711"}));
    let listed = world.host.sessions(SessionQuery::default()).await.unwrap();
    let listed = listed.iter().find(|session| session.id.as_str() == "m").unwrap();
    assert_eq!(listed.metadata.get("user"), Some("u-17"));
    assert_eq!(session.snapshot().await.unwrap().metadata.get("user"), Some("u-17"));
    let entries = session.records(Seq(0)).await.unwrap();
    let text: String = callsheet::journal::export::text(&entries).collect();
    let markdown: String = callsheet::journal::export::markdown(session.id(), &entries).collect();
    for export in [text, markdown] {
        assert!(export.contains("u-17") && export.contains("o-4711"), "{export}");
    }
    assert!(!world.requests()[0].body.to_string().contains("u-17"), "the model receives none");
    let page = world.host.telemetry().render();
    assert!(!page.contains("u-17") && !page.contains("o-4711"), "{page}");
}

#[tokio::test]
async fn bad_requests_have_one_clear_error_each() {
    let config = "[agents.default]\ntools = [\"clock\"]\n[agents.free]\nallow_overrides = true\ntools = []\n";
    let config = format!(
        "{config}[models.small]\nbase_url = \"http://127.0.0.1:9\"\nmodel = \"m\"\n\
        max_output_tokens = 100\n[agents.small]\nmodel = \"small\"\n"
    );
    let config = config.replace("[agents.default]", "[agents.default]\nmodel = \"rehearsal\"");
    let config = config.replace("[agents.free]", "[agents.free]\nmodel = \"rehearsal\"");
    let service = Service::start_with(json!({"responses": []}), &config, Default::default()).await;
    for agent in ["default", "free", "small"] {
        let opened = service.post("/v1/sessions", json!({"id": agent, "agent": agent})).await;
        assert_eq!(opened.status, 201, "{agent}");
    }
    let pairs: serde_json::Map<_, _> = (0..17).map(|n| (n.to_string(), json!("v"))).collect();
    for (agent, body, status, code, part) in [
        (
            "default",
            json!({"tool_choice": "nope"}),
            400,
            "unknown_tool",
            "\"nope\" (offered: clock",
        ),
        ("free", json!({"tool_choice": "required"}), 400, "unknown_tool", "tool_choice"),
        ("default", json!({"system": "x"}), 400, "override_not_allowed", "system: "),
        ("default", json!({"temperature": 1}), 400, "override_not_allowed", "temperature: "),
        ("free", json!({"temperature": 3}), 400, "invalid_request", "from 0 to 2"),
        ("small", json!({"max_output_tokens": 101}), 400, "limit_too_high", "101 is more"),
        ("small", json!({"max_output_tokens": 0}), 400, "invalid_request", "from 1 to"),
        ("default", json!({"metadata": pairs}), 400, "invalid_request", "at most 16 pairs"),
        ("default", json!({"metadata": {"a": 1}}), 400, "invalid_request", "metadata"),
        ("default", json!({"into": ""}), 400, "invalid_variable", "1 to 128 bytes"),
        ("default", json!({"output": {"schema": {"type": 7}}}), 400, "invalid_output", "schema"),
        ("default", json!({"output": {"mode": "auto"}}), 400, "invalid_request", "schema"),
        (
            "default",
            json!({"output": {"schema": {}, "mode": "best"}}),
            400,
            "invalid_request",
            "not `best`",
        ),
    ] {
        let mut whole = json!({"input": "Hello."});
        whole.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let answer = service.post(&format!("/v1/sessions/{agent}/runs"), whole).await;
        let error = &answer.json()["error"];
        assert_eq!(
            (answer.status, error["code"].as_str().unwrap()),
            (status, code),
            "{body} {error}"
        );
        assert!(error["message"].as_str().unwrap().contains(part), "{body} {error}");
    }
}

#[tokio::test]
async fn a_report_and_the_list_over_http_have_the_new_members() {
    let script = json!({"responses": [{"text": ["{\"a\": 1}"], "repeat": true}]});
    let service = Service::start(script).await;
    let metadata = json!({"user": "u-1"});
    let opened = service.post("/v1/sessions", json!({"id": "s", "metadata": metadata})).await;
    assert_eq!(opened.status, 201);
    let output = json!({"schema": {"type": "object"}, "mode": "prompt"});
    let body = json!({"input": "go", "wait": true, "output": output, "into": "answer",
        "metadata": {"order": "7"}, "max_output_tokens": 10});
    let answer = service.post("/v1/sessions/s/runs", body).await;
    let report = answer.json();
    assert_eq!((answer.status, &report["output"]), (200, &json!({"a": 1})), "{report}");
    let (started, ended) = (report["started_at"].as_u64(), report["ended_at"].as_u64());
    assert!(started > Some(1_600_000_000_000) && started <= ended, "{report}");
    let list = service.get("/v1/sessions").await.json();
    assert_eq!(list["sessions"][0]["metadata"], metadata, "{list}");
    let snapshot = service.get("/v1/sessions/s").await.json();
    assert_eq!(
        (&snapshot["metadata"], &snapshot["variables"]["answer"]),
        (&metadata, &json!({"a": 1}))
    );
}
