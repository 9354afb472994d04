//! `callsheet run`: runs one prompt to its final answer.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use super::approval_prompts::ApprovalMode;
use super::error::CommandError;
use super::setup::{self, ConfigArgs, DATA_DIR_HELP, LoadedConfig};
use super::signals::Signals;
use super::stored_journal::JournalPlace;
use super::watch::DisplayScope;
use super::{images, output, screen, watch};
use callsheet_host::journal::{JournalError, JournalReader};
use callsheet_host::runtime::{ErrorKind, Host, HostError, OpenSession, RunReport, RunRequest};
use callsheet_host::telemetry::{self, LogFormat};
use callsheet_tools::{ToolRegistry, ToolServer};
use callsheet_values::config::{
    Config, DEFAULT_AGENT, JournalEngine, OutputRequest, REHEARSAL, RunOverrides, Temperature,
    ToolPattern,
};
use callsheet_values::record::Record;
use callsheet_values::types::{Execution, Metadata, RunEnd, SessionId, ToolChoice};

/// The parts of a request that flags set: the text before the first `: ` of the host's error about the part, and
/// the flag that the user sees instead.
const FLAGS: [(&str, &str); 5] = [
    ("into", "--into"),
    ("invalid session id", "--session"),
    ("max_output_tokens", "--max-output-tokens"),
    ("output.schema", "--output-schema"),
    ("tool_choice", "--tool-choice"),
];

/// The exit status of a run that a limit has ended, or whose answer is not what was asked for.
const LIMIT_STATUS: u8 = 3;

/// Flags of `callsheet run`.
#[derive(Debug, clap::Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// The agent that answers [default: the agent of the session, the only agent, or the agent
    /// named default]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Id of the session that the run belongs to. A session with this id is continued; if there is
    /// none, a new one is stored under it. Without this flag nothing is stored.
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    #[arg(long, value_name = "DIR", requires = "session", help = DATA_DIR_HELP)]
    data_dir: Option<PathBuf>,
    /// Execution of tool calls: sequential, parallel or parallel:N [default: the agent's execution]
    #[arg(long, value_name = "MODE")]
    execution: Option<Execution>,
    /// Names or patterns of the tools that may be called [default: the agent's tools]
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    tools: Option<Vec<String>>,
    /// Run all tool calls of a response (true), or only the first (false) [default: the agent's
    /// multi_tool_calls]
    #[arg(long, value_name = "true|false")]
    multi_tool_calls: Option<bool>,
    /// Request streamed responses (true) or plain ones (false) [default: the model's stream]
    #[arg(long, value_name = "true|false")]
    stream: Option<bool>,
    /// The rule for calling tools: auto, none, required, or the name of a tool that the model must call first
    #[arg(long, value_name = "RULE")]
    tool_choice: Option<String>,
    /// The system prompt [default: the agent's]
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,
    /// The sampling temperature, from 0 to 2 [default: the model's]
    #[arg(long, value_name = "NUMBER", allow_negative_numbers = true,
        value_parser = parse_temperature)]
    temperature: Option<Temperature>,
    /// Maximum length of a response in tokens [default: the model's]
    #[arg(long, value_name = "N", allow_negative_numbers = true,
        value_parser = setup::number_in(NonZeroU32::MIN..=NonZeroU32::MAX))]
    max_output_tokens: Option<NonZeroU32>,
    /// Metadata of the run. It appears in lists, events, logs and exports. Can be repeated.
    #[arg(long, value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    /// A file with the JSON schema of the answer. The answer is printed as JSON.
    #[arg(long, value_name = "FILE")]
    output_schema: Option<PathBuf>,
    /// The variable of the session that gets the answer
    #[arg(long, value_name = "NAME")]
    into: Option<String>,
    /// Exit with status 0 also if the answer was cut off at its maximum length (otherwise 3)
    #[arg(long)]
    allow_truncated: bool,
    /// Print events as JSON, one per line.
    #[arg(long)]
    json: bool,
    /// Approve every call that needs approval. Without this flag the terminal asks; without a
    /// terminal, and with --json, such calls are rejected.
    #[arg(long)]
    approve: bool,
    /// An image for the prompt: a file (png, jpeg, gif or webp, at most 20 MiB) or a URL that the
    /// model's service can reach. Can be repeated.
    #[arg(long = "image", value_name = "FILE|URL")]
    images: Vec<String>,
    /// The prompt.
    prompt: String,
}

