//! Tests that a replay of the records makes the same decisions.
#![expect(clippy::wildcard_enum_match_arm, reason = "a test looks for one variant")]

use super::engine::entries;
use super::provider::{Reply, answer_with, calls_to};
use super::*;
use crate::journal::SessionQuery;
use callsheet_machines::session::{Replayed, replay};
use callsheet_machines::turn::{Difference, RunRules};
use callsheet_tools::FrozenList;
use callsheet_values::config::{OnExcess, RunOverrides};
use callsheet_values::record::{JournalEntry, Record, Seq, StopMode, frozen_tools_key};
use callsheet_values::types::{Execution, RunEnd, ToolOutcome};

/// Returns a function that returns the rules of an agent's turns.
fn rules(
    host: &Host,
) -> impl Fn(&str, &RunOverrides, Option<&str>) -> Result<Arc<RunRules>, String> {
    let shared = Arc::clone(&host.inner.host_ref.shared);
    move |agent, overrides, frozen| {
        let mut agent = Arc::clone(shared.catalog.agents.get(agent).ok_or("no such agent")?);
        if let Some(sha256) = frozen {
            let text = stored(shared.journal.document(&frozen_tools_key(sha256)));
            let list = text.map(|text| serde_json::from_str(&text).unwrap());
            let list: FrozenList = list.unwrap_or_default();
            let limiters = &shared.catalog.tool_limiters;
            agent = Arc::new(agent.with_server_tools(&list, &BTreeMap::new(), limiters));
        }
        Ok(Arc::clone(&agent.with_overrides(overrides).map_err(|error| error.to_string())?.rules))
    }
}

fn replayed(host: &Host, entries: &[JournalEntry]) -> Result<Replayed, Box<Difference>> {
    replay(entries, rules(host))
}

/// Replays every session of the host and checks that there is no difference.
#[track_caller]
pub(super) fn all(host: &Host) {
    let journal = &*host.inner.host_ref.shared.journal;
    let query = SessionQuery::default().with(|query| query.children = true);
    for session in stored(journal.list(&query)) {
        let entries = stored(journal.read(&session.id, Seq(0)));
        if let Err(difference) = replayed(host, &entries) {
            let lines: Vec<_> = entries.iter().map(JournalEntry::body).collect();
            panic!("{difference}\nin\n{}", lines.join("\n"));
        }
    }
}

