//! Translates regular expressions from JavaScript to the syntax of `regex` and of `fancy-regex` (the backtracking
//! engine).

use std::fmt::Write;
use std::str::Chars;

use super::super::json_excerpt::{TEXT_CHARS_MAX, cut};
use super::size::look_around;

/// The characters of `\s`: spaces and ends of lines, ECMA-262, section 22.2.2.9.
const SPACES: &str =
    r"\t-\r\x20\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}";

/// A dot: everything but the ends of lines.
const DOT: &str = r"[^\n\r\x{2028}\x{2029}]";

/// A class of every character.
const ANYTHING: &str = r"[\x00-\x{10ffff}]";

/// A class of no character.
const NOTHING: &str = r"[^\x00-\x{10ffff}]";

/// Stands for half of a pair of surrogates, which no text has.
const LONE_SURROGATE: &str = NOTHING;

/// Stands for `$` in the names of groups: a letter for the libraries, which JavaScript does not allow in names.
const DOLLAR_IN_NAME: &str = "\u{24c8}";

/// Always matches, without a character. It makes the backtracking engine read the text, which spends steps
/// (`MeteredText`).
pub(super) const EMPTY_READ: &str = r"(?![^\x00-\x{10ffff}])";

/// The boundary of a word for the backtracking engine, whose own is that of Unicode.
const BOUNDARY: &str = "(?:(?<=[A-Za-z0-9_])(?![A-Za-z0-9_])|(?<![A-Za-z0-9_])(?=[A-Za-z0-9_]))";

/// The opposite.
const NO_BOUNDARY: &str = "(?:(?<=[A-Za-z0-9_])(?=[A-Za-z0-9_])|(?<![A-Za-z0-9_])(?![A-Za-z0-9_]))";

/// The translation of an expression from JavaScript to Rust, where `\d` and others match more characters, and
/// brackets and some other characters have a meaning in a class.
struct Translation<'p> {
    /// True if it is for `regex`. Groups without a name then capture nothing, which takes less memory.
    is_linear: bool,
    rest: Chars<'p>,
    rust: String,
    /// Number of capturing groups so far.
    groups: usize,
    open: Vec<OpenGroup<'p>>,
    /// True if a dot matches every character.
    dot_all: bool,
}

/// A group whose end has not been read yet.
struct OpenGroup<'p> {
    /// Its number, if it captures, and its name, if it has one.
    number: Option<usize>,
    name: Option<&'p str>,
    /// The meaning of a dot after it.
    dot_all: bool,
}

/// Translates an expression from JavaScript to Rust. `(?P<name>` and flags such as `(?i)` are accepted.
///
/// # Errors
/// If the expression has a group that JavaScript does not know, such as a call of another group.
pub(super) fn translated(pattern: &str, is_linear: bool) -> Result<String, String> {
    let rust = String::with_capacity(pattern.len());
    let (rest, open) = (pattern.chars(), Vec::new());
    let mut translation = Translation { is_linear, rest, rust, groups: 0, open, dot_all: false };
    while let Some(character) = translation.rest.next() {
        match character {
            '\\' => translation.add_escape(),
            '[' => translation.add_class(),
            '(' => {
                if !translation.open_group() {
                    let shown = cut(pattern, TEXT_CHARS_MAX);
                    return Err(format!("{shown:?} has a group that JavaScript does not have"));
                }
            }
            ')' => translation.close_group(),
            '.' if !translation.dot_all => translation.rust.push_str(DOT),
            _ => translation.rust.push(character),
        }
    }
    Ok(translation.rust)
}

impl<'p> Translation<'p> {
    /// Translates the beginning of a group. Returns false if JavaScript does not have such groups.
    fn open_group(&mut self) -> bool {
        let rest = self.rest.as_str();
        let mut group = OpenGroup { number: None, name: None, dot_all: self.dot_all };
        let named = rest.strip_prefix("?<").or_else(|| rest.strip_prefix("?P<"));
        let mut start = "";
        if let Some(look_around) = look_around(rest) {
            start = look_around;
            // Look-behind and negative look-around can fail without a read of the text, which would cost no
            // steps.
            if !self.is_linear && look_around != "?=" {
                self.rust.push_str(EMPTY_READ);
            }
        } else if let Some((name, content)) = named.and_then(name_before) {
            start = &rest[..rest.len() - content.len()];
            group.name = Some(name);
        } else if let Some(flags) = rest.strip_prefix('?') {
            let content = flags.trim_start_matches(['i', 'm', 's', '-']);
            let flags = &flags[..flags.len() - content.len()];
            let (on, off) = flags.split_once('-').unwrap_or((flags, ""));
            self.dot_all = (self.dot_all || on.contains('s')) && !off.contains('s');
            if !content.starts_with([':', ')']) {
                return false;
            }
            start = &rest[..rest.len() - content.len() + 1];
        } else if rest.starts_with('*') {
            return false;
        }
        if start.is_empty() || group.name.is_some() {
            self.groups += 1;
            group.number = Some(self.groups);
        }
        self.rust.push_str(if start.is_empty() && self.is_linear { "(?:" } else { "(" });
        // Only a name can contain `$`.
        self.rust.push_str(&start.replace('$', DOLLAR_IN_NAME));
        self.rest = rest[start.len()..].chars();
        // Flags for the rest of the group around them are no group.
        if !start.ends_with(')') {
            self.open.push(group);
        }
        true
    }

    fn close_group(&mut self) {
        if let Some(group) = self.open.pop() {
            self.dot_all = group.dot_all;
        }
        self.rust.push(')');
    }

