//! The parts of a run's time: model, tools, people, waits and the host's overhead add up to the whole.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use callsheet::config::Config;
use callsheet::event::RunStats;
use callsheet::model::{ModelReply, ModelRequest, ModelStream, ProviderError, ProviderErrorKind};
use callsheet::prelude::*;
use callsheet::tool::ApprovalPolicy;
use futures::{FutureExt as _, StreamExt as _};
use serde_json::json;

const MODEL: Duration = Duration::from_millis(100);
const TOOL: Duration = Duration::from_millis(150);
const PERSON: Duration = Duration::from_millis(200);

/// Makes a model whose replies take [`MODEL`] each.
fn slow_model(
    replies: impl Fn(usize) -> ModelReply + Send + Sync + 'static,
) -> impl Fn(ModelRequest) -> ModelStream + Send + Sync + 'static {
    let next = AtomicUsize::new(0);
    move |_: ModelRequest| {
        let reply = replies(next.fetch_add(1, Ordering::Relaxed));
        tokio::time::sleep(MODEL).map(|()| reply.into_stream()).flatten_stream().boxed()
    }
}

/// Checks that the parts add up, and that a part is at least as long as what was spent on it, and not by
/// half longer.
fn check(stats: &RunStats, expected: [Duration; 4]) {
    let RunStats { duration, model, tools, people, waits, overhead, overlap, .. } = *stats;
    assert_eq!(model + tools + people + waits + overhead, duration + overlap, "{stats:?}");
    assert!(overhead > Duration::ZERO, "{stats:?}");
    for (part, least) in [model, tools, people, waits].into_iter().zip(expected) {
        assert!(part >= least, "{least:?}: {stats:?}");
        assert!(least > Duration::ZERO || part < MODEL, "{stats:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_of_a_run_add_up_to_its_duration() {
    let work = ToolSpec::named("work", "Works.").approval(ApprovalPolicy::BEFORE).into_tool(
        async |(): (), _| {
            tokio::time::sleep(TOOL).await;
            Ok("done")
        },
    );
    let model = slow_model(|request| match request {
        0 => ModelReply::error(ProviderError::new(ProviderErrorKind::Transport, "it broke")),
        1 => ModelReply::call("work", json!({})),
        _ => ModelReply::text("Done."),
    });
    let host = Host::builder().model_source("slow", model).tool(work).start().await.unwrap();
    let session = host.open_session("s").await.unwrap();
    let mut run = session.start_run("Work.").await.unwrap();
    while let Some(event) = run.next_event().await.unwrap() {
        if let RunEvent::ApprovalRequested(question) = event {
            tokio::time::sleep(PERSON).await;
            question.approve().await.unwrap();
        }
    }
    let report = run.report.await.unwrap();
    assert_eq!(report.text().unwrap(), "Done.");
    // The delay before the second attempt is at least a quarter of a second.
    check(&report.exact, [3 * MODEL, TOOL, PERSON, Duration::from_millis(250)]);
    let told = &report.stats;
    assert!(told.waits_ms >= 250 && told.people_ms >= 200, "{told:?}");
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_in_which_a_request_waits_for_a_place_is_not_the_models() {
    let config = "[models.slow]\nbase_url = \"http://127.0.0.1:9\"\nmodel = \"m\"\n\
                  max_concurrent_requests = 1\n[agents.default]\nmodel = \"slow\"\n\
                  [journal]\nengine = \"memory\"\n";
    let config = Config::parse(config, "test.toml", &|_| None).unwrap();
    let model = slow_model(|_| ModelReply::text("Done."));
    let host = Host::builder().config(config).model_source("slow", model).start().await.unwrap();
    let runs = (0..3).map(async |index| {
        let session = host.open_session(format!("s{index}")).await.unwrap();
        session.run("Answer.").await.unwrap().exact
    });
    let mut stats = futures::future::join_all(runs).await;
    stats.sort_by_key(|stats| stats.duration);
    for (index, stats) in stats.iter().enumerate() {
        check(stats, [MODEL, Duration::ZERO, Duration::ZERO, MODEL * index as u32 * 9 / 10]);
    }
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_request_for_a_summary_before_a_turn_is_time_of_the_model() {
    let config = "[models.slow]\nbase_url = \"http://127.0.0.1:9\"\nmodel = \"m\"\n\
                  context_window = 20000\n[agents.default]\nmodel = \"slow\"\n\
                  [agents.default.context]\ncompact_at = 0.1\nkeep_turns = 0\n\
                  [journal]\nengine = \"memory\"\n";
    let config = Config::parse(config, "test.toml", &|_| None).unwrap();
    let model = slow_model(|request| match request {
        0 => ModelReply::text("word ".repeat(5_000)),
        1 => ModelReply::text("## Done\nan answer"),
        _ => ModelReply::text("Done."),
    });
    let host = Host::builder().config(config).model_source("slow", model).start().await.unwrap();
    let session = host.open_session("s").await.unwrap();
    session.run("Answer.").await.unwrap();
    let report = session.run("Answer again.").await.unwrap();
    assert_eq!(report.text().unwrap(), "Done.", "the second request is for a summary");
    // The report is read from the journal, whose times are whole milliseconds.
    let RunStats { model, overhead, .. } = report.exact;
    assert!(model >= 2 * MODEL && overhead < MODEL, "{:?}", report.exact);
    host.shutdown().await;
}
