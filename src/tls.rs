//! HTTP clients with TLS.
//!
//! `reqwest` is built without a cryptography provider: it uses the one that the process has
//! installed, and panics without one. It also refuses to build a client on a machine without CA
//! certificates, although plain HTTP would work there.

use reqwest::{Client, ClientBuilder};
use rustls::crypto::CryptoProvider;

/// Builds a client with the process's cryptography provider and the machine's CA certificates. On a
/// machine without certificates the client trusts no server: plain HTTP works, HTTPS fails.
///
/// `describe` returns the client's settings. It is called once, and again if there are no
/// certificates.
///
/// # Errors
/// If the settings are invalid.
pub fn client(describe: impl Fn() -> ClientBuilder) -> reqwest::Result<Client> {
    install_provider();
    describe().build().or_else(|first| {
        let client = client_without_certificates(describe)?;
        tracing::warn!(error = %root_cause(&first), "no CA certificates: HTTPS will fail");
        Ok(client)
    })
}

fn client_without_certificates(describe: impl Fn() -> ClientBuilder) -> reqwest::Result<Client> {
    describe().tls_certs_only([]).build()
}

/// Installs *ring* as the process's provider, unless it has one.
fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails only if another thread has just installed one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

fn root_cause(error: &reqwest::Error) -> String {
    let mut deepest: &dyn std::error::Error = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_several_clients() {
        for _ in 0..2 {
            client(|| Client::builder().no_proxy()).unwrap();
        }
    }

    #[test]
    fn builds_a_client_without_certificates() {
        install_provider();
        client_without_certificates(|| Client::builder().no_proxy()).unwrap();
    }

    #[test]
    fn invalid_settings_are_an_error() {
        client(|| Client::builder().user_agent("new\nline")).unwrap_err();
    }
}
