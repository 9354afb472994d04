//! Access tokens of OAuth 2 for a server at a URL: `[mcp.NAME.oauth]`. The library asks the token endpoint; here is when
//! it is asked, and with which secrets.
//!
//! All connections to a server share its token. It is renewed before it ends: 30 s before, or after half of its time if
//! that is later. A token that the server refuses is renewed too, unless it is younger than 5 s. After a failure the
//! endpoint is not asked for 5 s; a token that has not ended is used meanwhile. A renewal runs to its end although its
//! caller gives up: the authorization server may have replaced the refresh token.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::HeaderValue;
use reqwest::redirect::Policy;
use reqwest::{Method, Url};
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, ClientCredentialsConfig,
    CredentialStore, InMemoryCredentialStore, OAuthClientConfig, OAuthHttpClient,
    OAuthHttpClientFuture, OAuthHttpRequest, OAuthTokenResponse, StoredCredentials,
};
use serde_json::{Map, Value, json};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::time::Instant;

use crate::defined_input::DefinitionError;
use crate::http::response::LimitedBody;
use crate::http::{HttpClient, HttpError};
use crate::http_request::{read_secret, service_client};
use callsheet_values::config::{OAuthConfig, OAuthGrant, SecretSource, ServiceConfig};
use callsheet_values::types::{Secrets, excerpt};

/// Time before the end of a token at which it is renewed, at most half of its time.
const RENEWED_BEFORE_END: Duration = Duration::from_secs(30);

/// Time for which a new token counts as good, and for which the endpoint is not asked after a failure.
const RENEWAL_PAUSE: Duration = Duration::from_secs(5);

/// Time limit of a request to the token endpoint.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of its answer in bytes.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Maximum number of characters of an error that is quoted.
const QUOTED_CHARS_MAX: usize = 300;

/// The members of an answer that the library reads (RFC 6749, sections 5.1 and 5.2).
const ANSWER_MEMBERS: [&str; 8] = [
    "access_token",
    "token_type",
    "expires_in",
    "refresh_token",
    "scope",
    "error",
    "error_description",
    "error_uri",
];

/// The access tokens for one server.
pub(super) struct TokenSource {
    config: OAuthConfig,
    /// The URL of the server, for which the tokens are.
    resource: Url,
    endpoint: Arc<TokenEndpoint>,
    /// Locked by a renewal until its end.
    state: Arc<Mutex<TokenState>>,
}

#[derive(Default)]
struct TokenState {
    token: Option<AccessToken>,
    /// The refresh token that was read last, and the one that the authorization server gave instead of it.
    replaced_refresh_token: Option<(String, String)>,
    /// The last failure since the last token.
    failure: Option<(Instant, String)>,
}

struct AccessToken {
    /// The value of the header `authorization`.
    header: HeaderValue,
    received_at: Instant,
    /// `None` if the authorization server does not say when it ends.
    lifetime: Option<Duration>,
}

impl AccessToken {
    fn is_due(&self) -> bool {
        self.lifetime.is_some_and(|lifetime| {
            self.received_at.elapsed() >= lifetime - RENEWED_BEFORE_END.min(lifetime / 2)
        })
    }

    fn has_ended(&self) -> bool {
        self.lifetime.is_some_and(|lifetime| self.received_at.elapsed() >= lifetime)
    }
}

impl TokenSource {
    /// Checks the URL of the token endpoint. Requests to it take the same proxy as those to the service.
    ///
    /// # Errors
    /// If the URL is invalid.
    pub(super) fn new(
        config: &OAuthConfig,
        service: &ServiceConfig,
        resource: &Url,
        secrets: &Secrets,
    ) -> Result<Self, DefinitionError> {
        let proxy = service.proxy.clone();
        let endpoint = ServiceConfig::new(&config.token_url).with(|new| new.proxy = proxy);
        let in_table =
            |error: DefinitionError| DefinitionError::new("oauth.token_url", error.message);
        let (url, client) = service_client(&endpoint, Policy::none).map_err(in_table)?;
        let endpoint = Arc::new(TokenEndpoint {
            url,
            client,
            secrets: secrets.clone(),
            uses_basic: AtomicBool::new(false),
            problem: parking_lot::Mutex::default(),
        });
        let mut resource = resource.clone();
        resource.set_fragment(None);
        Ok(Self { config: config.clone(), resource, endpoint, state: Arc::default() })
    }

