//! TLS of the server: its certificate, and a new one while the server runs.
#![expect(clippy::unwrap_used, reason = "a failed test may panic")]

use std::path::PathBuf;
use std::sync::Arc;

use crate::client::Service;
use callsheet::config::TlsConfig;
use callsheet::server::{ServerOptions, ServerTls};
use rcgen::{CertifiedKey, KeyPair};
use reqwest::Client;
use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use serde_json::json;

/// A folder with a certificate and its key.
struct Files(PathBuf);

impl Files {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("callsheet-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }

    /// Writes a new certificate and its key, and returns a client that trusts it alone.
    fn renew(&self) -> Client {
        let CertifiedKey { cert, signing_key } = certificate();
        self.write("cert.pem", &cert.pem());
        self.write("key.pem", &signing_key.serialize_pem());
        client(cert.der())
    }

    fn tls(&self) -> TlsConfig {
        TlsConfig::new(self.0.join("cert.pem"), self.0.join("key.pem"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn certificate() -> CertifiedKey<KeyPair> {
    rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap()
}

fn client(certificate: &CertificateDer<'_>) -> Client {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone().into_owned()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    // Each request has a connection of its own.
    let settings = Client::builder().no_proxy().pool_max_idle_per_host(0);
    settings.tls_backend_preconfigured(config).build().unwrap()
}

#[tokio::test]
async fn a_server_speaks_tls_and_reads_a_new_certificate_on_request() {
    let files = Files::new("tls");
    let first = files.renew();
    let options =
        ServerOptions::default().with(|new| new.tls = Some(ServerTls::load(files.tls()).unwrap()));
    let script = json!({"responses": [{"text": ["Well."]}]});
    let service = Service::start_with(script, "", options).await;
    assert_eq!(service.server.url(), format!("https://{}", service.addr()));
    let base = format!("https://localhost:{}", service.addr().port());
    let get = async |client: &Client| {
        client.get(format!("{base}/healthz")).send().await.map(|answer| answer.status().as_u16())
    };
    assert_eq!(get(&first).await.unwrap(), 200);
    let post = async |path: &str, body: serde_json::Value| {
        let sent = first.post(format!("{base}/v1/sessions{path}")).json(&body).send().await;
        sent.unwrap().text().await.unwrap()
    };
    post("", json!({"id": "s"})).await;
    let report = post("/s/runs", json!({"input": "go", "wait": true})).await;
    assert!(report.contains("\"Well.\""), "{report}");
    let page = first.get(format!("{base}/")).send().await.unwrap().text().await.unwrap();
    assert!(page.contains(&format!("BASE=https://{}", service.addr())), "{page}");
    // Plain HTTP gets no answer.
    let plain = callsheet::tls::client(Client::builder().no_proxy()).unwrap();
    let plain = plain.get(format!("http://{}/healthz", service.addr())).send().await;
    assert!(plain.is_err(), "{plain:?}");

    // Files that cannot be used keep the last certificate.
    let whole = std::fs::read_to_string(files.0.join("key.pem")).unwrap();
    for key in ["", "no key", &certificate().signing_key.serialize_pem()] {
        files.write("key.pem", key);
        service.server.read_secrets_again().await;
        assert_eq!(get(&first).await.unwrap(), 200, "{key}");
    }
    files.write("key.pem", &whole);
    let second = files.renew();
    service.server.read_secrets_again().await;
    assert_eq!(get(&second).await.unwrap(), 200);
    assert!(get(&first).await.is_err(), "the first certificate is not used any more");
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let files = Files::new("tls-files");
    let load = |cert: &str, key: &str| {
        files.write("cert.pem", cert);
        files.write("key.pem", key);
        ServerTls::load(files.tls())
            .unwrap_err()
            .to_string()
            .replace(&*files.0.to_string_lossy(), "")
    };
    let CertifiedKey { cert, signing_key } = certificate();
    let (cert, key) = (cert.pem(), signing_key.serialize_pem());
    assert_eq!(load("", &key), "cert: the file /cert.pem has no certificate in PEM form");
    assert_eq!(load(&key, &key), "cert: the file /cert.pem has no certificate in PEM form");
    assert_eq!(load(&cert, &cert), "key: the file /key.pem has no private key in PEM form");
    let other = certificate().signing_key.serialize_pem();
    assert_eq!(
        load(&cert, &other),
        "key: the key in /key.pem is not that of the certificate in /cert.pem"
    );
    let missing = ServerTls::load(TlsConfig::new("/nowhere/c", "/nowhere/k")).unwrap_err();
    let reason = "the file /nowhere/c cannot be read: No such file or directory (os error 2)";
    assert_eq!((missing.key, missing.message.as_str()), ("cert", reason));
}
