//! `http_get {url}`: a page from the public internet.
//!
//! The model chooses the URL, so the host must not be talked into reading what only it can reach:
//! its own ports, its neighbours, the metadata of its cloud. Each hop is checked at the address
//! that is connected to: a literal address before the request, a name in the resolver, which hands
//! on only allowed addresses, and the connection is made to one of these. Redirects are followed
//! here, one checked hop after the other. No proxy is used, for it would resolve names itself.

mod address;
mod allow;
mod answer;
mod resolver;

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

pub use allow::{AllowRule, InvalidAllowRule};
pub use resolver::DnsLookup;

use self::resolver::{AddressPolicy, NoPublicAddress, Resolver};
use super::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use crate::config::ToolEffect;
use crate::types::{TRACEPARENT, TRACESTATE};

/// The longest URL, in bytes.
const URL_BYTES_MAX: usize = 8 << 10;

/// By what a server knows a call that it has answered already.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What `http_get` may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpGetOptions {
    /// What is allowed although it is not public.
    pub allow: Vec<AllowRule>,
    /// How much of a body is read; the rest is left unread.
    pub body_bytes_max: usize,
    /// How many redirects are followed.
    pub redirects_max: usize,
    /// How long finding and reaching a host may take, TLS included.
    pub connect_timeout: Duration,
    /// How long a call may take, with all its redirects.
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

/// Fetches text by HTTP. It has effects (a server notices), and may be repeated: every request of a
/// call brings the call's `Idempotency-Key`, unless the configuration says that it has no effects.
pub struct HttpGet {
    options: HttpGetOptions,
    /// For all hosts: reaches public and allowed addresses only.
    public: Client,
    /// For hosts that are allowed by name: reaches whatever addresses they have.
    trusting: Client,
}

impl HttpGet {
    /// Makes the tool; names are looked up by the system.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn new(options: HttpGetOptions) -> Result<Self, reqwest::Error> {
        Self::with_dns_lookup(options, resolver::system())
    }

    /// Makes the tool; names are looked up by `lookup`, whose answers are checked just the same.
    ///
    /// # Errors
    /// When no HTTP client can be made.
    pub fn with_dns_lookup(
        options: HttpGetOptions,
        lookup: DnsLookup,
    ) -> Result<Self, reqwest::Error> {
        let client = |admission| {
            let resolver = Arc::new(Resolver::new(Arc::clone(&lookup), admission));
            crate::tls::client(|| {
                Client::builder()
                    .no_proxy()
                    .redirect(reqwest::redirect::Policy::none())
                    .dns_resolver(Arc::clone(&resolver))
                    .connect_timeout(options.connect_timeout)
                    .user_agent(concat!("callsheet/", env!("CARGO_PKG_VERSION")))
                    .default_headers(headers())
                    // A connection serves one request: none is left behind by a call.
                    .pool_max_idle_per_host(0)
            })
        };
        let public = client(AddressPolicy::PublicOr(options.allow.clone()))?;
        let trusting = client(AddressPolicy::All)?;
        Ok(Self { options, public, trusting })
    }

    async fn get(&self, url: &str, with: &HeaderMap) -> Result<String, GetError> {
        if url.len() > URL_BYTES_MAX {
            return Err(GetError::UrlTooLong(url.len()));
        }
        let mut url = Url::parse(url).map_err(|e| GetError::BadUrl(e.to_string()))?;
        let mut hop = self.send(&url, with).await?;
        for _ in 0..self.options.redirects_max {
            let Some(next) = redirect(&url, &hop)? else {
                return answer::read(hop, self.options.body_bytes_max).await;
            };
            let redirected = |e| GetError::Redirected(answer::shorten(next.as_str()), Box::new(e));
            hop = self.send(&next, with).await.map_err(redirected)?;
            url = next;
        }
        match redirect(&url, &hop)? {
            Some(_) => Err(GetError::TooManyRedirects(self.options.redirects_max)),
            None => answer::read(hop, self.options.body_bytes_max).await,
        }
    }

    async fn send(&self, url: &Url, with: &HeaderMap) -> Result<Response, GetError> {
        let request = self.client_for(url)?.get(url.clone()).headers(with.clone());
        request.send().await.map_err(GetError::from)
    }

    /// The client that may reach the URL's host, unless it is refused already.
    fn client_for(&self, url: &Url) -> Result<&Client, GetError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(GetError::Scheme(answer::shorten(url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(GetError::Credentials);
        }
        let host = url.host_str().ok_or_else(|| GetError::BadUrl("it has no host".to_owned()))?;
        if self.options.allow.iter().any(|rule| rule.allows_host(url)) {
            return Ok(&self.trusting);
        }
        // A literal address is never resolved. The URL parser has brought all its spellings
        // (2130706433, 0x7f.1) to one.
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match literal.ok().and_then(|address| Some((address, self.refusal(address)?))) {
            Some((address, what)) => Err(GetError::Refused { address, what }),
            None => Ok(&self.public),
        }
    }

    fn refusal(&self, address: IpAddr) -> Option<&'static str> {
        let allowed = self.options.allow.iter().any(|rule| rule.allows_address(address));
        address::special(address).filter(|_| !allowed)
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
    /// The URL, beginning with `http://` or `https://`.
    url: String,
}

