//! `callsheet load`: a load test through the whole host.

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::error::CommandError;
use crate::load::{
    self, ExpectedRun, LoadError, LoadJournal, LoadOptions, LoadProgress, LoadReport, RUNS_MAX,
    SESSIONS_MAX, ServiceProcess, Workload,
};
use crate::output;
use crate::screen::is_dumb;
use crate::setup::{number_in, refused_key};
use crate::signals::Signals;
use callsheet_host::telemetry::{self, LogFormat};
use callsheet_values::config::{ApiKey, BaseUrl, REHEARSAL, parse_duration};
use callsheet_values::types::Execution;

/// The hidden command that serves the rehearsal model to a load test.
pub const SERVICE: &str = "load-service";

/// The interval at which the bar is drawn.
const DRAW_EVERY: Duration = Duration::from_millis(200);

/// The length of the bar, in characters.
const BAR: u64 = 30;

/// Flags of `callsheet load`.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("service").required(true).args(["base_url", "rehearsal"])))]
pub struct LoadArgs {
    /// The address of a service that speaks Chat Completions, such as http://127.0.0.1:8080/v1.
    #[arg(long, value_name = "URL", requires = "model")]
    base_url: Option<String>,
    /// With --base-url: the service's name of the model.
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// The environment variable with the API key for --base-url.
    #[arg(long, value_name = "NAME", requires = "base_url")]
    api_key_env: Option<String>,
    /// Use the offline rehearsal model, in a process of its own: text and calls, then text.
    #[arg(long,
        conflicts_with_all = ["base_url", "model", "api_key_env", "expect_calls", "expect_text"])]
    rehearsal: bool,
    #[command(flatten)]
    workload: WorkloadArgs,
    /// Number of sessions that run at once.
    #[arg(long, value_name = "S", default_value_t = 1, allow_negative_numbers = true,
        value_parser = number_in(1..=SESSIONS_MAX))]
    sessions: u32,
    /// Number of runs of each session, one after the other.
    #[arg(long, value_name = "N", default_value_t = 10, allow_negative_numbers = true,
        value_parser = number_in(1..=RUNS_MAX))]
    runs: u32,
    /// Number of runs after which a new session replaces the old one; 0: never.
    #[arg(long, value_name = "N", default_value_t = 4, allow_negative_numbers = true,
        value_parser = number_in(0..=u32::MAX))]
    renew_after: u32,
    /// Execution of tool calls: sequential, parallel or parallel:N.
    #[arg(long, value_name = "MODE", default_value_t = Execution::Sequential)]
    execution: Execution,
    /// Start tool calls while their response still streams (true), or after its end (false).
    #[arg(long, value_name = "true|false", default_value_t = true, action = clap::ArgAction::Set)]
    early_start: bool,
    /// Request streamed responses (true) or plain ones (false).
    #[arg(long, value_name = "true|false", default_value_t = true, action = clap::ArgAction::Set)]
    stream: bool,
    /// The journal of the records: strict, relaxed or memory. Memory writes nothing to a disk.
    ///
    /// Strict and relaxed write a SQLite database, without --data-dir into a new directory
    /// callsheet-load-* below the system's temporary directory ($TMPDIR), which is deleted at the
    /// end of the test. A load that is killed leaves it.
    #[arg(long, value_name = "JOURNAL", default_value = "memory", value_parser = parse_journal)]
    journal: LoadJournal,
    /// Directory of the strict or relaxed journal, kept with its sessions after the test
    /// [default: a temporary directory, which is deleted]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Threads that run tasks [default: one for each processor]
    #[arg(long, value_name = "T", allow_negative_numbers = true,
        value_parser = number_in(1..=1024_u16))]
    threads: Option<u16>,
    /// Maximum time of the whole test.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
    max_time: Duration,
    /// Number of calls that each run has to make.
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = number_in(0..=usize::MAX))]
    expect_calls: Option<usize>,
    /// The text that each run has to end with.
    #[arg(long, value_name = "TEXT")]
    expect_text: Option<String>,
    /// Print one line of JSON.
    #[arg(long)]
    json: bool,
}