/// Returns a session whose tools end in each possible way, and its entries.
async fn recorded(change: impl FnOnce(&mut Config)) -> (Host, Vec<JournalEntry>) {
    let provider = Provider::new(|n, _| {
        let calls = [
            ("count", r#"{"n": 1}"#),
            ("unknown_tool", "{}"),
            ("pay", "{}"),
            ("count", "{\"n\": 2}"),
            ("count", "{\"n\""),
        ];
        Reply::Sse(if n % 2 == 0 { calls_to(&calls) } else { answer_with("that is all") })
    })
    .await;
    let count = tool(spec("count"), |context| async move {
        let seen: i64 = context.get("sum")?.unwrap_or(0);
        context.set("sum", seen + 1)?;
        Ok(format!("{}", seen + 1).into())
    });
    let pay = tool(ToolSpec { effect: Default::default(), ..spec("pay") }, |_| async {
        Ok("paid".into())
    });
    let host = host(&provider, registry([count, pay]), change).await;
    let session = session(&host).await;
    for prompt in ["one", "two"] {
        session.run(prompt).await.unwrap();
    }
    let entries = entries(&*host.inner.host_ref.shared.journal, session.id());
    (host, entries)
}

#[tokio::test]
async fn a_replay_repeats_the_recorded_decisions() {
    for execution in [Execution::Sequential, Execution::Parallel { max: 4 }] {
        let (host, entries) =
            recorded(|config| config.agents.get_mut("default").unwrap().execution = execution)
                .await;
        let replayed = replayed(&host, &entries).unwrap_or_else(|d| panic!("{d}"));
        assert_eq!((replayed.runs, replayed.turns, replayed.calls), (2, 4, 10));
        assert_eq!((replayed.records, replayed.unfinished), (entries.len(), false));
        assert_eq!(replayed.variables.get("sum"), Some(&json!(4)));
        // Every prefix of the entries is a session that is not over.
        for end in 1..entries.len() {
            let cut = replay(&entries[..end], rules(&host));
            let cut = cut.unwrap_or_else(|d| panic!("cut at {end}: {d}"));
            assert_eq!(cut.records, end);
        }
    }
}

#[tokio::test]
async fn a_replay_accepts_a_session_whose_deletion_a_crash_has_cut_off() {
    let (host, mut entries) = recorded(|_| ()).await;
    let mut last = entries.last().unwrap().clone();
    (last.seq, last.record) = (Seq(last.seq.0 + 1), Record::SessionClosed);
    entries.push(last);
    let replayed = replayed(&host, &entries).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!((replayed.records, replayed.unfinished), (entries.len(), false));
}

#[tokio::test]
async fn a_replay_accepts_a_stop_while_a_turn_begins_without_time() {
    let provider = Provider::new(|n, _| match n {
        0 => Reply::Sse(calls_to(&[("count", "{}")])),
        _ => Reply::Stall(Vec::new()),
    })
    .await;
    let count = tool(spec("count"), |_| async { Ok("1".into()) });
    let host = host(&provider, registry([count]), |config| {
        let limits = &mut config.agents.get_mut("default").unwrap().limits;
        limits.run_timeout = Some(Duration::from_millis(300));
    })
    .await;
    let session = session(&host).await;
    let report = session.run("go").await.unwrap();
    assert_eq!(report.run_end, RunEnd::TimedOut);
    let mut entries = entries(&*host.inner.host_ref.shared.journal, session.id());
    let second = |e: &JournalEntry| matches!(e.record, Record::AttemptStarted { turn: 2, .. });
    let begin = entries.iter().position(second).unwrap();
    let mut stop = entries[begin].clone();
    stop.record = Record::StopAsked { mode: StopMode::Now, authored_by: None };
    entries.insert(begin, stop);
    for (n, entry) in entries.iter_mut().enumerate() {
        entry.seq = Seq(n as u64 + 1);
    }
    let replayed = replayed(&host, &entries).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!((replayed.records, replayed.unfinished), (entries.len(), false));
}

#[tokio::test]
async fn a_replay_accepts_an_early_call_that_ends_after_its_response() {
    let provider = Provider::new(|n, _| {
        let calls = [("count", r#"{"n": 1}"#), ("count", r#"{"n": 2}"#), ("pay", "{}")];
        Reply::Sse(if n == 0 { calls_to(&calls) } else { answer_with("that is all") })
    })
    .await;
    let count = tool(spec("count"), |_| async { Ok("1".into()) });
    let pay = tool(ToolSpec { effect: Default::default(), ..spec("pay") }, |_| async {
        Ok("paid".into())
    });
    let host = host(&provider, registry([count, pay]), |_| ()).await;
    let session = session(&host).await;
    session.run("go").await.unwrap();
    let mut entries = entries(&*host.inner.host_ref.shared.journal, session.id());
    let response = entries.iter().position(|e| matches!(e.record, Record::ResponseEnded { .. }));
    let response = response.unwrap();
    // The second call could also have ended later.
    let [before, after] = &mut entries[response - 1..=response] else { unreachable!() };
    std::mem::swap(&mut before.record, &mut after.record);
    assert!(matches!(after.record, Record::CallEnded { early: true, .. }), "{after:?}");
    let replayed = replayed(&host, &entries).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(replayed.calls, 3);
}

#[tokio::test]
async fn a_replay_accepts_empty_arguments_that_the_schema_refuses() {
    let provider = Provider::new(|n, _| {
        let arguments = ["", "null", " ", "{}", "\"\""];
        let calls = arguments.map(|arguments| ("need", arguments));
        let answer = "<think>Nothing went. </think>That is all";
        Reply::Sse(if n == 0 { calls_to(&calls) } else { answer_with(answer) })
    })
    .await;
    let schema =
        json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let schema = callsheet_tools::ParsedSchema::parse(schema).unwrap();
    let need = tool(ToolSpec { input: schema, ..spec("need") }, |_| async { Ok("1".into()) });
    let host = host(&provider, registry([need]), |_| ()).await;
    let session = session(&host).await;
    let report = session.run("go").await.unwrap();
    assert_eq!((report.text.as_str(), report.calls.len()), ("That is all", 5));
    let entries = entries(&*host.inner.host_ref.shared.journal, session.id());
    let replayed = replayed(&host, &entries).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(replayed.calls, 5);
}

#[tokio::test]
async fn a_replay_drops_a_second_call_that_the_protocol_does_not_allow() {
    let provider = Provider::new(|n, _| {
        let two = "=>#count {\"n\": 1}\n=>#count {\"n\": 2}";
        Reply::Sse(answer_with(if n == 0 { two } else { "that is all" }))
    })
    .await;
    let count = tool(spec("count"), |_| async { Ok("1".into()) });
    let host = host(&provider, registry([count]), |config| {
        let models = config.models.values_mut();
        models.for_each(|model| model.tool_protocol = callsheet_values::types::ToolProtocol::Arrow);
    })
    .await;
    let session = session(&host).await;
    session.run("go").await.unwrap();
    let entries = entries(&*host.inner.host_ref.shared.journal, session.id());
    let dropped = |entry: &JournalEntry| match &entry.record {
        Record::ResponseEnded { dropped_calls, .. } => dropped_calls.len(),
        _ => 0,
    };
    assert_eq!(entries.iter().map(dropped).sum::<usize>(), 1);
    let replayed = replayed(&host, &entries).unwrap_or_else(|d| panic!("{d}"));
    assert_eq!(replayed.calls, 1);
}

/// Changes the first record that `change` accepts, and replays the session. Returns true if the
/// first difference is at that record, and the text of the difference.
#[track_caller]
fn tampered(
    (host, entries): &(Host, Vec<JournalEntry>),
    mut change: impl FnMut(&mut Record) -> bool,
) -> (bool, String) {
    let mut entries = entries.clone();
    let changed =
        entries.iter_mut().find_map(|entry| change(&mut entry.record).then_some(entry.seq));
    let seq = changed.unwrap();
    let difference = replayed(host, &entries).expect_err("a difference");
    (difference.seq == Some(seq), difference.to_string())
}

#[tokio::test]
async fn a_changed_record_is_reported() {
    let recorded = recorded(|_| ()).await;
    let (there, text) = tampered(&recorded, |record| {
        let Record::CallEnded { call, outcome, .. } = record else { return false };
        let is_it = &*call.name == "unknown_tool";
        if is_it {
            *outcome = ToolOutcome::ok("fine");
        }
        is_it
    });
    assert!(there && text.contains("\n  differs:  outcome.content, "), "{text}");
    let (there, text) = tampered(&recorded, |record| {
        let Record::CallEnded { call, outcome, .. } = record else { return false };
        let is_it = &*call.name == "count";
        if is_it {
            outcome.append("0");
        }
        is_it
    });
    assert!(there && text.contains("differs:  outcome.content\n"), "its report is there: {text}");
    let (there, text) = tampered(&recorded, |record| {
        let Record::ResponseEnded { ending, .. } = record else { return false };
        *ending = callsheet_values::record::ResponseEnding::Length;
        true
    });
    assert!(there && text.contains("differs:  ending"), "{text}");
    let (there, text) = tampered(&recorded, |record| {
        let Record::ResponseEnded { dropped_calls, .. } = record else { return false };
        dropped_calls.push("lost".into());
        true
    });
    assert!(there && text.contains("dropped_calls"), "{text}");
    let (there, text) = tampered(&recorded, |record| {
        let Record::RunEnded { text, .. } = record else { return false };
        text.push('!');
        true
    });
    assert!(there && text.contains("differs:  text"), "{text}");
}

#[tokio::test]
async fn a_missing_record_is_reported_at_the_next_one() {
    let (host, entries) = recorded(|_| ()).await;
    for gone in 1..entries.len() - 1 {
        let mut entries = entries.clone();
        let record = entries.remove(gone).record;
        let next = entries[gone].seq;
        let difference = replayed(&host, &entries).expect_err(&format!("{record:?}"));
        assert!(difference.seq.is_some_and(|seq| seq >= next), "{difference}");
    }
}

#[tokio::test]
async fn a_difference_caused_by_another_configuration_is_reported() {
    let recorded = recorded(|_| ()).await;
    let changed = |change: &dyn Fn(&mut RunRules)| {
        let (host, entries) = &recorded;
        let rules = rules(host);
        let found = replay(entries, |agent, overrides, tools| {
            let mut rules = RunRules::clone(&*rules(agent, overrides, tools)?);
            change(&mut rules);
            Ok(Arc::new(rules))
        });
        found.expect_err("a difference").to_string()
    };
    let text = changed(&|rules| rules.limits.max_tool_calls_per_turn = Some(2));
    assert!(text.contains("\"limit\":\"max_tool_calls_per_turn\""), "{text}");
    let text = changed(&|rules| {
        (rules.limits.max_tool_calls_per_turn, rules.limits.on_excess) = (Some(2), OnExcess::Fail);
    });
    assert!(
        text.contains("nothing leads to it now (the request to the model is open)"),
        "no early start: {text}"
    );
    let text = changed(&|rules| rules.limits.max_turns = Some(1));
    assert!(text.contains("\"action\":\"final_answer\""), "{text}");
    let text = changed(&|rules| drop(rules.tools.remove("pay")));
    assert!(
        text.contains("differs:  outcome.content\n")
            && text.contains("The tools are: count, read_var."),
        "{text}"
    );
    let text = changed(&|rules| rules.execution = Execution::Parallel { max: 2 });
    assert!(text.starts_with("record 2: ") && text.contains("differs:  execution"), "{text}");
    let (_, entries) = &recorded;
    let gone = replay(entries, |_, _, _| Err("it is gone".to_owned())).expect_err("none");
    assert!(gone.to_string().contains("the run could not begin: it is gone"), "{gone}");
}

#[tokio::test]
async fn a_replay_repeats_a_search_for_refused_tools() {
    let names = ["a", "b", "c", "d", "e"];
    for refused in [&["c"][..], &["b", "e"]] {
        let provider = Provider::new(move |_, body| {
            let tools = body["tools"].as_array().cloned().unwrap_or_default();
            let has = |name: &&str| tools.iter().any(|tool| tool["function"]["name"] == **name);
            if !refused.iter().any(has) {
                return Reply::Sse(answer_with("done"));
            }
            let error = json!({"error": {"message": "failed to parse grammar", "code": 400}});
            let (kind, body) = ("application/json", error.to_string());
            Reply::Whole { status: 400, kind, body, retry_after: None }
        })
        .await;
        let tools = names.map(|name| tool(spec(name), |_| async { Ok("ok".into()) }));
        let host = host(&provider, registry(tools), |_| ()).await;
        let session = session(&host).await;
        for prompt in ["one", "two"] {
            assert_eq!(session.run(prompt).await.unwrap().text, "done");
        }
        assert!(provider.count() <= 9, "{}", provider.count());
        let last = provider.requests().pop().unwrap();
        // `read_var` is offered too.
        assert_eq!(last["tools"].as_array().unwrap().len(), 1 + names.len() - refused.len());
        all(&host);
    }
}
