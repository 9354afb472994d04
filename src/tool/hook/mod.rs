//! Hooks: code that is asked at points of a run, and that can forbid what it is asked about. At the end of a run
//! hooks are only notified.
//!
//! A hook is a Rust value ([`Hook`]), a program or an HTTP service (`[[hooks]]` of the configuration). The
//! turn decides when hooks are asked about a call, and what follows from their verdicts; `turn::HookChain`
//! combines the answers of several; `runtime::hooks` asks them, within their time limits.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `mod.rs` | the [`Hook`] trait, and what a hook is given |
//! | `answer.rs` | the answer of a hook, and its failure |
//! | `configured.rs` | feature `tools`: makes the hooks of the configuration |
//! | `http.rs` | feature `tools`: a hook that sends an HTTP request |
//! | `program.rs` | feature `tools`: a hook that runs a program |

mod answer;
#[cfg(feature = "tools")]
mod configured;
#[cfg(feature = "tools")]
mod http;
#[cfg(all(feature = "tools", target_os = "linux"))]
mod program;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::Value;

pub use answer::{HookAnswer, HookError};

use crate::config::HookRule;
use crate::types::{HookPoint, RunEnd, RunError, RunId, SessionId, ToolStatus};

/// Code that is asked at points of a run.
///
/// `HostBuilder::hook` registers one with a [`HookRule`], which names the point. A hook that returns an
/// error, panics or takes too long refuses, unless its rule says otherwise.
///
/// ```
/// # #[cfg(all(feature = "rehearsal", feature = "testing"))]
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use callsheet::prelude::*;
/// use callsheet::tool::{Hook, HookAnswer, HookError, HookInput, HookPoint, HookRule};
///
/// /// Keeps the model away from hidden files.
/// struct NoHiddenFiles;
///
/// #[async_trait::async_trait]
/// impl Hook for NoHiddenFiles {
///     async fn answer(&self, input: &HookInput) -> Result<HookAnswer, HookError> {
///         let arguments = input.arguments.as_ref().ok_or_else(|| HookError::new("no call"))?;
///         let is_hidden = arguments["path"].as_str().is_some_and(|path| path.contains("/."));
///         Ok(if is_hidden { HookAnswer::refuse("hidden files") } else { HookAnswer::allow() })
///     }
/// }
///
/// let rule = HookRule::new("no_hidden_files", HookPoint::BeforeCall);
/// let host = Host::builder().hook(rule, NoHiddenFiles).start().await?;
/// # host.shutdown().await;
/// # Ok::<(), Box<dyn std::error::Error>>(()) }).unwrap();
/// ```
#[async_trait]
pub trait Hook: Send + Sync + 'static {
    /// Answers. The future is dropped at the time limit of the hook, and when the answer is not needed any
    /// longer.
    ///
    /// # Errors
    /// If there is no answer. The hook has failed then.
    async fn answer(&self, input: &HookInput) -> Result<HookAnswer, HookError>;
}

/// The input of a hook. Programs and services receive it as a JSON object, without the members that
/// are `None`.
///
/// [`Hook`] shows its use.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HookInput {
    /// The point.
    pub on: HookPoint,
    /// The session.
    pub session_id: SessionId,
    /// The run.
    pub run_id: RunId,
    /// The number of the turn in the session, from 1.
    pub turn: u32,
    /// The name of the agent.
    pub agent: Arc<str>,
    /// The names of the agents from the first one down to this one.
    pub agent_path: Vec<Arc<str>>,
    /// The id of the call in the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_id: Option<String>,
    /// The name of the tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_name: Option<Arc<str>>,
    /// The arguments of the call, as the tool receives them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments: Option<Arc<Value>>,
    /// The SHA-256 of the arguments (compact JSON with sorted keys) in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arguments_sha256: Option<String>,
    /// The status of the call's result.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<ToolStatus>,
    /// The result of the call: its whole text, which the model reads up to `max_result_bytes`, or what a hook
    /// before has put in its place. At the end of a turn or a run: the text of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<Arc<Value>>,
    /// The messages of the request, or those of the turn: in the Chat Completions form, without the system text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub messages: Option<Arc<Value>>,
    /// The parameters of the request that a hook can change: `system`, `temperature`, `max_output_tokens`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Arc<Value>>,
    /// The end of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_end: Option<RunEnd>,
    /// The error of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<RunError>,
}

impl HookInput {
    /// Makes the input about a turn of a run.
    pub(crate) fn new(
        on: HookPoint,
        session_id: SessionId,
        run_id: RunId,
        turn: u32,
        agent: Arc<str>,
    ) -> Self {
        Self {
            on,
            session_id,
            run_id,
            turn,
            agent_path: vec![Arc::clone(&agent)],
            agent,
            tool_id: None,
            tool_name: None,
            arguments: None,
            arguments_sha256: None,
            status: None,
            result: None,
            messages: None,
            parameters: None,
            run_end: None,
            error: None,
        }
    }
}

/// A hook with its rule.
#[derive(Clone)]
pub(crate) struct RegisteredHook {
    pub(crate) rule: HookRule,
    pub(crate) hook: Arc<dyn Hook>,
}

impl fmt::Debug for RegisteredHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rule.fmt(f)
    }
}
