//! The output of a call that succeeded.

use std::any::Any;

use serde::Serialize;
use serde::Serializer;

use super::ToolError;

/// The output of a call that succeeded: the text that the model reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    text: String,
}

impl ToolOutput {
    /// Makes an output from a value: compact JSON. A value that serialises as a string becomes that
    /// string without quotes.
    ///
    /// # Errors
    /// If the value cannot be serialised, for example because a map has keys that are not strings.
    ///
    /// ```
    /// use callsheet::tool::ToolOutput;
    ///
    /// assert_eq!(ToolOutput::json(&[1, 2])?.text(), "[1,2]");
    /// assert_eq!(ToolOutput::json("plain \"text\"")?.text(), "plain \"text\"");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn json(value: &(impl Serialize + ?Sized)) -> Result<Self, ToolError> {
        let json = serde_json::to_string(value)?;
        let text = if json.starts_with('"') { serde_json::from_str(&json)? } else { json };
        Ok(Self { text })
    }

    /// Makes an output from the value that a typed tool returns. A `String` is moved.
    pub(super) fn from_value<T: Serialize + 'static>(value: T) -> Result<Self, ToolError> {
        let mut value = Some(value);
        let any: &mut dyn Any = &mut value;
        if let Some(text) = any.downcast_mut::<Option<String>>() {
            return Ok(text.take().unwrap_or_default().into());
        }
        if let Some(output) = any.downcast_mut::<Option<Self>>() {
            return Ok(output.take().unwrap_or_default());
        }
        Self::json(&value)
    }

    /// Returns the text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the text without a copy.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

impl<T: Into<String>> From<T> for ToolOutput {
    fn from(text: T) -> Self {
        Self { text: text.into() }
    }
}

/// Serialises the text, so that a typed tool may return a `ToolOutput` too.
impl Serialize for ToolOutput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use super::*;

    #[derive(Serialize)]
    struct Row {
        name: &'static str,
        count: Option<u32>,
    }

    #[derive(Serialize)]
    #[serde(rename_all = "lowercase")]
    enum Color {
        Red,
    }

    fn text<T: Serialize + 'static>(value: T) -> String {
        ToolOutput::from_value(value).unwrap().into_text()
    }

    #[test]
    fn a_value_becomes_compact_json_and_a_string_stays_text() {
        assert_eq!(text(Row { name: "b\"", count: None }), r#"{"name":"b\"","count":null}"#);
        assert_eq!(text(vec![1.5, 2.0]), "[1.5,2.0]");
        assert_eq!(text("a \"quoted\"\nline".to_owned()), "a \"quoted\"\nline");
        assert_eq!(text(Cow::Borrowed("\"x\"")), "\"x\"");
        assert_eq!(text(Color::Red), "red");
        assert_eq!(text(ToolOutput::from("{}")), "{}");
        assert_eq!(text(None::<u8>), "null");
        assert_eq!(text(()), "null");
    }

    #[test]
    fn a_string_is_moved() {
        let long = "x".repeat(1000);
        let address = long.as_ptr();
        assert_eq!(ToolOutput::from_value(long).unwrap().text().as_ptr(), address);
    }

    #[test]
    fn a_value_that_is_no_json_is_an_error() {
        let error = ToolOutput::json(&BTreeMap::from([([1], 2)])).unwrap_err();
        assert_eq!(error.message(), "key must be a string");
    }
}
