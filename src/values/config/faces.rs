//! The configuration of the faces, by which clients of other systems drive sessions: `[faces.openai]`, `[faces.ui]`,
//! `[faces.agui]`.

use super::key_table::{key_table, named_values};

/// The faces of the HTTP server: protocols of other systems, by which their clients drive sessions.
///
/// ```
/// use callsheet::config::{Config, ShowTools};
///
/// let config = Config::default().with(|config| {
///     config.faces.openai.show_tools = ShowTools::None;
///     config.faces.ui.enabled = Some(false);
/// });
/// assert_eq!(config.faces.agui.enabled, None);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FacesConfig {
    /// OpenAI Responses and Chat Completions.
    pub openai: OpenAiFaceConfig,
    /// The UI stream of the AI SDK.
    pub ui: UiFaceConfig,
    /// AG-UI.
    pub agui: AguiFaceConfig,
}

impl FacesConfig {
    /// Returns the configuration in which each face that it does not name is on, or off.
    #[must_use]
    pub fn enabled_by_default(mut self, on: bool) -> Self {
        for enabled in [&mut self.openai.enabled, &mut self.ui.enabled, &mut self.agui.enabled] {
            enabled.get_or_insert(on);
        }
        self
    }
}

key_table! {
    /// OpenAI Responses and Chat Completions, as clients of OpenAI speak them.
    #[derive(Clone, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct OpenAiFaceConfig {
        /// Serves OpenAI Responses and Chat Completions below `/v1`. Without this key it is on if `listen` is a loopback
        /// address.
        enabled: Option<bool> = None, Any;
        /// How a response shows the calls of the agent's own tools. The specification of Open Responses has no
        /// `mcp_call`, which most clients take.
        show_tools: ShowTools = ShowTools::McpCall, Any;
        /// What becomes of text of a response that may still break. With `hold` it is sent when the response has ended,
        /// for clients that add up all pieces.
        unproven_text: UnprovenText = UnprovenText::Show, Any;
        /// What a closed connection of a Chat Completions request does. With `stop` its run ends if no request joins it
        /// within 60 seconds, for clients whose stop button closes the connection.
        chat_disconnect: ChatDisconnect = ChatDisconnect::Continue, Any;
        /// The agent that answers requests for a `model` that is no agent. Without this key they are refused.
        default_agent: Option<String> = None, Filled;
    }
}

key_table! {
    /// The UI message stream of the AI SDK, as `useChat` speaks it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct UiFaceConfig {
        /// Serves the UI message stream of the AI SDK below `/v1/ui`. Without this key it is on if `listen` is a loopback
        /// address.
        enabled: Option<bool> = None, Any;
    }
}

key_table! {
    /// AG-UI, as `HttpAgent` speaks it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct AguiFaceConfig {
        /// Serves AG-UI below `/v1/agui`. Without this key it is on if `listen` is a loopback address.
        enabled: Option<bool> = None, Any;
    }
}

/// How a response shows the calls of the agent's own tools: `[faces.openai] show_tools`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShowTools {
    /// As calls of a server of tools.
    McpCall,
    /// As calls of functions, each with its output.
    FunctionCall,
    /// Not at all.
    None,
}

named_values!(
    ShowTools,
    [("mcp_call", Self::McpCall), ("function_call", Self::FunctionCall), ("none", Self::None)]
);

/// What becomes of text of a response that may still break: `[faces.openai] unproven_text`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UnprovenText {
    /// It is sent as it arrives.
    Show,
    /// It is sent when its response has ended.
    Hold,
}

named_values!(UnprovenText, [("show", Self::Show), ("hold", Self::Hold)]);

/// What a closed connection of a Chat Completions request does: `[faces.openai] chat_disconnect`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChatDisconnect {
    /// Its run goes on.
    Continue,
    /// Its run is stopped if no request joins it in time.
    Stop,
}

named_values!(ChatDisconnect, [("continue", Self::Continue), ("stop", Self::Stop)]);
