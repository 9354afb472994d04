//! Sets up the log output of the binary.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, IsTerminal as _, Write};
use std::str::FromStr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use callsheet_tools::MCP_MODULE;
use callsheet_values::types::Secrets;

/// The default filter. Other crates log only warnings. A span of another crate at `info` would begin every line
/// within it.
const DEFAULT_FILTER: &str = "warn,callsheet=info";

/// The library for MCP, which logs what servers send, at `info` and below.
const MCP_LIBRARY: &str = "rmcp";

/// The library of the actors, which has a span at `info` for each actor.
const ACTOR_LIBRARY: &str = "ractor";

/// Maximum number of lines that each place in the code of [`MCP_LIBRARY`] and [`MCP_MODULE`] logs in
/// [`SERVER_LINES_PERIOD`], and of bytes of such a line. A server can cause as many and as long ones as it likes.
static SERVER_LINES_MAX: AtomicU32 = AtomicU32::new(5);
const SERVER_LINES_PERIOD: Duration = Duration::from_secs(1);
const SERVER_LINE_BYTES_MAX: usize = 2 << 10;

/// The secrets that are replaced in log lines.
static SECRETS: OnceLock<Secrets> = OnceLock::new();

/// The format of log lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Human-readable text.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

impl FromStr for LogFormat {
    type Err = LogsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(LogsError::Format),
        }
    }
}

/// An error of the log setup.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    /// The text names no format.
    #[error("a log format is \"text\" or \"json\"")]
    Format,
    /// A filter in the environment does not parse.
    #[error("set up logs: {variable} is not a valid filter: {reason}")]
    Filter {
        /// The environment variable that holds the filter.
        variable: &'static str,
        /// The parser's message.
        reason: String,
    },
    /// The process already has a subscriber.
    #[error("set up logs: {0}")]
    AlreadySet(#[from] tracing::subscriber::SetGlobalDefaultError),
}

/// Sends the log of the process to stderr. Of lines that MCP servers cause, each place in the code logs at most 5 a
/// second ([`limit_server_logs`]), of at most 2 KiB; a line `mcp_log_lines_dropped` says how many were left out. The filter is `CALLSHEET_LOG`, or else `RUST_LOG`, or else
/// `warn,callsheet=info`. Lines of the library for MCP below `warn` need a filter that names it, such as
/// `info,rmcp=debug`: they hold what servers send. So do the spans of the library of the actors (`ractor`), which begin
/// every line within an actor. Lines are coloured on a terminal, unless `NO_COLOR` is set.
///
/// # Errors
/// If a filter does not parse, or if the log was already set up.
pub fn init_logs(format: LogFormat) -> Result<(), LogsError> {
    let filter = filter(|variable| std::env::var(variable).ok())?;
    let coloured = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = LogLines { output: io::stderr, format, places: Mutex::default() };
    let subscriber = subscriber(format, filter, coloured, lines);
    Ok(tracing::subscriber::set_global_default(subscriber)?)
}

/// Replaces the secrets of the host in all later log lines, also in those of other crates, such as the one for MCP,
/// which logs what a server has sent before it fails. The first call counts.
pub fn redact_logs(secrets: Secrets) {
    // The binary loads one configuration. Only tests load more in one process.
    let _ = SECRETS.set(secrets);
}

/// Sets the number of lines a second that each place in the code logs of those which MCP servers cause.
pub fn limit_server_logs(lines_per_second: u32) {
    SERVER_LINES_MAX.store(lines_per_second, Ordering::Relaxed);
}

/// Writes log lines, and limits those that MCP servers cause.
struct LogLines<F> {
    /// Returns the output.
    output: F,
    format: LogFormat,
    /// The places in the code that log what servers do.
    places: Mutex<HashMap<Identifier, LinesOfPlace>>,
}

/// The lines of a place in the code within one period.
struct LinesOfPlace {
    began: Instant,
    lines: u32,
    /// The number of lines that were left out since the last one that was written.
    dropped: u64,
}

