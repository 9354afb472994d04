//! Parses values in the syntax of Python, and JSON with the mistakes that models make: single quotes, line
//! feeds within strings, trailing commas, keys without quotes and, if the text was cut, missing brackets at the end.

use std::iter::Peekable;
use std::str::Chars;

use serde_json::{Map, Number, Value};

/// Maximum depth of a value. The parser is recursive.
const DEPTH_MAX: usize = 100;

/// The marks that begin and end a text in the calls of Gemma ([`super::gemma`]).
pub(super) const TEXT_MARKS: [&str; 2] = ["<|\"|>", "<escape>"];

/// Parses a value. With `is_cut`, brackets that are missing at the end are added.
pub(super) fn parse_value(text: &str, is_cut: bool) -> Option<Value> {
    let mut parser = Parser { rest: text.chars().peekable(), depth: 0, is_cut };
    let value = parser.value()?;
    parser.ends().then_some(value)
}

/// Parses the arguments of a call, without its parentheses: `a=1, b="x"`, or `**{..}`.
pub(super) fn parse_keywords(text: &str) -> Option<Map<String, Value>> {
    let mut parser = Parser { rest: text.chars().peekable(), depth: 0, is_cut: false };
    let mut keywords = Map::new();
    while !parser.ends() {
        if parser.accept('*') {
            let Value::Object(members) = parser.accept('*').then(|| parser.value())?? else {
                return None;
            };
            keywords.extend(members);
        } else {
            let name = parser.word()?;
            let value = parser.accept('=').then(|| parser.value())??;
            keywords.insert(name, value);
        }
        if !parser.accept(',') && !parser.ends() {
            return None;
        }
    }
    Some(keywords)
}

struct Parser<'t> {
    rest: Peekable<Chars<'t>>,
    depth: usize,
    is_cut: bool,
}

