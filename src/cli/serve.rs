//! `callsheet serve`: runs the host and its HTTP API.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use tokio::net::TcpListener;

use super::error::CommandError;
use super::open_files;
use super::output;
use super::service_manager::ServiceManager;
use super::setup::{self, ConfigArgs, DATA_DIR_HELP, LoadedConfig};
use super::signals::Signals;
use callsheet_host::runtime::{AgentRules, Host};
use callsheet_host::telemetry::{self, LogFormat};
use callsheet_rehearsal::Rehearsal;
use callsheet_server::{self, ServerHandle, ServerOptions, ServerTls};
use callsheet_tools::ToolRegistry;
use callsheet_values::config::{
    Config, HostConfig, JournalEngine, REHEARSAL, TokenScope, parse_listen,
};
use callsheet_values::types::millis;

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
    /// Continue the unfinished runs of a restored copy, which wait otherwise.
    #[arg(long)]
    go_on: bool,
    /// Start although the journal's write-ahead log is missing, which may have had the newest records.
    #[arg(long)]
    accept_loss: bool,
    /// Format of log lines: text or json. With json, the start is also reported in log lines.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// Check the configuration and exit.
    #[arg(long)]
    check: bool,
}

/// The exit status after a second signal: 128 + SIGINT (2), as shells report a process that SIGINT ended.
const INTERRUPTED: u8 = 130;

/// Runs the host and its HTTP API until a signal arrives. With `--check`, only checks the configuration.
pub(super) async fn run(args: ServeArgs) -> Result<ExitCode, CommandError> {
    let LoadedConfig { mut config, file } = args.config.load()?;
    if let Some(listen) = args.listen {
        config.set_listen(listen).map_err(CommandError::usage)?;
    }
    if let Some(dir) = &args.data_dir {
        config.host.data_dir.clone_from(dir);
    }
    let tools = setup::tools(&config)?;
    config.check_tokens().map_err(CommandError::usage)?;
    let config_source =
        file.map_or_else(|| "the defaults".to_owned(), |file| file.display().to_string());
    if args.check {
        return check(&config, tools, &config_source);
    }
    telemetry::init_logs(args.log_format).map_err(CommandError::usage)?;
    let Some(server) = start(&mut config, tools, &args).await? else {
        return Ok(ExitCode::SUCCESS);
    };
    let addr = server.http_server.addr();
    announce_start(&args, &config, addr, &config_source);
    let manager = ServiceManager::from_env();
    manager.notify(&format!("READY=1\nSTATUS=listening on {}", server.http_server.url()));
    tokio::select! {
        status = server.wait(&config, args.log_format, &manager) => Ok(status),
        never = manager.heartbeats() => match never {},
    }
}

/// Reads the certificate of the HTTP server.
fn tls(config: &Config) -> Result<Option<ServerTls>, CommandError> {
    let loaded = config.tls.clone().map(ServerTls::load).transpose();
    loaded.map_err(|error| CommandError::usage(config.tls_error(error.key, error.message)))
}