/// Runs the prompt. The exit status is that of the end of the run: see [`exit_status`].
pub(super) async fn run(args: RunArgs) -> Result<ExitCode, CommandError> {
    // Logs are written only if they are asked for.
    if ["CALLSHEET_LOG", "RUST_LOG"].iter().any(|name| std::env::var_os(name).is_some()) {
        telemetry::init_logs(LogFormat::Text).map_err(CommandError::usage)?;
    }
    if args.prompt.trim().is_empty() {
        return Err(CommandError::usage("the prompt is empty"));
    }
    let input = images::with_images(&args.prompt, &args.images).map_err(CommandError::usage)?;
    let mut request = RunRequest::from(input);
    // Waits for a run that an earlier process left unfinished.
    request.queue = args.session.is_some();
    request.overrides = overrides(&args)?;
    request.metadata = parse_metadata(&args.metadata)?;
    request.into = args.into.clone();
    let RunSetup { mut config, tools, agent, is_stored } = RunSetup::new(&args)?;
    let mut signals = Signals::new().map_err(CommandError::failed)?;
    // The rehearsal model is started only if the chosen agent, or one that a tool runs, uses it.
    setup::keep_agents(&mut config, &agent);
    let rehearsal = setup::start_rehearsal(&mut config).await?;
    if rehearsal.is_some() {
        announce_rehearsal(&config);
    }
    let builder = Host::builder().config(config).tools(tools);
    let host = setup::start_host(builder, &mut signals).await?;
    let host = host.ok_or_else(CommandError::interrupted)?;
    let open = OpenSession::default().with(|open| {
        open.agent = Some(agent);
        open.id = args.session.clone();
    });
    let report = run_on(&host, &args, open, is_stored, request, &mut signals).await;
    // The host also closes its journal after an error.
    host.shutdown().await;
    let (report, is_choice_unmet) = report?;
    if !args.json
        && let Some(error) = &report.error
    {
        output::error(&args.config.with_flag_hint(&error.message));
    }
    let is_cut_off = report.truncated && report.run_end == RunEnd::Answered;
    if is_cut_off && args.json {
        output::to_stderr("callsheet: the answer was cut off at its maximum length\n");
    }
    let is_as_asked = !is_choice_unmet && (!is_cut_off || args.allow_truncated);
    Ok(ExitCode::from(match (report.run_end, is_as_asked) {
        (RunEnd::Answered, false) => LIMIT_STATUS,
        (end, _) => exit_status(end),
    }))
}

/// The configuration of the command with its flags, and what follows from both.
struct RunSetup {
    config: Config,
    tools: ToolRegistry,
    agent: String,
    /// True if the journal has the session already.
    is_stored: bool,
}

impl RunSetup {
    fn new(args: &RunArgs) -> Result<Self, CommandError> {
        let LoadedConfig { mut config, .. } = args.config.load()?;
        let stored_agent = match &args.session {
            Some(id) => {
                if let Some(dir) = &args.data_dir {
                    config.host.data_dir.clone_from(dir);
                }
                find_stored_agent(&config, id)?
            }
            None => {
                // Without a session nothing is stored.
                config.journal.engine = JournalEngine::Memory;
                None
            }
        };
        let agent = match &stored_agent {
            Some(stored) => check_stored_agent(&config, stored, args.agent.as_deref())?,
            None => choose_agent(&config, args.agent.as_deref())?,
        };
        let tools = setup::tools(&config)?;
        apply_flags(args, &mut config, &agent, &tools)?;
        Ok(Self { config, tools, agent, is_stored: stored_agent.is_some() })
    }
}

