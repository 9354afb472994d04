//! The tokens that requests may carry, and what each of them may do: authentication and authorization.
//!
//! [`Guard`](super::Guard) finds the token of a request and adds its [`Caller`]. The routes check the caller's scope
//! (`routes`), and the extractor of a path's session (`extract`) checks its agents.

use std::borrow::Cow;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::extract::{FromRequestParts, Request};
use axum::http::HeaderValue;
use axum::http::request::Parts;
use axum::middleware::Next;
use axum::response::Response;
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;

use super::error::ApiError;
use super::state::ServerOptions;
use callsheet_host::journal::SessionSummary;
use callsheet_host::runtime::{Host, HostError, HostEvent, SessionHandle, SessionStateChange};
use callsheet_values::config::{ApiKey, SecretSource, TOKEN_CHARS_MIN, TokenConfig, TokenScope};
use callsheet_values::types::{Author, is_child_session};

/// The tokens of a server. Cloning is cheap: all clones have the tokens that were read last.
#[derive(Clone, Debug, Default)]
pub(super) struct AccessTokens(Arc<RwLock<Arc<[AcceptedToken]>>>);

/// A token, and the file that it is read from again.
#[derive(Clone, Debug)]
pub(super) struct AcceptedToken {
    secret: ApiKey,
    file: Option<PathBuf>,
    caller: Caller,
}

impl AcceptedToken {
    /// The token of the host, whose requests may do everything and have no author.
    pub(super) fn of_host(secret: ApiKey, file: Option<PathBuf>) -> Self {
        Self { secret, file, caller: Caller::default() }
    }

    fn name(&self) -> &str {
        self.caller.0.as_ref().map_or("[host]", |token| &token.name)
    }
}

impl From<TokenConfig> for AcceptedToken {
    fn from(token: TokenConfig) -> Self {
        let (secret, file) = (token.token.clone(), token.file.clone());
        Self { secret, file, caller: Caller(Some(Arc::new(token))) }
    }
}

impl AccessTokens {
    pub(super) fn new(tokens: impl IntoIterator<Item = AcceptedToken>) -> Self {
        Self(Arc::new(RwLock::new(tokens.into_iter().collect())))
    }

    /// Returns these tokens and another one.
    pub(super) fn with(&self, token: AcceptedToken) -> Self {
        Self::new(self.all().iter().cloned().chain([token]))
    }

    fn all(&self) -> Arc<[AcceptedToken]> {
        Arc::clone(&self.0.read())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.read().is_empty()
    }

    /// Returns whether each token is hard to guess.
    pub(super) fn are_hard_to_guess(&self) -> bool {
        self.all().iter().all(|token| is_hard_to_guess(&token.secret))
    }

    /// Returns the caller with these credentials. Compares them with every token, each in constant time.
    pub(super) fn caller(&self, credentials: &[u8]) -> Option<Caller> {
        let tokens = self.all();
        let mut found = None;
        for token in &*tokens {
            if bool::from(credentials.ct_eq(token.secret.reveal().as_bytes())) {
                found = Some(&token.caller);
            }
        }
        found.cloned()
    }

    /// Reads the files of tokens again. A file that cannot be used keeps its last token.
    pub(super) fn read_again(&self, host: &Host, is_loopback: bool) {
        let mut tokens = self.all().to_vec();
        for at in 0..tokens.len() {
            let Some(token) = tokens.get(at).cloned() else { continue };
            let Some(file) = &token.file else { continue };
            let read = read_again(file, at, &tokens, is_loopback);
            match (read, tokens.get_mut(at)) {
                (Ok(secret), Some(entry)) if secret != token.secret => {
                    host.add_secret(&SecretSource::File(file.clone()).to_string(), secret.reveal());
                    entry.secret = secret;
                }
                (Ok(_), _) => {}
                (Err(reason), _) => {
                    tracing::warn!(token = token.name(), %reason, "token_file_not_read");
                }
            }
        }
        *self.0.write() = tokens.into();
    }
}

impl From<&ServerOptions> for AccessTokens {
    fn from(options: &ServerOptions) -> Self {
        let of_host = options
            .token
            .clone()
            .map(|token| AcceptedToken::of_host(token, options.token_file.clone()));
        Self::new(of_host.into_iter().chain(options.tokens.iter().cloned().map(Into::into)))
    }
}

fn is_hard_to_guess(token: &ApiKey) -> bool {
    token.reveal().len() >= TOKEN_CHARS_MIN
}

/// Reads the file of the token at this position, and checks it against the others.
fn read_again(
    file: &Path,
    at: usize,
    tokens: &[AcceptedToken],
    is_loopback: bool,
) -> Result<ApiKey, String> {
    let source = SecretSource::File(file.to_owned());
    let secret = source.read_token().map_err(|error| error.to_string())?;
    if !is_loopback && !is_hard_to_guess(&secret) {
        return Err(format!("{source} has a token of less than {TOKEN_CHARS_MIN} characters"));
    }
    let mut others = tokens.iter().enumerate().filter(|(other, _)| *other != at);
    match others.find(|(_, other)| other.secret == secret) {
        Some((_, other)) => Err(format!("{source} has the token of {}", other.name())),
        None => Ok(secret),
    }
}

/// A caller, as one host tells it another one.
#[derive(Debug, Serialize, Deserialize)]
struct ToldCaller<'a> {
    name: Cow<'a, str>,
    scope: Vec<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agents: Option<Vec<String>>,
}

/// The caller of a request, as its token tells. Without a named token it may do everything, and has no name.
#[derive(Clone, Debug, Default)]
pub(super) struct Caller(Option<Arc<TokenConfig>>);

