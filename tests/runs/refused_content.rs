//! A service that refuses content: images, results of tools, inputs. The run goes on without it where it can, and the
//! session always answers the next plain question.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use crate::support::tools::{CallControl, registry};
use crate::support::{World, events, within, world_of};
use callsheet::config::{BaseUrl, Config, RunOverrides, ToolPattern};
use callsheet::journal::verify;
use callsheet::record::{Compaction, JournalEntry, Record, Seq};
use callsheet::runtime::{AgentRules, RunReport, RunRequest};
use callsheet::session::replay;
use callsheet::tool::{IntoTool, ToolOutput, ToolRegistry, ToolSpec};
use callsheet::types::{Content, ContentPart, Image, RunEnd, Wire};
use callsheet_mock_provider::{Call, Response, Script, When};
use serde_json::{Value, json};

const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII=";
/// A word for which the scripted service refuses a request.
const BAD: &str = "unspeakable";
const RUNS: usize = 50;

fn pixel() -> Image {
    Image::Base64 { media_type: "image/png".into(), data: PIXEL.into() }
}

/// The tools `chart`, whose result has an image, and `fetch`, whose result has a text that is refused.
fn tools() -> ToolRegistry {
    let mut tools = registry(&CallControl::new());
    let chart = ToolSpec::named("chart", "Draws a chart.")
        .into_tool(move |(): (), _| async { Ok(ToolOutput::from("Sales:").with_part(pixel())) });
    let fetch = ToolSpec::named("fetch", "Fetches a page.")
        .into_tool(move |(): (), _| async { Ok(ToolOutput::from(format!("A page, {BAD}."))) });
    tools.register(chart).unwrap();
    tools.register(fetch).unwrap();
    tools
}

/// Starts a host whose service refuses each request that has `part`, by this error.
async fn refusing(wire: Wire, part: &str, status: u16, error: Value) -> World {
    let when = When { contains: Some(part.to_owned()), ..When::default() };
    let refused = Response {
        when,
        repeat: true,
        error: Some(json!({ "error": error })),
        ..Response::status(status)
    };
    let calls = |word: &str, tool: &str| {
        let (last_user, turns) = (Some(word.to_owned()), Some(0));
        let when = When { last_user, turns, ..When::default() };
        Response { when, repeat: true, ..Response::calls([Call::new(tool, json!({}))]) }
    };
    let answer = Response { repeat: true, ..Response::text("Fine.") };
    let script = [refused, calls("draw it", "chart"), calls("read it", "fetch"), answer];
    world_of(wire, Script::new(script), tools(), |_| ()).await
}

async fn run(world: &World, input: impl Into<Content>) -> RunReport {
    within(world.session.run(RunRequest::from(input.into()))).await.unwrap()
}

fn with_image() -> Content {
    vec![ContentPart::Text("What is this?".to_owned()), ContentPart::Image(pixel())].into()
}

async fn records(world: &World) -> Vec<JournalEntry> {
    world.session.records(Seq(0)).await.unwrap()
}

/// Checks the records, and that a replay makes the same ones and the same messages.
async fn check_stored(world: &World, wire: Wire) {
    let entries = records(world).await;
    let breaches = verify(world.session.id(), &entries);
    assert!(breaches.is_empty(), "{breaches:?}");
    let mut config = Config::default();
    config.set_rehearsal(BaseUrl::parse(&world.model.base_url()).unwrap());
    config.models.values_mut().for_each(|model| model.wire = wire);
    let agent = config.agents.get_mut("default").unwrap();
    agent.tools = tools().iter().map(|(name, _)| ToolPattern::new(name)).collect();
    let rules = AgentRules::new(&config, tools()).unwrap();
    let rules_of = |agent: &str, overrides: &RunOverrides, frozen: Option<&str>| {
        rules.rules(agent, overrides, frozen).map_err(|error| error.to_string())
    };
    if let Err(difference) = replay(&entries, rules_of) {
        let text: String = callsheet::journal::export::text(&entries).collect();
        panic!("{difference}\n{text}");
    }
    let page = world.host.telemetry().render();
    assert!(page.contains("\ncallsheet_history_repairs_total 0\n"), "{page}");
    assert!(!page.contains("prefix_breaks_total{reason=\"unexplained\"} 1"), "{page}");
}

/// Asks a plain question, which must be answered.
async fn assert_answers(world: &World) {
    let report = run(world, "hello").await;
    assert_eq!((report.run_end, &*report.text), (RunEnd::Answered, "Fine."), "{:?}", report.error);
}

