//! `callsheet serve`: runs the host and its HTTP API.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tokio::net::TcpListener;

use super::error::CommandError;
use super::open_files;
use super::output;
use super::setup::{self, ConfigArgs, DATA_DIR_HELP, LoadedConfig};
use super::signals::Signals;
use crate::config::{Config, JournalEngine, REHEARSAL, parse_listen};
use crate::runtime::{AgentRules, Host};
use crate::server::{self, ServerOptions};
use crate::telemetry::{self, LogFormat};
use crate::types::millis;

/// Flags of `callsheet serve`.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address to listen on [default: 127.0.0.1:7700]
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
    listen: Option<SocketAddr>,
    #[arg(long, value_name = "DIR", help = DATA_DIR_HELP)]
    data_dir: Option<PathBuf>,
    /// Format of log lines: text or json. With json, what is shown at the start is log lines, too.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// Check the configuration and exit.
    #[arg(long)]
    check: bool,
}

/// Runs the host and its HTTP API until a signal arrives.
pub(super) async fn run(args: ServeArgs) -> Result<ExitCode, CommandError> {
    let LoadedConfig { mut config, file } = args.config.load()?;
    let named_file = args.config.named_file();
    if let Some(listen) = args.listen {
        config.set_listen(listen).map_err(CommandError::usage)?;
    }
    if let Some(dir) = &args.data_dir {
        config.host.data_dir.clone_from(dir);
    }
    let tools = setup::tools(&config)?;
    let source = file.map_or_else(|| "the defaults".to_owned(), |file| file.display().to_string());
    if args.check {
        // The host makes the models and agents in the same way when it starts.
        AgentRules::new(&config, tools).map_err(CommandError::usage)?;
        let (models, agents) = (config.models.len(), config.agents.len());
        let summary = format!("{source}: valid (models: {models}, agents: {agents})\n");
        output::to_stdout(&summary).map_err(|error| output::write_error(&error))?;
        return Ok(ExitCode::SUCCESS);
    }
    telemetry::init(args.log_format).map_err(CommandError::usage)?;
    let listen = config.host.listen;
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        CommandError::usage(format!("listen on {listen}: {}", listen_error(&error)))
    })?;
    // Handlers must be installed before the banner, because its reader may send a signal.
    let mut signals = Signals::new().map_err(CommandError::failed)?;
    let rehearsal = setup::start_rehearsal(&mut config).await?;
    let options = ServerOptions::from(&config.host).with(|options| {
        options.max_connections = open_files::raise_open_file_limit(options.max_connections);
    });
    let configured = config.clone();
    let host = Host::builder()
        .config(config)
        .tools(tools)
        .journal_holder(format!("listening on {listen}"))
        .start()
        .await
        .map_err(|error| setup::start_error(error).naming_data_dir_flag(args.data_dir.is_some()))?;
    // Returns at once. Connections are served in the background.
    let http_server =
        server::serve(listener, host.clone(), options).map_err(CommandError::failed)?;
    let addr = http_server.addr();
    match args.log_format {
        // Without log lines of this level, only the banner has the address.
        LogFormat::Json if tracing::enabled!(tracing::Level::INFO) => {
            log_start(&configured, addr, &source);
        }
        LogFormat::Text | LogFormat::Json => {
            output::to_stderr(&banner(&configured, addr, &source, named_file));
        }
    }

    signals.next().await;
    let grace = configured.host.shutdown_grace;
    match args.log_format {
        LogFormat::Text => {
            let seconds = grace.as_secs_f64();
            let line = format!("callsheet: stopping; running tools have {seconds} s to end\n");
            output::to_stderr(&line);
        }
        LogFormat::Json => tracing::info!(shutdown_grace_ms = millis(grace), "stopping"),
    }
    tokio::select! {
        () = host.shutdown() => {}
        // The second signal exits at once.
        () = signals.next() => return Ok(ExitCode::from(130)),
    }
    http_server.shutdown().await;
    if let Some(rehearsal) = rehearsal {
        rehearsal.shutdown().await;
    }
    Ok(ExitCode::SUCCESS)
}

