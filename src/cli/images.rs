//! Images of `callsheet run --image`.

use std::fs::File;
use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use callsheet_values::types::{Content, ContentPart, Image, InvalidValue, excerpt};

/// Maximum size of an image file. Model services may have lower limits and report them.
const FILE_BYTES_MAX: u64 = 20 << 20;

/// Maximum number of characters of a name that an error quotes.
const QUOTE_CHARS: usize = 200;

/// The reason why an image cannot be sent.
#[derive(Debug, thiserror::Error)]
pub(super) enum ImageError {
    /// The file cannot be read.
    #[error("--image: read {0:?}: {1}")]
    Unreadable(String, std::io::Error),
    /// The file is too large.
    #[error("--image: {0:?} has more than 20 MiB")]
    TooLarge(String),
    /// The bytes are not an image in a supported format.
    #[error("--image: {0:?} is not a png, jpeg, gif or webp image")]
    UnknownFormat(String),
    /// The URL is invalid.
    #[error("--image: {0}")]
    InvalidUrl(#[from] InvalidValue),
}

/// Returns the prompt followed by the images.
pub(super) fn with_images(prompt: &str, images: &[String]) -> Result<Content, ImageError> {
    if images.is_empty() {
        return Ok(prompt.into());
    }
    let mut parts = vec![ContentPart::Text(prompt.to_owned())];
    for image in images {
        parts.push(ContentPart::Image(load(image)?));
    }
    Ok(parts.into())
}

fn load(name: &str) -> Result<Image, ImageError> {
    if ["http://", "https://", "data:"].iter().any(|scheme| name.starts_with(scheme)) {
        return Ok(Image::parse(name)?);
    }
    let quoted = || excerpt(name, QUOTE_CHARS);
    let unreadable = |error| ImageError::Unreadable(quoted(), error);
    let mut bytes = Vec::new();
    let file = File::open(name).map_err(unreadable)?;
    // The size of a pipe or a device is unknown, so the read itself is limited.
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(ImageError::TooLarge(quoted()));
    }
    let media_type = media_type(&bytes).ok_or_else(|| ImageError::UnknownFormat(quoted()))?;
    Ok(Image::Base64 { media_type: media_type.into(), data: STANDARD.encode(&bytes).into() })
}

/// Detects the image format from the first bytes.
fn media_type(bytes: &[u8]) -> Option<&'static str> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some("image/png")
    } else if bytes.starts_with(b"\xff\xd8\xff") {
        Some("image/jpeg")
    } else if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        Some("image/gif")
    } else if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        Some("image/webp")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_media_type_follows_from_the_first_bytes() {
        for (bytes, expected) in [
            (&b"\x89PNG\r\n\x1a\n...."[..], Some("image/png")),
            (b"\xff\xd8\xff\xe0", Some("image/jpeg")),
            (b"GIF87a", Some("image/gif")),
            (b"GIF89a;", Some("image/gif")),
            (b"RIFF\x01\x02\x03\x04WEBPVP8 ", Some("image/webp")),
            (b"RIFF\x01\x02\x03\x04WAVE", None),
            (b"\x89PNG", None),
            (b"<svg", None),
            (b"", None),
        ] {
            assert_eq!(media_type(bytes), expected, "{bytes:?}");
        }
    }

    #[test]
    fn urls_are_passed_on_and_invalid_ones_are_errors() {
        let images =
            ["https://example.com/a.png".to_owned(), "data:image/gif;base64,AA==".to_owned()];
        let content = with_images("look", &images).unwrap();
        let urls = content.parts().iter().filter_map(|part| match part {
            ContentPart::Image(image) => Some(image.url().into_owned()),
            ContentPart::Text(_) => None,
        });
        assert_eq!((urls.collect::<Vec<_>>(), &*content.text()), (images.to_vec(), "look"));
        assert_eq!(with_images("look", &[]).unwrap(), "look".into());
        for (name, reason) in [
            ("https://", "--image: \"https://\" must be an http URL or a data URL"),
            (
                "data:text/plain;base64,AA==",
                "--image: \"data:text/plain;base64,AA==\" is not an image",
            ),
        ] {
            assert_eq!(load(name).unwrap_err().to_string(), reason);
        }
        let missing = load("/no/such/file.png").unwrap_err().to_string();
        assert!(missing.starts_with("--image: read \"/no/such/file.png\": "), "{missing}");
    }
}