#[async_trait]
impl Tool for HttpGet {
    fn spec(&self) -> ToolSpec {
        ToolSpec::new::<HttpGetInput>(
            "http_get",
            "Fetches a text document (a web page, JSON, plain text) by HTTP GET from the public \
             internet and answers its status, content type and body.",
        )
        .idempotent()
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let HttpGetInput { url } = context.input()?;
        let limit = self.options.total_timeout;
        let with = brought_along(&context);
        let got = tokio::select! {
            got = timeout(limit, self.get(&url, &with)) => got.unwrap_or(Err(GetError::TimedOut(limit))),
            () = context.cancelled() => Err(GetError::Cancelled),
        };
        got.map(ToolOutput).map_err(ToolError::new)
    }
}

/// Why nothing was fetched.
#[derive(Debug, thiserror::Error)]
enum GetError {
    #[error("the URL has {0} bytes; at most {URL_BYTES_MAX} are taken")]
    UrlTooLong(usize),
    #[error("no valid URL: {0}")]
    BadUrl(String),
    #[error("only http and https URLs can be fetched, not {0:?}")]
    Scheme(String),
    #[error("a URL must not hold a user name or password")]
    Credentials,
    #[error("refused: {address} is {what}, and only public addresses are fetched from")]
    Refused { address: IpAddr, what: &'static str },
    #[error("refused: {0}")]
    NoPublicAddress(NoPublicAddress),
    #[error("redirected to {0}: {1}")]
    Redirected(String, Box<Self>),
    #[error("redirected more than {0} times")]
    TooManyRedirects(usize),
    #[error("not fetched within {} s", .0.as_secs_f64())]
    TimedOut(Duration),
    #[error("cancelled")]
    Cancelled,
    #[error("{0}")]
    Transport(String),
}

impl From<reqwest::Error> for GetError {
    /// Tells the last cause, which says most, and what was being done.
    fn from(error: reqwest::Error) -> Self {
        let doing = match (error.is_timeout(), error.is_connect(), error.is_body()) {
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
        // reqwest's own text would only repeat the URL.
        match deepest.is::<reqwest::Error>() {
            true => Self::Transport(doing.to_owned()),
            false => Self::Transport(format!("{doing}: {deepest}")),
        }
    }
}

/// Where the response sends us, if it does.
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
        let bad = GetError::BadUrl(e.to_string());
        GetError::Redirected(answer::shorten(&location), Box::new(bad))
    })
}

/// What every request of a call brings along.
fn brought_along(context: &ToolContext) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut put = |name, value: &str| {
        // Neither keys nor traces have characters that no header may have.
        headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
    };
    match context.effect() {
        ToolEffect::Some => put(IDEMPOTENCY_KEY, context.idempotency_key()),
        ToolEffect::None => {}
    }
    if let Some(trace) = context.trace() {
        put(HeaderName::from_static(TRACEPARENT), &trace.traceparent());
        if let Some(state) = trace.tracestate() {
            put(HeaderName::from_static(TRACESTATE), state);
        }
    }
    headers
}

fn headers() -> HeaderMap {
    let mut headers = HeaderMap::new();
    let text = "text/*, application/json, application/xml;q=0.9, */*;q=0.5";
    headers.insert(ACCEPT, HeaderValue::from_static(text));
    // A small compressed body may be a very large one.
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

    /// Whether a URL is refused before anything is sent, and why.
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
            let why = refused(&tool, url).unwrap_or_else(|| panic!("{url} is not refused"));
            assert!(why.starts_with("refused: ") && why.contains(expect), "{url}: {why}");
        }
        assert_eq!(refused(&tool, "http://1.1.1.1/"), None);
        assert_eq!(refused(&tool, "https://[2606:4700::1]/"), None);
        assert_eq!(refused(&tool, "https://example.com/"), None);
    }

    #[test]
    fn only_plain_web_urls_are_fetched() {
        let tool = tool(&[]);
        for (url, expect) in [
            ("file:///etc/passwd", "not \"file\""),
            ("ftp://example.com/", "not \"ftp\""),
            ("data:text/plain,hi", "not \"data\""),
            ("http://user@example.com/", "user name or password"),
            ("http://:secret@example.com/", "user name or password"),
        ] {
            let why = refused(&tool, url).unwrap();
            assert!(why.contains(expect), "{url}: {why}");
        }
    }

    #[test]
    fn rules_allow_what_they_name_and_no_more() {
        let tool = tool(&["127.0.0.1:8080", "10.0.0.0/8", "intranet:80"]);
        assert_eq!(refused(&tool, "http://127.0.0.1:8080/"), None);
        assert!(refused(&tool, "http://127.0.0.1:8081/").is_some());
        assert!(refused(&tool, "http://[::ffff:127.0.0.1]:8080/").is_some());
        assert_eq!(refused(&tool, "http://10.1.2.3:9/"), None);
        assert_eq!(refused(&tool, "http://[::ffff:10.1.2.3]:9/"), None);
        assert!(refused(&tool, "http://11.1.2.3:9/").is_none());
        assert!(refused(&tool, "http://172.16.0.1/").is_some());
        let client = |url: &str| tool.client_for(&Url::parse(url).unwrap()).unwrap() as *const _;
        assert!(std::ptr::eq(client("http://intranet/"), &raw const tool.trusting));
        assert!(std::ptr::eq(client("http://intranet:81/"), &raw const tool.public));
    }
}
