//! `read_var`: reads the value of a reference in parts, or searches it with a regular expression. A part, or the
//! excerpts of a search, have 8 KiB by default and at most the agent's `max_result_bytes`, but at least one character
//! or excerpt is returned. A pattern has at most 1,000 bytes.

use std::fmt::Write as _;

use async_trait::async_trait;
use regex::{Match, Regex, RegexBuilder};
use serde::Deserialize;
use serde_json::json;

use super::{ParsedSchema, Tool, ToolContext, ToolError, ToolOutput, ToolSpec};
use callsheet_values::types::{
    READ_VAR, Reference, ReferencedValue, ceil_char_boundary, floor_char_boundary,
};

/// The number of bytes that a call reads if it does not say how many.
const LIMIT_DEFAULT: usize = 8192;

/// Maximum number of bytes of a pattern, and of its compiled form.
const PATTERN_BYTES_MAX: usize = 1000;
const COMPILED_BYTES_MAX: usize = 1 << 20;

/// Maximum number of bytes of an excerpt. Of a longer line only a part around the match is shown.
const LINE_BYTES_MAX: usize = 400;

/// Number of bytes in which a match is first looked for.
const WINDOW_BYTES: usize = 1 << 20;

/// Number of bytes from which on a value is searched on a thread that may block.
const BLOCKING_BYTES: usize = 1 << 16;

/// The tool `read_var`.
#[derive(Debug)]
pub struct ReadVar;

#[derive(Deserialize)]
struct ReadVarInput {
    id: String,
    #[serde(default)]
    offset: usize,
    #[serde(default)]
    limit: Option<usize>,
    #[serde(default)]
    pattern: Option<String>,
}

#[async_trait]
impl Tool for ReadVar {
    fn spec(&self) -> ToolSpec {
        let schema = json!({
            "type": "object",
            "properties": {
                "id": {
                    "type": "string",
                    "description": "t3a1c0 (a result), t3a1c0.structured, t3a1c0.arguments, run_ID (a run's answer) or var:NAME.",
                },
                "offset": {"type": "integer", "minimum": 0, "description": "First byte. Default: 0."},
                "limit": {"type": "integer", "minimum": 1, "description": "Bytes. Default: 8192."},
                "pattern": {
                    "type": "string",
                    "description": "A regular expression. Returns the lines that match, with their offsets.",
                },
            },
            "required": ["id"],
        });
        let description = "Reads a part of an earlier tool result, or searches it. \
                           $VAR_REF{{ID}} in the arguments of other tools stands for the whole value.";
        let schema = ParsedSchema::parse(schema).unwrap_or_else(|_| ParsedSchema::of::<()>());
        // `run` cuts the result itself, to `limit` and the agent's `max_result_bytes`. The host must not cut it
        // again.
        ToolSpec::with_schema(READ_VAR, description, schema).pure().max_result_bytes(usize::MAX)
    }

    async fn run(&self, context: ToolContext) -> Result<ToolOutput, ToolError> {
        let ReadVarInput { id, offset, limit, pattern } = context.input()?;
        let reference: Reference = id.trim().parse().map_err(ToolError::new)?;
        let bytes_max = limit.unwrap_or(LIMIT_DEFAULT).min(context.max_result_bytes());
        let pattern = pattern.map(|pattern| compile(&pattern)).transpose()?;
        let value = context.read_reference(&reference).await.map_err(ToolError::new)?;
        let Some(pattern) = pattern else {
            return Ok(read(&reference, &value, offset, bytes_max).into());
        };
        if value.text.len() < BLOCKING_BYTES {
            return Ok(search(&reference, &value, &pattern, offset, bytes_max).into());
        }
        let searched = tokio::task::spawn_blocking(move || {
            search(&reference, &value, &pattern, offset, bytes_max)
        });
        Ok(searched.await?.into())
    }
}

