//! `callsheet replay`: replays a stored session from its journal. Asks no model and runs no tool.

use std::path::PathBuf;
use std::process::ExitCode;

use super::error::CommandError;
use super::output::{self, format_count};
use super::sessions::unknown_session;
use super::setup::{self, ConfigArgs, DATA_DIR_HELP, LoadedConfig};
use super::stored_journal::JournalPlace;
use callsheet_host::runtime::AgentRules;
use callsheet_machines::session::{Replayed, replay};
use callsheet_machines::turn::Difference;
use callsheet_values::config::SecretSource;
use callsheet_values::record::frozen_tools_key;
use callsheet_values::types::{SessionId, sanitize_text};

/// Flags of `callsheet replay`.
#[derive(Debug, clap::Args)]
pub(super) struct ReplayArgs {
    /// Id of the session.
    #[arg(value_name = "ID", value_parser = SessionId::parse)]
    session: SessionId,
    #[arg(long, value_name = "DIR", help = DATA_DIR_HELP)]
    data_dir: Option<PathBuf>,
    /// The environment variable with the URL of the PostgreSQL database that has the journal.
    #[arg(long, value_name = "NAME", conflicts_with = "data_dir")]
    database_url_env: Option<String>,
    #[command(flatten)]
    config: ConfigArgs,
}

/// Replays the session. The exit status is 1 if the replay differs from the records.
pub(super) fn run(args: &ReplayArgs) -> Result<ExitCode, CommandError> {
    let session = &args.session;
    let LoadedConfig { config, .. } = args.config.load()?;
    let tools = setup::tools(&config)?;
    let rules = AgentRules::new(&config, tools).map_err(CommandError::usage)?;
    let place = match (&args.database_url_env, &args.data_dir) {
        (Some(name), _) => JournalPlace::Database(SecretSource::Variable(name.clone())),
        (None, Some(dir)) => JournalPlace::Directory(dir.clone()),
        (None, None) => JournalPlace::of(&config),
    };
    let journal = place.open()?;
    let entries = journal.read(session).map_err(CommandError::failed)?;
    if entries.is_empty() {
        return Err(unknown_session(&journal.place(), session));
    }
    let replayed = replay(&entries, |agent, overrides, frozen| {
        let read = |sha256: &str| journal.document(&frozen_tools_key(sha256));
        let tools = frozen.map(read).transpose().map_err(|error| error.to_string())?.flatten();
        rules.rules(agent, overrides, tools.as_deref()).map_err(|error| error.to_string())
    });
    let (text, status) = match replayed {
        Ok(replayed) => (describe_equal(session, &replayed), ExitCode::SUCCESS),
        Err(difference) => (describe_difference(session, &difference), ExitCode::FAILURE),
    };
    output::to_stdout(&text).map_err(|error| output::write_error(&error))?;
    Ok(status)
}

fn describe_equal(session: &SessionId, replayed: &Replayed) -> String {
    let Replayed { runs, turns, calls, records, unfinished, .. } = replayed;
    let note = if *unfinished { "; its last run has not ended" } else { "" };
    format!(
        "{session}: no difference in {}, {}, {} and {}{note}\n",
        format_count(*runs, "run"),
        format_count(*turns, "turn"),
        format_count(*calls as u64, "call"),
        format_count(*records as u64, "record"),
    )
}

fn describe_difference(session: &SessionId, difference: &Difference) -> String {
    sanitize_text(&format!("{session}: {difference}\n"))
}
