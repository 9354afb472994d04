//! The command line: `callsheet` and its subcommands.
//!
//! Errors are printed on stderr, one line each. Exit statuses:
//!
//! | status | meaning |
//! | --- | --- |
//! | 0 | success: the run was answered, the journal is valid, the replay found no difference, `serve` was stopped |
//! | 1 | any other failure: a run, call or load test failed, a host is not ready, a journal is broken, a replay or pinned tools differ |
//! | 2 | wrong usage or configuration; an unknown session; a file, journal or address that cannot be opened |
//! | 3 | `run`: a limit, a loop or failing tools ended the run |
//! | 130 | a run, a load test, or the start of `run` or `tools call` was stopped; a second signal ended the process |
//!
//! | file | what it holds |
//! | --- | --- |
//! | `lib.rs` | the parser of the command line, and the start of a command |
//! | `serve.rs` | `callsheet serve`: runs the host and its HTTP API |
//! | `health.rs` | `callsheet health`: asks a running host whether it is ready |
//! | `run.rs` | `callsheet run`: runs one prompt in the terminal |
//! | `watch.rs` | `run`: follows the run's events until its end, on a screen or as JSON lines |
//! | `progress.rs` | `run`: turns events into lines, and keeps the state of open calls |
//! | `screen.rs` | `run`: writes the answer to stdout and redraws the open calls on stderr |
//! | `form_prompt.rs` | `run`: a question's form, filled in field by field |
//! | `approval_prompts.rs` | `run`: asks for approvals in the terminal, or decides by a flag |
//! | `images.rs` | `run --image`: reads images |
//! | `sessions.rs` | `callsheet sessions`: lists, shows and verifies stored sessions |
//! | `audit.rs` | `sessions audit`: who requested what, in all sessions |
//! | `backup.rs` | `callsheet backup` and `restore`: a copy of a journal, and its return to a data directory |
//! | `tools.rs` | `callsheet tools`: lists the tools of an agent, and calls one |
//! | `pin.rs` | `tools pin`: compares the tools of servers with the accepted ones |
//! | `import/` | `tools import`: writes tools for the operations of an OpenAPI document |
//! | `replay.rs` | `callsheet replay`: replays a stored session and reports differences |
//! | `load/` | `callsheet load`: the load test |
//! | `decode.rs` | `callsheet decode`: decodes a recorded response |
//! | `setup.rs` | configuration, tools and rehearsal model from flags, file and environment |
//! | `signals.rs` | the signals that end a command, and those that do not |
//! | `service_manager.rs` | notifications to systemd: ready, stopping, watchdog |
//! | `open_files.rs` | the limit of open files |
//! | `error.rs`, `output.rs` | exit status and message of an error; writing without panics |
// The package `tests/doc_examples` runs the examples, which use the package `callsheet`.
#![cfg(not(doctest))]

mod approval_prompts;
mod audit;
mod backup;
mod copy;
pub mod decode;
mod error;
mod form_prompt;
mod health;
mod images;
mod import;
pub mod load;
#[cfg(feature = "postgres")]
mod migrate;
mod open_files;
mod output;
mod pin;
mod progress;
mod replay;
mod run;
mod screen;
mod serve;
mod service_manager;
mod sessions;
mod setup;
mod signals;
mod stored_journal;
mod tools;
mod watch;

use crate::load::command as load_command;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use clap::error::ErrorKind;

use callsheet_values::types::ToolProtocol;
use callsheet_wire::{Framing, Wire};
use error::CommandError;

/// Time that background threads get to end with the process.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(200);

/// Hosts LLM agent sessions. The default command is serve.
#[derive(Debug, clap::Parser)]
#[command(name = "callsheet", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: serve::ServeArgs,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Runs the host with its HTTP API and metrics.
    Serve(Box<serve::ServeArgs>),
    /// Asks a running host whether it is ready.
    Health(health::HealthArgs),
    /// Runs one prompt to its final answer in the terminal.
    Run(Box<run::RunArgs>),
    /// Lists, shows and verifies stored sessions, of a running or a stopped host.
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// Copies the journal of a running or a stopped host to a directory.
    Backup(backup::BackupArgs),
    /// Copies a backup to an empty data directory and verifies it. The runs of the copy wait.
    Restore(backup::RestoreArgs),
    /// Creates the tables of a journal in PostgreSQL, or changes those of an earlier version.
    #[cfg(feature = "postgres")]
    Migrate(migrate::MigrateArgs),
    /// Lists, calls and pins the tools of an agent, and writes tools for an OpenAPI document.
    #[command(subcommand)]
    Tools(tools::ToolsCommand),
    /// Replays a stored session from its journal and reports the first decision that differs.
    Replay(Box<replay::ReplayArgs>),
    /// Runs many sessions against a service, checks every answer and reports the cost.
    Load(Box<load_command::LoadArgs>),
    /// Serves the rehearsal model to a load test.
    #[command(name = load_command::SERVICE, hide = true)]
    LoadService(load_command::ServiceArgs),
    /// Decodes one recorded response and prints it as one JSON object.
    Decode {
        /// The wire format of the response.
        #[arg(long, value_name = "WIRE", value_parser = setup::wires())]
        wire: Wire,
        /// The framing: sse, json-lines, json or json-array [default: from the file name or content]
        #[arg(long, value_name = "FRAMING")]
        framing: Option<Framing>,
        /// The form of tool calls in the text: native, hermes, xml, react, pythonic or arrow
        #[arg(long, value_name = "PROTOCOL", default_value = "native", hide_default_value = true)]
        tool_protocol: ToolProtocol,
        /// The recording [default: standard input]
        file: Option<PathBuf>,
    },
}

