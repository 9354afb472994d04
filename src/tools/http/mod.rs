//! HTTP requests of tools: to public addresses only, unless a rule allows others.
//!
//! A model chooses the URL or a part of it, so a tool must prevent requests to targets that only the host
//! can reach: its own ports, its local network, its cloud's metadata service
//! (server-side request forgery, SSRF). Every hop is checked at the address that is connected to: a literal
//! address before the request; a host name in the resolver, which returns only allowed addresses. A host that a
//! rule allows by name may have any address. The tools follow redirects themselves, so that each hop is checked.
//! A proxy resolves names itself. If there is one, the host looks a name up too, and refuses it if it finds an address
//! that must not be reached.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod.rs` | the client, its errors, redirects, and the headers of a call |
//! | `allow_rule.rs` | [`AllowRule`]: a host or network that is allowed although it is not public |
//! | `resolver.rs` | the DNS resolver, which returns only addresses that may be connected to |
//! | `special_addresses.rs` | the addresses that are not public |
//! | `response.rs` | the text of a response |

mod allow_rule;
mod resolver;
pub(crate) mod response;
mod special_addresses;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, ACCEPT_ENCODING, HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};

pub use allow_rule::{AllowRule, InvalidAllowRule};
pub use resolver::DnsLookup;
pub(crate) use resolver::system_lookup;

use super::{ToolContext, ToolError};
use callsheet_values::config::Proxy;
use callsheet_values::types::{FailureKind, TRACEPARENT, TRACESTATE};
use resolver::{AddressPolicy, NoPublicAddress, Resolver};

/// Maximum length of a URL.
pub(crate) const URL_BYTES_MAX: usize = 8 << 10;

/// Time limit of DNS lookup, connect and TLS handshake, by default.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of redirects that are followed, by default.
pub(crate) const REDIRECTS_MAX: usize = 5;

/// A client that connects only to public and allowed addresses.
pub(crate) struct HttpClient {
    allow: Vec<AllowRule>,
    direct: ClientPair,
    /// `None` if there is no proxy.
    proxied: Option<ClientPair>,
    lookup: DnsLookup,
}

struct ClientPair {
    /// The client for hosts that no rule allows by name; connects only to public and allowed addresses.
    restricted: Client,
    /// The client for hosts that are allowed by name; connects to any address.
    unrestricted: Client,
}

impl HttpClient {
    /// Makes a client that follows no redirects itself.
    ///
    /// # Errors
    /// If the HTTP client cannot be built.
    pub(crate) fn new(
        allow: Vec<AllowRule>,
        connect_timeout: Duration,
        lookup: DnsLookup,
        proxy: &Proxy,
    ) -> Result<Self, HttpClientError> {
        Self::with_redirects(allow, connect_timeout, lookup, proxy, Policy::none)
    }

    /// Makes a client that follows redirects by this policy. It must not leave the origin: the policy, unlike the
    /// callers of [`client_for`](Self::client_for), does not check where a redirect leads.
    ///
    /// # Errors
    /// If the HTTP client cannot be built.
    pub(crate) fn with_redirects(
        allow: Vec<AllowRule>,
        connect_timeout: Duration,
        lookup: DnsLookup,
        proxy: &Proxy,
        redirects: fn() -> Policy,
    ) -> Result<Self, HttpClientError> {
        let client = |policy, proxy: &Proxy| {
            let resolver = Arc::new(
                Resolver::new(Arc::clone(&lookup), policy).with_proxies(proxy_hosts(proxy)),
            );
            let settings = match proxy {
                Proxy::None => Client::builder().no_proxy(),
                Proxy::Environment => Client::builder(),
                Proxy::Url(url) => Client::builder().proxy(
                    reqwest::Proxy::all(url).map_err(|error| HttpClientError(error.into()))?,
                ),
            };
            let settings = settings
                .redirect(redirects())
                .dns_resolver(resolver)
                .connect_timeout(connect_timeout)
                .user_agent(concat!("callsheet/", env!("CARGO_PKG_VERSION")))
                .default_headers(accept_headers())
                // No connection stays open after the call.
                .pool_max_idle_per_host(0);
            crate::tls::client(settings).map_err(|error| HttpClientError(error.into()))
        };
        let pair = |proxy: &Proxy| {
            Ok(ClientPair {
                restricted: client(AddressPolicy::PublicOrAllowed(allow.clone()), proxy)?,
                unrestricted: client(AddressPolicy::Any, proxy)?,
            })
        };
        let proxied = (*proxy != Proxy::None).then(|| pair(proxy)).transpose()?;
        Ok(Self { direct: pair(&Proxy::None)?, proxied, allow, lookup })
    }

