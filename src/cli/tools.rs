//! `callsheet tools`: lists the tools of an agent.

use std::path::PathBuf;
use std::process::ExitCode;

use serde_json::{Value, json};

use super::error::CommandError;
use super::output::{self, format_count};
use super::run::choose_agent;
use super::setup::{self, CONFIG_HELP};
use crate::tool::{ListedTool, list_tools};

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
    },
}

/// Runs a subcommand.
pub(super) fn run(command: &ToolsCommand) -> Result<ExitCode, CommandError> {
    let ToolsCommand::List { config, agent, json } = command;
    let config = setup::load(config.as_deref())?.config;
    let mut registry = setup::tools(&config)?;
    registry.apply_overrides(&config.tools);
    let agent = choose_agent(&config, agent.as_deref())?;
    let patterns = config.agents.get(&agent).map(|agent| agent.tools.as_slice());
    let is_offered =
        |name: &str| patterns.unwrap_or_default().iter().any(|pattern| pattern.matches(name));
    let tools = list_tools(&registry, is_offered);
    let text = match json {
        true => format!("{}\n", json!({"agent": agent, "tools": tools})),
        false => table(&agent, &tools),
    };
    output::to_stdout(&text).map_err(|error| output::write_error(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns a table of the offered tools, and a line with the others.
fn table(agent: &str, tools: &[ListedTool]) -> String {
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
        text.push_str(&format!("left out: {names} ({})\n", crate::tool::NOT_NAMED));
    }
    let tokens: usize = offered().map(|tool| tool.tokens).sum();
    let count = format_count(offered().count() as u64, "tool");
    text.push_str(&format!(
        "agent {agent} offers {count}, about {tokens} tokens in each request\n"
    ));
    text
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
