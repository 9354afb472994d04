//! Metrics of hosts in one program: recorders of the program, and labels that tell hosts apart.
#![expect(clippy::unwrap_used, reason = "a failed test may panic")]

use std::sync::Arc;

use callsheet::prelude::*;
use metrics::{NoopRecorder, Recorder};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// Makes a recorder as a program would, with the buckets of the host's histograms.
fn recorder() -> (Arc<dyn Recorder + Send + Sync>, PrometheusHandle) {
    let builder = callsheet::HostBuilder::histogram_bounds().fold(
        PrometheusBuilder::new(),
        |builder, bounds| {
            let (name, bounds) = bounds;
            builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds).unwrap()
        },
    );
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    (Arc::new(recorder), handle)
}

/// Runs a number of runs to their end.
async fn run(host: &Host, runs: usize) {
    let session = host.open_session(OpenSession::default()).await.unwrap();
    for _ in 0..runs {
        session.run("Say hello.").await.unwrap().text().unwrap();
    }
    host.shutdown().await;
}

fn value(page: &str, series: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.map(|value| value.parse().unwrap())
}

#[tokio::test]
async fn two_hosts_count_in_their_own_recorders() {
    let ((one, one_page), (two, two_page)) = (recorder(), recorder());
    let one = Host::builder().recorder(one).start().await.unwrap();
    let two = Host::builder().recorder(two).metrics_label("host", "two").start().await.unwrap();
    assert_eq!(one.metrics_page(), None);
    run(&one, 1).await;
    run(&two, 2).await;
    let (one, two) = (one_page.render(), two_page.render());
    assert_eq!(value(&one, "callsheet_runs_total{run_end=\"answered\"}"), Some(1.0));
    let answered = "callsheet_runs_total{run_end=\"answered\",host=\"two\"}";
    assert_eq!(value(&two, answered), Some(2.0), "{two}");
    assert_eq!(value(&two, "callsheet_turn_overhead_seconds_count{host=\"two\"}"), Some(2.0));
    assert!(two.contains("callsheet_turn_overhead_seconds_bucket{host=\"two\",le="), "{two}");
    assert!(one.contains("\n# TYPE tool_execution_time_seconds_total counter\n"));
}

#[tokio::test]
async fn two_hosts_share_a_recorder_and_differ_by_a_label() {
    let (shared, page) = recorder();
    let start = async |name: &str| {
        let host = Host::builder().recorder(Arc::clone(&shared)).metrics_label("host", name);
        host.start().await.unwrap()
    };
    let (one, two) = (start("one").await, start("two").await);
    run(&one, 1).await;
    run(&two, 2).await;
    let page = page.render();
    for (host, runs) in [("one", 1.0), ("two", 2.0)] {
        let answered = format!("callsheet_runs_total{{run_end=\"answered\",host=\"{host}\"}}");
        assert_eq!(value(&page, &answered), Some(runs), "{page}");
    }
    let series = page.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    for line in series {
        assert!(line.contains("host=\""), "{line}");
    }
}

#[tokio::test]
async fn the_hosts_own_page_has_the_labels() {
    let host = Host::builder().metrics_label("host", "eu-1").metrics_label("zone", "é b");
    let host = host.start().await.unwrap();
    let page = host.metrics_page().unwrap();
    let series: Vec<&str> =
        page.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert!(series.len() > 100);
    for line in series {
        assert!(line.contains("host=\"eu-1\",zone=\"é b\""), "{line}");
    }
    host.shutdown().await;
}

#[tokio::test]
async fn a_label_that_a_metric_has_already_is_refused() {
    let error = Host::builder().metrics_label("tool", "x").start().await.unwrap_err();
    assert!(error.to_string().contains("metrics label \"tool\""), "{error}");
    let recorder = Arc::new(NoopRecorder);
    Host::builder().recorder(recorder).start().await.unwrap().shutdown().await;
}