fn announce_rehearsal(config: &Config) {
    let uses_only_rehearsal = config.agents.values().all(|agent| agent.model == REHEARSAL);
    let when = if uses_only_rehearsal { "" } else { " for some agents, or if other models fail" };
    let line = "the offline rehearsal model answers";
    let line = format!("callsheet: {line}{when}; it is not a real model");
    output::to_stderr(&(screen::wrapped_on_stderr(&line) + "\n"));
}

/// Starts the run in its session, and follows it to its end. Also returns whether the model has not made the call
/// that `--tool-choice` asks for.
async fn run_on(
    host: &Host,
    args: &RunArgs,
    open: OpenSession,
    is_stored: bool,
    request: RunRequest,
    signals: &mut Signals,
) -> Result<(RunReport, bool), CommandError> {
    let session = match &open.id {
        Some(id) if is_stored => host.session(&session_id(id)?),
        Some(_) | None => host.open_session(open).await.map_err(request_error)?,
    };
    let run = session.start_run(request).await.map_err(request_error)?;
    let seq = run.seq;
    let mode = ApprovalMode::from_flags(args.approve, args.json);
    let report = if args.json {
        watch::as_json(&session, run, mode, signals).await?
    } else {
        watch::on_screen(host, &session, run, DisplayScope::Run, mode, signals).await?
    };
    let is_choice_unmet = args.tool_choice.is_some()
        && {
            let records = session.records(seq).await.unwrap_or_default();
            let is_limit = |record: &Record| matches!(record, Record::LimitReached { limit, .. } if limit == "tool_choice");
            records.iter().any(|entry| is_limit(&entry.record))
        };
    Ok((report, is_choice_unmet))
}

/// Maps the error of a request. Names the flag that has set the wrong part.
fn request_error(error: HostError) -> CommandError {
    let text = error.to_string();
    let of_flag = |(name, flag): (&str, &str)| {
        let problem = text.strip_prefix(name)?.strip_prefix(": ")?;
        Some(format!("{flag}: {problem}"))
    };
    let message = FLAGS.into_iter().find_map(of_flag).unwrap_or(text);
    match error.kind() == ErrorKind::InvalidRequest {
        true => CommandError::usage(message),
        false => CommandError::failed(message),
    }
}

/// Returns the changes of the run to its agent.
fn overrides(args: &RunArgs) -> Result<RunOverrides, CommandError> {
    let schema = |path: &PathBuf| {
        let schema_error = |error: &dyn std::fmt::Display| {
            CommandError::usage(format!("--output-schema: {}: {error}", path.display()))
        };
        let text = std::fs::read(path).map_err(|error| schema_error(&error))?;
        serde_json::from_slice(&text)
            .map(OutputRequest::new)
            .map_err(|error| schema_error(&format_args!("it is not JSON: {error}")))
    };
    let output = args.output_schema.as_ref().map(schema).transpose()?;
    Ok(RunOverrides::default().with(|new| {
        new.tool_choice = args.tool_choice.as_deref().map(ToolChoice::from);
        new.system.clone_from(&args.system);
        new.temperature = args.temperature;
        new.max_output_tokens = args.max_output_tokens;
        new.output = output;
    }))
}

fn parse_temperature(text: &str) -> Result<Temperature, String> {
    let number: f64 = text.parse().map_err(|_| "must be a number from 0 to 2".to_owned())?;
    Temperature::new(number).map_err(|error| error.to_string())
}

