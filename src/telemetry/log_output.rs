//! Sets up the log output of the binary.

use std::borrow::Cow;
use std::io::{self, IsTerminal as _, Write};
use std::str::FromStr;
use std::sync::OnceLock;

use tracing::Subscriber;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::types::Secrets;

/// The default filter. Other crates log only warnings. A span of another crate at `info` would begin every line
/// within it.
const DEFAULT_FILTER: &str = "warn,callsheet=info";

/// The library for MCP, which logs what servers send, at `info` and below.
const MCP_LIBRARY: &str = "rmcp";

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
#[non_exhaustive]
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

/// Sends the log of the process to stderr. The filter is `CALLSHEET_LOG`, or else `RUST_LOG`, or else
/// `warn,callsheet=info`. Lines of the library for MCP below `warn` need a filter that names it, such as
/// `info,rmcp=debug`: they hold what servers send. Lines are coloured on a terminal, unless `NO_COLOR` is set.
///
/// # Errors
/// If a filter does not parse, or if the log was already set up.
pub fn init_logs(format: LogFormat) -> Result<(), LogsError> {
    let filter = filter(|variable| std::env::var(variable).ok())?;
    let coloured = std::io::stderr().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let lines = || RedactedLines { output: io::stderr(), secrets: SECRETS.get() };
    let subscriber = subscriber(format, filter, coloured, lines);
    Ok(tracing::subscriber::set_global_default(subscriber)?)
}

/// Replaces the secrets of the host in all later log lines, also in those of other crates, such as the one for MCP,
/// which logs what a server has sent before it fails. The first call counts.
pub fn redact_logs(secrets: Secrets) {
    // The binary loads one configuration. Only tests load more in one process.
    let _ = SECRETS.set(secrets);
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
            if text.split(',').any(shows_all) && !text.contains(MCP_LIBRARY) {
                text.push_str(&format!(",{MCP_LIBRARY}=warn"));
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
    use super::*;

    #[test]
    fn secrets_are_replaced_in_the_lines_of_every_crate() {
        let secrets = Secrets::new(["sk-live-0123456789"]);
        let mut lines = RedactedLines { output: Vec::new(), secrets: Some(&secrets) };
        lines.write_all(b"ERROR worker quit: \"Bearer sk-live-0123456789\"\nINFO x\n").unwrap();
        assert_eq!(lines.output, b"ERROR worker quit: \"Bearer [redacted]\"\nINFO x\n");
    }
}
