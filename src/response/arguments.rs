//! What do these bytes mean? The arguments of a call, parsed once, at its seal.

use std::borrow::Cow;

use serde_json::Value;

use crate::wire::replace_lone_surrogates;

/// What the text of a call's arguments means.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ParsedArguments {
    /// A JSON object, or something that stands for an empty one.
    Object {
        /// Always a JSON object.
        value: Value,
        /// The text was a JSON string which held the object.
        decoded_twice: bool,
    },
    /// The text ends in the middle of a JSON value.
    CutOff,
    /// The text is another JSON value, or no JSON.
    NotAnObject {
        /// What it is instead, for people; fits "the arguments are {found}".
        found: String,
    },
}

impl ParsedArguments {
    /// The object, if there is one.
    #[must_use]
    pub fn object(&self) -> Option<&Value> {
        match self {
            Self::Object { value, .. } => Some(value),
            Self::CutOff | Self::NotAnObject { .. } => None,
        }
    }
}

/// Understands the text of a call's arguments.
///
/// Nothing, blanks and `null` mean `{}`. Half a character is U+FFFD. A JSON string that holds an object (or one of these) is
/// decoded once more. Anything after the value makes it no JSON. Nesting is limited by the
/// parser, so that no text can exhaust the stack.
#[must_use]
pub fn parse_arguments(raw: &str) -> ParsedArguments {
    if raw.trim().is_empty() {
        return ParsedArguments::Object { value: empty(), decoded_twice: false };
    }
    match serde_json::from_str(raw) {
        Ok(Value::Object(map)) => {
            ParsedArguments::Object { value: Value::Object(map), decoded_twice: false }
        }
        Ok(Value::Null) => ParsedArguments::Object { value: empty(), decoded_twice: false },
        Ok(Value::String(inner)) => decode_again(&inner),
        Ok(Value::Array(_)) => not_an_object("a JSON array"),
        Ok(Value::Number(_)) => not_an_object("a JSON number"),
        Ok(Value::Bool(_)) => not_an_object("a JSON boolean"),
        Err(error) if error.is_eof() => ParsedArguments::CutOff,
        Err(error) => match replace_lone_surrogates(raw) {
            Cow::Owned(mended) => parse_arguments(&mended),
            Cow::Borrowed(_) => not_an_object(&format!("not JSON ({error})")),
        },
    }
}

fn decode_again(inner: &str) -> ParsedArguments {
    if inner.trim().is_empty() {
        return ParsedArguments::Object { value: empty(), decoded_twice: true };
    }
    match serde_json::from_str(&replace_lone_surrogates(inner)) {
        Ok(Value::Object(map)) => {
            ParsedArguments::Object { value: Value::Object(map), decoded_twice: true }
        }
        Ok(Value::Null) => ParsedArguments::Object { value: empty(), decoded_twice: true },
        Ok(Value::Array(_) | Value::Number(_) | Value::Bool(_) | Value::String(_)) | Err(_) => {
            not_an_object("a JSON string that holds no object")
        }
    }
}

fn empty() -> Value {
    Value::Object(serde_json::Map::new())
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
    fn what_says_nothing_is_an_empty_object() {
        for raw in ["", " ", "\n\t ", "null", " null\n", "{}"] {
            check(raw, json!({}), false);
        }
        for raw in [r#""""#, r#""null""#, r#""{}""#] {
            check(raw, json!({}), true);
        }
    }

    #[test]
    fn objects_are_themselves() {
        check(r#" {"a": [1, {"b": null}]} "#, json!({"a": [1, {"b": null}]}), false);
        check(r#"{"a":1.1234567890123457}"#, json!({"a": 1.123_456_789_012_345_7}), false);
    }

    #[test]
    fn half_a_character_costs_no_call() {
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
    fn a_cut_is_told_from_an_error() {
        for raw in ["{", r#"{"a"#, r#"{"a":"#, r#"{"a": tru"#, r#"{"a":"\u12"#, "[1,", r#""{}"#] {
            assert_eq!(parse_arguments(raw), ParsedArguments::CutOff, "{raw:?}");
        }
        for raw in ["{}}", "{} {}", "{a:1}", "{'a':1}", "[1]", "7", "true", r#""x""#, "print(1)"] {
            assert!(matches!(parse_arguments(raw), ParsedArguments::NotAnObject { .. }), "{raw:?}");
        }
    }

    #[test]
    fn every_cut_of_an_object_is_a_cut() {
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
