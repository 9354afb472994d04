//! Access control: [`Guard`] is a layer that checks every request before its handler runs.
//!
//! A web page in a user's browser must not be able to control a host on a loopback address (CSRF). Four
//! checks prevent this. The `Host` header must name this host, which a page with DNS rebinding cannot
//! fake. The `Origin` header, if present, must be this host's own or an allowed one (only answers to
//! [`Guard::origins`] have CORS headers: `cors.rs`). Without it, the browser must not say in `Sec-Fetch-Site` that a page of another site sends the request,
//! unless the user follows a link to a page. The request must carry a bearer token, if one is configured, except for public paths. In
//! addition, bodies must be JSON, which an HTML form cannot send (`extract.rs`).

use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, Method, Request, StatusCode, Uri, header, uri::Authority};
use axum::response::{IntoResponse, Response};
use futures::future::{Either, MapOk, TryFutureExt as _};
use subtle::ConstantTimeEq as _;
use tower_layer::Layer;
use tower_service::Service;

use super::access::{AcceptedToken, AccessTokens, Caller};
use super::cors::{self, AllowedOrigins};
use super::error::ApiError;
use super::listener::ConnectionAddresses;
use super::state::ServerOptions;
use callsheet_host::runtime::{CALLER_HEADER, HOST_HEADER};
use callsheet_values::config::{ApiKey, TokenConfig};

/// A layer (`tower_layer::Layer`) that refuses requests of foreign web pages, and requests without a
/// bearer token.
///
/// A request must name this host, in its `Host` header or its URI: by a loopback name, by one of
/// [`Guard::hosts`], or, under `serve`, by the address at which it arrived. If it has an `Origin`,
/// this must be the same host, one of [`Guard::hosts`] or one of [`Guard::origins`]. A request without `Origin` that a page of another site sends
/// (`Sec-Fetch-Site: cross-site`) is refused, except for links to paths outside `/v1/`. With [`Guard::token`] or
/// [`Guard::named_token`] it must carry one of the tokens, except for [`Guard::public_paths`]. Each refusal is an error of the API.
///
/// Put it around the routers of [`router`](super::router) and [`operations`](super::operations), or
/// around a whole application:
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::prelude::*;
/// use callsheet::server::{self, Guard};
///
/// let host = Host::builder().start().await?;
/// let guard = Guard::new().hosts(["api.example.com"]).token(ApiKey::new("a-long-secret")?);
/// let app: axum::Router =
///     axum::Router::new().nest("/agents", server::router(&host).layer(guard));
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[derive(Clone, Debug, Default)]
pub struct Guard {
    hosts: Vec<String>,
    origins: AllowedOrigins,
    tokens: AccessTokens,
    peer_token: Option<ApiKey>,
    public_paths: Vec<String>,
}

impl Guard {
    /// Creates a guard that accepts loopback names and needs no token.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts further host names as the host of a request and as the host of the page that sends it. A
    /// name without a port is accepted with every port, a name with a port only with this one. A name with
    /// port 80 or 443 is accepted without the port, too: clients leave out the default port.
    #[must_use]
    pub fn hosts(mut self, hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.hosts.extend(hosts.into_iter().map(|host| host.into().to_ascii_lowercase()));
        self
    }

    /// Lets pages of these origins, such as `http://localhost:5173`, use the API from a browser (CORS). Their
    /// preflight requests are answered, and answers to them have the CORS headers, also errors. The browser's own
    /// credentials, such as cookies, are not allowed.
    #[must_use]
    pub fn origins(mut self, origins: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        origins.into_iter().for_each(|origin| self.origins.add(origin.as_ref()));
        self
    }

    /// Requires a bearer token, whose requests may do everything.
    #[must_use]
    pub fn token(self, token: ApiKey) -> Self {
        self.access_token(AcceptedToken::of_host(token, None))
    }

    /// Requires a bearer token, and accepts this one. Its scope and its agents limit what its requests may do on the
    /// routes of this crate, and its name is their author.
    #[must_use]
    pub fn named_token(self, token: TokenConfig) -> Self {
        self.access_token(token.into())
    }