    /// Returns the value of the header `authorization`. Waits for a new token if there is none, or if it ends soon.
    ///
    /// # Errors
    /// If there is no token, with the reason.
    pub(super) async fn header(self: &Arc<Self>) -> Result<HeaderValue, String> {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        if state.token.as_ref().is_none_or(AccessToken::is_due) {
            let renewed = self.renew(state).await;
            state = renewed.map_err(|reason| self.no_token(&reason))?;
        }
        match (&state.token, &state.failure) {
            (Some(token), _) if !token.has_ended() => Ok(token.header.clone()),
            (_, Some((_, reason))) => Err(self.no_token(reason)),
            (_, None) => Err(format!("the access token of {} has ended", self.endpoint.url)),
        }
    }

    fn no_token(&self, reason: &str) -> String {
        format!("no access token from {}: {reason}", self.endpoint.url)
    }

    /// Renews the token, if the server has refused it.
    pub(super) async fn renew_after(self: &Arc<Self>, refused: Option<&HeaderValue>) {
        let state = Arc::clone(&self.state).lock_owned().await;
        let is_refused = state.token.as_ref().is_some_and(|token| {
            Some(&token.header) == refused && token.received_at.elapsed() >= RENEWAL_PAUSE
        });
        if is_refused && let Err(reason) = self.renew(state).await {
            tracing::warn!(url = %self.endpoint.url, reason, "access_token_not_renewed");
        }
    }

