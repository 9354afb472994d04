//! The verifier agrees with the turn machine: whatever happens to a turn, its records are whole.

use std::collections::BTreeSet;

use super::*;
use crate::turn::explorer::each_walk;
use crate::types::Execution;

pub(super) fn session() -> SessionId {
    SessionId::parse("s").unwrap()
}

pub(super) fn entries(records: impl IntoIterator<Item = Record>) -> Vec<Entry> {
    let numbered = records.into_iter().zip(1..);
    numbered.map(|(record, n)| Entry { seq: Seq(n), time: 1_000 + n, shown: 0, record }).collect()
}

pub(super) fn begun(run: &str, execution: Execution) -> [Record; 2] {
    [
        Record::SessionOpened { agent: "default".into(), messages: Vec::new() },
        Record::RunStarted {
            run_id: RunId(run.into()),
            input: "go".into(),
            overrides: crate::config::RunOverrides::default(),
            model: "m".into(),
            execution,
            request: None,
        },
    ]
}

#[test]
fn what_a_turn_leaves_is_whole_whatever_happens_to_it() {
    let mut all: Vec<String> = Vec::new(); let mut shown = 0;
    let (mut walks, mut kinds) = (0, BTreeSet::new());
    each_walk(|execution, log| {
        // A turn that had ended before a crash ends again; the session hears of that and records
        // nothing.
        let committed = |record: &Record| matches!(record, Record::TurnCommitted { .. });
        let end = log.iter().position(committed).map_or(log.len(), |place| place + 1);
        let log = log[..end].iter().cloned();
        let entries = entries(begun("run_1", execution).into_iter().chain(log));
        let breaches = verify(&session(), &entries);
        all.extend(breaches.iter().map(|b| b.to_string()));
        if !breaches.is_empty() && shown < 3 { shown += 1; eprintln!("{breaches:#?}"); for e in &entries { eprintln!("{}", serde_json::to_string(e).unwrap()); } }
        assert_eq!(unfinished(&entries), Some(&RunId("run_1".into())));
        walks += 1;
        for entry in &entries {
            let json = serde_json::to_value(entry).unwrap();
            kinds.insert(json["type"].as_str().unwrap().to_owned());
        }
    });
    assert!(all.is_empty(), "{} breaches: {:#?}", all.len(), &all[..all.len().min(30)]);
    assert!(walks > 1_000, "{walks} turns were walked");
    let every = [
        "approval_asked",
        "approval_given",
        "attempt_failed",
        "attempt_started",
        "call_ended",
        "call_intended",
        "call_reported",
        "response_ended",
        "run_started",
        "session_opened",
        "turn_committed",
    ];
    assert!(every.iter().all(|kind| kinds.contains(*kind)), "{kinds:?}");
}
