//! Texts and values as TOML.

use serde_json::Value;

use callsheet_values::types::{one_line, printable};

/// Maximum length of a comment. The rest is cut off.
const COMMENT_CHARS_MAX: usize = 240;

/// Returns a comment line.
pub(super) fn comment(text: &str) -> String {
    format!("# {}\n", printable(&one_line(text, COMMENT_CHARS_MAX)))
}

/// Returns a basic string. Escapes unprintable characters as code points.
pub(super) fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            '\t' => quoted.push_str("\\t"),
            c if c.is_ascii_graphic() || c == ' ' => quoted.push(c),
            c if !c.is_ascii() && printable(&c.to_string()).chars().eq([c]) => quoted.push(c),
            c => quoted.push_str(&format!("\\U{:08X}", u32::from(c))),
        }
    }
    quoted.push('"');
    quoted
}

/// Returns a bare key, or a quoted key if the name has other characters.
pub(super) fn key(name: &str) -> String {
    let is_bare = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    match !name.is_empty() && name.bytes().all(is_bare) {
        true => name.to_owned(),
        false => string(name),
    }
}

/// Returns an inline table of strings.
pub(super) fn string_table<'t>(
    entries: impl IntoIterator<Item = (&'t String, &'t String)>,
) -> String {
    inline_table(entries.into_iter().map(|(name, text)| (name, string(text))))
}

/// Returns a value on one line. TOML has no null: items and members that are null are left out, and
/// any other null becomes a text.
pub(super) fn inline_value(value: &Value) -> String {
    match value {
        Value::Null => string("null"),
        Value::Bool(on) => on.to_string(),
        // Integers that do not fit into 64 bits with sign, as TOML needs, become floats.
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (None, Some(float)) => format!("{float:?}"),
            (Some(_), _) | (None, None) => number.to_string(),
        },
        Value::String(text) => string(text),
        Value::Array(items) => {
            let items: Vec<String> =
                items.iter().filter(|item| !item.is_null()).map(inline_value).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Object(members) => {
            let mut members: Vec<_> = members.iter().filter(|entry| !entry.1.is_null()).collect();
            // Puts the type of a schema first, because a reader looks for it first.
            members.sort_by_key(|(name, _)| *name != "type");
            inline_table(members.into_iter().map(|(name, value)| (name, inline_value(value))))
        }
    }
}

fn inline_table<'t>(entries: impl Iterator<Item = (&'t String, String)>) -> String {
    let entries: Vec<String> =
        entries.map(|(name, value)| format!("{} = {value}", key(name))).collect();
    match entries.is_empty() {
        true => "{}".to_owned(),
        false => format!("{{ {} }}", entries.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_written_as_toml() {
        let value = json!({"a.b": [1, -2.5, null, true, 1e300, u64::MAX], "c": {}, "d": "\"\u{202e}\u{7}é\n"});
        let expected = r#"{ "a.b" = [1, -2.5, true, 1e300, 1.8446744073709552e19], c = {}, d = "\"\U0000202E\U00000007é\n" }"#;
        assert_eq!(inline_value(&value), expected);
        assert_eq!(comment("a\n[tools.x]\u{1b}[0m"), "# a [tools.x]\\u{1b}[0m\n");
    }

    proptest! {
        #[test]
        fn a_text_is_read_as_it_was_written(text in "\\PC*|.*", name in ".*") {
            let line = format!("{} = {}\n{}", key(&name), string(&text), comment(&text));
            let table: toml::Table = line.parse().unwrap();
            prop_assert_eq!(table[&name].as_str(), Some(text.as_str()));
        }
    }
}
