//! The secret headers of requests to a server at a URL: values of variables and files, and the access token of OAuth.
//!
//! They are read at the start of each connection, and again after the server has refused a request (401), which is then
//! sent once more: it was not read.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use reqwest::Url;

use super::oauth::TokenSource;
use crate::defined_input::DefinitionError;
use crate::http_request::read_secret_headers;
use callsheet_values::config::{OAuthConfig, SecretSource, ServiceConfig};
use callsheet_values::types::Secrets;

/// The secret headers for one server, which all connections to it share.
pub(super) struct Credentials {
    secret_headers: BTreeMap<String, SecretSource>,
    tokens: Option<Arc<TokenSource>>,
    /// The values that were read last, without a token.
    last_read: Mutex<HeaderMap>,
    secrets: Secrets,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// # Errors
    /// If the URL of the token endpoint is invalid.
    pub(super) fn new(
        service: &ServiceConfig,
        oauth: Option<&OAuthConfig>,
        url: &Url,
        secrets: &Secrets,
    ) -> Result<Self, DefinitionError> {
        let tokens = oauth.map(|config| TokenSource::new(config, service, url, secrets));
        Ok(Self {
            secret_headers: service.secret_headers.clone(),
            tokens: tokens.transpose()?.map(Arc::new),
            last_read: Mutex::default(),
            secrets: secrets.clone(),
        })
    }

    /// Reads the variables and files again.
    ///
    /// # Errors
    /// The first problem.
    pub(super) async fn read(&self) -> Result<(), String> {
        let headers = read_secret_headers(&self.secret_headers, &self.secrets).await;
        *self.last_read.lock() = headers.map_err(|error| error.message().to_owned())?;
        Ok(())
    }

    /// Returns the headers of a request that is sent now.
    ///
    /// # Errors
    /// If there is no access token.
    pub(super) async fn headers(&self) -> Result<HeaderMap, String> {
        let mut headers = self.last_read.lock().clone();
        if let Some(tokens) = &self.tokens {
            headers.insert(AUTHORIZATION, tokens.header().await?);
        }
        Ok(headers)
    }

    /// Returns other headers than those that the server has refused. `None` if there are no others.
    pub(super) async fn after_refusal_of(&self, refused: &HeaderMap) -> Option<HeaderMap> {
        if let Some(tokens) = &self.tokens {
            tokens.renew_after(refused.get(AUTHORIZATION)).await;
        }
        if let Err(reason) = self.read().await {
            tracing::warn!(%reason, "secret_headers_not_read");
        }
        let headers = self.headers().await.ok()?;
        (headers != *refused).then_some(headers)
    }
}
