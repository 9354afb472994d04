//! What every request has to pass before anything else looks at it.
//!
//! A page in somebody's browser must not be able to drive a host on loopback. So the request must
//! name the host as somebody would who means it (a page that points its own name at 127.0.0.1 does
//! not), must not come from another site's page (no CORS headers are ever sent), and must bring
//! the token if there is one. Bodies must be JSON besides, which a form cannot send (`body.rs`).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Uri, header, uri::Authority};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::ServerOptions;
use super::error::ApiError;
use super::listener::LocalAddress;
use crate::config::ApiKey;

/// Paths that tell nothing but that the host is there, for probes that bring no token.
const OPEN_PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// The rules of one server.
#[derive(Debug)]
pub(super) struct RequestGuard {
    allowed_hosts: Vec<String>,
    token: Option<ApiKey>,
}

/// Lets a request pass or answers it.
pub(super) async fn check(
    State(guard): State<Arc<RequestGuard>>,
    ConnectInfo(LocalAddress(local)): ConnectInfo<LocalAddress>,
    request: Request,
    next: Next,
) -> Response {
    match guard.check(request.uri(), request.headers(), local) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}

impl RequestGuard {
    pub(super) fn new(options: &ServerOptions) -> Self {
        let allowed_hosts =
            options.allowed_hosts.iter().map(|host| host.to_ascii_lowercase()).collect();
        Self { allowed_hosts, token: options.token.clone() }
    }

    fn check(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        local: Option<SocketAddr>,
    ) -> Result<(), ApiError> {
        let called = self.check_host(uri, headers, local)?;
        self.check_origin(headers, &called)?;
        self.check_token(uri.path(), headers)
    }

    /// Which name the request calls us, if it may.
    fn check_host(
        &self,
        uri: &Uri,
        headers: &HeaderMap,
        local: Option<SocketAddr>,
    ) -> Result<Authority, ApiError> {
        let invalid = || ApiError::bad_request("invalid_host", "the Host header is no host");
        let mut named = headers.get_all(header::HOST).iter();
        let in_header: Option<Authority> = match (named.next(), named.next()) {
            (Some(host), None) => Some(parse_host(host.as_bytes()).ok_or_else(invalid)?),
            (None, _) => None,
            (Some(_), Some(_)) => return Err(invalid()),
        };
        // HTTP/2 and proxies name the host in the address itself; both must be right.
        for host in in_header.iter().chain(uri.authority()) {
            if !self.may_be_called(host, local) {
                let message = format!("this host is not called {host} (see host.allowed_hosts)");
                return Err(ApiError::forbidden("forbidden_host", message));
            }
        }
        in_header
            .or_else(|| uri.authority().cloned())
            .ok_or_else(|| ApiError::bad_request("missing_host", "the request names no host"))
    }

    fn may_be_called(&self, host: &Authority, local: Option<SocketAddr>) -> bool {
        let name = host.host().to_ascii_lowercase();
        let bare = name.trim_start_matches('[').trim_end_matches(']');
        let address: Option<IpAddr> = bare.parse().ok();
        let loopback = name == "localhost" || address.is_some_and(|ip| ip.is_loopback());
        let ours = address.is_some() && address == local.map(|local| local.ip().to_canonical());
        loopback || ours || self.is_allowed(&name, host.port_u16())
    }

    fn is_allowed(&self, name: &str, port: Option<u16>) -> bool {
        let with_port = port.map(|port| format!("{name}:{port}"));
        self.allowed_hosts
            .iter()
            .any(|allowed| allowed == name || Some(allowed) == with_port.as_ref())
    }

