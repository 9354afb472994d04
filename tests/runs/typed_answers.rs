//! Typed answers over real HTTP, on every wire: the run goes on untouched, then the answer is asked for in the
//! form of its schema.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support::{World, events, within, world, world_of};
use callsheet::config::{BaseUrl, Config, OutputMode, OutputRequest, RunOverrides, ToolPattern};
use callsheet::journal::verify;
use callsheet::record::{Record, Seq};
use callsheet::runtime::{AgentRules, OpenSession, RunReport, RunRequest, TypedRunError};
use callsheet::session::replay;
use callsheet::tool::{IntoTool, ToolRegistry, ToolSpec};
use callsheet::types::{RunEnd, Wire};
use callsheet_mock_provider::{Call, Finish, Response, Script};
use serde_json::{Value, json};

const WIRES: [Wire; 5] = [
    Wire::OpenaiChat,
    Wire::OpenaiResponses,
    Wire::AnthropicMessages,
    Wire::GeminiGenerate,
    Wire::OllamaChat,
];
const MODES: [OutputMode; 4] =
    [OutputMode::Auto, OutputMode::Native, OutputMode::Tool, OutputMode::Prompt];
const JSON: &str = "{\"sum\": 5}";

fn schema() -> Value {
    let sum = json!({"type": "integer", "minimum": 0});
    json!({"type": "object", "properties": {"sum": sum}, "required": ["sum"]})
}

fn tools() -> ToolRegistry {
    let mut tools = ToolRegistry::default();
    let add = ToolSpec::named("add", "Adds two numbers.").repeatable();
    tools.register(add.into_tool(async |_: (), _| Ok("5"))).unwrap();
    tools
}

fn add() -> Call {
    Call::new("add", json!({}))
}

fn typed(mode: OutputMode) -> RunRequest {
    let output = OutputRequest::new(schema()).with(|new| new.mode = mode);
    let overrides = RunOverrides::default().with(|new| new.output = Some(output));
    RunRequest::from("Add 2 and 3.").with(|new| new.overrides = overrides)
}

async fn start(wire: Wire, responses: Vec<Response>) -> World {
    world_of(wire, Script::new(responses).then_done(), tools(), |config| {
        config.models.values_mut().for_each(|model| model.max_attempts = 1);
    })
    .await
}

/// Checks that the records are valid, have a line each, replay the same, and hold the report.
async fn check_records(world: &World, wire: Wire, report: &RunReport) {
    let entries = world.session.records(Seq(0)).await.unwrap();
    let text: String = callsheet::journal::export::text(&entries).collect();
    let breaches = verify(world.session.id(), &entries);
    assert!(breaches.is_empty(), "{breaches:?}\n{text}");
    let markdown = callsheet::journal::export::markdown(world.session.id(), &entries);
    assert!(!markdown.collect::<String>().is_empty());
    let mut config = Config::default();
    config.set_rehearsal(BaseUrl::parse(&world.model.base_url()).unwrap());
    config.models.values_mut().for_each(|model| {
        (model.wire, model.max_attempts) = (wire, 1);
    });
    config.agents.get_mut("default").unwrap().tools = vec![ToolPattern::new("add")];
    let rules = AgentRules::new(&config, tools()).unwrap();
    let rules_of = |agent: &str, overrides: &RunOverrides, frozen: Option<&str>| {
        rules.rules(agent, overrides, frozen).map_err(|error| error.to_string())
    };
    if let Err(difference) = replay(&entries, rules_of) {
        panic!("{difference}\n{text}");
    }
    let end = entries.iter().rev().find_map(|entry| {
        let Record::RunEnded { end, output, .. } = &entry.record else { return None };
        Some((*end, output.clone(), entry.time))
    });
    assert_eq!(end, Some((report.run_end, report.output.clone(), report.ended_at)));
    assert!(report.started_at > 0 && report.started_at <= report.ended_at);
    world.assert_paired();
}

