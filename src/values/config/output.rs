//! Overrides of a run: the form of its answer, and the sampling temperature of its requests.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::types::{InvalidValue, OutputMode};

/// The form of a run's answer: a JSON schema, and the way in which the model is asked for it.
///
/// ```
/// use callsheet::config::{OutputRequest, RunOverrides};
/// use serde_json::json;
///
/// let schema = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]});
/// let overrides = RunOverrides::default().with(|new| new.output = Some(OutputRequest::new(schema)));
/// # let _ = overrides;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct OutputRequest {
    /// The JSON schema of the answer.
    pub schema: Arc<Value>,
    /// The way in which the model is asked for the answer.
    #[serde(default)]
    pub mode: OutputMode,
}

impl OutputRequest {
    /// Requests an answer that matches a schema.
    #[must_use]
    pub fn new(schema: Value) -> Self {
        Self { schema: Arc::new(schema), mode: OutputMode::Auto }
    }
}

crate::types::impl_with!(OutputRequest);

/// A sampling temperature from 0 to 2.
///
/// ```
/// use callsheet::config::{RunOverrides, Temperature};
///
/// let temperature = Temperature::new(0.2)?;
/// let overrides = RunOverrides::default().with(|new| new.temperature = Some(temperature));
/// # let _ = overrides;
/// # Ok::<(), callsheet::InvalidValue>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "f64", into = "f64")]
pub struct Temperature(f64);

impl Temperature {
    /// Checks a temperature.
    ///
    /// # Errors
    /// If it is not a number from 0 to 2.
    pub fn new(value: f64) -> Result<Self, InvalidValue> {
        if !(0.0..=2.0).contains(&value) {
            return Err(InvalidValue::new(format!(
                "temperature must be a number from 0 to 2, not {value}"
            )));
        }
        // Converts -0.0 to 0.0, so that equal values have equal bits.
        Ok(Self(value + 0.0))
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> f64 {
        self.0
    }
}

impl TryFrom<f64> for Temperature {
    type Error = InvalidValue;

    fn try_from(value: f64) -> Result<Self, InvalidValue> {
        Self::new(value)
    }
}

impl From<Temperature> for f64 {
    fn from(temperature: Temperature) -> Self {
        temperature.0
    }
}

impl Eq for Temperature {}

impl Hash for Temperature {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}
