//! Maps failures of an exchange with a model to [`ProviderError`], and reads a service's hints about a retry.

use std::error::Error;
use std::io;
use std::time::{Duration, SystemTime};

use reqwest::Url;
use reqwest::header::{CONTENT_ENCODING, HeaderMap, LOCATION};
use rustls::{CertificateError, InvalidMessage};

use callsheet_values::types::{ProviderError, ProviderErrorKind, excerpt};

/// Maps an error of the HTTP client, from the connection to the end of the body. The caller passes the URL, because
/// an error within the body does not have it. `has_answered` is true if the service has answered a request before.
pub(super) fn transport(error: reqwest::Error, url: &Url, has_answered: bool) -> ProviderError {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    transport_error(error, url, has_answered, is_set)
}

/// Maps an error as [`transport`] does. `is_set` returns whether an environment variable is set and not empty.
fn transport_error(
    error: reqwest::Error,
    url: &Url,
    has_answered: bool,
    is_set: impl Fn(&str) -> bool,
) -> ProviderError {
    let kind = if error.is_connect() {
        ProviderErrorKind::Connect
    } else if error.is_timeout() {
        ProviderErrorKind::Timeout
    } else {
        ProviderErrorKind::Transport
    };
    let error = error.without_url();
    let is_connect = kind == ProviderErrorKind::Connect;
    let variable = proxy_variable(url, &is_set);
    // The proxy of an https URL opens a tunnel (CONNECT). Until then, errors are the proxy's.
    let proxy_error = causes(&error).find(|cause| cause.to_string().starts_with("tunnel error"));
    if let Some(error) = proxy_error.filter(|_| is_connect) {
        let variable = variable.unwrap_or("HTTPS_PROXY or ALL_PROXY");
        let address = address(url);
        let message = format!("{address}: the proxy of {variable}: {}", describe(error));
        return ProviderError::new(kind, message);
    }
    let mut message = connection_problem(&error, kind, url, has_answered);
    // In these cases the error does not say whether the host or the proxy cannot be reached. If `NO_PROXY` is set,
    // the proxy is not named, even if `NO_PROXY` does not contain the host.
    let may_be_proxy = is_connect
        && (url.scheme() == "http" || error.is_timeout())
        && !["NO_PROXY", "no_proxy"].into_iter().any(&is_set);
    if let Some(variable) = variable.filter(|_| may_be_proxy) {
        message.push_str(&format!(" (or the proxy of {variable})"));
    }
    ProviderError::new(kind, message)
}

/// Returns the environment variable that sets the proxy of a URL. Ignores `NO_PROXY`.
fn proxy_variable(url: &Url, is_set: impl Fn(&str) -> bool) -> Option<&'static str> {
    if callsheet_tools::tls::is_loopback(url) {
        return None;
    }
    let of_scheme = match url.scheme() {
        "https" => ["HTTPS_PROXY", "https_proxy"],
        _ => ["HTTP_PROXY", "http_proxy"],
    };
    of_scheme.into_iter().chain(["ALL_PROXY", "all_proxy"]).find(|&name| is_set(name))
}

/// Describes an error of the HTTP client in one line, except those of a proxy's tunnel.
fn connection_problem(
    error: &reqwest::Error,
    kind: ProviderErrorKind,
    url: &Url,
    has_answered: bool,
) -> String {
    let address = address(url);
    let is_connect = kind == ProviderErrorKind::Connect;
    let is_https = url.scheme() == "https";
    let tls_error = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>());
    if let Some(error) = tls_error.filter(|_| is_connect) {
        return handshake_problem(error, &address);
    }
    let may_speak_tls = !is_https && !has_answered;
    let https_advice = if may_speak_tls { " (use https:// if it speaks TLS)" } else { "" };
    let io_kind = io_kind(error);
    let is_closed =
        matches!(io_kind, Some(io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe))
            || has_cause(error, "connection closed before message completed");
    match io_kind {
        _ if is_connect && has_cause(error, "dns error") => {
            format!("{address}: the name cannot be resolved (see the model's base_url)")
        }
        Some(io::ErrorKind::ConnectionRefused) => format!("nothing listens at {address}"),
        Some(io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable) => {
            format!("{address} cannot be reached")
        }
        _ if is_connect
            && is_https
            && (is_closed || io_kind == Some(io::ErrorKind::UnexpectedEof)) =>
        {
            format!("{address} ended the TLS handshake (use http:// if it does not speak TLS)")
        }
        _ if is_closed && error.is_request() => {
            format!("{address} closed the connection without an answer{https_advice}")
        }
        _ if is_closed => format!("{address} closed the connection"),
        Some(_) | None if is_connect && error.is_timeout() => {
            format!("{address} did not accept a connection in time (connect_timeout)")
        }
        Some(_) | None if has_cause(error, "invalid HTTP version") => {
            format!("{address} does not speak HTTP{https_advice}")
        }
        Some(_) | None => describe(error),
    }
}

