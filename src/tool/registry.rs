//! The tools that a host has, by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::{Tool, ToolSpec};

/// A registered tool with its spec as overridden by the configuration.
#[derive(Clone)]
pub struct RegisteredTool {
    /// What the schedule and the model are told.
    pub spec: Arc<ToolSpec>,
    /// What runs.
    pub tool: Arc<dyn Tool>,
}

impl fmt::Debug for RegisteredTool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.spec.fmt(f)
    }
}

/// The tools that a host has. Fixed once the host runs.
#[derive(Clone, Debug, Default)]
pub struct ToolRegistry {
    tools: BTreeMap<String, RegisteredTool>,
}

impl ToolRegistry {
    /// A registry without tools.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tool under the name of its spec.
    ///
    /// # Errors
    /// When the name is taken, or no provider would accept it.
    pub fn register(&mut self, tool: impl Tool) -> Result<(), RegistryError> {
        let spec = tool.spec();
        let name = spec.name.clone();
        let fits = (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if !fits {
            return Err(RegistryError::BadName(name));
        }
        if self.tools.contains_key(&name) {
            return Err(RegistryError::Taken(name));
        }
        self.tools.insert(name, RegisteredTool { spec: Arc::new(spec), tool: Arc::new(tool) });
        Ok(())
    }

    /// A tool by its name.
    #[must_use]
    pub fn tool(&self, name: &str) -> Option<&RegisteredTool> {
        self.tools.get(name)
    }

    /// All tools, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &RegisteredTool)> {
        self.tools.iter().map(|(name, tool)| (name.as_str(), tool))
    }

    /// Changes the spec of a registered tool; used for the `[tools.NAME]` overrides.
    /// Returns whether there is such a tool.
    pub fn update_spec(&mut self, name: &str, change: impl FnOnce(&mut ToolSpec)) -> bool {
        let Some(entry) = self.tools.get_mut(name) else { return false };
        change(Arc::make_mut(&mut entry.spec));
        true
    }
}

/// Why a tool was not registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegistryError {
    /// Another tool has the name.
    #[error("register tool {0:?}: the name is taken")]
    Taken(String),
    /// Providers would refuse the name.
    #[error("register tool {0:?}: a name has 1 to 64 characters of a-z, A-Z, 0-9, _ and -")]
    BadName(String),
}
