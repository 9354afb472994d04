//! The verifier agrees with the turn machine: the records of a turn are valid in every scenario.

use std::collections::BTreeSet;

use super::*;
use callsheet_machines::turn::explorer::{WALK_BUDGET, each_walk};
use callsheet_values::record::Record;
use callsheet_values::transcript::fixtures::entries;
use callsheet_values::types::Execution;

fn begun(execution: Execution) -> [Record; 2] {
    let mut overrides = callsheet_values::config::RunOverrides::default();
    overrides.limits.max_tokens_per_run = WALK_BUDGET.tokens_left;
    overrides.limits.max_tool_calls_per_run = WALK_BUDGET.calls_left;
    [
        Record::SessionOpened {
            agent: "default".into(),
            messages: Vec::new(),
            metadata: callsheet_values::types::Metadata::default(),
            parent: None,
            client_tools: None,
        },
        Record::RunStarted {
            run_id: RunId("run_1".into()),
            input: "go".into(),
            overrides: std::sync::Arc::new(overrides),
            model: "m".into(),
            execution,
            request: None,
            trace: None,
            metadata: callsheet_values::types::Metadata::default(),
            into: None,
            authored_by: None,
        },
    ]
}

#[test]
fn the_records_of_a_turn_have_no_breach_in_any_scenario() {
    let session = SessionId::parse("s").unwrap();
    let (mut walks, mut leases, mut kinds) = (0, 0, BTreeSet::new());
    each_walk(|execution, log| {
        // A turn that was committed before a crash commits again, and the session records nothing.
        let committed = |record: &Record| matches!(record, Record::TurnCommitted { .. });
        let end = log.iter().position(committed).map_or(log.len(), |place| place + 1);
        let log = log[..end].iter().cloned();
        let entries = entries(begun(execution).into_iter().chain(log));
        let breaches = verify(&session, &entries);
        assert!(breaches.is_empty(), "{breaches:#?} in {entries:#?}");
        assert_eq!(open_run_id(&entries), Some(&RunId("run_1".into())));
        walks += 1;
        for entry in &entries {
            leases +=
                u32::from(matches!(&entry.record, Record::CallIntended { lease: Some(_), .. }));
            let json = serde_json::to_value(entry).unwrap();
            kinds.insert(json["type"].as_str().unwrap().to_owned());
        }
    });
    assert!(walks > 1_000 && leases > 500, "{walks} turns with {leases} leases were walked");
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
