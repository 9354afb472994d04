//! `callsheet serve`: the host behind its HTTP API.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::setup::{self, LoadedConfig, ModelArgs};
use super::{CommandError, output};
use crate::config::{Config, JournalEngine, parse_listen};
use crate::runtime::{Host, HostSetup};
use crate::server::{self, ServerOptions};
use crate::telemetry::{self, LogFormat};

/// Flags of `callsheet serve`.
#[derive(Debug, clap::Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// Where to listen [default: 127.0.0.1:7700]
    #[arg(long, value_name = "ADDR", value_parser = parse_listen)]
    listen: Option<SocketAddr>,
    /// Where sessions are kept [default: ./callsheet-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// How log lines are written: text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    log_format: LogFormat,
    /// Only check the configuration.
    #[arg(long)]
    check: bool,
}

pub(super) async fn main(args: ServeArgs) -> Result<ExitCode, CommandError> {
    let LoadedConfig { mut config, file } = args.model.load()?;
    if let Some(listen) = args.listen {
        config.set_listen(listen).map_err(CommandError::usage)?;
    }
    if let Some(dir) = args.data_dir {
        config.host.data_dir = dir;
    }
    let tools = setup::tools(&config)?;
    let source = file.map_or_else(|| "the defaults".to_owned(), |file| file.display().to_string());
    if args.check {
        let (models, agents) = (config.models.len(), config.agents.len());
        let said = format!("{source}: fine (models: {models}, agents: {agents})\n");
        output::to_stdout(&said).map_err(|error| output::broken(&error))?;
        return Ok(ExitCode::SUCCESS);
    }
    telemetry::init(args.log_format).map_err(CommandError::usage)?;
    let listen = config.host.listen;
    let listener = TcpListener::bind(listen)
        .await
        .map_err(|error| CommandError::usage(format!("listen on {listen}: {}", plain(&error))))?;
    // Before the banner: whoever reads it may send a signal.
    let mut signals = Signals::new().map_err(CommandError::failed)?;
    let rehearsal = setup::rehearse(&mut config).await?;
    let options = ServerOptions::from(&config.host);
    let shown = config.clone();
    let host = Host::start(HostSetup { config, tools }).await.map_err(setup::not_started)?;
    let server = server::serve(listener, host.clone(), options).map_err(CommandError::failed)?;
    output::to_stderr(&banner(&shown, server.addr(), &source));

    signals.next().await;
    let grace = shown.host.shutdown_grace.as_secs_f64();
    output::to_stderr(&format!("callsheet: stopping; running tools have {grace} s\n"));
    tokio::select! {
        () = host.shutdown() => {}
        // Whoever asks twice means at once.
        () = signals.next() => return Ok(ExitCode::from(130)),
    }
    server.shutdown().await;
    if let Some(rehearsal) = rehearsal {
        rehearsal.shutdown().await;
    }
    Ok(ExitCode::SUCCESS)
}

/// The signals that end a process politely.
#[derive(Debug)]
pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// What a file that may grow no more is told with; it would end the process, while a write that
    /// fails is an error that the journal tells of.
    _file_size: Signal,
}

impl Signals {
    pub(super) fn new() -> std::io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        let file_size = signal(SignalKind::from_raw(libc::SIGXFSZ))?;
        Ok(Self { interrupt, terminate: signal(SignalKind::terminate())?, _file_size: file_size })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// What a newcomer wants to know: where it is, who answers, what to try.
fn banner(config: &Config, addr: SocketAddr, source: &str) -> String {
    let mut text = format!("callsheet: listening on http://{addr} (configuration: {source})\n");
    let addr = reachable(addr);
    for (name, agent) in &config.agents {
        let mut who = format!("agent {name}");
        for asked in agent.models() {
            let Some(model) = config.models.get(asked) else { continue };
            let _ = if asked == crate::config::REHEARSAL {
                writeln!(text, "  {who}: the offline rehearsal model, no real one")
            } else {
                writeln!(text, "  {who}: {} at {}", model.model, model.base_url)
            };
            "  or else".clone_into(&mut who);
        }
    }
    match config.journal.engine {
        JournalEngine::Sqlite => {
            let _ = writeln!(text, "  sessions are kept in {}", config.host.data_dir.display());
        }
        JournalEngine::Memory => {
            text.push_str("  sessions are kept in memory: they end with this host\n")
        }
    }
    let token = if config.host.token.is_some() {
        let _ = writeln!(text, "  requests need the token in {}", config.host.token_env);
        format!(" -H \"authorization: Bearer ${}\"", config.host.token_env)
    } else {
        String::new()
    };
    let agent = config.agents.keys().next().map_or("default", String::as_str);
    let agent_flag = if agent == "default" { String::new() } else { format!(" --agent {agent}") };
    let _ = write!(
        text,
        "Try:\n  callsheet run{agent_flag} \"What time is it in Tokyo and in Beijing, and what is 17 % of 2,350?\"\n  \
         curl -s http://{addr}/v1/sessions{token} -H 'content-type: application/json' -d '{{\"id\":\"demo\",\"agent\":\"{agent}\"}}'\n  \
         curl -N http://{addr}/v1/sessions/demo/runs{token} -H 'content-type: application/json' \
         -H 'accept: text/event-stream' -d '{{\"input\":\"What time is it in Tokyo?\"}}'\n\
         Stop with Ctrl-C.\n"
    );
    text
}

/// Where somebody at this machine reaches it: "every address" is none to call it by.
fn reachable(addr: SocketAddr) -> SocketAddr {
    let ip = match addr.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip @ (IpAddr::V4(_) | IpAddr::V6(_)) => ip,
    };
    SocketAddr::new(ip, addr.port())
}

/// The system's words without its number.
fn plain(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::AddrInUse {
        return "another program uses this address".to_owned();
    }
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banners_commands_name_an_address_that_answers() {
        for (listening, reached) in
            [("0.0.0.0:1", "127.0.0.1:1"), ("[::]:2", "[::1]:2"), ("10.0.0.1:3", "10.0.0.1:3")]
        {
            let addr = listening.parse().expect("parse the address");
            let text = banner(&Config::default(), addr, "the defaults");
            assert!(text.starts_with(&format!("callsheet: listening on http://{listening} ")));
            assert!(text.contains(&format!("curl -s http://{reached}/v1/sessions ")), "{text}");
        }
    }
}
