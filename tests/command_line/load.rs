//! `callsheet load`: its load, checks and counts. Durations are not tested.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use callsheet_mock_provider::{Call, MockProvider, Response, Script, ScriptPosition};
use serde_json::{Value, json};

/// Time limit of every step, so that a test fails instead of hanging.
const PATIENCE: Duration = Duration::from_secs(60);

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
    command.arg("load").args(arguments).stdin(Stdio::null());
    command.env_remove("CALLSHEET_LOG").env_remove("RUST_LOG");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn output(mut command: Command) -> Output {
    let output = tokio::task::spawn_blocking(move || command.output().unwrap());
    tokio::time::timeout(PATIENCE, output).await.expect("it ends").unwrap()
}

/// Runs the load, and returns its line of JSON and the exit status.
async fn load(model: &MockProvider, arguments: &[&str]) -> (Value, Option<i32>) {
    let base_url = model.base_url();
    let mut all = vec!["--base-url", &base_url, "--model", "m", "--threads", "1", "--json"];
    all.extend(arguments);
    let output = output(command(&all)).await;
    report(&output)
}

fn report(output: &Output) -> (Value, Option<i32>) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stderr, b"", "nothing is drawn without a terminal");
    (serde_json::from_str(&text).unwrap(), output.status.code())
}

fn number(report: &Value, pointer: &str) -> f64 {
    let value = report.pointer(pointer).and_then(Value::as_f64);
    value.unwrap_or_else(|| panic!("{pointer} in {report}"))
}

fn work(i: u64) -> Call {
    Call::new("work", json!({"i": i, "ms": 0, "pad": "x".repeat(30)}))
}

/// Scripts some calls and then a text for every run.
fn script(calls: u64) -> Script {
    let always = |turns: usize, response: Response| {
        response.with(|response| {
            response.repeat = true;
            response.when.turns = Some(turns);
        })
    };
    let asking = Response { text: vec!["So.".to_owned()], ..Response::calls((0..calls).map(work)) };
    Script::new([always(0, asking), always(1, Response::text("It is done."))]).then_done()
}

fn always(response: Response) -> Script {
    Script::new([response.with(|response| response.repeat = true)])
}

#[tokio::test]
async fn correct_answers_are_counted_and_timed() {
    let model = MockProvider::with_script(script(3)).await.unwrap();
    for journal in ["memory", "relaxed", "strict"] {
        let before = model.received();
        let arguments =
            ["--sessions", "4", "--runs", "5", "--renew-after", "2", "--journal", journal];
        let expected = ["--expect-calls", "3", "--expect-text", "It is done."];
        let (report, status) = load(&model, &[&arguments[..], &expected].concat()).await;
        assert_eq!(status, Some(0), "{report}");
        let counts = ["ok", "errors", "unfinished", "tool_calls", "sessions"];
        let counts = counts.map(|name| report[name].as_u64().unwrap());
        assert_eq!(counts, [20, 0, 0, 60, 4], "{journal}");
        assert_eq!(report["errors_by_kind"], json!({}));
        assert_eq!((&report["stopped"], &report["late"]), (&json!(false), &json!(false)));
        // Twenty runs and the warm-up's four, two requests each.
        assert_eq!(model.received() - before, 48);
        let latency = ["p50", "p90", "p99", "max"];
        let latency = latency.map(|name| number(&report, &format!("/latency_ms/{name}")));
        assert!(latency.is_sorted(), "{latency:?}");
        let first = number(&report, "/first_tool_ms/p50");
        let ready = number(&report, "/tools_ready_ms/p50");
        assert!(first > 0.0 && first <= ready && ready <= latency[3], "{report}");
        let overhead = number(&report, "/overhead_us/p50");
        assert!(overhead > 0.0 && overhead <= latency[3] * 1e3, "{report}");
        for name in ["runs_per_s", "cpu_us_per_run", "peak_rss_kb", "time_ms"] {
            assert!(number(&report, &format!("/{name}")) > 0.0, "{name} of {report}");
        }
    }
}

