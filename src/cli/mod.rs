//! The commands, one a file.
//!
//! Whatever goes wrong is one line on stderr and an exit status: 1 when a run failed or a
//! journal is broken, 2 for bad usage or configuration.

mod approval_prompts;
pub mod decode;
mod images;
mod load;
mod output;
mod progress;
mod replay;
mod run;
mod screen;
mod serve;
mod sessions;
mod setup;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;

use crate::wire::{Framing, Wire};

/// How long background work has to end with the process.
const LAST_WAIT: Duration = Duration::from_millis(200);

/// Hosts LLM agent sessions. Without a command: serve.
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
    /// Runs the host: the HTTP API and the metrics.
    Serve(Box<serve::ServeArgs>),
    /// Takes one prompt to its final answer, in the terminal.
    Run(Box<run::RunArgs>),
    /// Shows and checks what a journal holds, of a host that runs or of one that was stopped.
    #[command(subcommand)]
    Sessions(sessions::SessionsCommand),
    /// Runs a stored session again from its journal, and says where it would go another way now.
    Replay(Box<replay::ReplayArgs>),
    /// Puts many sessions at once on a service, checks every answer, and says what it cost.
    Load(Box<load::Args>),
    /// Serves the rehearsal model to a load.
    #[command(name = load::SERVICE, hide = true)]
    LoadService(load::ServiceArgs),
    /// Decodes one recorded response and prints what it says, as one JSON object.
    Decode {
        /// What the response is written in.
        #[arg(long, value_name = "WIRE", value_parser = wires())]
        wire: Wire,
        /// How it is framed: sse, json-lines, json or json-array; else told from name and bytes.
        #[arg(long, value_name = "FRAMING")]
        framing: Option<Framing>,
        /// The recording; standard input without one.
        file: Option<PathBuf>,
    },
}

/// Why a command did not do what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CommandError {
    status: u8,
    /// Empty where everything has been said.
    message: String,
}

impl CommandError {
    /// Bad usage or configuration.
    fn usage(error: impl std::fmt::Display) -> Self {
        Self { status: 2, message: error.to_string() }
    }

    /// Something that could not be done.
    fn failed(error: impl std::fmt::Display) -> Self {
        Self { status: 1, message: error.to_string() }
    }
}

/// Runs the command that the process was started with.
#[must_use]
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
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
    let runtime = threads(cli.command.as_ref())
        .enable_all()
        .build()
        .map_err(|error| CommandError::failed(format!("start the runtime: {error}")))?;
    let done = runtime.block_on(async {
        match cli.command {
            None => serve::main(cli.serve).await,
            Some(Command::Serve(args)) => serve::main(*args).await,
            Some(Command::Run(args)) => run::main(*args).await,
            Some(Command::Sessions(command)) => sessions::main(&command),
            Some(Command::Replay(args)) => replay::main(&args),
            Some(Command::Load(args)) => load::main(*args).await,
            Some(Command::LoadService(args)) => load::serve(args).await,
            Some(Command::Decode { wire, framing, file }) => decode(wire, framing, file),
        }
    });
    // A tool's thread that cannot be stopped must not keep the process.
    runtime.shutdown_timeout(LAST_WAIT);
    done
}

/// The runtime that a command asks for: where it wants one thread, that is this one.
fn threads(command: Option<&Command>) -> tokio::runtime::Builder {
    let wanted = match command {
        Some(Command::Load(args)) => args.threads(),
        Some(
            Command::Serve(_)
            | Command::Run(_)
            | Command::Sessions(_)
            | Command::Replay(_)
            | Command::LoadService(_)
            | Command::Decode { .. },
        )
        | None => None,
    };
    let mut builder = match wanted {
        Some(1) => return tokio::runtime::Builder::new_current_thread(),
        Some(_) | None => tokio::runtime::Builder::new_multi_thread(),
    };
    if let Some(wanted) = wanted {
        builder.worker_threads(wanted);
    }
    builder
}

/// The wires by their words, which help and errors list.
fn wires() -> impl TypedValueParser<Value = Wire> {
    let words = PossibleValuesParser::new(Wire::WORDS.map(|(word, _)| word));
    words.try_map(|word| word.parse::<Wire>())
}

fn decode(
    wire: Wire,
    framing: Option<Framing>,
    file: Option<PathBuf>,
) -> Result<ExitCode, CommandError> {
    let decoded = decode::run(wire, framing, file).map_err(CommandError::usage)?;
    output::to_stdout(&format!("{decoded}\n")).map_err(|error| output::broken(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Help goes to stdout; anything else is one line on stderr.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        // Whoever closed stdout wants no help.
        let _ = output::to_stdout(&text);
        return ExitCode::SUCCESS;
    }
    output::error(&format!("{} (try --help)", one_line(&text)));
    ExitCode::from(2)
}

/// The part of clap's message before its blank line, on one line.
fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim).take_while(|line| !line.is_empty());
    let line = lines.collect::<Vec<_>>().join(" ");
    line.strip_prefix("error: ").unwrap_or(&line).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_well_formed() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    #[test]
    fn complaints_of_the_parser_become_one_line() {
        for (args, expected) in [
            (vec!["run"], "the following required arguments were not provided: <PROMPT>"),
            (vec!["serve", "--nothing"], "unexpected argument '--nothing' found"),
            (vec!["nothing"], "unrecognized subcommand 'nothing'"),
            (
                vec!["--listen", "x"],
                "invalid value 'x' for '--listen <ADDR>': is an address with a port such as \
                 \"127.0.0.1:7700\", not \"x\"",
            ),
            (
                vec!["run", "--execution", "both", "p"],
                "invalid value 'both' for '--execution <EXECUTION>': execution is \"sequential\", \
                 \"parallel\" or \"parallel:N\" with N from 1 to 1024",
            ),
            (
                vec!["run", "--base-url", "http://h/v1", "p"],
                "the following required arguments were not provided: --model <MODEL>",
            ),
        ] {
            let args = std::iter::once("callsheet").chain(args);
            let error = Cli::try_parse_from(args).expect_err("refuse");
            assert_eq!(one_line(&error.render().to_string()), expected);
        }
    }
}
