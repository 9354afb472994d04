//! The configuration of a model (`[models.NAME]`), with the base URL and the API key of its service.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use super::key_table::{key_table, named_values};
use crate::types::{InvalidValue, SendReasoning, ToolProtocol, Wire};

key_table! {
    /// The configuration of one model: address, wire format and time limits.
    ///
    /// ```
    /// use callsheet::config::{ApiKey, BaseUrl, ModelConfig, Wire};
    ///
    /// let base_url = BaseUrl::parse("https://api.anthropic.com/v1")?;
    /// let key = ApiKey::new("a-secret-from-a-vault")?;
    /// let model = ModelConfig::new(base_url, "claude-sonnet-4-5").with(|model| {
    ///     model.wire = Wire::AnthropicMessages;
    ///     model.api_key = Some(key);
    ///     model.max_output_tokens = Some(2_000);
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[derive(Clone, PartialEq)]
    #[non_exhaustive]
    pub struct ModelConfig(
        /// The base URL, without `/chat/completions`.
        base_url: BaseUrl => "URL; required",
        /// The name of the model at its service. Events, records and logs call it so; if several configured models have
        /// the same, the configured name follows: `gpt (backup)`.
        model: String => "text; required",
    ) {
        /// The wire format.
        wire: Wire = Wire::OpenaiChat, Any;
        /// The API key, if the service needs one.
        api_key: Option<ApiKey> = None;
        /// The file of the key, instead of the variable that `api_key_env` names. The first request 10 s after it was
        /// read reads it again, and so does a request whose key the service has refused (401).
        api_key_file: Option<PathBuf> = None => "path";
        /// True if responses are streamed.
        stream: bool = true, Any;
        /// The time limit for connecting. After it, the attempt fails.
        connect_timeout: Duration = Duration::from_secs(10), Positive;
        /// The time limit from the request to the first byte of a streamed response, comments included. After it, the
        /// attempt fails.
        first_event_timeout: Duration = Duration::from_secs(60), Positive;
        /// The time limit of the silence of a streamed response, after its first byte. After it, the attempt fails. Any
        /// byte ends a silence, also that of a ping, a comment or a lifecycle event.
        idle_timeout: Duration = Duration::from_secs(60), Positive;
        /// The time limit of a streamed response without progress, after its first byte: no text, no thinking, no part
        /// of a call. After it, the attempt fails, although the service shows that it is alive. In a file without this
        /// key it is at least `idle_timeout`.
        progress_timeout: Duration = Duration::from_secs(600), Positive;
        /// The time limit of a whole plain (not streamed) answer, from its request to its last byte. After it, the
        /// attempt fails. If the service streams nevertheless, it limits the time to the first byte, and `idle_timeout`
        /// and `progress_timeout` apply after that.
        answer_timeout: Duration = Duration::from_secs(600), Positive;
        /// Maximum number of bytes of one response, arguments included. A larger response fails, and is not retried with
        /// the same model. Its text, and one event of a stream, have at most 16 MiB.
        max_response_bytes: u64 = 64 << 20, Positive;
        /// Maximum number of attempts of a turn with this model. When the last one has failed, the turn continues with
        /// the next fallback model, or fails. After two broken (not silent) streams in a turn, the next attempt asks for
        /// a plain answer.
        max_attempts: u32 = 3, Positive;
        /// Maximum number of concurrent requests to the model in the host. Further requests wait, fairly between
        /// sessions.
        max_concurrent_requests: Option<NonZeroU32> = NonZeroU32::new(256), Limit;
        /// Number of consecutive failures that open the circuit breaker. While it is open, requests fail at once.
        /// Without a limit it never opens.
        breaker_failures: Option<u32> = Some(10), Limit;
        /// The time that the circuit breaker stays open. It doubles after each failed probe, up to eight times this
        /// value.
        breaker_open_for: Duration = Duration::from_secs(10), Positive;
        /// The context window of the model in tokens: input and output together. Without it, the host learns it from
        /// the service.
        context_window: Option<u64> = None, Positive;
        /// The rule for asking the service to cache the prompt.
        prompt_cache: PromptCache = PromptCache::Auto, Any;
        /// The rule for sending the reasoning of the model's messages back to it. `auto` learns from refusals.
        send_reasoning: SendReasoning = SendReasoning::Auto, Any;
        /// The form of tool calls: that of the wire format, or one in the text, for models without tool calling.
        tool_protocol: ToolProtocol = ToolProtocol::Native, Any;
        /// Maximum number of output tokens that requests ask for.
        max_output_tokens: Option<u32> = None, Positive;
        /// The sampling temperature.
        temperature: Option<f64> = None, UpTo(Some(2.0));
        /// Additional headers of every request. Names are in lower case.
        headers: BTreeMap<String, String> = BTreeMap::new() => "table of texts";
        /// Additional members of every request body. They replace most members of the host, or are merged with them, but
        /// not the messages, tools, model and `stream`.
        extra_body: serde_json::Map<String, serde_json::Value> = serde_json::Map::new() => "table";
        /// The members instead of `extra_body` in the host's own requests: for a summary, and for a final answer, which
        /// may not call tools. Without it: `extra_body`.
        extra_body_internal: Option<serde_json::Map<String, serde_json::Value>> = None => "table";
        /// Members that are removed from request bodies, such as those that the service rejects.
        omit_body: BTreeSet<String> = BTreeSet::new() => "list of names";
        /// Decodes payloads that match a template without parsing them. The environment can disable it.
        fast_path: bool = true;
    }
}