/// Parses the command line and runs the command.
#[must_use]
pub fn main() -> ExitCode {
    callsheet_tools::launcher::run_if_launched();
    #[cfg(target_os = "linux")]
    callsheet_tools::launcher::disable_huge_pages();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return report_parse_error(&error),
    };
    match execute(cli) {
        Ok(status) => status,
        Err(CommandError { status, message }) => {
            for line in message.lines() {
                output::error(line);
            }
            ExitCode::from(status)
        }
    }
}

fn execute(cli: Cli) -> Result<ExitCode, CommandError> {
    let runtime = runtime_builder(cli.command.as_ref())
        .enable_all()
        .build()
        .map_err(|error| CommandError::failed(format!("start the async runtime: {error}")))?;
    let result = runtime.block_on(async {
        match cli.command {
            None => serve::run(cli.serve).await,
            Some(Command::Serve(args)) => serve::run(*args).await,
            Some(Command::Health(args)) => health::run(args).await,
            Some(Command::Run(args)) => run::run(*args).await,
            Some(Command::Sessions(command)) => sessions::run(&command),
            Some(Command::Backup(args)) => backup::back_up(&args),
            Some(Command::Restore(args)) => backup::run_restore(&args),
            #[cfg(feature = "postgres")]
            Some(Command::Migrate(args)) => migrate::run(args).await,
            Some(Command::Tools(command)) => tools::run(command).await,
            Some(Command::Replay(args)) => replay::run(&args),
            Some(Command::Load(args)) => load_command::run(*args).await,
            Some(Command::LoadService(args)) => load_command::run_service(args).await,
            Some(Command::Decode { wire, framing, tool_protocol, file }) => {
                decode(wire, tool_protocol, framing, file)
            }
        }
    });
    // A blocking tool's thread cannot be cancelled and must not delay the exit.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    result
}

/// Returns the builder of a command's async runtime. Only `load` chooses its number of threads.
fn runtime_builder(command: Option<&Command>) -> tokio::runtime::Builder {
    let threads = match command {
        Some(Command::Load(args)) => args.threads(),
        #[cfg(feature = "postgres")]
        Some(Command::Migrate(_)) => None,
        Some(
            Command::Serve(_)
            | Command::Health(_)
            | Command::Run(_)
            | Command::Sessions(_)
            | Command::Backup(_)
            | Command::Restore(_)
            | Command::Tools(_)
            | Command::Replay(_)
            | Command::LoadService(_)
            | Command::Decode { .. },
        )
        | None => None,
    };
    let mut builder = match threads {
        Some(1) => return tokio::runtime::Builder::new_current_thread(),
        Some(_) | None => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(threads) = threads {
        builder.worker_threads(threads);
    }
    builder
}

fn decode(
    wire: Wire,
    protocol: ToolProtocol,
    framing: Option<Framing>,
    file: Option<PathBuf>,
) -> Result<ExitCode, CommandError> {
    let decoded = decode::run(wire, protocol, framing, file).map_err(CommandError::usage)?;
    output::to_stdout(&format!("{decoded}\n")).map_err(|error| output::write_error(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Prints help and version on stdout, the help of a command without its subcommand on stderr, and any other
/// parse error as one line on stderr.
fn report_parse_error(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // If stdout is closed, its reader has exited and needs no help text.
        let _ = output::to_stdout(&text);
        return ExitCode::SUCCESS;
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        output::to_stderr(&text);
    } else {
        output::error(&format!("{} (try --help)", first_paragraph(&text)));
    }
    ExitCode::from(2)
}

/// Joins the lines of clap's message up to the first blank line.
fn first_paragraph(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_definition_is_valid() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn parse_errors_become_one_line() {
        for (args, expected) in [
            (vec!["run"], "the following required arguments were not provided: <PROMPT>"),
            (vec!["serve", "--nothing"], "unexpected argument '--nothing' found"),
            (vec!["nothing"], "unrecognized subcommand 'nothing'"),
            (
                vec!["--listen", "x"],
                "invalid value 'x' for '--listen <ADDR>': must be an address with a port such as \
                 \"127.0.0.1:7700\", not \"x\"",
            ),
            (
                vec!["run", "--execution", "both", "p"],
                "invalid value 'both' for '--execution <MODE>': execution must be \"sequential\", \
                 \"parallel\" or \"parallel:N\" with N from 1 to 1024",
            ),
            (
                vec!["run", "--base-url", "http://h/v1", "p"],
                "the following required arguments were not provided: --model <MODEL>",
            ),
        ] {
            let args = std::iter::once("callsheet").chain(args);
            let error = Cli::try_parse_from(args).expect_err("refuse");
            assert_eq!(first_paragraph(&error.render().to_string()), expected);
        }
    }
}
