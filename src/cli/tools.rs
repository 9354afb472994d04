//! `callsheet tools`: lists the tools of an agent, calls one, and starts `import` and `pin`, which have files of
//! their own.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};

use serde_json::{Value, json};

use super::approval_prompts::ApprovalMode;
use super::error::CommandError;
use super::import::{self, OperationFilter};
use super::output::{self, format_count};
use super::run::choose_agent;
use super::setup::{self, CONFIG_HELP};
use super::signals::Signals;
use super::stored_journal::{JournalPlace, StoredJournal};
use super::watch::{self, DisplayScope};
use callsheet_host::runtime::model::{ModelReply, ModelRequest};
use callsheet_host::runtime::{
    CALLER, Host, OpenSession, model_that_calls, restore_startups, startup_keys, stored_refusals,
};
use callsheet_tools::{
    AgentTools, ListedServer, ListedTool, ModelRefusal, NOT_NAMED, ToolRegistry, ToolServer,
};
use callsheet_values::config::{Config, JournalEngine, ModelConfig, ToolPattern};
use callsheet_values::types::{READ_VAR, RunEnd, ToolStatus, is_invisible, one_line, printable};

/// Maximum size of an OpenAPI document.
const SPEC_BYTES_MAX: u64 = 32 << 20;

/// The columns of the table.
const HEADINGS: [&str; 7] = ["NAME", "KIND", "EFFECT", "START", "IDEMPOTENT", "APPROVAL", "TOKENS"];

/// The subcommands of `callsheet tools`.
#[derive(Debug, clap::Subcommand)]
pub(super) enum ToolsCommand {
    /// Lists the tools that an agent offers to its model, and those that it leaves out.
    List {
        #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
        config: Option<PathBuf>,
        /// The agent [default: the only agent, or the agent named default]
        #[arg(long, value_name = "NAME")]
        agent: Option<String>,
        /// Print one JSON object.
        #[arg(long)]
        json: bool,
        /// Exit with status 1 if a server is not up, or a tool of a server cannot be offered.
        #[arg(long)]
        check: bool,
    },
    /// Compares the tools of MCP servers with those that were accepted (callsheet-tools.lock).
    Pin {
        #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
        config: Option<PathBuf>,
        /// Accept the tools as they are now: write the file.
        #[arg(long)]
        accept: bool,
    },
    /// Calls a tool once, as a session would, and prints what the model would read.
    Call(CallArgs),
    /// Prints tools for the operations of an OpenAPI document (3.0 to 3.2), as TOML to read and prune.
    Import {
        /// Only operations whose names match; * stands for any text. Can be repeated.
        #[arg(long, value_name = "GLOB")]
        include: Vec<String>,
        /// Only operations with this tag. Can be repeated.
        #[arg(long, value_name = "TAG")]
        tag: Vec<String>,
        /// The document, as JSON or YAML; - is standard input.
        #[arg(value_name = "SPEC")]
        file: PathBuf,
    },
}

/// Flags of `callsheet tools call`.
#[derive(Debug, clap::Args)]
pub(super) struct CallArgs {
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
    /// The agent whose limits apply [default: the only agent, or the agent named default]
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// The arguments as a JSON object.
    #[arg(long, value_name = "JSON", conflicts_with = "arguments")]
    input: Option<String>,
    /// Approve the call if it needs approval. Without this flag the terminal asks; without a terminal the
    /// call is rejected.
    #[arg(long)]
    approve: bool,
    /// Name of the tool.
    name: String,
    /// The arguments: a text where the tool takes one, else JSON.
    #[arg(value_name = "KEY=VALUE")]
    arguments: Vec<String>,
}