    /// As [`client_for`](Self::client_for). Refuses a host that only a proxy will look up, and that has an address which
    /// must not be reached. If the host finds none, the proxy decides.
    pub(crate) async fn reachable_client_for(&self, url: &Url) -> Result<&Client, HttpError> {
        let client = self.client_for(url)?;
        let is_restricted = self
            .proxied
            .as_ref()
            .is_some_and(|pair| std::ptr::eq(client, &raw const pair.restricted));
        if is_restricted && let Some(host) = url.domain() {
            let found = (self.lookup)(host.to_owned()).await.unwrap_or_default();
            if found.into_iter().any(|address| self.forbidden_kind(address).is_some()) {
                return Err(HttpError::NoPublicAddress(NoPublicAddress::new(host)));
            }
        }
        Ok(client)
    }

    /// Chooses the client for the URL's host. Refuses URLs that must not be fetched, and literal
    /// addresses that are not allowed.
    pub(crate) fn client_for(&self, url: &Url) -> Result<&Client, HttpError> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(HttpError::Scheme(response::quoted_excerpt(url.scheme())));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(HttpError::Credentials);
        }
        let host =
            url.host_str().ok_or_else(|| HttpError::InvalidUrl("it has no host".to_owned()))?;
        let proxied = self.proxied.as_ref().filter(|_| !crate::tls::is_loopback(url));
        let clients = proxied.unwrap_or(&self.direct);
        if self.allow.iter().any(|rule| rule.allows_host(url)) {
            return Ok(&clients.unrestricted);
        }
        // A literal address is never resolved. The URL parser has normalised its spelling
        // (2130706433 and 0x7f.1 are 127.0.0.1).
        let literal = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        match literal.ok().and_then(|address| Some((address, self.forbidden_kind(address)?))) {
            Some((address, kind)) => Err(HttpError::ForbiddenAddress { address, kind }),
            None => Ok(&clients.restricted),
        }
    }

    /// Returns the kind of an address that must not be reached.
    fn forbidden_kind(&self, address: IpAddr) -> Option<&'static str> {
        let allowed = self.allow.iter().any(|rule| rule.allows_address(address));
        special_addresses::special_kind(address).filter(|_| !allowed)
    }
}

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient").field("allow", &self.allow).finish_non_exhaustive()
    }
}

/// Returns the names of the proxies, to which clients connect whatever their addresses are.
fn proxy_hosts(proxy: &Proxy) -> Vec<String> {
    let urls = match proxy {
        Proxy::None => Vec::new(),
        Proxy::Url(url) => vec![url.clone()],
        Proxy::Environment => {
            let names = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
            let names = names.iter().flat_map(|name| [(*name).to_owned(), name.to_lowercase()]);
            names.filter_map(|name| std::env::var(name).ok()).collect()
        }
    };
    let hosts = urls.iter().filter_map(|url| {
        let parsed = Url::parse(url).ok().filter(Url::has_host);
        // A variable may hold no scheme.
        let parsed = parsed.or_else(|| Url::parse(&format!("http://{url}")).ok())?;
        parsed.host_str().map(str::to_owned)
    });
    hosts.collect()
}

/// The HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct HttpClientError(Box<dyn std::error::Error + Send + Sync>);

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpError {
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
    /// No connection, so nothing was sent.
    #[error("{0}")]
    Connect(String),
    #[error("{0}")]
    Transport(String),
}

