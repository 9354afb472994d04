//! Arguments that come in pieces, each with the JSON path of its value.
//!
//! A path consists of names and indexes alone: `$.a.b[0]`, `$['x.y']`. Missing objects and lists on
//! the path are created. Pieces of text at the same path are joined. Source: `partialArgs` in
//! <https://cloud.google.com/vertex-ai/generative-ai/docs/multimodal/function-calling>.

use std::borrow::Cow;

use serde_json::{Map, Value};

use crate::repair::parse_value;

/// Maximum depth of a path, below the limit of serde_json.
const DEPTH_MAX: usize = 100;
/// Maximum distance of an index from the end of its list. The items between become null.
const GAP_MAX: usize = 64;
/// Maximum bytes of the pieces of one call: names, texts, and [`VALUE_BYTES`] for each value.
const BYTES_MAX: usize = 4 << 20;
/// Number of bytes that each value counts in addition to its name and text.
const VALUE_BYTES: usize = 16;

/// The arguments of one call, as far as they have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartialArguments {
    root: Value,
    bytes_left: usize,
    /// A piece was lost, so they will never be complete.
    is_incomplete: bool,
}

/// The value of a piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ArgumentValue<'a> {
    /// More of a text.
    Text(Cow<'a, str>),
    /// A complete number, boolean or null.
    Complete(Value),
}

/// A piece has a path that is invalid, or at which its value cannot be stored; or arguments are not an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidPath;

enum PathStep<'a> {
    Name(Cow<'a, str>),
    Index(usize),
}

impl Default for PartialArguments {
    fn default() -> Self {
        Self { root: Value::Object(Map::new()), bytes_left: BYTES_MAX, is_incomplete: false }
    }
}

impl PartialArguments {
    /// Stores the value of a piece at its path. After a lost piece all others are ignored.
    pub(super) fn push(&mut self, path: &str, value: ArgumentValue<'_>) -> Result<(), InvalidPath> {
        if self.is_incomplete {
            return Ok(());
        }
        let stored = self.store(path, value);
        self.is_incomplete = stored.is_none();
        stored.ok_or(InvalidPath)
    }

    /// Records that a piece was lost.
    pub(super) fn mark_incomplete(&mut self) {
        self.is_incomplete = true;
    }

    /// Replaces the arguments so far by an object.
    pub(super) fn replace(&mut self, object: &str) -> Result<(), InvalidPath> {
        match parse_value(object) {
            Some(root @ Value::Object(_)) => {
                self.root = root;
                Ok(())
            }
            _ => {
                self.is_incomplete = true;
                Err(InvalidPath)
            }
        }
    }

    /// Returns the text of the complete arguments. If a piece was lost the text is cut off, so that it
    /// is invalid JSON.
    pub(super) fn into_text(self) -> String {
        let mut text = self.root.to_string();
        if self.is_incomplete {
            text.pop();
        }
        text
    }

    /// Returns the text so far, without the outer braces: the opening one was sent when the call began, and the
    /// closing one is left out, because the call was cut off.
    pub(super) fn into_partial_text(self) -> String {
        let text = self.root.to_string();
        text.get(1..text.len().saturating_sub(1)).unwrap_or_default().to_owned()
    }

    fn store(&mut self, path: &str, value: ArgumentValue<'_>) -> Option<()> {
        let steps = path_steps(path).filter(|steps| !steps.is_empty())?;
        let mut at = &mut self.root;
        for step in steps {
            at = descend(at, step, &mut self.bytes_left)?;
        }
        match (at, value) {
            (Value::String(text), ArgumentValue::Text(more)) => {
                spend(&mut self.bytes_left, more.len())?;
                text.push_str(&more);
            }
            (at, ArgumentValue::Text(text)) => {
                spend(&mut self.bytes_left, text.len())?;
                *at = Value::String(text.into_owned());
            }
            (at, ArgumentValue::Complete(value)) => *at = value,
        }
        Some(())
    }
}

