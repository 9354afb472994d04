//! `callsheet health`: asks a running host whether it is ready.

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Response, StatusCode, Url};
use serde_json::Value;

use super::error::CommandError;
use super::output;
use super::serve::{reachable, scheme};
use super::setup::{self, CONFIG_HELP};
use callsheet_tools::tls;

/// Time limit of the whole request. Probes of containers and load balancers have limits of this size.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of bytes that are read of an answer.
const ANSWER_BYTES_MAX: usize = 1024 * 1024;

/// Flags of `callsheet health`.
#[derive(Debug, clap::Args)]
pub(super) struct HealthArgs {
    /// The URL of the host [default: the listen address of the configuration, or http://127.0.0.1:7700]
    #[arg(value_name = "URL", value_parser = parse_url, conflicts_with = "config")]
    url: Option<Url>,
    #[arg(long, value_name = "FILE", help = CONFIG_HELP)]
    config: Option<PathBuf>,
}

/// Asks the host whether it is ready, and prints one line. The exit status is 1 if it is not ready or does not answer.
pub(super) async fn run(args: HealthArgs) -> Result<ExitCode, CommandError> {
    let url = match args.url {
        Some(url) => url,
        None => configured_url(args.config)?,
    };
    let name = url.as_str().trim_end_matches('/');
    let failed = |problem: String| CommandError::failed(format!("{name}: {problem}"));
    let answer = tokio::time::timeout(TIMEOUT, ask(&url, &format!("{name}/readyz"))).await;
    let timeout = || format!("no answer within {} s; see the host's log", TIMEOUT.as_secs());
    let (status, body) = answer.map_err(|_| failed(timeout()))?.map_err(|error| {
        let remedy = "start it with callsheet serve, or name its URL";
        failed(format!("the host cannot be reached: {error} ({remedy})"))
    })?;
    if let Some(problem) = problem(status, &body) {
        return Err(failed(problem));
    }
    output::to_stdout(&format!("{name}: ready\n")).map_err(|error| output::write_error(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the URL of the host that a configuration describes.
fn configured_url(file: Option<PathBuf>) -> Result<Url, CommandError> {
    let config = setup::load_without_keys(file.as_deref())?.config;
    let url = format!("{}://{}", scheme(&config), reachable(config.host.listen));
    Url::parse(&url).map_err(CommandError::usage)
}

fn parse_url(text: &str) -> Result<Url, String> {
    let invalid = || "must be the URL of a host such as http://127.0.0.1:7700".to_owned();
    let url = Url::parse(text).map_err(|_| invalid())?;
    let is_plain = url.username().is_empty() && url.query().is_none() && url.fragment().is_none();
    if matches!(url.scheme(), "http" | "https") && is_plain { Ok(url) } else { Err(invalid()) }
}

/// Returns the status and the body of the answer.
async fn ask(host: &Url, readyz: &str) -> Result<(StatusCode, Vec<u8>), String> {
    let settings = reqwest::Client::builder().redirect(Policy::none());
    let settings = if tls::is_loopback(host) { settings.no_proxy() } else { settings };
    let client = tls::client(settings).map_err(|error| error.to_string())?;
    let answered = async {
        let mut response = client.get(readyz).send().await?;
        let body = read(&mut response).await?;
        Ok((response.status(), body))
    };
    answered.await.map_err(|error: reqwest::Error| root_cause(&error))
}

async fn read(response: &mut Response) -> reqwest::Result<Vec<u8>> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await?.filter(|_| body.len() < ANSWER_BYTES_MAX) {
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// Returns the text of the innermost error, such as "Connection refused".
fn root_cause(error: &dyn Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Returns why an answer does not say that the host is ready.
fn problem(status: StatusCode, body: &[u8]) -> Option<String> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    if status == StatusCode::OK && body["status"] == "ready" {
        return None;
    }
    let status = status.as_u16();
    Some(match (body["error"]["code"].as_str(), body["error"]["message"].as_str()) {
        (Some(code), Some(message)) if status == 503 => format!("not ready: {message} ({code})"),
        (Some(code), Some(message)) => format!("{message} ({status} {code})"),
        _ => format!("the answer {status} is not one of a callsheet host; check the URL"),
    })
}
