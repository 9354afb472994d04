//! What was said, shown and done, held against the journal once everything is over.

use std::collections::{BTreeMap, BTreeSet};

use callsheet::event::EventId;
use serde_json::Value;

use crate::client::{Promise, Told};
use crate::effects::Effect;
use crate::http::{Events, Seen};
use crate::world::{Figures, World};

/// A session's records, each as its JSON.
struct Records(Vec<Value>);

/// Fails if anything was lost, done twice or told wrongly.
pub(crate) async fn judge(world: &World, told: Vec<Told>, figures: &mut Figures) {
    let mut breaches = Vec::new();
    let life = world.place.start(None).await.expect("the host starts");
    for told in &told {
        let id = told.session.as_str();
        let show = ["sessions", "show", id, "--format", "jsonl", "--data-dir", "data"];
        let lines = world.place.ask(&show).await;
        let records: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let records = Records(records);
        world.replay(id).await;
        let ends = records.all("run_ended").count();
        let again = replayed(&life, id, ends).await;
        let mut found = promises(told, &records);
        found.extend(shown(&told.events, &again, &records));
        found.extend(effects(world, id, &records, figures));
        breaches.extend(found.into_iter().map(|breach| format!("{id}: {breach}")));
        figures.sessions += 1;
        figures.runs += ends;
        figures.events += told.events.len();
        figures.reconnects += told.reconnects;
    }
    life.end("KILL").await;
    let requests = world.shared.model.requests();
    figures.requests = requests.len();
    for request in requests {
        if request.status == 400 {
            breaches.push(format!("the provider refused {}", request.body));
        }
        figures.broken += usize::from(request.ended == callsheet::rehearsal::Ended::ClientLeft);
    }
    figures.effects = world.shared.effects.done().len();
    assert!(
        breaches.is_empty(),
        "{} breaches in {:?}:\n{}\n{}",
        breaches.len(),
        world.place.path,
        breaches.join("\n"),
        world.said()
    );
}

/// What is shown of a session from its beginning.
async fn replayed(life: &crate::host::Life, session: &str, ends: usize) -> Vec<Seen> {
    let stream = Events::open(life.addr, session, EventId::default()).await.unwrap();
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

/// What was answered for is stored, and nothing was begun twice.
fn promises(told: &Told, records: &Records) -> Vec<String> {
    let mut breaches = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            breaches.push(what);
        }
    };
    for promise in &told.promises {
        match promise {
            Promise::Run { run_id, seq, input } => {
                let record = records.at(*seq);
                let is_it = record["run_id"] == **run_id && record["input"] == **input;
                check(is_it, format!("{promise:?}, but {record}"));
                let begun = records.all("run_started").filter(|run| run["input"] == **input);
                check(begun.count() == 1, format!("{promise:?} began not once"));
            }
            Promise::Steered { seq, input } => {
                let record = records.at(*seq);
                let is_it = record["type"] == "steered" && record["input"] == **input;
                check(is_it, format!("{promise:?}, but {record}"));
                let said = records.all("steered").filter(|steered| steered["input"] == **input);
                check(said.count() == 1, format!("{promise:?} was said not once"));
            }
            Promise::Decided { tool_id } => {
                let mut given = records.all("approval_given");
                check(given.any(|given| key(&given["key"]) == *tool_id), format!("{promise:?}"));
            }
        }
    }
    let (begun, ended) = (records.all("run_started").count(), records.all("run_ended").count());
    check(begun == ended, format!("{begun} runs began and {ended} ended"));
    breaches
}

/// A call's key as records hold it, as it is shown.
fn key(key: &Value) -> String {
    format!("t{}a{}c{}", key["turn"], key["attempt"], key["index"])
}

/// Everything that was shown is shown again, and nothing else.
fn shown(live: &[Seen], again: &[Seen], records: &Records) -> Vec<String> {
    let lost = lost_texts(records);
    let (live, again) = (lines(live, &lost), lines(again, &lost));
    let mut breaches = Vec::new();
    let different = |at: &usize| live.get(*at) != again.get(*at);
    if let Some(at) = (0..live.len().max(again.len())).find(different) {
        let around = |lines: &[String]| {
            let end = lines.len().min(at + 3);
            lines[at.saturating_sub(3).min(end)..end].join("\n    ")
        };
        breaches.push(format!(
            "shown was\n    {}\n  and is\n    {}",
            around(&live),
            around(&again)
        ));
    }
    breaches
}

/// Turns whose last attempt was open when the host was killed, and left nothing: its text is void.
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

/// What has an id, with texts put together and without those that are void by the end.
fn lines(events: &[Seen], lost: &BTreeSet<u64>) -> Vec<String> {
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

/// What tools did outside is what the journal says that they did.
fn effects(world: &World, session: &str, records: &Records, figures: &mut Figures) -> Vec<String> {
    let mut breaches = Vec::new();
    let of_session =
        |effect: &Effect| effect.key.strip_prefix(session)?.strip_prefix('/').map(str::to_owned);
    let mut done: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for effect in world.shared.effects.done() {
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
        if all.len() > 1 && !(world.setup.idempotent && all.iter().all(|one| one == url)) {
            breaches.push(format!("{call} happened as {all:?}"));
        }
        figures.repeated += all.len() - 1;
        if !urls.insert(url) {
            breaches.push(format!("{url} happened in two calls, one is {call}"));
        }
        if intended.get(call) != Some(url) {
            breaches.push(format!("{call} fetched {url}, but meant {:?}", intended.get(call)));
        }
        let Some(outcome) = ended.get(call) else {
            breaches.push(format!("{call} fetched {url} and has no outcome"));
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
            breaches.push(format!("{call} fetched {url}, but: {outcome}"));
        }
    }
    for (call, outcome) in &ended {
        figures.unknown += usize::from(outcome["status"] == "unknown");
        let is_effect = intended.contains_key(call);
        if is_effect && outcome["status"] == "success" && !done.contains_key(call) {
            breaches.push(format!("{call} is told to have succeeded, and never happened"));
        }
    }
    breaches
}

/// People saw the result, and did not let the model see it.
fn is_result_rejected(outcome: &Value) -> bool {
    outcome["content"].as_str().is_some_and(|content| content.contains("it ran"))
}
