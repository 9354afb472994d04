//! `http_get {url}`: fetches a text document from the public internet.
//!
//! The model chooses the URL, so the tool must prevent requests to targets that only the host can
//! reach: its own ports, its local network, its cloud's metadata service (server-side request
//! forgery). Every hop is checked at the address that is connected to: a literal address before the
//! request; a host name in the resolver, which returns only allowed addresses. Redirects are
//! followed here, so that each hop is checked. Proxies are not used, because a proxy would resolve
//! names itself.

mod allow_rule;
mod resolver;
mod response;
mod special_addresses;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Client, Response, Url};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::timeout;

pub use allow_rule::{AllowRule, InvalidAllowRule};
pub use resolver::DnsLookup;

use self::resolver::{AddressPolicy, NoPublicAddress, Resolver};
use crate::config::ToolEffect;
use crate::tool::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use crate::types::{TRACEPARENT, TRACESTATE};

/// Maximum length of a URL.
const URL_BYTES_MAX: usize = 8 << 10;

/// The header by which a server recognises a repeated call.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Limits of `http_get` and its allowed private targets.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpGetOptions {
    /// Targets that may be reached although they are not public.
    pub allow: Vec<AllowRule>,
    /// Maximum number of body bytes that are read; the rest is cut.
    pub body_bytes_max: usize,
    /// Maximum number of redirects that are followed.
    pub redirects_max: usize,
    /// Time limit of DNS lookup, connect and TLS handshake.
    pub connect_timeout: Duration,
    /// Time limit of a call with all its redirects.
    pub total_timeout: Duration,
}

impl Default for HttpGetOptions {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            body_bytes_max: 256 << 10,
            redirects_max: 5,
            connect_timeout: Duration::from_secs(5),
            total_timeout: Duration::from_secs(20),
        }
    }
}

/// Fetches text by HTTP. Has effects, because the server sees the request, and is idempotent: every
/// request of a call carries the call's `Idempotency-Key`, unless the configuration declares that
/// the tool has no effects.
pub struct HttpGet {
    options: HttpGetOptions,
    /// The client for all other hosts; connects only to public and allowed addresses.
    restricted: Client,
    /// The client for hosts that are allowed by name; connects to any address.
    unrestricted: Client,
}

impl HttpGet {
    /// Makes the tool with the system's DNS lookup.
    ///
    /// # Errors
    /// If the HTTP client cannot be built.
    pub fn new(options: HttpGetOptions) -> Result<Self, HttpClientError> {
        Self::with_dns_lookup(options, resolver::system_lookup())
    }

    /// Makes the tool with another DNS lookup. The addresses that it returns are checked as well.
    ///
    /// # Errors
    /// If the HTTP client cannot be built.
    pub fn with_dns_lookup(
        options: HttpGetOptions,
        lookup: DnsLookup,
    ) -> Result<Self, HttpClientError> {
        let client = |policy| {
            let resolver = Arc::new(Resolver::new(Arc::clone(&lookup), policy));
            let settings = Client::builder()
                .no_proxy()
                .redirect(reqwest::redirect::Policy::none())
                .dns_resolver(resolver)
                .connect_timeout(options.connect_timeout)
                .user_agent(concat!("callsheet/", env!("CARGO_PKG_VERSION")))
                .default_headers(accept_headers())
                // No connection stays open after the call.
                .pool_max_idle_per_host(0);
            crate::tls::client(settings)
        };
        let restricted = AddressPolicy::PublicOrAllowed(options.allow.clone());
        let restricted = client(restricted).map_err(HttpClientError)?;
        let unrestricted = client(AddressPolicy::Any).map_err(HttpClientError)?;
        Ok(Self { options, restricted, unrestricted })
    }

    async fn get(&self, url: &str, headers: &HeaderMap) -> Result<String, GetError> {
        if url.len() > URL_BYTES_MAX {
            return Err(GetError::UrlTooLong(url.len()));
        }
        let mut url = Url::parse(url).map_err(|e| GetError::InvalidUrl(e.to_string()))?;
        let mut response = self.send(&url, headers).await?;
        for _ in 0..self.options.redirects_max {
            let Some(next) = redirect(&url, &response)? else {
                return response::read(response, self.options.body_bytes_max).await;
            };
            let redirected =
                |e| GetError::Redirected(response::shorten(next.as_str()), Box::new(e));
            response = self.send(&next, headers).await.map_err(redirected)?;
            url = next;
        }
        match redirect(&url, &response)? {
            Some(_) => Err(GetError::TooManyRedirects(self.options.redirects_max)),
            None => response::read(response, self.options.body_bytes_max).await,
        }
    }

    async fn send(&self, url: &Url, headers: &HeaderMap) -> Result<Response, GetError> {
        let request = self.client_for(url)?.get(url.clone()).headers(headers.clone());
        request.send().await.map_err(GetError::from)
    }

