//! Arguments that come in pieces, each with the path at which it belongs.
//!
//! A path is a JSON path of names and places alone: `$.a.b[0]`, `$['x.y']`. What it names is made
//! where it is missing. Pieces of text at the same path are one text.

use std::borrow::Cow;

use serde_json::{Map, Value};

/// How deep a path may lead: less than a reader of JSON takes.
const DEPTH_MAX: usize = 100;
/// How far behind the end of a list a place may lie; what is between becomes null.
const GAP_MAX: usize = 64;
/// Bytes of one call's arguments, where a value, whatever it is, counts as 16.
const BYTES_MAX: usize = 4 << 20;
const VALUE_BYTES: usize = 16;

/// The arguments of one call, as far as they have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    root: Value,
    bytes_left: usize,
    /// A piece could not be placed, so they will never be whole.
    broken: bool,
}

/// What a piece brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Bit<'a> {
    /// More of a text.
    Text(Cow<'a, str>),
    /// A whole number, truth value or null.
    Whole(Value),
}

/// A piece has no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Misplaced;

enum Step<'a> {
    Name(Cow<'a, str>),
    Place(usize),
}

impl Default for Arguments {
    fn default() -> Self {
        Self { root: Value::Object(Map::new()), bytes_left: BYTES_MAX, broken: false }
    }
}

impl Arguments {
    /// Takes what a piece brings to its path. Once one had no place, nothing more is taken.
    pub(super) fn fill(&mut self, path: &str, bit: Bit<'_>) -> Result<(), Misplaced> {
        if self.broken {
            return Ok(());
        }
        let placed = self.place(path, bit);
        self.broken = placed.is_none();
        placed.ok_or(Misplaced)
    }

    /// Says that a piece was lost.
    pub(super) fn lose(&mut self) {
        self.broken = true;
    }

    /// Takes an object that stands for what came before.
    pub(super) fn replace(&mut self, object: &str) -> Result<(), Misplaced> {
        match serde_json::from_str::<Map<String, Value>>(object) {
            Ok(map) => {
                self.root = Value::Object(map);
                Ok(())
            }
            Err(_) => {
                self.broken = true;
                Err(Misplaced)
            }
        }
    }

    /// The text of the whole arguments; cut off if a piece had no place.
    pub(super) fn into_text(self) -> String {
        let mut text = self.root.to_string();
        if self.broken {
            text.pop();
        }
        text
    }

    /// What has come behind the opening brace, cut off before the last one.
    pub(super) fn into_rest(self) -> String {
        let text = self.root.to_string();
        text.get(1..text.len().saturating_sub(1)).unwrap_or_default().to_owned()
    }

    fn place(&mut self, path: &str, bit: Bit<'_>) -> Option<()> {
        let mut steps = Steps { rest: path.strip_prefix('$').unwrap_or(path), bare: path };
        let mut at = &mut self.root;
        let mut depth = 0;
        while let Some(step) = steps.next()? {
            depth += 1;
            if depth > DEPTH_MAX {
                return None;
            }
            at = descend(at, step, &mut self.bytes_left)?;
        }
        if depth == 0 {
            return None;
        }
        match (at, bit) {
            (Value::String(text), Bit::Text(more)) => {
                spend(&mut self.bytes_left, more.len())?;
                text.push_str(&more);
            }
            (at, Bit::Text(text)) => {
                spend(&mut self.bytes_left, text.len())?;
                *at = Value::String(text.into_owned());
            }
            (at, Bit::Whole(value)) => *at = value,
        }
        Some(())
    }
}

fn descend<'v>(at: &'v mut Value, step: Step<'_>, bytes_left: &mut usize) -> Option<&'v mut Value> {
    match step {
        Step::Name(name) => {
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
        Step::Place(place) => {
            if at.is_null() {
                *at = Value::Array(Vec::new());
            }
            let Value::Array(items) = at else { return None };
            if place >= items.len() {
                let more = place - items.len();
                if more > GAP_MAX {
                    return None;
                }
                spend(bytes_left, VALUE_BYTES * (more + 1))?;
                items.resize(place + 1, Value::Null);
            }
            items.get_mut(place)
        }
    }
}

fn spend(bytes_left: &mut usize, bytes: usize) -> Option<()> {
    *bytes_left = bytes_left.checked_sub(bytes)?;
    Some(())
}

/// The steps of a path that is being read.
struct Steps<'a> {
    rest: &'a str,
    /// The path as it came: a name may begin it, where nothing stands before.
    bare: &'a str,
}