    /// Accepts requests of other hosts with the same journal, which carry this token. Such a request may do what the token
    /// of the client may do whose request the other host passes on, and is not checked for its `Host` and its `Origin`.
    #[must_use]
    pub fn peer_token(self, token: ApiKey) -> Self {
        Self { peer_token: Some(token), ..self }
    }

    fn access_token(self, token: AcceptedToken) -> Self {
        Self { tokens: self.tokens.with(token), ..self }
    }

    /// Accepts requests of these paths without a token, for example of health probes. The paths are
    /// compared as the layer sees them: inside of a nested router, without its prefix. A path that ends
    /// with `/*` stands for all paths that begin with what is before the `*`: `/console/*` for the files of
    /// the console, which hold no data.
    #[must_use]
    pub fn public_paths(mut self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.public_paths.extend(paths.into_iter().map(Into::into));
        self
    }

    pub(super) fn tokens(&self) -> &AccessTokens {
        &self.tokens
    }

    /// Returns the caller, as the token of the request tells.
    fn check(
        &self,
        method: &Method,
        uri: &Uri,
        headers: &HeaderMap,
        local: Option<SocketAddr>,
    ) -> Result<Caller, ApiError> {
        if headers.contains_key(HOST_HEADER) {
            return self.check_peer(headers);
        }
        let host = self.check_host(uri, headers, local)?;
        self.check_origin(headers, &host, local)?;
        check_site(method, uri, headers)?;
        self.check_token(uri.path(), headers)
    }

    /// Answers a preflight request of an allowed page. It carries no token. `None`: the request is another one.
    fn preflight(
        &self,
        (method, uri, headers): (&Method, &Uri, &HeaderMap),
        local: Option<SocketAddr>,
    ) -> Option<Result<Response, ApiError>> {
        let is_allowed =
            cors::is_preflight(method, headers) && self.origins.find(headers).is_some();
        is_allowed.then(|| {
            self.check_host(uri, headers, local)?;
            Ok(cors::preflight(headers))
        })
    }

    /// Returns the client whose request another host passes on.
    fn check_peer(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        let Some(token) = &self.peer_token else {
            let message = format!("{HOST_HEADER}: this host accepts no requests of other hosts");
            return Err(ApiError::forbidden("no_peers", message));
        };
        let sent = bearer(headers).unwrap_or_default();
        if !bool::from(sent.ct_eq(token.reveal().as_bytes())) {
            let message = "the peer token is another one: set the same CALLSHEET_PEER_TOKEN for all hosts of a database";
            return Err(ApiError::new(StatusCode::UNAUTHORIZED, "wrong_peer_token", message));
        }
        match headers.get(CALLER_HEADER) {
            None => Ok(Caller::default()),
            Some(value) => Caller::from_header(value).ok_or_else(|| {
                let message = format!("{CALLER_HEADER}: not a caller that this version knows");
                ApiError::bad_request("invalid_request", message)
            }),
        }
    }

    /// Returns the host that the request names, if it is a name of this host.
    fn check_host(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        local: Option<SocketAddr>,
    ) -> Result<Authority, ApiError> {
        let invalid =
            || ApiError::bad_request("invalid_host", "send one Host header with a host name");
        let mut values = headers.get_all(header::HOST).iter();
        let in_header: Option<Authority> = match (values.next(), values.next()) {
            (Some(host), None) => Some(parse_host(host.as_bytes()).ok_or_else(invalid)?),
            (None, _) => None,
            (Some(_), Some(_)) => return Err(invalid()),
        };
        // HTTP/2 and proxies put the host into the URI. If both are present, both must be names of this host.
        for host in in_header.iter().chain(uri.authority()) {
            if !self.is_own_name(host.host(), host.port_u16(), local) {
                let message = format!(
                    "{host} is not a name of this host; add it to host.allowed_hosts, or in a program to Guard::hosts \
                     (a proxy in front must keep the Host header)"
                );
                return Err(ApiError::forbidden("forbidden_host", message));
            }
        }
        in_header
            .or_else(|| uri.authority().cloned())
            .ok_or_else(|| ApiError::bad_request("missing_host", "the request has no Host header"))
    }

