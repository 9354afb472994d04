//! Regular expressions of schemas in a form that the engines of services compile.
//!
//! Schemas have expressions of JavaScript. OpenAI's and Anthropic's services compile them with Python, and llama.cpp
//! makes a grammar of them, which knows no `\d`, no assertion but `^` at the start and `$` at the end, and no escape
//! of a character that needs none.

/// The greatest count of a repetition. A grammar of llama.cpp repeats at most 2,000 times.
const REPEAT_MAX: u32 = 1000;

/// Letters that may follow a backslash in expressions of both JavaScript and Python.
const COMMON_ESCAPES: &[u8] = b"dDwWsSbBnrtfvux";

/// Returns whether the engines of JavaScript and Python both compile an expression, judged by its escapes and groups.
pub(super) fn is_common_pattern(pattern: &str) -> bool {
    let mut rest = pattern.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        rest = after;
        match (byte, after) {
            (b'\\', [letter, more @ ..]) => {
                let is_named = letter.is_ascii_alphabetic() && !COMMON_ESCAPES.contains(letter);
                if is_named || (*letter == b'u' && more.starts_with(b"{")) {
                    return false;
                }
                rest = more;
            }
            (b'\\', []) => return false,
            (b'(', [b'?', kind @ ..]) => {
                let is_known = [&b":"[..], b"=", b"!", b"<=", b"<!"];
                if !is_known.iter().any(|known| kind.starts_with(known)) {
                    return false;
                }
            }
            (b'[', [b']', ..] | [b'^', b']', ..]) => return false,
            _ => {}
        }
    }
    true
}

/// Returns an expression with the same meaning that also llama.cpp compiles. `None` if there is none, or it is not
/// found.
pub(super) fn portable_pattern(pattern: &str) -> Option<String> {
    let inner = pattern.strip_prefix('^')?.strip_suffix('$')?;
    let mut chars = inner.chars().peekable();
    let (mut text, mut depth) = ("^".to_owned(), 0_u32);
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.push_str(&escape(chars.next()?)?),
            '[' => text.push_str(&class(&mut chars)?),
            '(' => {
                if chars.next_if_eq(&'?').is_some() {
                    // Grammars have no groups that are numbered, so that all groups are the same.
                    chars.next_if_eq(&':')?;
                }
                depth += 1;
                text.push('(');
            }
            ')' => {
                depth = depth.checked_sub(1)?;
                text.push(')');
            }
            // An anchor would apply to one alternative only.
            '|' if depth == 0 => return None,
            '^' | '$' => return None,
            '*' | '+' | '?' => {
                text.push(c);
                // A quantifier that is lazy or possessive.
                if matches!(chars.peek(), Some('*' | '+' | '?' | '{')) {
                    return None;
                }
            }
            '{' => {
                text.push_str(&repetition(&mut chars)?);
                if matches!(chars.peek(), Some('*' | '+' | '?' | '{')) {
                    return None;
                }
            }
            _ => text.push(c),
        }
    }
    text.push('$');
    (depth == 0).then_some(text)
}

/// Returns what stands for an escaped character outside of a class.
fn escape(escaped: char) -> Option<String> {
    Some(match escaped {
        'd' => "[0-9]".to_owned(),
        'D' => "[^0-9]".to_owned(),
        'w' => "[A-Za-z0-9_]".to_owned(),
        'W' => "[^A-Za-z0-9_]".to_owned(),
        's' => r"[ \t\r\n]".to_owned(),
        'S' => r"[^ \t\r\n]".to_owned(),
        't' | 'r' | 'n' => format!("\\{escaped}"),
        '^' | '$' | '.' | '[' | ']' | '(' | ')' | '|' | '{' | '}' | '*' | '+' | '?' => {
            format!("\\{escaped}")
        }
        '/' | '-' | ' ' | ':' | ',' | '@' | '#' | '%' | '&' | '=' | '~' | '<' | '>' | ';' | '!'
        | '\'' | '_' => escaped.to_string(),
        _ => return None,
    })
}

/// Reads a class after its opening bracket.
fn class(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<String> {
    let mut text = String::from("[");
    if chars.next_if_eq(&'^').is_some() {
        text.push('^');
    }
    let (mut has_hyphen, mut is_empty) = (false, true);
    loop {
        match chars.next()? {
            ']' if is_empty => return None,
            ']' => break,
            '\\' => match chars.next()? {
                'd' => text.push_str("0-9"),
                'w' => text.push_str("A-Za-z0-9_"),
                's' => text.push_str(r" \t\r\n"),
                escaped @ ('t' | 'r' | 'n' | '\\' | '[' | ']') => {
                    text.push('\\');
                    text.push(escaped);
                }
                // At the end of the class it stands for itself.
                '-' => has_hyphen = true,
                '^' if text.ends_with('[') => return None,
                escaped if escaped.is_ascii_punctuation() || escaped == ' ' => text.push(escaped),
                _ => return None,
            },
            '-' if is_empty || chars.peek() == Some(&']') => has_hyphen = true,
            '[' => text.push_str(r"\["),
            c => text.push(c),
        }
        is_empty = false;
    }
    if has_hyphen {
        text.push('-');
    }
    text.push(']');
    Some(text)
}

/// Reads a count after its opening brace.
fn repetition(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Option<String> {
    let mut counts = String::new();
    loop {
        match chars.next()? {
            '}' => break,
            c => counts.push(c),
        }
    }
    let is_few = |count: &str| count.parse::<u32>().is_ok_and(|count| count <= REPEAT_MAX);
    let (least, most) = counts.split_once(',').unwrap_or((&counts, ""));
    (is_few(least) && (most.is_empty() || is_few(most))).then(|| format!("{{{counts}}}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_portable_pattern_means_the_same() {
        for (pattern, expected) in [
            ("^abc$", Some("^abc$")),
            (r"^\d{4}-\d{2}-\d{2}$", Some("^[0-9]{4}-[0-9]{2}-[0-9]{2}$")),
            (r"^[\w\-\.]+@[\w.]+$", Some("^[A-Za-z0-9_.-]+@[A-Za-z0-9_.]+$")),
            (r"^https?:\/\/\S+$", Some(r"^https?://[^ \t\r\n]+$")),
            (r"^(?:a|b)?$", Some("^(a|b)?$")),
            (r"^[a-z-]{1,64}$", Some("^[a-z-]{1,64}$")),
            (r"^\.\*$", Some(r"^\.\*$")),
            ("^[[a]$", Some(r"^[\[a]$")),
            ("abc", None),
            ("^abc", None),
            ("^a|b$", None),
            (r"^(?=a)b$", None),
            (r"^\bword\b$", None),
            (r"^\p{L}$", None),
            ("^.{1,65535}$", None),
            ("^a+?$", None),
            (r"^(a)\1$", None),
            (r"^[\W]$", None),
            ("^[]$", None),
            (r"^a\$", None),
            ("^(a$", None),
        ] {
            assert_eq!(portable_pattern(pattern).as_deref(), expected, "{pattern}");
        }
    }

    #[test]
    fn a_common_pattern_compiles_in_python_too() {
        for (pattern, expected) in [
            (r"^\d+(?=x)[^a]\/\-$", true),
            (r"(?<!a)(?<=b)(?!c)\u00e9", true),
            (r"\p{L}", false),
            (r"\P{L}", false),
            (r"\u{1F600}", false),
            (r"(?<year>\d+)", false),
            (r"\cA", false),
            (r"a\", false),
            ("[^]", false),
        ] {
            assert_eq!(is_common_pattern(pattern), expected, "{pattern}");
        }
    }
}
