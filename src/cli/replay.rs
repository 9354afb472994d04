//! `callsheet replay`: a stored session once more, without models and tools.

use std::path::PathBuf;
use std::process::ExitCode;

use super::setup::{self, LoadedConfig, ModelArgs};
use super::{CommandError, output};
use crate::journal::JournalReader;
use crate::record::Seq;
use crate::runtime::AgentRules;
use crate::session::{Replayed, replay};
use crate::turn::Difference;
use crate::types::SessionId;

/// Flags of `callsheet replay`.
#[derive(Debug, clap::Args)]
pub(super) struct ReplayArgs {
    /// The session.
    #[arg(value_name = "ID")]
    session: String,
    /// Where the journal is; the configuration's data_dir without one.
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    #[command(flatten)]
    model: ModelArgs,
}

pub(super) fn main(args: &ReplayArgs) -> Result<ExitCode, CommandError> {
    let session = SessionId::parse(&args.session).map_err(CommandError::usage)?;
    let LoadedConfig { config, .. } = args.model.load()?;
    let tools = setup::tools(&config)?;
    let dir = args.data_dir.as_ref().unwrap_or(&config.host.data_dir);
    let rules = AgentRules::new(&config, tools).map_err(CommandError::usage)?;
    let journal = JournalReader::open(dir).map_err(CommandError::usage)?;
    let entries = journal.read(&session, Seq(0)).map_err(CommandError::failed)?;
    if entries.is_empty() {
        let place = journal.file().display();
        return Err(CommandError::failed(format!("there is no session {session} in {place}")));
    }
    let replayed = replay(&session, &entries, |agent, overrides| {
        rules.of(agent, overrides).map_err(|error| error.to_string())
    });
    let (text, status) = match replayed {
        Ok(replayed) => (equal(&session, &replayed), ExitCode::SUCCESS),
        Err(difference) => (different(&session, &difference), ExitCode::FAILURE),
    };
    output::to_stdout(&text).map_err(|error| output::broken(&error))?;
    Ok(status)
}

fn equal(session: &SessionId, replayed: &Replayed) -> String {
    let Replayed { runs, turns, calls, records, unfinished, .. } = replayed;
    let rest = if *unfinished { "; its last run is not over" } else { "" };
    format!(
        "{session}: no difference in {}, {}, {} and {}{rest}\n",
        counted(u64::from(*runs), "run"),
        counted(u64::from(*turns), "turn"),
        counted(*calls as u64, "call"),
        counted(*records as u64, "record"),
    )
}

fn counted(number: u64, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn different(session: &SessionId, difference: &Difference) -> String {
    format!("{session}: {difference}\n")
}