    fn is_own_name(&self, host: &str, port: Option<u16>, local: Option<SocketAddr>) -> bool {
        let name = host.to_ascii_lowercase();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let address: Option<IpAddr> = bare.parse().ok();
        let loopback = name == "localhost" || address.is_some_and(|ip| ip.is_loopback());
        let is_local_address =
            address.is_some() && address == local.map(|local| local.ip().to_canonical());
        loopback || is_local_address || self.is_allowed(&name, port)
    }

    /// Returns true if `hosts` has this name, without a port or with this one. `None` is the default port: 80
    /// or 443, because a request from a proxy does not tell the scheme.
    fn is_allowed(&self, name: &str, port: Option<u16>) -> bool {
        let ports = port.map_or([80, 443], |port| [port; 2]);
        let with_port = ports.map(|port| format!("{name}:{port}"));
        self.hosts.iter().any(|allowed| allowed == name || with_port.contains(allowed))
    }

    /// Checks the site whose page sent the request, which browsers put into `Origin`. Allowed are this
    /// host itself, `hosts` and `origins`.
    fn check_origin(
        &self,
        headers: &HeaderMap,
        host: &Authority,
        local: Option<SocketAddr>,
    ) -> Result<(), ApiError> {
        let foreign = |origin: &[u8]| {
            let origin = callsheet_values::types::excerpt(&String::from_utf8_lossy(origin), 100);
            let message = format!(
                "pages of {origin:?} must not use this host; add it to host.allowed_origins, or in a program to Guard::origins"
            );
            ApiError::forbidden("forbidden_origin", message)
        };
        for value in headers.get_all(header::ORIGIN) {
            if self.origins.has(value) {
                continue;
            }
            let origin: Option<Uri> = value.to_str().ok().and_then(|text| text.parse().ok());
            let scheme = origin.as_ref().and_then(Uri::scheme_str);
            let authority = origin.as_ref().and_then(Uri::authority);
            let (Some(scheme @ ("http" | "https")), Some(authority)) = (scheme, authority) else {
                return Err(foreign(value.as_bytes()));
            };
            let default_port = if scheme == "http" { 80 } else { 443 };
            let port = authority.port_u16().unwrap_or(default_port);
            // A host without a port was accepted for both default ports. The scheme tells which of them it is.
            let same_origin = authority.host().eq_ignore_ascii_case(host.host())
                && port == host.port_u16().unwrap_or(default_port)
                && self.is_own_name(host.host(), Some(port), local);
            let name = authority.host().to_ascii_lowercase();
            if !same_origin && !self.is_allowed(&name, Some(port)) {
                return Err(foreign(value.as_bytes()));
            }
        }
        Ok(())
    }

    fn check_token(&self, path: &str, headers: &HeaderMap) -> Result<Caller, ApiError> {
        if self.tokens.is_empty() {
            return Ok(Caller::default());
        }
        let is_public = |public: &String| match public.strip_suffix('*') {
            Some(folder) if folder.ends_with('/') => path.starts_with(folder),
            Some(_) | None => public == path,
        };
        if self.public_paths.iter().any(is_public) {
            return Ok(Caller::default());
        }
        let caller = bearer(headers).and_then(|credentials| self.tokens.caller(credentials));
        caller.ok_or_else(ApiError::unauthorized)
    }
}

/// Returns the credentials of a request that has one bearer token.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, credentials) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(credentials)
}

impl From<&ServerOptions> for Guard {
    fn from(options: &ServerOptions) -> Self {
        let (tokens, peer_token) = (AccessTokens::from(options), options.peer_token.clone());
        let guard = Self::new().hosts(&options.allowed_hosts).origins(&options.allowed_origins);
        Self { tokens, peer_token, ..guard }
    }
}

impl<S> Layer<S> for Guard {
    type Service = GuardedService<S>;

    fn layer(&self, inner: S) -> GuardedService<S> {
        GuardedService { guard: Arc::new(self.clone()), inner }
    }
}

