//! Pairing: the provider never sees a call without a result. Random responses, faults and stops run
//! against a server that refuses unpaired histories.
#![expect(clippy::expect_used, reason = "a test")]

use std::time::Duration;

use crate::support::tools::{CallControl, registry};
use crate::support::{parallel, within, world};
use callsheet::record::StopMode;
use callsheet::types::{RunEnd, ToolStatus};
use callsheet_mock_provider::{Call, Finish, Response, Script};
use serde_json::json;

/// A deterministic random generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % bound
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }
}

fn response(random: &mut Random) -> Response {
    let tools = ["quick", "writes", "fails", "panics", "hangs", "nobody", "waits"];
    let calls = (0..random.below(4)).map(|n| {
        let tool = random.pick(&tools);
        let call = match random.below(6) {
            0 => Call::raw(tool, "{\"id\": \"cut"),
            1 => Call::raw(tool, "[1]"),
            2 => Call::raw(tool, ""),
            _ => Call::new(tool, json!({"id": "same"})),
        };
        // Missing ids, and ids that repeat within a response or between turns.
        match random.below(4) {
            0 => Call { no_id: true, ..call },
            1 => call.id("0"),
            _ => call.id(&format!("call_{n}")),
        }
    });
    let calls: Vec<_> = calls.collect();
    let mut response = Response::calls(calls);
    if random.below(2) == 0 {
        response.text = vec!["Let ".into(), "me ".into(), "see.".into()];
    }
    match random.below(10) {
        0 => response.cut_after_chunks = Some(random.below(6) as usize),
        1 => response.truncate = true,
        2 => response.malformed_at_chunk = Some(random.below(6) as usize),
        3 => response.finish_reason = Finish::Word("length".into()),
        4 => response.finish_reason = Finish::Word("content_filter".into()),
        5 => response.finish_reason = Finish::Null,
        6 => response.stall_after_chunks = Some(random.below(6) as usize),
        _ => {}
    }
    response
}

#[tokio::test(flavor = "multi_thread")]
async fn random_runs_never_send_an_unpaired_history() {
    futures::future::join_all((0..40).map(random_runs)).await;
}

async fn random_runs(seed: u64) {
    let mut random = Random(seed);
    let responses: Vec<_> = (0..10).map(|_| response(&mut random)).collect();
    let control = CallControl::new();
    let world = world(Script::new(responses).then_done(), registry(&control), |config| {
        if seed.is_multiple_of(2) {
            parallel(4)(config);
        }
        let model = config.models.get_mut("rehearsal").expect("the offline model");
        model.first_event_timeout = Duration::from_millis(500);
        model.answer_timeout = Duration::from_millis(500);
        model.idle_timeout = Duration::from_millis(500);
        // The breaker is disabled, because the model fails often.
        model.breaker_failures = None;
        let limits = &mut config.agents.get_mut("default").expect("the agent").limits;
        limits.tool_timeout = Some(Duration::from_millis(30));
        limits.cancel_grace = Duration::from_millis(5);
        limits.max_turns = Some(4);
    })
    .await;
    while world.model.responses_left() > 0 {
        let started = world.session.start_run("go").await.expect("a run");
        if random.below(3) == 0 {
            tokio::time::sleep(Duration::from_millis(random.below(60))).await;
            world.session.stop(StopMode::Now).await.expect("a stop");
        }
        let report = within(started.report).await.expect("a report");
        let answered = report
            .calls
            .iter()
            .all(|call| call.status == ToolStatus::Ok || call.result.starts_with("Error: "));
        assert!(answered, "seed {seed}: {:?}", report.calls);
    }
    assert_eq!(world.run("and at last?").await.run_end, RunEnd::Answered, "seed {seed}");
    world.assert_paired();
    world.until_idle().await;
}