impl fmt::Debug for ModelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelConfig")
            .field("wire", &self.wire)
            .field("base_url", &self.base_url)
            .field("model", &self.model)
            .field("stream", &self.stream)
            // Only the names: some services expect the API key in a header of their own.
            .field("headers", &self.headers.keys())
            .finish_non_exhaustive()
    }
}

impl ModelConfig {
    /// Creates a model with the Chat Completions wire format and default values.
    #[must_use]
    pub fn new(base_url: BaseUrl, model: impl Into<String>) -> Self {
        Self::with_defaults(base_url, model.into())
    }

    /// Returns the window that the configuration names: `context_window`, or else the `num_ctx` that requests to
    /// Ollama ask for. Ollama cuts a longer prompt without an error.
    pub fn configured_context_window(&self) -> Option<u64> {
        let num_ctx = || self.extra_body.get("options")?.get("num_ctx")?.as_u64();
        let num_ctx = || num_ctx().filter(|tokens| *tokens > 0 && self.wire == Wire::OllamaChat);
        self.context_window.or_else(num_ctx)
    }

    /// Returns whether requests ask the service to cache the prompt.
    pub fn sends_prompt_cache(&self) -> bool {
        self.prompt_cache == PromptCache::Auto
            && match self.wire {
                Wire::AnthropicMessages => true,
                Wire::OpenaiChat | Wire::OpenaiResponses => self.base_url.accepts_cache_key(),
                Wire::GeminiGenerate | Wire::OllamaChat => false,
            }
    }

    /// Never asks the service to cache the prompt. By default, requests ask for it if the service is known to
    /// accept that.
    #[must_use]
    pub fn without_prompt_cache(self) -> Self {
        Self { prompt_cache: PromptCache::Off, ..self }
    }

    /// Creates the built-in offline model at an address.
    #[must_use]
    pub fn rehearsal(base_url: BaseUrl) -> Self {
        Self::new(base_url, super::REHEARSAL)
    }

    /// Creates the configuration of a model that the program implements itself, which has no address.
    /// It sets the limits of a `ModelSource`.
    #[must_use]
    pub fn for_source(name: &str) -> Self {
        Self::new(BaseUrl("http://model-source.invalid".to_owned()), name)
    }
}

/// The rule for caching prompts at the service of a [`ModelConfig`], so that the next request of a session is
/// cheaper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PromptCache {
    /// Anthropic Messages: always. Chat Completions and Responses: if the service is known to accept
    /// `prompt_cache_key`, or runs on this machine; other services may refuse unknown members. Gemini and Ollama:
    /// never.
    #[default]
    Auto,
    /// Never.
    Off,
}

named_values!(PromptCache, [("auto", Self::Auto), ("off", Self::Off)]);
named_values!(SendReasoning, Self::NAMES);
named_values!(ToolProtocol, Self::NAMES);
named_values!(Wire, Self::NAMES);

/// The hosts whose services accept `prompt_cache_key` in requests: OpenAI, Azure and OpenRouter. Servers on
/// this machine (llama.cpp, vLLM, Ollama, LM Studio) ignore it, if they do not use it.
const CACHE_KEY_HOSTS: [&str; 4] =
    ["api.openai.com", ".openai.azure.com", ".services.ai.azure.com", "openrouter.ai"];

/// The base URL of a service, without the path that the wire format appends, such as
/// `https://api.example.com/v1`.
///
/// ```
/// use callsheet::prelude::*;
///
/// let url = BaseUrl::parse("http://127.0.0.1:8080/v1")?;
/// let host = Host::builder().model("local", ModelConfig::new(url, "llama-3"));
/// # let _ = host;
/// assert!(BaseUrl::parse("127.0.0.1").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BaseUrl(String);

/// The ends of the paths that the wire formats append.
const ENDPOINTS: [&str; 6] = [
    "/chat/completions",
    "/responses",
    "/messages",
    "/api/chat",
    ":generateContent",
    ":streamGenerateContent",
];

