//! The output of a call: what the model reads, and a value for programs.

use std::any::Any;
use std::borrow::Cow;

use serde::Serialize;
use serde::Serializer;
use serde_json::Value;

use super::ToolError;
#[cfg(feature = "tools")]
use callsheet_values::types::Secrets;
use callsheet_values::types::{FullResult, RESULT_BYTES_MAX, ResultPart, cut_text};

/// The output of a call: a text for the model, or text, images and resources, and a value for programs.
///
/// The model reads the content. If it has no image, no resource and at most blank text, the model reads the
/// structured value as JSON. It never reads both; a value of an MCP server that the content lacks is added to the
/// content. The journal keeps both, up to 16 MiB.
///
/// ```
/// use callsheet::Image;
/// use callsheet::tool::ToolOutput;
///
/// let chart = Image::parse("data:image/png;base64,iVBORw==")?;
/// let output = ToolOutput::from("Sales of May:").with_part(chart);
/// assert_eq!(output.text(), "Sales of May:\n[image image/png, 4 bytes]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ToolOutput {
    text: String,
    /// The whole output, if it is more than the text.
    full: Option<FullResult>,
    is_error: bool,
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
        Ok(if json.starts_with('"') { serde_json::from_str::<String>(&json)? } else { json }.into())
    }

    /// Makes an output from the value that a typed tool returns. A `String` or a `ToolOutput` is moved.
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

    /// Adds a text, an image (`Image`) or a resource (`ResultResource`) after the content so far.
    #[must_use]
    pub fn with_part(mut self, part: impl Into<ResultPart>) -> Self {
        self.full_mut().content.push(part.into());
        self
    }

    /// Sets the same output as a value for programs.
    #[must_use]
    pub fn with_structured(mut self, value: Value) -> Self {
        self.full_mut().structured = Some(value);
        self
    }

    /// Makes it the output of a call that failed. The model reads it and may repair the call.
    #[must_use]
    pub fn into_error(mut self) -> Self {
        self.is_error = true;
        self
    }

    /// Returns whether the call failed.
    #[must_use]
    pub fn is_error(&self) -> bool {
        self.is_error
    }

    /// Returns the text for a model that does not see images in results.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        match &self.full {
            Some(full) => Cow::Owned(full.model_text()),
            None => Cow::Borrowed(&self.text),
        }
    }

    /// Returns the text without a copy if it is the whole output.
    #[must_use]
    pub fn into_text(self) -> String {
        self.into_parts().0
    }

    /// Returns the text, and the whole output if it is more than the text.
    pub fn into_parts(self) -> (String, Option<FullResult>) {
        match self.full {
            Some(full) => (full.model_text(), Some(full)),
            None => (self.text, None),
        }
    }

    /// Returns the number of bytes that count towards [`RESULT_BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        let full = self.full.as_ref();
        self.text.len() + full.map_or(0, FullResult::bytes)
    }

    /// Adds a note after what the model reads.
    #[cfg(feature = "tools")]
    pub(super) fn with_note(mut self, note: String) -> Self {
        // With the note as content, the model would not read the structured value any more.
        if !self.has_content() {
            let full = self.full_mut();
            full.content.extend(full.structured.as_ref().map(|value| value.to_string().into()));
        }
        self.with_part(note)
    }

    /// Returns whether the model reads content, and not the structured value.
    #[cfg(feature = "tools")]
    pub(super) fn has_content(&self) -> bool {
        match &self.full {
            Some(full) => full.model_parts().next().is_some(),
            None => !self.text.trim().is_empty(),
        }
    }

    /// Replaces secrets.
    #[cfg(feature = "tools")]
    pub(super) fn redacted(mut self, secrets: &Secrets) -> Self {
        secrets.redact_in_place(&mut self.text);
        let json = self.full.as_ref().and_then(|full| serde_json::to_value(full).ok());
        if let Some(redacted) = json.and_then(|json| secrets.redact_json(&json)) {
            let full: Option<FullResult> = serde_json::from_value(redacted).ok();
            if full.is_none() {
                // The redacted value is no longer a result, for example because a number became a string. Then
                // only the text of the result is left.
                let text = secrets.redact(&self.text()).into_owned();
                self.text = text;
            }
            self.full = full;
        }
        self
    }

    /// Drops what is longer than [`RESULT_BYTES_MAX`], with a note for the model.
    pub fn limit(&mut self) {
        cut_text(&mut self.text, RESULT_BYTES_MAX);
        if let Some(full) = &mut self.full {
            full.limit();
        }
    }

    fn full_mut(&mut self) -> &mut FullResult {
        let text = std::mem::take(&mut self.text);
        self.full.get_or_insert_with(|| {
            let content = if text.is_empty() { Vec::new() } else { vec![text.into()] };
            FullResult { content, structured: None }
        })
    }
}

impl<T: Into<String>> From<T> for ToolOutput {
    fn from(text: T) -> Self {
        Self { text: text.into(), ..Self::default() }
    }
}

/// Serialises the text, so that a typed tool may return a `ToolOutput` too.
impl Serialize for ToolOutput {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.text())
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    #[cfg(feature = "tools")]
    use serde_json::json;

    use super::*;
    #[cfg(feature = "tools")]
    use callsheet_values::types::ResultResource;

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
        ToolOutput::from_value(value).unwrap().into_parts().0
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

    #[cfg(feature = "tools")]
    #[test]
    fn a_note_stands_after_what_the_model_reads() {
        let noted = |output: ToolOutput| output.with_note("note".to_owned()).text().into_owned();
        for (text, expected) in
            [("", "{\"a\":1}\nnote"), (" \n", "{\"a\":1}\nnote"), ("seven", "seven\nnote")]
        {
            let output = ToolOutput::from(text).with_structured(json!({"a": 1}));
            assert_eq!(noted(output), expected, "{text:?}");
        }
        assert_eq!(noted(ToolOutput::default()), "note");
    }

    #[cfg(feature = "tools")]
    #[test]
    fn of_a_result_that_a_secret_breaks_the_redacted_text_is_left() {
        for (secret, expected) in [
            // A number becomes a string.
            ("12345678", "see\n[resource a, [redacted] bytes]"),
            // The kind of a part is not known any more.
            ("resource", "see\n[[redacted] a, 12345678 bytes]"),
        ] {
            let mut file = ResultResource::new("a", "");
            file.bytes = Some(12_345_678);
            let output = ToolOutput::from("see").with_part(file).into_error();
            let redacted = output.redacted(&Secrets::new([secret]));
            assert!(redacted.is_error());
            assert_eq!(redacted.into_parts(), (expected.to_owned(), None));
        }
    }
}
