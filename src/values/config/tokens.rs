//! The configuration of named tokens: `[[tokens]]`.

use std::path::PathBuf;

use super::host::TOKEN_CHARS_MIN;
use super::key_table::key_table;
use super::{ApiKey, Config, ConfigError, ConfigErrors};

key_table! {
    /// A token with a name, and what requests with it may do. Its name is the author of what they do.
    ///
    /// ```
    /// use callsheet::config::{ApiKey, Config, TokenConfig, TokenScope};
    ///
    /// let token = ApiKey::new("a-long-secret-of-a-vault")?;
    /// let token = TokenConfig::new("support", token, [TokenScope::Read, TokenScope::Approve]);
    /// let config = Config::default().with(|config| config.tokens.push(token));
    /// assert!(!config.tokens[0].allows(TokenScope::Run));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct TokenConfig(
        /// The name, by which records and logs call the author of a request.
        name: String => "text; required",
        /// The token.
        token: ApiKey,
        /// The rights of requests with the token.
        scope: Vec<TokenScope> => "list of \"read\", \"run\", \"approve\" and \"admin\"; required",
    ) {
        /// The environment variable that holds the token.
        env: Option<String> = None => "text";
        /// The file that holds the token, instead of `env`. `SIGHUP` lets the host read it again.
        file: Option<PathBuf> = None => "path";
        /// The agents whose sessions, and the child sessions below them, requests with the token may reach. Without it:
        /// all.
        agents: Option<Vec<String>> = None => "list of names";
    }
}

/// A right of a token.
///
/// [`TokenConfig`] shows its use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TokenScope {
    /// To read: every GET, streams and metrics.
    Read,
    /// To work with sessions: open, fork, compact and delete them; start, steer, stop and resume runs; bring results of
    /// client tools.
    Run,
    /// To decide about approvals, and to answer questions of tools.
    Approve,
    /// Everything, also to call tools by hand and to read the tools of servers again.
    Admin,
}

impl TokenScope {
    /// The scopes by their names.
    pub(super) const NAMES: [(&str, Self); 4] = [
        ("read", Self::Read),
        ("run", Self::Run),
        ("approve", Self::Approve),
        ("admin", Self::Admin),
    ];

    /// Returns the scope with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.into_iter().find(|(own, _)| *own == name).map(|(_, scope)| scope)
    }

    /// Returns the name of the scope.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        Self::NAMES.into_iter().find(|(_, scope)| *scope == self).map_or("", |(name, _)| name)
    }
}

impl TokenConfig {
    /// Creates a token that reaches the sessions of all agents.
    pub fn new(
        name: impl Into<String>,
        token: ApiKey,
        scope: impl IntoIterator<Item = TokenScope>,
    ) -> Self {
        Self::with_defaults(name.into(), token, scope.into_iter().collect())
    }

    /// Creates what another host says about the token of a client whose request it passes on. Such a token has no secret of
    /// its own here.
    #[must_use]
    pub fn of_peer(
        name: String,
        scope: impl IntoIterator<Item = TokenScope>,
        agents: Option<Vec<String>>,
    ) -> Self {
        Self { agents, ..Self::new(name, ApiKey::unset(), scope) }
    }

    /// Limits the token to the sessions of these agents, and the child sessions below them.
    #[must_use]
    pub fn agents(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.agents = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Returns whether requests with the token may do what this scope stands for.
    #[must_use]
    pub fn allows(&self, scope: TokenScope) -> bool {
        self.scope.contains(&scope) || self.scope.contains(&TokenScope::Admin)
    }
}

impl Config {
    /// Checks the named tokens against each other, the token of the host and the agents.
    ///
    /// # Errors
    /// All mistakes, with the key of each.
    pub fn check_tokens(&self) -> Result<(), ConfigErrors> {
        let errors = self.token_mistakes();
        if errors.is_empty() { Ok(()) } else { Err(ConfigErrors::new(errors)) }
    }

    /// Returns the mistakes of `[[tokens]]`.
    pub(super) fn token_mistakes(&self) -> Vec<ConfigError> {
        let mut mistakes = Vec::new();
        for (at, token) in self.tokens.iter().enumerate() {
            let mut add_error = |key: &str, message| {
                mistakes.push(self.key_locations.error(&format!("tokens[{at}].{key}"), message));
            };
            let (name, before) = (&token.name, self.tokens.iter().take(at));
            if before.clone().any(|other| other.name == *name) {
                add_error("name", format!("another token is called {name:?}"));
            }
            let same = before.filter(|other| other.token == token.token).map(|other| &other.name);
            let same = same.map(|other| format!("{other:?}")).next();
            let is_of_host = self.host.token.as_ref() == Some(&token.token);
            let same = same.or_else(|| is_of_host.then(|| "the token of [host]".to_owned()));
            if let Some(other) = same {
                add_error("name", format!("{name:?} and {other} are the same token"));
            }
            if token.scope.is_empty() {
                add_error("scope", EMPTY_SCOPE.to_owned());
            }
            for agent in token.agents.iter().flatten() {
                if !self.agents.contains_key(agent) {
                    let known = self.agents.keys().map(String::as_str).collect::<Vec<_>>();
                    let known = known.join(", ");
                    add_error("agents", format!("no agent is called {agent:?} (known: {known})"));
                }
            }
        }
        mistakes
    }

    /// Checks that the address is loopback, or that requests need tokens that are hard to guess.
    ///
    /// # Errors
    /// If the address is not loopback, and there is no token, or a short one.
    pub(super) fn check_listen(&self) -> Result<(), String> {
        let host = &self.host;
        if host.listen.ip().is_loopback() {
            return Ok(());
        }
        let needs = |what: &str| Err(format!("{} is not loopback and needs {what}", host.listen));
        if host.token.is_none() && self.tokens.is_empty() {
            return needs(&format!("a token, but {} is not set", host.token_env));
        }
        let of_host = host.token.iter().map(|token| (host.token_place(), token));
        let named = self.tokens.iter().map(|token| (format!("{:?}", token.name), &token.token));
        let is_short = |token: &ApiKey| token.reveal().len() < TOKEN_CHARS_MIN;
        match of_host.chain(named).find(|(_, token)| is_short(token)) {
            Some((place, _)) => needs(&format!(
                "a token of at least {TOKEN_CHARS_MIN} characters; that in {place} has fewer"
            )),
            None => Ok(()),
        }
    }
}

/// The error about an empty scope.
pub(super) const EMPTY_SCOPE: &str = "must not be empty: name what the token may do";

crate::types::impl_with!(TokenConfig);