/// Returns true if a request asks for the answer by the field of its wire.
fn has_field(wire: Wire, body: &Value) -> bool {
    let found = match wire {
        Wire::OpenaiChat => body.pointer("/response_format/json_schema/schema"),
        Wire::OpenaiResponses => body.pointer("/text/format/schema"),
        Wire::AnthropicMessages => body.pointer("/output_config/format/schema"),
        Wire::GeminiGenerate => body.pointer("/generationConfig/responseJsonSchema"),
        Wire::OllamaChat => body.pointer("/format"),
    };
    found.is_some()
}

/// A model's answers to requests for the form of the answer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Case {
    Valid,
    Fenced,
    Prose,
    Cut,
    WrongType,
    Never,
}

fn answer(case: Case, mode: OutputMode) -> Response {
    let value = |value: Value| {
        let object = json!({"sum": value});
        let is_call = mode == OutputMode::Tool;
        if is_call {
            Response::calls([Call::new("final_answer", object)])
        } else {
            Response::text(&object.to_string())
        }
    };
    let cut = |response: Response| {
        response.with(|new| new.finish_reason = Finish::Word("length".to_owned()))
    };
    match case {
        Case::Valid => value(json!(5)),
        Case::Fenced => Response::text(&format!("Here it is:\n\n```json\n{JSON}\n```\nDone.")),
        Case::Prose | Case::Never => Response::text("It is 5, as I said."),
        Case::Cut if mode == OutputMode::Tool => {
            cut(Response::calls([Call::raw("final_answer", "{\"sum\": ")]))
        }
        Case::Cut => cut(Response::text("{\"sum\": ")),
        Case::WrongType => value(json!("five")),
    }
}

#[tokio::test]
async fn every_wire_and_mode_ends_with_a_typed_outcome() {
    let cases = [Case::Valid, Case::Fenced, Case::Prose, Case::Cut, Case::WrongType, Case::Never];
    for wire in WIRES {
        for mode in MODES {
            for case in cases {
                let what = format!("{wire:?} {mode:?} {case:?}");
                let mut responses = vec![Response::calls([add()]), Response::text("It is 5.")];
                responses.push(answer(case, mode));
                let again = if case == Case::Never { Case::Never } else { Case::Valid };
                responses.extend([answer(again, mode), answer(again, mode)]);
                let world = start(wire, responses).await;
                let report = within(world.session.run(typed(mode))).await.unwrap();
                let requests = world.requests();
                let extra = match case {
                    Case::Valid | Case::Fenced => 1,
                    Case::Prose | Case::Cut | Case::WrongType => 2,
                    Case::Never => 3,
                };
                assert_eq!(requests.len(), 2 + extra, "{what}");
                let is_native = matches!(mode, OutputMode::Auto | OutputMode::Native);
                for (request, number) in requests.iter().zip(0..) {
                    let expected = is_native && number >= 2;
                    assert_eq!(has_field(wire, &request.body), expected, "{what} {number}");
                    let body = request.body.to_string();
                    assert!(body.contains("Adds two numbers."), "{what} {number}");
                    let offers = mode == OutputMode::Tool && number >= 2;
                    assert_eq!(body.contains("Gives the final answer."), offers, "{what}");
                }
                match case {
                    Case::Never => {
                        assert_eq!(report.run_end, RunEnd::Failed, "{what}");
                        let error = report.error.as_ref().unwrap();
                        assert_eq!(error.code, "OUTPUT_INVALID", "{what}");
                        assert!(error.message.contains("not JSON"), "{what}: {error:?}");
                        assert_eq!(report.text, "It is 5, as I said.", "{what}");
                        assert_eq!(report.output, None, "{what}");
                    }
                    Case::Valid | Case::Fenced | Case::Prose | Case::Cut | Case::WrongType => {
                        assert_eq!(report.run_end, RunEnd::Answered, "{what}: {:?}", report.error);
                        let output = report.output.as_deref();
                        assert_eq!(output, Some(&json!({"sum": 5})), "{what}");
                    }
                }
                assert_eq!(report.calls.iter().filter(|call| &*call.tool_name == "add").count(), 1);
                check_records(&world, wire, &report).await;
            }
        }
    }
}