/// Checks the models and agents as the host does at its start, and prints a summary of the configuration,
/// and the sandboxes that this machine supports.
fn check(
    config: &Config,
    tools: ToolRegistry,
    config_source: &str,
) -> Result<ExitCode, CommandError> {
    AgentRules::new(config, tools).map_err(CommandError::usage)?;
    tls(config)?;
    let (models, agents) = (config.models.len(), config.agents.len());
    let mut summary = format!("{config_source}: valid (models: {models}, agents: {agents})\n");
    summary.push_str(&sandbox_summary());
    output::to_stdout(&summary).map_err(|error| output::write_error(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns lines about the sandboxes that this machine supports.
#[cfg(target_os = "linux")]
fn sandbox_summary() -> String {
    let support = callsheet_tools::launcher::sandbox_support();
    let names = support.iter().filter(|(_, supported)| supported.is_ok());
    let names: Vec<&str> = names.map(|(level, _)| level.as_str()).collect();
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let reasons = support.iter().filter_map(|(_, supported)| supported.as_ref().err());
    let reasons: String = reasons.map(|reason| format!("{reason}\n")).collect();
    format!("sandboxes on this machine: {names}\n{reasons}")
}

#[cfg(not(target_os = "linux"))]
fn sandbox_summary() -> String {
    String::new()
}

/// A host with its HTTP server and its rehearsal model.
struct RunningServer {
    http_server: ServerHandle,
    host: Host,
    _rehearsal: Option<Rehearsal>,
    signals: Signals,
}

/// Starts the host and its HTTP server. Sets the address of the rehearsal model in the configuration. Returns
/// `None` if a signal arrives before the host has started.
async fn start(
    config: &mut Config,
    tools: ToolRegistry,
    args: &ServeArgs,
) -> Result<Option<RunningServer>, CommandError> {
    let requested_addr = config.host.listen;
    let tls = tls(config)?;
    let listener = TcpListener::bind(requested_addr).await.map_err(|error| {
        CommandError::usage(format!("listen on {requested_addr}: {}", listen_error(&error)))
    })?;
    if let Some(advertise) = &mut config.host.advertise {
        let port = listener.local_addr().map_err(CommandError::failed)?.port();
        advertise.set_unset_port(port);
    }
    // The handlers are installed before the start is announced, because a reader of the announcement may send
    // a signal at once.
    let mut signals = Signals::of_service().map_err(CommandError::failed)?;
    let _rehearsal = setup::start_rehearsal(config).await?;
    let options = ServerOptions::from(&*config).with(|options| {
        options.max_connections = open_files::raise_open_file_limit(options.max_connections);
        options.tls = tls;
        if options.peer_token.is_some() {
            // Requests wait for the host that goes on with their sessions.
            options.close_timeout = options.close_timeout.max(config.host.shutdown_grace);
        }
    });
    let mut builder = Host::builder()
        .config(config.clone())
        .tools(tools)
        .journal_holder(format!("listening on {requested_addr}"));
    if args.go_on {
        builder = builder.go_on();
    }
    if args.accept_loss {
        builder = builder.accept_loss();
    }
    let Some(host) = setup::start_host(builder, &mut signals).await? else { return Ok(None) };
    // The server handles connections in the background.
    let http_server =
        callsheet_server::serve(listener, host.clone(), options).map_err(CommandError::failed)?;
    Ok(Some(RunningServer { http_server, host, _rehearsal, signals }))
}

impl RunningServer {
    /// Waits for a signal, and shuts everything down. A second signal before the host has shut down skips the rest.
    async fn wait(
        mut self,
        config: &Config,
        log_format: LogFormat,
        manager: &ServiceManager,
    ) -> ExitCode {
        let read_secrets_again = async || {
            self.http_server.read_secrets_again().await;
            self.host.read_secrets_again();
        };
        self.signals.next_or(read_secrets_again).await;
        manager.notify("STOPPING=1");
        let grace = config.host.shutdown_grace;
        match log_format {
            LogFormat::Text => output::to_stderr(&shutdown_line(grace)),
            LogFormat::Json => tracing::info!(shutdown_grace_ms = millis(grace), "stopping"),
        }
        tokio::select! {
            () = self.host.shutdown() => {}
            () = self.signals.next() => return ExitCode::from(INTERRUPTED),
        }
        self.http_server.shutdown().await;
        ExitCode::SUCCESS
    }
}

fn shutdown_line(grace: Duration) -> String {
    format!("callsheet: stopping; running turns have {} s to finish\n", grace.as_secs_f64())
}

/// Logs the start, or prints the banner.
fn announce_start(args: &ServeArgs, config: &Config, bound_addr: SocketAddr, config_source: &str) {
    // Without log lines of this level, only the banner names the address.
    if args.log_format == LogFormat::Json && tracing::enabled!(tracing::Level::INFO) {
        log_start(config, bound_addr, config_source);
    } else {
        output::to_stderr(&banner(config, bound_addr, config_source, &args.config));
    }
}

/// Logs the agents with their models, and the address.
fn log_start(config: &Config, bound_addr: SocketAddr, config_source: &str) {
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
    tracing::info!(address = %bound_addr, configuration = config_source, "listening");
}

/// Returns the text at start: the address, the agents and their models, and commands to try. `flags` have chosen the
/// configuration and the model.
fn banner(
    config: &Config,
    bound_addr: SocketAddr,
    config_source: &str,
    flags: &ConfigArgs,
) -> String {
    let mut lines = vec![format!(
        "callsheet: listening on {}://{bound_addr} (configuration: {config_source})",
        scheme(config)
    )];
    for (name, agent) in &config.agents {
        let mut label = format!("agent {name}");
        for model_name in agent.models() {
            let Some(model) = config.models.get(model_name) else { continue };
            lines.push(if model_name == REHEARSAL {
                format!("  {label}: the offline rehearsal model (not a real model)")
            } else {
                format!("  {label}: {} at {}", model.model, model.base_url)
            });
            "  fallback".clone_into(&mut label);
        }
    }
    lines.push(match config.journal.engine {
        JournalEngine::Sqlite => {
            format!("  sessions are stored in {}", config.host.data_dir.display())
        }
        JournalEngine::Postgres => {
            format!("  sessions are stored in the database in {}", config.journal.url_env)
        }
        JournalEngine::Memory => {
            "  sessions are in memory and are lost when this host stops".to_owned()
        }
    });
    let is_loopback = config.host.listen.ip().is_loopback();
    if cfg!(feature = "faces") && config.faces.openai.enabled.unwrap_or(is_loopback) {
        let (scheme, addr) = (scheme(config), reachable(bound_addr));
        lines.push(format!("  clients of OpenAI: OPENAI_BASE_URL={scheme}://{addr}/v1"));
    }
    if config.host.token.is_some() {
        lines.push(format!("  requests need the bearer token in {}", config.host.token_place()));
    }
    if !config.tokens.is_empty() {
        let names: Vec<&str> = config.tokens.iter().map(|token| token.name.as_str()).collect();
        lines.push(format!("  requests may carry the tokens {}", names.join(", ")));
    }
    lines.push("Try:".to_owned());
    lines.extend(commands_to_try(config, reachable(bound_addr), flags));
    lines.push("Stop with Ctrl-C.\n".to_owned());
    lines.join("\n")
}

/// Returns lines with commands: a run without this host, a session of this host, and a run of that session.
fn commands_to_try(config: &Config, addr: SocketAddr, flags: &ConfigArgs) -> [String; 3] {
    let agent = config.agents.keys().next().map_or("default", String::as_str);
    let agent_flag = if agent == "default" { String::new() } else { format!(" --agent {agent}") };
    // Without these flags the command could use another configuration or model.
    let words = flags.words();
    let config_flags: Vec<String> =
        words.iter().map(|word| format!(" {}", shell_word(word))).collect();
    let config_flags = config_flags.concat();
    let token_header = token_in_shell(config)
        .map(|token| format!(" -H \"authorization: Bearer {token}\""))
        .unwrap_or_default();
    let (json_header, scheme) = ("-H 'content-type: application/json'", scheme(config));
    [
        format!(
            "  callsheet run{config_flags}{agent_flag} \"What time is it in Tokyo and in Beijing, \
             and what is 17 % of 2,350?\""
        ),
        format!(
            "  curl -s {scheme}://{addr}/v1/sessions{token_header} {json_header} \
             -d '{{\"id\":\"demo\",\"agent\":\"{agent}\"}}'"
        ),
        format!(
            "  curl -N {scheme}://{addr}/v1/sessions/demo/runs{token_header} {json_header} \
             -H 'accept: text/event-stream' -d '{{\"input\":\"What time is it in Tokyo?\"}}'"
        ),
    ]
}

/// Returns the scheme of the URLs of the HTTP server.
pub(super) fn scheme(config: &Config) -> &'static str {
    if config.tls.is_some() { "https" } else { "http" }
}

/// Returns how a shell finds a token that may start a run, within double quotes.
fn token_in_shell(config: &Config) -> Option<String> {
    let of_file = |file: &Path| format!("$(cat {})", shell_word(&file.display().to_string()));
    let of_variable = |name: &String| format!("${name}");
    let HostConfig { token, token_env, token_file, .. } = &config.host;
    if token.is_some() {
        return Some(token_file.as_deref().map_or_else(|| of_variable(token_env), of_file));
    }
    let token = config.tokens.iter().find(|token| token.allows(TokenScope::Run))?;
    token.file.as_deref().map(of_file).or(token.env.as_ref().map(of_variable))
}

/// Returns a text as a word of a shell, in quotes if it needs them.
fn shell_word(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:".contains(&byte);
    if !text.is_empty() && text.bytes().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Replaces an unspecified address ("all addresses") by the loopback address, which a client can
/// connect to.
pub(super) fn reachable(addr: SocketAddr) -> SocketAddr {
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
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct ParsedFlags {
        #[command(flatten)]
        config: ConfigArgs,
    }

    #[test]
    fn the_banner_names_a_reachable_address() {
        for (listening, reached) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:2", "[::1]:2"), ("10.0.0.1:3", "10.0.0.1:3")]
        {
            let addr = listening.parse().expect("parse the address");
            let text = banner(&Config::default(), addr, "the defaults", &ConfigArgs::default());
            assert!(text.starts_with(&format!("callsheet: listening on http://{listening} ")));
            assert!(text.contains(&format!("curl -s http://{reached}/v1/sessions ")), "{text}");
            assert!(text.contains("\n  callsheet run \"What"), "{text}");
            let of_face = format!("OPENAI_BASE_URL=http://{reached}/v1\n");
            assert_eq!(text.contains(&of_face), cfg!(feature = "faces"), "{text}");
        }
    }

    #[test]
    fn the_time_of_running_turns_is_announced_at_shutdown() {
        let line = shutdown_line(Duration::from_millis(10_500));
        assert_eq!(line, "callsheet: stopping; running turns have 10.5 s to finish\n");
    }

    #[test]
    fn the_command_to_try_has_the_flags_of_the_configuration_and_the_model() {
        let addr = "127.0.0.1:1".parse().expect("parse the address");
        for (flags, words) in [
            (&["--config", "etc/other-1.toml"][..], "--config etc/other-1.toml"),
            (&["--config", "my file's.toml"][..], "--config 'my file'\\''s.toml'"),
            (&["--config", "$(x).toml"][..], "--config '$(x).toml'"),
            (
                &["--rehearsal", "--wire", "openai-chat", "--config", "x.toml"][..],
                "--config x.toml --wire openai-chat --rehearsal",
            ),
            (
                &["--base-url", "http://[::1]:80/v1", "--model", "m", "--api-key-env", "KEY"][..],
                "--base-url 'http://[::1]:80/v1' --model m --api-key-env KEY",
            ),
        ] {
            let parsed = ParsedFlags::try_parse_from(["serve"].iter().chain(flags));
            let flags = parsed.expect("parse the flags").config;
            let text = banner(&Config::default(), addr, "x.toml", &flags);
            let command = format!("\n  callsheet run {words} \"What");
            assert!(text.contains(&command), "{text}");
        }
    }
}
