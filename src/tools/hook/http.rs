//! A hook that sends an HTTP request: `[[hooks]]` with `kind = "http"`.
//!
//! The service receives one JSON object by POST. A response with a status from 200 to 299 holds the answer. Any
//! other one, also a redirect, is a failure. The caller limits the time.

use std::collections::BTreeMap;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderMap};
use reqwest::redirect::Policy;
use reqwest::{Response, Url};

use super::{Hook, HookAnswer, HookError, HookInput};
use crate::defined_input::DefinitionError;
use crate::http::response::{LimitedBody, status_line};
use crate::http::{HttpClient, HttpError};
use crate::http_request::{check_headers, read_secret_headers, service_client};
use callsheet_values::config::{SecretSource, ServiceConfig};
use callsheet_values::types::{Secrets, excerpt};

/// Maximum size of an answer in bytes: 8 MiB.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Maximum number of characters of an answer that an error quotes.
const QUOTED_CHARS_MAX: usize = 200;

/// A hook that sends an HTTP request.
#[derive(Debug)]
pub(super) struct HttpHook {
    client: HttpClient,
    url: Url,
    headers: HeaderMap,
    secret_headers: BTreeMap<String, SecretSource>,
    /// The secrets of the host.
    secrets: Secrets,
}

impl HttpHook {
    /// Checks the URL and the headers of a hook.
    ///
    /// # Errors
    /// If the URL, a header, the proxy or a rule of `allow` is invalid. Reports the first.
    pub(super) fn new(service: &ServiceConfig, secrets: &Secrets) -> Result<Self, DefinitionError> {
        let (url, client) = service_client(service, Policy::none)?;
        let headers = check_headers(&service.headers, &service.secret_headers)?;
        let (secret_headers, secrets) = (service.secret_headers.clone(), secrets.clone());
        Ok(Self { client, url, headers, secret_headers, secrets })
    }

    async fn send(
        &self,
        input: &HookInput,
        secret_headers: HeaderMap,
    ) -> Result<Response, HttpError> {
        let body = serde_json::to_string(input);
        let body = body.map_err(|error| HttpError::Transport(error.to_string()))?;
        let request = self.client.reachable_client_for(&self.url).await?.post(self.url.clone());
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        Ok(request.headers(self.headers.clone()).headers(secret_headers).send().await?)
    }
}

#[async_trait]
impl Hook for HttpHook {
    async fn answer(&self, input: &HookInput) -> Result<HookAnswer, HookError> {
        let read = read_secret_headers(&self.secret_headers, &self.secrets).await;
        let secret_headers = read.map_err(|error| HookError::new(error.message()))?;
        let response = self.send(input, secret_headers).await.map_err(HookError::new)?;
        let status = response.status();
        let body = LimitedBody::read(response, ANSWER_BYTES_MAX).await.map_err(HookError::new)?;
        if !status.is_success() {
            let body = excerpt(&body.redacted_text(&self.secrets), QUOTED_CHARS_MAX);
            return Err(HookError::new(format!("HTTP {}: {body}", status_line(status))));
        }
        match &body {
            LimitedBody::Text { bytes, is_complete: true, .. } => {
                HookAnswer::parse(bytes, &self.secrets)
            }
            LimitedBody::Text { .. } => {
                Err(HookError::new(format!("its answer has more than {ANSWER_BYTES_MAX} bytes")))
            }
            LimitedBody::Unreadable { .. } => {
                Err(HookError::new(body.redacted_text(&self.secrets)))
            }
        }
    }
}