#[tokio::test]
async fn a_text_that_matches_is_the_answer_and_costs_no_request() {
    for text in [JSON, "The sum:\n```\n{\"sum\": 5}\n```"] {
        let world = start(Wire::OpenaiChat, vec![Response::text(text)]).await;
        let started = world.session.start_run(typed(OutputMode::Auto)).await.unwrap();
        let events = events(started.events).await;
        let report = within(started.report).await.unwrap();
        assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, text));
        assert_eq!(report.output.as_deref(), Some(&json!({"sum": 5})));
        assert_eq!(events.last().unwrap()["output"], json!({"sum": 5}));
        assert_eq!(world.requests().len(), 1);
        check_records(&world, Wire::OpenaiChat, &report).await;
    }
}

#[tokio::test]
async fn tools_are_called_on_a_service_that_enforces_a_schema_from_the_first_token() {
    // The script answers a request with a schema only with JSON, as vLLM does: it would call no tools.
    let responses = vec![
        Response::calls([add()]),
        Response::calls([add(), add()]),
        Response::text("It is 5."),
        Response::text(JSON),
    ];
    let world = start(Wire::OpenaiChat, responses).await;
    let report = within(world.session.run(typed(OutputMode::Native))).await.unwrap();
    assert_eq!((report.calls.len(), report.turns), (3, 3));
    let with_schema: Vec<_> =
        world.requests().iter().map(|r| has_field(Wire::OpenaiChat, &r.body)).collect();
    assert_eq!(with_schema, [false, false, false, true]);
    let last = &world.requests()[3].body;
    assert_eq!(last["tool_choice"], "none");
    assert_eq!(last["response_format"]["json_schema"]["strict"], true);
    let messages = world.last_messages();
    assert_eq!(messages.last().unwrap()["role"], "user");
    check_records(&world, Wire::OpenaiChat, &report).await;
    // Without the record of the message, the request would count as a turn.
    let mut entries = world.session.records(Seq(0)).await.unwrap();
    entries.retain(|entry| !matches!(entry.record, Record::Instructed { .. }));
    entries.iter_mut().zip(1..).for_each(|(entry, seq)| entry.seq = Seq(seq));
    assert!(!verify(world.session.id(), &entries).is_empty());
}

#[tokio::test]
async fn a_typed_answer_may_have_no_text_and_then_text_is_an_error() {
    let final_answer = Response::calls([Call::new("final_answer", json!({"sum": 5}))]);
    // An empty answer is asked for again, once.
    let responses = vec![Response::text(""), Response::text(""), final_answer];
    let world = start(Wire::OpenaiChat, responses).await;
    let report = within(world.session.run(typed(OutputMode::Tool))).await.unwrap();
    assert_eq!(report.output.as_deref(), Some(&json!({"sum": 5})), "{report:?}");
    assert_eq!(report.text, "");
    let error = report.text().unwrap_err().to_string();
    assert!(error.ends_with("RunReport::output has a typed answer"), "{error}");
}

#[tokio::test]
async fn calls_beside_the_final_answer_run_and_its_value_counts() {
    let final_answer = Call::new("final_answer", json!({"sum": 5}));
    let responses = vec![Response::text("It is 5."), Response::calls([add(), final_answer])];
    let world = start(Wire::OpenaiChat, responses).await;
    let report = within(world.session.run(typed(OutputMode::Tool))).await.unwrap();
    assert_eq!(report.output.as_deref(), Some(&json!({"sum": 5})), "{report:?}");
    assert_eq!(report.text, "It is 5.");
    let outcomes: Vec<_> =
        report.calls.iter().map(|call| (&*call.tool_name, &*call.result)).collect();
    assert_eq!(outcomes, [("add", "5"), ("final_answer", "accepted")]);
    let choice = &world.requests()[1].body["tool_choice"];
    assert_eq!(*choice, json!({"type": "function", "function": {"name": "final_answer"}}));
    check_records(&world, Wire::OpenaiChat, &report).await;
}

