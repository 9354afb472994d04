//! Compares the CPU time of a run in `callsheet load` with that in a hand-written loop.
//!
//! The workload W1 has four tool calls with about 64 bytes of arguments in pieces of 8 and 32
//! pieces of text, then a final answer of 32 pieces: two requests, 108 events, 33 KB, sent without
//! pauses. The workload `fat` has eight calls of 4 KiB and 2,048 pieces of text. There are three
//! processes: the service, which answers from memory; the loop, which uses `reqwest` and borrowed
//! structs on one thread, with a conversation for each run; and `callsheet load` with one thread,
//! which checks every answer. They are measured alternately in a few rounds. The table has the
//! round with the median ratio.
//!
//! `cargo bench --bench load` prints the table. The following prints one row, measured in this
//! process for `perf` and callgrind. Only the service is another process:
//!
//! ```text
//! cargo bench --bench load -- row WORKLOAD WHO SESSIONS RUNS PACE [JOURNAL] [RENEW]
//! ```
//!
//! WORKLOAD is `w1` or `fat`. WHO is `bare` or `callsheet`. PACE is the pause between two events in
//! milliseconds. JOURNAL is `memory`, `relaxed` or `strict`, and RENEW is the number of runs after
//! which a session is replaced; both are for `callsheet` only. To compare the memory of a run in
//! flight, and the lag of the event loop, compare `row w1 bare 10000 1 20` with
//! `row w1 callsheet 10000 1 20`.
//!
//! `cargo bench --bench load -- serve WORKLOAD PACE` runs only the service. It prints its address and
//! serves until its stdin ends.
#![expect(clippy::unwrap_used, reason = "a bench that fails is wrong")]

#[path = "load/bare.rs"]
mod bare;
#[path = "shared/report.rs"]
mod report;
#[path = "load/service.rs"]
mod service;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use callsheet::config::BaseUrl;
use callsheet::load::{self, ExpectedRun, LoadJournal, LoadOptions, LoadProgress};
use report::Report;
use serde_json::Value;
use service::{FAT, W1, Workload};
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 3;

/// The default number of runs after which a session is replaced.
const RENEW: u32 = 4;

/// The measurements of one process.
#[derive(Clone, Copy, Debug)]
struct Row {
    cpu_us: f64,
    runs_per_s: f64,
    /// The peak memory minus the memory before the first run, for each session.
    rss_kb: Option<f64>,
    /// The 99th percentile of the lag of the event loop.
    lag_ms: Option<f64>,
}

/// The parameters of a row.
struct Case {
    name: &'static str,
    workload: Workload,
    sessions: u32,
    /// The number of runs of each session.
    runs: u32,
    journal: &'static str,
    renew: u32,
}

fn main() {
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|text| text != "--bench").collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => table(),
        ["serve", workload, pace] => {
            // The process ends when its parent does, because stdin is closed then.
            std::thread::spawn(|| {
                let _ = std::io::stdin().read_to_end(&mut Vec::new());
                std::process::exit(0);
            });
            one_thread().block_on(service::serve(Workload::named(workload), milliseconds(pace)));
        }
        ["bare", base_url, workload, sessions, runs] => {
            let row = bare_row(base_url, Workload::named(workload), sessions, runs);
            println!("{} {}", row.cpu_us, row.runs_per_s);
        }
        ["row", workload, who, sessions, runs, pace, ref rest @ ..] => {
            let (service, workload) = (Service::start(workload, pace), Workload::named(workload));
            let row = match who {
                "bare" => bare_row(&service.base_url, workload, sessions, runs),
                _ => {
                    let journal = rest.first().copied().unwrap_or("memory");
                    let renew = rest.get(1).map_or(RENEW, |text| text.parse().unwrap());
                    let (sessions, runs) = (sessions.parse().unwrap(), runs.parse().unwrap());
                    callsheet_row(&service.base_url, workload, sessions, runs, journal, renew)
                }
            };
            let Row { cpu_us, runs_per_s, rss_kb, lag_ms } = row;
            let [rss_kb, lag_ms] = [rss_kb, lag_ms].map(|value| value.unwrap_or(f64::NAN));
            println!(
                "{cpu_us:.1} us of CPU a run, {runs_per_s:.0} runs/s, {rss_kb:.1} kB a session, \
                 lag p99 {lag_ms:.0} ms"
            );
        }
        // Other options come from cargo.
        _ => table(),
    }
}