impl HttpError {
    /// Returns whether the server certainly did not receive the request.
    pub(crate) fn is_unsent(&self) -> bool {
        match self {
            Self::UrlTooLong(_)
            | Self::InvalidUrl(_)
            | Self::Scheme(_)
            | Self::Credentials
            | Self::ForbiddenAddress { .. }
            | Self::NoPublicAddress(_)
            | Self::Connect(_) => true,
            Self::Redirected(..)
            | Self::TooManyRedirects(_)
            | Self::TimedOut(_)
            | Self::Cancelled
            | Self::Transport(_) => false,
        }
    }

    /// Returns whether the URL of the request, or the target of a redirect, is refused.
    fn is_refused(&self) -> bool {
        if let Self::Redirected(_, error) = self {
            return error.is_refused();
        }
        self.is_unsent() && !matches!(self, Self::Connect(_))
    }

    /// Returns the error for the model. A URL that is refused would be refused again. A request without a
    /// connection was not sent.
    pub(crate) fn into_tool_error(self) -> ToolError {
        if self.is_refused() {
            ToolError::new(self).permanent()
        } else if self.is_unsent() {
            ToolError::new(self).with_kind(FailureKind::NotSent)
        } else {
            ToolError::new(self)
        }
    }
}

impl From<reqwest::Error> for HttpError {
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
        let message = match deepest.is::<reqwest::Error>() {
            true => operation.to_owned(),
            false => format!("{operation}: {deepest}"),
        };
        if error.is_connect() { Self::Connect(message) } else { Self::Transport(message) }
    }
}

/// Returns the target of a redirect, if the response is one.
pub(crate) fn redirect(url: &Url, response: &Response) -> Result<Option<Url>, HttpError> {
    let redirects = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = response.headers().get(LOCATION).filter(|_| redirects) else {
        return Ok(None);
    };
    let location = String::from_utf8_lossy(location.as_bytes());
    let refused =
        |error| HttpError::Redirected(response::quoted_excerpt(&location), Box::new(error));
    if location.len() > URL_BYTES_MAX {
        return Err(refused(HttpError::UrlTooLong(location.len())));
    }
    let next = url.join(&location);
    next.map(Some).map_err(|error| refused(HttpError::InvalidUrl(error.to_string())))
}

