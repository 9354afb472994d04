//! The API key of a service that is in a file, which is replaced while the host runs.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{HeaderName, HeaderValue};
use tokio::time::Instant;

use callsheet_values::config::SecretSource;
use callsheet_values::types::Secrets;
use callsheet_wire::KeyHeader;

/// Time after which the next request reads the file again.
const READ_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The file of an API key. It is read again by the first request that is sent 10 s after it was read, and after the
/// service has refused the key.
pub(super) struct KeyFile {
    source: SecretSource,
    pub(super) header_name: HeaderName,
    prefix: &'static str,
    /// The secrets of the host.
    secrets: Secrets,
    /// The header with the key that was read last, and the time of the last attempt to read. `None` before the first one.
    last_read: Mutex<Option<(HeaderValue, Instant)>>,
}

impl KeyFile {
    pub(super) fn new(source: SecretSource, header: KeyHeader, secrets: Secrets) -> Self {
        let KeyHeader { name, prefix } = header;
        Self {
            source,
            header_name: HeaderName::from_static(name),
            prefix,
            secrets,
            last_read: Mutex::default(),
        }
    }

    /// Returns the header for a request that is sent now. `None` if the file could never be read.
    pub(super) async fn header(&self) -> Option<HeaderValue> {
        let last = self.last_read.lock().clone();
        match last {
            Some((header, read_at)) if read_at.elapsed() < READ_AGAIN_AFTER => Some(header),
            _ => self.read().await,
        }
    }

    /// Lets the next request read the file again.
    pub(super) fn read_again(&self) {
        if let Some((_, read_at)) = &mut *self.last_read.lock() {
            *read_at = read_at.checked_sub(READ_AGAIN_AFTER).unwrap_or(*read_at);
        }
    }

    /// Returns another header than the one with the key that the service has refused. `None` if the file has no other
    /// key.
    pub(super) async fn after_refusal_of(
        &self,
        refused: Option<&HeaderValue>,
    ) -> Option<HeaderValue> {
        self.read().await.filter(|header| Some(header) != refused)
    }

    async fn read(&self) -> Option<HeaderValue> {
        let source = self.source.clone();
        // The file may lie on a slow or broken file system.
        let read = tokio::task::spawn_blocking(move || source.read()).await.ok()?;
        let header = read.map_err(|error| error.to_string()).and_then(|key| {
            self.secrets.add_value_of(&self.source.to_string(), &key);
            let header = HeaderValue::from_str(&format!("{}{key}", self.prefix));
            header.map_err(|_| "the key contains characters that a header cannot hold".to_owned())
        });
        let mut last = self.last_read.lock();
        let header = match header {
            Ok(mut header) => {
                header.set_sensitive(true);
                header
            }
            Err(reason) => {
                tracing::warn!(%reason, "api_key_file_not_read");
                last.as_ref().map(|(header, _)| header.clone())?
            }
        };
        *last = Some((header.clone(), Instant::now()));
        Some(header)
    }
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyFile").field("source", &self.source).finish_non_exhaustive()
    }
}
