//! The regular expressions of JSON Schema, which are those of JavaScript (ECMA-262).

use std::fmt::Write;
use std::iter::Peekable;
use std::panic::{self, AssertUnwindSafe};
use std::str::Chars;

use fancy_regex::{Regex, RegexBuilder};

/// Maximum memory of a compiled regular expression.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// Maximum number of steps back in a match of an expression with look-around or back-references.
const BACKTRACKS_MAX: usize = 20_000;

/// The characters of `\s`: spaces and ends of lines, ECMA-262, section 22.2.2.9.
const SPACES: &str =
    r"\t-\r\x20\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}";

/// Stands for half of a pair of surrogates, which no text has: a noncharacter.
const LONE_SURROGATE: &str = r"\x{10fffe}";

/// A compiled regular expression.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    /// The expression as the schema has it.
    pub(super) text: String,
    regex: Regex,
}

impl Pattern {
    /// Compiles an expression.
    ///
    /// # Errors
    /// The reason why it is not valid.
    pub(super) fn compile(text: &str) -> Result<Self, String> {
        let translated = translated(text)?;
        let mut builder = RegexBuilder::new(&translated);
        builder.backtrack_limit(BACKTRACKS_MAX);
        builder.delegate_size_limit(PATTERN_BYTES_MAX).delegate_dfa_size_limit(PATTERN_BYTES_MAX);
        // As the match below, it can panic.
        let regex = panic::catch_unwind(AssertUnwindSafe(|| builder.build()));
        let regex = regex.map_err(|_| format!("{text:?} is too large"))?;
        let regex =
            regex.map_err(|error| format!("{text:?} is not a regular expression: {error}"))?;
        Ok(Self { text: text.to_owned(), regex })
    }

    /// Returns true if a part of the text matches, and `None` if that takes too many steps.
    pub(super) fn is_match(&self, text: &str) -> Option<bool> {
        // A few expressions make the regex library panic: https://github.com/rust-lang/regex/issues/1344
        let matched = panic::catch_unwind(AssertUnwindSafe(|| self.regex.is_match(text)));
        matched.ok()?.ok()
    }
}

/// Translates an expression from JavaScript to Rust, where `\d` and others match more characters, and
/// brackets and some signs have a meaning in a class.
///
/// # Errors
/// If the expression has a group that JavaScript does not know, such as a call of another group.
fn translated(pattern: &str) -> Result<String, String> {
    let mut rust = String::with_capacity(pattern.len());
    let mut rest = pattern.chars().peekable();
    // The character before, if it is within a class.
    let mut in_class: Option<char> = None;
    // A hyphen beside `\w` and the like is no range.
    let mut is_after_set = false;
    while let Some(character) = rest.next() {
        let was_after_set = std::mem::take(&mut is_after_set);
        match (character, in_class) {
            ('\\', _) => {
                is_after_set = begins_set(rest.peek());
                translate_escape(&mut rest, &mut rust, in_class.is_some());
            }
            ('(', None) => {
                let mut after = rest.clone();
                let is_group = after.next() == Some('?');
                let kind = (after.next(), after.next());
                if is_group
                    && matches!(
                        kind,
                        (Some('R' | '&' | '~' | '(' | '0'..='9'), _) | (Some('P'), Some('>'))
                    )
                {
                    return Err(format!("{pattern:?} has a group that JavaScript does not have"));
                }
                rust.push('(');
            }
            ('[', None) => {
                in_class = Some('[');
                let is_negated = rest.next_if_eq(&'^').is_some();
                if rest.next_if_eq(&']').is_some() {
                    in_class = None;
                    // A class of nothing, or of everything.
                    rust.push_str(if is_negated { "(?s:.)" } else { "(?!)" });
                } else {
                    rust.push_str(if is_negated { "[^" } else { "[" });
                }
                continue;
            }
            (']', Some(_)) => {
                in_class = None;
                rust.push(']');
                continue;
            }
            ('-', Some(before)) => {
                let mut after = rest.clone();
                let is_before_set = after.next() == Some('\\') && begins_set(after.peek());
                if was_after_set || is_before_set || before == '-' {
                    rust.push('\\');
                }
                rust.push('-');
            }
            ('[' | '&' | '~', Some(_)) => {
                rust.push('\\');
                rust.push(character);
            }
            (_, _) => rust.push(character),
        }
        in_class = in_class.map(|_| character);
    }
    Ok(rust)
}

/// Returns whether this character after a backslash stands for a set of characters.
fn begins_set(character: Option<&char>) -> bool {
    character.is_some_and(|character| "dDwWsSpP".contains(*character))
}

/// Translates what follows a backslash.
fn translate_escape(rest: &mut Peekable<Chars<'_>>, rust: &mut String, is_in_class: bool) {
    let Some(escaped) = rest.next() else {
        rust.push('\\');
        return;
    };
    let (start, end) = if is_in_class { ("", "") } else { ("[", "]") };
    // Writing to a string cannot fail.
    let _ = match escaped {
        'd' => write!(rust, "{start}0-9{end}"),
        'D' => write!(rust, "[^0-9]"),
        'w' => write!(rust, "{start}A-Za-z0-9_{end}"),
        'W' => write!(rust, "[^A-Za-z0-9_]"),
        's' => write!(rust, "{start}{SPACES}{end}"),
        'S' => write!(rust, "[^{SPACES}]"),
        '0' => write!(rust, r"\x00"),
        'b' if is_in_class => write!(rust, r"\x08"),
        'c' => match rest.next_if(char::is_ascii_alphabetic) {
            Some(letter) => write!(rust, r"\x{:02x}", u32::from(letter) % 32),
            None => write!(rust, r"\\c"),
        },
        'u' if rest.peek() != Some(&'{') => match code_unit(rest) {
            Some(high @ 0xd800..=0xdbff) => {
                let mut after = rest.clone();
                let is_pair = after.next() == Some('\\') && after.next() == Some('u');
                let low = code_unit(&mut after).filter(|low| (0xdc00..=0xdfff).contains(low));
                match low.filter(|_| is_pair) {
                    Some(low) => {
                        *rest = after;
                        let character = 0x1_0000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                        write!(rust, r"\x{{{character:x}}}")
                    }
                    None => write!(rust, "{LONE_SURROGATE}"),
                }
            }
            Some(0xdc00..=0xdfff) => write!(rust, "{LONE_SURROGATE}"),
            Some(unit) => write!(rust, r"\x{{{unit:x}}}"),
            None => write!(rust, "u"),
        },
        // JavaScript has no other escapes of letters: `\<` is `<`.
        '<' | '>' => write!(rust, "{escaped}"),
        _ if escaped.is_alphabetic() && !"nrtfvbBxpPku".contains(escaped) => {
            write!(rust, "{escaped}")
        }
        _ => write!(rust, r"\{escaped}"),
    };
}

/// Reads the four digits of a UTF-16 code unit.
fn code_unit(rest: &mut Peekable<Chars<'_>>) -> Option<u32> {
    let mut unit = 0;
    for _ in 0..4 {
        unit = unit * 16 + rest.next_if(char::is_ascii_hexdigit)?.to_digit(16)?;
    }
    Some(unit)
}