fn compile(pattern: &str) -> Result<Regex, ToolError> {
    if pattern.len() > PATTERN_BYTES_MAX {
        let message = format!("pattern has more than {PATTERN_BYTES_MAX} bytes");
        return Err(ToolError::new(message));
    }
    let mut builder = RegexBuilder::new(pattern);
    let builder = builder.multi_line(true).size_limit(COMPILED_BYTES_MAX);
    let compiled = builder.dfa_size_limit(COMPILED_BYTES_MAX).build();
    compiled.map_err(|error| ToolError::new(format!("pattern: {error}")))
}

/// Returns a part of the value, after a line that says which part it is.
fn read(reference: &Reference, value: &ReferencedValue, offset: usize, bytes_max: usize) -> String {
    let (text, total) = (&*value.text, value.text.len());
    let start = floor_char_boundary(text, offset);
    let mut end = floor_char_boundary(text, start.saturating_add(bytes_max));
    if end == start {
        // At least one character, so that reading goes on.
        end = ceil_char_boundary(text, start + 1);
    }
    let part = text.get(start..end).unwrap_or_default();
    let next = if end < total { format!("; next offset: {end}") } else { String::new() };
    format!("[{reference}: bytes {start} to {end} of {total}{next}]\n{part}")
}

/// Returns excerpts of the value around its matches, from `offset` on: whole lines, or parts of long lines.
fn search(
    reference: &Reference,
    value: &ReferencedValue,
    pattern: &Regex,
    offset: usize,
    bytes_max: usize,
) -> String {
    let text = &*value.text;
    let (mut lines, mut shown, mut more) = (String::new(), 0, None);
    let mut at = floor_char_boundary(text, offset);
    while let Some(found) = find(text, pattern, at) {
        let (start, end) = excerpt_of(text, found.start(), found.end());
        let line = text.get(start..end).unwrap_or_default();
        if shown > 0 && lines.len() + line.len() > bytes_max {
            more = Some(found.start());
            break;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "{start}: {line}");
        shown += 1;
        at = match text.as_bytes().get(end) {
            Some(b'\n') if end >= found.end() => end + 1,
            // The excerpt ends within a long line, or with the text.
            _ => after_shown(text, pattern, found.end(), end),
        };
        if at >= text.len() {
            break;
        }
    }
    let excerpts = if shown == 1 { "excerpt" } else { "excerpts" };
    let total = text.len();
    let more = more.map_or_else(String::new, |next| format!("; more from offset {next}"));
    format!("[{reference}: {shown} {excerpts} with matches, of {total} bytes{more}]\n{lines}")
}

/// Finds the first match from a position on. Searches a part of the rest first, and four times as much while it finds
/// none: a pattern such as `x[^z]*z|x` would read the whole rest for each of many short matches. So it finds a later
/// match instead of one of more than 1 MiB that begins before it.
fn find<'t>(text: &'t str, pattern: &Regex, at: usize) -> Option<Match<'t>> {
    let mut bytes = WINDOW_BYTES;
    loop {
        let end = ceil_char_boundary(text, at.saturating_add(bytes));
        let found = pattern.find_at(text.get(..end).unwrap_or(text), at);
        // A match up to the end of a part may go on after it, or take it for the end of a line or word.
        if end == text.len() || found.is_some_and(|found| found.end() < end) {
            return found;
        }
        bytes = bytes.saturating_mul(4);
    }
}

/// Returns the position from which on the search finds the first match that an excerpt up to `end` does not
/// show as a whole. Reads only a little more than the excerpt, because an excerpt may hold many matches.
fn after_shown(text: &str, pattern: &Regex, mut at: usize, end: usize) -> usize {
    let text = text.get(..ceil_char_boundary(text, end + LINE_BYTES_MAX)).unwrap_or(text);
    while at < text.len()
        && let Some(found) = pattern.find_at(text, at)
        && found.end() <= end
    {
        let is_empty = found.is_empty();
        at = if is_empty { ceil_char_boundary(text, found.end() + 1) } else { found.end() };
    }
    at
}

