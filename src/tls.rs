//! Makes HTTP clients that can speak TLS.
//!
//! `reqwest` is built without a cryptography of its own: it takes the one that the process has
//! installed, and panics when there is none. And it refuses to make a client at all on a machine
//! without CA certificates, where plain HTTP would still work.

use reqwest::{Client, ClientBuilder};
use rustls::crypto::CryptoProvider;

/// Makes a client, with the process's cryptography and the machine's CA certificates. Where the
/// machine has none, the client trusts nobody: plain HTTP works, and HTTPS fails as untrusted.
///
/// `describe` gives the client's settings; it is called once, and again where there are no
/// certificates.
///
/// # Errors
/// When the settings themselves are refused.
pub fn client(describe: impl Fn() -> ClientBuilder) -> reqwest::Result<Client> {
    install_provider();
    describe().build().or_else(|first| {
        let client = trusting_nobody(describe)?;
        tracing::warn!(error = %reason(&first), "no CA certificates: HTTPS will fail");
        Ok(client)
    })
}

fn trusting_nobody(describe: impl Fn() -> ClientBuilder) -> reqwest::Result<Client> {
    describe().tls_certs_only([]).build()
}

/// Installs *ring* for the process, unless it has another.
fn install_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails only when somebody was faster, and then there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

fn reason(error: &reqwest::Error) -> String {
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
    fn makes_a_client_twice() {
        for _ in 0..2 {
            client(|| Client::builder().no_proxy()).unwrap();
        }
    }

    #[test]
    fn makes_a_client_without_certificates() {
        install_provider();
        trusting_nobody(|| Client::builder().no_proxy()).unwrap();
    }

    #[test]
    fn hands_on_what_is_wrong_with_the_settings() {
        client(|| Client::builder().user_agent("new\nline")).unwrap_err();
    }
}