    /// Renews the token in a task of its own, which goes on if the caller is dropped.
    ///
    /// # Errors
    /// If the task has panicked, or the runtime has ended.
    #[expect(
        clippy::disallowed_methods,
        reason = "the task ends within the time limits of its requests"
    )]
    async fn renew(
        self: &Arc<Self>,
        mut state: OwnedMutexGuard<TokenState>,
    ) -> Result<OwnedMutexGuard<TokenState>, String> {
        if state.failure.as_ref().is_some_and(|(at, _)| at.elapsed() < RENEWAL_PAUSE) {
            return Ok(state);
        }
        let source = Arc::clone(self);
        let renewal = tokio::spawn(async move {
            source.renew_now(&mut state).await;
            state
        });
        renewal.await.map_err(|error| match error.is_panic() {
            true => "its renewal failed by a bug of the host".to_owned(),
            false => "the host is shutting down".to_owned(),
        })
    }

    async fn renew_now(&self, state: &mut TokenState) {
        match self.request_token(state).await {
            Ok(token) => (state.token, state.failure) = (Some(token), None),
            Err(reason) => {
                let reason = excerpt(&self.endpoint.secrets.redact(&reason), QUOTED_CHARS_MAX);
                tracing::warn!(url = %self.endpoint.url, %reason, "access_token_not_renewed");
                state.failure = Some((Instant::now(), reason));
            }
        }
    }

    async fn request_token(&self, state: &mut TokenState) -> Result<AccessToken, String> {
        let secrets = &self.endpoint.secrets;
        let client_secret = match &self.config.client_secret {
            Some(source) => {
                Some(read_secret(source, secrets).await.map_err(|error| error.to_string())?)
            }
            None => None,
        };
        let given = match &self.config.grant {
            OAuthGrant::ClientCredentials => None,
            OAuthGrant::RefreshToken(source) => {
                let given =
                    read_secret(source, secrets).await.map_err(|error| error.to_string())?;
                Some((source, given))
            }
        };
        let received_at = Instant::now();
        let refresh_token = given.as_ref().map(|(_, given)| {
            let replaced = state.replaced_refresh_token.as_ref();
            replaced.filter(|(before, _)| before == given).map_or(given, |(_, token)| token)
        });
        let sent = refresh_token.cloned();
        let answer = self.ask(client_secret.as_deref(), sent.as_deref()).await?;
        let answer = serde_json::to_value(&answer).map_err(|error| error.to_string())?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str);
        // Without a new one, the library answers with the one that was sent.
        if let (Some((source, given)), Some(new)) = (given, text("refresh_token"))
            && Some(new) != sent.as_deref()
        {
            state.replaced_refresh_token = Some(self.keep_refresh_token(source, given, new).await);
        }
        let token = text("access_token").unwrap_or_default();
        let mut header = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| "the token is not a header's value".to_owned())?;
        header.set_sensitive(true);
        let lifetime = answer.get("expires_in").and_then(Value::as_u64).map(Duration::from_secs);
        Ok(AccessToken { header, received_at, lifetime })
    }

    /// Asks the token endpoint. The client's secret is in the body; if the endpoint refuses the client, it is asked once
    /// more, and from then on, with the secret in a header.
    async fn ask(
        &self,
        client_secret: Option<&str>,
        refresh_token: Option<&str>,
    ) -> Result<OAuthTokenResponse, String> {
        loop {
            let uses_basic = self.endpoint.uses_basic.load(Ordering::Relaxed);
            *self.endpoint.problem.lock() = None;
            let error = match self.ask_once(client_secret, refresh_token, uses_basic).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error.to_string(),
            };
            if uses_basic || client_secret.is_none() || !error.contains("invalid_client") {
                return Err(self.endpoint.problem.lock().take().unwrap_or(error));
            }
            self.endpoint.uses_basic.store(true, Ordering::Relaxed);
        }
    }

    async fn ask_once(
        &self,
        client_secret: Option<&str>,
        refresh_token: Option<&str>,
        uses_basic: bool,
    ) -> Result<OAuthTokenResponse, AuthError> {
        let endpoint = Arc::clone(&self.endpoint) as Arc<dyn OAuthHttpClient>;
        let (client_id, resource) = (&self.config.client_id, &self.resource);
        let mut manager =
            AuthorizationManager::new_with_oauth_http_client(resource.clone(), endpoint).await?;
        manager.set_metadata(self.metadata(uses_basic));
        let scopes = self.config.scope.iter().flat_map(|scope| scope.split_whitespace());
        let scopes: Vec<String> = scopes.map(str::to_owned).collect();
        let Some(refresh_token) = refresh_token else {
            let config = ClientCredentialsConfig::ClientSecret {
                client_id: client_id.clone(),
                client_secret: client_secret.unwrap_or_default().to_owned(),
                scopes,
                resource: Some(resource.to_string()),
            };
            manager.configure_client_credentials(&config)?;
            return manager.exchange_client_credentials(&config).await;
        };
        // The library renews a token that it has stored. This one has no access token yet.
        let stored =
            json!({"access_token": "", "token_type": "bearer", "refresh_token": refresh_token});
        let stored = serde_json::from_value(stored)
            .map_err(|error| AuthError::InternalError(error.to_string()))?;
        let store = InMemoryCredentialStore::new();
        store.save(StoredCredentials::new(client_id.clone(), Some(stored), scopes, None)).await?;
        manager.set_credential_store(store);
        // The redirect is of another grant.
        let mut client = OAuthClientConfig::new(client_id, resource.as_str());
        client.client_secret = client_secret.map(str::to_owned);
        manager.configure_client(client)?;
        manager.refresh_token().await
    }

    fn metadata(&self, uses_basic: bool) -> AuthorizationMetadata {
        let method = if uses_basic { "client_secret_basic" } else { "client_secret_post" };
        let methods = ("token_endpoint_auth_methods_supported".to_owned(), json!([method]));
        let mut metadata = AuthorizationMetadata::default();
        // The library wants both. Nobody is sent to the first.
        metadata.authorization_endpoint = self.endpoint.url.to_string();
        metadata.token_endpoint = self.endpoint.url.to_string();
        metadata.additional_fields = HashMap::from([methods]);
        metadata
    }

    /// Writes a refresh token that the authorization server gave instead of the present one to the file of that one.
    /// Returns the token that is in the file then, and the new one.
    async fn keep_refresh_token(
        &self,
        source: &SecretSource,
        given: String,
        new: &str,
    ) -> (String, String) {
        let failure = match source {
            SecretSource::File(path) => {
                let (path, text) = (path.clone(), new.to_owned());
                let written = tokio::task::spawn_blocking(move || replace_file(&path, &text));
                match written.await {
                    Ok(Ok(())) => return (new.to_owned(), new.to_owned()),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "the host shuts down".to_owned(),
                }
            }
            SecretSource::Variable(_) => "a variable cannot be written".to_owned(),
        };
        let message = "refresh_token_not_stored: the authorization server has replaced it, so the host needs a new one \
                       after its next start";
        tracing::warn!(place = %source, error = failure, "{message}");
        (given, new.to_owned())
    }
}

