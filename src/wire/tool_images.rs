//! The images of tool results, for wire formats whose tool messages have only text.

use callsheet_values::message::ResultContent;
use callsheet_values::types::{Content, ContentPart};

/// The text before the images. The text of each result has a line for each of its images.
const HEADING: &str = "[The images of the tool results above, in their order:]";

/// Adds the images of a result to those of the results before it. They become a message of the user after the
/// last result of the turn.
pub(super) fn append_result_images(
    before: Option<Content>,
    result: &ResultContent,
) -> Option<Content> {
    let mut images = result.images().cloned().map(ContentPart::Image).peekable();
    if images.peek().is_none() {
        return before;
    }
    let heading = || vec![ContentPart::Text(HEADING.to_owned())];
    let mut parts = before.map_or_else(heading, |content| content.parts().to_vec());
    parts.extend(images);
    Some(parts.into())
}
