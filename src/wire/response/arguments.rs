//! Parses the text of the arguments of a call, which is incomplete if the response was cut off. Repairs no invalid
//! JSON, except for lone surrogates.

use std::borrow::Cow;

use serde_json::Value;

use crate::replace_lone_surrogates;

/// The result of parsing the text of a call's arguments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ParsedArguments {
    /// A JSON object, or a text that stands for an empty one.
    Object {
        /// Always a JSON object.
        value: Value,
        /// True if the text was a JSON string. The object, or a text that stands for an empty one, was within it.
        decoded_twice: bool,
    },
    /// The text ends in the middle of a JSON value.
    CutOff,
    /// The text is another JSON value, or not JSON.
    NotAnObject {
        /// A description of the text. It fits into "the arguments are {found}".
        found: String,
    },
}

impl ParsedArguments {
    /// Returns the object, if there is one.
    #[must_use]
    pub fn object(&self) -> Option<&Value> {
        match self {
            Self::Object { value, .. } => Some(value),
            Self::CutOff | Self::NotAnObject { .. } => None,
        }
    }
}

/// Parses the text of a call's arguments.
///
/// An empty text, white space and `null` mean `{}`. A lone surrogate becomes U+FFFD. A JSON string
/// that holds an object, or a text that means `{}`, is decoded once more. A text after the value
/// makes the arguments invalid. The parser limits the depth, so no text can overflow the stack.
#[must_use]
pub fn parse_arguments(raw: &str) -> ParsedArguments {
    if raw.trim().is_empty() {
        return object(Value::Null, false);
    }
    match serde_json::from_str(raw) {
        Ok(value @ (Value::Object(_) | Value::Null)) => object(value, false),
        Ok(Value::String(inner)) => decode_again(&inner),
        Ok(Value::Array(_)) => not_an_object("a JSON array"),
        Ok(Value::Number(_)) => not_an_object("a JSON number"),
        Ok(Value::Bool(_)) => not_an_object("a JSON boolean"),
        Err(error) if error.is_eof() => ParsedArguments::CutOff,
        Err(error) => match replace_lone_surrogates(raw) {
            Cow::Owned(repaired) => parse_arguments(&repaired),
            Cow::Borrowed(_) => not_an_object(&format!("not JSON ({error})")),
        },
    }
}

fn decode_again(inner: &str) -> ParsedArguments {
    if inner.trim().is_empty() {
        return object(Value::Null, true);
    }
    match serde_json::from_str(&replace_lone_surrogates(inner)) {
        Ok(value @ (Value::Object(_) | Value::Null)) => object(value, true),
        Ok(Value::Array(_) | Value::Number(_) | Value::Bool(_) | Value::String(_)) | Err(_) => {
            not_an_object("a JSON string that holds no object")
        }
    }
}

/// Returns an object as arguments. Null stands for an empty object.
fn object(value: Value, decoded_twice: bool) -> ParsedArguments {
    let value = if value.is_null() { serde_json::Map::new().into() } else { value };
    ParsedArguments::Object { value, decoded_twice }
}

fn not_an_object(found: &str) -> ParsedArguments {
    ParsedArguments::NotAnObject { found: found.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(raw: &str, value: Value, decoded_twice: bool) {
        assert_eq!(
            parse_arguments(raw),
            ParsedArguments::Object { value, decoded_twice },
            "{raw:?}"
        );
    }

    #[test]
    fn empty_text_and_null_are_an_empty_object() {
        for raw in ["", " ", "\n\t ", "null", " null\n", "{}"] {
            check(raw, json!({}), false);
        }
        for raw in [r#""""#, r#""null""#, r#""{}""#] {
            check(raw, json!({}), true);
        }
    }

    #[test]
    fn objects_are_unchanged() {
        check(r#" {"a": [1, {"b": null}]} "#, json!({"a": [1, {"b": null}]}), false);
        check(r#"{"a":1.1234567890123457}"#, json!({"a": 1.123_456_789_012_345_7}), false);
    }

    #[test]
    fn a_lone_surrogate_does_not_invalidate_a_call() {
        check(r#"{"a":"\ud83d"}"#, json!({"a": "\u{FFFD}"}), false);
        check(r#"{"a":"\ud83d\ude00 \ude00"}"#, json!({"a": "😀 \u{FFFD}"}), false);
        check(r#""{\"a\":\"\\ud83d\"}""#, json!({"a": "\u{FFFD}"}), true);
    }

    #[test]
    fn a_string_is_decoded_once_more_but_not_twice() {
        check(r#""{\"a\":1}""#, json!({"a": 1}), true);
        let thrice = serde_json::to_string(r#""{\"a\":1}""#).unwrap();
        assert!(matches!(parse_arguments(&thrice), ParsedArguments::NotAnObject { .. }));
    }

    #[test]
    fn cut_off_text_is_distinguished_from_invalid_text() {
        for raw in ["{", r#"{"a"#, r#"{"a":"#, r#"{"a": tru"#, r#"{"a":"\u12"#, "[1,", r#""{}"#] {
            assert_eq!(parse_arguments(raw), ParsedArguments::CutOff, "{raw:?}");
        }
        for raw in ["{}}", "{} {}", "{a:1}", "{'a':1}", "[1]", "7", "true", r#""x""#, "print(1)"] {
            assert!(matches!(parse_arguments(raw), ParsedArguments::NotAnObject { .. }), "{raw:?}");
        }
    }

    #[test]
    fn every_beginning_of_an_object_is_cut_off() {
        let whole = r#"{"a":"x\n\"ü","b":[1.5e3,true,null,{"c":{}}]}"#;
        for cut in (1..whole.len()).filter(|cut| whole.is_char_boundary(*cut)) {
            assert_eq!(
                parse_arguments(&whole[..cut]),
                ParsedArguments::CutOff,
                "{}",
                &whole[..cut]
            );
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_a_stack_overflow() {
        let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
        assert!(matches!(parse_arguments(&deep), ParsedArguments::NotAnObject { .. }));
        let deep = r#"{"a":"#.repeat(200_000);
        assert!(matches!(parse_arguments(&deep), ParsedArguments::NotAnObject { .. }));
    }
}