#[tokio::test]
async fn sessions_keep_their_history_until_they_are_renewed() {
    let model = MockProvider::with_script(script(0)).await.unwrap();
    let (report, status) = load(&model, &["--runs", "5", "--renew-after", "3"]).await;
    assert_eq!((status, &report["ok"]), (Some(0), &json!(5)), "{report}");
    let requests = model.requests();
    let lengths = requests.iter().map(|request| request.body["messages"].as_array().unwrap().len());
    // The run of the warm-up, then three runs in one session and two in another.
    assert_eq!(lengths.collect::<Vec<_>>(), [1, 1, 3, 5, 1, 3]);
}

#[tokio::test]
async fn wrong_answers_are_errors_of_their_kinds() {
    let cut = Response { cut_after_chunks: Some(3), ..Response::text("One two three four.") };
    let tool = |name: &str, arguments: Value| {
        Script::new([Response::calls([Call::new(name, arguments)]).with(|response| {
            response.repeat = true;
            response.when.turns = Some(0);
        })])
    };
    for (script, arguments, kind, example) in [
        (script(1), &["--expect-calls", "2"][..], "wrong_number_of_calls", "1 calls instead of 2"),
        (script(2), &["--expect-text", "No."], "wrong_text", "\"It is done.\" instead of \"No.\""),
        (always(Response::status(500)), &[], "provider_error", "500"),
        (always(cut), &[], "provider_error", ""),
        (always(Response::default()), &[], "EMPTY_ANSWER", "every answer of the models was empty"),
        (tool("other", json!({"i": 1})), &[], "tool_error", "t1a1c0 of other"),
        (tool("work", json!({"i": "one"})), &[], "tool_error", "t1a1c0 of work"),
    ] {
        let model = MockProvider::with_script(script).await.unwrap();
        let sessions = ["--sessions", "2", "--runs", "2", "--renew-after", "1"];
        let (report, status) = load(&model, &[&sessions[..], arguments].concat()).await;
        assert_eq!(status, Some(1), "{kind}: {report}");
        assert_eq!((&report["ok"], &report["errors"]), (&json!(0), &json!(4)), "{kind}: {report}");
        assert_eq!(report["errors_by_kind"][kind]["count"], 4, "{report}");
        let message = report["errors_by_kind"][kind]["example"].as_str().unwrap();
        assert!(message.contains(example), "{message}");
        assert_eq!(report["latency_ms"]["p50"], Value::Null);
        assert!(number(&report, "/cpu_us_per_run") > 0.0);
    }
}

#[tokio::test]
async fn one_wrong_answer_among_correct_ones_fails() {
    let say = |text: &str| Response::text(text);
    let always = say("Right.").with(|response| response.repeat = true);
    // The first response is for the warm-up.
    let script = Script::new([say("Right."), say("Right."), say("Wrong."), always]);
    let model = MockProvider::with_script(script).await.unwrap();
    let (report, status) = load(&model, &["--runs", "4", "--expect-text", "Right."]).await;
    assert_eq!(status, Some(1));
    assert_eq!((&report["ok"], &report["errors"]), (&json!(3), &json!(1)));
    assert_eq!(report["errors_by_kind"]["wrong_text"]["count"], 1);
}

#[tokio::test]
async fn a_refused_connection_is_an_error_for_each_run() {
    // Nothing listens on this port, which was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let base_url = format!("http://{}/v1", free.local_addr().unwrap());
    drop(free);
    let output = output(command(&["--base-url", &base_url, "--model", "m", "--runs", "3"])).await;
    assert_eq!((output.status.code(), &output.stderr[..]), (Some(1), &b""[..]));
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        table.contains("3 (0 right, 3 wrong)") && table.contains("such as: failed: "),
        "{table}"
    );
}