/// Returns the range of a match's line, or of a part of it around the match if it is long.
fn excerpt_of(text: &str, start: usize, end: usize) -> (usize, usize) {
    let before = text.get(..start).unwrap_or_default();
    let behind = text.get(end..).unwrap_or_default();
    let line_start = before.rfind('\n').map_or(0, |at| at + 1);
    let line_end = behind.find('\n').map_or(text.len(), |at| end + at);
    if line_end - line_start <= LINE_BYTES_MAX {
        return (line_start, line_end);
    }
    let from = line_start.max(start.saturating_sub(LINE_BYTES_MAX / 4));
    let from = ceil_char_boundary(text, from);
    let to = floor_char_boundary(text, line_end.min(from + LINE_BYTES_MAX));
    (from, to.max(from))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::ToolTest;

    fn value(text: &str) -> (Reference, ReferencedValue) {
        ("t3a1c0".parse().unwrap(), ReferencedValue::text(text))
    }

    fn read_part(text: &str, offset: usize, limit: usize) -> String {
        let (reference, value) = value(text);
        read(&reference, &value, offset, limit)
    }

    fn search_for(text: &str, pattern: &str, offset: usize, limit: usize) -> String {
        let (reference, value) = value(text);
        search(&reference, &value, &compile(pattern).unwrap(), offset, limit)
    }

    #[test]
    fn a_part_says_where_it_is_and_what_follows() {
        assert_eq!(
            read_part("one\ntwo", 0, 4),
            "[$VAR_REF{{t3a1c0}}: bytes 0 to 4 of 7; next offset: 4]\none\n"
        );
        assert_eq!(read_part("one\ntwo", 4, 9), "[$VAR_REF{{t3a1c0}}: bytes 4 to 7 of 7]\ntwo");
        assert_eq!(read_part("one", 9, 9), "[$VAR_REF{{t3a1c0}}: bytes 3 to 3 of 3]\n");
        assert_eq!(read_part("", 0, 9), "[$VAR_REF{{t3a1c0}}: bytes 0 to 0 of 0]\n");
    }

    proptest! {
        #[test]
        fn parts_one_after_the_other_make_the_value(text in "[aé漢😀\n]{0,40}", limit in 1..9_usize) {
            let (mut offset, mut joined) = (0, String::new());
            for _ in 0..=text.len() {
                let part = read_part(&text, offset, limit);
                let (head, part) = part.split_once("]\n").unwrap();
                joined.push_str(part);
                let Some((_, next)) = head.split_once("next offset: ") else { break };
                offset = next.parse().unwrap();
            }
            prop_assert_eq!(joined, text);
        }

        #[test]
        fn an_excerpt_holds_the_start_of_its_match(text in "[aé\n]{0,2000}", limit in 1..900_usize) {
            let found = search_for(&text, "é", 0, limit);
            let (head, lines) = found.split_once("]\n").unwrap();
            prop_assert_eq!(head.contains(" 0 excerpts"), !text.contains('é'));
            for line in lines.lines() {
                let (offset, line) = line.split_once(": ").unwrap();
                prop_assert!(line.len() <= LINE_BYTES_MAX && line.contains('é'));
                prop_assert!(text[offset.parse().unwrap()..].starts_with(line));
            }
        }
    }

    #[test]
    fn lines_that_match_have_their_offsets() {
        let text = "alpha\nbeta 1\ngamma\nbeta 2 beta\n";
        assert_eq!(
            search_for(text, "^beta", 0, 1000),
            "[$VAR_REF{{t3a1c0}}: 2 excerpts with matches, of 31 bytes]\n6: beta 1\n19: beta 2 beta\n"
        );
        assert_eq!(
            search_for(text, "beta", 0, 8),
            "[$VAR_REF{{t3a1c0}}: 1 excerpt with matches, of 31 bytes; more from offset 19]\n6: beta 1\n"
        );
        assert_eq!(
            search_for(text, "beta", 19, 8),
            "[$VAR_REF{{t3a1c0}}: 1 excerpt with matches, of 31 bytes]\n19: beta 2 beta\n"
        );
        assert_eq!(
            search_for(text, "(?i)DELTA", 0, 8),
            "[$VAR_REF{{t3a1c0}}: 0 excerpts with matches, of 31 bytes]\n"
        );
    }

    #[test]
    fn no_match_in_a_long_line_is_lost() {
        // The excerpt of the first match ends before the second one, or within it.
        for gap in 390..=LINE_BYTES_MAX {
            let text = format!("needle{}needle{}\nneedle", "x".repeat(gap), "y".repeat(600));
            let found = search_for(&text, "needle", 0, 10_000);
            let (_, lines) = found.split_once("]\n").unwrap();
            let shown: String = lines.lines().collect();
            let last = lines.lines().last().unwrap();
            assert_eq!(last, format!("{}: needle", text.len() - 6));
            assert!(shown.matches("needle").count() >= 3, "{gap}: {found}");
        }
        let longer = "x".repeat(900) + "n\n";
        assert!(search_for(&longer, "x{500}|n", 0, 10_000).contains("2 excerpts with"));
    }

    #[test]
    fn a_long_line_is_shown_around_each_match() {
        let text =
            format!("{}needle 1{}needle 2{}", "x".repeat(1000), "y".repeat(1000), "z".repeat(9));
        let found = search_for(&text, "needle .", 0, 4000);
        let lines: Vec<&str> = found.lines().skip(1).collect();
        assert!(lines[0].starts_with("900: xxx") && lines[0].contains("needle 1y"), "{found}");
        assert!(lines[1].ends_with("needle 2zzzzzzzzz"), "{found}");
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn a_pattern_that_reads_ahead_in_vain_does_not_read_all_of_a_long_line_for_each_match() {
        // With the whole rest for each match the search reads 16 GB.
        let text = "x".repeat(2 << 20);
        let found = search_for(&text, "x[^z]*z|x", 0, 8192);
        let head = "[$VAR_REF{{t3a1c0}}: 20 excerpts with matches, of 2097152 bytes; more from offset 6100]\n";
        assert!(found.starts_with(head), "{}", found.lines().next().unwrap());
    }

    #[test]
    fn a_match_is_found_beyond_the_window_and_as_a_whole() {
        let found = |text: &str, pattern: &str| {
            find(text, &compile(pattern).unwrap(), 1).map(|found| found.range())
        };
        let text = "x".repeat(WINDOW_BYTES) + "yyz";
        assert_eq!(found(&text, "z$"), Some(text.len() - 1..text.len()));
        assert_eq!(found(&text, "x+"), Some(1..WINDOW_BYTES));
        assert_eq!(found(&text, "y$"), None);
        assert_eq!(found(&text, "x.*"), Some(1..text.len()));
        assert_eq!(found(&text, "x.*z"), Some(1..text.len()));
    }

    #[test]
    fn a_pattern_is_bounded() {
        for pattern in ["(", &"a".repeat(1001), "(a{1000}){1000}"] {
            let error = compile(pattern).unwrap_err().to_string();
            assert!(error.starts_with("pattern"), "{error}");
        }
    }

    #[tokio::test]
    async fn an_id_is_checked_and_a_variable_is_read() {
        let mut test = ToolTest::new(ReadVar).variable("notes", "a longer text");
        let call = async |test: &mut ToolTest, id: &str| {
            let result = test.call(json!({"id": id, "limit": 8})).await;
            result.result.map(|output| output.into_text()).map_err(|error| error.to_string())
        };
        for id in ["var:notes", " $VAR_REF{{var:notes}}"] {
            let read = call(&mut test, id).await.unwrap();
            assert_eq!(
                read,
                "[$VAR_REF{{var:notes}}: bytes 0 to 8 of 13; next offset: 8]\na longer"
            );
        }
        for (id, expected) in [
            ("notes", "an id is t3a1c0 (a result)"),
            ("var:other", "$VAR_REF{{var:other}}: the session has no variable of this name"),
            ("t9a1c0", "$VAR_REF{{t9a1c0}}: the session has no such result"),
        ] {
            let error = call(&mut test, id).await.unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
