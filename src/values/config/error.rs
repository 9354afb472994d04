//! The errors of a configuration, with the positions of its keys.

use std::collections::BTreeMap;
use std::fmt;

/// One error: `callsheet.toml:12: agents.default.model: ...`.
///
/// ```
/// # #[cfg(feature = "toml")] {
/// use callsheet::config::Config;
///
/// let errors = Config::parse("[host]\nlisen = 1\n", "callsheet.toml", &|_| None).unwrap_err();
/// let error = errors.iter().next().unwrap();
/// assert_eq!((error.line, error.key.as_str()), (Some(2), "host.lisen"));
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The file. `None` for a flag, an environment variable, or a configuration that was created in code.
    pub file: Option<String>,
    /// The line, from 1. `None` if the line of neither the key nor its table is known.
    pub line: Option<usize>,
    /// The full key with its tables, or the flag or environment variable. Empty if the file is not TOML.
    pub key: String,
    /// The problem.
    pub message: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            f.write_str(file)?;
            if let Some(line) = self.line {
                write!(f, ":{line}")?;
            }
            f.write_str(": ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// All errors, at least one, in the order of lines. Those without a line come first.
///
/// Returned by [`Config::parse`](crate::config::Config::parse) and [`Config::check`](crate::config::Config::check).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<ConfigError>);

impl ConfigErrors {
    pub(super) fn new(mut errors: Vec<ConfigError>) -> Self {
        errors.sort_by_key(|error| error.line);
        Self(errors)
    }

    /// Joins errors that were found one by one.
    ///
    /// # Errors
    /// All of them, if there are any.
    pub fn join(errors: impl IntoIterator<Item = Self>) -> Result<(), Self> {
        let errors: Vec<ConfigError> = errors.into_iter().flat_map(|errors| errors.0).collect();
        if errors.is_empty() { Ok(()) } else { Err(Self::new(errors)) }
    }

    /// Creates an error without a file.
    #[must_use]
    pub fn single(key: impl Into<String>, message: impl Into<String>) -> Self {
        let (key, message) = (key.into(), message.into());
        Self(vec![ConfigError { file: None, line: None, key, message }])
    }

    /// Returns the errors in the order of lines.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigError> {
        self.0.iter()
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, error) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            error.fmt(f)?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}

/// The positions of the keys, for errors that are found after parsing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeyLocations {
    pub(super) file: Option<String>,
    pub(super) lines: BTreeMap<String, usize>,
}

impl KeyLocations {
    pub(super) fn error(&self, key: &str, message: String) -> ConfigError {
        // A key that is missing has the line of its table.
        let table = || self.lines.get(key.rsplit_once('.')?.0);
        let line = self.lines.get(key).or_else(table).copied();
        ConfigError { file: self.file.clone(), line, key: key.to_owned(), message }
    }
}

/// Lists the names of values, such as `"a", "b" or "c"`.
pub(super) fn quoted_names<T>(names: &[(&str, T)]) -> String {
    let names: Vec<String> = names.iter().map(|(name, _)| format!("{name:?}")).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        Some(_) | None => names.join(""),
    }
}

/// Returns ` (did you mean NAME?)` for the name that is most similar to an unknown one. Empty if none is similar.
pub(super) fn did_you_mean<'n>(unknown: &str, names: impl Iterator<Item = &'n str>) -> String {
    let distance_max = (unknown.chars().count() / 3).max(1);
    let is_beginning = |name: &str| unknown.len() > 3 && name.starts_with(unknown);
    names
        .map(|name| (edit_distance(unknown, name), name))
        .filter(|(distance, name)| *distance <= distance_max || is_beginning(name))
        .min()
        .map(|(_, name)| format!(" (did you mean {name}?)"))
        .unwrap_or_default()
}

/// Returns the Levenshtein distance of two texts in characters.
fn edit_distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, a) in from.chars().enumerate() {
        let mut next = vec![above + 1];
        for ((b, diagonal), up) in to.iter().zip(&row).zip(row.iter().skip(1)) {
            let left = next.last().copied().unwrap_or_default();
            next.push((diagonal + usize::from(a != *b)).min(up + 1).min(left + 1));
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_names_are_suggested() {
        let names = || ["max_turns", "run_timeout", "tool_timeout"].into_iter();
        assert_eq!(did_you_mean("max_turn", names()), " (did you mean max_turns?)");
        assert_eq!(did_you_mean("tool_timeuot", names()), " (did you mean tool_timeout?)");
        assert_eq!(did_you_mean("data_dir", names()), "");
        assert_eq!(did_you_mean("", names()), "");
    }

    #[test]
    fn distances() {
        for (from, to, expected) in
            [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("über", "uber", 1)]
        {
            assert_eq!(edit_distance(from, to), expected, "{from} {to}");
            assert_eq!(edit_distance(to, from), expected, "{to} {from}");
        }
    }
}
