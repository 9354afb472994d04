//! The parts of a tool's result: texts, images and resources, and a value for programs. At most 16 MiB are kept.

use std::fmt::Write as _;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ContentPart, Image, excerpt, floor_char_boundary};

/// Maximum number of bytes of a result that are kept: its texts, its data in base64, the media types and URLs of its
/// images, the names, media types and URIs of its resources, and its value for programs as JSON. Each part counts as at
/// least 128 bytes. `max_result_bytes` limits the text that the model reads.
pub const RESULT_BYTES_MAX: usize = 16 << 20;

/// Minimum number of bytes as which a part counts, so that the number of parts is limited too.
const PART_BYTES_MIN: usize = 128;

/// Maximum number of parts that are cut or replaced with a note each. The parts after them have one note together.
const PART_NOTES_MAX: usize = 16;

/// Maximum number of characters of each label (name, media type, URI) in the note about a resource that is not kept.
const LABEL_CHARS_MAX: usize = 1_000;

/// The note for the model about what is not kept.
const LIMIT_NOTE: &str = "at most 16 MiB of a result are kept";

/// A part of a tool's result.
///
/// ```
/// use callsheet::{CallReport, ResultPart};
///
/// fn texts(call: &CallReport) -> Vec<&str> {
///     let mut texts = Vec::new();
///     for part in &call.content {
///         if let ResultPart::Text { text } = part {
///             texts.push(text.as_str());
///         }
///     }
///     texts
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum ResultPart {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// An image: `media_type` and `data` in base64, or `url`.
    Image(#[serde(with = "result_image")] Image),
    /// A file or another resource. The model reads one line about it, with its text if it has one.
    Resource(ResultResource),
}

/// A resource in a tool's result.
///
/// ```
/// use callsheet::ResultResource;
/// use callsheet::tool::ToolOutput;
///
/// let report = ResultResource::new("report.pdf", "application/pdf").with_data("JVBERi0=");
/// let output = ToolOutput::from("done").with_part(report);
/// assert_eq!(output.text(), "done\n[resource report.pdf, application/pdf, 5 bytes]");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct ResultResource {
    /// Its name.
    pub name: String,
    /// The media type, such as `application/pdf`. Empty if it is unknown.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub media_type: String,
    /// The size in bytes, if it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bytes: Option<u64>,
    /// The URI of the resource, if it has one. The host never reads it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub uri: Option<String>,
    /// Its text, if it is a text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub text: Option<String>,
    /// Its data in base64 with padding, if it is not a text.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub data: Option<String>,
}

/// The whole result of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FullResult {
    /// The parts in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub content: Vec<ResultPart>,
    /// The same result as a value for programs, if the tool has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub structured: Option<Value>,
}

impl ResultResource {
    /// Makes a resource without content.
    #[must_use]
    pub fn new(name: impl Into<String>, media_type: impl Into<String>) -> Self {
        Self { name: name.into(), media_type: media_type.into(), ..Self::default() }
    }

    /// Adds a text, and sets the size.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<String>) -> Self {
        let text = text.into();
        self.bytes = Some(text.len() as u64);
        self.text = Some(text);
        self
    }

    /// Adds data in base64 with padding, and sets the size.
    #[must_use]
    pub fn with_data(mut self, base64: impl Into<String>) -> Self {
        let data = base64.into();
        self.bytes = Some(decoded_bytes(&data));
        self.data = Some(data);
        self
    }

    /// Returns the text for the model: one line, and the text of the resource.
    #[must_use]
    pub fn model_text(&self) -> String {
        let mut line = format!("[resource {}", self.name);
        if !self.media_type.is_empty() {
            // Writing to a string cannot fail.
            let _ = write!(line, ", {}", self.media_type);
        }
        if let Some(bytes) = self.bytes {
            let _ = write!(line, ", {bytes} bytes");
        }
        if let Some(uri) = &self.uri {
            let _ = write!(line, ", {uri}");
        }
        line.push(']');
        if let Some(text) = &self.text {
            line.push('\n');
            line.push_str(text);
        }
        line
    }
}