impl LinesOfPlace {
    /// Returns the number of lines that were left out before this one. `None` if this one is left out.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.began) >= SERVER_LINES_PERIOD {
            (self.began, self.lines) = (now, 0);
        }
        self.lines += 1;
        if self.lines > SERVER_LINES_MAX.load(Ordering::Relaxed) {
            self.dropped += 1;
            return None;
        }
        Some(std::mem::take(&mut self.dropped))
    }
}

impl<'a, W: Write, F: Fn() -> W> MakeWriter<'a> for LogLines<F> {
    type Writer = LogLine<W>;

    fn make_writer(&'a self) -> LogLine<W> {
        let lines = RedactedLines { output: (self.output)(), secrets: SECRETS.get() };
        LogLine { lines, format: self.format, of_server: None }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> LogLine<W> {
        let line = self.make_writer();
        if ![MCP_LIBRARY, MCP_MODULE].iter().any(|target| metadata.target().starts_with(target)) {
            return line;
        }
        let now = Instant::now();
        let mut places = self.places.lock();
        let place = places.entry(metadata.callsite());
        let place = place.or_insert(LinesOfPlace { began: now, lines: 0, dropped: 0 });
        let of_server = Some((*metadata.level(), place.admit(now)));
        LogLine { of_server, ..line }
    }
}

/// Writes one log line.
struct LogLine<W> {
    lines: RedactedLines<'static, W>,
    format: LogFormat,
    /// For a line that a server causes: its level, and the number of lines that were left out before it. `None` instead
    /// of a number if it is left out itself.
    of_server: Option<(Level, Option<u64>)>,
}

impl<W: Write> LogLine<W> {
    fn write_note(&mut self, level: Level, name: &str, field: &str, value: u64) -> io::Result<()> {
        let time = humantime::format_rfc3339_micros(SystemTime::now());
        let note = match self.format {
            LogFormat::Text => format!("{time} {level:>5} {name} {field}={value}\n"),
            LogFormat::Json => {
                let (time, level) = (time.to_string(), level.to_string());
                let note =
                    json!({ "timestamp": time, "level": level, "message": name, field: value });
                format!("{note}\n")
            }
        };
        self.lines.output.write_all(note.as_bytes())
    }
}

impl<W: Write> Write for LogLine<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self.of_server {
            None => return self.lines.write(line),
            Some((_, None)) => {}
            Some((level, Some(dropped))) => {
                if dropped > 0 {
                    self.write_note(level, "mcp_log_lines_dropped", "lines", dropped)?;
                }
                if line.len() <= SERVER_LINE_BYTES_MAX {
                    return self.lines.write(line);
                }
                let bytes = u64::try_from(line.len()).unwrap_or(u64::MAX);
                self.write_note(level, "mcp_log_line_too_long", "bytes", bytes)?;
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.lines.flush()
    }
}

/// Writes log lines without secrets. The subscriber writes each line at once.
struct RedactedLines<'s, W> {
    output: W,
    /// `None` until they are known.
    secrets: Option<&'s Secrets>,
}

impl<W: Write> Write for RedactedLines<'_, W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        match self.secrets.map(|secrets| secrets.redact(&text)) {
            Some(Cow::Owned(redacted)) => self.output.write_all(redacted.as_bytes())?,
            Some(Cow::Borrowed(_)) | None => self.output.write_all(line)?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

