//! Reads YAML as JSON: the core schema of YAML 1.2, with keys as texts and limits against documents that
//! grow when they are read.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle};
use serde_json::{Map, Value};

/// Maximum number of lists and tables around a value, as `serde_json` has it.
const DEPTH_MAX: usize = 128;

/// Maximum size of what anchors and aliases copy, as [`weight`] counts it.
const COPIED_MAX: usize = 64 << 20;

/// A list or a table whose end is not read yet.
struct OpenNode {
    anchor: usize,
    items: OpenItems,
}

enum OpenItems {
    List(Vec<Value>),
    /// The entries, and the key whose value comes next.
    Table(Map<String, Value>, Option<String>),
}

/// Builds a value from the events of the parser.
#[derive(Default)]
struct ValueBuilder {
    open: Vec<OpenNode>,
    anchors: HashMap<usize, Value>,
    copied: usize,
    root: Option<Value>,
}

/// Parses a text with one YAML document.
///
/// # Errors
/// The first problem, with line and column.
pub(super) fn parse(text: &str) -> Result<Value, String> {
    let mut builder = ValueBuilder::default();
    for event in Parser::new_from_str(text) {
        let at = |line: usize, column: usize, problem: &str| {
            format!("{problem} at line {line} column {}", column + 1)
        };
        let (event, span) =
            event.map_err(|error| at(error.marker().line(), error.marker().col(), error.info()))?;
        builder.add(event).map_err(|problem| at(span.start.line(), span.start.col(), &problem))?;
    }
    builder.root.ok_or_else(|| "the document is empty".to_owned())
}

impl ValueBuilder {
    fn add(&mut self, event: Event<'_>) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text =
                    style != ScalarStyle::Plain || tag.is_some_and(|tag| tag.suffix == "str");
                if let Some(OpenItems::Table(_, key @ None)) = self.open_items() {
                    *key = Some(text.into_owned());
                    return Ok(());
                }
                self.finish(if is_text { text.into() } else { plain(&text) }, anchor)
            }
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned();
                let value = value.ok_or("an alias stands inside of its own anchor")?;
                self.count_copy(&value)?;
                self.finish(value, 0)
            }
            Event::SequenceStart(anchor, _) => self.start(anchor, OpenItems::List(Vec::new())),
            Event::MappingStart(anchor, _) => {
                self.start(anchor, OpenItems::Table(Map::new(), None))
            }
            Event::SequenceEnd | Event::MappingEnd => match self.open.pop() {
                Some(OpenNode { anchor, items: OpenItems::List(items) }) => {
                    self.finish(items.into(), anchor)
                }
                Some(OpenNode { anchor, items: OpenItems::Table(entries, _) }) => {
                    self.finish(merged(entries).into(), anchor)
                }
                None => Ok(()),
            },
            Event::DocumentStart(_) if self.root.is_some() => {
                Err("a second document begins; only one is read,".to_owned())
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn open_items(&mut self) -> Option<&mut OpenItems> {
        self.open.last_mut().map(|node| &mut node.items)
    }

    fn start(&mut self, anchor: usize, items: OpenItems) -> Result<(), String> {
        if self.open.len() >= DEPTH_MAX {
            return Err(format!("more than {DEPTH_MAX} lists and tables in each other"));
        }
        if let Some(OpenItems::Table(_, None)) = self.open_items() {
            return Err("the key of a table is not a text".to_owned());
        }
        self.open.push(OpenNode { anchor, items });
        Ok(())
    }

    /// Adds a complete value to the list or table around it.
    fn finish(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        if anchor != 0 {
            self.count_copy(&value)?;
            self.anchors.insert(anchor, value.clone());
        }
        match self.open_items() {
            None => self.root = Some(value),
            Some(OpenItems::List(items)) => items.push(value),
            Some(OpenItems::Table(entries, key)) => match (key.take(), value) {
                (Some(key), value) => {
                    if entries.insert(key.clone(), value).is_some() {
                        return Err(format!("the key {key:?} stands twice in a table"));
                    }
                }
                (None, Value::String(text)) => *key = Some(text),
                (None, _) => return Err("the key of a table is not a text".to_owned()),
            },
        }
        Ok(())
    }

    fn count_copy(&mut self, value: &Value) -> Result<(), String> {
        self.copied = self.copied.saturating_add(weight(value));
        let message = || "the aliases make the document too large".to_owned();
        if self.copied > COPIED_MAX { Err(message()) } else { Ok(()) }
    }
}

