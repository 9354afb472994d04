//! TLS of the server: the certificate and its key, which are read again while it runs.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use callsheet_tools::tls::provider;
use callsheet_values::config::TlsConfig;

/// The certificate with which a server speaks TLS. Cloning is cheap: all clones have the certificate that was read last.
///
/// ```no_run
/// use callsheet::config::TlsConfig;
/// use callsheet::server::{ServerOptions, ServerTls};
///
/// let tls = ServerTls::load(TlsConfig::new("cert.pem", "key.pem"))?;
/// let options = ServerOptions::default().with(|options| options.tls = Some(tls));
/// # let _ = options;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ServerTls {
    files: TlsConfig,
    config: Arc<RwLock<Arc<ServerConfig>>>,
}

/// The reason why a server cannot speak TLS with its files.
///
/// Returned by [`ServerTls::load`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerTlsError {
    /// The key of `[server.tls]` whose file cannot be used: `cert` or `key`.
    pub key: &'static str,
    /// The reason.
    pub message: String,
}

impl fmt::Display for ServerTlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

impl std::error::Error for ServerTlsError {}

impl ServerTls {
    /// Reads the files. The cryptography provider is the process's own, if the program has installed one, and *ring*
    /// otherwise.
    ///
    /// # Errors
    /// If a file cannot be read, has no certificate or no private key, or if the two do not belong together.
    pub fn load(files: TlsConfig) -> Result<Self, ServerTlsError> {
        let config = Arc::new(RwLock::new(Arc::new(read(&files)?)));
        Ok(Self { files, config })
    }

    /// Reads the files again, for later connections.
    pub(super) fn read_again(&self) -> Result<(), ServerTlsError> {
        let config = Arc::new(read(&self.files)?);
        *self.config.write() = config;
        Ok(())
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.config.read()).into()
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("files", &self.files).finish_non_exhaustive()
    }
}

fn read(files: &TlsConfig) -> Result<ServerConfig, ServerTlsError> {
    let of_cert = |message| ServerTlsError { key: "cert", message };
    let of_key = |message| ServerTlsError { key: "key", message };
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_file_iter(&files.cert).and_then(Iterator::collect);
    let chain = chain.map_err(|error| of_cert(problem(&files.cert, &error)))?;
    if chain.is_empty() {
        let file = files.cert.display();
        return Err(of_cert(format!("the file {file} has no certificate in PEM form")));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key);
    let key = key.map_err(|error| of_key(problem(&files.key, &error)))?;
    let builder = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| of_cert(error.to_string()))?;
    let config = builder.with_no_client_auth().with_single_cert(chain, key);
    let mut config = config.map_err(|error| {
        let (key, cert) = (files.key.display(), files.cert.display());
        match matches!(error, rustls::Error::InconsistentKeys(_)) {
            true => of_key(format!("the key in {key} is not that of the certificate in {cert}")),
            false => of_cert(format!("the file {cert} cannot be used: {error}")),
        }
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

fn problem(file: &Path, error: &pem::Error) -> String {
    let file = file.display();
    if let pem::Error::Io(error) = error {
        return format!("the file {file} cannot be read: {error}");
    }
    if matches!(error, pem::Error::NoItemsFound) {
        return format!("the file {file} has no private key in PEM form");
    }
    format!("the file {file} is not in PEM form: {error}")
}
