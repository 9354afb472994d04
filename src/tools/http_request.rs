//! A tool that sends an HTTP request: `[tools.NAME]` with `kind = "http"`.
//!
//! Only a GET request follows redirects, at most five. At most 1 MiB of a response body is read. Of the statuses that
//! are errors (`ok_status`; by default all but 200 to 299), 408, 429 and those from 500 on may be tried again
//! (`retries`): after `Retry-After` if there is one, or 1 s after 429 without it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use reqwest::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION,
    TRANSFER_ENCODING,
};
use reqwest::redirect::Policy;
use reqwest::{Method, RequestBuilder, Response, Url};
use serde_json::{Map, Value};

use super::defined_input::{DefinedInput, DefinitionError};
use super::http::response::{LimitedBody, quoted_excerpt, status_line};
use super::http::{
    AllowRule, CONNECT_TIMEOUT, HttpClient, HttpError, REDIRECTS_MAX, URL_BYTES_MAX, redirect,
    system_lookup, trace_headers,
};
use super::redaction::redacted;
use super::{
    Template, Tool, ToolContext, ToolEffect, ToolError, ToolOutput, ToolSpec, retry_after,
};
use callsheet_values::config::{
    ConfiguredTool, HttpBody, HttpConfig, HttpMethod, SecretSource, ServiceConfig, with_last_word,
};
use callsheet_values::types::{FailureKind, InvalidValue, Secrets, excerpt};

/// Maximum number of bytes of a response body that are read.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Maximum number of characters of a response body that an error quotes.
const QUOTED_CHARS_MAX: usize = 2000;

/// Wait before the next attempt if the server is busy (429) and does not say for how long.
const BUSY_WAIT: Duration = Duration::from_secs(1);

/// Headers that belong to the connection, and cannot be configured.
const FORBIDDEN_HEADERS: [HeaderName; 4] = [CONNECTION, CONTENT_LENGTH, HOST, TRANSFER_ENCODING];

/// A tool that sends an HTTP request.
#[derive(Debug)]
pub(super) struct HttpTool {
    name: String,
    description: String,
    input: DefinedInput,
    client: HttpClient,
    config: HttpConfig,
    method: Method,
    url: Template,
    query: Vec<(String, Template)>,
    headers: HeaderMap,
    idempotency_header: HeaderName,
    /// The secrets of the host.
    secrets: Secrets,
}

impl HttpTool {
    /// Checks the definition of a tool.
    ///
    /// # Errors
    /// The first problem.
    pub(super) fn new(
        name: &str,
        tool: &ConfiguredTool,
        config: &HttpConfig,
        secrets: &Secrets,
    ) -> Result<Self, DefinitionError> {
        let input = DefinedInput::load(&tool.input)?;
        let url = input.template("url", &config.url)?;
        let mut allow = Vec::new();
        for (at, rule) in config.allow.iter().enumerate() {
            let invalid = |error| DefinitionError::new(format!("allow[{at}]"), error);
            allow.push(rule.parse::<AllowRule>().map_err(invalid)?);
        }
        allow.extend(check_url(&url)?);
        let mut query = Vec::new();
        for (name, value) in &config.query {
            query.push((name.clone(), input.template(&format!("query.{name}"), value)?));
        }
        let headers = check_headers(&config.headers, &config.secret_headers)?;
        if let HttpBody::Text(name) = &config.body {
            input.check_name("body", name)?;
        }
        if config.pick.as_ref().is_some_and(|pick| !pick.is_empty() && !pick.starts_with('/')) {
            let message = "must be a JSON pointer such as \"/data/id\"";
            return Err(DefinitionError::new("pick", message));
        }
        let idempotency_header = header_name("idempotency_header", &config.idempotency_header)?;
        let client = HttpClient::new(allow, CONNECT_TIMEOUT, system_lookup(), &config.proxy);
        Ok(Self {
            name: name.to_owned(),
            description: tool.description.clone(),
            input,
            client: client.map_err(|error| DefinitionError::new("kind", error))?,
            method: method(config.method),
            config: config.clone(),
            url,
            query,
            headers,
            idempotency_header,
            secrets: secrets.clone(),
        })
    }