/// Returns the trace headers of a call; none if its run has no trace.
pub(crate) fn trace_headers(context: &ToolContext) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut insert = |name, value: &str| {
        // Trace headers contain only characters that are valid in a header.
        headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
    };
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
    use crate::NextAttempt;

    fn client(allow: &[&str]) -> HttpClient {
        let allow = allow.iter().map(|rule| rule.parse().unwrap()).collect();
        HttpClient::new(allow, CONNECT_TIMEOUT, system_lookup(), &Proxy::None).unwrap()
    }

    /// Returns the error of a URL that is refused before any request.
    fn refused(client: &HttpClient, url: &str) -> Option<String> {
        let url = Url::parse(url).unwrap_or_else(|e| panic!("{url}: {e}"));
        client.client_for(&url).err().map(|e| e.to_string())
    }

    #[test]
    fn literal_addresses_are_refused_in_every_spelling() {
        let client = client(&[]);
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
            let reason = refused(&client, url).unwrap_or_else(|| panic!("{url} is not refused"));
            assert!(reason.starts_with("refused: ") && reason.contains(expect), "{url}: {reason}");
        }
        assert_eq!(refused(&client, "http://1.1.1.1/"), None);
        assert_eq!(refused(&client, "https://[2606:4700::1]/"), None);
        assert_eq!(refused(&client, "https://example.com/"), None);
    }

    #[test]
    fn only_http_urls_without_credentials_are_allowed() {
        let client = client(&[]);
        for (url, expect) in [
            ("file:///etc/passwd", "not \"file\""),
            ("ftp://example.com/", "not \"ftp\""),
            ("data:text/plain,hi", "not \"data\""),
            ("http://user@example.com/", "user name or password"),
            ("http://:secret@example.com/", "user name or password"),
        ] {
            let reason = refused(&client, url).unwrap();
            assert!(reason.contains(expect), "{url}: {reason}");
        }
    }

    #[test]
    fn a_refused_url_is_permanent_and_a_failed_connection_is_not_sent() {
        use FailureKind::{NotSent, ToolError};
        use NextAttempt::{MayHelp, Useless};
        let forbidden = || {
            let address = IpAddr::from([127, 0, 0, 1]);
            HttpError::ForbiddenAddress { address, kind: "a loopback address" }
        };
        let connect = || HttpError::Connect("failed to connect".to_owned());
        let redirected = |error| HttpError::Redirected("http://a/".to_owned(), Box::new(error));
        for (error, kind, next_attempt) in [
            (HttpError::UrlTooLong(9000), ToolError, Useless),
            (HttpError::InvalidUrl("empty host".to_owned()), ToolError, Useless),
            (HttpError::Scheme("ftp".to_owned()), ToolError, Useless),
            (HttpError::Credentials, ToolError, Useless),
            (forbidden(), ToolError, Useless),
            (redirected(forbidden()), ToolError, Useless),
            (connect(), NotSent, MayHelp),
            (redirected(connect()), ToolError, MayHelp),
            (HttpError::TimedOut(CONNECT_TIMEOUT), ToolError, MayHelp),
            (HttpError::Transport("the request failed".to_owned()), ToolError, MayHelp),
        ] {
            let text = error.to_string();
            let error = error.into_tool_error();
            assert_eq!(error.message(), text);
            assert_eq!((error.kind(), error.next_attempt()), (kind, next_attempt), "{text}");
        }
    }

    #[tokio::test]
    async fn a_name_that_leads_to_a_forbidden_address_is_not_given_to_a_proxy() {
        let lookup: DnsLookup = Arc::new(|host| {
            let found: &[[u8; 4]] = match host.as_str() {
                "inner.test" => &[[1, 1, 1, 1], [10, 0, 0, 1]],
                "outer.test" => &[[1, 1, 1, 1]],
                _ => &[],
            };
            let found = found.iter().copied().map(IpAddr::from).collect();
            Box::pin(std::future::ready(Ok(found)))
        });
        let proxy = Proxy::Url("http://proxy.test:3128".to_owned());
        let client = HttpClient::new(Vec::new(), CONNECT_TIMEOUT, lookup, &proxy).unwrap();
        for (host, is_refused) in [("inner.test", true), ("outer.test", false), ("x.test", false)] {
            let url = Url::parse(&format!("http://{host}/")).unwrap();
            let chosen = client.reachable_client_for(&url).await;
            assert_eq!(chosen.is_err(), is_refused, "{host}");
        }
    }

    #[test]
    fn allow_rules_allow_only_what_they_match() {
        let client = client(&["127.0.0.1:8080", "10.0.0.0/8", "intranet:80"]);
        assert_eq!(refused(&client, "http://127.0.0.1:8080/"), None);
        assert!(refused(&client, "http://127.0.0.1:8081/").is_some());
        assert!(refused(&client, "http://[::ffff:127.0.0.1]:8080/").is_some());
        assert_eq!(refused(&client, "http://10.1.2.3:9/"), None);
        assert_eq!(refused(&client, "http://[::ffff:10.1.2.3]:9/"), None);
        assert!(refused(&client, "http://11.1.2.3:9/").is_none());
        assert!(refused(&client, "http://172.16.0.1/").is_some());
        let chosen = |url: &str| client.client_for(&Url::parse(url).unwrap()).unwrap() as *const _;
        assert!(std::ptr::eq(chosen("http://intranet/"), &raw const client.direct.unrestricted));
        assert!(std::ptr::eq(chosen("http://intranet:81/"), &raw const client.direct.restricted));
    }
}
