//! Makes the hooks of the configuration.

use std::sync::Arc;

use super::http::HttpHook;
#[cfg(target_os = "linux")]
use super::program::ProgramHook;
use super::{Hook, RegisteredHook};
use crate::defined_input::DefinitionError;
use callsheet_values::config::{HookConfig, HookKind, ProcessConfig};
use callsheet_values::types::Secrets;

impl RegisteredHook {
    /// Checks a hook of the configuration. `secrets` are those of the host.
    ///
    /// # Errors
    /// The first problem.
    pub(crate) fn configured(
        config: &HookConfig,
        secrets: &Secrets,
    ) -> Result<Self, DefinitionError> {
        let hook: Arc<dyn Hook> = match &config.kind {
            HookKind::Command { command, process } => program(command, process, secrets)?,
            HookKind::Http(service) => Arc::new(HttpHook::new(service, secrets)?),
        };
        Ok(Self { rule: config.rule.clone(), hook })
    }
}

#[cfg(target_os = "linux")]
fn program(
    command: &[String],
    process: &ProcessConfig,
    secrets: &Secrets,
) -> Result<Arc<dyn Hook>, DefinitionError> {
    Ok(Arc::new(ProgramHook::new(command, process, secrets)?))
}

#[cfg(not(target_os = "linux"))]
fn program(_: &[String], _: &ProcessConfig, _: &Secrets) -> Result<Arc<dyn Hook>, DefinitionError> {
    Err(DefinitionError::new("kind", "hooks that run programs need Linux"))
}
