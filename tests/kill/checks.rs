//! Compares acknowledged requests, received events and effects with the journal after a scenario.

use std::collections::{BTreeMap, BTreeSet};

use callsheet::event::EventId;
use serde_json::Value;

use crate::client::{Acknowledged, ClientLog};
use crate::effects::Effect;
use crate::http_client::{EventStream, StreamEvent};
use crate::scenario::{Scenario, Statistics};

/// A session's records, each as its JSON.
struct Records(Vec<Value>);

/// Panics if anything was lost, doubled or reported wrongly.
pub(crate) async fn check_everything(
    scenario: &Scenario,
    logs: Vec<ClientLog>,
    statistics: &mut Statistics,
) {
    let mut problems = Vec::new();
    let process = scenario.directory.start(None).await.expect("the host starts");
    for log in &logs {
        let id = log.session.as_str();
        let show = ["sessions", "show", id, "--format", "jsonl", "--data-dir", "data"];
        let lines = scenario.directory.stdout_of(&show).await;
        let records: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let records = Records(records);
        scenario.replay(id).await;
        let ends = records.all("run_ended").count();
        let again = replayed(&process, id, ends).await;
        let mut found = acknowledged(log, &records);
        found.extend(events(&log.events, &again, &records));
        found.extend(effects(scenario, &records, statistics));
        problems.extend(found.into_iter().map(|problem| format!("{id}: {problem}")));
        statistics.sessions += 1;
        statistics.runs += ends;
        statistics.events += log.events.len();
        statistics.reconnects += log.reconnects;
    }
    process.end("KILL").await;
    let requests = scenario.shared.model.requests();
    statistics.requests = requests.len();
    for request in requests {
        if request.status == 400 {
            problems.push(format!("the provider refused {}", request.body));
        }
        statistics.broken +=
            usize::from(request.ended == callsheet_mock_provider::AnswerState::ClientLeft);
    }
    statistics.effects = scenario.shared.effects.done().len();
    assert!(
        problems.is_empty(),
        "{} problems in {:?}:\n{}\n{}",
        problems.len(),
        scenario.directory.path,
        problems.join("\n"),
        scenario.recent_stderr()
    );
}

/// Replays the events of a session from the beginning.
async fn replayed(
    process: &crate::host_process::HostProcess,
    session: &str,
    ends: usize,
) -> Vec<StreamEvent> {
    let stream = EventStream::open(process.addr, session, EventId::default()).await.unwrap();
    let mut stream = stream.unwrap_or_else(|answer| panic!("{session}: {answer:?}"));
    let (mut all, mut ended) = (Vec::new(), 0);
    while ended < ends {
        let event = stream.next().await.expect("the stream goes on");
        ended += usize::from(event.kind == "stream_end");
        all.push(event);
    }
    all
}

impl Records {
    fn all(&self, kind: &str) -> impl Iterator<Item = &Value> {
        self.0.iter().filter(move |record| record["type"] == kind)
    }

    fn at(&self, seq: u64) -> &Value {
        &self.0[usize::try_from(seq).unwrap() - 1]
    }
}

/// Checks that acknowledged requests are stored exactly once.
fn acknowledged(log: &ClientLog, records: &Records) -> Vec<String> {
    let mut problems = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            problems.push(what);
        }
    };
    for response in &log.acknowledged {
        match response {
            Acknowledged::Run { run_id, seq, input } => {
                let record = records.at(*seq);
                let is_it = record["run_id"] == **run_id && record["input"] == **input;
                check(is_it, format!("{response:?}, but {record}"));
                let begun = records.all("run_started").filter(|run| run["input"] == **input);
                check(begun.count() == 1, format!("{response:?} did not start exactly once"));
            }
            Acknowledged::Steered { seq, input } => {
                let record = records.at(*seq);
                let is_it = record["type"] == "steered" && record["input"] == **input;
                check(is_it, format!("{response:?}, but {record}"));
                let steers = records.all("steered").filter(|steered| steered["input"] == **input);
                check(steers.count() == 1, format!("{response:?} was not recorded exactly once"));
            }
            Acknowledged::Decided { tool_id } => {
                let mut given = records.all("approval_given");
                check(given.any(|given| key(&given["key"]) == *tool_id), format!("{response:?}"));
            }
        }
    }
    let (begun, ended) = (records.all("run_started").count(), records.all("run_ended").count());
    check(begun == ended, format!("{begun} runs started and {ended} ended"));
    problems
}

/// Formats the key of a call in a record as a tool id.
fn key(key: &Value) -> String {
    format!("t{}a{}c{}", key["turn"], key["attempt"], key["index"])
}

/// Checks that a replay has the same events as the live stream.
fn events(live: &[StreamEvent], again: &[StreamEvent], records: &Records) -> Vec<String> {
    let lost = lost_texts(records);
    let (live, again) = (lines(live, &lost), lines(again, &lost));
    let mut problems = Vec::new();
    let different = |at: &usize| live.get(*at) != again.get(*at);
    if let Some(at) = (0..live.len().max(again.len())).find(different) {
        let around = |lines: &[String]| {
            let end = lines.len().min(at + 3);
            lines[at.saturating_sub(3).min(end)..end].join("\n    ")
        };
        problems.push(format!(
            "live events\n    {}\n  replayed events\n    {}",
            around(&live),
            around(&again)
        ));
    }
    problems
}