/// Returns whether the connection of a request was closed before the answer began, whatever closed it: its end, a
/// reset, or a GOAWAY of HTTP/2. A stream of HTTP/2 that the service refuses counts too: it was not processed.
pub(super) fn is_lost_connection(error: &reqwest::Error) -> bool {
    const MESSAGES: [&str; 4] = [
        "connection closed before message completed",
        "operation was canceled",
        "connection error received",
        "stream error received: refused stream",
    ];
    let is_closed = || match io_kind(error) {
        Some(
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::NotConnected
            | io::ErrorKind::UnexpectedEof,
        ) => true,
        Some(_) | None => MESSAGES.into_iter().any(|message| has_cause(error, message)),
    };
    error.is_request() && !error.is_connect() && !error.is_timeout() && is_closed()
}

/// Returns the kind of the innermost I/O error.
fn io_kind(error: &reqwest::Error) -> Option<io::ErrorKind> {
    let io_errors = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    io_errors.last().map(io::Error::kind)
}

/// Describes the error of a TLS handshake and what to do about it.
fn handshake_problem(error: &rustls::Error, address: &str) -> String {
    if *error == rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType) {
        return format!("{address} does not speak TLS (use http://)");
    }
    let rustls::Error::InvalidCertificate(problem) = error else {
        return format!("the TLS handshake with {address} failed: {error}");
    };
    if matches!(problem, CertificateError::UnknownIssuer) {
        let advice = "add its issuer to the CA certificates of this machine";
        format!("the certificate of {address} is not trusted ({advice})")
    } else if matches!(problem, CertificateError::Expired | CertificateError::ExpiredContext { .. })
    {
        format!("the certificate of {address} has expired (renew it)")
    } else if matches!(
        problem,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }
    ) {
        format!("the certificate of {address} is for another name (see the model's base_url)")
    } else {
        format!("the certificate of {address} is not accepted: {problem}")
    }
}

/// Returns an error and its causes, including the error within an `io::Error`, which `source()` skips.
pub(super) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| cause(error))
}

fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(within) => Some(within),
        None => error.source(),
    }
}

/// Returns true if the message of the error or of a cause begins with this text. Some errors have no other mark,
/// because their types are private to the HTTP client.
fn has_cause(error: &reqwest::Error, message: &str) -> bool {
    causes(error).any(|cause| cause.to_string().starts_with(message))
}

/// Prefixes the message with the host and port of the service, unless it has them already.
pub(super) fn add_address(error: &mut ProviderError, url: &Url) {
    let address = address(url);
    if !contains_address(&error.message, &address) {
        error.message = format!("{address}: {}", error.message);
    }
}

/// Returns true if a message contains an address that is not part of a longer address.
fn contains_address(message: &str, address: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_');
    message.match_indices(address).any(|(at, _)| {
        let before = message.get(..at).unwrap_or_default();
        let after = message.get(at + address.len()..).unwrap_or_default();
        // A dot or colon may also be punctuation.
        let after = after.strip_prefix(['.', ':']).unwrap_or(after);
        !before.ends_with(|c: char| is_part(c) || c == '.') && !after.starts_with(is_part)
    })
}

