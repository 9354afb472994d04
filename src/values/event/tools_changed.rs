//! The difference between two lists of tools.

use std::collections::BTreeMap;
use std::hash::Hash;

use serde::Serialize;

/// The difference between two lists of tools: the names, sorted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct ToolListChange {
    /// The tools that only the newer list has.
    pub added: Vec<String>,
    /// The tools that only the older list has.
    pub removed: Vec<String>,
    /// The tools whose definitions differ.
    pub changed: Vec<String>,
}

impl ToolListChange {
    /// Compares two lists of definitions by name.
    pub fn between<T: PartialEq>(before: &[T], after: &[T], name: fn(&T) -> &str) -> Self {
        let by_name = |tools: &'_ [T]| -> BTreeMap<String, usize> {
            let names = tools.iter().enumerate();
            names.map(|(index, tool)| (name(tool).to_owned(), index)).collect()
        };
        let (old, new) = (by_name(before), by_name(after));
        let mut change = Self::default();
        for (name, index) in &new {
            match old.get(name) {
                None => change.added.push(name.clone()),
                Some(old) if before.get(*old) != after.get(*index) => {
                    change.changed.push(name.clone());
                }
                Some(_) => {}
            }
        }
        change.removed = old.into_keys().filter(|name| !new.contains_key(name)).collect();
        change
    }

    /// Keeps the tools with these names.
    pub fn retain(&mut self, is_kept: impl Fn(&str) -> bool) {
        for names in [&mut self.added, &mut self.removed, &mut self.changed] {
            names.retain(|name| is_kept(name));
        }
    }

    /// Returns whether the lists are equal.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty()
    }
}

/// A change of the list of a server of tools.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct ServerToolsChange {
    /// The server's name in the configuration.
    pub server: String,
    /// The difference. Tools have the names under which they are offered.
    #[serde(flatten)]
    pub change: ToolListChange,
}