/// Returns the turns whose last attempt was open at a kill and was not kept: their text is void.
fn lost_texts(records: &Records) -> BTreeSet<u64> {
    let mut lost = BTreeSet::new();
    for record in &records.0 {
        let turn = record["turn"].as_u64();
        match (record["type"].as_str(), turn) {
            (Some("attempt_started"), Some(turn)) => {
                lost.remove(&turn);
            }
            (Some("attempt_failed"), Some(turn))
                if record["host_stopped"] == true && record["kept"] == false =>
            {
                lost.insert(turn);
            }
            _ => {}
        }
    }
    lost
}

/// Formats the events with an id. Joins texts, and drops texts that a later attempt voids.
fn lines(events: &[StreamEvent], lost: &BTreeSet<u64>) -> Vec<String> {
    let mut lines: Vec<(bool, String)> = Vec::new();
    let mut turn = 0;
    for event in events {
        let Some(id) = event.id else { continue };
        let is_text = matches!(event.kind.as_str(), "thinking" | "content_delta");
        let text = event.data["text"].as_str().filter(|text| is_text && !text.is_empty());
        if let Some(text) = text {
            if lost.contains(&event.data["turn"].as_u64().unwrap()) {
                continue;
            }
            let begin = format!("{}: ", event.kind);
            match lines.last_mut() {
                Some((true, line)) if line.starts_with(&begin) => line.push_str(text),
                Some(_) | None => lines.push((true, format!("{begin}{text}"))),
            }
            continue;
        }
        if matches!(event.kind.as_str(), "thinking" | "attempt") {
            if event.kind == "attempt" {
                let void = lines.split_off(turn);
                lines.extend(void.into_iter().filter(|(is_text, _)| !is_text));
            }
            turn = lines.len();
        }
        lines.push((false, format!("{id} {} {}", event.kind, event.data)));
    }
    lines.into_iter().map(|(_, line)| line).collect()
}

/// Checks that the effects match the journal.
fn effects(scenario: &Scenario, records: &Records, statistics: &mut Statistics) -> Vec<String> {
    let mut problems = Vec::new();
    let runs: BTreeSet<&str> =
        records.all("run_started").filter_map(|started| started["run_id"].as_str()).collect();
    let of_session = |effect: &Effect| {
        let (run, call) = effect.key.split_once('/')?;
        runs.contains(run).then(|| call.to_owned())
    };
    let mut done: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for effect in scenario.shared.effects.done() {
        if let Some(call) = of_session(&effect) {
            done.entry(call).or_default().push(effect.url);
        }
    }
    let intended: BTreeMap<String, String> = records
        .all("call_intended")
        .map(|intent| {
            let url = intent["call"]["arguments"]["url"].as_str().unwrap_or_default();
            (key(&intent["call"]["key"]), url.to_owned())
        })
        .collect();
    let ended: BTreeMap<String, &Value> =
        records.all("call_ended").map(|end| (key(&end["call"]["key"]), &end["outcome"])).collect();
    let mut urls = BTreeSet::new();
    for (call, all) in &done {
        let url = &all[0];
        if all.len() > 1 && !(scenario.setup.idempotent && all.iter().all(|one| one == url)) {
            problems.push(format!("{call} happened as {all:?}"));
        }
        statistics.repeated += all.len() - 1;
        if !urls.insert(url) {
            problems.push(format!("{url} happened in two calls, one is {call}"));
        }
        if intended.get(call) != Some(url) {
            problems.push(format!("{call} fetched {url}, but meant {:?}", intended.get(call)));
        }
        let Some(outcome) = ended.get(call) else {
            problems.push(format!("{call} fetched {url} and has no outcome"));
            continue;
        };
        let (status, kind) = (&outcome["status"], outcome["kind"].as_str());
        let may_have_happened = match kind {
            None => status == "success",
            Some(kind) => {
                matches!(kind, "tool_error" | "timeout" | "cancelled" | "killed")
                    || status == "unknown"
                    || is_result_rejected(outcome)
            }
        };
        if !may_have_happened {
            problems.push(format!("{call} fetched {url}, but: {outcome}"));
        }
    }
    for (call, outcome) in &ended {
        statistics.unknown += usize::from(outcome["status"] == "unknown");
        let is_effect = intended.contains_key(call);
        if is_effect && outcome["status"] == "success" && !done.contains_key(call) {
            problems.push(format!("{call} is recorded as successful, but had no effect"));
        }
    }
    problems
}

/// Returns true if the result was rejected after the call ran.
fn is_result_rejected(outcome: &Value) -> bool {
    outcome["content"].as_str().is_some_and(|content| content.contains("it ran"))
}