/// Adds the CORS headers to an answer.
type AddHeaders = Box<dyn FnOnce(Response) -> Response + Send>;

/// A service behind a [`Guard`].
///
/// Made by [`Guard`].
#[derive(Clone, Debug)]
pub struct GuardedService<S> {
    guard: Arc<Guard>,
    inner: S,
}

impl<S, B> Service<Request<B>> for GuardedService<S>
where
    S: Service<Request<B>, Response = Response>,
{
    type Response = Response;
    type Error = S::Error;
    type Future = MapOk<Either<S::Future, Ready<Result<Response, S::Error>>>, AddHeaders>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // Only connections of `serve` have an address here.
        let addresses = request.extensions().get::<ConnectInfo<ConnectionAddresses>>();
        let local = addresses.and_then(|ConnectInfo(addresses)| addresses.local);
        let origins = &self.guard.origins;
        let add_headers: AddHeaders = match origins.find(request.headers()) {
            Some(origin) => Box::new(|answer| cors::with_origin(answer, origin)),
            None if origins.is_empty() => Box::new(|answer| answer),
            None => Box::new(cors::vary),
        };
        let (method, uri, headers) = (request.method(), request.uri(), request.headers());
        let answer = match self.guard.preflight((method, uri, headers), local) {
            Some(answer) => Err(answer),
            None => self.guard.check(method, uri, headers, local).map_err(Err),
        };
        let answered = match answer {
            Ok(caller) => {
                if caller.is_named() {
                    request.extensions_mut().insert(caller);
                }
                Either::Left(self.inner.call(request))
            }
            Err(answer) => {
                let answer = answer.map_or_else(
                    |error| refusal(request.uri(), error),
                    IntoResponse::into_response,
                );
                Either::Right(ready(Ok(answer)))
            }
        };
        answered.map_ok(add_headers)
    }
}

/// Returns the answer to a request that is refused.
fn refusal(uri: &Uri, error: ApiError) -> Response {
    let response = error.into_response();
    #[cfg(feature = "faces")]
    let response = super::faces::error_form(uri.path())(response);
    #[cfg(not(feature = "faces"))]
    let _ = uri;
    response
}

/// Checks what the browser says about the page that sent a request without `Origin`. A link to a page is allowed from
/// everywhere, but not one to the API, where a request alone can wake a session.
fn check_site(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let is = |name: &str, value: &str| headers.get(name).is_some_and(|sent| sent == value);
    // Another port of the same host is the same site, but another page.
    let is_foreign = is("sec-fetch-site", "cross-site") || is("sec-fetch-site", "same-site");
    if !is_foreign || headers.contains_key(header::ORIGIN) {
        return Ok(());
    }
    let is_link = *method == Method::GET
        && is("sec-fetch-mode", "navigate")
        && is("sec-fetch-dest", "document");
    if is_link && !uri.path().contains("/v1/") {
        return Ok(());
    }
    let message = "pages of other origins must not use this host (Sec-Fetch-Site); a page of host.allowed_origins \
                   must send its request by fetch, in the mode \"cors\"";
    Err(ApiError::forbidden("forbidden_origin", message))
}

