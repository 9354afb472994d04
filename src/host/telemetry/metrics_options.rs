//! The destination of a host's metrics, and the labels that tell hosts apart.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ::metrics::{Label, Recorder};

use super::metric_table::ALL;

/// The destination of a host's metrics, and the labels that all of its series have.
#[derive(Clone, Default)]
pub struct MetricsOptions {
    /// The recorder of the program. `None`: the host has a page of its own, which needs the feature `prometheus`.
    pub recorder: Option<Arc<dyn Recorder + Send + Sync>>,
    /// The labels, by name.
    pub labels: BTreeMap<String, String>,
}

impl MetricsOptions {
    /// Checks the labels.
    ///
    /// # Errors
    /// If a name is invalid, or is the name of a label that a metric has already, or a value has
    /// characters that pages escape in different ways.
    pub fn check(&self) -> Result<(), String> {
        for (name, value) in &self.labels {
            if value.contains(|c: char| c.is_control() || matches!(c, '"' | '\\')) {
                return Err(format!(
                    "metrics label {name:?}: the value {value:?} must not have control characters, \
                     quotes or backslashes"
                ));
            }
            let is_valid = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
                && !name.starts_with("__");
            if !is_valid {
                return Err(format!(
                    "metrics label {name:?}: a name has letters, digits and _ only, and begins with \
                     a letter or one _"
                ));
            }
            let used = ALL.iter().find(|metric| metric.labels.contains(&name.as_str()));
            let owner = match name.as_str() {
                "le" | "quantile" => Some("every histogram"),
                _ => used.map(|metric| metric.name),
            };
            if let Some(owner) = owner {
                return Err(format!(
                    "metrics label {name:?}: {owner} has a label of this name; choose another one"
                ));
            }
        }
        Ok(())
    }

    pub(super) fn labels(&self) -> Vec<Label> {
        let labels = self.labels.iter();
        labels.map(|(name, value)| Label::new(name.clone(), value.clone())).collect()
    }
}

impl fmt::Debug for MetricsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricsOptions").field("labels", &self.labels).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_have_valid_names_that_no_metric_has() {
        let check = |name: &str| {
            let (name, value) = name.split_once('=').unwrap_or((name, "eu 1 é"));
            let labels = BTreeMap::from([(name.to_owned(), value.to_owned())]);
            MetricsOptions { labels, ..MetricsOptions::default() }.check()
        };
        for name in ["host", "_region", "Zone2"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in ["", "2", "a-b", "a b", "__name__", "é"] {
            assert!(check(name).unwrap_err().contains("letters"), "{name}");
        }
        for label in ["host=a\"b", "host=a\\b", "host=a\nb"] {
            assert!(check(label).unwrap_err().contains("must not have"), "{label}");
        }
        for name in ["tool", "model", "le", "state", "version"] {
            assert!(check(name).unwrap_err().contains("choose another"), "{name}");
        }
    }
}
