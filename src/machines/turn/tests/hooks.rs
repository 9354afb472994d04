//! Hooks that are asked about calls.

use serde_json::{Value, json};

use super::fallbacks::{overflows, reduced};
use super::*;
use crate::turn::HookScope;
use crate::turn::hook_chain::sha256;
use callsheet_values::config::ToolPattern;
use callsheet_values::event::WaitingFor;
use callsheet_values::types::{ApprovalVerdict, HookDecision, HookPoint, HookVerdict, WaitPhase};

fn scope(on: HookPoint, tools: &[&str]) -> HookScope {
    let tools = tools.iter().map(|name| ToolPattern::new(*name)).collect();
    HookScope { on, tools: Some(tools).filter(|tools: &Vec<_>| !tools.is_empty()) }
}

fn driver(scopes: impl IntoIterator<Item = HookScope>) -> Driver {
    let hooks = scopes.into_iter().collect();
    Driver::with(RunRules { hooks, ..rules(PARALLEL) })
}

fn before() -> Driver {
    driver([scope(HookPoint::BeforeCall, &[])])
}

fn decision(verdict: HookVerdict) -> HookDecision {
    HookDecision { verdict, ..HookDecision::default() }
}

impl Driver {
    fn decide_hooks(&mut self, index: u32, on: HookPoint, decision: HookDecision) -> &mut Self {
        self.turn.handle_hook_decision(self.now, Some(self.key(index)), on, decision);
        self.perform_effects();
        self
    }

    fn outcomes(&self) -> Vec<(&ToolStatus, Option<FailureKind>, &str)> {
        let results = &self.commit.as_ref().unwrap().results;
        let outcomes = results.iter().map(|result| &result.outcome);
        outcomes.map(|outcome| (&outcome.status, outcome.kind, &*outcome.content)).collect()
    }

    /// Returns the points and the calls that hooks were asked about.
    fn questions(&self) -> Vec<(HookPoint, u32)> {
        self.hooks_asked
            .iter()
            .filter_map(|asked| Some((asked.on, asked.call.as_ref()?.key.index)))
            .collect()
    }
}

const HOOK: Option<FailureKind> = Some(FailureKind::Hook);

