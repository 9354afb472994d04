//! The content of a tool message.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::{Serialize, Serializer};

use crate::types::{Content, ContentPart, Image};

/// The result of a call as a model reads it: a text, or a text with images for models that see images in
/// results. Cloning shares both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ResultContent {
    text: Arc<str>,
    parts: Option<Content>,
}

impl ResultContent {
    /// Makes a content with images. `text` replaces `parts` for models that do not see images in results.
    #[must_use]
    pub fn with_images(text: impl Into<Arc<str>>, parts: Content) -> Self {
        Self { text: text.into(), parts: Some(parts) }
    }

    /// Makes a content of text and images.
    #[must_use]
    pub fn from_parts(parts: Content) -> Self {
        let text = |part: &ContentPart| match part {
            ContentPart::Text(text) => text.clone(),
            ContentPart::Image(image) => image.model_text(),
        };
        let text = parts.parts().iter().map(text).collect::<Vec<_>>().join("\n");
        Self::with_images(text, parts)
    }

    /// Returns the parts in order. `None` if it was made from a text, not from parts.
    #[must_use]
    pub fn parts(&self) -> Option<&Content> {
        self.parts.as_ref()
    }

    /// Returns the images.
    pub fn images(&self) -> impl Iterator<Item = &Image> {
        self.parts.iter().flat_map(Content::images)
    }

    /// Appends a text. It may begin with line breaks, which separate it from the text before. In the parts it becomes a
    /// part of its own, without any white space at its beginning.
    pub fn append(&mut self, text: &str) {
        self.text = [&*self.text, text].concat().into();
        if let Some(parts) = &mut self.parts {
            let text = ContentPart::Text(text.trim_start().to_owned());
            *parts = parts.parts().iter().cloned().chain([text]).collect::<Vec<_>>().into();
        }
    }
}

impl Deref for ResultContent {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for ResultContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<T: Into<Arc<str>>> From<T> for ResultContent {
    fn from(text: T) -> Self {
        Self { text: text.into(), parts: None }
    }
}

/// The form of Chat Completions: a text, or a list of parts.
impl Serialize for ResultContent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.parts {
            Some(parts) => parts.serialize(serializer),
            None => self.text.serialize(serializer),
        }
    }
}
