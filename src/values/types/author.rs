//! The author of a request.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// The author of a request: the name of its token, or a name that the embedding program gives. Records of runs, inputs,
/// stops and decisions carry it.
///
/// ```
/// use callsheet::Author;
///
/// let author = Author::new("support-desk");
/// assert_eq!(author.as_str(), "support-desk");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Author(Arc<str>);

impl Author {
    /// Creates an author with this name.
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self(name.into())
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