#[tokio::test]
async fn the_table_has_a_row_for_each_figure() {
    let model = MockProvider::with_script(script(1)).await.unwrap();
    let base_url = model.base_url();
    let output = output(command(&["--base-url", &base_url, "--model", "m"])).await;
    assert_eq!(output.status.code(), Some(0));
    let table = String::from_utf8(output.stdout).unwrap();
    for row in [
        "runs                       10 (10 right, 0 wrong)\n",
        "runs/s ",
        "CPU per run ",
        "run latency, ms            p50 ",
        "first tool start, p50 ",
        "all tools ready, p50 ",
        "overhead per run, p50 ",
        "event-loop lag, p99 ",
        "peak RSS ",
        "RSS per run in flight ",
    ] {
        assert!(table.contains(row), "{row:?} in\n{table}");
    }
    assert!(!table.contains("unknown") && !table.contains("error"), "{table}");
}

#[tokio::test]
async fn the_rehearsal_model_runs_in_another_process() {
    for (arguments, calls) in [
        (&["--rehearsal", "--sessions", "3", "--runs", "2", "--threads", "2"][..], 24),
        (
            &[
                "--rehearsal",
                "--runs",
                "2",
                "--calls",
                "2",
                "--work",
                "1ms",
                "--execution",
                "parallel",
            ],
            4,
        ),
        (
            &[
                "--rehearsal",
                "--runs",
                "2",
                "--texts",
                "3",
                "--pace",
                "1ms",
                "--early-start",
                "false",
            ],
            8,
        ),
        (&["--rehearsal", "--runs", "2", "--calls", "0", "--stream", "false"], 0),
    ] {
        let output = output(command(&[arguments, &["--json"]].concat())).await;
        let (report, status) = report(&output);
        assert_eq!((status, &report["tool_calls"]), (Some(0), &json!(calls)), "{report}");
    }
}

#[tokio::test]
async fn max_time_limits_the_load() {
    let stall = Response { stall_after_chunks: Some(1), ..Response::text("One two.") };
    let model = MockProvider::with_script(always(stall)).await.unwrap();
    let (report, status) = load(&model, &["--sessions", "3", "--max-time", "300ms"]).await;
    // Not even the warm-up ends.
    assert_eq!((status, &report["ok"], &report["late"]), (Some(1), &json!(0), &json!(true)));
    let first = Response::text("One two.");
    let stall = Response { stall_after_chunks: Some(1), ..first.clone() };
    let script = Script::new([first.clone(), first, stall]);
    let model = MockProvider::with_script(script).await.unwrap();
    let (report, status) = load(&model, &["--max-time", "5s"]).await;
    assert_eq!((status, &report["ok"], &report["late"]), (Some(0), &json!(1), &json!(true)));
    assert_eq!(report["unfinished"], 1);
}

fn signal(name: &str, child: &Child) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

async fn ended(child: Child) -> Output {
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    tokio::time::timeout(PATIENCE, output).await.expect("it ends").unwrap()
}

#[tokio::test]
async fn an_interrupt_prints_the_report_so_far() {
    let say = || Response::text("One two.");
    let script = Script::new([say(), say(), say(), say().hold(ScriptPosition::Finish, "gate")]);
    let model = MockProvider::with_script(script).await.unwrap();
    let base_url = model.base_url();
    let child = command(&["--base-url", &base_url, "--model", "m", "--json"]).spawn().unwrap();
    tokio::time::timeout(PATIENCE, model.wait_for_gate("gate")).await.expect("the third run");
    signal("-INT", &child);
    let (report, status) = report(&ended(child).await);
    assert_eq!(status, Some(130));
    assert_eq!((&report["ok"], &report["unfinished"]), (&json!(2), &json!(1)), "{report}");
    assert_eq!((&report["stopped"], &report["errors"]), (&json!(true), &json!(0)));
}

/// Returns the child processes of a process.
fn children(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the condition holds in time");
}

