//! `callsheet migrate`: creates the tables of a journal in PostgreSQL, or changes those of an earlier version.
//!
//! A host does so at its start, too. The command is for a role that may create tables, while the hosts' role may not.

use std::path::PathBuf;
use std::process::ExitCode;

use super::error::CommandError;
use super::output;
use super::setup::{self, CONFIG_HELP};
use callsheet_host::journal::PostgresJournal;
use callsheet_values::config::SecretSource;

/// Flags of `callsheet migrate`.
#[derive(Debug, clap::Args)]
pub(super) struct MigrateArgs {
    /// The environment variable with the URL of the database [default: url_env of the configuration]
    #[arg(long, value_name = "NAME")]
    database_url_env: Option<String>,
    #[arg(long, value_name = "FILE", conflicts_with = "database_url_env", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

pub(super) async fn run(args: MigrateArgs) -> Result<ExitCode, CommandError> {
    let variable = match args.database_url_env {
        Some(name) => name,
        None => setup::load_without_keys(args.config.as_deref())?.config.journal.url_env,
    };
    let url = SecretSource::Variable(variable).read().map_err(CommandError::usage)?;
    let versions = PostgresJournal::migrate(&url).await.map_err(CommandError::usage)?;
    let text = if versions.before == versions.after {
        format!("the tables have version {} already\n", versions.after)
    } else {
        format!(
            "the tables have version {} now, and had version {}\n",
            versions.after, versions.before
        )
    };
    output::to_stdout(&text).map_err(|error| output::write_error(&error))?;
    Ok(ExitCode::SUCCESS)
}