#[test]
fn a_call_waits_for_hooks_and_later_calls_for_its_admission() {
    let mut driver = before();
    driver.receive([call(0, "pure", "{}"), call(1, "effect", r#"{"n": 1}"#), text("t")]);
    // Both are asked about as soon as they are sealed; the second one at the end of the response.
    driver.end_well().assert_started(&[]);
    let on = HookPoint::BeforeCall;
    assert_eq!(driver.questions(), [(on, 0), (on, 1)]);
    let waits = driver
        .events
        .iter()
        .filter(|event| matches!(event, Event::CallWaiting { waiting_for: WaitingFor::Hook, .. }));
    assert_eq!(waits.count(), 2);
    driver.decide_hooks(1, on, decision(HookVerdict::Allow)).assert_started(&[]);
    driver
        .decide_hooks(0, on, decision(HookVerdict::Allow))
        .assert_started(&["pure#0", "effect#1"]);
    // A second decision is late.
    driver.decide_hooks(0, on, decision(HookVerdict::Refuse));
    driver.finish_call(0, "a").finish_call(1, "b");
    assert_eq!(driver.outcomes().iter().map(|o| o.2).collect::<Vec<_>>(), ["a", "b"]);
}

#[test]
fn a_refused_call_never_runs_and_the_others_do() {
    let mut driver = before();
    driver.receive([call(0, "seal", "{}"), call(1, "pure", "{}"), call(2, "effect", "{}")]);
    driver.end_well();
    let on = HookPoint::BeforeCall;
    let refusal = HookDecision {
        hook: Some("guard".into()),
        message: Some("no".into()),
        ..decision(HookVerdict::Refuse)
    };
    driver.decide_hooks(0, on, refusal.clone());
    driver.decide_hooks(1, on, HookDecision { message: None, ..refusal });
    driver.decide_hooks(2, on, decision(HookVerdict::Allow)).assert_started(&["effect#2"]);
    driver.finish_call(2, "done");
    let [first, second, third] = &driver.outcomes()[..] else { panic!("three") };
    let refused = |message: &str| json!({"status": "rejected", "message": message}).to_string();
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap().to_string();
    assert_eq!((first.0, first.1, parsed(first.2)), (&ToolStatus::Refused, HOOK, refused("no")));
    assert_eq!(second.1, HOOK);
    assert_eq!(parsed(second.2), refused("not run: the hook guard refuses the call"));
    assert_eq!(third.2, "done");
}

#[test]
fn only_calls_that_would_run_are_asked_about() {
    let mut driver = driver([scope(HookPoint::BeforeCall, &["pure", "eff*"])]);
    driver.receive([
        call(0, "pure", "[]"),
        call(1, "nobody", "{}"),
        call(2, "quick", "{}"),
        call(3, "effect", "{}"),
    ]);
    driver.end_well().assert_started(&["quick#2"]);
    assert_eq!(driver.questions(), [(HookPoint::BeforeCall, 3)]);
    driver.cancel();
    assert_eq!(driver.hooks_withdrawn, [3]);
    assert_eq!(driver.outcomes()[3].1, Some(FailureKind::NotStarted));
}

#[test]
fn changed_arguments_are_those_of_the_approval_the_intent_and_the_tool() {
    let mut driver = before();
    driver.receive([call(0, "asked", r#"{"n": 1}"#)]).end_well();
    let arguments = Arc::new(json!({"n": 2}));
    let changed =
        HookDecision { arguments: Some(arguments.clone()), ..decision(HookVerdict::Allow) };
    driver.decide_hooks(0, HookPoint::BeforeCall, changed).assert_started(&[]);
    let asked = driver.events.iter().find_map(|event| match event {
        Event::ApprovalAsked { request } => Some(request.clone()),
        _ => None,
    });
    let asked = asked.unwrap();
    assert_eq!((&asked.arguments, &asked.arguments_sha256), (&arguments, &sha256(&arguments)));
    let approval = crate::turn::ApprovalDecision {
        phase: Some(WaitPhase::Before),
        verdict: ApprovalVerdict::Approved,
        message: None,
        arguments_sha256: asked.arguments_sha256,
        content: None,
        author: None,
    };
    driver.turn.handle_approval(driver.now, driver.key(0), approval).unwrap();
    driver.perform_effects();
    driver.assert_started(&["asked#0"]);
    assert_eq!(driver.started_arguments, std::slice::from_ref(&arguments));
    let intended = driver.log.iter().find_map(|record| match record {
        Record::CallIntended { call, .. } => Some(call.arguments.clone()),
        _ => None,
    });
    assert_eq!(intended, Some(arguments));
    driver.finish_call(0, "done");
    // The message keeps the arguments of the model.
    let record = driver.commit.as_ref().unwrap();
    assert_eq!(*record.results[0].call.arguments, json!({"n": 1}));
}

#[test]
fn a_hook_can_ask_for_an_approval_and_allow_skips_none() {
    for (tool, verdict, asks) in [
        ("effect", HookVerdict::Ask, true),
        ("effect", HookVerdict::Allow, false),
        ("asked", HookVerdict::Allow, true),
        ("asked", HookVerdict::Ask, true),
    ] {
        let mut driver = before();
        driver.receive([call(0, tool, "{}")]).end_well();
        driver.decide_hooks(0, HookPoint::BeforeCall, decision(verdict));
        assert_eq!(
            driver.turn.pending_approvals().count(),
            usize::from(asks),
            "{tool} {verdict:?}"
        );
        assert_eq!(driver.started.is_empty(), asks, "{tool} {verdict:?}");
        driver.cancel();
    }
}

#[test]
fn a_result_waits_for_hooks_that_change_or_withhold_it() {
    let mut driver = driver([scope(HookPoint::AfterCall, &[])]);
    let calls = (0..4).map(|index| call(index, "effect", &format!("{{\"n\": {index}}}")));
    driver.receive(calls).end_well();
    for index in 0..4 {
        driver.finish_call(index, "secret");
    }
    let on = HookPoint::AfterCall;
    assert_eq!(driver.questions(), [(on, 0), (on, 1), (on, 2), (on, 3)]);
    let asked = driver.hooks_asked[0].outcome.as_ref().unwrap();
    assert_eq!(&*asked.content, "secret");
    let changed = |result: Value| HookDecision {
        result: Some(Arc::new(result)),
        ..decision(HookVerdict::Allow)
    };
    driver.decide_hooks(0, on, changed("public".into()));
    driver.decide_hooks(1, on, changed(json!({"rows": 1})));
    driver.decide_hooks(2, on, decision(HookVerdict::Refuse));
    driver.decide_hooks(3, on, decision(HookVerdict::Allow));
    let record = driver.commit.as_ref().unwrap();
    let structured = record.results[1].outcome.full.as_ref().unwrap().structured.clone();
    assert_eq!(structured, Some(json!({"rows": 1})));
    let outcomes = driver.outcomes();
    let texts: Vec<_> = outcomes.iter().map(|outcome| outcome.2).collect();
    assert_eq!((texts[0], texts[1], texts[3]), ("public", r#"{"rows":1}"#, "secret"));
    assert_eq!((outcomes[2].0, outcomes[2].1), (&ToolStatus::Refused, HOOK));
    assert!(texts[2].contains("withholds its result"), "{}", texts[2]);
}

#[test]
fn a_reviewer_sees_what_hooks_leave_and_a_hook_can_ask_for_a_review() {
    let mut driver = driver([scope(HookPoint::AfterCall, &[])]);
    driver.receive([call(0, "reviewed", "{}"), call(1, "pure", "{}")]).end_well();
    driver.finish_call(0, "long").finish_call(1, "other");
    assert_eq!(driver.turn.pending_approvals().count(), 0);
    let changed =
        HookDecision { result: Some(Arc::new("short".into())), ..decision(HookVerdict::Allow) };
    driver.decide_hooks(0, HookPoint::AfterCall, changed);
    driver.decide_hooks(1, HookPoint::AfterCall, decision(HookVerdict::Ask));
    let pending: Vec<_> = driver.turn.pending_approvals().collect();
    assert_eq!(pending, [(key(0), WaitPhase::After), (key(1), WaitPhase::After)]);
    let seen = driver.turn.pending_approval(key(0)).unwrap().output_summary;
    assert_eq!(seen.as_deref(), Some("short"));
    driver.cancel();
}

#[test]
fn a_stop_ends_the_wait_for_hooks() {
    let mut driver = driver([scope(HookPoint::AfterCall, &[])]);
    driver.receive([call(0, "effect", "{}")]).end_well();
    driver.finish_call(0, "secret").cancel();
    assert_eq!(driver.hooks_withdrawn, [0]);
    let outcome = driver.outcomes()[0];
    assert_eq!((outcome.0, outcome.1), (&ToolStatus::Refused, HOOK));
    assert!(!outcome.2.contains("secret") && outcome.2.contains("it ran"), "{}", outcome.2);
}

#[test]
fn a_pure_result_of_a_void_attempt_is_not_reused_where_a_hook_asks() {
    let on = HookPoint::BeforeCall;
    for (verdict, is_reused) in [(HookVerdict::Allow, true), (HookVerdict::Ask, false)] {
        let mut driver = before();
        driver.receive([call(0, "pure", "{}"), call(1, "pure", r#"{"n": 1}"#)]);
        driver.decide_hooks(0, on, decision(HookVerdict::Allow)).assert_started(&["pure#0"]);
        driver.finish_call(0, "first").break_off();
        assert_eq!(driver.hooks_withdrawn, [] as [u32; 0]);
        driver.receive([call(0, "pure", "{}")]).end_well();
        driver.decide_hooks(0, on, decision(verdict));
        assert_eq!(driver.commit.is_some(), is_reused, "{verdict:?}");
        driver.cancel();
    }
}

#[test]
fn a_recorded_decision_is_applied_without_asking_again() {
    let on = HookPoint::BeforeCall;
    let rules = || RunRules {
        hooks: [scope(HookPoint::BeforeCall, &[]), scope(HookPoint::AfterCall, &[])].into(),
        ..rules(PARALLEL)
    };
    let mut driver = Driver::with(rules());
    driver.receive([call(0, "asked", "{}"), call(1, "asked", r#"{"n": 1}"#)]).end_well();
    let changed =
        HookDecision { arguments: Some(Arc::new(json!({"n": 5}))), ..decision(HookVerdict::Allow) };
    driver.decide_hooks(0, on, changed);
    let log: Vec<_> = driver.log.iter().map(|record| (record.clone(), 0)).collect();
    driver.log.is_replayed = false;
    let mut resumed = Turn::resume(spec(rules()), &entries(0, &log), 0, None);
    let mut asked = Vec::new();
    while let Some(effect) = resumed.poll() {
        if let Effect::Perform(TurnAction::AskHooks(request)) = effect {
            asked.extend(request.call.map(|call| call.key.index));
        }
    }
    assert_eq!(asked, [1]);
    let pending = resumed.pending_approval(key(0)).unwrap();
    assert_eq!(*pending.arguments, json!({"n": 5}));
}

impl Driver {
    fn decide_turn(&mut self, on: HookPoint, decision: HookDecision) -> &mut Self {
        self.turn.handle_hook_decision(self.now, None, on, decision);
        self.perform_effects();
        self
    }
}

#[test]
fn a_request_waits_for_hooks_that_change_it_for_all_attempts_of_the_turn() {
    let on = HookPoint::BeforeRequest;
    let mut driver = driver([scope(on, &[])]);
    assert_eq!((driver.hooks_asked.len(), driver.requests.len()), (1, 0));
    let changed = HookDecision {
        messages: Some(Arc::new(json!([{"role": "user", "content": "other"}]))),
        ..decision(HookVerdict::Allow)
    };
    driver.decide_turn(on, changed.clone()).decide_turn(on, changed.clone());
    assert_eq!(driver.requests, [(1, true)]);
    driver.break_off();
    assert_eq!((driver.hooks_asked.len(), driver.requests.len()), (1, 2));
    let expected = Arc::new(changed);
    assert_eq!(driver.request_changes, [Arc::clone(&expected), expected]);
    driver.receive([text("hello"), finish(FinishKind::Stop)]).close_stream();
    driver.assert_end(&TurnEnd::Finished);
}

fn refusal() -> HookDecision {
    HookDecision {
        hook: Some("guard".into()),
        message: Some("not today".into()),
        ..decision(HookVerdict::Refuse)
    }
}

fn refused(on: &str) -> TurnEnd {
    TurnEnd::RefusedByHook(callsheet_values::types::RunError {
        code: "hook".to_owned(),
        message: format!("{on} hook guard: not today"),
        transient: false,
    })
}

#[test]
fn a_refused_request_is_not_sent() {
    let on = HookPoint::BeforeRequest;
    let mut driver = driver([scope(on, &[])]);
    driver.decide_turn(on, refusal());
    assert_eq!((driver.requests.len(), driver.disconnects), (0, 0));
    driver.assert_end(&refused("before_request"));
    let ended = driver.events.iter().filter(|event| matches!(event, Event::AttemptEnded { .. }));
    assert_eq!(ended.count(), 0, "no request was sent");
}

#[test]
fn a_stop_ends_the_wait_for_hooks_about_the_turn() {
    let mut before = driver([scope(HookPoint::BeforeRequest, &[])]);
    before.cancel();
    assert_eq!((before.requests.len(), before.disconnects), (0, 0));
    before.assert_end(&TurnEnd::Cancelled(CancelReason::Stop));
    let mut after = driver([scope(HookPoint::AfterTurn, &[])]);
    after.receive([text("hello")]).end_well();
    assert!(after.commit.is_none());
    after.cancel();
    after.assert_end(&TurnEnd::Cancelled(CancelReason::Stop));
}

#[test]
fn a_turn_is_committed_when_hooks_have_decided() {
    let on = HookPoint::AfterTurn;
    for (decision, end) in
        [(decision(HookVerdict::Allow), TurnEnd::Finished), (refusal(), refused("after_turn"))]
    {
        let mut driver = driver([scope(on, &[])]);
        driver.receive([text("so"), call(0, "effect", "{}")]).end_well();
        assert_eq!(driver.hooks_asked.len(), 0);
        driver.finish_call(0, "done");
        assert!(driver.commit.is_none());
        let ended = driver.hooks_asked[0].ended.clone().unwrap();
        assert_eq!(ended.message.unwrap().text, "so");
        assert_eq!(&*ended.results[0].outcome.content, "done");
        driver.decide_turn(on, decision);
        driver.assert_end(&end);
        assert_eq!(&*driver.commit.as_ref().unwrap().results[0].outcome.content, "done");
    }
}

#[test]
fn hooks_are_not_asked_about_a_turn_that_ends_the_run() {
    let mut driver = driver([scope(HookPoint::AfterTurn, &[])]);
    driver.receive([text("no"), finish(FinishKind::ContentFilter)]).close_stream();
    driver.assert_end(&TurnEnd::Refused);
    assert_eq!(driver.hooks_asked, []);
}

#[test]
fn a_copy_of_a_withheld_result_is_withheld_too() {
    let mut driver = driver([scope(HookPoint::AfterCall, &[])]);
    driver.receive([call(0, "pure", "{}"), call(1, "pure", "{}")]).end_well();
    driver.finish_call(0, "secret");
    driver.decide_hooks(0, HookPoint::AfterCall, decision(HookVerdict::Refuse));
    // The hooks were asked once, about the call that ran.
    assert_eq!(driver.questions(), [(HookPoint::AfterCall, 0)]);
    let outcomes = driver.outcomes();
    assert_eq!(outcomes[0], outcomes[1]);
    assert_eq!(outcomes[1].1, HOOK);
    assert!(!outcomes[1].2.contains("secret"));
}

#[test]
fn hooks_are_asked_about_a_smaller_request_also_after_a_crash() {
    let on = HookPoint::BeforeRequest;
    let mut driver = driver([scope(on, &[])]);
    let state = |driver: &Driver| (driver.hooks_asked.len(), driver.requests.len());
    let allow = |driver: &mut Driver| {
        let decision = decision(HookVerdict::Allow);
        driver.turn.handle_hook_decision(driver.now, None, on, decision);
        driver.perform_effects();
    };
    allow(&mut driver);
    overflows(&mut driver);
    reduced(&mut driver, true);
    assert_eq!(state(&driver), (2, 1));
    driver.crash(driver.log.len());
    assert_eq!(state(&driver), (3, 1), "the first decision was about the larger request");
    allow(&mut driver);
    assert_eq!(state(&driver), (3, 2));
    // The second decision is about this request.
    driver.crash(driver.log.len());
    assert_eq!(state(&driver), (3, 3));
}