/// Runs a subcommand.
pub(super) async fn run(command: ToolsCommand) -> Result<ExitCode, CommandError> {
    match command {
        ToolsCommand::List { config, agent, json, check } => {
            let listed = list(config.as_deref(), agent, json).await?;
            Ok(if check && has_problem(&listed) { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
        ToolsCommand::Pin { config, accept } => super::pin::run(config.as_deref(), accept).await,
        ToolsCommand::Call(args) => call(args).await,
        ToolsCommand::Import { include, tag, file } => {
            let include = include.into_iter().map(ToolPattern::new).collect();
            import(&file, &OperationFilter { include, tags: tag })
        }
    }
}

/// Returns the configuration and the tools, with the overrides of the configuration.
fn load(file: Option<&Path>) -> Result<(Config, ToolRegistry), CommandError> {
    let config = setup::load(file)?.config;
    let mut registry = setup::tools(&config)?;
    registry.apply_overrides(&config.tools);
    if let Some(journal) = stored_journal(&config) {
        // Without what is stored, a server may only be started twice.
        let startups = startup_keys(registry.servers()).filter_map(|key| {
            let text = journal.document(&key).ok()??;
            Some((key, text))
        });
        restore_startups(registry.servers(), &startups.collect());
    }
    Ok((config, registry))
}

/// Returns whether a server is not up, or has a tool that cannot be offered.
fn has_problem(listed: &AgentTools) -> bool {
    listed.servers.iter().any(|server| server.state != "up" || !server.left_out.is_empty())
}

async fn list(
    file: Option<&Path>,
    agent: Option<String>,
    json: bool,
) -> Result<AgentTools, CommandError> {
    let (mut config, registry) = load(file)?;
    let agent = choose_agent(&config, agent.as_deref())?;
    // A host starts the servers of tools and asks them.
    setup::keep_agents(&mut config, &agent);
    let refused = stored_refusals_of(&config, &agent);
    config.use_model(CALLER, ModelConfig::for_source(CALLER));
    config.journal.engine = JournalEngine::Memory;
    let silent = |_: ModelRequest| ModelReply::text("").into_stream();
    let host = Host::builder().config(config).tools(registry).model_source(CALLER, silent);
    let host = host.start().await.map_err(setup::start_error)?;
    let listed = host.listed_tools(Some(agent)).await;
    host.shutdown().await;
    let mut listed = listed.map_err(CommandError::failed)?;
    for tool in &mut listed.tools {
        let of_tool = refused.iter().filter(|(name, _)| *name == tool.name);
        tool.set_aside = of_tool.map(|(_, refusal)| refusal.clone()).collect();
    }
    let text = match json {
        true => escape_invisible(&format!("{}\n", json!(listed))),
        false => table(&listed),
    };
    output::to_stdout(&text).map_err(|error| output::write_error(&error))?;
    Ok(listed)
}

/// Opens the configured journal. `None` if there is none.
fn stored_journal(config: &Config) -> Option<StoredJournal> {
    let is_stored = config.journal.engine != JournalEngine::Memory;
    is_stored.then(|| JournalPlace::of(config).open().ok()).flatten()
}

/// Returns the tools that the models of an agent refuse, as the data directory remembers them, by name.
fn stored_refusals_of(config: &Config, agent: &str) -> Vec<(String, ModelRefusal)> {
    let Some(agent) = config.agents.get(agent) else { return Vec::new() };
    let Some(journal) = stored_journal(config) else { return Vec::new() };
    let models = std::iter::once(&agent.model).chain(&agent.fallback_models);
    let models = models.filter_map(|name| config.models.get_key_value(name));
    let refusals = models.flat_map(|(model, settings)| {
        let read = |key: &str| journal.document(key).ok().flatten();
        let refused = stored_refusals(model, settings, read).into_iter();
        refused.map(|(tool, reason)| (tool, ModelRefusal { model: model.clone(), reason }))
    });
    refusals.collect()
}

/// Calls a tool in a session that is not stored. Its model asks for the call, and answers with the
/// result.
async fn call(args: CallArgs) -> Result<ExitCode, CommandError> {
    let (mut config, registry) = load(args.config.as_deref())?;
    let is_of_server = |server: &Arc<dyn ToolServer>| args.name.starts_with(&server.tool_prefix());
    if registry.tool(&args.name).is_none() && !registry.servers().iter().any(is_of_server) {
        let known: Vec<&str> = registry.iter().map(|(name, _)| name).collect();
        let (name, known) = (&args.name, known.join(", "));
        return Err(CommandError::usage(format!("no tool is called {name:?} (known: {known})")));
    }
    let agent = choose_agent(&config, args.agent.as_deref())?;
    setup::keep_agents(&mut config, &agent);
    // The agents that a tool runs keep their own models and tools.
    let mut called = config.agents.clone();
    called.remove(&agent);
    config.agents.retain(|name, _| *name == agent);
    config.use_model(CALLER, ModelConfig::for_source(CALLER));
    config.journal.engine = JournalEngine::Memory;
    for agent in config.agents.values_mut() {
        agent.tools = vec![ToolPattern::new(&args.name)];
    }
    config.agents.extend(called);
    let _rehearsal = setup::start_rehearsal(&mut config).await?;
    // Set after the host's start, because a server describes its tools only then.
    let arguments = Arc::new(OnceLock::<Value>::new());
    let given = Arc::clone(&arguments);
    let input = move || given.get().cloned().unwrap_or_default();
    let caller = model_that_calls(args.name.clone(), input);
    let mut signals = Signals::new().map_err(CommandError::failed)?;
    let builder = Host::builder().config(config).tools(registry).model_source(CALLER, caller);
    let host = setup::start_host(builder, &mut signals).await?;
    let host = host.ok_or_else(CommandError::interrupted)?;
    let parsed = match host.tool_schema(&agent, &args.name).await {
        Ok(schema) => match &args.input {
            Some(json) => parse_input(json),
            None => parse_arguments(&args.arguments, &schema),
        },
        Err(error) => Err(CommandError::usage(error)),
    };
    match parsed {
        Ok(parsed) => drop(arguments.set(parsed)),
        Err(error) => {
            host.shutdown().await;
            return Err(error);
        }
    }
    let open = OpenSession::default().with(|open| open.agent = Some(agent));
    let session = host.open_session(open).await.map_err(CommandError::failed)?;
    let run = session.start_run("call the tool").await.map_err(CommandError::failed)?;
    let mode = ApprovalMode::from_flags(args.approve, false);
    let shown = DisplayScope::Calls;
    let report = watch::on_screen(&host, &session, run, shown, mode, &mut signals).await;
    host.shutdown().await;
    let report = report?;
    if let Some(error) = &report.error {
        output::error(&error.message);
    }
    let succeeded = report.calls.iter().all(|call| call.status == ToolStatus::Ok);
    let is_answered = report.run_end == RunEnd::Answered;
    Ok(if is_answered && succeeded { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints tools for the operations of an OpenAPI document.
fn import(file: &Path, filter: &OperationFilter) -> Result<ExitCode, CommandError> {
    let (name, is_stdin) = match file.to_str() {
        Some("-") => ("standard input".to_owned(), true),
        _ => (file.display().to_string(), false),
    };
    let wrong = |problem: &dyn std::fmt::Display| {
        CommandError::usage(terminal_line(&format!("{name}: {problem}")))
    };
    let mut bytes = Vec::new();
    let read = match is_stdin {
        true => std::io::stdin().lock().take(SPEC_BYTES_MAX + 1).read_to_end(&mut bytes),
        false => std::fs::File::open(file)
            .and_then(|file| file.take(SPEC_BYTES_MAX + 1).read_to_end(&mut bytes)),
    };
    read.map_err(|error| CommandError::usage(format!("read {name}: {error}")))?;
    if bytes.len() as u64 > SPEC_BYTES_MAX {
        return Err(wrong(&format!("is larger than {} MiB", SPEC_BYTES_MAX >> 20)));
    }
    let text = String::from_utf8(bytes).map_err(|error| wrong(&format!("is no text: {error}")))?;
    let tools = import::import(&text, filter).map_err(|error| wrong(&error))?;
    output::to_stdout(&tools).map_err(|error| output::write_error(&error))?;
    Ok(ExitCode::SUCCESS)
}

fn parse_input(json: &str) -> Result<Value, CommandError> {
    let parsed = serde_json::from_str::<Value>(json);
    let value =
        parsed.map_err(|error| CommandError::usage(format!("--input: it is not JSON: {error}")))?;
    if value.is_object() {
        return Ok(value);
    }
    Err(CommandError::usage("--input: must be a JSON object such as {\"path\": \".\"}"))
}

/// Parses `KEY=VALUE` arguments. A value is a text if the schema says so or if it is not JSON.
fn parse_arguments(arguments: &[String], schema: &Value) -> Result<Value, CommandError> {
    let mut members = serde_json::Map::new();
    for argument in arguments {
        let Some((key, value)) = argument.split_once('=') else {
            let message = format!("{argument:?} is not KEY=VALUE; use --input for a JSON object");
            return Err(CommandError::usage(message));
        };
        let is_text = schema["properties"][key]["type"] == "string";
        let json = || serde_json::from_str(value).ok();
        let value = (!is_text).then(json).flatten().unwrap_or_else(|| Value::from(value));
        members.insert(key.to_owned(), value);
    }
    Ok(Value::from(members))
}

/// Returns a table of the offered tools, and lines about the others, the patterns, the servers and the tokens.
fn table(listed: &AgentTools) -> String {
    let AgentTools { agent, tools, tokens, unmatched, servers } = listed;
    let offered = || tools.iter().filter(|tool| tool.left_out.is_none());
    let rows = || std::iter::once(HEADINGS.map(str::to_owned)).chain(offered().map(cells));
    let mut widths = [0; HEADINGS.len()];
    for row in rows() {
        for (width, cell) in widths.iter_mut().zip(&row) {
            *width = cell.len().max(*width);
        }
    }
    let mut text = String::new();
    for row in rows() {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        text.push_str(line.trim_end());
        text.push('\n');
    }
    let left_out: Vec<&str> = tools
        .iter()
        .filter(|tool| tool.left_out.is_some())
        .map(|tool| tool.name.as_str())
        .collect();
    if !left_out.is_empty() {
        let names = left_out.join(", ");
        text.push_str(&format!("left out: {names} ({})\n", NOT_NAMED));
    }
    for tool in tools {
        for ModelRefusal { model, reason } in &tool.set_aside {
            let (name, reason) = (&tool.name, printable(reason));
            text.push_str(&format!("set aside for {model}: {name} ({reason})\n"));
        }
    }
    for pattern in unmatched {
        text.push_str(&format!("the agent's pattern {pattern:?} matches no tool\n"));
    }
    for server in servers {
        text.push_str(&describe_server(server));
    }
    if tools.iter().any(|tool| tool.name == READ_VAR) {
        text.push_str(&format!(
            "{READ_VAR} reads earlier results; [agents.{agent}.context] references = false leaves it out\n"
        ));
    }
    let count = format_count(offered().count() as u64, "tool");
    text.push_str(&format!(
        "agent {agent} offers {count}, about {tokens} tokens in each request\n"
    ));
    let found = offered().filter(|tool| tool.found).count();
    if found > 0 {
        text.push_str(&format!(
            "{found} of them are behind find_tools and use_tool (tool_loading)\n"
        ));
    }
    text
}

/// Returns the lines about a server: its state, its instructions, its tools that cannot be offered, warnings, and its output lines
/// that were no messages (`noise`).
fn describe_server(server: &ListedServer) -> String {
    let ListedServer { name, state, reason, named, tools, left_out, warnings, .. } = server;
    let instructions = &server.instructions;
    let ListedServer { noise_lines, noise, .. } = server;
    let reason =
        reason.as_ref().map(|reason| format!(": {}", terminal_line(reason))).unwrap_or_default();
    let tools = format_count(*tools as u64, "tool");
    let mut text = format!("server {name} is {state}, {tools}{reason}\n");
    if !named {
        text.push_str(&format!("  the agent's tools do not name it: add \"{name}__*\"\n"));
    }
    if let Some(instructions) = instructions {
        let count = instructions.chars().count();
        text.push_str(&format!(
            "  instructions ({count} characters): {}\n",
            terminal_line(instructions)
        ));
    }
    for (tool, reason) in left_out {
        text.push_str(&format!("  left out: {}: {}\n", terminal_line(tool), terminal_line(reason)));
    }
    for (tool, difference) in warnings {
        let (tool, difference) = (terminal_line(tool), terminal_line(difference));
        text.push_str(&format!("  warning: {tool}: {difference}\n"));
    }
    if *noise_lines > 0 {
        let lines = format_count(*noise_lines, "line");
        text.push_str(&format!("  {lines} of its output were no messages:\n"));
        for line in noise {
            text.push_str(&format!("    {}\n", terminal_line(line)));
        }
    }
    text
}

/// Escapes the characters of a JSON text that a terminal does not show as they are.
fn escape_invisible(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        if is_invisible(c) || c.is_control() && !c.is_ascii() {
            let units = c.encode_utf16(&mut [0; 2]).to_vec();
            units.iter().for_each(|unit| escaped.push_str(&format!("\\u{unit:04x}")));
        } else {
            escaped.push(c);
        }
    }
    escaped
}

/// Returns a text from outside as one line that a terminal shows as it is.
pub(super) fn terminal_line(text: &str) -> String {
    printable(&one_line(text, usize::MAX))
}

fn cells(tool: &ListedTool) -> [String; 7] {
    let word = |value: Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    [
        tool.name.clone(),
        word(json!(tool.kind)),
        word(json!(tool.effect)),
        word(json!(tool.start)),
        if tool.idempotent { "yes" } else { "no" }.to_owned(),
        tool.approval.to_string(),
        tool.tokens.to_string(),
    ]
}