fn image_errors() -> [(u16, Value); 4] {
    [
        (400, json!({"message": "could not process image", "type": "invalid_request_error"})),
        (400, json!({"message": "messages.1.content.1.image: image exceeds 5 MB maximum"})),
        (400, json!({"message": "This model does not support images."})),
        (400, json!({"message": "rejected", "code": "image_content_policy_violation"})),
    ]
}

fn text_errors() -> [(u16, Value); 3] {
    [
        (400, json!({"message": "rejected", "code": "content_policy_violation"})),
        (400, json!({"message": "The prompt violates our usage policies."})),
        (400, json!({"message": "Bad Request"})),
    ]
}

#[tokio::test]
async fn a_refused_image_is_replaced_by_a_line_and_the_run_is_answered() {
    for wire in Wire::NAMES.map(|(_, wire)| wire) {
        for (status, error) in image_errors() {
            for input in [with_image(), "draw it".into()] {
                let world = refusing(wire, PIXEL, status, error.clone()).await;
                let report = run(&world, input).await;
                assert_eq!(report.run_end, RunEnd::Answered, "{wire} {error}: {:?}", report.error);
                assert_answers(&world).await;
                let requests = world.requests();
                assert_eq!(requests.iter().filter(|it| it.status == status).count(), 1, "{wire}");
                let last = requests.last().unwrap().body.to_string();
                assert!(last.contains("left out by the host") && !last.contains(PIXEL), "{last}");
                check_stored(&world, wire).await;
            }
        }
    }
}

#[tokio::test]
async fn a_refused_result_is_replaced_by_its_reference() {
    for wire in Wire::NAMES.map(|(_, wire)| wire) {
        for (status, error) in text_errors() {
            let world = refusing(wire, BAD, status, error.clone()).await;
            let report = run(&world, "read it").await;
            assert_eq!(report.run_end, RunEnd::Answered, "{wire} {error}: {:?}", report.error);
            assert!(report.calls[0].result.contains(BAD), "the report has it");
            assert_answers(&world).await;
            let last = world.requests().last().unwrap().body.to_string();
            assert!(last.contains("$VAR_REF{{t1a1c0}}") && !last.contains(BAD), "{last}");
            let page = world.host.telemetry().render();
            let series = "callsheet_prompt_prefix_breaks_total{reason=\"excluded\"} 1";
            assert!(page.contains(series), "{wire}: {page}");
            check_stored(&world, wire).await;
        }
    }
}

#[tokio::test]
async fn a_refused_input_ends_its_run_and_no_later_one() {
    for wire in Wire::NAMES.map(|(_, wire)| wire) {
        for (status, error) in text_errors() {
            let world = refusing(wire, BAD, status, error.clone()).await;
            let report = run(&world, BAD).await;
            let code = report.error.as_ref().map(|error| &*error.code);
            if error["message"] == "Bad Request" {
                // Nothing says that the input is the reason.
                assert_eq!((report.run_end, code), (RunEnd::Failed, Some("provider_error")));
            } else {
                assert_eq!((report.run_end, code), (RunEnd::Refused, Some("CONTENT_REFUSED")));
                let message = report.error.unwrap().message;
                assert!(message.contains("(record 2) is left out"), "{message}");
            }
            assert_answers(&world).await;
            assert_answers(&world).await;
            let last = world.requests().last().unwrap().body.to_string();
            assert!(!last.contains(BAD), "{last}");
            check_stored(&world, wire).await;
        }
    }
}

#[tokio::test]
async fn a_session_outlives_fifty_refusals_of_each_kind() {
    let image = || image_errors().into_iter().map(|(status, error)| (PIXEL, status, error));
    let text = || text_errors().into_iter().map(|(status, error)| (BAD, status, error));
    let words: [fn() -> Content; 4] =
        [with_image, || "draw it".into(), || "read it".into(), || BAD.into()];
    for (kind, input) in words.into_iter().enumerate() {
        let errors: Vec<_> = if kind < 2 { image().collect() } else { text().collect() };
        for (part, status, error) in errors {
            let world = refusing(Wire::OpenaiChat, part, status, error).await;
            for _ in 0..RUNS {
                run(&world, input()).await;
                assert_answers(&world).await;
            }
            let last = world.requests().last().unwrap().body.to_string();
            assert!(!last.contains(part), "{last}");
            check_stored(&world, Wire::OpenaiChat).await;
        }
    }
}

