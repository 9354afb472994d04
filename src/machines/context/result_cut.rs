//! The part of a result that the model sees. Truncates outputs of tools above `max_result_bytes` of the tool or else
//! of the agent (64 KiB by default): the model sees the beginning and the end with the reference of the result, or,
//! without `references`, only the beginning. A note has the size of the whole text.

use std::sync::Arc;

use memchr::{memchr, memrchr};

use callsheet_values::message::ResultContent;
use callsheet_values::types::{
    ContentPart, Reference, ToolOutcome, ceil_char_boundary, floor_char_boundary,
};

/// The rules by which a result is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultCut {
    /// Maximum number of bytes of a result that the model sees, without the note about the rest, if its tool has no
    /// maximum of its own.
    pub bytes_max: usize,
    /// True if the model can read the rest: the note then has the reference of the result.
    pub references: bool,
}

/// Returns the result of a call for the model. `reference` is that of the result.
pub(super) fn model_content(
    outcome: &ToolOutcome,
    cut: ResultCut,
    reference: &Reference,
) -> ResultContent {
    let bytes_max = outcome.model_bytes_max(cut.bytes_max);
    let reference = Some(reference).filter(|_| cut.references);
    let text = shorten(&outcome.content, bytes_max, reference);
    let Some(full) = outcome.full.as_ref().filter(|full| full.has_image()) else {
        return text.into();
    };
    // For a model that sees images: its texts share `bytes_max`. The first that is cut has the note, and later ones
    // are only counted.
    let (mut bytes_left, mut left_out) = (Some(bytes_max), 0);
    let parts = full.model_parts().filter_map(|part| match part {
        ContentPart::Text(text) => {
            let Some(most) = bytes_left else {
                left_out += 1;
                return None;
            };
            bytes_left = most.checked_sub(text.len());
            let shortened = shorten(&text.into(), most, reference);
            Some(ContentPart::Text(shortened.to_string()))
        }
        image @ ContentPart::Image(_) => Some(image),
    });
    let mut parts: Vec<ContentPart> = parts.collect();
    if left_out > 0 {
        parts.push(ContentPart::Text(format!("[{left_out} more texts are left out]")));
    }
    ResultContent::with_images(text, parts.into())
}

/// Returns the part of a result for the model, with a note about the rest.
pub(super) fn shorten(
    content: &Arc<str>,
    bytes_max: usize,
    reference: Option<&Reference>,
) -> Arc<str> {
    if content.len() <= bytes_max {
        return Arc::clone(content);
    }
    let total = content.len();
    let Some(reference) = reference else {
        let (kept, _) = content.split_at(floor_char_boundary(content, bytes_max));
        let bytes = kept.len();
        return format!("{kept}\n[the result is cut here: {bytes} of {total} bytes are shown]")
            .into();
    };
    let (head, tail) = head_and_tail(content, bytes_max);
    let head = head.trim_end_matches('\n');
    let left_out = total - head.len() - tail.len();
    format!(
        "{head}\n[{left_out} of {total} bytes are left out here; the whole result is {reference}]\n{tail}"
    )
    .into()
}

/// Returns the beginning and the end of a text. They end and begin at a line or at an element of JSON, if
/// there is one near.
fn head_and_tail(text: &str, bytes_max: usize) -> (&str, &str) {
    // The beginning of logs and tables is the most informative part, and errors are at the end.
    let tail_max = bytes_max / 3;
    let head_max = bytes_max - tail_max;
    let (head_near, tail_near) = (head_max / 4, tail_max / 4);
    let bytes = text.as_bytes();
    let head_window = head_max - head_near..head_max;
    let tail_first = text.len() - tail_max;
    let tail_window = tail_first..tail_first + tail_near;
    let line_end = bytes.get(head_window.clone()).and_then(|near| memrchr(b'\n', near));
    let line_start = bytes.get(tail_window.clone()).and_then(|near| memchr(b'\n', near));
    let (mut head, mut tail) = (
        line_end.map(|at| head_window.start + at + 1),
        line_start.map(|at| tail_window.start + at + 1),
    );
    if text.trim_start().starts_with(['{', '[']) && (head.is_none() || tail.is_none()) {
        for border in element_borders(bytes).take_while(|border| *border <= tail_window.end) {
            if line_end.is_none() && head_window.contains(&(border - 1)) {
                head = Some(border);
            } else if tail.is_none() && tail_window.contains(&border) {
                tail = Some(border);
            }
        }
    }
    let head = head.unwrap_or_else(|| floor_char_boundary(text, head_max));
    let tail = tail.unwrap_or_else(|| ceil_char_boundary(text, tail_first));
    let (head, _) = text.split_at_checked(head).unwrap_or((text, ""));
    let (_, tail) = text.split_at_checked(tail).unwrap_or(("", ""));
    (head, tail)
}

