//! The content of a user's message: text and images.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::Error as _;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::{InvalidValue, excerpt};

/// Maximum number of characters of an input that an error quotes.
const QUOTE_CHARS: usize = 64;

/// The content of a user's message. Clones share it.
///
/// Its JSON form is that of Chat Completions: a text, or a list of parts of type `text` and
/// `image_url`. An image is a URL or a `data:` URL.
///
/// ```
/// use callsheet::{Content, ContentPart, Image};
///
/// let text: Content = "What is this?".into();
/// assert_eq!(text.text(), "What is this?");
/// let image = ContentPart::Image(Image::parse("https://example.com/cat.png")?);
/// let both = Content::from(vec![ContentPart::Text("What is this?".to_owned()), image]);
/// assert_eq!(both.parts().len(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Content(Arc<[ContentPart]>);

/// One part of the content.
///
/// [`Content`] shows its use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContentPart {
    /// Text.
    Text(String),
    /// An image.
    Image(Image),
}

/// An image, by URL or as data.
///
/// ```
/// use callsheet::Image;
///
/// let image = Image::parse("data:image/png;base64,iVBORw==")?;
/// assert!(matches!(image, Image::Base64 { .. }));
/// assert!(Image::parse("file:///etc/passwd").is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Image {
    /// An `http` or `https` URL that the service can reach.
    Url(Arc<str>),
    /// The data of the image.
    Base64 {
        /// The media type, such as `image/png`.
        media_type: Arc<str>,
        /// The data in base64, with padding.
        data: Arc<str>,
    },
}

/// The JSON is not valid content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidContent {
    part: Option<usize>,
    problem: String,
}

impl InvalidContent {
    fn new(problem: impl Into<String>) -> Self {
        Self { part: None, problem: problem.into() }
    }

    /// Returns the index of the invalid part, from 0, if one part is invalid.
    #[must_use]
    pub fn part(&self) -> Option<usize> {
        self.part
    }

    /// Returns the problem with that part, or with the whole content.
    #[must_use]
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for InvalidContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { part, problem } = self;
        match part {
            Some(at) => write!(f, "part {at}: {problem}"),
            None => f.write_str(problem),
        }
    }
}

impl std::error::Error for InvalidContent {}

impl Content {
    /// Returns the parts in order.
    #[must_use]
    pub fn parts(&self) -> &[ContentPart] {
        &self.0
    }

    /// Returns the text. Text parts are joined by line feeds.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        let texts = self.0.iter().filter_map(ContentPart::as_text);
        match &*self.0 {
            [ContentPart::Text(text)] => Cow::Borrowed(text),
            _ => Cow::Owned(texts.collect::<Vec<_>>().join("\n")),
        }
    }

    /// Returns the images.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.0.iter().filter_map(|part| match part {
            ContentPart::Image(image) => Some(image),
            ContentPart::Text(_) => None,
        })
    }

    /// Returns whether both share their parts: one is a clone of the other.
    #[must_use]
    pub fn is_clone_of(&self, other: &Self) -> bool {
        self.address() == other.address()
    }

    /// Returns the address of the parts, which all clones share.
    #[must_use]
    pub fn address(&self) -> usize {
        self.0.as_ptr().addr()
    }

    /// Returns whether the content has no image and only blank text.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(|part| part.as_text().is_some_and(|text| text.trim().is_empty()))
    }

    /// Parses the Chat Completions form.
    ///
    /// # Errors
    /// If it is neither a string nor a list of texts and images.
    pub fn parse(value: &Value) -> Result<Self, InvalidContent> {
        match value {
            Value::String(text) => Ok(text.as_str().into()),
            Value::Array(parts) => {
                let parts = parts.iter().enumerate().map(|(at, part)| {
                    let with_index =
                        |error: InvalidContent| InvalidContent { part: Some(at), ..error };
                    parse_part(part).map_err(with_index)
                });
                parts.collect::<Result<Vec<_>, _>>().map(Self::from)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                Err(InvalidContent::new("must be a string or a list of parts"))
            }
        }
    }
}

impl ContentPart {
    /// Returns the text of a text part.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) => None,
        }
    }
}