/// Returns the host and port of a URL. The path and the query are left out, because they may hold a key.
fn address(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{host}{port}")
}

/// Returns advice for an unsuccessful status, to be appended to the error message.
pub(super) fn hint(status: u16, headers: &HeaderMap, retry_after: Option<Duration>) -> String {
    if let Some(wait) = retry_after {
        return format!(" (it asks to wait {wait:?})");
    }
    match status {
        300..=399 => {
            let to = headers.get(LOCATION).map(|to| String::from_utf8_lossy(to.as_bytes()));
            let to = to.map(|to| format!(" to {:?}", excerpt(&to, 200))).unwrap_or_default();
            format!(" (it redirects{to}, which is not followed: see the model's base_url)")
        }
        401 => " (see the model's api_key_env or api_key_file)".to_owned(),
        404 => " (see the model's base_url and name)".to_owned(),
        _ => String::new(),
    }
}

/// Returns an error if the body is compressed. The client does not request compression and cannot
/// decode it.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), ProviderError> {
    let encoding = headers.get(CONTENT_ENCODING).map(|value| value.as_bytes().trim_ascii());
    match encoding {
        None | Some(b"" | b"identity") => Ok(()),
        Some(encoding) => {
            let encoding = excerpt(&String::from_utf8_lossy(encoding), 40);
            let message =
                format!("the response is compressed ({encoding:?}), which was not requested");
            Err(ProviderError::new(ProviderErrorKind::Malformed, message))
        }
    }
}

/// Formats an error and its causes in one line.
pub(super) fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// Returns the error of a time limit of a response. `problem` describes what was missing; `key` is the configuration
/// key of the limit.
pub(super) fn timeout(problem: &str, after: Duration, key: &str) -> ProviderError {
    let message = format!("{problem} for {after:?}; raise the model's {key} if it needs longer");
    ProviderError::new(ProviderErrorKind::Timeout, message)
}

/// Returns the error of a response with more bytes than allowed.
pub(super) fn too_large(bytes_max: u64) -> ProviderError {
    let message = format!("the response is larger than {bytes_max} bytes (max_response_bytes)");
    ProviderError::new(ProviderErrorKind::TooLarge, message)
}

/// The service's instructions about a retry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RetryHints {
    /// Minimum wait before a retry.
    pub(super) retry_after: Option<Duration>,
    /// True if the service asks for a retry, false if it asks for none, `None` if it says neither.
    retryable: Option<bool>,
}

impl RetryHints {
    /// Reads `retry-after`, `retry-after-ms` and `x-should-retry`, as the SDKs of OpenAI and
    /// Anthropic do (`_should_retry` and `_parse_retry_after_header` in both).
    pub(super) fn read(headers: &HeaderMap, now: SystemTime) -> Self {
        let word = headers.get("x-should-retry").map(|value| value.as_bytes().trim_ascii());
        let retryable = match word {
            Some(b"true") => Some(true),
            Some(b"false") => Some(false),
            Some(_) | None => None,
        };
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        Self { retry_after: callsheet_tools::retry_after(text, now), retryable }
    }

