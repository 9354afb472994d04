//! Tests of runs without failures.

use futures::StreamExt as _;
use tokio::sync::Barrier;

use super::engine::Engine;
use super::provider::{Reply, answer_with, calls_to};
use super::*;
use crate::journal::{AppendStatus, BatchCallback, BatchStatus, JournalEntry};
use crate::telemetry::FeedItem;
use callsheet_values::config::{ApprovalPolicy, RunOverrides};
use callsheet_values::event::Event;
use callsheet_values::message::Message;
use callsheet_values::record::{Record, Seq, StopMode};
use callsheet_values::types::{Execution, RunEnd, Wire};

fn name(event: &Event) -> String {
    let text = format!("{event:?}");
    text.split([' ', '{']).next().unwrap().to_owned()
}

#[tokio::test]
async fn a_run_without_tools_gives_its_answer_and_its_events() {
    let provider = Provider::answering("good day to you").await;
    let host = host(&provider, ToolRegistry::new(), |config| {
        config.agents.get_mut("default").unwrap().system = "Be kind.".into();
    })
    .await;
    let session = session(&host).await;
    let mut run = session.start_run("hello").await.unwrap();
    assert_eq!(run.seq, Seq(2));
    let mut names = Vec::new();
    while let Some(FeedItem::Event(published)) = run.events.next().await {
        assert_eq!((&published.session, &published.run), (session.id(), &run.run_id));
        names.push(name(&published.event));
        if matches!(published.event, Event::RunEnded { .. }) {
            break;
        }
    }
    assert_eq!(names.first().unwrap(), "RunStarted");
    assert_eq!(names.iter().filter(|name| *name == "TextReceived").count(), 4);
    assert_eq!(names[names.len() - 2..], ["TurnEnded", "RunEnded"]);
    let report = run.report.await.unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "good day to you"));
    assert_eq!((report.turns, report.stats.input_tokens, report.error.as_ref()), (1, 10, None));
    let sent = provider.requests().remove(0);
    assert_eq!(sent["model"], "test-model");
    assert_eq!(sent["stream"], true);
    assert_eq!(
        sent["messages"],
        json!([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hello"}])
    );
    let messages = serde_json::to_value(report.run_messages()).unwrap();
    let expected = json!([{"role": "user", "content": "hello"},
        {"role": "assistant", "content": "good day to you"}]);
    assert_eq!(messages, expected);
    let snapshot = session.snapshot().await.unwrap();
    assert_eq!(serde_json::to_value(&snapshot.history).unwrap(), expected);
    assert_eq!((snapshot.state, snapshot.current_run), (SessionState::Idle, None));
    assert_eq!(snapshot.usage.output_tokens, 5);
    nothing_left(&host).await;
}

#[tokio::test]
async fn each_message_names_the_model_that_wrote_it() {
    let provider = Provider::new(|_, request| match request["model"].as_str() {
        Some("broken-model") => Reply::Whole {
            status: 401,
            kind: "application/json",
            body: "{}".into(),
            retry_after: None,
        },
        Some(name) => Reply::Sse(answer_with(&format!("{name} says"))),
        None => Reply::Silence,
    })
    .await;
    let host = host(&provider, ToolRegistry::new(), |config| {
        let plain = model(&provider);
        for name in ["broken", "other"] {
            let mut model = plain.clone();
            model.model = format!("{name}-model");
            config.models.insert(name.to_owned(), model);
        }
        let agent = config.agents.get_mut("default").unwrap();
        agent.fallback_models = vec!["other".into(), "broken".into()];
    })
    .await;
    let session = session(&host).await;
    // The configured models, another first model, and a first model that fails.
    for model in [None, Some("other"), Some("broken")] {
        let overrides = RunOverrides { model: model.map(Into::into), ..RunOverrides::default() };
        let request = RunRequest { overrides, ..RunRequest::from("who?") };
        assert_eq!(session.run(request).await.unwrap().run_end, RunEnd::Answered);
    }
    let history = session.snapshot().await.unwrap().history;
    let expected = history.iter().filter_map(|message| match message.as_ref() {
        Message::Assistant(expected) => {
            Some((expected.text.clone(), expected.origin.clone().unwrap()))
        }
        Message::User { .. } | Message::Summary { .. } | Message::Tool { .. } => None,
    });
    let models: Vec<_> = expected
        .map(|(text, origin)| {
            assert_eq!((text, origin.wire), (format!("{} says", origin.model), Wire::OpenaiChat));
            origin.model.clone()
        })
        .collect();
    assert_eq!(models, ["test-model", "other-model", "test-model"]);
}

#[tokio::test]
async fn an_idempotency_key_is_for_the_whole_request_in_any_order() {
    let provider = Provider::answering("well").await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    let key_first =
        |name: &str| RunRequest::from("go").with_idempotency_key("k").into_variable(name);
    let first = session.run(key_first("a")).await.unwrap();
    let same = RunRequest::from("go").into_variable("a").with_idempotency_key("k");
    assert_eq!(session.run(same).await.unwrap().run_id, first.run_id);
    assert_eq!(session.run(key_first("b")).await.unwrap_err(), HostError::KeyReused);
    assert_eq!(provider.count(), 1);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_second_run_sends_the_history_of_the_first() {
    let provider = Provider::new(|n, _| Reply::Sse(answer_with(["one", "two"][n]))).await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let session = session(&host).await;
    session.run("first").await.unwrap();
    let report = session.run("second").await.unwrap();
    assert_eq!((report.context_messages().len(), report.run_messages().len()), (2, 2));
    let both = [report.context_messages(), report.run_messages()].concat();
    assert_eq!(report.all_messages(), both);
    let held = session.snapshot().await.unwrap().history;
    let shared = both.iter().zip(&held).all(|(results, held)| Arc::ptr_eq(results, held));
    assert!(shared && both.len() == held.len(), "no message is copied");
    let sent = provider.requests().remove(1);
    let roles: Vec<_> = sent["messages"].as_array().unwrap().iter().map(|m| &m["role"]).collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
}

#[tokio::test]
async fn sequential_calls_run_and_are_answered_in_order() {
    let provider = Provider::calling(&[("a", r#"{"n":1}"#), ("b", r#"{"n":2}"#)]).await;
    let running = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let alone = |name: &str| {
        let running = Arc::clone(&running);
        tool(spec(name), move |context| {
            let running = Arc::clone(&running);
            async move {
                let before = running.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                running.fetch_sub(1, Ordering::SeqCst);
                Ok(format!("{before}:{}", context.arguments()).into())
            }
        })
    };
    let host = host(&provider, registry([alone("a"), alone("b")]), |_| ()).await;
    let report = session(&host).await.run("go").await.unwrap();
    assert_eq!((report.run_end, report.turns), (RunEnd::Answered, 2));
    let results: Vec<_> = report
        .calls
        .iter()
        .map(|call| (call.tool_id.as_str(), call.provider_id.as_deref(), call.result.as_str()))
        .collect();
    assert_eq!(
        results,
        [("t1a1c0", Some("id_0"), "0:{\"n\":1}"), ("t1a1c1", Some("id_1"), "0:{\"n\":2}"),]
    );
    let sent = provider.requests().remove(1);
    let ids: Vec<_> = sent["messages"].as_array().unwrap()[2..]
        .iter()
        .map(|message| message["tool_call_id"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(ids, ["id_0", "id_1"]);
    let tools = sent["tools"].as_array().unwrap().iter();
    let names: Vec<_> = tools.map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "read_var"]);
    nothing_left(&host).await;
}

#[tokio::test]
async fn parallel_calls_run_concurrently() {
    let provider = Provider::calling(&[("meet", r#"{"n":1}"#), ("meet", r#"{"n":2}"#)]).await;
    // Each call waits for the other, so they would never end in sequence.
    let barrier = Arc::new(Barrier::new(2));
    let meet = tool(spec("meet"), move |context| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok(context.arguments().to_string().into())
        }
    });
    let host = host(&provider, registry([meet]), |config| {
        config.agents.get_mut("default").unwrap().execution = Execution::Parallel { max: 2 };
    })
    .await;
    let report = session(&host).await.run("go").await.unwrap();
    let results: Vec<_> = report.calls.iter().map(|call| call.result.as_str()).collect();
    assert_eq!(results, [r#"{"n":1}"#, r#"{"n":2}"#]);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_snapshot_has_the_results_up_to_the_first_open_call() {
    let names = ["a", "b", "c"];
    let provider = Provider::calling(&[("a", "{}"), ("b", "{}"), ("c", "{}")]).await;
    let gates = names.map(|_| Arc::new(tokio::sync::Semaphore::new(0)));
    let tools = names.iter().zip(&gates).map(|(name, gate)| {
        let gate = Arc::clone(gate);
        tool(spec(name), move |_| {
            let gate = Arc::clone(&gate);
            async move {
                gate.acquire().await.unwrap().forget();
                Ok("done".into())
            }
        })
    });
    let host = host(&provider, registry(tools), |config| {
        config.agents.get_mut("default").unwrap().execution = Execution::Parallel { max: 3 };
    })
    .await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    let running = |count| {
        let host = host.clone();
        until("so many run", move || host.counts().tools_running == count)
    };
    running(3).await;
    for (next, left, expected) in [(1, 2, &[][..]), (0, 1, &names[..2])] {
        gates[next].add_permits(1);
        running(left).await;
        let results = timeout(SOON, async {
            loop {
                let current = session.snapshot().await.unwrap().current_run.unwrap();
                let results: Vec<_> =
                    current.results.into_iter().map(|call| call.tool_name).collect();
                if results.len() >= expected.len() {
                    return results;
                }
                sleep(Duration::from_millis(1)).await;
            }
        });
        assert_eq!(results.await.unwrap(), expected);
    }
    gates[2].add_permits(1);
    assert_eq!(timeout(SOON, run.report).await.unwrap().unwrap().calls.len(), 3);
    nothing_left(&host).await;
}

#[tokio::test]
async fn a_broken_stream_is_retried() {
    let provider = Provider::new(|n, _| match n {
        0 => Reply::Break(vec![provider::text("half an ")]),
        _ => Reply::Sse(answer_with("answer")),
    })
    .await;
    let host = host(&provider, ToolRegistry::new(), |_| ()).await;
    let report = session(&host).await.run("go").await.unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "answer"));
    assert_eq!(provider.count(), 2);
}

#[tokio::test]
async fn after_max_turns_the_model_is_asked_for_a_final_answer() {
    let provider = Provider::new(|n, _| match n {
        0 => Reply::Sse(calls_to(&[("echo", "{}")])),
        _ => Reply::Sse(answer_with("so far")),
    })
    .await;
    let host = host(&provider, registry([echo("echo")]), |config| {
        config.agents.get_mut("default").unwrap().limits.max_turns = Some(1);
    })
    .await;
    let report = session(&host).await.run("go").await.unwrap();
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::MaxTurns, "so far"));
    assert_eq!(provider.requests()[1]["tool_choice"], "none");
}

/// Returns an engine whose user reports the status of the batches with intents.
fn holding_intents(held: &Arc<parking_lot::Mutex<Vec<BatchCallback>>>) -> Arc<Engine> {
    let held = Arc::clone(held);
    Engine::new(move |inner, mut batch| {
        let is_intent =
            |entry: &Arc<JournalEntry>| matches!(entry.record, Record::CallIntended { .. });
        if !batch.entries.iter().any(is_intent) {
            return inner.append(batch);
        }
        held.lock().push(std::mem::replace(&mut batch.on_status, Box::new(|_| ())));
        inner.append(batch);
        AppendStatus::Queued
    })
}

#[tokio::test]
async fn a_call_with_effects_waits_until_its_intent_is_durable() {
    let provider = Provider::calling(&[("pay", "{}")]).await;
    let paid = Arc::new(AtomicBool::new(false));
    let pay = tool(ToolSpec { effect: Default::default(), ..spec("pay") }, {
        let paid = Arc::clone(&paid);
        move |_| {
            paid.store(true, Ordering::SeqCst);
            async { Ok("paid".into()) }
        }
    });
    let held = Arc::default();
    let journal = holding_intents(&held);
    let setup = setup(&provider, registry([pay]), |_| ());
    let host = start_on(setup, journal as Arc<dyn Journal>).await.unwrap();
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    until("the call is intended", || held.lock().len() == 1).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!paid.load(Ordering::SeqCst), "it ran before its intent was durable");
    held.lock().remove(0)(BatchStatus::Durable);
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    assert!(paid.load(Ordering::SeqCst));
    assert_eq!((report.run_end, report.text.as_str()), (RunEnd::Answered, "done"));
    assert_eq!(results(&report), BTreeMap::from([("pay", ("success", "paid"))]));
}

#[tokio::test]
async fn batches_that_are_stored_together_release_all_their_calls() {
    let provider = Provider::calling(&[("pay", r#"{"n":1}"#), ("pay", r#"{"n":2}"#)]).await;
    let spec = ToolSpec { effect: Default::default(), ..spec("pay") };
    // Each call waits for the other, so no later batch of the first can release the second.
    let barrier = Arc::new(Barrier::new(2));
    let pay = tool(spec.approval(ApprovalPolicy::BEFORE), move |_| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok("paid".into())
        }
    });
    let held = Arc::default();
    let journal = holding_intents(&held);
    let setup = setup(&provider, registry([pay]), |config| {
        config.agents.get_mut("default").unwrap().execution = Execution::Parallel { max: 2 };
    });
    let host = start_on(setup, journal as Arc<dyn Journal>).await.unwrap();
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    let mut approved = Vec::new();
    for batches in [1, 2] {
        let pending = || async { session.approvals().await.unwrap().pop() };
        let question = timeout(SOON, async {
            loop {
                match pending().await {
                    Some(question) => break question,
                    None => sleep(Duration::from_millis(1)).await,
                }
            }
        });
        let question = question.await.unwrap();
        approved.push(spawn(async move { question.approve().await }));
        until("the call is intended", || held.lock().len() == batches).await;
    }
    held.lock().drain(..).for_each(|mut report_status| report_status(BatchStatus::Durable));
    let report = timeout(SOON, run.report).await.unwrap().unwrap();
    let calls: Vec<_> = report.calls.iter().map(|call| call.result.as_str()).collect();
    assert_eq!(calls, ["paid", "paid"]);
    for decision in approved {
        decision.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_stop_after_the_turn_lets_its_calls_end() {
    let provider = Provider::calling(&[("wait", "{}")]).await;
    let (begun, release) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let wait = tool(spec("wait"), {
        let (begun, release) = (Arc::clone(&begun), Arc::clone(&release));
        move |_| {
            let (begun, release) = (Arc::clone(&begun), Arc::clone(&release));
            async move {
                begun.wait().await;
                release.wait().await;
                Ok("waited".into())
            }
        }
    });
    let host = host(&provider, registry([wait]), |_| ()).await;
    let session = session(&host).await;
    let run = session.start_run("go").await.unwrap();
    begun.wait().await;
    session.stop(StopMode::AfterTurn).await.unwrap();
    release.wait().await;
    let report = run.report.await.unwrap();
    assert_eq!(report.run_end, RunEnd::Stopped);
    assert_eq!(results(&report), BTreeMap::from([("wait", ("success", "waited"))]));
    assert_eq!(provider.count(), 1);
}
