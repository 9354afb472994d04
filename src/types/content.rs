//! What a user says: text, and images beside it.

use std::borrow::Cow;
use std::sync::Arc;

use serde::de::Error as _;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use super::excerpt;

/// Characters of a stranger's text that an error quotes.
const QUOTE_CHARS: usize = 64;

/// What a user says. Cloning shares images.
///
/// As JSON it is in the Chat Completions form: a text, or a list of parts of type `text` and
/// `image_url`, where an image is an address or a `data:` URL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Content(Vec<ContentPart>);

/// A part of what a user says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ContentPart {
    /// Text.
    Text(String),
    /// An image.
    Image(Image),
}

/// An image: where it is, or its bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Image {
    /// An `http` or `https` address that the service can reach.
    Url(Arc<str>),
    /// The image itself.
    Base64 {
        /// Such as `image/png`.
        media_type: Arc<str>,
        /// Its bytes in base64, with padding.
        data: Arc<str>,
    },
}

/// The JSON is nothing that a user can say.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidContent(String);

impl Content {
    /// The parts in their order.
    #[must_use]
    pub fn parts(&self) -> &[ContentPart] {
        &self.0
    }

    /// The text; parts of it are lines.
    #[must_use]
    pub fn text(&self) -> Cow<'_, str> {
        let texts = self.0.iter().filter_map(ContentPart::as_text);
        match self.0.as_slice() {
            [ContentPart::Text(text)] => Cow::Borrowed(text),
            _ => Cow::Owned(texts.collect::<Vec<_>>().join("\n")),
        }
    }

    /// Whether there is neither an image nor a text with more than blanks.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.0.iter().all(|part| part.as_text().is_some_and(|text| text.trim().is_empty()))
    }

    /// Reads the Chat Completions form.
    ///
    /// # Errors
    /// Says what is wrong where it is neither a text nor a list of text and images.
    pub fn parse(value: &Value) -> Result<Self, InvalidContent> {
        match value {
            Value::String(text) => Ok(text.as_str().into()),
            Value::Array(parts) => {
                let parts = parts.iter().zip(0..).map(|(part, at)| {
                    parse_part(part).map_err(|why| InvalidContent(format!("part {at}: {why}")))
                });
                parts.collect::<Result<_, _>>().map(Self)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => {
                Err(InvalidContent("is a text or a list of parts".to_owned()))
            }
        }
    }
}

impl ContentPart {
    /// The text, if it is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Image(_) => None,
        }
    }
}

impl Image {
    /// An image by its address, or by a `data:` URL that holds it.
    ///
    /// # Errors
    /// When it is neither.
    pub fn parse(url: &str) -> Result<Self, InvalidContent> {
        let invalid = |why: &str| InvalidContent(format!("{:?} {why}", excerpt(url, QUOTE_CHARS)));
        if let Some(data) = url.strip_prefix("data:") {
            let (media_type, data) = data
                .split_once(";base64,")
                .ok_or_else(|| invalid("is no data URL such as data:image/png;base64,.."))?;
            if !media_type.starts_with("image/") {
                return Err(invalid("is no image"));
            }
            let is_base64 = |b: u8| b.is_ascii_alphanumeric() || b"+/=".contains(&b);
            if data.is_empty() || data.len() % 4 != 0 || !data.bytes().all(is_base64) {
                return Err(invalid("holds no base64"));
            }
            return Ok(Self::Base64 { media_type: media_type.into(), data: data.into() });
        }
        let is_address = ["http://", "https://"].iter().any(|scheme| url.starts_with(scheme));
        if !is_address || url.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(invalid("is no http address and no data URL"));
        }
        Ok(Self::Url(url.into()))
    }

    /// The address, or the `data:` URL that holds the image.
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
        Self(vec![ContentPart::Text(text)])
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<Vec<ContentPart>> for Content {
    fn from(parts: Vec<ContentPart>) -> Self {
        Self(parts)
    }
}

impl Serialize for Content {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if let [ContentPart::Text(text)] = self.0.as_slice() {
            return serializer.serialize_str(text);
        }
        let mut seq = serializer.serialize_seq(Some(self.0.len()))?;
        for part in &self.0 {
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
        Self::parse(&Value::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

fn parse_part(part: &Value) -> Result<ContentPart, String> {
    match part["type"].as_str() {
        Some("text") => {
            let text = part["text"].as_str().ok_or("its \"text\" is no text")?;
            Ok(ContentPart::Text(text.to_owned()))
        }
        Some("image_url") => {
            let url = part["image_url"]["url"].as_str();
            let url = url.ok_or("its \"image_url\" is no object with a \"url\"")?;
            Image::parse(url).map(ContentPart::Image).map_err(|error| error.to_string())
        }
        Some(_) | None => Err("its \"type\" is \"text\" or \"image_url\"".to_owned()),
    }
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
    fn text_and_images_are_read_as_they_are_written() {
        check(json!("hi"), "hi");
        let image = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        let text = |text: &str| json!({"type": "text", "text": text});
        check(json!([text("a"), image("https://example.com/a.png"), text("b")]), "a\nb");
        check(json!([image("data:image/png;base64,AAAA")]), "");
    }

    #[test]
    fn what_nobody_can_say_is_named() {
        let image = |url: &str| json!([{"type": "image_url", "image_url": {"url": url}}]);
        for (value, why) in [
            (json!(7), "is a text or a list of parts"),
            (json!([{}]), "part 0: its \"type\" is \"text\" or \"image_url\""),
            (json!([{"type": "text"}]), "part 0: its \"text\" is no text"),
            (image("ftp://a/b"), "part 0: \"ftp://a/b\" is no http address and no data URL"),
            (
                image("data:text/plain;base64,AAAA"),
                "part 0: \"data:text/plain;base64,AAAA\" is no image",
            ),
            (
                image("data:image/png;base64,A*=="),
                "part 0: \"data:image/png;base64,A*==\" holds no base64",
            ),
        ] {
            let error = Content::parse(&value).unwrap_err();
            assert_eq!(error.to_string(), why);
        }
    }

    #[test]
    fn blanks_say_nothing() {
        assert!(Content::from(" \n").is_blank() && Content::default().is_blank());
        let image = Image::parse("https://example.com/a.png").unwrap();
        assert!(!Content::from(vec![ContentPart::Image(image)]).is_blank());
    }
}