#[tokio::test]
async fn a_service_that_refuses_the_field_is_asked_by_a_prompt() {
    for wire in WIRES {
        let responses =
            vec![Response::text("It is 5."), Response::status(400), Response::text(JSON)];
        let world = start(wire, responses).await;
        let report = within(world.session.run(typed(OutputMode::Auto))).await.unwrap();
        assert_eq!(report.output.as_deref(), Some(&json!({"sum": 5})), "{wire:?} {report:?}");
        let fields: Vec<_> = world.requests().iter().map(|r| has_field(wire, &r.body)).collect();
        assert_eq!(fields, [false, true, false], "{wire:?}");
        assert!(world.requests()[2].body.to_string().contains("The schema:"), "{wire:?}");
        let entries = world.session.records(Seq(0)).await.unwrap();
        assert_eq!(verify(world.session.id(), &entries), [], "{wire:?}");
    }
    let responses = vec![Response::text("It is 5."), Response::status(400)];
    let world = start(Wire::OpenaiChat, responses).await;
    let report = within(world.session.run(typed(OutputMode::Native))).await.unwrap();
    assert_eq!(report.error.unwrap().code, "provider_error");
    assert_eq!(report.text, "It is 5.");
}

#[tokio::test]
async fn an_agent_has_a_schema_and_a_number_of_retries() {
    let responses = vec![Response::text("no"), Response::text("no"), Response::text(JSON)];
    let script = Script::new(responses.clone()).then_done();
    let with_schema = |retries: u32| {
        move |config: &mut Config| {
            let agent = config.agents.get_mut("default").unwrap();
            agent.output_schema = Some(schema().into());
            agent.output_retries = retries;
        }
    };
    let world_of_none = world(script.clone(), tools(), with_schema(0)).await;
    let report = world_of_none.run("go").await;
    assert_eq!(report.error.unwrap().code, "OUTPUT_INVALID");
    assert_eq!(world_of_none.requests().len(), 2);
    let world_of_one = world(script, tools(), with_schema(1)).await;
    let started = world_of_one.session.start_run("go").await.unwrap();
    let events = events(started.events).await;
    assert_eq!(events.last().unwrap()["output"], json!({"sum": 5}));
    let told = world_of_one.last_messages().last().unwrap()["content"].to_string();
    assert!(told.contains("does not match") && told.contains("not JSON"), "{told}");
}

#[tokio::test]
async fn a_stop_after_the_turn_and_a_used_up_budget_end_the_requests() {
    let responses = vec![Response::text("It is 5."), Response::text("It is 5.")];
    let limited = world(Script::new(responses).then_done(), tools(), |config| {
        config.agents.get_mut("default").unwrap().limits.max_tokens_per_run = Some(1);
    })
    .await;
    let report = within(limited.session.run(typed(OutputMode::Prompt))).await.unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Budget, "It is 5."));
    assert_eq!(limited.requests().len(), 1);
}

#[tokio::test]
async fn at_the_maximum_of_turns_the_final_answer_is_asked_for_in_its_form() {
    let responses = vec![Response::calls([add()]), Response::text(JSON)];
    let world = world(Script::new(responses).then_done(), tools(), |config| {
        config.agents.get_mut("default").unwrap().limits.max_turns = Some(1);
    })
    .await;
    let report = within(world.session.run(typed(OutputMode::Native))).await.unwrap();
    assert_eq!((report.run_end, report.turns), (RunEnd::MaxTurns, 1));
    assert_eq!(report.output.as_deref(), Some(&json!({"sum": 5})));
    assert!(has_field(Wire::OpenaiChat, &world.requests()[1].body));
}

#[derive(Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
struct Sum {
    sum: u32,
}

