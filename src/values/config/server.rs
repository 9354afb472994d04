//! The configuration of the HTTP server: `[server.tls]`.

use std::path::PathBuf;

use super::key_table::key_table;

key_table! {
    /// The files with which the HTTP server speaks TLS.
    ///
    /// ```
    /// use callsheet::config::{Config, TlsConfig};
    ///
    /// let tls = TlsConfig::new("/etc/callsheet/cert.pem", "/etc/callsheet/key.pem");
    /// let config = Config::default().with(|config| config.tls = Some(tls));
    /// # let _ = config;
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct TlsConfig(
        /// The file of the certificate and of those that lead to its root, as PEM. `SIGHUP` lets the host read both files
        /// again.
        cert: PathBuf => "path; required",
        /// The file of the private key of the certificate, as PEM.
        key: PathBuf => "path; required",
    ) {}
}

impl TlsConfig {
    /// Names the files.
    pub fn new(cert: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        Self::with_defaults(cert.into(), key.into())
    }
}