    /// Chooses the client for the URL's host. Refuses URLs that must not be fetched, and literal
    /// addresses that are not allowed.
    fn client_for(&self, url: &Url) -> Result<&Client, GetError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(GetError::Scheme(response::shorten(url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(GetError::Credentials);
        }
        let host =
            url.host_str().ok_or_else(|| GetError::InvalidUrl("it has no host".to_owned()))?;
        if self.options.allow.iter().any(|rule| rule.allows_host(url)) {
            return Ok(&self.unrestricted);
        }
        // A literal address is never resolved. The URL parser has normalised its spelling
        // (2130706433 and 0x7f.1 are 127.0.0.1).
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match literal.ok().and_then(|address| Some((address, self.forbidden_kind(address)?))) {
            Some((address, kind)) => Err(GetError::ForbiddenAddress { address, kind }),
            None => Ok(&self.restricted),
        }
    }

    /// Returns the kind of an address that must not be reached.
    fn forbidden_kind(&self, address: IpAddr) -> Option<&'static str> {
        let allowed = self.options.allow.iter().any(|rule| rule.allows_address(address));
        special_addresses::special_kind(address).filter(|_| !allowed)
    }
}

impl fmt::Debug for HttpGet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpGet").field("options", &self.options).finish_non_exhaustive()
    }
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct HttpGetInput {
    /// The URL; it starts with `http://` or `https://`.
    url: String,
}

#[async_trait]
impl Tool for HttpGet {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<HttpGetInput>(
            "http_get",
            "Fetches a text document (a web page, JSON, plain text) by HTTP GET from the public \
             internet and returns its status, content type and body.",
        )
        .idempotent()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let HttpGetInput { url } = context.input()?;
        let limit = self.options.total_timeout;
        let headers = call_headers(&context);
        let fetched = tokio::select! {
            fetched = timeout(limit, self.get(&url, &headers)) => fetched.unwrap_or(Err(GetError::TimedOut(limit))),
            () = context.cancelled() => Err(GetError::Cancelled),
        };
        fetched.map(ToolOutput::from).map_err(ToolError::new)
    }
}

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HttpClientError(crate::tls::TlsClientError);

/// The reason why nothing was fetched.
#[derive(Debug, thiserror::Error)]
enum GetError {
    #[error("the URL has {0} bytes; at most {URL_BYTES_MAX} are allowed")]
    UrlTooLong(usize),
    #[error("invalid URL: {0}")]
    InvalidUrl(String),
    #[error("only http and https URLs can be fetched, not {0:?}")]
    Scheme(String),
    #[error("the URL must not contain a user name or password")]
    Credentials,
    #[error("refused: {address} is {kind}, and only public addresses can be fetched")]
    ForbiddenAddress { address: IpAddr, kind: &'static str },
    #[error("refused: {0}")]
    NoPublicAddress(NoPublicAddress),
    #[error("redirected to {0}: {1}")]
    Redirected(String, Box<Self>),
    #[error("redirected more than {0} times")]
    TooManyRedirects(usize),
    #[error("the request did not finish within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    #[error("cancelled")]
    Cancelled,
    #[error("{0}")]
    Transport(String),
}

impl From<reqwest::Error> for GetError {
    /// Reports the root cause and the operation that failed.
    fn from(error: reqwest::Error) -> Self {
        let operation = match (error.is_timeout(), error.is_connect(), error.is_body()) {
            (true, _, _) => "timed out",
            (false, true, _) => "failed to connect",
            (false, false, true) => "failed to read the body",
            (false, false, false) => "the request failed",
        };
        let mut deepest: &(dyn std::error::Error + 'static) = &error;
        loop {
            if let Some(refused) = deepest.downcast_ref::<NoPublicAddress>() {
                return Self::NoPublicAddress(refused.clone());
            }
            let Some(source) = deepest.source() else { break };
            deepest = source;
        }
        // The message of `reqwest::Error` itself only repeats the URL.
        match deepest.is::<reqwest::Error>() {
            true => Self::Transport(operation.to_owned()),
            false => Self::Transport(format!("{operation}: {deepest}")),
        }
    }
}

/// Returns the target of a redirect, if the response is one.
fn redirect(url: &Url, response: &Response) -> Result<Option<Url>, GetError> {
    let redirects = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|_| redirects) else {
        return Ok(None);
    };
    let location = String::from_utf8_lossy(location.as_bytes());
    if location.len() > URL_BYTES_MAX {
        return Err(GetError::UrlTooLong(location.len()));
    }
    let next = url.join(&location);
    next.map(Some).map_err(|e| {
        let invalid = GetError::InvalidUrl(e.to_string());
        GetError::Redirected(response::shorten(&location), Box::new(invalid))
    })
}

/// Returns the headers that are sent with every request of a call: idempotency key and trace.
fn call_headers(context: &ToolContext) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut insert = |name, value: &str| {
        // Keys and trace headers contain only characters that are valid in a header.
        headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
    };
    match context.effect() {
        ToolEffect::Some => insert(IDEMPOTENCY_KEY, context.idempotency_key()),
        ToolEffect::None => {}
    }
    if let Some(trace) = context.trace() {
        insert(HeaderName::from_static(TRACEPARENT), &trace.traceparent());
        if let Some(state) = trace.tracestate() {
            insert(HeaderName::from_static(TRACESTATE), state);
        }
    }
    headers
}