impl Image {
    /// Returns the line about the image for a model that does not see it.
    pub fn model_text(&self) -> String {
        match self {
            Self::Url(url) => format!("[image {url}]"),
            Self::Base64 { media_type, data } => {
                format!("[image {media_type}, {} bytes]", decoded_bytes(data))
            }
        }
    }
}

impl ResultPart {
    /// Returns the text for a model that does not see images in results.
    #[must_use]
    pub fn model_text(&self) -> String {
        match self {
            Self::Text { text } => text.clone(),
            Self::Image(image) => image.model_text(),
            Self::Resource(resource) => resource.model_text(),
        }
    }

    fn is_blank(&self) -> bool {
        matches!(self, Self::Text { text } if text.trim().is_empty())
    }

    /// Returns the number of bytes of its texts, data and labels.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Text { text } => text.len(),
            Self::Image(Image::Url(url)) => url.len(),
            Self::Image(Image::Base64 { media_type, data }) => media_type.len() + data.len(),
            Self::Resource(ResultResource { name, media_type, bytes: _, uri, text, data }) => {
                let optional = [uri, text, data].into_iter().flatten();
                name.len() + media_type.len() + optional.map(String::len).sum::<usize>()
            }
        }
    }

    /// Returns the number of bytes that count towards [`RESULT_BYTES_MAX`].
    fn counted_bytes(&self) -> usize {
        self.bytes().max(PART_BYTES_MIN)
    }

    /// Cuts a text to at most `bytes_max` bytes and adds a note. Replaces an image or a resource with a note.
    fn cut(&mut self, bytes_max: usize) {
        let bytes = self.bytes();
        match self {
            Self::Text { text } => cut_text(text, bytes_max),
            Self::Image(_) => {
                *self = format!("[an image of {bytes} bytes is missing: {LIMIT_NOTE}]").into()
            }
            Self::Resource(resource) => {
                let name = excerpt(&resource.name, LABEL_CHARS_MAX);
                let mut short =
                    ResultResource::new(name, excerpt(&resource.media_type, LABEL_CHARS_MAX));
                short.bytes = resource.bytes;
                short.uri = resource.uri.as_deref().map(|uri| excerpt(uri, LABEL_CHARS_MAX));
                let line = short.model_text();
                *self = format!("{line}\n[its content is missing: {LIMIT_NOTE}]").into();
            }
        }
    }
}

impl FullResult {
    /// Returns the number of bytes that count towards [`RESULT_BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        let structured = self.structured.as_ref().map_or(0, |value| value.to_string().len());
        self.content.iter().map(ResultPart::counted_bytes).sum::<usize>() + structured
    }

    /// Drops what exceeds [`RESULT_BYTES_MAX`], with a note for the model.
    pub fn limit(&mut self) {
        let (mut bytes_left, mut too_many) = (RESULT_BYTES_MAX, 0_usize);
        for part in &mut self.content {
            let bytes = part.counted_bytes();
            if bytes > bytes_left {
                too_many += 1;
                if too_many <= PART_NOTES_MAX {
                    part.cut(bytes_left);
                }
            }
            bytes_left = bytes_left.saturating_sub(bytes);
        }
        // These are the last parts: after the first part that is too large, no bytes are left.
        let dropped = too_many.saturating_sub(PART_NOTES_MAX);
        if dropped > 0 {
            self.content.truncate(self.content.len() - dropped);
            self.content.push(format!("[{dropped} more parts are missing: {LIMIT_NOTE}]").into());
        }
        if self.structured.as_ref().is_some_and(|value| value.to_string().len() > bytes_left) {
            self.structured = None;
            self.content.push(format!("[the structured value is missing: {LIMIT_NOTE}]").into());
        }
    }

    /// Returns the text for a model that does not see images in results. The content stands for the
    /// result if it has text, images or resources, else the structured value.
    #[must_use]
    pub fn model_text(&self) -> String {
        let parts: Vec<String> = self
            .content
            .iter()
            .filter(|part| !part.is_blank())
            .map(ResultPart::model_text)
            .collect();
        match &self.structured {
            Some(structured) if parts.is_empty() => structured.to_string(),
            Some(_) | None => parts.join("\n"),
        }
    }

    /// Returns whether a part of the result is an image.
    #[must_use]
    pub fn has_image(&self) -> bool {
        self.content.iter().any(|part| matches!(part, ResultPart::Image(_)))
    }

    /// Returns text and images in order for a model that sees images in results. Resources are text.
    pub fn model_parts(&self) -> impl Iterator<Item = ContentPart> {
        self.content.iter().filter(|part| !part.is_blank()).map(|part| match part {
            ResultPart::Image(image) => ContentPart::Image(image.clone()),
            ResultPart::Text { .. } | ResultPart::Resource(_) => {
                ContentPart::Text(part.model_text())
            }
        })
    }
}