    /// Copies the hints to an error. A wait from a header takes precedence over one from the body.
    pub(super) fn apply_to(self, error: &mut ProviderError) {
        error.retry_after = self.retry_after.or(error.retry_after);
        error.retryable = self.retryable.or(error.retryable);
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn x_should_retry_decides_about_retries() {
        for (word, expected) in
            [("true", Some(true)), (" false ", Some(false)), ("maybe", None), ("", None)]
        {
            let mut headers = HeaderMap::new();
            headers.insert("x-should-retry", word.parse().unwrap());
            let mut error = ProviderError::new(ProviderErrorKind::Status, "it is busy");
            error.retry_after = Some(Duration::from_secs(1));
            RetryHints::read(&headers, SystemTime::UNIX_EPOCH).apply_to(&mut error);
            assert_eq!(error.retryable, expected, "{word:?}");
            assert_eq!(
                error.retry_after,
                Some(Duration::from_secs(1)),
                "the value from the body is kept"
            );
        }
    }

    #[test]
    fn the_hint_depends_on_the_status() {
        let mut headers = HeaderMap::new();
        assert_eq!(hint(500, &headers, None), "");
        assert_eq!(hint(401, &headers, None), " (see the model's api_key_env or api_key_file)");
        assert_eq!(hint(429, &headers, Some(Duration::from_secs(90))), " (it asks to wait 90s)");
        headers.insert(LOCATION, "https://example.com/v1".parse().unwrap());
        assert_eq!(
            hint(307, &headers, None),
            " (it redirects to \"https://example.com/v1\", which is not followed: see the \
             model's base_url)"
        );
    }

    #[test]
    fn a_compressed_body_is_an_error() {
        let mut headers = HeaderMap::new();
        assert_eq!(check_encoding(&headers), Ok(()));
        headers.insert(CONTENT_ENCODING, "identity".parse().unwrap());
        assert_eq!(check_encoding(&headers), Ok(()));
        headers.insert(CONTENT_ENCODING, "gzip".parse().unwrap());
        let error = check_encoding(&headers).unwrap_err();
        assert_eq!(error.message, "the response is compressed (\"gzip\"), which was not requested");
    }

    #[test]
    fn an_error_names_host_and_port_but_not_the_path() {
        let url = Url::parse("https://key@example.com:8443/v1/secret?key=k").unwrap();
        let mut error = ProviderError::new(ProviderErrorKind::Timeout, "it was silent");
        add_address(&mut error, &url);
        assert_eq!(error.message, "example.com:8443: it was silent");
        add_address(&mut error, &url);
        assert_eq!(error.message, "example.com:8443: it was silent", "it has them already");
    }

    #[test]
    fn an_address_is_not_found_in_a_longer_one() {
        let url = Url::parse("https://a.com/v1").unwrap();
        for message in ["xa.com:1 is busy", "a.com:8443 is busy", "a.com.au is busy", "no b.a.com"]
        {
            let mut error = ProviderError::new(ProviderErrorKind::Status, message);
            add_address(&mut error, &url);
            assert_eq!(error.message, format!("a.com: {message}"));
        }
        for message in ["a.com: it was silent", "nothing listens at a.com.", "https://a.com/docs"] {
            let mut error = ProviderError::new(ProviderErrorKind::Status, message);
            add_address(&mut error, &url);
            assert_eq!(error.message, message);
        }
    }

    #[tokio::test]
    async fn a_proxy_that_refuses_the_connection_is_named() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let proxy = reqwest::Proxy::all(format!("http://{free}")).unwrap();
        let client = callsheet_tools::tls::client(reqwest::Client::builder().proxy(proxy)).unwrap();
        let tunnel =
            |variable: &str| format!("model.invalid: the proxy of {variable}: tunnel error: ");
        let direct = "nothing listens at model.invalid".to_owned();
        for (scheme, variables, expected) in [
            ("https", "", tunnel("HTTPS_PROXY or ALL_PROXY")),
            ("https", "https_proxy", tunnel("https_proxy")),
            ("https", "ALL_PROXY NO_PROXY", tunnel("ALL_PROXY")),
            ("http", "HTTP_PROXY", format!("{direct} (or the proxy of HTTP_PROXY)")),
            ("http", "HTTP_PROXY no_proxy", direct),
        ] {
            let url = Url::parse(&format!("{scheme}://model.invalid/key")).unwrap();
            let error = client.get(url.clone()).send().await.unwrap_err();
            let is_set = |name: &str| variables.split(' ').any(|variable| variable == name);
            let error = transport_error(error, &url, false, is_set);
            assert!(error.message.starts_with(&expected), "{}", error.message);
            let is_proxy_named = error.message.contains("proxy of");
            assert_eq!(is_proxy_named, expected.contains("proxy of"), "{}", error.message);
            assert_eq!(error.kind, ProviderErrorKind::Connect);
        }
    }

