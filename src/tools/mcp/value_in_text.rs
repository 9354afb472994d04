//! Decides whether the content of a result holds its structured value, so that the model need not read the value as
//! well. The protocol only recommends to repeat the value as text.

use std::collections::HashSet;

use memchr::memmem;
use serde_json::Value;

use callsheet_values::types::floor_char_boundary;

/// Maximum number of scalars of the value that are looked for. Of a larger value every n-th one is.
const SCALARS_MAX: usize = 256;

/// Maximum number of bytes of the text in which they are looked for.
const TEXT_BYTES_MAX: usize = 256 << 10;

/// Returns whether the content of a result holds its structured value: a block is the value as JSON, or most of its
/// strings, numbers and booleans (more than three quarters) are in the blocks. `text` is the text of all blocks.
pub(super) fn holds(text: &str, blocks: &[Value], value: &Value) -> bool {
    let texts = blocks.iter().filter_map(|block| block["text"].as_str());
    let parsed: Vec<Value> = texts.filter_map(|text| serde_json::from_str(text).ok()).collect();
    if parsed.contains(value) {
        return true;
    }
    let all = scalars(value);
    if all.is_empty() {
        return is_empty(value);
    }
    // In a block of JSON a string may have escapes.
    let in_blocks: HashSet<String> = parsed.iter().flat_map(scalars).map(scalar_text).collect();
    let text = text.get(..floor_char_boundary(text, TEXT_BYTES_MAX)).unwrap_or(text);
    let every = all.len().div_ceil(SCALARS_MAX);
    let looked_for: HashSet<String> = all.into_iter().step_by(every).map(scalar_text).collect();
    let is_held = |scalar: &&String| in_blocks.contains(*scalar) || has_word(text, scalar);
    let held = looked_for.iter().filter(is_held).count();
    held * 4 > looked_for.len() * 3
}

/// Returns the strings, numbers and booleans of a value in order, without blank strings.
fn scalars(value: &Value) -> Vec<&Value> {
    let (mut found, mut open) = (Vec::new(), vec![value]);
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items.iter().rev()),
            Value::Object(members) => open.extend(members.values().rev()),
            Value::String(text) if text.trim().is_empty() => {}
            Value::String(_) | Value::Number(_) | Value::Bool(_) => found.push(value),
            Value::Null => {}
        }
    }
    found
}

fn scalar_text(scalar: &Value) -> String {
    match scalar.as_str() {
        Some(text) => text.trim().to_owned(),
        None => scalar.to_string(),
    }
}

/// Returns whether a text has another one in it that is not a part of a longer word or number.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    memmem::find_iter(text.as_bytes(), word).any(|at| {
        let before = text.get(..at).and_then(|before| before.chars().next_back());
        let behind = text.get(at + word.len()..).and_then(|behind| behind.chars().next());
        !(is_part(before) && is_part(word.chars().next())
            || is_part(behind) && is_part(word.chars().next_back()))
    })
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        Value::String(text) => text.trim().is_empty(),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn held(texts: &[&str], value: Value) -> bool {
        let blocks = texts.iter().map(|text| json!({"type": "text", "text": text}));
        holds(&texts.join("\n"), &blocks.collect::<Vec<_>>(), &value)
    }

    #[test]
    fn a_value_is_held_by_equal_json_or_by_most_of_its_scalars() {
        for (texts, value) in [
            // The same JSON, written in another way.
            (&["{\n  \"a\": [1, \"x\\ny\"]\n}"][..], json!({"a": [1, "x\ny"]})),
            (&["{\"rows\": []}"], json!({"rows": []})),
            // The wrapping of some SDKs: one block for each item, or a plain text.
            (&["{\"a\": \"x\\ny\"}", "{\"a\": 2}"], json!({"result": [{"a": "x\ny"}, {"a": 2}]})),
            (&["plain text\n"], json!({"result": "plain text"})),
            // Prose and tables.
            (
                &["22.5 degrees in Bern, sunny (humidity 65 %)"],
                json!({"t": 22.5, "place": "Bern", "sky": "sunny", "h": 65}),
            ),
            (&["| Ann | 1 |\n| Bob | 2 |"], json!([{"n": "Ann", "v": 1}, {"n": "Bob", "v": 2}])),
            (&["done"], json!({})),
            (&["done"], json!(null)),
        ] {
            assert!(held(texts, value.clone()), "{value}");
        }
    }

    #[test]
    fn a_value_is_not_held_by_a_summary_of_it() {
        for (texts, value) in [
            (
                &["Search executed (2 results)."][..],
                json!({"rows": [{"id": 1}, {"id": 2}], "total": 2}),
            ),
            (
                &["Search executed (2 results)."],
                json!({"summary": "Search executed (2 results).", "rows": ["a", "b"]}),
            ),
            (&["ok"], json!({"status": "ok", "path": "/tmp/x"})),
            (&["Searched."], json!({"a": "arch"})),
            (&["seven degrees"], json!({"t": 7})),
            (&["17 degrees"], json!({"t": 7})),
            (&["Deleted."], json!({"deleted": true})),
            (&["Search executed."], json!({"rows": []})),
            (&[""], json!({"a": 1})),
        ] {
            assert!(!held(texts, value.clone()), "{value}");
        }
    }

    #[test]
    fn of_a_large_value_all_parts_count() {
        let rows = |count| (0..count).map(|at| format!("row{at}")).collect::<Vec<_>>();
        let table = rows(1_000).join("\n");
        assert!(held(&[&table], json!(rows(1_000))));
        assert!(!held(&[&table], json!(rows(5_000))), "the text shows only the first rows");
    }
}