/// Logs the agents with their models, and the address.
fn log_start(config: &Config, addr: SocketAddr, source: &str) {
    for (name, agent) in &config.agents {
        for model_name in agent.models() {
            let Some(model) = config.models.get(model_name) else { continue };
            tracing::info!(
                agent = name,
                model = model.model,
                base_url = model.base_url.as_str(),
                is_rehearsal = model_name == REHEARSAL,
                "agent_uses_model"
            );
        }
    }
    tracing::info!(address = %addr, configuration = source, "listening");
}

/// Returns the text at start: the address, the agents and their models, and commands to try. `named_file` is the
/// configuration file that `--config` names.
fn banner(config: &Config, addr: SocketAddr, source: &str, named_file: Option<&Path>) -> String {
    let mut text = format!("callsheet: listening on http://{addr} (configuration: {source})\n");
    let addr = reachable(addr);
    for (name, agent) in &config.agents {
        let mut label = format!("agent {name}");
        for model_name in agent.models() {
            let Some(model) = config.models.get(model_name) else { continue };
            let _ = if model_name == REHEARSAL {
                writeln!(text, "  {label}: the offline rehearsal model (not a real model)")
            } else {
                writeln!(text, "  {label}: {} at {}", model.model, model.base_url)
            };
            "  fallback".clone_into(&mut label);
        }
    }
    match config.journal.engine {
        JournalEngine::Sqlite => {
            let _ = writeln!(text, "  sessions are stored in {}", config.host.data_dir.display());
        }
        JournalEngine::Memory => {
            text.push_str("  sessions are in memory and are lost when this host stops\n")
        }
    }
    let token = if config.host.token.is_some() {
        let _ = writeln!(text, "  requests need the bearer token in {}", config.host.token_env);
        format!(" -H \"authorization: Bearer ${}\"", config.host.token_env)
    } else {
        String::new()
    };
    let agent = config.agents.keys().next().map_or("default", String::as_str);
    let agent_flag = if agent == "default" { String::new() } else { format!(" --agent {agent}") };
    let config_flag = named_file.map(|file| format!(" --config {}", shell_word(file)));
    let config_flag = config_flag.unwrap_or_default();
    let _ = write!(
        text,
        "Try:\n  callsheet run{config_flag}{agent_flag} \"What time is it in Tokyo and in Beijing, and what is 17 % of 2,350?\"\n  \
         curl -s http://{addr}/v1/sessions{token} -H 'content-type: application/json' -d '{{\"id\":\"demo\",\"agent\":\"{agent}\"}}'\n  \
         curl -N http://{addr}/v1/sessions/demo/runs{token} -H 'content-type: application/json' \
         -H 'accept: text/event-stream' -d '{{\"input\":\"What time is it in Tokyo?\"}}'\n\
         Stop with Ctrl-C.\n"
    );
    text
}

/// Returns a path as a word of a shell, in quotes if it needs them.
fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte);
    match text.bytes().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Replaces an unspecified address ("all addresses") by the loopback address, which a client can
/// connect to.
fn reachable(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, addr.port())
}

/// Formats the error of binding an address.
fn listen_error(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::AddrInUse {
        return "another program uses this address".to_owned();
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_names_a_reachable_address() {
        for (listening, reached) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:2", "[::1]:2"), ("10.0.0.1:3", "10.0.0.1:3")]
        {
            let addr = listening.parse().expect("parse the address");
            let text = banner(&Config::default(), addr, "the defaults", None);
            assert!(text.starts_with(&format!("callsheet: listening on http://{listening} ")));
            assert!(text.contains(&format!("curl -s http://{reached}/v1/sessions ")), "{text}");
            assert!(text.contains("\n  callsheet run \"What"), "{text}");
        }
    }

    #[test]
    fn the_commands_to_try_name_the_configuration_file() {
        let addr = "127.0.0.1:1".parse().expect("parse the address");
        for (file, word) in [
            ("etc/other-1.toml", "etc/other-1.toml"),
            ("my file's.toml", "'my file'\\''s.toml'"),
            ("$(x).toml", "'$(x).toml'"),
        ] {
            let text = banner(&Config::default(), addr, file, Some(Path::new(file)));
            let command = format!("\n  callsheet run --config {word} \"What");
            assert!(text.contains(&command), "{text}");
        }
    }
}
