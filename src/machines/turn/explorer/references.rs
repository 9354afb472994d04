//! Scenarios of calls with references in their arguments. Their values are read at any time, in any order.

use super::*;
use crate::context::ReferenceValues;
use callsheet_values::types::{Reference, ReferenceError, ReferencedValue, RunId};

/// Calls with the reference of every scenario in their arguments.
const PURE: &str = r#"pure {"r":"$VAR_REF{{run_7}}"}"#;
const SEAL: &str = r#"seal {"r":"$VAR_REF{{run_7}}"}"#;
const EFFECT: &str = r#"effect {"r":["$VAR_REF{{run_7}}"]}"#;
const IDEMPOTENT: &str = r#"idempotent {"r":"$VAR_REF{{run_7}}"}"#;
const ASKED: &str = r#"asked {"r":"$VAR_REF{{run_7}}"}"#;
const REVIEWED: &str = r#"reviewed_pure {"r":"$VAR_REF{{run_7}}"}"#;
const BUMP: &str = r#"bump {"r":"$VAR_REF{{run_7}}"}"#;

const MIXES: [&[&str]; 6] = [
    &[PURE, "pure", PURE],
    &["pure", EFFECT, "effect"],
    &[SEAL, PURE],
    &[EFFECT, EFFECT],
    &[BUMP, BUMP],
    &[IDEMPOTENT, "pure {\"n\":\"no\"}", SEAL],
];

fn reference() -> Reference {
    Reference::Answer(RunId("run_7".into()))
}

/// Returns the references that each call requests.
pub(super) fn references() -> BTreeSet<Reference> {
    [reference()].into()
}

/// Returns the values of the references, or an error.
pub(super) fn values(is_read: bool) -> Result<ReferenceValues, ReferenceError> {
    match is_read {
        true => Ok([(reference(), ReferencedValue::text("value"))].into()),
        false => Err(ReferenceError::NoSuchRun(reference())),
    }
}

#[test]
fn references_with_cancellations_breaks_and_failures() {
    explore_each(&MIXES, &SMALL_EXECUTIONS, |scenario| scenario.cancel = true);
    explore_each(&MIXES, &PARALLEL_8, |scenario| {
        scenario.durable_at_once = true;
        scenario.breaks = 1;
        scenario.failures = true;
    });
    explore_each(&MIXES[..4], &PARALLEL_8, |scenario| {
        // More bytes for the sealed call 0 make it malformed.
        scenario.response.insert(scenario.response.len() - 1, more(0, " x"));
    });
}

#[test]
fn references_with_crashes_and_deaths_of_the_owner() {
    explore_each(&MIXES[..4], &PARALLEL_8, |scenario| {
        scenario.crashes = 1;
        scenario.torn = true;
    });
    explore_each(&MIXES[2..], &PARALLEL_8, |scenario| {
        scenario.durable_at_once = true;
        scenario.owner_deaths = 1;
    });
    for ending in [FinishKind::Length, FinishKind::ContentFilter] {
        explore_each(&MIXES[..3], &PARALLEL_8, |scenario| {
            *scenario.response.last_mut().unwrap() = finish(ending);
            scenario.cancel = true;
            scenario.durable_at_once = true;
        });
    }
}

#[test]
fn references_with_approvals() {
    explore_each(&[&[ASKED, PURE], &[REVIEWED, ASKED]], &SMALL_EXECUTIONS, |scenario| {
        scenario.cancel = true;
        scenario.crashes = 1;
        scenario.durable_at_once = true;
    });
}