impl Image {
    /// Creates an image from its URL, or from a `data:` URL.
    ///
    /// # Errors
    /// If the text is neither.
    pub fn parse(url: &str) -> Result<Self, InvalidValue> {
        let invalid =
            |reason: &str| InvalidValue::new(format!("{:?} {reason}", excerpt(url, QUOTE_CHARS)));
        if let Some(data) = url.strip_prefix("data:") {
            let (media_type, data) = data
                .split_once(";base64,")
                .ok_or_else(|| invalid("must be a data URL such as data:image/png;base64,.."))?;
            let is_word = |b: u8| b.is_ascii_alphanumeric() || b"+-._".contains(&b);
            let kind = media_type.strip_prefix("image/").unwrap_or_default();
            if kind.is_empty() || !kind.bytes().all(is_word) {
                return Err(invalid("is not an image"));
            }
            if !is_base64(data) {
                return Err(invalid("must hold base64 with padding"));
            }
            return Ok(Self::Base64 { media_type: media_type.into(), data: data.into() });
        }
        let rest = ["http://", "https://"].iter().find_map(|scheme| url.strip_prefix(scheme));
        let has_host = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
        if !has_host || url.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(invalid("must be an http URL or a data URL"));
        }
        Ok(Self::Url(url.into()))
    }

    /// Returns the URL, or a `data:` URL with the image.
    #[must_use]
    pub fn url(&self) -> Cow<'_, str> {
        match self {
            Self::Url(url) => Cow::Borrowed(url),
            Self::Base64 { media_type, data } => {
                Cow::Owned(format!("data:{media_type};base64,{data}"))
            }
        }
    }
}

impl From<String> for Content {
    fn from(text: String) -> Self {
        Self(Arc::new([ContentPart::Text(text)]))
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<Vec<ContentPart>> for Content {
    /// Removes blank text parts. They have no content, and some services reject them.
    fn from(mut parts: Vec<ContentPart>) -> Self {
        parts.retain(|part| part.as_text().is_none_or(|text| !text.trim().is_empty()));
        Self(parts.into())
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let [ContentPart::Text(text)] = &*self.0 {
            return serializer.serialize_str(text);
        }
        let mut seq = serializer.serialize_seq(Some(self.0.len()))?;
        for part in self.parts() {
            seq.serialize_element(part)?;
        }
        seq.end()
    }
}

impl Serialize for ContentPart {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct ImageUrl<'a> {
            url: Cow<'a, str>,
        }
        let mut map = serializer.serialize_map(Some(2))?;
        match self {
            Self::Text(text) => {
                map.serialize_entry("type", "text")?;
                map.serialize_entry("text", text)?;
            }
            Self::Image(image) => {
                map.serialize_entry("type", "image_url")?;
                map.serialize_entry("image_url", &ImageUrl { url: image.url() })?;
            }
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            // Moved: it can have several megabytes.
            Value::String(text) => Ok(text.into()),
            value @ (Value::Array(_)
            | Value::Null
            | Value::Bool(_)
            | Value::Number(_)
            | Value::Object(_)) => Self::parse(&value).map_err(D::Error::custom),
        }
    }
}

fn parse_part(part: &Value) -> Result<ContentPart, InvalidContent> {
    match part["type"].as_str() {
        Some("text") => {
            check_keys(part, &["type", "text"], "")?;
            let text = part["text"].as_str();
            let text = text.ok_or_else(|| InvalidContent::new("its \"text\" must be a string"))?;
            Ok(ContentPart::Text(text.to_owned()))
        }
        Some("image_url") => {
            check_keys(part, &["type", "image_url"], "")?;
            let image = &part["image_url"];
            let url = image["url"].as_str().ok_or_else(|| {
                InvalidContent::new("its \"image_url\" must be an object with a \"url\"")
            })?;
            // `auto` is the default of the services, so leaving it out changes nothing.
            let known: &[&str] =
                if image["detail"] == "auto" { &["url", "detail"] } else { &["url"] };
            check_keys(image, known, "image_url.")?;
            let image =
                Image::parse(url).map_err(|error| InvalidContent::new(error.to_string()))?;
            Ok(ContentPart::Image(image))
        }
        Some(_) | None => {
            Err(InvalidContent::new("its \"type\" must be \"text\" or \"image_url\""))
        }
    }
}

