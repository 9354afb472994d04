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

#[cfg(feature = "tools")]
mod configured;
#[cfg(feature = "tools")]
mod http;
#[cfg(all(feature = "tools", target_os = "linux"))]
mod program;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

pub use callsheet_machines::contract::{HookAnswer, HookError, HookInput};

use callsheet_values::config::HookRule;

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

/// A hook with its rule.
#[derive(Clone)]
pub struct RegisteredHook {
    /// The points and calls at which it is asked.
    pub rule: HookRule,
    /// The hook.
    pub hook: Arc<dyn Hook>,
}

impl fmt::Debug for RegisteredHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rule.fmt(f)
    }
}