pub(super) fn filter(
    variable: impl Fn(&'static str) -> Option<String>,
) -> Result<EnvFilter, LogsError> {
    for name in ["CALLSHEET_LOG", "RUST_LOG"] {
        if let Some(mut text) = variable(name).filter(|text| !text.trim().is_empty()) {
            let shows_all = |directive: &str| {
                let level = directive.trim().parse::<LevelFilter>();
                level.is_ok_and(|level| level > LevelFilter::WARN)
            };
            if text.split(',').any(shows_all) {
                for library in [MCP_LIBRARY, ACTOR_LIBRARY] {
                    if !text.contains(library) {
                        text.push_str(&format!(",{library}=warn"));
                    }
                }
            }
            return EnvFilter::try_new(text)
                .map_err(|error| LogsError::Filter { variable: name, reason: error.to_string() });
        }
    }
    Ok(EnvFilter::new(DEFAULT_FILTER))
}

pub(super) fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    coloured: bool,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(writer)
        .with_ansi(coloured)
        // Otherwise errors of the log output are printed to stderr, which panics if stderr is closed.
        .log_internal_errors(false)
        .with_target(false);
    match format {
        LogFormat::Text => Box::new(lines.finish()),
        LogFormat::Json => Box::new(lines.json().flatten_event(true).finish()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// The text that was logged.
    #[derive(Clone, Default)]
    struct Logged(Arc<Mutex<Vec<u8>>>);

    impl Write for Logged {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn lines_that_a_server_causes_are_few_and_short() {
        for (format, dropped) in
            [(LogFormat::Text, "lines=995"), (LogFormat::Json, "\"lines\":995")]
        {
            let logged = Logged::default();
            let output = logged.clone();
            let lines =
                LogLines { output: move || output.clone(), format, places: Mutex::default() };
            let subscriber = subscriber(format, EnvFilter::new("warn"), false, lines);
            let _set = tracing::subscriber::set_default(subscriber);
            for text in ["x", "y", &"z".repeat(100_000)] {
                for _ in 0..1_000 {
                    tracing::warn!(target: "rmcp::service", text, "Received unexpected message");
                }
                tokio::time::advance(SERVER_LINES_PERIOD).await;
            }
            for _ in 0..20 {
                tracing::warn!("another");
            }
            let logged = String::from_utf8(logged.0.lock().clone()).unwrap();
            let count = |text| logged.lines().filter(|line| line.contains(text)).count();
            assert_eq!(count("unexpected"), 10, "{logged}");
            assert_eq!(count("mcp_log_line_too_long"), 5);
            assert_eq!(count("mcp_log_lines_dropped"), 2);
            assert_eq!(count(dropped), 2, "{logged}");
            assert_eq!(count("another"), 20);
            assert!(logged.len() < 10_000);
            if format == LogFormat::Json {
                for line in logged.lines() {
                    serde_json::from_str::<serde_json::Value>(line).unwrap();
                }
            }
        }
    }

    #[test]
    fn lines_within_an_actor_begin_with_its_span_only_on_request() {
        for (set, has_span) in [
            (None, false),
            (Some("callsheet=info"), false),
            (Some("info"), false),
            (Some("debug,rmcp=trace"), false),
            (Some("info,ractor=info"), true),
        ] {
            let filter = filter(|_| set.map(str::to_owned)).unwrap();
            let logged = Logged::default();
            let output = logged.clone();
            let subscriber = subscriber(LogFormat::Text, filter, false, move || output.clone());
            tracing::subscriber::with_default(subscriber, || {
                let span = tracing::info_span!(target: "ractor::actor", "Actor", id = "0.7");
                span.in_scope(|| tracing::info!(target: "callsheet::runtime", "run_started"));
            });
            let logged = String::from_utf8(logged.0.lock().clone()).unwrap();
            assert!(logged.contains("run_started"), "{set:?}: {logged}");
            assert_eq!(logged.contains("Actor"), has_span, "{set:?}: {logged}");
        }
    }

    #[test]
    fn secrets_are_replaced_in_the_lines_of_every_crate() {
        let secrets = Secrets::new(["sk-live-0123456789"]);
        let mut lines = RedactedLines { output: Vec::new(), secrets: Some(&secrets) };
        lines.write_all(b"ERROR worker quit: \"Bearer sk-live-0123456789\"\nINFO x\n").unwrap();
        assert_eq!(lines.output, b"ERROR worker quit: \"Bearer [redacted]\"\nINFO x\n");
    }
}
