//! `callsheet run`: one prompt to its final answer.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::approval_prompts::ApprovalMode;
use super::serve::Signals;
use super::setup::{self, LoadedConfig, ModelArgs};
use super::{CommandError, images, output, watch};
use crate::config::{Config, DEFAULT_AGENT, JournalEngine, REHEARSAL, ToolPattern};
use crate::journal::JournalReader;
use crate::runtime::{Host, HostSetup, OpenSession, RunRequest};
use crate::telemetry::{self, LogFormat};
use crate::tool::ToolRegistry;
use crate::types::{Execution, RunEnd, SessionId};

/// Flags of `callsheet run`.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Which agent answers; the only one, or the one that is called default.
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// The session to go on with, or to begin: it is kept in the data directory. Without it nothing
    /// is kept.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Where sessions are kept [default: ./callsheet-data]
    #[arg(long, value_name = "DIR", requires = "session")]
    data_dir: Option<PathBuf>,
    /// How tool calls are run: sequential, parallel or parallel:N.
    #[arg(long)]
    execution: Option<Execution>,
    /// The tools that may be called, by name or pattern.
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// Whether more than the first call of a response is run.
    #[arg(long, value_name = "true|false")]
    multi_tool_calls: Option<bool>,
    /// Whether the model streams its answer.
    #[arg(long, value_name = "true|false")]
    stream: Option<bool>,
    /// Print one event a line, as JSON.
    #[arg(long)]
    json: bool,
    /// Approve every call that a tool asks about. Without it they are asked about in the terminal;
    /// where there is none, and with --json, they are rejected.
    #[arg(long)]
    approve: bool,
    /// An image that goes with the prompt: a file (png, jpeg, gif or webp, at most 20 MB), or an
    /// address that the model's service can reach. May be given again.
    #[arg(long = "image", value_name = "FILE|URL")]
    images: Vec<String>,
    /// What to answer.
    prompt: String,
}

pub(super) async fn main(args: RunArgs) -> Result<ExitCode, CommandError> {
    if ["CALLSHEET_LOG", "RUST_LOG"].iter().any(|name| std::env::var_os(name).is_some()) {
        telemetry::init(LogFormat::Text).map_err(CommandError::usage)?;
    }
    if args.prompt.trim().is_empty() {
        return Err(CommandError::usage("the prompt is empty"));
    }
    let input = images::with_images(&args.prompt, &args.images).map_err(CommandError::usage)?;
    let LoadedConfig { mut config, .. } = args.model.load()?;
    let known = match &args.session {
        Some(id) => stored_agent(&mut config, id, args.data_dir.as_deref())?,
        None => {
            // Nothing is kept.
            config.journal.engine = JournalEngine::Memory;
            None
        }
    };
    let agent = choose_agent(&config, args.agent.as_deref().or(known.as_deref()))?;
    if let Some(known) = known.as_ref().filter(|known| **known != agent) {
        return Err(CommandError::usage(format!(
            "--agent: the session is one of the agent {known:?}"
        )));
    }
    let tools = setup::tools(&config)?;
    apply(&args, &mut config, &agent, &tools)?;
    let mut signals = Signals::new().map_err(CommandError::failed)?;
    // Only the agent that answers decides whether the offline model is needed.
    config.agents.retain(|name, _| *name == agent);
    let rehearsal = setup::rehearse(&mut config).await?;
    if rehearsal.is_some() {
        let is_first = config.agents.values().all(|agent| agent.model == REHEARSAL);
        let when = if is_first { "" } else { "where other models fail, " };
        let line = format!("callsheet: {when}the offline rehearsal model answers, no real one\n");
        output::to_stderr(&line);
    }
    let host = Host::start(HostSetup { config, tools }).await.map_err(setup::not_started)?;
    let session = match (&args.session, known) {
        (Some(id), Some(_)) => host.session(&session_id(id)?),
        (id, _) => {
            let open = OpenSession { agent: Some(agent), id: id.clone(), messages: Vec::new() };
            host.open_session(open).await.map_err(CommandError::failed)?
        }
    };
    // A run that an earlier process left unfinished goes on first.
    let request = RunRequest { queue: args.session.is_some(), ..input.into() };
    let run = session.start_run(request).await.map_err(CommandError::failed)?;
    let manner = ApprovalMode::of(args.approve, args.json);
    let watched = if args.json {
        watch::as_json(&session, run, manner, &mut signals).await
    } else {
        watch::on_screen(&session, run, manner, &mut signals).await
    };
    host.shutdown().await;
    if let Some(rehearsal) = rehearsal {
        rehearsal.shutdown().await;
    }
    let report = watched?;
    if !args.json
        && let Some(error) = &report.error
    {
        output::error(&error.message);
    }
    Ok(ExitCode::from(status(report.run_end)))
}