/// Returns the value at a step, which is created if it is missing.
fn descend<'v>(
    at: &'v mut Value,
    step: PathStep<'_>,
    bytes_left: &mut usize,
) -> Option<&'v mut Value> {
    match step {
        PathStep::Name(name) => {
            if at.is_null() {
                *at = Value::Object(Map::new());
            }
            let Value::Object(map) = at else { return None };
            if !map.contains_key(&*name) {
                spend(bytes_left, VALUE_BYTES + name.len())?;
                map.insert(name.clone().into_owned(), Value::Null);
            }
            map.get_mut(&*name)
        }
        PathStep::Index(index) => {
            if at.is_null() {
                *at = Value::Array(Vec::new());
            }
            let Value::Array(items) = at else { return None };
            if index >= items.len() {
                let more = index - items.len();
                if more > GAP_MAX {
                    return None;
                }
                spend(bytes_left, VALUE_BYTES * (more + 1))?;
                items.resize(index + 1, Value::Null);
            }
            items.get_mut(index)
        }
    }
}

fn spend(bytes_left: &mut usize, bytes: usize) -> Option<()> {
    *bytes_left = bytes_left.checked_sub(bytes)?;
    Some(())
}

/// Returns the steps of a path, or `None` if it is invalid or too deep.
fn path_steps(path: &str) -> Option<Vec<PathStep<'_>>> {
    let mut rest = path.strip_prefix('$').unwrap_or(path);
    let mut steps = Vec::new();
    while !rest.is_empty() {
        if steps.len() == DEPTH_MAX {
            return None;
        }
        let step;
        (step, rest) = match (rest.strip_prefix('['), rest.strip_prefix('.')) {
            (Some(inner), _) => bracket_step(inner)?,
            (None, Some(name)) => name_step(name)?,
            // A path without `$` may begin with a name without a dot.
            (None, None) if rest.len() == path.len() => name_step(rest)?,
            (None, None) => return None,
        };
        steps.push(step);
    }
    Some(steps)
}

fn name_step(text: &str) -> Option<(PathStep<'_>, &str)> {
    let (name, rest) = text.split_at_checked(text.find(['.', '[']).unwrap_or(text.len()))?;
    let is_valid = !name.is_empty() && name != "*";
    is_valid.then_some((PathStep::Name(Cow::Borrowed(name)), rest))
}

fn bracket_step(inner: &str) -> Option<(PathStep<'_>, &str)> {
    if let Some(quote) = inner.chars().next().filter(|c| ['\'', '"'].contains(c)) {
        let (name, rest) = quoted(inner.get(1..)?, quote)?;
        return Some((PathStep::Name(name), rest.strip_prefix(']')?));
    }
    let (index, rest) = inner.split_once(']')?;
    let is_index = index.bytes().all(|byte| byte.is_ascii_digit());
    Some((PathStep::Index(index.parse().ok().filter(|_| is_index)?), rest))
}

/// Returns the text up to the closing quote, unescaped, and the text after it.
fn quoted(text: &str, quote: char) -> Option<(Cow<'_, str>, &str)> {
    let mut escaped = false;
    let end = text.find(|c: char| {
        let closes = c == quote && !escaped;
        escaped = c == '\\' && !escaped;
        closes
    })?;
    let (name, rest) = text.split_at_checked(end)?;
    let rest = rest.get(1..)?;
    if !name.contains('\\') {
        return Some((Cow::Borrowed(name), rest));
    }
    let name = json_escapes(name);
    serde_json::from_str(&format!("\"{name}\"")).ok().map(|name: String| (Cow::Owned(name), rest))
}