fn accept_headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    let text = "text/*, application/json, application/xml;q=0.9, */*;q=0.5";
    headers.insert(ACCEPT, HeaderValue::from_static(text));
    // A small compressed body could expand to a very large one.
    headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    headers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(allow: &[&str]) -> HttpGet {
        let allow = allow.iter().map(|rule| rule.parse().unwrap()).collect();
        HttpGet::new(HttpGetOptions { allow, ..HttpGetOptions::default() }).unwrap()
    }

    /// Returns the error of a URL that is refused before any request.
    fn refused(tool: &HttpGet, url: &str) -> Option<String> {
        let url = Url::parse(url).unwrap_or_else(|e| panic!("{url}: {e}"));
        tool.client_for(&url).err().map(|e| e.to_string())
    }

    #[test]
    fn literal_addresses_are_refused_in_every_spelling() {
        let tool = tool(&[]);
        for (url, expect) in [
            ("http://127.0.0.1/", "127.0.0.1 is a loopback address"),
            ("http://127.0.0.1.:80/", "127.0.0.1 is a loopback address"),
            ("http://2130706433/", "127.0.0.1 is a loopback address"),
            ("http://0x7f.1/", "127.0.0.1 is a loopback address"),
            ("http://0177.0.0.1/", "127.0.0.1 is a loopback address"),
            ("http://127.1/", "127.0.0.1 is a loopback address"),
            ("http://%31%32%37.0.0.1/", "127.0.0.1 is a loopback address"),
            ("http://１２７.0.0.1/", "127.0.0.1 is a loopback address"),
            ("http://127。0。0。1/", "127.0.0.1 is a loopback address"),
            ("http:\\\\127.0.0.1\\", "127.0.0.1 is a loopback address"),
            ("http://0/", "0.0.0.0 is an address of this host"),
            ("http://[::1]:8080/", "::1 is a loopback address"),
            ("http://[::ffff:127.0.0.1]/", "::ffff:127.0.0.1 is a loopback address"),
            ("http://[::ffff:a9fe:a9fe]/", "::ffff:169.254.169.254 is a link-local address"),
            ("http://[64:ff9b::10.0.0.1]/", "64:ff9b::a00:1 is a private address"),
            ("https://169.254.169.254/latest/meta-data/", "169.254.169.254 is a link-local"),
            ("http://192.168.1.1/", "192.168.1.1 is a private address"),
        ] {
            let reason = refused(&tool, url).unwrap_or_else(|| panic!("{url} is not refused"));
            assert!(reason.starts_with("refused: ") && reason.contains(expect), "{url}: {reason}");
        }
        assert_eq!(refused(&tool, "http://1.1.1.1/"), None);
        assert_eq!(refused(&tool, "https://[2606:4700::1]/"), None);
        assert_eq!(refused(&tool, "https://example.com/"), None);
    }

    #[test]
    fn only_http_urls_without_credentials_are_allowed() {
        let tool = tool(&[]);
        for (url, expect) in [
            ("file:///etc/passwd", "not \"file\""),
            ("ftp://example.com/", "not \"ftp\""),
            ("data:text/plain,hi", "not \"data\""),
            ("http://user@example.com/", "user name or password"),
            ("http://:secret@example.com/", "user name or password"),
        ] {
            let reason = refused(&tool, url).unwrap();
            assert!(reason.contains(expect), "{url}: {reason}");
        }
    }

    #[test]
    fn allow_rules_allow_only_what_they_match() {
        let tool = tool(&["127.0.0.1:8080", "10.0.0.0/8", "intranet:80"]);
        assert_eq!(refused(&tool, "http://127.0.0.1:8080/"), None);
        assert!(refused(&tool, "http://127.0.0.1:8081/").is_some());
        assert!(refused(&tool, "http://[::ffff:127.0.0.1]:8080/").is_some());
        assert_eq!(refused(&tool, "http://10.1.2.3:9/"), None);
        assert_eq!(refused(&tool, "http://[::ffff:10.1.2.3]:9/"), None);
        assert!(refused(&tool, "http://11.1.2.3:9/").is_none());
        assert!(refused(&tool, "http://172.16.0.1/").is_some());
        let client = |url: &str| tool.client_for(&Url::parse(url).unwrap()).unwrap() as *const _;
        assert!(std::ptr::eq(client("http://intranet/"), &raw const tool.unrestricted));
        assert!(std::ptr::eq(client("http://intranet:81/"), &raw const tool.restricted));
    }
}