impl Parser<'_> {
    fn ends(&mut self) -> bool {
        self.skip_blanks();
        self.rest.peek().is_none()
    }

    fn skip_blanks(&mut self) {
        while self.rest.next_if(|c| c.is_whitespace()).is_some() {}
    }

    fn accept(&mut self, wanted: char) -> bool {
        self.skip_blanks();
        self.rest.next_if_eq(&wanted).is_some()
    }

    /// Reads letters, digits, underscores and hyphens. Returns `None` if there are none.
    fn word(&mut self) -> Option<String> {
        self.skip_blanks();
        let mut word = String::new();
        while let Some(c) = self.rest.next_if(|c| c.is_alphanumeric() || *c == '_' || *c == '-') {
            word.push(c);
        }
        (!word.is_empty()).then_some(word)
    }

    fn value(&mut self) -> Option<Value> {
        self.skip_blanks();
        match *self.rest.peek()? {
            '{' => self.nested(Self::object),
            '[' => self.nested(|parser| parser.list(']')),
            '(' => self.nested(|parser| parser.list(')')),
            '"' | '\'' => self.strings().map(Value::String),
            '<' => self.marked_text().map(Value::String),
            '0'..='9' | '-' | '+' | '.' => self.number(),
            _ => match self.word()?.as_str() {
                "true" | "True" => Some(Value::Bool(true)),
                "false" | "False" => Some(Value::Bool(false)),
                "null" | "None" | "NaN" | "Infinity" => Some(Value::Null),
                _ => None,
            },
        }
    }

    fn nested(&mut self, read: impl FnOnce(&mut Self) -> Option<Value>) -> Option<Value> {
        self.rest.next();
        self.depth += 1;
        let value = if self.depth <= DEPTH_MAX { read(self) } else { None };
        self.depth -= 1;
        value
    }

    /// Returns whether the bracketed value ends here. Reads its closing bracket.
    fn closes(&mut self, close: char) -> bool {
        self.accept(close) || (self.is_cut && self.ends())
    }

    fn object(&mut self) -> Option<Value> {
        let mut members = Map::new();
        while !self.closes('}') {
            let key = match *self.rest.peek()? {
                '"' | '\'' => self.string()?,
                '<' => self.marked_text()?,
                _ => self.word()?,
            };
            let value = self.accept(':').then(|| self.value())??;
            members.insert(key, value);
            if !self.accept(',') && self.rest.peek().is_some_and(|c| *c != '}') {
                return None;
            }
        }
        Some(Value::Object(members))
    }

    fn list(&mut self, close: char) -> Option<Value> {
        let mut items = Vec::new();
        while !self.closes(close) {
            items.push(self.value()?);
            if !self.accept(',') && self.rest.peek().is_some_and(|c| *c != close) {
                return None;
            }
        }
        Some(Value::Array(items))
    }

    /// Reads a string, and those that follow it directly: Python joins them.
    fn strings(&mut self) -> Option<String> {
        let mut text = self.string()?;
        loop {
            self.skip_blanks();
            match self.rest.peek() {
                Some('"' | '\'') => text.push_str(&self.string()?),
                Some(_) | None => return Some(text),
            }
        }
    }

    /// Reads a text between two of the same [`TEXT_MARKS`].
    fn marked_text(&mut self) -> Option<String> {
        let is_next = |parser: &Self, mark: &str| {
            let mut rest = parser.rest.clone();
            mark.chars().all(|c| rest.next() == Some(c))
        };
        let mark = TEXT_MARKS.into_iter().find(|mark| is_next(self, mark))?;
        self.rest.nth(mark.chars().count() - 1);
        let mut text = String::new();
        loop {
            if is_next(self, mark) {
                self.rest.nth(mark.chars().count() - 1);
                return Some(text);
            }
            text.push(self.rest.next()?);
        }
    }

    fn string(&mut self) -> Option<String> {
        let quote = self.rest.next()?;
        let mut text = String::new();
        // Two quotes are an empty string. Three begin a string that ends with three.
        let is_triple = self.rest.next_if_eq(&quote).is_some();
        if is_triple && self.rest.next_if_eq(&quote).is_none() {
            return Some(text);
        }
        loop {
            match self.rest.next()? {
                '\\' => self.escape(&mut text)?,
                c if c == quote && !is_triple => return Some(text),
                c => {
                    text.push(c);
                    if is_triple && text.ends_with(&String::from(quote).repeat(3)) {
                        text.truncate(text.len() - 3);
                        return Some(text);
                    }
                }
            }
        }
    }

    fn escape(&mut self, text: &mut String) -> Option<()> {
        match self.rest.next()? {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            '\n' => {}
            c @ ('\\' | '"' | '\'' | '/') => text.push(c),
            'x' => text.push(char::from_u32(self.hex(2)?)?),
            'U' => {
                let digits: String = self.rest.clone().take(8).collect();
                match u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32) {
                    Some(c) if digits.len() == 8 => {
                        self.rest.nth(7);
                        text.push(c);
                    }
                    // Not an escape, but the name of a folder, as in `C:\Users`.
                    Some(_) | None => text.push_str("\\U"),
                }
            }
            // Octal. Not with other digits, because `\1` is rather a part of a regular expression.
            '0' => {
                let mut code = 0;
                for _ in 0..2 {
                    let digit = self.rest.next_if(|c| c.is_digit(8)).and_then(|c| c.to_digit(8));
                    code = digit.map_or(code, |digit| code * 8 + digit);
                }
                text.push(char::from_u32(code)?);
            }
            'u' => {
                let mut code = self.hex(4)?;
                if (0xD800..0xDC00).contains(&code) {
                    let before = self.rest.clone();
                    if (self.rest.next(), self.rest.next()) == (Some('\\'), Some('u'))
                        && let Some(low) = self.hex(4)
                        && (0xDC00..0xE000).contains(&low)
                    {
                        code = 0x1_0000 + ((code - 0xD800) << 10) + (low - 0xDC00);
                    } else {
                        self.rest = before;
                    }
                }
                text.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            // Python keeps the backslash of an escape that it does not know.
            c => text.extend(['\\', c]),
        }
        Some(())
    }

    fn hex(&mut self, digits: usize) -> Option<u32> {
        (0..digits).try_fold(0, |code, _| Some(code * 16 + self.rest.next()?.to_digit(16)?))
    }

    fn number(&mut self) -> Option<Value> {
        let mut text = String::new();
        let is_part = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.' | '_');
        while let Some(c) = self.rest.next_if(is_part) {
            if c != '_' {
                text.push(c);
            }
        }
        let text = text.strip_prefix('+').unwrap_or(&text);
        if let Ok(number) = serde_json::from_str::<Number>(text) {
            return Some(Value::Number(number));
        }
        if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            return u64::from_str_radix(digits, 16).ok().map(Value::from);
        }
        let number = text.parse::<f64>().ok()?;
        Some(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_of_python_and_json_with_mistakes_are_read() {
        for (text, expected) in [
            ("{'a': 1, 'b': [True, False, None],}", json!({"a": 1, "b": [true, false, null]})),
            ("{\"a\": \"x\ny\", b: 'it\\'s'}", json!({"a": "x\ny", "b": "it's"})),
            (r#"["\u00e9\ud83d\ude00\x41\d"]"#, json!(["é😀A\\d"])),
            ("(1, -2.5, +3, 1_000, 0x1f, .5, 1e3)", json!([1, -2.5, 3, 1000, 31, 0.5, 1000.0])),
            (r#"'''a'b"''' "c""#, json!("a'b\"c")),
            (r#"'\ud83d\u0041\ud83d\ud83d\ude00\ud83d'"#, json!("\u{fffd}A\u{fffd}😀\u{fffd}")),
            (r"'\033[0m \0 \08'", json!("\u{1b}[0m \0 \08")),
            (r"'\U0001F600 C:\Users \Uabc é\1'", json!("😀 C:\\Users \\Uabc é\\1")),
            ("\"\"", json!("")),
            ("[]", json!([])),
        ] {
            assert_eq!(parse_value(text, false), Some(expected), "{text}");
        }
        for text in ["", "{", "{'a'}", "[1 2]", "f(1)", "{'a': 1} x", "\"a", "[\"\\u12\"]"] {
            assert_eq!(parse_value(text, false), None, "{text}");
        }
        assert_eq!(parse_value(&"[".repeat(100_000), true), None);
    }

    #[test]
    fn missing_brackets_are_added_only_to_a_value_that_was_cut() {
        assert_eq!(parse_value("{\"a\": {\"b\": [1", true), Some(json!({"a": {"b": [1]}})));
        assert_eq!(parse_value("{\"a\": \"x", true), None);
        assert_eq!(parse_value("{\"a\": {\"b\": 1}", false), None);
    }

    #[test]
    fn keywords_are_read() {
        let read = |text| parse_keywords(text).map(Value::Object);
        assert_eq!(read(""), Some(json!({})));
        assert_eq!(read(" a = 1, b='x' ,"), Some(json!({"a": 1, "b": "x"})));
        assert_eq!(read("**{'a-b': 1}, c=2"), Some(json!({"a-b": 1, "c": 2})));
        for text in ["1", "a", "a=", "=1", "a=1 b=2", "a==1", "*{}"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
