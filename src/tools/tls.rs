//! HTTP clients with TLS.
//!
//! Nothing of the process is changed: each client has a TLS configuration of its own, so a program
//! may install a cryptography provider for itself at any time. `reqwest` alone would use the
//! process's provider and panic without one. It would also refuse to build a client on a machine
//! without CA certificates, although plain HTTP works there.

use std::error::Error;
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use reqwest::{Client, ClientBuilder, Url};
use rustls::crypto::CryptoProvider;
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt as _;

/// The protocols that a client offers to a server by ALPN, the preferred one first.
const ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The reason why an HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct TlsClientError(Box<dyn Error + Send + Sync>);

/// Builds a client with the machine's CA certificates. On a machine without certificates the client
/// trusts no server: plain HTTP works, HTTPS fails.
///
/// The cryptography provider is the process's own, if the program has installed one, and *ring*
/// otherwise.
///
/// # Errors
/// If the settings are invalid, or the process's provider supports no version of TLS.
pub fn client(settings: ClientBuilder) -> Result<Client, TlsClientError> {
    match with_system_certificates() {
        Ok(config) => build(settings, ClientConfig::clone(&config)),
        Err(error) => {
            tracing::warn!(%error, "no CA certificates: HTTPS will fail");
            build(settings, without_certificates()?)
        }
    }
}

/// Returns true if a URL names this machine by `localhost` or a loopback address. Such a service is asked without a
/// proxy.
#[must_use]
pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let name = host.trim_end_matches('.');
    name == "localhost"
        || name.ends_with(".localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

fn build(settings: ClientBuilder, mut config: ClientConfig) -> Result<Client, TlsClientError> {
    config.alpn_protocols = ALPN.map(<[u8]>::to_vec).to_vec();
    settings.tls_backend_preconfigured(config).build().map_err(|error| TlsClientError(error.into()))
}

/// Returns the TLS configuration with the machine's CA certificates, for a client of another protocol than HTTP.
///
/// # Errors
/// If the machine has no certificates, or the process's provider supports no version of TLS.
pub fn client_config() -> Result<Arc<ClientConfig>, rustls::Error> {
    with_system_certificates()
}

/// Returns the configuration with the machine's CA certificates, which are read once for each provider, or again if
/// there were none.
fn with_system_certificates() -> Result<Arc<ClientConfig>, rustls::Error> {
    static LAST: Mutex<Option<(Arc<CryptoProvider>, Arc<ClientConfig>)>> = Mutex::new(None);
    let provider = provider();
    let mut last = LAST.lock();
    if let Some((last_provider, config)) = &*last
        && Arc::ptr_eq(last_provider, &provider)
    {
        return Ok(Arc::clone(config));
    }
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()?
        .with_platform_verifier()?;
    let config = Arc::new(config.with_no_client_auth());
    *last = Some((provider, Arc::clone(&config)));
    Ok(config)
}

fn without_certificates() -> Result<ClientConfig, TlsClientError> {
    let config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsClientError(error.into()))?;
    Ok(config.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Returns the cryptography provider of the process, if the program has installed one, and *ring* otherwise.
pub fn provider() -> Arc<CryptoProvider> {
    static RING: LazyLock<Arc<CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::ring::default_provider()));
    CryptoProvider::get_default().cloned().unwrap_or_else(|| Arc::clone(&RING))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_several_clients() {
        for _ in 0..2 {
            client(Client::builder().no_proxy()).unwrap();
        }
    }

    #[test]
    fn the_certificates_are_read_once() {
        let (one, two) = (with_system_certificates(), with_system_certificates());
        // A machine without certificates has nothing to keep.
        let same = one.ok().zip(two.ok()).is_none_or(|(one, two)| Arc::ptr_eq(&one, &two));
        assert!(same);
    }

    #[test]
    fn builds_a_client_without_certificates() {
        build(Client::builder().no_proxy(), without_certificates().unwrap()).unwrap();
    }

    #[test]
    fn loopback_hosts_are_recognised() {
        for (host, expect) in [
            ("localhost", true),
            ("LOCALHOST.", true),
            ("model.localhost", true),
            ("127.9.9.9", true),
            ("[::1]", true),
            ("[::ffff:127.0.0.1]", true),
            ("notlocalhost", false),
            ("localhost.example.com", false),
            ("127.0.0.1.example.com", false),
            ("10.0.0.1", false),
        ] {
            let url = Url::parse(&format!("http://{host}:1/v1")).unwrap();
            assert_eq!(is_loopback(&url), expect, "{host}");
        }
    }

    #[test]
    fn invalid_settings_are_an_error() {
        client(Client::builder().user_agent("new\nline")).unwrap_err();
    }
}