#[tokio::test]
async fn the_rehearsal_process_ends_with_the_load() {
    for (name, status) in [("-INT", Some(130)), ("-KILL", None)] {
        let slow = ["--rehearsal", "--pace", "1h", "--json"];
        let child = command(&slow).spawn().unwrap();
        let pid = child.id();
        until(|| !children(pid).is_empty()).await;
        let service = children(pid)[0];
        signal(name, &child);
        assert_eq!(ended(child).await.status.code(), status);
        until(|| !Path::new(&format!("/proc/{service}")).exists()).await;
    }
}

#[tokio::test]
async fn too_few_open_files_are_reported_before_the_load() {
    let limited = async |limit: &str, sessions: &str| {
        let line =
            format!("{limit} exec \"$0\" load --rehearsal --runs 1 --json --sessions {sessions}");
        let mut command = Command::new("sh");
        command.args(["-c", &line, env!("CARGO_BIN_EXE_callsheet")]).stdin(Stdio::null());
        output(command).await
    };
    let output = limited("ulimit -n 100;", "1000").await;
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8(output.stderr).unwrap();
    let expected = "callsheet: 1000 sessions need about 1128 open files, and this process may have \
                    100: raise the limit (ulimit -n 1128), or lower --sessions\n";
    assert_eq!(message, expected);
    // The process raises its soft limit by itself.
    let (report, status) = report(&limited("ulimit -Sn 40;", "60").await);
    assert_eq!((status, &report["ok"]), (Some(0), &json!(60)), "{report}");
}

#[tokio::test]
async fn invalid_options_are_reported_in_one_line() {
    let url = ["--base-url", "http://127.0.0.1:1/v1", "--model", "m"];
    for (arguments, message) in [
        (&[][..], "required arguments were not provided: <--base-url <URL>|--rehearsal>"),
        (&["--model", "m"], "<--base-url <URL>|--rehearsal>"),
        (&["--base-url", "http://127.0.0.1:1/v1"], "--model <MODEL>"),
        (&["--base-url", "ftp://x", "--model", "m"], "--base-url: "),
        (&["--rehearsal", "--base-url", "http://x/v1", "--model", "m"], "--rehearsal"),
        (&["--rehearsal", "--sessions", "0"], "must be a whole number from 1 to 10000"),
        (&["--rehearsal", "--sessions", "10001"], "must be a whole number from 1 to 10000"),
        (&["--rehearsal", "--runs", "0"], "--runs"),
        (&["--rehearsal", "--threads", "0"], "--threads"),
        (&["--rehearsal", "--calls", "x"], "must be a whole number from 0 to 64"),
        (&["--rehearsal", "--renew-after", "x"], "must be a whole number"),
        (&["--rehearsal", "--execution", "both"], "execution must be \"sequential\""),
        (&["--rehearsal", "--journal", "disk"], "must be \"strict\", \"relaxed\" or \"memory\""),
        (&["--rehearsal", "--max-time", "5"], "must be a time such as \"30s\""),
        (&["--rehearsal", "--max-time", "0s"], "--max-time"),
        (&["--rehearsal", "--pace", "fast"], "--pace"),
        (&["--rehearsal", "--data-dir", "d"], "--data-dir needs --journal strict or relaxed"),
        (&["--rehearsal", "--expect-text", "x"], "cannot be used with"),
        (&["--rehearsal", "--nothing"], "--nothing"),
        (&["--api-key-env", "CALLSHEET_TEST_NO_SUCH_KEY"], "--api-key-env: "),
        (&["--pace", "1ms"], "--pace"),
    ] {
        let with_url = message.starts_with("--api-key-env") || arguments == ["--pace", "1ms"];
        let arguments = if with_url { [&url[..], arguments].concat() } else { arguments.to_vec() };
        let output = output(command(&arguments)).await;
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), stderr.lines().count()),
            (Some(2), 1),
            "{arguments:?}: {stderr}"
        );
        assert!(stderr.starts_with("callsheet: ") && stderr.contains(message), "{stderr}");
        assert_eq!(output.stdout, b"");
    }
}