    /// A browser says which site's page makes the request; ours is the one at the same address.
    fn check_origin(&self, headers: &HeaderMap, called: &Authority) -> Result<(), ApiError> {
        let foreign = |origin: &[u8]| {
            let origin = crate::types::excerpt(&String::from_utf8_lossy(origin), 100);
            let message = format!("pages of {origin:?} may not use this host");
            ApiError::forbidden("forbidden_origin", message)
        };
        for value in headers.get_all(header::ORIGIN) {
            let origin: Option<Uri> = value.to_str().ok().and_then(|text| text.parse().ok());
            let scheme = origin.as_ref().and_then(Uri::scheme_str);
            let authority = origin.as_ref().and_then(Uri::authority);
            let (Some(scheme @ ("http" | "https")), Some(authority)) = (scheme, authority) else {
                return Err(foreign(value.as_bytes()));
            };
            let default_port = if scheme == "http" { 80 } else { 443 };
            let port = authority.port_u16().unwrap_or(default_port);
            let same = authority.host().eq_ignore_ascii_case(called.host())
                && port == called.port_u16().unwrap_or(default_port);
            let name = authority.host().to_ascii_lowercase();
            if !same && !self.is_allowed(&name, authority.port_u16()) {
                return Err(foreign(value.as_bytes()));
            }
        }
        Ok(())
    }

    fn check_token(&self, path: &str, headers: &HeaderMap) -> Result<(), ApiError> {
        let Some(token) = &self.token else { return Ok(()) };
        if OPEN_PATHS.contains(&path) {
            return Ok(());
        }
        let mut given = headers.get_all(header::AUTHORIZATION).iter();
        let bearer = match (given.next(), given.next()) {
            (Some(value), None) => value.as_bytes().split_at_checked(7),
            (None, _) | (Some(_), Some(_)) => None,
        };
        match bearer {
            Some((scheme, given))
                if scheme.eq_ignore_ascii_case(b"bearer ")
                    && equal_in_constant_time(given, token.reveal().as_bytes()) =>
            {
                Ok(())
            }
            Some(_) | None => Err(ApiError::unauthorized()),
        }
    }
}

fn parse_host(bytes: &[u8]) -> Option<Authority> {
    let authority = Authority::try_from(bytes).ok()?;
    (!authority.as_str().contains('@') && !authority.host().is_empty()).then_some(authority)
}

/// Takes the same time wherever the texts differ. Their lengths may show.
fn equal_in_constant_time(given: &[u8], expected: &[u8]) -> bool {
    if given.len() != expected.len() {
        return false;
    }
    let differing = given.iter().zip(expected).fold(0, |seen, (a, b)| {
        // Kept from being turned into an early return.
        std::hint::black_box(seen | (a ^ b))
    });
    differing == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn guard(token: bool) -> RequestGuard {
        let env = |_: &str| Some("token-1".to_owned());
        let options = ServerOptions {
            allowed_hosts: vec!["Host.Example".to_owned(), "other.example:8443".to_owned()],
            token: token.then(|| ApiKey::from_env("TOKEN", &env).expect("read the token")),
            ..ServerOptions::default()
        };
        RequestGuard::new(&options)
    }

    /// What becomes of a request for `uri` with these headers: `None` if it passes.
    fn check(
        guard: &RequestGuard,
        uri: &str,
        headers: &[(&str, &str)],
    ) -> Option<(u16, &'static str)> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            let name: header::HeaderName = name.parse().expect("parse a name");
            map.append(name, value.parse().expect("parse a value"));
        }
        let local = "10.1.2.3:7700".parse().ok();
        guard
            .check(&uri.parse().expect("parse an address"), &map, local)
            .err()
            .map(|error| error.shown())
    }

    #[test]
    fn only_names_that_mean_this_host_pass() {
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
    fn a_host_must_be_named_once_and_rightly_everywhere() {
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
    fn only_our_own_pages_pass() {
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
            let seen = check(&guard(false), "/v1/sessions", &headers);
            assert_eq!(seen, expected, "{host} {origin}");
        }
        let both = [("host", "localhost"), ("origin", "http://localhost"), ("origin", "http://e")];
        assert_eq!(check(&guard(false), "/", &both), FORBIDDEN);
    }

    #[test]
    fn the_token_is_asked_for_everywhere_but_by_probes() {
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
        for path in OPEN_PATHS {
            assert_eq!(check(&guard(true), path, &[host]), None, "{path}");
        }
        assert_eq!(check(&guard(false), "/metrics", &[host]), None);
    }
}