fn milliseconds(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

fn one_thread() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn bare_row(base_url: &str, workload: Workload, sessions: &str, runs: &str) -> Row {
    let (sessions, runs) = (sessions.parse().unwrap(), runs.parse().unwrap());
    one_thread().block_on(bare::measure(base_url, workload.calls, sessions, runs))
}

/// Does the same as `callsheet load`, in this process.
fn callsheet_row(
    base_url: &str,
    workload: Workload,
    sessions: u32,
    runs: u32,
    journal: &str,
    renew: u32,
) -> Row {
    let journal = LoadJournal::NAMES.iter().find(|(name, _)| *name == journal).unwrap().1;
    let options = LoadOptions {
        sessions,
        runs,
        journal,
        renew_after: Some(renew).filter(|renew| *renew > 0),
        expected: ExpectedRun { calls: Some(workload.calls), text: None },
        ..LoadOptions::new(BaseUrl::parse(base_url).unwrap(), "m")
    };
    let (counts, stop) = (Arc::new(LoadProgress::default()), CancellationToken::new());
    let report = one_thread().block_on(load::run(options, counts, &stop)).unwrap();
    assert!(report.is_right(), "{report}");
    print!("{report}");
    Row {
        cpu_us: report.cpu_us_per_run.unwrap(),
        runs_per_s: report.runs_per_s.unwrap(),
        rss_kb: report.rss_kb_per_session,
        lag_ms: report.loop_lag_ms,
    }
}

/// The process of the service. It is stopped on drop.
struct Service {
    child: Child,
    base_url: String,
}

impl Service {
    fn start(workload: &str, pace: &str) -> Self {
        let mut command = itself();
        command.args(["serve", workload, pace]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut base_url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut base_url).unwrap();
        Self { child, base_url: base_url.trim().to_owned() }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn itself() -> Command {
    Command::new(std::env::current_exe().unwrap())
}

fn output(command: &mut Command) -> String {
    let output = command.stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stdout).unwrap()
}

impl Case {
    fn bare(&self, base_url: &str) -> Row {
        let (sessions, runs) = (self.sessions.to_string(), self.runs.to_string());
        let printed =
            output(itself().args(["bare", base_url, self.workload.name, &sessions, &runs]));
        let mut numbers = printed.split_whitespace().map(|text| text.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Row { cpu_us: next(), runs_per_s: next(), rss_kb: None, lag_ms: None }
    }

    fn callsheet(&self, base_url: &str) -> Row {
        let mut command = Command::new(env!("CARGO_BIN_EXE_callsheet"));
        command.args(["load", "--base-url", base_url, "--model", "m", "--threads", "1", "--json"]);
        for (flag, value) in [
            ("--sessions", self.sessions.to_string()),
            ("--runs", self.runs.to_string()),
            ("--renew-after", self.renew.to_string()),
            ("--expect-calls", self.workload.calls.to_string()),
            ("--journal", self.journal.to_owned()),
        ] {
            command.args([flag, &value]);
        }
        let report: Value = serde_json::from_str(&output(&mut command)).unwrap();
        let number = |name: &str| report[name].as_f64().unwrap();
        let (cpu_us, runs_per_s) = (number("cpu_us_per_run"), number("runs_per_s"));
        Row { cpu_us, runs_per_s, rss_kb: None, lag_ms: None }
    }

    fn measure(&self) -> [String; 8] {
        let service = Service::start(self.workload.name, "0");
        let mut rounds: Vec<(Row, Row)> = (0..ROUNDS)
            .map(|_| (self.bare(&service.base_url), self.callsheet(&service.base_url)))
            .collect();
        let ratio = |(bare, host): &(Row, Row)| host.cpu_us / bare.cpu_us;
        rounds.sort_by(|a, b| ratio(a).total_cmp(&ratio(b)));
        let median = rounds[ROUNDS / 2];
        let (bare, host) = median;
        let (_, _, events) = self.workload.bodies();
        let event = |row: Row| format!("{:.3}", row.cpu_us / events as f64);
        [
            self.name.to_owned(),
            format!("{:.1}", bare.cpu_us),
            format!("{:.1}", host.cpu_us),
            format!("{:.2}", ratio(&median)),
            event(bare),
            event(host),
            format!("{:.0}", bare.runs_per_s),
            format!("{:.0}", host.runs_per_s),
        ]
    }
}

fn table() {
    let memory = |name, workload, sessions, runs| Case {
        name,
        workload,
        sessions,
        runs,
        journal: "memory",
        renew: RENEW,
    };
    let rows = [
        memory("W1, 1 session", W1, 1, 5000),
        memory("W1, 256 sessions", W1, 256, 24),
        Case { journal: "strict", ..memory("W1, 256 sessions, strict journal", W1, 256, 12) },
        Case { renew: 1, ..memory("fat stream, 1 session", FAT, 1, 40) },
    ]
    .map(|case| case.measure());
    let size = |workload: Workload| {
        let (first, last, events) = workload.bodies();
        format!("{events} events, {:.0} kB", (first.len() + last.len()) as f64 / 1e3)
    };
    let about = format!(
        "CPU of the client's process, one thread, beside a hand-written loop on `reqwest` and \
         borrowed structs; the median of {ROUNDS} rounds by ratio. W1 is a run of {}; the fat \
         stream one of {}.",
        size(W1),
        size(FAT)
    );
    let head = [
        "workload",
        "loop, us a run",
        "host, us a run",
        "ratio",
        "loop, us an event",
        "host, us an event",
        "loop, runs a second",
        "host, runs a second",
    ];
    Report::new("load").table(&about, head, rows).print();
}
