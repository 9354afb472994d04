//! Random runs: every run ends and keeps to its limits, and each limit is reported as often as it
//! should be.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;

use crate::session::{RunMachine, RunNext};
use crate::turn::{CancelReason, CommittedTurn};
use callsheet_values::config::Limits;
use callsheet_values::event::TurnTimes;
use callsheet_values::record::{ResponseMessage, TurnEnd};
use callsheet_values::types::{
    CallKey, FailureKind, FinishKind, FinishReason, RequestKind, ResultNotes, RunEnd, ToolCall,
    ToolOutcome, ToolResult, ToolStatus, Usage,
};

/// The properties of a turn that a run decides by.
#[derive(Clone, Debug)]
struct Brief {
    text: bool,
    /// The argument of each call, and true if the call succeeds.
    calls: Vec<(u8, bool)>,
    tokens: u64,
    cancelled: bool,
    paused: bool,
}

impl Brief {
    fn record(&self) -> CommittedTurn {
        let results = self.calls.iter().zip(0..).map(|((what, ok), index)| ToolResult {
            call: ToolCall {
                key: CallKey { turn: 1, attempt: 1, index },
                id: index.to_string().into(),
                provider_id: None,
                name: "pure".into(),
                arguments: serde_json::json!({"n": what}).into(),
                raw: None,
                indirect: false,
            },
            outcome: if *ok {
                ToolOutcome::ok("yes")
            } else {
                ToolOutcome::not_ok(ToolStatus::Failed, FailureKind::ToolError, "no")
            },
            notes: ResultNotes::default(),
            started: None,
            wait: Duration::ZERO,
            duration: Duration::ZERO,
            writes: callsheet_values::types::WriteSet::default(),
        });
        let text = if self.text { "so".to_owned() } else { String::new() };
        CommittedTurn {
            number: 1,
            end: if self.cancelled {
                TurnEnd::Cancelled(CancelReason::Budget)
            } else {
                TurnEnd::Finished
            },
            message: Some(ResponseMessage { text, ..ResponseMessage::default() }.into()),
            results: results.collect(),
            dropped_calls: Vec::new(),
            finish_reason: self.paused.then(|| FinishReason::new(FinishKind::Pause, "pause_turn")),
            usage: Usage { output_tokens: self.tokens, ..Usage::default() },
            request_tokens: 0,
            times: TurnTimes::default(),
        }
    }
}

fn briefs() -> impl Strategy<Value = Vec<Brief>> {
    let calls = proptest::collection::vec((0..2_u8, any::<bool>()), 0..3);
    let brief = (any::<bool>(), calls, 0..20_u64, 0..40_u8).prop_map(|(text, calls, tokens, n)| {
        // Answers and cuts are rare, or no run would come far.
        let text = text && (calls.len() < 2 || n > 20);
        Brief { text, calls, tokens, cancelled: n == 0, paused: n % 10 == 1 }
    });
    let brief = (brief, 0..3_u8).prop_map(|(brief, n)| match n {
        0 => brief,
        _ => Brief { calls: vec![(0, true)], ..brief },
    });
    proptest::collection::vec(brief, 40)
}

fn limits() -> impl Strategy<Value = Limits> {
    use proptest::option::of;
    let counts = (of(1..9_u32), of(1..4_u32), of(1..5_u32), of(1..12_u32), of(1..90_u64));
    counts.prop_map(|(turns, failed, repeat_limit, calls, tokens)| Limits {
        max_turns: turns,
        max_failed_turns: failed,
        repeat_limit,
        max_tool_calls_per_run: calls,
        max_tokens_per_run: tokens,
        ..Limits::default()
    })
}

proptest! {
    #[test]
    fn a_run_keeps_to_its_limits(limits in limits(), briefs in briefs()) {
        let mut run = RunMachine::new(&limits);
        run.begin();
        let (mut tokens, mut requests, mut final_requests) = (0, 1, 0);
        let mut counts: BTreeMap<(&str, &str), u32> = BTreeMap::new();
        let (mut ended, mut last_calls, mut same, mut failed) = (None, vec![], 0, 0);
        for brief in briefs {
            same = if brief.calls == last_calls { same + 1 } else { 1 };
            let all_failed = !brief.calls.is_empty() && brief.calls.iter().all(|(_, ok)| !*ok);
            failed = if all_failed { failed + 1 } else { 0 };
            last_calls.clone_from(&brief.calls);
            let record = brief.record();
            tokens += brief.tokens;
            let step = run.handle_turn(&record, false);
            for hit in &step.limits {
                *counts.entry((hit.limit, hit.action)).or_default() += 1;
                let half = hit.action == "half_used";
                prop_assert_eq!(half, hit.value < hit.maximum);
                prop_assert!(hit.value * 2 >= hit.maximum);
                // A note has a result to stand behind.
                prop_assert_eq!(hit.note.is_some(), matches!(hit.action, "half_used" | "told"));
                prop_assert!(hit.note.is_none() || !record.results.is_empty());
            }
            match step.next {
                RunNext::Turn(kind) => {
                    requests += 1;
                    final_requests += u32::from(kind == RequestKind::FinalAnswer);
                    let left = run.budget().tokens_left;
                    prop_assert_eq!(left, limits.max_tokens_per_run.map(|max| max - tokens));
                    prop_assert!(left != Some(0), "a request that nothing is left for");
                    if !brief.calls.is_empty() {
                        prop_assert!(limits.repeat_limit.is_none_or(|max| same < 2 * max));
                        prop_assert!(limits.max_failed_turns.is_none_or(|max| failed < max));
                    }
                }
                RunNext::Instruct(instruction) => {
                    prop_assert_eq!(instruction.request_kind, RequestKind::FinalText);
                    (requests, final_requests) = (requests + 1, final_requests + 1);
                }
                RunNext::End { end, .. } => {
                    ended = Some((end, step.limits, record));
                    break;
                }
            }
        }
        // One when the turns are used up, and one after an empty answer.
        prop_assert!(final_requests <= 2 && run.turns() == requests - final_requests);
        prop_assert!(limits.max_turns.is_none_or(|max| requests <= max + 2));
        for ((limit, action), times) in counts {
            let again = limit == "repeat_limit" && action == "told";
            prop_assert!(again || times == 1, "{limit} {action}: {times} times");
        }
        let Some((end, hits, record)) = ended else {
            prop_assert!(limits.max_turns.is_none());
            return Ok(());
        };
        let actions: Vec<_> = hits.iter().map(|hit| (hit.limit, hit.action)).collect();
        match end {
            RunEnd::Budget if record.end == TurnEnd::Finished => {
                prop_assert_eq!(actions, [("max_tokens_per_run", "ended")]);
            }
            RunEnd::Budget => prop_assert_eq!(actions, []),
            RunEnd::AllToolsFailed => prop_assert_eq!(actions, [("max_failed_turns", "ended")]),
            RunEnd::LoopDetected => prop_assert_eq!(actions, [("repeat_limit", "ended")]),
            RunEnd::Answered | RunEnd::MaxTurns => {
                let over = limits.max_tokens_per_run.is_some_and(|max| tokens >= max);
                let kept = [("max_tokens_per_run", "answer_kept")];
                prop_assert_eq!(actions, &kept[..usize::from(over)]);
            }
            RunEnd::Failed => {
                let text = record.message.as_ref().map_or("", |message| &message.text);
                prop_assert!(text.is_empty() && final_requests > 0, "only empty answers fail");
            }
            RunEnd::Stopped
            | RunEnd::Refused
            | RunEnd::TimedOut
            | RunEnd::Interrupted => prop_assert!(false, "{end:?}"),
        }
    }
}
