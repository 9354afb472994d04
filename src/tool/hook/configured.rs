//! Makes the hooks of the configuration.

use std::sync::Arc;

use super::http::HttpHook;
#[cfg(target_os = "linux")]
use super::program::ProgramHook;
use super::{Hook, RegisteredHook};
use crate::config::{HookConfig, HookKind, ProcessConfig};
use crate::tool::defined_input::DefinitionError;

impl RegisteredHook {
    /// Checks a hook of the configuration.
    ///
    /// # Errors
    /// The first problem.
    pub(in crate::tool) fn configured(config: &HookConfig) -> Result<Self, DefinitionError> {
        let hook: Arc<dyn Hook> = match &config.kind {
            HookKind::Command { command, process } => program(command, process)?,
            HookKind::Http { url, headers, secret_headers, allow } => {
                Arc::new(HttpHook::new(url, headers, secret_headers, allow)?)
            }
        };
        Ok(Self { rule: config.rule.clone(), hook })
    }
}

#[cfg(target_os = "linux")]
fn program(command: &[String], process: &ProcessConfig) -> Result<Arc<dyn Hook>, DefinitionError> {
    Ok(Arc::new(ProgramHook::new(command, process)?))
}

#[cfg(not(target_os = "linux"))]
fn program(_: &[String], _: &ProcessConfig) -> Result<Arc<dyn Hook>, DefinitionError> {
    Err(DefinitionError::new("kind", "hooks that run programs need Linux"))
}