/// Parses the pairs of `--metadata`.
fn parse_metadata(pairs: &[String]) -> Result<Metadata, CommandError> {
    let pairs: Option<Vec<_>> = pairs.iter().map(|pair| pair.split_once('=')).collect();
    let Some(pairs) = pairs else {
        return Err(CommandError::usage("--metadata: must have the form NAME=VALUE"));
    };
    Metadata::new(pairs).map_err(|error| CommandError::usage(format!("--metadata: {error}")))
}

/// Returns the agent of a stored session, or `None` if no session with this id is stored.
fn find_stored_agent(config: &Config, id: &str) -> Result<Option<String>, CommandError> {
    let id = session_id(id)?;
    if config.journal.engine == JournalEngine::Memory {
        let message =
            "--session: the configuration's journal is in memory; set journal.engine = \"sqlite\"";
        return Err(CommandError::usage(message));
    }
    let place = JournalPlace::of(config);
    if let JournalPlace::Database(_) = place {
        let found = place.open()?.find(&id).map_err(CommandError::usage)?;
        return Ok(found.map(|stored| stored.agent));
    }
    if !config.host.data_dir.exists() {
        return Ok(None);
    }
    let found = JournalReader::open(&config.host.data_dir).and_then(|reader| reader.find(&id));
    match found {
        Ok(stored) => Ok(stored.map(|stored| stored.agent)),
        // In a directory without a journal the host creates one.
        Err(JournalError::Open { path, .. }) if !path.exists() => Ok(None),
        Err(error) => Err(CommandError::usage(error)),
    }
}

fn session_id(text: &str) -> Result<SessionId, CommandError> {
    SessionId::parse(text).map_err(|error| CommandError::usage(format!("--session: {error}")))
}

/// Returns the agent of a stored session, after checking that it is configured and that `--agent`
/// does not name another one.
fn check_stored_agent(
    config: &Config,
    stored: &str,
    flag: Option<&str>,
) -> Result<String, CommandError> {
    if flag.is_some_and(|name| name != stored) {
        let message = format!("--agent: the session belongs to agent {stored:?}");
        return Err(CommandError::usage(message));
    }
    if !config.agents.contains_key(stored) {
        return Err(CommandError::usage(format!(
            "--session: the session belongs to agent {stored:?}, which is not configured \
             (known: {}); configure that agent again",
            agent_names(config)
        )));
    }
    Ok(stored.to_owned())
}

/// Returns the agent that `--agent` names, or else the only agent, or else the agent named `default`.
pub(super) fn choose_agent(config: &Config, flag: Option<&str>) -> Result<String, CommandError> {
    if let Some(name) = flag {
        return if config.agents.contains_key(name) {
            Ok(name.to_owned())
        } else {
            let names = agent_names(config);
            Err(CommandError::usage(format!(
                "--agent: no agent is called {name:?} (known: {names})"
            )))
        };
    }
    let mut agents = config.agents.keys();
    match (agents.next(), agents.next()) {
        (Some(only), None) => Ok(only.clone()),
        (_, _) if config.agents.contains_key(DEFAULT_AGENT) => Ok(DEFAULT_AGENT.to_owned()),
        (_, _) => Err(CommandError::usage(format!(
            "choose an agent with --agent ({})",
            agent_names(config)
        ))),
    }
}

fn agent_names(config: &Config) -> String {
    config.agents.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

fn apply_flags(
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
        agent.tools = parse_tool_patterns(patterns, tools)?;
    }
    if let Some(on) = args.multi_tool_calls {
        agent.multi_tool_calls = on;
    }
    // A command-line user can edit the configuration anyway, so `allow_overrides` would protect
    // nothing.
    agent.allow_overrides |=
        args.system.is_some() || args.temperature.is_some() || args.max_output_tokens.is_some();
    Ok(())
}

