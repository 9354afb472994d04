//! The report of a load test: a table for people, one line of JSON for programs.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::time::Duration;

use serde::Serialize;

use super::histogram::DurationHistogram;
use super::options::LoadOptions;
use super::process::ProcessMemory;
use super::tally::{ErrorTally, Tally};
use callsheet_values::types::sanitize_text;

/// The measurements of the process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Measured {
    pub(super) cpu: Duration,
    pub(super) time: Duration,
    /// The resident memory before the first run.
    pub(super) before: Option<ProcessMemory>,
    pub(super) after: Option<ProcessMemory>,
    pub(super) lag: Option<Duration>,
    pub(super) stopped: bool,
    /// True if the time limit ended the test.
    pub(super) timed_out: bool,
}

/// A distribution; null if nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50: Option<f64>,
    /// The 90th percentile.
    pub p90: Option<f64>,
    /// The 99th percentile.
    pub p99: Option<f64>,
    /// The maximum.
    pub max: Option<f64>,
}

/// A median; null if nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Median {
    /// The median.
    pub p50: Option<f64>,
}

/// The report of a load test. The times are those of correct runs. In JSON, a value that the system does not
/// report or that was not measured is `null`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadReport {
    /// Correct runs per second.
    pub runs_per_s: Option<f64>,
    /// User and system time of this process per ended run, in microseconds, without start and warm-up.
    pub cpu_us_per_run: Option<f64>,
    /// The time from the request for a run to its answer.
    pub latency_ms: Quantiles,
    /// The time from the request for a run to the start of its first tool.
    pub first_tool_ms: Median,
    /// The time from the request for a run to the end of the last tool of its first turn with calls.
    pub tools_ready_ms: Median,
    /// The part of a run in which neither the model nor a tool was waited for.
    pub overhead_us: Median,
    /// The peak resident memory of the process, start included.
    pub peak_rss_kb: Option<u64>,
    /// The number of correct runs.
    pub ok: u64,
    /// The number of failed runs, and of sessions that could not be replaced.
    pub errors: u64,
    /// The errors by kind, with an example each.
    pub errors_by_kind: BTreeMap<String, ErrorTally>,
    /// The number of runs that were open when the test ended.
    pub unfinished: u64,
    /// The number of calls of correct runs.
    pub tool_calls: u64,
    /// The number of concurrent sessions.
    pub sessions: u32,
    /// The peak memory above the memory before the first run, per session.
    pub rss_kb_per_session: Option<f64>,
    /// The 99th percentile of the event loop's lag.
    pub loop_lag_ms: Option<f64>,
    /// The duration of the measured part: without start, warm-up and shutdown.
    pub time_ms: f64,
    /// True if the test was stopped.
    pub stopped: bool,
    /// True if the time limit ended the test.
    pub late: bool,
}

impl LoadReport {
    pub(super) fn new(
        options: &LoadOptions,
        tally: &Tally,
        unfinished: u64,
        measured: &Measured,
    ) -> Self {
        let Measured { cpu, time, before, after, lag, stopped, timed_out } = *measured;
        let errors = tally.errors();
        let per = |amount: f64, count: f64| (count > 0.0).then(|| rounded(amount / count));
        let grown = before.zip(after).map(|(before, after)| {
            after.peak_kb.saturating_sub(before.now_kb) as f64 / f64::from(options.sessions)
        });
        Self {
            runs_per_s: per(tally.ok as f64, time.as_secs_f64()),
            cpu_us_per_run: per(cpu.as_secs_f64() * 1e6, (tally.ok + errors) as f64),
            latency_ms: Quantiles {
                p50: tally.latency.percentile(50).map(ms),
                p90: tally.latency.percentile(90).map(ms),
                p99: tally.latency.percentile(99).map(ms),
                max: tally.latency.max().map(ms),
            },
            first_tool_ms: median(&tally.first_tool, ms),
            tools_ready_ms: median(&tally.tools_ready, ms),
            overhead_us: median(&tally.overhead, |time| rounded(time.as_secs_f64() * 1e6)),
            peak_rss_kb: after.map(|memory| memory.peak_kb),
            ok: tally.ok,
            errors,
            errors_by_kind: tally.errors.clone(),
            unfinished,
            tool_calls: tally.calls,
            sessions: options.sessions,
            rss_kb_per_session: grown.map(rounded),
            loop_lag_ms: lag.map(ms),
            time_ms: ms(time),
            stopped,
            late: timed_out,
        }
    }

    /// Returns whether there were answers and all were correct.
    #[must_use]
    pub fn is_right(&self) -> bool {
        self.ok > 0 && self.errors == 0
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, value: String| writeln!(f, "{name:<26} {value}");
        let Quantiles { p50, p90, p99, max } = self.latency_ms;
        let ended = self.ok + self.errors;
        row("runs", format!("{ended} ({} right, {} wrong)", self.ok, self.errors))?;
        row("sessions at once", self.sessions.to_string())?;
        row("runs/s", format_value(self.runs_per_s, ""))?;
        row("CPU per run", format_value(self.cpu_us_per_run, " us"))?;
        let all = [("p50", p50), ("p90", p90), ("p99", p99), ("max", max)];
        let all = all.map(|(name, value)| format!("{name} {}", format_value(value, "")));
        row("run latency, ms", all.join("  "))?;
        row("first tool start, p50", format_value(self.first_tool_ms.p50, " ms"))?;
        row("all tools ready, p50", format_value(self.tools_ready_ms.p50, " ms"))?;
        row("overhead per run, p50", format_value(self.overhead_us.p50, " us"))?;
        row("tool calls", self.tool_calls.to_string())?;
        row("event-loop lag, p99", format_value(self.loop_lag_ms, " ms"))?;
        row("peak RSS", format_value(self.peak_rss_kb.map(|kb| kb as f64), " kB"))?;
        row("RSS per run in flight", format_value(self.rss_kb_per_session, " kB"))?;
        if self.unfinished > 0 {
            row("unfinished", self.unfinished.to_string())?;
        }
        for (kind, ErrorTally { count, example }) in &self.errors_by_kind {
            row(
                &format!("error {}", sanitize_text(kind)),
                format!("{count}, such as: {}", sanitize_text(example)),
            )?;
        }
        match (self.stopped, self.late) {
            (true, _) => row("stopped", "before all runs were done".to_owned()),
            (false, true) => {
                row("stopped", "the time was over before all runs were done".to_owned())
            }
            (false, false) => Ok(()),
        }
    }
}

fn median(times: &DurationHistogram, unit: impl Fn(Duration) -> f64) -> Median {
    Median { p50: times.percentile(50).map(unit) }
}

fn ms(time: Duration) -> f64 {
    rounded(time.as_secs_f64() * 1e3)
}

/// Rounds to three decimals.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// Formats a number with its unit: with two decimals below 100, without decimals from 100 on.
fn format_value(value: Option<f64>, unit: &str) -> String {
    let Some(value) = value else { return "unknown".to_owned() };
    let decimals = if value >= 100.0 { 0 } else { 2 };
    let mut text = String::new();
    let _ = write!(text, "{value:.decimals$}{unit}");
    text
}
