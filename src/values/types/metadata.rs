//! Pairs of strings that a client attaches to a session or a run.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::InvalidValue;

/// Maximum number of pairs.
const PAIRS_MAX: usize = 16;
/// Maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 64;
/// Maximum length of a value, in bytes.
const VALUE_BYTES_MAX: usize = 512;

/// Pairs of strings that a program attaches to a session or a run, such as the id of a user. Lists, events,
/// logs and exports show them; metrics do not. The model does not receive them.
///
/// At most 16 pairs; a name has 1 to 64 bytes, a value at most 512. A run also has the pairs of its session.
///
/// ```
/// use callsheet::{Metadata, RunRequest};
///
/// let metadata = Metadata::new([("user", "u-17")])?;
/// let request = RunRequest::from("Say hello.").with_metadata(metadata);
/// assert_eq!(request.metadata.get("user"), Some("u-17"));
/// assert!(Metadata::new([("", "u-17")]).is_err());
/// # Ok::<(), callsheet::InvalidValue>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>", into = "BTreeMap<String, String>")]
pub struct Metadata(BTreeMap<String, String>);

impl Metadata {
    /// Checks the pairs. Of several values with the same name, the last one counts.
    ///
    /// # Errors
    /// If there are too many pairs, a name is empty, or a name or a value is too long.
    pub fn new<N: Into<String>, V: Into<String>>(
        pairs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Self, InvalidValue> {
        let pairs: BTreeMap<String, String> =
            pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self::checked(pairs, PAIRS_MAX)
    }

    fn checked(pairs: BTreeMap<String, String>, pairs_max: usize) -> Result<Self, InvalidValue> {
        if pairs.len() > pairs_max {
            let count = pairs.len();
            return Err(InvalidValue::new(format!(
                "metadata has at most {pairs_max} pairs, not {count}"
            )));
        }
        for (name, value) in &pairs {
            if name.is_empty() || name.len() > NAME_BYTES_MAX {
                return Err(InvalidValue::new(format!(
                    "a name in metadata has 1 to {NAME_BYTES_MAX} bytes, not {}",
                    name.len()
                )));
            }
            if value.len() > VALUE_BYTES_MAX {
                return Err(InvalidValue::new(format!(
                    "the value of {name:?} in metadata has at most {VALUE_BYTES_MAX} bytes, not {}",
                    value.len()
                )));
            }
        }
        Ok(Self(pairs))
    }

    /// Returns these pairs, and those of `base` whose names they lack: as many as can be read from a record.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        let mut pairs = self.0.clone();
        let room = (2 * PAIRS_MAX).saturating_sub(pairs.len());
        let missing = base.0.iter().filter(|(name, _)| !self.0.contains_key(*name));
        pairs.extend(missing.take(room).map(|(name, value)| (name.clone(), value.clone())));
        Self(pairs)
    }

    /// Returns the value of a name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Returns whether it has all pairs of `other`.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        other.iter().all(|(name, value)| self.get(name) == Some(value))
    }

    /// Returns names and values in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns true if there are no pairs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl TryFrom<BTreeMap<String, String>> for Metadata {
    type Error = InvalidValue;

    fn try_from(pairs: BTreeMap<String, String>) -> Result<Self, InvalidValue> {
        // A run has the pairs of its session too.
        Self::checked(pairs, 2 * PAIRS_MAX)
    }
}

impl From<Metadata> for BTreeMap<String, String> {
    fn from(metadata: Metadata) -> Self {
        metadata.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_limited_in_number_and_length() {
        let pairs = |count: usize| (0..count).map(|n| (format!("n{n}"), String::new()));
        assert!(Metadata::new(pairs(16)).is_ok());
        let long = |name: usize, value: usize| [("n".repeat(name), "v".repeat(value))];
        assert!(Metadata::new(long(64, 512)).is_ok());
        for (made, expected) in [
            (Metadata::new(pairs(17)), "metadata has at most 16 pairs, not 17"),
            (Metadata::new(long(65, 0)), "a name in metadata has 1 to 64 bytes, not 65"),
            (Metadata::new(long(0, 0)), "a name in metadata has 1 to 64 bytes, not 0"),
            (
                Metadata::new(long(1, 513)),
                "the value of \"n\" in metadata has at most 512 bytes, not 513",
            ),
        ] {
            assert_eq!(made.unwrap_err().to_string(), expected);
        }
        // A program can give the pairs of a run to another session.
        let [run, more] = [0..32, 100..116].map(|numbers: std::ops::Range<u32>| {
            Metadata(numbers.map(|n| (format!("n{n}"), String::new())).collect())
        });
        let merged = serde_json::to_string(&more.over(&run)).unwrap();
        let read: Metadata = serde_json::from_str(&merged).unwrap();
        assert_eq!((read.0.len(), read.get("n115")), (32, Some("")));
        let error = serde_json::from_str::<Metadata>(r#"{"": "a"}"#).unwrap_err();
        assert!(error.to_string().contains("1 to 64 bytes"), "{error}");
    }
}