    /// Returns the URL of a call.
    fn call_url(&self, arguments: &Map<String, Value>) -> Result<Url, ToolError> {
        let text = self.url.render_encoded(arguments);
        let text = text.map_err(|error| ToolError::new(error).permanent())?;
        let Some(text) = text else {
            let is_absent = |name: &&str| arguments.get(*name).is_none_or(Value::is_null);
            let absent: Vec<&str> = self.url.names().filter(is_absent).collect();
            let message = format!("the URL needs the argument {}", absent.join(", "));
            return Err(ToolError::new(message).permanent());
        };
        let mut url = Url::parse(&text)
            .map_err(|error| HttpError::InvalidUrl(error.to_string()).into_tool_error())?;
        for (name, value) in &self.query {
            for value in value.render_list(arguments) {
                url.query_pairs_mut().append_pair(name, &value);
            }
        }
        if url.as_str().len() > URL_BYTES_MAX {
            return Err(HttpError::UrlTooLong(url.as_str().len()).into_tool_error());
        }
        Ok(url)
    }

    /// Returns the media type and the text of the request's body, if it has one.
    fn call_body(&self, arguments: &Map<String, Value>) -> Option<(&'static str, String)> {
        match &self.config.body {
            HttpBody::None => None,
            HttpBody::Text(name) => {
                let value = arguments.get(name).filter(|value| !value.is_null())?;
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                Some(("text/plain; charset=utf-8", text))
            }
            HttpBody::Json => {
                let queries = self.query.iter().flat_map(|(_, value)| value.names());
                let used: BTreeSet<&str> = self.url.names().chain(queries).collect();
                let mut members = arguments.clone();
                members.retain(|name, _| !used.contains(name.as_str()));
                Some(("application/json", Value::from(members).to_string()))
            }
        }
    }

    /// Sends the request. Follows the redirects of a GET request; another origin receives neither the
    /// configured headers nor the idempotency key.
    async fn send(
        &self,
        mut url: Url,
        body: Option<(&'static str, String)>,
        trace: HeaderMap,
        mut headers: HeaderMap,
    ) -> Result<Response, HttpError> {
        for redirects in 0..=REDIRECTS_MAX {
            let sent = self.send_once(&url, body.clone(), &trace, &headers).await;
            let response = match sent {
                // The first server has received a request, and may have acted.
                Err(error) if redirects > 0 => {
                    return Err(HttpError::Redirected(
                        quoted_excerpt(url.as_str()),
                        Box::new(error),
                    ));
                }
                sent => sent?,
            };
            if self.method != Method::GET || self.is_ok(response.status().as_u16()) {
                return Ok(response);
            }
            let Some(next) = redirect(&url, &response)? else { return Ok(response) };
            if next.origin() != url.origin() {
                headers = HeaderMap::new();
            }
            url = next;
        }
        Err(HttpError::TooManyRedirects(REDIRECTS_MAX))
    }

    async fn send_once(
        &self,
        url: &Url,
        body: Option<(&'static str, String)>,
        trace: &HeaderMap,
        headers: &HeaderMap,
    ) -> Result<Response, HttpError> {
        let client = self.client.reachable_client_for(url).await?;
        let request = client.request(self.method.clone(), url.clone());
        let request = with_body(request, body, headers).headers(headers.clone());
        Ok(request.headers(trace.clone()).send().await?)
    }

    fn is_ok(&self, status: u16) -> bool {
        match self.config.ok_status.as_slice() {
            [] => (200..300).contains(&status),
            listed => listed.contains(&status),
        }
    }

    /// Makes the result of a response. Redacts what it cuts, because afterwards a part of a secret would
    /// not be found.
    async fn result(&self, response: Response, has_effects: bool) -> Result<ToolOutput, ToolError> {
        let secrets = &self.secrets;
        let status = response.status();
        let wait = {
            let header = |name: &str| response.headers().get(name)?.to_str().ok();
            retry_after(header, SystemTime::now())
        };
        let location = response.headers().get(LOCATION).filter(|_| status.is_redirection());
        let location = location.map(|to| {
            let to = String::from_utf8_lossy(to.as_bytes());
            quoted_excerpt(&secrets.redact(&to))
        });
        let body = LimitedBody::read(response, BODY_BYTES_MAX).await;
        let body = body.map_err(|error| failure(error, has_effects))?;
        if !self.is_ok(status.as_u16()) {
            let mut message = format!("HTTP {}", status_line(status));
            if let Some(location) = location {
                message.push_str(&format!(", redirects to {location}"));
            }
            let body = excerpt(&body.redacted_text(secrets), QUOTED_CHARS_MAX);
            let error = ToolError::new(format!("{message}\n{body}"));
            let error = error.with_kind(FailureKind::HttpStatus);
            return Err(match (status.as_u16(), wait) {
                (429, wait) => error.retry_after(wait.unwrap_or(BUSY_WAIT)),
                (408 | 500.., None) => error,
                (408 | 500.., Some(wait)) => error.retry_after(wait),
                _ => error.permanent(),
            });
        }
        let Some(pointer) = &self.config.pick else {
            return Ok(body.redacted_text(secrets).into());
        };
        let bytes = match &body {
            LimitedBody::Text { bytes, is_complete: true, .. } => bytes,
            LimitedBody::Text { .. } => {
                return Err(ToolError::new("the answer is longer than 1 MiB"));
            }
            LimitedBody::Unreadable { .. } => {
                return Err(ToolError::new(body.redacted_text(secrets)));
            }
        };
        let mut answer: Value = serde_json::from_slice(bytes)
            .map_err(|error| ToolError::new(format!("the answer is not JSON: {error}")))?;
        match answer.pointer_mut(pointer).map(Value::take) {
            Some(Value::String(text)) => Ok(text.into()),
            Some(value) => Ok(ToolOutput::default().with_structured(value)),
            None => Err(ToolError::new(format!("the answer has nothing at {pointer}"))),
        }
    }
}

#[async_trait]
impl Tool for HttpTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec::with_schema(&self.name, &self.description, self.input.schema().clone())
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let arguments = self.input.with_defaults(context.arguments());
        let url = self.call_url(&arguments)?;
        let body = self.call_body(&arguments);
        let mut headers = read_secret_headers(&self.config.secret_headers, &self.secrets).await?;
        headers.extend(self.headers.clone());
        let has_effects = context.effect() == ToolEffect::Some;
        if has_effects {
            // Keys contain only characters that are valid in a header. Replaces a configured header of this name.
            if let Ok(key) = HeaderValue::from_str(context.idempotency_key()) {
                headers.insert(self.idempotency_header.clone(), key);
            }
        }
        let exchange = async {
            let sent = self.send(url, body, trace_headers(&context), headers).await;
            // The error may quote the target of a redirect, cut within a secret.
            let redact = |text: String| self.secrets.redact_excerpts(&text);
            let response = sent.map_err(|error| failure(error, has_effects).map_message(redact))?;
            self.result(response, has_effects).await
        };
        let result = tokio::select! {
            result = exchange => result,
            () = context.cancelled() => Err(failure(HttpError::Cancelled, has_effects)),
        };
        redacted(result, &self.secrets)
    }
}

