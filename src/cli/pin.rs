//! `callsheet tools pin`: compares the tools of MCP servers with the accepted ones in the lock file, or accepts
//! them.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use super::error::CommandError;
use super::output;
use super::setup;
use super::tools::terminal_line;
use callsheet_host::runtime::Host;
use callsheet_host::runtime::model::{ModelReply, ModelRequest};
use callsheet_tools::{LOCK_FILE, PinProblem, ServerListing, ToolLock, check_instructions};
use callsheet_values::config::{JournalEngine, McpPin, ModelConfig};

/// The name of the model, which is never asked.
const NO_MODEL: &str = "no model";

/// Compares the tools of all configured servers with the lock file. With `accept`, writes the file if
/// they differ.
pub(super) async fn run(file: Option<&Path>, accept: bool) -> Result<ExitCode, CommandError> {
    let mut config = setup::load(file)?.config;
    let Some(lock_file) = config.mcp.values().next().map(|server| server.lock_file.clone()) else {
        let message = "there is nothing to pin: the configuration has no server ([mcp.NAME])";
        return Err(CommandError::usage(message));
    };
    // Shows the tools that are not accepted yet.
    config.mcp.values_mut().for_each(|server| server.pin = McpPin::Off);
    let registry = setup::tools(&config)?;
    let before = ToolLock::read(&lock_file).map_err(CommandError::usage)?.unwrap_or_default();
    config.use_model(NO_MODEL, ModelConfig::for_source(NO_MODEL));
    config.journal.engine = JournalEngine::Memory;
    let silent = |_: ModelRequest| ModelReply::text("").into_stream();
    let host = Host::builder().config(config).tools(registry).model_source(NO_MODEL, silent);
    let host = host.start().await.map_err(setup::start_error)?;
    let listings = host.server_listings().await;
    host.shutdown().await;

    let (mut now, mut text) = (ToolLock::default(), String::new());
    for (server, listing) in listings {
        let listing = listing.map_err(|reason| {
            let reason = terminal_line(&reason);
            CommandError::failed(format!("the server {server} is down: {reason}"))
        })?;
        text.push_str(&differences(&server, &listing, &before));
        now.accept(&server, &listing);
    }
    for server in before.servers().filter(|server| now.server(server).is_none()) {
        text.push_str(&format!("{}: - (the server is not configured)\n", terminal_line(server)));
    }
    let is_same = before == now;
    if is_same {
        text.push_str("no difference\n");
    } else if accept {
        write(&lock_file, &now.to_text()).map_err(|error| {
            CommandError::failed(format!("cannot write {}: {error}", lock_file.display()))
        })?;
        text.push_str(&format!("accepted: {LOCK_FILE} is written\n"));
    } else {
        text.push_str(&format!("not accepted: callsheet tools pin --accept writes {LOCK_FILE}\n"));
    }
    output::to_stdout(&text).map_err(|error| output::write_error(&error))?;
    Ok(if is_same || accept { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns a line for each tool, and for the instructions, if they are not as they were accepted, or one for a new server without tools.
fn differences(server: &str, listing: &ServerListing, before: &ToolLock) -> String {
    if before.server(server).is_none() && listing.tools.is_empty() && listing.instructions.is_none()
    {
        return format!("{server}: + (a server without tools)\n");
    }
    let (mut text, nothing) = (String::new(), Default::default());
    let pinned = before.server(server).unwrap_or(&nothing);
    for tool in &listing.tools {
        let name = terminal_line(&tool.server_name);
        match pinned.check(tool) {
            None => {}
            Some(PinProblem::New) => {
                let description = terminal_line(&tool.description);
                text.push_str(&format!("{server}: + {name}: {description}\n"));
            }
            Some(PinProblem::Changed(difference)) => {
                let difference = terminal_line(&difference);
                text.push_str(&format!("{server}: ~ {name}: {difference}\n"));
            }
        }
    }
    for name in pinned.gone(&listing.tools) {
        text.push_str(&format!("{server}: - {}\n", terminal_line(name)));
    }
    let instructions = listing.instructions.as_deref();
    match check_instructions(before.instructions(server), instructions) {
        None => {}
        Some(PinProblem::New) => {
            let now = terminal_line(instructions.unwrap_or_default());
            text.push_str(&format!("{server}: + (instructions): {now}\n"));
        }
        Some(PinProblem::Changed(difference)) => {
            let difference = terminal_line(&difference);
            text.push_str(&format!("{server}: ~ (instructions): {difference}\n"));
        }
    }
    text
}

/// Replaces a file as a whole.
fn write(file: &Path, text: &str) -> io::Result<()> {
    let new = file.with_extension("lock.new");
    std::fs::write(&new, text)?;
    std::fs::rename(&new, file)
}