/// The answers of the rehearsal model.
#[derive(Debug, clap::Args)]
pub struct WorkloadArgs {
    /// With --rehearsal: number of calls of each run.
    #[arg(long, value_name = "N", default_value_t = 4, conflicts_with = "base_url",
        allow_negative_numbers = true, value_parser = number_in(0..=64_u32))]
    calls: u32,
    /// With --rehearsal: duration of each call.
    #[arg(long, value_name = "TIME", default_value = "0ms", conflicts_with = "base_url",
        value_parser = parse_duration)]
    work: Duration,
    /// With --rehearsal: number of text pieces of each answer.
    #[arg(long, value_name = "N", default_value_t = 32, conflicts_with = "base_url",
        allow_negative_numbers = true, value_parser = number_in(1..=100_000_u32))]
    texts: u32,
    /// With --rehearsal: the pause between two pieces of an answer.
    #[arg(long, value_name = "TIME", default_value = "0ms", conflicts_with = "base_url",
        value_parser = parse_duration)]
    pace: Duration,
}

/// The arguments of the hidden command.
#[derive(Debug, clap::Args)]
pub struct ServiceArgs {
    /// The number of concurrent sessions.
    sessions: u32,
    /// The workload as JSON.
    #[arg(value_parser = |text: &str| serde_json::from_str::<Workload>(text))]
    workload: Workload,
}

impl LoadArgs {
    /// Returns the number of threads of the runtime.
    pub fn threads(&self) -> Option<usize> {
        self.threads.map(usize::from)
    }

    fn options(&self, service: Option<&ServiceProcess>) -> Result<LoadOptions, CommandError> {
        let (base_url, model) = match service {
            Some(service) => (service.base_url().clone(), REHEARSAL),
            None => {
                let base_url = self.base_url.as_deref().unwrap_or_default();
                let base_url = BaseUrl::parse(base_url)
                    .map_err(|error| CommandError::usage(format!("--base-url: {error}")))?;
                (base_url, self.model.as_deref().unwrap_or_default())
            }
        };
        let api_key = self.api_key_env.as_deref().map(|name| {
            ApiKey::from_env(name, &|name| std::env::var(name).ok())
                .map_err(|error| CommandError::usage(format!("--api-key-env: {error}")))
        });
        let expected = match service {
            Some(_) => self.workload.workload().expected(),
            None => ExpectedRun { calls: self.expect_calls, text: self.expect_text.clone() },
        };
        Ok(LoadOptions {
            api_key: api_key.transpose()?,
            sessions: self.sessions,
            runs: self.runs,
            renew_after: Some(self.renew_after).filter(|after| *after > 0),
            execution: self.execution,
            early_start: self.early_start,
            stream: self.stream,
            journal: self.journal,
            data_dir: self.data_dir.clone(),
            max_time: self.max_time,
            expected,
            ..LoadOptions::new(base_url, model)
        })
    }
}

impl WorkloadArgs {
    fn workload(&self) -> Workload {
        let Self { calls, work, texts, pace } = *self;
        Workload { calls, work, texts, pace }
    }
}

/// Runs the load test.
pub(crate) async fn run(args: LoadArgs) -> Result<ExitCode, CommandError> {
    if ["CALLSHEET_LOG", "RUST_LOG"].iter().any(|name| std::env::var_os(name).is_some()) {
        telemetry::init_logs(LogFormat::Text).map_err(CommandError::usage)?;
    }
    if args.data_dir.is_some() && args.journal == LoadJournal::Memory {
        let message = "--data-dir needs --journal strict or relaxed: in memory nothing is kept";
        return Err(CommandError::usage(message));
    }
    load::raise_open_files(args.sessions).map_err(failure)?;
    let mut signals = Signals::new().map_err(CommandError::failed)?;
    let service = args.rehearsal.then(|| start_service(&args)).transpose()?;
    let options = args.options(service.as_ref())?;
    let total = u64::from(args.sessions) * u64::from(args.runs);
    let (counts, stop) = (Arc::new(LoadProgress::default()), CancellationToken::new());
    let report = {
        let running = load::run(options, Arc::clone(&counts), &stop);
        let mut running = std::pin::pin!(running);
        let mut bar = std::pin::pin!(draw(&counts, total, draws_bar()));
        loop {
            tokio::select! {
                report = &mut running => break report,
                () = signals.next() => {
                    // The second signal ends the program at once.
                    if stop.is_cancelled() {
                        return Ok(ExitCode::from(130));
                    }
                    stop.cancel();
                }
                () = &mut bar => {}
            }
        }
    };
    if draws_bar() {
        output::to_stderr("\r\x1b[K");
    }
    drop(service);
    let mut report = report.map_err(failure)?;
    let (base_url, api_key_env) = (args.base_url.as_deref(), args.api_key_env.as_deref());
    for tally in report.errors_by_kind.values_mut() {
        tally.example = refused_key(&tally.example, base_url, api_key_env);
    }
    let text = if args.json {
        let line = serde_json::to_string(&report).map_err(CommandError::failed)?;
        format!("{line}\n")
    } else {
        report.to_string()
    };
    output::to_stdout(&text).map_err(|error| output::write_error(&error))?;
    Ok(ExitCode::from(status(&report)))
}