    /// Translates what follows a backslash.
    fn add_escape(&mut self) {
        let rest = self.rest.as_str();
        let digits =
            rest.len() - rest.trim_start_matches(|digit: char| digit.is_ascii_digit()).len();
        let (number, after) = rest.split_at(digits);
        if !number.is_empty() && !number.starts_with('0') {
            let is_number = |open| number.parse() == Ok(open);
            let is_open = self.open.iter().any(|group| group.number.is_some_and(is_number));
            self.add_reference(number, &format!(r"\{number}"), is_open);
            self.rest = after.chars();
        } else if let Some((name, after)) = rest.strip_prefix("k<").and_then(name_before) {
            let is_open = self.open.iter().any(|group| group.name == Some(name));
            let name = name.replace('$', DOLLAR_IN_NAME);
            self.add_reference(&format!("<{name}>"), &format!(r"\k<{name}>"), is_open);
            self.rest = after.chars();
        } else if rest.starts_with(['b', 'B']) {
            self.rust.push_str(match rest.starts_with('b') {
                true if self.is_linear => r"(?-u:\b)",
                true => BOUNDARY,
                // `regex` refuses an ASCII `\B`, which can match inside a character. It does not know this
                // look-around either, so the expression goes to the backtracking engine.
                false => NO_BOUNDARY,
            });
            self.rest.next();
        } else {
            translate_escape(&mut self.rest, &mut self.rust, false);
        }
    }

    /// Adds a reference to a group. It matches the empty text within the group, or if the group has not matched.
    fn add_reference(&mut self, group: &str, reference: &str, is_open: bool) {
        if is_open {
            self.rust.push_str(EMPTY_READ);
        } else {
            self.rust.push_str(&format!("(?({group}){reference}|)"));
        }
    }

    /// Translates a class, of which the beginning has been read.
    fn add_class(&mut self) {
        let is_negated = next_if(&mut self.rest, '^');
        if next_if(&mut self.rest, ']') {
            self.rust.push_str(if is_negated { ANYTHING } else { NOTHING });
            return;
        }
        self.rust.push_str(if is_negated { "[^" } else { "[" });
        loop {
            let start = self.rust.len();
            let Some(is_set) = self.add_class_member() else { break };
            let mut after = self.rest.clone();
            let is_hyphen = after.next() == Some('-');
            if !is_hyphen || after.as_str().is_empty() || after.as_str().starts_with(']') {
                continue;
            }
            self.rest = after;
            let hyphen = self.rust.len();
            self.rust.push('-');
            let is_other_set = self.add_class_member();
            let (first, last) = (&self.rust[start..hyphen], &self.rust[hyphen + 1..]);
            match (first == LONE_SURROGATE, last == LONE_SURROGATE) {
                // A hyphen beside `\w` and the like is no range.
                _ if is_set || is_other_set == Some(true) => self.rust.insert(hyphen, '\\'),
                (false, false) => {}
                // No text has surrogates. The range ends or begins with the character beside them.
                (true, false) => self.rust.replace_range(start..hyphen, r"\x{e000}"),
                (false, true) => self.rust.replace_range(hyphen + 1.., r"\x{d7ff}"),
                (true, true) => self.rust.truncate(hyphen),
            }
        }
        self.rust.extend(self.rest.next());
    }

    /// Translates a member of a class. Returns whether it is a set of characters, and `None` at the end of the class.
    fn add_class_member(&mut self) -> Option<bool> {
        let rest = self.rest.as_str();
        let member = rest.chars().next().filter(|member| *member != ']')?;
        self.rest.next();
        if member == '\\' {
            let is_set = rest[1..].starts_with(['d', 'D', 'w', 'W', 's', 'S', 'p', 'P']);
            translate_escape(&mut self.rest, &mut self.rust, true);
            return Some(is_set);
        }
        if "[&~-^".contains(member) {
            self.rust.push('\\');
        }
        self.rust.push(member);
        Some(false)
    }
}

/// Returns the name at the beginning of a text, and what follows the bracket after it.
fn name_before(text: &str) -> Option<(&str, &str)> {
    let is_in_name = |character: char| character.is_alphanumeric() || "_$".contains(character);
    text.split_once('>').filter(|(name, _)| !name.is_empty() && name.chars().all(is_in_name))
}

/// Skips a character if it is the next one. Returns whether it was.
fn next_if(rest: &mut Chars<'_>, character: char) -> bool {
    let is_next = rest.as_str().starts_with(character);
    if is_next {
        rest.next();
    }
    is_next
}

/// Translates the escape of a character or a set of them, after its backslash.
fn translate_escape(rest: &mut Chars<'_>, rust: &mut String, is_in_class: bool) {
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
        'c' => match rest.clone().next().filter(char::is_ascii_alphabetic) {
            Some(letter) => {
                rest.next();
                write!(rust, r"\x{:02x}", u32::from(letter) % 32)
            }
            None => write!(rust, r"\\c"),
        },
        'u' if !rest.as_str().starts_with('{') => match code_unit(rest) {
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
        // `\<` and `\>` are plain characters in JavaScript, but boundaries of words in `regex`.
        '<' | '>' => write!(rust, "{escaped}"),
        // JavaScript has no other escapes of letters.
        _ if escaped.is_alphabetic() && !"nrtfvxpPu".contains(escaped) => {
            write!(rust, "{escaped}")
        }
        _ => write!(rust, r"\{escaped}"),
    };
}

/// Reads the four digits of a UTF-16 code unit. Reads nothing if they are not there.
fn code_unit(rest: &mut Chars<'_>) -> Option<u32> {
    let (mut after, mut unit) = (rest.clone(), 0);
    for _ in 0..4 {
        unit = unit * 16 + after.next()?.to_digit(16)?;
    }
    *rest = after;
    Some(unit)
}