impl BaseUrl {
    /// Parses a base URL.
    ///
    /// # Errors
    /// If the text is not an http or https URL with a host, if it has a query, a fragment or credentials, or if it
    /// ends with the path of a wire format, such as `/chat/completions`.
    pub fn parse(text: &str) -> Result<Self, InvalidValue> {
        let example = "is not a base URL such as \"https://api.example.com/v1\"";
        // A text with a login, a query or a fragment is left out, because it may hold a password or a key.
        let is_private = text.contains(['@', '?', '#']);
        let subject = if is_private { "the URL".to_owned() } else { format!("{text:?}") };
        let invalid = |reason: &str| InvalidValue::new(format!("{subject} {example}: {reason}"));
        let other_scheme = || invalid("it does not begin with http:// or https://");
        let lower = text.to_ascii_lowercase();
        let has_scheme = lower.starts_with("http:") || lower.starts_with("https:");
        // The HTTP client uses the same parser, so both agree.
        let url = url::Url::parse(text).map_err(|error| match has_scheme {
            true => invalid(&error.to_string()),
            // The parser says "relative URL without a base".
            false => other_scheme(),
        })?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(other_scheme());
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(invalid(
                "it has a login; keys come from api_key_env, api_key_file or --api-key-env",
            ));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(invalid("it brings a query or a fragment"));
        }
        let path = url.path().trim_end_matches('/');
        if let Some(end) = ENDPOINTS.iter().find(|end| path.ends_with(**end)) {
            return Err(invalid(&format!("leave out {end}")));
        }
        Ok(Self(url.as_str().trim_end_matches('/').to_owned()))
    }

    /// Returns the URL without a slash at the end.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Sets the port, if it is 0.
    pub fn set_unset_port(&mut self, port: u16) {
        if let Ok(mut url) = url::Url::parse(&self.0)
            && url.port() == Some(0)
            && url.set_port(Some(port)).is_ok()
        {
            url.as_str().trim_end_matches('/').clone_into(&mut self.0);
        }
    }

    /// Returns whether requests to it are encrypted.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.0.starts_with("https:")
    }

    /// Returns the name or the address of its host. An IPv6 address is in brackets.
    pub(super) fn host(&self) -> Option<String> {
        url::Url::parse(&self.0).ok()?.host_str().map(ToOwned::to_owned)
    }

    /// Returns whether the service is known to accept the member `prompt_cache_key`, or is on this machine.
    pub fn accepts_cache_key(&self) -> bool {
        let Some(host) = self.host() else { return false };
        let is_known = |known: &&str| match known.strip_prefix('.') {
            Some(domain) => host.strip_suffix(domain).is_some_and(|name| name.ends_with('.')),
            None => host == **known,
        };
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        host == "localhost"
            || address.is_ok_and(|address| address.is_loopback())
            || CACHE_KEY_HOSTS.iter().any(is_known)
    }

    /// Returns an address without a listener, for the rehearsal model before it has started.
    pub(super) fn unset() -> Self {
        Self("http://127.0.0.1:0/v1".to_owned())
    }

    pub(super) fn is_unset(&self) -> bool {
        *self == Self::unset()
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The API key of a service, or the token of the host. `Debug` does not print it; only [`ApiKey::reveal`] returns it.
///
/// ```
/// use callsheet::prelude::*;
///
/// let url = BaseUrl::parse("https://api.openai.com/v1")?;
/// let key = ApiKey::new("sk-of-a-vault")?;
/// let model = ModelConfig::new(url, "gpt-5-mini").with(|new| new.api_key = Some(key));
/// assert!(!format!("{model:?}").contains("vault"), "a key is never printed");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// Reads the secret from an environment variable.
    ///
    /// # Errors
    /// If the variable is not set, is blank, or contains characters other than visible ASCII. White space at both
    /// ends is removed.
    pub fn from_env(
        name: &str,
        env: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, InvalidValue> {
        let invalid =
            |reason| InvalidValue::new(format!("the environment variable {name} {reason}"));
        let secret = env(name).ok_or_else(|| invalid("is not set"))?;
        Self::checked(&secret).map_err(invalid)
    }

    /// Creates a key from a secret of any source.
    ///
    /// # Errors
    /// If the secret is blank, or contains characters other than visible ASCII. White space at both ends is removed.
    pub fn new(secret: &str) -> Result<Self, InvalidValue> {
        Self::checked(secret).map_err(|reason| InvalidValue::new(format!("the API key {reason}")))
    }

    /// Returns a key without a secret, for the description of a section.
    pub(super) fn unset() -> Self {
        Self(String::new())
    }

    fn checked(secret: &str) -> Result<Self, &'static str> {
        let secret = secret.trim();
        if secret.is_empty() {
            return Err("is blank");
        }
        if !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("contains white space or other characters that are not visible ASCII");
        }
        Ok(Self(secret.to_owned()))
    }

    /// Returns the secret, for a header or a comparison.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(..)")
    }
}