/// Returns the positions after the commas of a JSON text that are outside of strings.
fn element_borders(json: &[u8]) -> impl Iterator<Item = usize> {
    let (mut in_string, mut is_escaped) = (false, false);
    json.iter().zip(1..).filter_map(move |(byte, after)| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b',' if !in_string => return Some(after),
            _ => {}
        }
        None
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn reference() -> Reference {
        "t3a1c0".parse().unwrap()
    }

    fn shortened(text: &str, bytes_max: usize) -> String {
        shorten(&text.into(), bytes_max, Some(&reference())).to_string()
    }

    /// Returns the beginning, the number of bytes that are left out, and the end.
    fn parts(text: &str, bytes_max: usize) -> (String, usize, String) {
        let shortened = shortened(text, bytes_max);
        let (head, rest) = shortened.split_once("\n[").unwrap();
        let (note, tail) = rest.split_once("; the whole result is $VAR_REF{{t3a1c0}}]\n").unwrap();
        let (left_out, total) = note.split_once(" of ").unwrap();
        assert_eq!(total, format!("{} bytes are left out here", text.len()));
        (head.to_owned(), left_out.parse().unwrap(), tail.to_owned())
    }

    #[test]
    fn without_references_the_beginning_is_shown() {
        let shorten = |bytes_max| shorten(&"été".into(), bytes_max, None);
        assert_eq!(&*shorten(5), "été");
        assert_eq!(&*shorten(4), "ét\n[the result is cut here: 3 of 5 bytes are shown]");
    }

    #[test]
    fn texts_beside_images_share_the_maximum() {
        use callsheet_values::types::{FullResult, Image, ResultPart};
        let image = Image::parse("data:image/png;base64,AAAA").unwrap();
        let texts = (0..1_000).map(|n| ResultPart::from(format!("text {n:03}")));
        let content = [ResultPart::from(image)].into_iter().chain(texts).collect();
        let full = Arc::new(FullResult { content, structured: None });
        let outcome = ToolOutcome { full: Some(full), ..ToolOutcome::ok("short") };
        let cut = ResultCut { bytes_max: 20, references: false };
        let result = model_content(&outcome, cut, &reference());
        let shown = serde_json::to_value(&result).unwrap().to_string();
        assert!(shown.contains("text 000") && shown.contains("text 001"), "{shown}");
        assert!(shown.contains("4 of 8 bytes are shown") && !shown.contains("003"), "{shown}");
        assert!(shown.contains("[997 more texts are left out]"), "{shown}");
    }

    #[test]
    fn a_text_is_cut_at_lines() {
        let lines: Vec<String> = (0..100).map(|n| format!("line {n:02}")).collect();
        let (head, _, tail) = parts(&lines.join("\n"), 100);
        assert_eq!(head, lines[..8].join("\n"));
        assert_eq!(tail, lines[96..].join("\n"));
    }

    #[test]
    fn json_is_cut_at_elements() {
        let items: Vec<String> = (0..100).map(|n| format!(r#"{{"n,\"":{n}}}"#)).collect();
        let json = format!("[{}]", items.join(","));
        let (head, _, tail) = parts(&json, 150);
        assert!(head.ends_with("},") && tail.starts_with(r#"{"n,\""#), "{head} {tail}");
        assert!(json.starts_with(&head) && json.ends_with(&tail));
    }

    #[test]
    fn a_text_without_borders_is_cut_at_characters() {
        let (head, left_out, tail) = parts(&"é".repeat(100), 33);
        assert_eq!((&*head, left_out, &*tail), (&*"é".repeat(11), 168, &*"é".repeat(5)));
    }

    proptest! {
        #[test]
        fn the_parts_are_the_two_ends_of_the_text(
            text in "[\\[{]?[aé,\"\\\\\n]{0,300}", bytes_max in 0..300_usize,
        ) {
            if text.len() <= bytes_max {
                prop_assert_eq!(shortened(&text, bytes_max), text);
                return Ok(());
            }
            let (head, tail) = head_and_tail(&text, bytes_max);
            prop_assert!(head.len() + tail.len() <= bytes_max);
            prop_assert!(text.starts_with(head) && text.ends_with(tail));
            let head = head.trim_end_matches('\n');
            let shortened = shortened(&text, bytes_max);
            prop_assert!(shortened.starts_with(head) && shortened.ends_with(tail));
            let left_out = text.len() - head.len() - tail.len();
            let note = format!("\n[{left_out} of {} bytes are left out here", text.len());
            prop_assert!(shortened.contains(&note));
        }
    }
}