/// Returns the error of an exchange that failed, for the model.
fn failure(error: HttpError, has_effects: bool) -> ToolError {
    let may_have_acted = has_effects && !error.is_unsent();
    let error = error.into_tool_error();
    if !may_have_acted {
        return error;
    }
    error.map_message(|message| format!("{message}; the server may have acted on the request"))
}

fn method(method: HttpMethod) -> Method {
    match method {
        HttpMethod::Get => Method::GET,
        HttpMethod::Post => Method::POST,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Patch => Method::PATCH,
        HttpMethod::Delete => Method::DELETE,
    }
}

fn with_body(
    request: RequestBuilder,
    body: Option<(&'static str, String)>,
    headers: &HeaderMap,
) -> RequestBuilder {
    let Some((media_type, text)) = body else { return request };
    // A configured media type replaces the one of the body.
    let request = match headers.contains_key(CONTENT_TYPE) {
        true => request,
        false => request.header(CONTENT_TYPE, media_type),
    };
    request.body(text)
}

/// Checks configured headers. Returns those whose values are not secret.
pub(super) fn check_headers(
    configured: &BTreeMap<String, String>,
    secret: &BTreeMap<String, SecretSource>,
) -> Result<HeaderMap, DefinitionError> {
    let mut headers = HeaderMap::new();
    for (name, value) in configured {
        let key = format!("headers.{name}");
        let value = HeaderValue::from_str(value)
            .map_err(|_| DefinitionError::new(&key, "has a character that a header cannot have"))?;
        headers.insert(header_name(&key, name)?, value);
    }
    for (name, source) in secret {
        let table = match source {
            SecretSource::Variable(_) => "secret_headers",
            SecretSource::File(_) => "secret_files",
        };
        header_name(&format!("{table}.{name}"), name)?;
    }
    Ok(headers)
}

/// Reads the present values of secret headers, and adds them to the secrets of the host.
///
/// # Errors
/// If a value cannot be read, or is not the value of a header.
pub(super) async fn read_secret_headers(
    sources: &BTreeMap<String, SecretSource>,
    secrets: &Secrets,
) -> Result<HeaderMap, ToolError> {
    let mut headers = HeaderMap::new();
    for (name, source) in sources {
        let value = read_secret(source, secrets).await.map_err(ToolError::new)?;
        let Ok(mut header) = HeaderValue::from_str(&value) else {
            let message = format!("{source} is not a header's value");
            return Err(ToolError::new(message));
        };
        header.set_sensitive(true);
        headers.extend(HeaderName::from_bytes(name.as_bytes()).ok().map(|name| (name, header)));
    }
    Ok(headers)
}

/// Reads a secret, and adds it to the secrets of the host.
///
/// # Errors
/// If it cannot be read.
pub(super) async fn read_secret(
    source: &SecretSource,
    secrets: &Secrets,
) -> Result<String, InvalidValue> {
    let place = source.clone();
    let value = match source {
        SecretSource::Variable(_) => place.read(),
        // A file may lie on a slow or broken file system.
        SecretSource::File(_) => match tokio::task::spawn_blocking(move || place.read()).await {
            Ok(value) => value,
            Err(_) => Err(InvalidValue::new("the host shuts down")),
        },
    }?;
    for value in with_last_word(&value) {
        secrets.add_value_of(&source.to_string(), value);
    }
    Ok(value)
}

/// Parses the name of a configured header. `key` is the configuration key.
fn header_name(key: &str, name: &str) -> Result<HeaderName, DefinitionError> {
    let parsed = HeaderName::from_bytes(name.as_bytes());
    let parsed = parsed
        .map_err(|_| DefinitionError::new(key, format!("{name:?} is not the name of a header")))?;
    if FORBIDDEN_HEADERS.contains(&parsed) {
        let message = format!("{name} belongs to the connection and cannot be set");
        return Err(DefinitionError::new(key, message));
    }
    Ok(parsed)
}

/// Checks the URL of a tool. Returns the rule that allows its host, if neither host nor port has a placeholder.
fn check_url(url: &Template) -> Result<Option<AllowRule>, DefinitionError> {
    let prefix = url.literal_prefix();
    check_scheme(prefix)?;
    let placeholders = url.names().map(|name| (name.to_owned(), Value::from("x"))).collect();
    let parsed = parse_url(&url.render(&placeholders).unwrap_or_default())?;
    let host = prefix.split_once("://").map_or("", |(_, rest)| rest);
    if url.as_literal().is_none() && !host.contains(['/', '?', '#']) {
        return Ok(None);
    }
    host_rule(&parsed).map(Some)
}

fn check_scheme(url: &str) -> Result<(), DefinitionError> {
    if url.starts_with("http://") || url.starts_with("https://") {
        return Ok(());
    }
    Err(DefinitionError::new("url", "must begin with http:// or https://"))
}

/// Returns the parsed URL of a configured service, and a client that may connect to its host, to the targets in
/// `allow` and to public addresses, all through its proxy. It follows redirects by this policy, which must not leave the origin.
pub(super) fn service_client(
    service: &ServiceConfig,
    redirects: fn() -> Policy,
) -> Result<(Url, HttpClient), DefinitionError> {
    let url = parse_url(&service.url)?;
    // The host of the URL is the operator's choice.
    let mut rules = vec![host_rule(&url)?];
    for (at, rule) in service.allow.iter().enumerate() {
        let invalid = |error| DefinitionError::new(format!("allow[{at}]"), error);
        rules.push(rule.parse::<AllowRule>().map_err(invalid)?);
    }
    let (lookup, proxy) = (system_lookup(), &service.proxy);
    let client = HttpClient::with_redirects(rules, CONNECT_TIMEOUT, lookup, proxy, redirects);
    let client = client.map_err(|error| DefinitionError::new("url", error))?;
    Ok((url, client))
}

/// Parses a configured URL.
fn parse_url(url: &str) -> Result<Url, DefinitionError> {
    check_scheme(url)?;
    let parsed = Url::parse(url).map_err(|error| DefinitionError::new("url", error))?;
    if !parsed.username().is_empty() || parsed.password().is_some() {
        let message = "must not contain a user name or password: use secret_headers";
        return Err(DefinitionError::new("url", message));
    }
    Ok(parsed)
}

/// Returns the rule that allows the host of a configured URL.
fn host_rule(url: &Url) -> Result<AllowRule, DefinitionError> {
    let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
        return Err(DefinitionError::new("url", "must have a host"));
    };
    format!("{host}:{port}").parse().map_err(|error| DefinitionError::new("url", error))
}