/// Replaces the content of a file with a secret at once, and keeps its permissions.
fn replace_file(path: &Path, text: &str) -> std::io::Result<()> {
    let path = std::fs::canonicalize(path)?;
    let permissions = std::fs::metadata(&path)?.permissions();
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.set_permissions(permissions)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&new, &path)
    };
    written().inspect_err(|_| {
        let _ = std::fs::remove_file(&new);
    })
}

/// The token endpoint, as the library asks it.
struct TokenEndpoint {
    url: Url,
    client: HttpClient,
    secrets: Secrets,
    /// True if the client's secret is in a header.
    uses_basic: AtomicBool,
    /// The problem of the last request, which the library's errors do not tell.
    problem: parking_lot::Mutex<Option<String>>,
}

impl OAuthHttpClient for TokenEndpoint {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let answered = tokio::time::timeout(REQUEST_TIMEOUT, self.answer(request)).await;
            let answered = answered.unwrap_or_else(|_| {
                Err(format!("it did not answer within {} s", REQUEST_TIMEOUT.as_secs()))
            });
            answered.map_err(|reason| {
                *self.problem.lock() = Some(reason.clone());
                reason.into()
            })
        })
    }
}

impl TokenEndpoint {
    async fn answer(&self, request: OAuthHttpRequest) -> Result<http::Response<Vec<u8>>, String> {
        let (parts, body) = request.request.into_parts();
        let client = self.client.reachable_client_for(&self.url).await;
        let client = client.map_err(|error| error.to_string())?;
        let request = client.request(Method::POST, self.url.clone()).headers(parts.headers);
        let response = request.body(body).send().await;
        let response = response.map_err(|error| HttpError::from(error).to_string())?;
        let status = response.status();
        let body = LimitedBody::read(response, ANSWER_BYTES_MAX).await;
        let body = body.map_err(|error| error.to_string())?;
        let LimitedBody::Text { bytes, .. } = &body else {
            return Err(format!("HTTP {status}: {}", body.redacted_text(&self.secrets)));
        };
        let Some(answer) = token_answer(bytes) else {
            let quoted = excerpt(&body.redacted_text(&self.secrets), QUOTED_CHARS_MAX);
            return Err(format!("HTTP {status}, and no answer of OAuth: {quoted}"));
        };
        for (kind, value) in [("access", "access_token"), ("refresh", "refresh_token")] {
            if let Some(token) = answer.get(value).and_then(Value::as_str) {
                self.secrets.add_value_of(&format!("{kind} token of {}", self.url), token);
            }
        }
        let mut response = http::Response::new(Value::from(answer).to_string().into_bytes());
        *response.status_mut() = status;
        let json = HeaderValue::from_static("application/json");
        response.headers_mut().insert(http::header::CONTENT_TYPE, json);
        Ok(response)
    }
}

/// Reads the answer of a token endpoint, also one that is nearly as the standard says: some write `expires_in` as a
/// string, and leave `token_type` out. Leaves out the members that the library does not read. `None` if it is neither a
/// token nor an error.
fn token_answer(body: &[u8]) -> Option<Map<String, Value>> {
    let mut answer: Map<String, Value> = serde_json::from_slice(body).ok()?;
    answer.retain(|name, value| ANSWER_MEMBERS.contains(&name.as_str()) && !value.is_null());
    if !answer.contains_key("access_token") && !answer.contains_key("error") {
        return None;
    }
    let seconds = answer.get("expires_in").and_then(|value| match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse().ok(),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    });
    answer.remove("expires_in");
    if let Some(seconds) = seconds.filter(|seconds: &f64| *seconds > 0.0 && seconds.is_finite()) {
        answer.insert("expires_in".to_owned(), json!(seconds as u64));
    }
    if answer.contains_key("access_token") {
        answer.entry("token_type").or_insert_with(|| json!("bearer"));
    }
    Some(answer)
}