impl<'a> Steps<'a> {
    /// The next step, nothing at the end; none at all where this is no path of ours.
    fn next(&mut self) -> Option<Option<Step<'a>>> {
        let path = self.rest;
        if path.is_empty() {
            return Some(None);
        }
        if let Some(inner) = path.strip_prefix('[') {
            return self.bracket(inner).map(Some);
        }
        let name = match path.strip_prefix('.') {
            Some(name) => name,
            None if path.len() == self.bare.len() => path,
            None => return None,
        };
        let end = name.find(['.', '[']).unwrap_or(name.len());
        let (name, rest) = name.split_at_checked(end)?;
        self.rest = rest;
        (!name.is_empty() && name != "*").then_some(Some(Step::Name(Cow::Borrowed(name))))
    }

    fn bracket(&mut self, inner: &'a str) -> Option<Step<'a>> {
        let quote = inner.chars().next().filter(|c| ['\'', '"'].contains(c));
        let Some(quote) = quote else {
            let (place, rest) = inner.split_once(']')?;
            self.rest = rest;
            let is_place = !place.is_empty() && place.bytes().all(|b| b.is_ascii_digit());
            return is_place.then(|| place.parse().ok().map(Step::Place)).flatten();
        };
        let (name, rest) = quoted(inner.get(1..)?, quote)?;
        self.rest = rest.strip_prefix(']')?;
        Some(Step::Name(name))
    }
}

/// The text up to the closing quote, without its escapes, and what follows.
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
    // The escapes are those of JSON, but for the quote.
    let name = name.replace("\\'", "'");
    let name = if quote == '\'' { escape_quotes(&name) } else { name };
    serde_json::from_str(&format!("\"{name}\"")).ok().map(|name: String| (Cow::Owned(name), rest))
}

/// Escapes the double quotes that are not.
fn escape_quotes(text: &str) -> String {
    let mut escaped = false;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '"' && !escaped {
            out.push('\\');
        }
        escaped = c == '\\' && !escaped;
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filled(pieces: &[(&str, Value)]) -> (Arguments, bool) {
        let mut arguments = Arguments::default();
        let mut placed = true;
        for (path, value) in pieces {
            let bit = match value.as_str() {
                Some(text) => Bit::Text(text.into()),
                None => Bit::Whole(value.clone()),
            };
            placed &= arguments.fill(path, bit).is_ok();
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
        check(&[("$['']", json!(1))], json!({"": 1}));
        check(&[("a.b", json!(1)), ("['c']", json!(2))], json!({"a": {"b": 1}, "c": 2}));
        check(&[("$.a", json!(1)), ("$.a", json!("x"))], json!({"a": "x"}));
    }

    #[test]
    fn a_piece_without_a_place_leaves_the_arguments_cut_off() {
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
        assert_eq!(arguments.fill("$..", Bit::Whole(json!(1))), Ok(()));
        assert_eq!(arguments.clone().into_text(), r#"{"a":"x""#);
        assert_eq!(arguments.into_rest(), r#""a":"x""#);
    }

    #[test]
    fn there_is_a_limit_to_what_is_held() {
        let mut arguments = Arguments { bytes_left: 100, ..Arguments::default() };
        let long = "x".repeat(60);
        assert_eq!(arguments.fill("$.a", Bit::Text(long.as_str().into())), Ok(()));
        assert_eq!(arguments.fill("$.a", Bit::Text(long.as_str().into())), Err(Misplaced));
        let mut arguments = Arguments { bytes_left: 100, ..Arguments::default() };
        assert_eq!(arguments.fill("$.a[10]", Bit::Whole(json!(1))), Err(Misplaced));
    }

    #[test]
    fn a_whole_object_stands_instead() {
        let (mut arguments, _) = filled(&[("$.a", json!("x"))]);
        assert_eq!(arguments.replace(r#"{"b":1}"#), Ok(()));
        assert_eq!(arguments.clone().into_text(), r#"{"b":1}"#);
        assert_eq!(arguments.replace("7"), Err(Misplaced));
        assert_eq!(arguments.into_text(), r#"{"b":1"#);
    }
}
