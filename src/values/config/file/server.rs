//! Reads `[server.tls]`.

use super::source::Section;
use crate::config::TlsConfig;

impl TlsConfig {
    /// Reads the files of TLS from `[server]`. Returns `None` without `[server.tls]`, and if a file is not named.
    pub(super) fn read(server: &Section<'_, '_>) -> Option<Self> {
        let section = server.table("tls");
        server.report_unknown_keys();
        let [cert, key] = ["cert", "key"].map(|key| section.path(key));
        if server.has("tls") {
            section.require("cert", &cert);
            section.require("key", &key);
        }
        section.report_unknown_keys();
        Some(Self::new(cert?, key?))
    }
}