/// Parses the patterns of `--tools`. An empty list means no tools.
fn parse_tool_patterns(
    patterns: &[String],
    tools: &ToolRegistry,
) -> Result<Vec<ToolPattern>, CommandError> {
    let patterns = patterns.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
    patterns
        .map(|text| {
            let pattern = ToolPattern::new(text);
            // The tools of a server are known when it has connected.
            let may_be_of_server =
                |server: &Arc<dyn ToolServer>| pattern.may_match_longer(&server.tool_prefix());
            if tools.iter().any(|(name, _)| pattern.matches(name))
                || tools.servers().iter().any(may_be_of_server)
            {
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

/// Returns the exit status for the end of a run: 0 if it was answered, 1 if it failed or was refused,
/// 3 if a limit, a loop or failing tools ended it, 130 if it was stopped or interrupted.
fn exit_status(end: RunEnd) -> u8 {
    match end {
        RunEnd::Answered => 0,
        RunEnd::Failed | RunEnd::Refused => 1,
        RunEnd::MaxTurns
        | RunEnd::TimedOut
        | RunEnd::AllToolsFailed
        | RunEnd::Budget
        | RunEnd::LoopDetected => LIMIT_STATUS,
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
    fn limits_have_their_own_exit_status() {
        for end in [
            RunEnd::MaxTurns,
            RunEnd::TimedOut,
            RunEnd::AllToolsFailed,
            RunEnd::Budget,
            RunEnd::LoopDetected,
        ] {
            assert_eq!(exit_status(end), 3, "{end:?}");
        }
        assert_eq!((exit_status(RunEnd::Answered), exit_status(RunEnd::Refused)), (0, 1));
        assert_eq!(exit_status(RunEnd::Interrupted), 130);
    }

    #[test]
    fn the_agent_is_the_flag_the_only_one_or_default() {
        let one = parse("[agents.writer]\n");
        let two = parse("[agents.writer]\n[agents.reader]\n");
        let with_default = parse("[agents.writer]\n[agents.default]\n");
        assert_eq!(choose_agent(&one, None), Ok("writer".to_owned()));
        assert_eq!(choose_agent(&two, Some("reader")), Ok("reader".to_owned()));
        assert_eq!(choose_agent(&with_default, None), Ok("default".to_owned()));
        let error = choose_agent(&two, None).expect_err("refuse");
        assert_eq!(error, CommandError::usage("choose an agent with --agent (reader, writer)"));
        let error = choose_agent(&one, Some("x")).expect_err("refuse");
        assert_eq!((error.status, error.message.contains("writer")), (2, true));
    }

    #[test]
    fn a_pattern_may_name_the_tools_of_a_server() {
        let config = parse("[mcp.files]\nurl = \"http://127.0.0.1:9/mcp\"\n");
        let mut tools = ToolRegistry::new();
        tools.register_configured(&config).expect("register");
        for name in ["files__*", "files__read", "f*"] {
            let parsed = parse_tool_patterns(&[name.to_owned()], &tools);
            assert_eq!(parsed, Ok(vec![ToolPattern::new(name)]));
        }
        let error = parse_tool_patterns(&["other__*".to_owned()], &tools).expect_err("refuse");
        assert!(error.message.starts_with("--tools: no tool is called \"other__*\""), "{error:?}");
    }

    #[test]
    fn the_agent_of_a_stored_session_must_be_configured() {
        let config = parse("[agents.writer]\n[agents.reader]\n");
        assert_eq!(check_stored_agent(&config, "writer", None), Ok("writer".to_owned()));
        assert_eq!(check_stored_agent(&config, "writer", Some("writer")), Ok("writer".to_owned()));
        for (stored, flag, expected) in [
            ("writer", Some("reader"), "--agent: the session belongs to agent \"writer\""),
            (
                "old",
                None,
                "--session: the session belongs to agent \"old\", which is not configured \
                 (known: reader, writer); configure that agent again",
            ),
        ] {
            let error = check_stored_agent(&config, stored, flag).expect_err("refuse");
            assert_eq!(error, CommandError::usage(expected));
        }
    }
}