impl From<String> for ResultPart {
    fn from(text: String) -> Self {
        Self::Text { text }
    }
}

impl From<&str> for ResultPart {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<Image> for ResultPart {
    fn from(image: Image) -> Self {
        Self::Image(image)
    }
}

impl From<ResultResource> for ResultPart {
    fn from(resource: ResultResource) -> Self {
        Self::Resource(resource)
    }
}

/// Cuts a text that is longer than `bytes_max`, with a note for the model.
pub fn cut_text(text: &mut String, bytes_max: usize) {
    if text.len() > bytes_max {
        text.truncate(floor_char_boundary(text, bytes_max));
        text.push_str(&format!("\n[cut here: {LIMIT_NOTE}]"));
    }
}

/// Returns the number of bytes that base64 with padding stands for.
fn decoded_bytes(base64: &str) -> u64 {
    let padding = base64.bytes().rev().take(2).take_while(|byte| *byte == b'=').count();
    (base64.len() / 4 * 3).saturating_sub(padding) as u64
}

/// The JSON form of an image: `media_type` and `data`, or `url`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ImageMembers {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    media_type: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    data: Option<Arc<str>>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    url: Option<Arc<str>>,
}

/// Converts an image of a result to its JSON form and back.
mod result_image {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Image, ImageMembers};

    pub(super) fn serialize<S: Serializer>(
        image: &Image,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let members = match image.clone() {
            Image::Url(url) => ImageMembers { media_type: None, data: None, url: Some(url) },
            Image::Base64 { media_type, data } => {
                ImageMembers { media_type: Some(media_type), data: Some(data), url: None }
            }
        };
        members.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Image, D::Error> {
        match ImageMembers::deserialize(deserializer)? {
            ImageMembers { media_type: Some(media_type), data: Some(data), url: None } => {
                Ok(Image::Base64 { media_type, data })
            }
            ImageMembers { media_type: None, data: None, url: Some(url) } => Ok(Image::Url(url)),
            ImageMembers { .. } => {
                Err(D::Error::custom("an image must have either media_type and data, or url"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn image() -> Image {
        Image::Base64 { media_type: "image/png".into(), data: "iVBORw==".into() }
    }

    #[test]
    fn parts_have_one_json_form() {
        let full = FullResult {
            content: vec![
                "a".into(),
                image().into(),
                Image::Url("https://a/b.png".into()).into(),
                ResultResource::new("a.txt", "").with_text("été").into(),
            ],
            structured: Some(json!({"a": 1})),
        };
        let expected = json!({
            "content": [
                {"type": "text", "text": "a"},
                {"type": "image", "media_type": "image/png", "data": "iVBORw=="},
                {"type": "image", "url": "https://a/b.png"},
                {"type": "resource", "name": "a.txt", "bytes": 5, "text": "été"},
            ],
            "structured": {"a": 1},
        });
        assert_eq!(serde_json::to_value(&full).unwrap(), expected);
        assert_eq!(serde_json::from_value::<FullResult>(expected).unwrap(), full);
        for wrong in [json!({"type": "image"}), json!({"type": "audio"}), json!({"type": "text"})] {
            assert!(serde_json::from_value::<ResultPart>(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_model_reads_the_content_or_the_structured_value_but_not_both() {
        let text = |content: Vec<ResultPart>| {
            FullResult { content, structured: Some(json!({"a": 1})) }.model_text()
        };
        assert_eq!(text(vec![]), r#"{"a":1}"#);
        assert_eq!(text(vec![" \n".into()]), r#"{"a":1}"#);
        assert_eq!(text(vec!["x".into()]), "x");
        assert_eq!(text(vec![image().into()]), "[image image/png, 4 bytes]");
        let resource = ResultResource::new("r", "application/zip").with_data("AAAA");
        let resource = ResultResource { uri: Some("file:///r".to_owned()), ..resource };
        assert_eq!(
            text(vec!["x".into(), resource.into()]),
            "x\n[resource r, application/zip, 3 bytes, file:///r]"
        );
        assert_eq!(FullResult::default().model_text(), "");
    }

    #[test]
    fn a_result_is_kept_up_to_its_limit() {
        let half = "x".repeat(RESULT_BYTES_MAX / 2);
        let data = Arc::from(&half["image/png".len()..]);
        let large = Image::Base64 { media_type: "image/png".into(), data };
        let file = ResultResource::new("f", "").with_data(half.as_str());
        let mut full = FullResult {
            content: vec![half.as_str().into(), large.into(), file.into(), "end".into()],
            structured: Some(json!(1)),
        };
        full.limit();
        assert_eq!(full.content.len(), 5);
        assert!(matches!(full.content[1], ResultPart::Image(_)));
        let texts: Vec<String> = full.content[2..].iter().map(ResultPart::model_text).collect();
        let file = "[resource f, 6291456 bytes]\n[its content is missing: at most 16 MiB of a result are kept]";
        let end = "\n[cut here: at most 16 MiB of a result are kept]";
        let structured = "[the structured value is missing: at most 16 MiB of a result are kept]";
        assert_eq!(texts, [file, end, structured]);
        let long = "x".repeat(RESULT_BYTES_MAX + 1);
        let named = |change: fn(&mut ResultResource, String)| {
            let mut resource = ResultResource::new("f", "");
            change(&mut resource, long.clone());
            let mut full = FullResult { content: vec![resource.into()], structured: None };
            full.limit();
            full.model_text()
        };
        for text in [
            named(|resource, long| resource.name = long),
            named(|resource, long| resource.media_type = long),
            named(|resource, long| resource.uri = Some(long)),
        ] {
            assert!(text.len() < 2_000, "{}", text.len());
            assert!(text.ends_with(" of a result are kept]"), "{text}");
        }
        let mut text = "é".repeat(4);
        cut_text(&mut text, 5);
        assert_eq!(text, "éé\n[cut here: at most 16 MiB of a result are kept]");
    }

    #[test]
    fn many_small_parts_are_limited_and_have_one_note() {
        for small in ["", "x"] {
            let kept = RESULT_BYTES_MAX / PART_BYTES_MIN;
            let content = vec![small.into(); kept + PART_NOTES_MAX + 1_000];
            let mut full = FullResult { content, structured: None };
            full.limit();
            assert_eq!(full.content.len(), kept + PART_NOTES_MAX + 1);
            let note = full.content.last().unwrap().model_text();
            assert_eq!(note, "[1000 more parts are missing: at most 16 MiB of a result are kept]");
        }
    }

    #[test]
    fn the_media_type_of_an_image_counts() {
        let media_type = "x".repeat(RESULT_BYTES_MAX + 1).into();
        let image = Image::Base64 { media_type, data: "".into() };
        let mut full = FullResult { content: vec![image.into()], structured: None };
        full.limit();
        let note = "[an image of 16777217 bytes is missing: at most 16 MiB of a result are kept]";
        assert_eq!(full.model_text(), note);
    }
}
