//! `http_get {url}`: fetches a text document from the public internet.
//!
//! Default limits: 256 KiB of a body, 5 redirects, 5 s to connect, 20 s for an attempt of a call.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, Url};
use schemars::JsonSchema;
use serde::Deserialize;
use tokio::time::timeout;

use crate::http::{
    AllowRule, CONNECT_TIMEOUT, DnsLookup, HttpClient, HttpClientError, HttpError, REDIRECTS_MAX,
    URL_BYTES_MAX, redirect, response, system_lookup, trace_headers,
};
use crate::{Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use callsheet_values::config::{Proxy, ToolEffect};

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
    /// Time limit of one attempt of a call, with all its redirects.
    pub total_timeout: Duration,
    /// The proxy through which requests are sent.
    pub proxy: Proxy,
}

impl Default for HttpGetOptions {
    fn default() -> Self {
        Self {
            allow: Vec::new(),
            body_bytes_max: 256 << 10,
            redirects_max: REDIRECTS_MAX,
            connect_timeout: CONNECT_TIMEOUT,
            total_timeout: Duration::from_secs(20),
            proxy: Proxy::None,
        }
    }
}

/// Fetches text by HTTP. Has effects, because the server sees the request, and is idempotent: every
/// request of a call carries the call's `Idempotency-Key`, unless the configuration declares that
/// the tool has no effects.
pub struct HttpGet {
    options: HttpGetOptions,
    client: HttpClient,
}

impl HttpGet {
    /// Makes the tool with the system's DNS lookup.
    ///
    /// # Errors
    /// If the HTTP client cannot be built.
    pub fn new(options: HttpGetOptions) -> Result<Self, HttpClientError> {
        Self::with_dns_lookup(options, system_lookup())
    }

    /// Makes the tool with another DNS lookup. The addresses that it returns are checked as well.
    ///
    /// # Errors
    /// If the HTTP client cannot be built.
    pub fn with_dns_lookup(
        options: HttpGetOptions,
        lookup: DnsLookup,
    ) -> Result<Self, HttpClientError> {
        let (allow, proxy) = (options.allow.clone(), &options.proxy);
        let client = HttpClient::new(allow, options.connect_timeout, lookup, proxy)?;
        Ok(Self { options, client })
    }

    async fn get(&self, url: &str, headers: &HeaderMap) -> Result<String, HttpError> {
        if url.len() > URL_BYTES_MAX {
            return Err(HttpError::UrlTooLong(url.len()));
        }
        let mut url = Url::parse(url).map_err(|e| HttpError::InvalidUrl(e.to_string()))?;
        let mut response = self.send(&url, headers).await?;
        for _ in 0..self.options.redirects_max {
            let Some(next) = redirect(&url, &response)? else {
                return response::response_text(response, self.options.body_bytes_max).await;
            };
            let redirected =
                |e| HttpError::Redirected(response::quoted_excerpt(next.as_str()), Box::new(e));
            response = self.send(&next, headers).await.map_err(redirected)?;
            url = next;
        }
        match redirect(&url, &response)? {
            Some(_) => Err(HttpError::TooManyRedirects(self.options.redirects_max)),
            None => response::response_text(response, self.options.body_bytes_max).await,
        }
    }

    async fn send(&self, url: &Url, headers: &HeaderMap) -> Result<Response, HttpError> {
        let client = self.client.reachable_client_for(url).await?;
        let request = client.get(url.clone()).headers(headers.clone());
        request.send().await.map_err(HttpError::from)
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
            fetched = timeout(limit, self.get(&url, &headers)) => fetched.unwrap_or(Err(HttpError::TimedOut(limit))),
            () = context.cancelled() => Err(HttpError::Cancelled),
        };
        fetched.map(ToolOutput::from).map_err(HttpError::into_tool_error)
    }
}

/// Returns the headers that are sent with every request of a call: its trace, and its idempotency key if the
/// tool has effects.
fn call_headers(context: &ToolContext) -> HeaderMap {
    let mut headers = trace_headers(context);
    match context.effect() {
        // Keys contain only characters that are valid in a header.
        ToolEffect::Some => {
            let key = HeaderValue::from_str(context.idempotency_key());
            headers.extend(key.ok().map(|key| (IDEMPOTENCY_KEY, key)));
        }
        ToolEffect::None => {}
    }
    headers
}