impl Caller {
    /// Refuses a request that needs a scope which the caller does not have.
    pub(super) fn check_scope(&self, needed: TokenScope) -> Result<(), ApiError> {
        let Some(token) = self.0.as_ref().filter(|token| !token.allows(needed)) else {
            return Ok(());
        };
        let message = format!(
            "the token {:?} must not do this: its scope lacks {:?}",
            token.name,
            needed.as_str()
        );
        Err(ApiError::forbidden("forbidden_scope", message))
    }

    /// Returns whether the token of the caller has a name.
    pub(super) fn is_named(&self) -> bool {
        self.0.is_some()
    }

    /// Returns the author of what the caller does: the name of its token.
    pub(super) fn author(&self) -> Option<Author> {
        Some(Author::new(self.0.as_ref()?.name.as_str()))
    }

    /// Returns the session's handle that makes the caller the author of its requests.
    pub(super) fn with_author(&self, session: SessionHandle) -> SessionHandle {
        match self.author() {
            Some(author) => session.by(author),
            None => session,
        }
    }

    /// Returns whether the caller may reach the sessions of only some agents.
    pub(super) fn is_limited(&self) -> bool {
        self.agents().is_some()
    }

    /// Returns the caller as one host tells it another one, if its token has a name.
    pub(super) fn to_header(&self) -> Option<HeaderValue> {
        let token = self.0.as_ref()?;
        let scope: Vec<&str> = token.scope.iter().map(|scope| scope.as_str()).collect();
        let told = ToldCaller {
            name: token.name.as_str().into(),
            scope: scope.into_iter().map(Into::into).collect(),
            agents: token.agents.clone(),
        };
        let text = serde_json::to_string(&told).unwrap_or_default();
        // A name that no header can have is refused by the other host.
        Some(HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("-")))
    }

    /// Returns the caller that another host tells.
    pub(super) fn from_header(value: &HeaderValue) -> Option<Self> {
        let ToldCaller { name, scope, agents } = serde_json::from_slice(value.as_bytes()).ok()?;
        let scope: Option<Vec<_>> = scope.iter().map(|name| TokenScope::named(name)).collect();
        let token = TokenConfig::of_peer(name.into_owned(), scope?, agents);
        Some(Self(Some(Arc::new(token))))
    }

    fn agents(&self) -> Option<&[String]> {
        self.0.as_ref()?.agents.as_deref()
    }

    /// Returns whether the caller may reach sessions of this agent.
    pub(super) fn reaches(&self, agent: &str) -> bool {
        self.reaches_path([agent])
    }

    /// Returns whether the caller may reach a session with these agents on the path from its root.
    pub(super) fn reaches_path<'a>(&self, path: impl IntoIterator<Item = &'a str>) -> bool {
        let is_own =
            |agents: &[String]| path.into_iter().any(|name| agents.iter().any(|own| own == name));
        self.agents().is_none_or(is_own)
    }

    /// Refuses a request for an agent, or about its sessions, that the caller must not reach.
    pub(super) fn check_agent(&self, agent: &str) -> Result<(), ApiError> {
        if self.reaches(agent) { Ok(()) } else { Err(self.refuse_agent(agent)) }
    }

    /// Refuses a request that names an agent, or gets the default one, which the caller must not reach.
    pub(super) fn check_asked_agent(
        &self,
        host: &Host,
        asked: &Option<String>,
    ) -> Result<(), ApiError> {
        match self.is_limited() {
            true => self.check_agent(&host.agent_name(asked.clone())?),
            false => Ok(()),
        }
    }

    /// Returns whether the caller may reach a listed session.
    pub(super) async fn reaches_summary(
        &self,
        host: &Host,
        session: &SessionSummary,
    ) -> Result<bool, ApiError> {
        if !self.is_limited() || self.reaches(&session.agent) {
            return Ok(true);
        }
        // The agents above a child session count too.
        if !is_child_session(&session.id) {
            return Ok(false);
        }
        match host.session(&session.id).agent_path().await {
            Ok(path) => Ok(self.reaches_path(path.iter().map(|name| &**name))),
            Err(HostError::NoSuchSession(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Refuses a session that the caller must not reach. Does not wake the session.
    pub(super) async fn check_session(&self, session: &SessionHandle) -> Result<(), ApiError> {
        if !self.is_limited() {
            return Ok(());
        }
        let path = session.agent_path().await?;
        match path.last() {
            Some(agent) if !self.reaches_path(path.iter().map(|name| &**name)) => {
                Err(self.refuse_agent(agent))
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Returns whether the caller may see an item of a stream: all that is about the sessions that the stream watches,
    /// and of the states of all sessions those that it reaches.
    pub(super) async fn may_see(&self, host: &Host, event: &HostEvent) -> bool {
        let HostEvent::State(SessionStateChange { session, state, agent, .. }) = event else {
            return true;
        };
        match (state, agent) {
            _ if !self.is_limited() => true,
            (None, Some(agent)) => self.reaches(agent),
            _ => self.check_session(&host.session(session)).await.is_ok(),
        }
    }

    fn refuse_agent(&self, agent: &str) -> ApiError {
        let name = self.0.as_ref().map_or("", |token| &token.name);
        let own = self.agents().unwrap_or_default().join(", ");
        let agent = callsheet_values::types::excerpt(agent, 64);
        let message = format!(
            "the token {name:?} reaches only sessions of {own}, and none of agent {agent:?}"
        );
        ApiError::forbidden("forbidden_agent", message)
    }
}

impl<S: Sync> FromRequestParts<S> for Caller {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().cloned().unwrap_or_default())
    }
}

/// Refuses a request whose caller lacks the scope of its route.
pub(super) async fn require_scope(
    scope: TokenScope,
    caller: Caller,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    caller.check_scope(scope)?;
    Ok(next.run(request).await)
}