/// The agent of the session that is asked for, if it is stored.
fn stored_agent(
    config: &mut Config,
    id: &str,
    data_dir: Option<&Path>,
) -> Result<Option<String>, CommandError> {
    if let Some(dir) = data_dir {
        config.host.data_dir = dir.to_owned();
    }
    let id = session_id(id)?;
    if config.journal.engine == JournalEngine::Memory {
        let message = "--session: the configuration keeps the journal in memory";
        return Err(CommandError::usage(message));
    }
    if !config.host.data_dir.exists() {
        return Ok(None);
    }
    let found = JournalReader::open(&config.host.data_dir).and_then(|reader| reader.find(&id));
    match found {
        Ok(stored) => Ok(stored.map(|stored| stored.agent)),
        // A directory without a journal is one that the host fills.
        Err(_) if !config.host.data_dir.join("journal.db").exists() => Ok(None),
        Err(error) => Err(CommandError::usage(error)),
    }
}

fn session_id(text: &str) -> Result<SessionId, CommandError> {
    SessionId::parse(text).map_err(|error| CommandError::usage(format!("--session: {error}")))
}

fn choose_agent(config: &Config, asked: Option<&str>) -> Result<String, CommandError> {
    let known = || config.agents.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
    if let Some(name) = asked {
        return if config.agents.contains_key(name) {
            Ok(name.to_owned())
        } else {
            let known = known();
            Err(CommandError::usage(format!(
                "--agent: no agent is called {name:?} (known: {known})"
            )))
        };
    }
    let mut names = config.agents.keys();
    match (names.next(), names.next()) {
        (Some(only), None) => Ok(only.clone()),
        (_, _) if config.agents.contains_key(DEFAULT_AGENT) => Ok(DEFAULT_AGENT.to_owned()),
        (_, _) => Err(CommandError::usage(format!("say which agent with --agent ({})", known()))),
    }
}

fn apply(
    args: &RunArgs,
    config: &mut Config,
    name: &str,
    tools: &ToolRegistry,
) -> Result<(), CommandError> {
    if let Some(stream) = args.stream {
        config.set_stream(stream);
    }
    let Some(agent) = config.agents.get_mut(name) else { return Ok(()) };
    if let Some(execution) = args.execution {
        agent.execution = execution;
    }
    if let Some(patterns) = &args.tools {
        agent.tools = named_tools(patterns, tools)?;
    }
    if let Some(on) = args.multi_tool_calls {
        agent.multi_tool_calls = on;
    }
    Ok(())
}

/// The patterns of `--tools`; an empty list means no tools.
fn named_tools(
    patterns: &[String],
    tools: &ToolRegistry,
) -> Result<Vec<ToolPattern>, CommandError> {
    let named = patterns.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
    named
        .map(|text| {
            let pattern = ToolPattern::new(text);
            if tools.iter().any(|(name, _)| pattern.matches(name)) {
                return Ok(pattern);
            }
            let known: Vec<&str> = tools.iter().map(|(name, _)| name).collect();
            let known = known.join(", ");
            Err(CommandError::usage(format!(
                "--tools: no tool is called {text:?} (known: {known})"
            )))
        })
        .collect()
}

/// The exit status that scripts see.
fn status(end: RunEnd) -> u8 {
    match end {
        RunEnd::Answered => 0,
        RunEnd::Failed | RunEnd::Refused => 1,
        RunEnd::MaxTurns
        | RunEnd::TimedOut
        | RunEnd::AllToolsFailed
        | RunEnd::Budget
        | RunEnd::LoopDetected => 3,
        RunEnd::Stopped | RunEnd::Interrupted => 130,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Config {
        Config::parse(text, "f", &|_| None).expect("parse")
    }

    #[test]
    fn what_a_run_may_use_up_has_a_status_of_its_own() {
        for end in [
            RunEnd::MaxTurns,
            RunEnd::TimedOut,
            RunEnd::AllToolsFailed,
            RunEnd::Budget,
            RunEnd::LoopDetected,
        ] {
            assert_eq!(status(end), 3, "{end:?}");
        }
        assert_eq!((status(RunEnd::Answered), status(RunEnd::Refused)), (0, 1));
        assert_eq!(status(RunEnd::Interrupted), 130);
    }

    #[test]
    fn the_agent_is_the_named_one_the_only_one_or_default() {
        let one = parse("[agents.writer]\n");
        let two = parse("[agents.writer]\n[agents.reader]\n");
        let with_default = parse("[agents.writer]\n[agents.default]\n");
        assert_eq!(choose_agent(&one, None), Ok("writer".to_owned()));
        assert_eq!(choose_agent(&two, Some("reader")), Ok("reader".to_owned()));
        assert_eq!(choose_agent(&with_default, None), Ok("default".to_owned()));
        let error = choose_agent(&two, None).expect_err("refuse");
        assert_eq!(error, CommandError::usage("say which agent with --agent (reader, writer)"));
        let error = choose_agent(&one, Some("x")).expect_err("refuse");
        assert_eq!((error.status, error.message.contains("writer")), (2, true));
    }
}