fn parse_host(bytes: &[u8]) -> Option<Authority> {
    let authority = Authority::try_from(bytes).ok()?;
    (!authority.as_str().contains('@') && !authority.host().is_empty()).then_some(authority)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC_PATHS: [&str; 3] = ["/healthz", "/readyz", "/console/*"];

    fn guard(token: bool) -> Guard {
        let hosts = ["Host.Example", "other.example:8443"];
        let guard = Guard::new().hosts(hosts).public_paths(PUBLIC_PATHS);
        if token { guard.token(ApiKey::new("token-1").expect("a token")) } else { guard }
    }

    /// Returns the status and code with which a request is refused, or `None` if it passes.
    fn check(guard: &Guard, uri: &str, headers: &[(&str, &str)]) -> Option<(u16, &'static str)> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().expect("parse a name");
            map.append(name, value.parse().expect("parse a value"));
        }
        let local = "10.1.2.3:7700".parse().ok();
        guard
            .check(&Method::GET, &uri.parse().expect("parse an address"), &map, local)
            .err()
            .map(|error| error.status_and_code())
    }

    #[test]
    fn only_names_of_this_host_pass() {
        const FORBIDDEN: Option<(u16, &str)> = Some((403, "forbidden_host"));
        const INVALID: Option<(u16, &str)> = Some((400, "invalid_host"));
        for (host, expected) in [
            ("localhost", None),
            ("LocalHost:7700", None),
            ("127.0.0.1:7700", None),
            ("127.9.9.9", None),
            ("[::1]:7700", None),
            ("10.1.2.3:7700", None),
            ("10.1.2.3", None),
            ("host.example", None),
            ("HOST.example:1234", None),
            ("other.example:8443", None),
            ("other.example:8444", FORBIDDEN),
            ("other.example", FORBIDDEN),
            ("10.1.2.4:7700", FORBIDDEN),
            ("evil.example", FORBIDDEN),
            ("localhost.evil.example", FORBIDDEN),
            ("localhost.", FORBIDDEN),
            ("127.0.0.1.evil.example", FORBIDDEN),
            ("0.0.0.0:7700", FORBIDDEN),
            ("[::ffff:8.8.8.8]", FORBIDDEN),
            ("", INVALID),
            ("evil.example@localhost", INVALID),
            ("localhost/path", INVALID),
        ] {
            assert_eq!(check(&guard(false), "/", &[("host", host)]), expected, "{host:?}");
        }
    }

    #[test]
    fn every_host_name_of_a_request_must_be_allowed() {
        let guard = guard(false);
        assert_eq!(check(&guard, "/", &[]), Some((400, "missing_host")));
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(check(&guard, "/", &twice), Some((400, "invalid_host")));
        assert_eq!(check(&guard, "http://localhost:7700/", &[]), None);
        let forbidden = Some((403, "forbidden_host"));
        assert_eq!(check(&guard, "http://evil.example/", &[]), forbidden);
        assert_eq!(check(&guard, "http://evil.example/", &[("host", "localhost")]), forbidden);
        assert_eq!(check(&guard, "http://localhost/", &[("host", "evil.example")]), forbidden);
    }

    #[test]
    fn only_origins_of_this_host_pass() {
        const FORBIDDEN: Option<(u16, &str)> = Some((403, "forbidden_origin"));
        for (host, origin, expected) in [
            ("localhost:7700", "http://localhost:7700", None),
            ("LOCALHOST:7700", "http://localhost:7700", None),
            ("localhost", "http://localhost", None),
            ("localhost:80", "http://localhost", None),
            ("127.0.0.1:7700", "http://127.0.0.1:7700", None),
            ("host.example", "https://host.example", None),
            ("127.0.0.1:7700", "https://host.example", None),
            ("localhost:7700", "http://localhost:3000", FORBIDDEN),
            ("localhost:7700", "http://localhost", FORBIDDEN),
            ("localhost:7700", "http://127.0.0.1:7700", FORBIDDEN),
            ("localhost:7700", "https://evil.example", FORBIDDEN),
            ("localhost:7700", "null", FORBIDDEN),
            ("localhost:7700", "file://localhost:7700", FORBIDDEN),
            ("localhost:7700", "", FORBIDDEN),
        ] {
            let headers = [("host", host), ("origin", origin)];
            let result = check(&guard(false), "/v1/sessions", &headers);
            assert_eq!(result, expected, "{host} {origin}");
        }
        let both = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://e")];
        assert_eq!(check(&guard(false), "/", &both), FORBIDDEN);
    }

    #[test]
    fn pages_of_other_sites_may_only_link_to_pages() {
        const FORBIDDEN: Option<(u16, &str)> = Some((403, "forbidden_origin"));
        let link = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        let image = [("sec-fetch-mode", "no-cors"), ("sec-fetch-dest", "image")];
        let frame = [("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "iframe")];
        for (site, path, others, expected) in [
            ("cross-site", "/console/", link, None),
            ("cross-site", "/", link, None),
            ("cross-site", "/v1/sessions/a", link, FORBIDDEN),
            ("cross-site", "/agents/v1/events", link, FORBIDDEN),
            ("cross-site", "/console/", frame, FORBIDDEN),
            ("cross-site", "/console/icon.svg", image, FORBIDDEN),
            ("cross-site", "/v1/sessions/a", image, FORBIDDEN),
            ("same-origin", "/v1/sessions/a", image, None),
            ("none", "/v1/sessions/a", link, None),
        ] {
            let [mode, dest] = others;
            let headers = [("host", "localhost"), ("sec-fetch-site", site), mode, dest];
            assert_eq!(check(&guard(false), path, &headers), expected, "{site} {path} {others:?}");
        }
        // An allowed page of another site is named by its origin.
        let headers = [
            ("host", "localhost"),
            ("origin", "https://host.example"),
            ("sec-fetch-site", "cross-site"),
        ];
        assert_eq!(check(&guard(false), "/v1/sessions", &headers), None);
    }

    #[test]
    fn the_default_port_may_be_left_out() {
        const HOST: Option<(u16, &str)> = Some((403, "forbidden_host"));
        const ORIGIN: Option<(u16, &str)> = Some((403, "forbidden_origin"));
        let guard = Guard::new().hosts(["tls.example:443", "plain.example:80", "a.example:8443"]);
        for (host, origin, expected) in [
            ("tls.example", "https://tls.example", None),
            ("tls.example", "https://tls.example:443", None),
            ("tls.example:443", "https://tls.example", None),
            ("localhost:7700", "https://tls.example", None),
            ("plain.example", "http://plain.example", None),
            ("localhost:7700", "http://plain.example", None),
            ("tls.example", "http://tls.example", ORIGIN),
            ("tls.example", "https://tls.example:8443", ORIGIN),
            ("plain.example", "https://plain.example", ORIGIN),
            ("localhost:7700", "https://plain.example", ORIGIN),
            ("tls.example:80", "http://tls.example", HOST),
            ("a.example", "https://a.example", HOST),
            ("localhost:7700", "https://a.example", ORIGIN),
        ] {
            let headers = [("host", host), ("origin", origin)];
            assert_eq!(check(&guard, "/v1/sessions", &headers), expected, "{host} {origin}");
        }
        assert_eq!(check(&guard, "/", &[("host", "tls.example")]), None);
    }

    #[test]
    fn every_path_but_the_public_ones_needs_the_token() {
        const UNAUTHORIZED: Option<(u16, &str)> = Some((401, "unauthorized"));
        for (value, expected) in [
            ("Bearer token-1", None),
            ("bearer token-1", None),
            ("Bearer token-2", UNAUTHORIZED),
            ("Bearer token-", UNAUTHORIZED),
            ("Bearer token-12", UNAUTHORIZED),
            ("Bearer ", UNAUTHORIZED),
            ("Bearer", UNAUTHORIZED),
            ("Basic token-1", UNAUTHORIZED),
            ("token-1", UNAUTHORIZED),
        ] {
            let headers = [("host", "localhost"), ("authorization", value)];
            for path in ["/", "/metrics", "/v1/sessions", "/nowhere"] {
                assert_eq!(check(&guard(true), path, &headers), expected, "{path} {value}");
            }
        }
        let host = ("host", "localhost");
        assert_eq!(check(&guard(true), "/metrics", &[host]), UNAUTHORIZED);
        let twice = [host, ("authorization", "Bearer token-1"), ("authorization", "Bearer x")];
        assert_eq!(check(&guard(true), "/metrics", &twice), UNAUTHORIZED);
        for path in
            ["/healthz", "/readyz", "/console/", "/console/app.js", "/console/../v1/sessions"]
        {
            assert_eq!(check(&guard(true), path, &[host]), None, "{path}");
        }
        for path in ["/console", "/consoles/", "/healthz/", "/v1/console/", "/*"] {
            assert_eq!(check(&guard(true), path, &[host]), UNAUTHORIZED, "{path}");
        }
        assert_eq!(check(&guard(false), "/metrics", &[host]), None);
    }
}