#[tokio::test]
async fn a_rust_type_is_a_schema_and_an_answer() {
    let responses = vec![Response::text("5"), Response::text(JSON)];
    let world = start(Wire::OpenaiChat, responses).await;
    let run = within(world.session.run_typed::<Sum>("Add.")).await.unwrap();
    assert_eq!((run.output, run.report.turns), (Sum { sum: 5 }, 1));
    let world = start(Wire::OpenaiChat, vec![Response::text("no").with(|r| r.repeat = true)]).await;
    let error = within(world.session.run_typed::<Sum>("Add.")).await.unwrap_err();
    let TypedRunError::Failed(failed) = &error else { panic!("{error:?}") };
    assert_eq!(failed.error.as_ref().unwrap().code, "OUTPUT_INVALID");
    let list = start(Wire::OpenaiChat, vec![Response::text("[1, 2]")]).await;
    let run = within(list.session.run_typed::<Vec<u8>>("List.")).await.unwrap();
    assert_eq!(run.output, [1, 2]);
}

#[tokio::test]
async fn an_answer_goes_into_a_variable_and_is_kept_by_a_fork() {
    let responses = vec![Response::text(JSON), Response::text("Plain.")];
    let world = start(Wire::OpenaiChat, responses).await;
    within(world.session.run(typed(OutputMode::Auto).into_variable("sum"))).await.unwrap();
    within(world.session.run(RunRequest::from("And?").into_variable("text"))).await.unwrap();
    let snapshot = world.session.snapshot().await.unwrap();
    assert_eq!(snapshot.variable("sum"), Some(&json!({"sum": 5})));
    let all: Vec<_> = snapshot.variables().collect();
    assert_eq!(all, [("sum", &json!({"sum": 5})), ("text", &json!("Plain."))]);
    let last = world.session.records(Seq(0)).await.unwrap().last().unwrap().seq;
    let fork = world.host.fork(&world.session, last, None).await.unwrap();
    let forked = fork.snapshot().await.unwrap();
    assert_eq!(forked.variables, snapshot.variables);
    let other = world.host.open_session(OpenSession::default()).await.unwrap();
    let error = other.run(RunRequest::from("go").into_variable("")).await.unwrap_err();
    assert_eq!(error.code(), "invalid_variable");
}

/// Anthropic's service refuses to force a call while its model thinks.
#[tokio::test]
async fn a_model_that_thinks_is_asked_for_a_call_in_words() {
    let thinking = json!({"type": "enabled", "budget_tokens": 1024});
    let start = async |responses: Vec<Response>| {
        world_of(Wire::AnthropicMessages, Script::new(responses).then_done(), tools(), |config| {
            config.models.values_mut().for_each(|model| {
                model.max_attempts = 1;
                model.extra_body.insert("thinking".to_owned(), thinking.clone());
            });
        })
        .await
    };
    // The form of the answer.
    let answer = Response::calls([Call::new("final_answer", json!({"sum": 5}))]);
    let world = start(vec![Response::text("It is 5."), answer]).await;
    let report = within(world.session.run(typed(OutputMode::Tool))).await.unwrap();
    assert_eq!(
        (report.run_end, report.output.as_deref()),
        (RunEnd::Answered, Some(&json!({"sum": 5})))
    );
    let last = world.requests().last().unwrap().body.clone();
    assert_eq!(last["tool_choice"], json!({"type": "auto"}));
    assert!(last["messages"].to_string().contains("by a call of the tool final_answer"), "{last}");
    world.assert_paired();
    // A call that the run asks for.
    let world = start(vec![Response::text("No."), Response::calls([add()])]).await;
    let overrides = RunOverrides::default()
        .with(|new| new.tool_choice = Some(callsheet::config::ToolChoice::Required));
    let request = RunRequest::from("Add.").with(|new| new.overrides = overrides);
    let report = within(world.session.run(request)).await.unwrap();
    assert_eq!((report.run_end, report.calls.len()), (RunEnd::Answered, 1));
    world.assert_paired();
}