/// Returns the approximate size of a value in memory.
fn weight(value: &Value) -> usize {
    let content: usize = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(weight).sum(),
        Value::Object(entries) => {
            entries.iter().map(|(key, value)| key.len() + weight(value)).sum()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
    };
    32 + content
}

/// Adds the entries of the tables below the merge key `<<`. Entries of the table itself win.
fn merged(mut entries: Map<String, Value>) -> Map<String, Value> {
    let sources = match entries.remove("<<") {
        Some(Value::Array(sources)) => sources,
        Some(source @ Value::Object(_)) => vec![source],
        Some(other) => {
            entries.insert("<<".to_owned(), other);
            return entries;
        }
        None => return entries,
    };
    for source in sources {
        let Value::Object(source) = source else { continue };
        for (key, value) in source {
            entries.entry(key).or_insert(value);
        }
    }
    entries
}

/// Returns the value of a scalar without quotation marks.
fn plain(text: &str) -> Value {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Value::Null,
        "true" | "True" | "TRUE" => return true.into(),
        "false" | "False" | "FALSE" => return false.into(),
        _ => {}
    }
    let radix = |prefix, radix| {
        text.strip_prefix(prefix).and_then(|digits| u64::from_str_radix(digits, radix).ok())
    };
    let number = text.parse::<i64>().ok().map(Value::from);
    let number = number.or_else(|| text.parse::<u64>().ok().map(Value::from));
    let number = number.or_else(|| radix("0x", 16).or_else(|| radix("0o", 8)).map(Value::from));
    let is_decimal = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    let float = || text.parse::<f64>().ok().filter(|number| is_decimal && number.is_finite());
    number.or_else(|| float().map(Value::from)).unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_have_the_types_of_the_core_schema() {
        let text = "
a: [1, -2.5, 1e3, 0x10, 18446744073709551615, .inf, 1.0.0]
b: {yes: yes, n: null, t: ~, on: true, e: , s: '1', v: !!str 1}
200: ok
text: |
  one
  two
long: >-
  one
  two
";
        let expected = json!({
            "a": [1, -2.5, 1000.0, 16, 18_446_744_073_709_551_615_u64, ".inf", "1.0.0"],
            "b": {"yes": "yes", "n": null, "t": null, "on": true, "e": null, "s": "1", "v": "1"},
            "200": "ok", "text": "one\ntwo\n", "long": "one two",
        });
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn aliases_and_merge_keys_are_copied() {
        let text = "base: &b {x: 1, y: 2}\ncopy: *b\nkey: &k name\nmore: {<<: *b, y: 3, *k : z}\nall: {<<: [*b, {w: 0}]}";
        let expected = json!({
            "base": {"x": 1, "y": 2}, "copy": {"x": 1, "y": 2}, "key": "name",
            "more": {"x": 1, "y": 3, "name": "z"}, "all": {"x": 1, "y": 2, "w": 0},
        });
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn wrong_documents_name_line_and_column() {
        let deep = "[".repeat(100_000);
        let deep_list = "- ".repeat(1000);
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..12 {
            let items = format!("*a{}, ", level - 1).repeat(10);
            bomb.push_str(&format!("a{level}: &a{level} [{items}]\n"));
        }
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), "*a, ".repeat(100));
        for (text, expected) in [
            ("", "the document is empty"),
            ("a: [1, 2", "expected ',' or ']' at line 2 column 1"),
            ("a: 1\na: 2", "the key \"a\" stands twice in a table at line 2 column 4"),
            ("{[1]: 2}", "the key of a table is not a text at line 1 column 2"),
            ("a: &a [*a]", "an alias stands inside of its own anchor at line 1 column 8"),
            ("a: *b", "at line 1 column 4"),
            ("a: 1\n---\nb: 1", "a second document begins; only one is read, at line 2 column 1"),
            (&deep, "recursion limit exceeded at line 1"),
            (&deep_list, "more than 128 lists and tables in each other at line 1 column 257"),
            (&bomb, "the aliases make the document too large at line "),
            (&long, "the aliases make the document too large at line "),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{}: {error}", text.get(..40).unwrap_or(text));
        }
    }
}