    #[test]
    fn the_variable_of_a_possible_proxy_is_named() {
        for (url, set, expected) in [
            ("http://a.com/", "HTTP_PROXY", Some("HTTP_PROXY")),
            ("http://a.com/", "all_proxy", Some("all_proxy")),
            ("http://a.com/", "HTTPS_PROXY", None),
            ("https://a.com/", "https_proxy", Some("https_proxy")),
            ("https://a.com/", "HTTP_PROXY", None),
            ("http://127.0.0.1/", "HTTP_PROXY", None),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(proxy_variable(&url, |name| name == set), expected, "{url} {set}");
        }
    }

    #[tokio::test]
    async fn errors_of_a_connection_are_one_short_line() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let client = callsheet_tools::tls::client(reqwest::Client::builder().no_proxy()).unwrap();
        let error = client.get(format!("http://{free}/key")).send().await.unwrap_err();
        let url = Url::parse(&format!("http://{free}/key")).unwrap();
        let error = transport(error, &url, false);
        assert_eq!(error.message, format!("nothing listens at {free}"));
        assert_eq!(error.kind, ProviderErrorKind::Connect);
    }

    /// Returns the error of a request to a server that answers with these bytes and closes.
    async fn error_of(scheme: &str, answer: &'static [u8]) -> (String, ProviderError) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            // A connection that is closed with unread bytes is reset, so the request is read first.
            assert!(connection.read(&mut [0; 4_096]).unwrap() > 0);
            connection.write_all(answer).unwrap();
            connection.shutdown(std::net::Shutdown::Write).unwrap();
            connection
        });
        let client = callsheet_tools::tls::client(reqwest::Client::builder().no_proxy()).unwrap();
        let url = Url::parse(&format!("{scheme}://{address}/key")).unwrap();
        let error = client.get(url.clone()).send().await.unwrap_err();
        drop(server.join().unwrap());
        (address, transport(error, &url, false))
    }

    #[tokio::test]
    async fn the_wrong_scheme_is_named() {
        let (address, error) = error_of("https", b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
        assert_eq!(error.message, format!("{address} does not speak TLS (use http://)"));
        assert_eq!(error.kind, ProviderErrorKind::Connect);
        let (address, error) = error_of("https", b"").await;
        let expected = "ended the TLS handshake (use http:// if it does not speak TLS)";
        assert_eq!(error.message, format!("{address} {expected}"));
        // A fatal alert.
        let (address, error) = error_of("http", &[21, 3, 3, 0, 2, 2, 70]).await;
        let expected = "does not speak HTTP (use https:// if it speaks TLS)";
        assert_eq!(error.message, format!("{address} {expected}"));
        assert_eq!(error.kind, ProviderErrorKind::Transport);
        let (address, error) = error_of("http", b"").await;
        let expected = "closed the connection without an answer (use https:// if it speaks TLS)";
        assert_eq!(error.message, format!("{address} {expected}"));
    }

    #[test]
    fn a_certificate_that_is_not_accepted_is_named() {
        for (problem, expected) in [
            (
                CertificateError::UnknownIssuer,
                "is not trusted (add its issuer to the CA certificates of this machine)",
            ),
            (CertificateError::Expired, "has expired (renew it)"),
            (CertificateError::NotValidForName, "is for another name (see the model's base_url)"),
            (CertificateError::BadSignature, "is not accepted: BadSignature"),
        ] {
            let error = rustls::Error::InvalidCertificate(problem);
            let expected = format!("the certificate of example.com {expected}");
            assert_eq!(handshake_problem(&error, "example.com"), expected);
        }
        let error = rustls::Error::HandshakeNotComplete;
        let expected = "the TLS handshake with example.com failed: handshake not complete";
        assert_eq!(handshake_problem(&error, "example.com"), expected);
    }

    #[test]
    fn each_cause_is_named_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("send request: no route")]
        struct Outer(#[source] std::io::Error);
        let inner = std::io::Error::other("no route");
        assert_eq!(describe(&Outer(inner)), "send request: no route");
    }
}