/// Runs the hidden command.
pub(crate) async fn run_service(args: ServiceArgs) -> Result<ExitCode, CommandError> {
    load::raise_open_files(args.sessions).map_err(failure)?;
    load::serve(args.workload).await.map_err(CommandError::failed)?;
    Ok(ExitCode::SUCCESS)
}

fn start_service(args: &LoadArgs) -> Result<ServiceProcess, CommandError> {
    let program = std::env::current_exe()
        .map_err(|error| CommandError::failed(format!("find this program: {error}")))?;
    let workload =
        serde_json::to_string(&args.workload.workload()).map_err(CommandError::failed)?;
    let arguments = [SERVICE.to_owned(), args.sessions.to_string(), workload];
    ServiceProcess::start(&program, &arguments).map_err(failure)
}

fn failure(error: LoadError) -> CommandError {
    match error {
        LoadError::OpenFiles { .. } | LoadError::Directory(_) => CommandError::usage(error),
        LoadError::Host(error) => crate::setup::start_error(error),
        LoadError::Tool(_) | LoadError::Service(_) => CommandError::failed(error),
    }
}

fn status(report: &LoadReport) -> u8 {
    if report.stopped { 130 } else { u8::from(!report.is_right()) }
}

/// Returns true if the bar is drawn: on a terminal that can redraw a line.
fn draws_bar() -> bool {
    std::io::stderr().is_terminal() && !is_dumb()
}

/// Draws the bar again and again, or nothing. Does not return: the caller drops it.
async fn draw(counts: &LoadProgress, total: u64, is_drawn: bool) {
    if !is_drawn {
        return std::future::pending().await;
    }
    let began = Instant::now();
    let mut ticks = interval(DRAW_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let (right, wrong) = counts.ended();
        let bar = bar(right, wrong, total, began.elapsed());
        let warms_up = if counts.has_begun() { "" } else { "  (warming up)" };
        output::to_stderr(&format!("\r{bar}{warms_up}\x1b[K"));
    }
}

fn bar(right: u64, wrong: u64, total: u64, time: Duration) -> String {
    let ended = right + wrong;
    let full = (ended * BAR).checked_div(total).unwrap_or_default().min(BAR);
    let full_part = "█".repeat(usize::try_from(full).unwrap_or_default());
    let rest = "·".repeat(usize::try_from(BAR - full).unwrap_or_default());
    let errors = if wrong > 0 { format!("  {wrong} wrong") } else { String::new() };
    format!("{full_part}{rest} {ended}/{total} runs  {:.0} s{errors}", time.as_secs_f64())
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let time = parse_duration(text)?;
    if time.is_zero() { Err("must be more than 0".to_owned()) } else { Ok(time) }
}

fn parse_journal(text: &str) -> Result<LoadJournal, String> {
    let found = LoadJournal::NAMES.iter().find(|(name, _)| *name == text);
    let none = || format!("must be \"strict\", \"relaxed\" or \"memory\", not {text:?}");
    found.map(|(_, journal)| *journal).ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bar_fills_and_shows_errors() {
        let at = Duration::from_secs(3);
        assert_eq!(bar(0, 0, 10, at), format!("{} 0/10 runs  3 s", "·".repeat(30)));
        assert_eq!(
            bar(4, 1, 10, at),
            format!("{}{} 5/10 runs  3 s  1 wrong", "█".repeat(15), "·".repeat(15))
        );
        assert_eq!(bar(10, 0, 10, at), format!("{} 10/10 runs  3 s", "█".repeat(30)));
    }
}