#[tokio::test]
async fn content_is_not_blamed_for_other_errors() {
    for (status, error) in [
        (401, json!({"message": "invalid image"})),
        (402, json!({"message": "no credit for images"})),
        (403, json!({"message": "forbidden"})),
        (404, json!({"message": "no endpoints found that support image input"})),
        (400, json!({"message": "Unsupported parameter: 'temperature'", "param": "temperature"})),
        (400, json!({"message": "thinking is not supported"})),
        (400, json!({"message": "tools.0.custom.input_schema: bad image"})),
    ] {
        let world = refusing(Wire::OpenaiChat, PIXEL, status, error.clone()).await;
        let report = run(&world, with_image()).await;
        assert_eq!(report.run_end, RunEnd::Failed, "{error}");
        let entries = records(&world).await;
        let is_change = |entry: &JournalEntry| matches!(entry.record, Record::Compacted { .. });
        assert!(!entries.iter().any(is_change), "{error}");
    }
}

#[tokio::test]
async fn content_comes_back_if_the_request_without_it_is_refused_too() {
    // Refuses everything after the first call.
    let world =
        refusing(Wire::OpenaiChat, "tool_calls", 400, json!({"message": "Bad Request"})).await;
    let report = run(&world, "read it").await;
    assert_eq!(report.run_end, RunEnd::Failed);
    assert_eq!(report.error.unwrap().code, "provider_error");
    let requests = world.requests();
    assert_eq!(requests.len(), 3);
    assert!(!requests[2].body.to_string().contains(BAD), "{}", requests[2].body);
    // The next request has the result again.
    run(&world, "hello").await;
    let requests = world.requests();
    assert!(requests[3].body.to_string().contains(BAD), "{}", requests[3].body);
    assert_eq!(requests.len(), 5);
    check_stored(&world, Wire::OpenaiChat).await;
}

#[tokio::test]
async fn an_exclusion_is_a_record_and_an_event_that_name_the_message_and_the_part() {
    let error = json!({"message": "could not process image"});
    let world = refusing(Wire::OpenaiChat, PIXEL, 400, error).await;
    let started = world.session.start_run("draw it").await.unwrap();
    let events = events(started.events).await;
    let changed = events.iter().find(|event| event["type"] == "context_compacted").unwrap();
    assert_eq!(
        (&changed["kind"], &changed["messages"]),
        (&json!("excluded"), &json!(["t1a1c0 (images)"]))
    );
    let attempt = events.iter().rfind(|event| event["type"] == "attempt").unwrap();
    let reason = attempt["reason"].as_str().unwrap();
    assert!(reason.starts_with("CONTENT_REFUSED: "), "{reason}");
    let entries = records(&world).await;
    let change = entries.iter().find_map(|entry| {
        let Record::Compacted { change, .. } = &entry.record else { return None };
        Some(&**change)
    });
    let Some(Compaction::Excluded { messages, tentative: false, .. }) = change else {
        panic!("{change:?}")
    };
    assert_eq!(messages[0].name(), "t1a1c0 (images)");
}

#[tokio::test]
async fn a_history_with_a_refused_input_at_its_end_can_be_summarised() {
    let error = Some(json!({"error": {"message": "Bad Request"}}));
    let of = |word: &str| When { contains: Some(word.to_owned()), ..When::default() };
    let refused = Response { when: of(BAD), repeat: true, error, ..Response::status(400) };
    let summary = Response { when: of("Summarise this"), ..Response::text("It was long.") };
    let long = Response::text(&"A long answer. ".repeat(100));
    let answers = std::iter::repeat_n(long, 8).chain([Response::text("Fine.")]);
    let script = Script::new([refused, summary].into_iter().chain(answers));
    let world = world_of(Wire::OpenaiChat, script, tools(), |_| ()).await;
    for _ in 0..8 {
        run(&world, "Tell me more.").await;
    }
    assert_eq!(run(&world, BAD).await.run_end, RunEnd::Failed);
    assert_eq!(within(world.session.compact()).await.unwrap().kind, "summarised");
    assert_answers(&world).await;
    check_stored(&world, Wire::OpenaiChat).await;
}

#[tokio::test]
async fn a_model_that_sees_images_is_asked_before_one_is_left_out() {
    let error = Some(json!({"error": {"message": "This model does not support images."}}));
    let when = When { model: Some("rehearsal".into()), ..When::default() };
    let refused = Response { when, repeat: true, error, ..Response::status(400) };
    let script = Script::new([refused, Response::text("A pixel.")]);
    let world = world_of(Wire::OpenaiChat, script, tools(), |config| {
        let mut second = config.models["rehearsal"].clone();
        second.model = "second".into();
        config.models.insert("second".into(), second);
        let agent = config.agents.get_mut("default").unwrap();
        agent.fallback_models = vec!["second".into()];
    })
    .await;
    assert_eq!(run(&world, with_image()).await.text, "A pixel.");
    assert!(world.requests().iter().all(|request| request.body.to_string().contains(PIXEL)));
}