/// Rejects unknown members that have a value. Client libraries also write members without a value.
fn check_keys(object: &Value, known: &[&str], path: &str) -> Result<(), InvalidContent> {
    let fields = object.as_object().into_iter().flatten();
    let unknown =
        fields.into_iter().find(|(key, value)| !known.contains(&key.as_str()) && !value.is_null());
    match unknown {
        None => Ok(()),
        Some((key, _)) => {
            let key = excerpt(&format!("{path}{key}"), QUOTE_CHARS);
            Err(InvalidContent::new(format!("its {key:?} is not supported; leave it out")))
        }
    }
}

fn is_base64(text: &str) -> bool {
    let data = text.trim_end_matches('=');
    let is_base64_digit = |b: u8| b.is_ascii_alphanumeric() || b"+/".contains(&b);
    let padding = text.len() - data.len();
    !data.is_empty()
        && padding <= 2
        && text.len().is_multiple_of(4)
        && data.bytes().all(is_base64_digit)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(value: Value, text: &str) {
        let content = Content::parse(&value).unwrap();
        assert_eq!((serde_json::to_value(&content).unwrap(), &*content.text()), (value, text));
    }

    #[test]
    fn text_and_images_survive_serialisation() {
        check(json!("hi"), "hi");
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let text = |text: &str| json!({"type": "text", "text": text});
        check(json!([text("a"), image("https://example.com/a.png"), text("b")]), "a\nb");
        check(json!([image("data:image/png;base64,AA==")]), "");
    }

    #[test]
    fn members_without_a_value_are_ignored() {
        let value = json!([
            {"type": "text", "text": "a", "annotations": null},
            {"type": "image_url", "image_url": {"url": "https://a/b", "detail": "auto"}},
        ]);
        let image = ContentPart::Image(Image::parse("https://a/b").unwrap());
        let parts = vec![ContentPart::Text("a".into()), image];
        assert_eq!(Content::parse(&value).unwrap(), parts.into());
    }

    #[test]
    fn invalid_content_is_rejected_with_a_reason() {
        let image = |url: &str| json!([{"type": "image_url", "image_url": {"url": url}}]);
        for (value, reason) in [
            (json!(7), "must be a string or a list of parts"),
            (json!([{}]), "part 0: its \"type\" must be \"text\" or \"image_url\""),
            (json!([{"type": "text"}]), "part 0: its \"text\" must be a string"),
            (image("ftp://a/b"), "part 0: \"ftp://a/b\" must be an http URL or a data URL"),
            (
                image("data:text/plain;base64,AAAA"),
                "part 0: \"data:text/plain;base64,AAAA\" is not an image",
            ),
            (
                image("data:image/png;base64,A*=="),
                "part 0: \"data:image/png;base64,A*==\" must hold base64 with padding",
            ),
            (
                image("data:image/png;base64,A=AA"),
                "part 0: \"data:image/png;base64,A=AA\" must hold base64 with padding",
            ),
            (
                image("data:image/;base64,AAAA"),
                "part 0: \"data:image/;base64,AAAA\" is not an image",
            ),
            (
                image("data:image/png,AAAA"),
                "part 0: \"data:image/png,AAAA\" must be a data URL such as data:image/png;base64,..",
            ),
            (
                image("https:///a.png"),
                "part 0: \"https:///a.png\" must be an http URL or a data URL",
            ),
            (
                json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache": {}}]),
                "part 1: its \"cache\" is not supported; leave it out",
            ),
            (
                json!([{"type": "image_url", "image_url": {"url": "https://a/b", "detail": "low"}}]),
                "part 0: its \"image_url.detail\" is not supported; leave it out",
            ),
        ] {
            let error = Content::parse(&value).unwrap_err();
            assert_eq!(error.to_string(), reason);
        }
    }

    #[test]
    fn blank_text_is_removed() {
        assert!(Content::from(" \n").is_blank() && Content::default().is_blank());
        let image = Image::parse("https://example.com/a.png").unwrap();
        let image = Content::from(vec![ContentPart::Image(image)]);
        assert!(!image.is_blank());
        let blanks = |text: &str| json!({"type": "text", "text": text});
        let with_blanks =
            json!([blanks(""), serde_json::to_value(&image).unwrap()[0].clone(), blanks(" \n")]);
        assert_eq!(Content::parse(&with_blanks).unwrap(), image);
        assert!(Content::parse(&json!([blanks(" ")])).unwrap().is_blank());
    }
}