/// Returns a quoted text with the escapes of JSON: without the escape of single quotes, and with that of double
/// quotes that have none.
fn json_escapes(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match (c, (c == '\\').then(|| chars.next()).flatten()) {
            (_, Some('\'')) => out.push('\''),
            (_, Some(escaped)) => out.extend(['\\', escaped]),
            ('"', None) => out.push_str("\\\""),
            (c, None) => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(pieces: &[(&str, Value)]) -> (PartialArguments, bool) {
        let mut arguments = PartialArguments::default();
        let mut placed = true;
        for (path, value) in pieces {
            let argument = match value.as_str() {
                Some(text) => ArgumentValue::Text(text.into()),
                None => ArgumentValue::Complete(value.clone()),
            };
            placed &= arguments.push(path, argument).is_ok();
        }
        (arguments, placed)
    }

    #[track_caller]
    fn check(pieces: &[(&str, Value)], expected: Value) {
        let (arguments, placed) = filled(pieces);
        assert!(placed, "{pieces:?}");
        assert_eq!(arguments.into_text(), expected.to_string(), "{pieces:?}");
    }

    #[test]
    fn pieces_go_to_their_paths() {
        check(&[], json!({}));
        check(&[("$.a", json!("x")), ("$.a", json!("y")), ("$.a", json!(""))], json!({"a": "xy"}));
        check(
            &[("$.a.b[0].c", json!(1)), ("$.a.b[1]", json!(true))],
            json!({"a": {"b": [{"c": 1}, true]}}),
        );
        check(&[("$.a[1]", json!("x"))], json!({"a": [null, "x"]}));
        check(&[("$.a[0]", json!(null)), ("$.a[0][0]", json!(2.5))], json!({"a": [[2.5]]}));
        check(&[("$['x.y']['z']", json!(1))], json!({"x.y": {"z": 1}}));
        check(&[("$[\"a'b\"]", json!(1))], json!({"a'b": 1}));
        check(&[(r#"$['it\'s "é"\\']"#, json!(1))], json!({"it's \"é\"\\": 1}));
        check(
            &[(r"$['a\\']", json!(1)), (r"$['a\\\'b']", json!(2))],
            json!({"a\\": 1, "a\\'b": 2}),
        );
        check(&[("$['']", json!(1))], json!({"": 1}));
        check(&[("a.b", json!(1)), ("['c']", json!(2))], json!({"a": {"b": 1}, "c": 2}));
        check(&[("$.a", json!(1)), ("$.a", json!("x"))], json!({"a": "x"}));
    }

    #[test]
    fn an_invalid_path_leaves_the_arguments_cut_off() {
        let deep = format!("${}", "[0]".repeat(1 + DEPTH_MAX));
        for path in [
            "",
            "$",
            "$..a",
            "$.a.",
            "$.*",
            "$.a[-1]",
            "$.a[1:2]",
            "$.a[",
            "$.a['b",
            "$.a['b'",
            "$a",
            "$.a[1000000000]",
            "$.a[99999999999999999999999]",
            "$.b.c",
            "$[0]",
            &deep,
        ] {
            let (arguments, placed) = filled(&[("$.b", json!("x")), (path, json!(1))]);
            assert!(!placed, "{path}");
            let text = arguments.into_text();
            assert!(
                text.starts_with(r#"{"#) && serde_json::from_str::<Value>(&text).is_err(),
                "{path}: {text}"
            );
        }
    }

    #[test]
    fn after_a_lost_piece_nothing_more_is_taken() {
        let (mut arguments, _) =
            filled(&[("$.a", json!("x")), ("$..", json!(1)), ("$.a", json!("y"))]);
        assert_eq!(arguments.push("$..", ArgumentValue::Complete(json!(1))), Ok(()));
        assert_eq!(arguments.clone().into_text(), r#"{"a":"x""#);
        assert_eq!(arguments.into_partial_text(), r#""a":"x""#);
    }

    #[test]
    fn there_is_a_limit_to_what_is_held() {
        let mut arguments = PartialArguments { bytes_left: 100, ..PartialArguments::default() };
        let long = "x".repeat(60);
        assert_eq!(arguments.push("$.a", ArgumentValue::Text(long.as_str().into())), Ok(()));
        assert_eq!(
            arguments.push("$.a", ArgumentValue::Text(long.as_str().into())),
            Err(InvalidPath)
        );
        let mut arguments = PartialArguments { bytes_left: 100, ..PartialArguments::default() };
        assert_eq!(arguments.push("$.a[10]", ArgumentValue::Complete(json!(1))), Err(InvalidPath));
    }

    #[test]
    fn an_object_replaces_the_arguments_so_far() {
        let (mut arguments, _) = filled(&[("$.a", json!("x"))]);
        assert_eq!(arguments.replace(r#"{"b":1}"#), Ok(()));
        assert_eq!(arguments.clone().into_text(), r#"{"b":1}"#);
        assert_eq!(arguments.replace("7"), Err(InvalidPath));
        assert_eq!(arguments.into_text(), r#"{"b":1"#);
    }
}
