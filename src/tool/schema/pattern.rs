//! The regular expressions of JSON Schema, which are those of JavaScript (ECMA-262).
//!
//! Most of them run in time that grows with the text times the expression: the library `regex` compiles them.
//! Those with look-around or references to groups take the backtracking engine of `fancy-regex`, which reads the text
//! through a [`MeteredText`], so that each read spends steps.
//!
//! An expression is refused if it is too long, repeats too much, or takes too much memory. Look-behind of a variable
//! length is refused, too, unless another crate switches on that feature of the library; and so are look-around and
//! references in a program that is compiled with `panic = "abort"`, because a match without steps ends by unwinding.

use std::cell::Cell;
use std::fmt::Write;
use std::iter::Peekable;
use std::panic::{self, AssertUnwindSafe};
use std::str::Chars;

use fancy_regex::{CompileError, Error, Input};

use super::shown::{TEXT_CHARS_MAX, cut};
use super::steps::{Steps, TooExpensive};

/// Maximum number of bytes of an expression.
const PATTERN_BYTES_MAX: usize = 4_096;

/// Maximum memory of the compiled regular expressions of a schema.
pub(super) const PATTERN_MEMORY_MAX: usize = 24 << 20;

/// The memory limits that an expression is compiled with, until it fits one. That one counts.
const MEMORY_LIMITS: [usize; 5] = [64 << 10, 256 << 10, 1 << 20, 3 << 20, 10 << 20];

/// The memory that counts at least, for each byte of an expression: it takes time to be compiled.
const MEMORY_PER_BYTE: usize = 512;

/// Maximum number of characters and classes of an expression, each as often as it is repeated.
const WEIGHT_MAX: usize = 100_000;

/// The same for an expression with look-around or references to groups.
const BACKTRACKING_WEIGHT_MAX: usize = 10_000;

/// Maximum number of groups of such an expression: the memory of a match grows with them.
const BACKTRACKING_GROUPS_MAX: usize = 50;

/// Maximum number of steps back in a match of an expression with look-around or references to groups.
const BACKTRACKS_MAX: usize = 20_000;

/// Number of steps for [`BACKTRACKS_MAX`] steps back that do not read the text, for each unit of weight.
const STEPS_PER_WEIGHT: usize = 5;

/// Number of bytes of a text that a match compares with a unit of weight in the time of a step.
const BYTES_PER_STEP: usize = 64;

/// The same for a read of the backtracking engine, which seldom goes to the end of the text.
const READ_BYTES_PER_STEP: usize = 512;

/// Maximum memory of the states that a match of an expression builds. Each thread keeps its own.
const STATES_MEMORY_MAX: usize = 512 << 10;

/// The weight that counts at least in a match: each byte is read.
const LEAST_WEIGHT: usize = 16;

/// The characters of `\s`: spaces and ends of lines, ECMA-262, section 22.2.2.9.
const SPACES: &str =
    r"\t-\r\x20\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}";

/// Stands for half of a pair of surrogates, which no text has: a noncharacter.
const LONE_SURROGATE: &str = r"\x{10fffe}";

/// A compiled regular expression.
#[derive(Debug)]
pub(super) struct Pattern {
    /// The expression as the schema has it.
    pub(super) text: String,
    weight: usize,
    engine: PatternEngine,
}

#[derive(Debug)]
enum PatternEngine {
    Linear(regex::Regex),
    Backtracking(fancy_regex::Regex),
}

/// The reason why an expression has not been compiled.
enum Refused {
    NeedsMemory,
    Invalid(String),
}

impl Pattern {
    /// Compiles an expression. Subtracts the memory that it takes from `memory_left`.
    ///
    /// # Errors
    /// The reason why it is not valid.
    pub(super) fn compile(text: &str, memory_left: &mut usize) -> Result<Self, String> {
        let shown = cut(text, TEXT_CHARS_MAX);
        if text.len() > PATTERN_BYTES_MAX {
            return Err(format!("{shown:?} has more than {PATTERN_BYTES_MAX} bytes"));
        }
        // The groups of the first capture nothing, which takes less memory.
        let linear = translated(text, "(?:")?;
        let backtracking = translated(text, "(")?;
        let weight = weight(&linear);
        if weight > WEIGHT_MAX {
            return Err(format!("{shown:?} repeats too much"));
        }
        for limit in MEMORY_LIMITS {
            let memory = limit.max(text.len() * MEMORY_PER_BYTE);
            if memory > *memory_left {
                return Err("the regular expressions of the schema need too much memory".to_owned());
            }
            // The libraries can panic, as in a match.
            let built = panic::catch_unwind(|| {
                PatternEngine::linear(&linear, limit)
                    .unwrap_or_else(|| PatternEngine::backtracking(&backtracking, weight, limit))
            });
            match built.unwrap_or(Err(Refused::NeedsMemory)) {
                Ok(engine) => {
                    *memory_left -= memory;
                    return Ok(Self { text: text.to_owned(), weight, engine });
                }
                Err(Refused::NeedsMemory) => {}
                Err(Refused::Invalid(reason)) => {
                    let reason = cut(reason, TEXT_CHARS_MAX);
                    return Err(format!("{shown:?} is not a regular expression: {reason}"));
                }
            }
        }
        Err(format!("{shown:?} needs too much memory"))
    }

    /// Returns true if a part of the text matches.
    pub(super) fn is_match(&self, text: &str, steps: &mut Steps) -> Result<bool, TooExpensive> {
        // A few expressions make the regex library panic: https://github.com/rust-lang/regex/issues/1344
        match &self.engine {
            PatternEngine::Linear(regex) => {
                let weight = self.weight.max(LEAST_WEIGHT);
                steps.spend(10 + text.len().saturating_mul(weight) / BYTES_PER_STEP)?;
                let matched = panic::catch_unwind(AssertUnwindSafe(|| regex.is_match(text)));
                matched.map_err(|_| TooExpensive)
            }
            PatternEngine::Backtracking(regex) => {
                steps.spend(10 + text.len() / 4 + self.weight * STEPS_PER_WEIGHT)?;
                let price = 1 + text.len().saturating_mul(self.weight) / READ_BYTES_PER_STEP;
                let text = MeteredText { text, price, steps_left: Cell::new(steps.left()) };
                let matched = panic::catch_unwind(AssertUnwindSafe(|| regex.is_match(&text)));
                steps.spend(steps.left() - text.steps_left.get())?;
                matched.map_err(|_| TooExpensive)?.map_err(|_| TooExpensive)
            }
        }
    }
}

impl PatternEngine {
    /// Returns `None` for what only the other engine knows, and for what is no expression.
    fn linear(translated: &str, limit: usize) -> Option<Result<Self, Refused>> {
        let mut builder = regex::RegexBuilder::new(translated);
        match builder.size_limit(limit).dfa_size_limit(limit.min(STATES_MEMORY_MAX)).build() {
            Ok(regex) => Some(Ok(Self::Linear(regex))),
            Err(regex::Error::CompiledTooBig(_)) => Some(Err(Refused::NeedsMemory)),
            Err(_) => None,
        }
    }

    fn backtracking(translated: &str, weight: usize, limit: usize) -> Result<Self, Refused> {
        let too_complex = || {
            let reason = "it has look-around or references, and too many groups or repeats";
            Err(Refused::Invalid(reason.to_owned()))
        };
        if weight > BACKTRACKING_WEIGHT_MAX {
            return too_complex();
        }
        if cfg!(panic = "abort") {
            let reason = "look-around and references need a program that unwinds panics";
            return Err(Refused::Invalid(reason.to_owned()));
        }
        let mut builder = fancy_regex::RegexBuilder::new(translated);
        builder.backtrack_limit(BACKTRACKS_MAX);
        // The limit holds for each part that it gives to the other engine. Look-around, groups, alternatives and
        // references separate the parts.
        let parts = 1 + translated.matches(['(', '|', '\\']).count();
        let states = (limit / parts).min(STATES_MEMORY_MAX);
        builder.delegate_size_limit(limit / parts).delegate_dfa_size_limit(states);
        match builder.build() {
            // The first group is the whole expression.
            Ok(regex) if regex.captures_len() > 1 + BACKTRACKING_GROUPS_MAX => too_complex(),
            Ok(regex) => Ok(Self::Backtracking(regex)),
            Err(Error::CompileError(error)) if needs_memory(&error) => Err(Refused::NeedsMemory),
            Err(error) => Err(Refused::Invalid(error.to_string())),
        }
    }
}

fn needs_memory(error: &CompileError) -> bool {
    matches!(error, CompileError::InnerError(error) if error.size_limit().is_some())
}

/// A text that a match reads. Each read spends steps, as many as a search to the end of the text can take. The match
/// unwinds when none are left.
struct MeteredText<'t> {
    text: &'t str,
    price: usize,
    steps_left: Cell<usize>,
}

impl Input for MeteredText<'_> {
    type Match<'m>
        = &'m str
    where
        Self: 'm;

    fn len(&self) -> usize {
        self.text.len()
    }

    fn as_bytes(&self) -> &[u8] {
        let Some(left) = self.steps_left.get().checked_sub(self.price) else {
            // Calls no panic hook.
            panic::resume_unwind(Box::new(TooExpensive));
        };
        self.steps_left.set(left);
        self.text.as_bytes()
    }

    fn is_char_boundary(&self, at: usize) -> bool {
        self.text.is_char_boundary(at)
    }

    fn is_ascii(&self) -> bool {
        self.text.is_ascii()
    }

    fn prev_codepoint_ix(&self, at: usize) -> usize {
        self.text.prev_codepoint_ix(at)
    }

    fn make_match<'m>(&'m self, start: usize, end: usize) -> Self::Match<'m> {
        &self.text[start..end]
    }

    fn advance_position(&self, at: usize) -> usize {
        self.text.advance_position(at)
    }
}

/// Returns the number of characters and classes of a translated expression, each as often as it is repeated.
fn weight(translated: &str) -> usize {
    // The sums of the groups that are open, and the weight of the last atom, which a count multiplies.
    let mut sums = vec![0_usize];
    let mut last = 0_usize;
    let mut rest = translated.chars();
    while let Some(character) = rest.next() {
        if character == '{'
            && let Some((counts, after)) = rest.as_str().split_once('}')
            && let Some(count) = highest_count(counts)
        {
            last = last.saturating_mul(count);
            rest = after.chars();
            continue;
        }
        if matches!(character, '*' | '+' | '?') {
            // It adds states too.
            last = last.saturating_add(1);
            continue;
        }
        let sum = sums.last().map_or(last, |sum| sum.saturating_add(last));
        last = 1;
        match character {
            '(' => {
                *sums.last_mut().unwrap_or(&mut 0) = sum;
                sums.push(0);
                continue;
            }
            ')' if sums.len() > 1 => {
                sums.pop();
                last = sum.saturating_add(1);
                continue;
            }
            '\\' => skip_escape(&mut rest),
            '[' => skip_class(&mut rest),
            _ => {}
        }
        *sums.last_mut().unwrap_or(&mut 0) = sum;
    }
    sums.into_iter().fold(last, usize::saturating_add)
}

/// Returns the higher of the counts in braces, and `None` for other texts in braces.
fn highest_count(counts: &str) -> Option<usize> {
    let mut highest = None;
    for count in counts.split(',').map(str::trim) {
        if !count.chars().all(|character| character.is_ascii_digit()) {
            return None;
        }
        // One that does not fit is higher than any limit.
        let count = if count.is_empty() { 0 } else { count.parse().unwrap_or(usize::MAX) };
        highest = highest.max(Some(count));
    }
    // Even what occurs zero times is compiled.
    highest.map(|count| count.max(1))
}

fn skip_escape(rest: &mut Chars<'_>) {
    let escaped = rest.next();
    if matches!(escaped, Some('x' | 'u' | 'p' | 'P'))
        && rest.as_str().starts_with('{')
        && let Some((_, after)) = rest.as_str().split_once('}')
    {
        *rest = after.chars();
    }
}

/// Skips a class, of which the beginning has been read.
fn skip_class(rest: &mut Chars<'_>) {
    let mut levels = 1;
    while levels > 0
        && let Some(character) = rest.next()
    {
        match character {
            '\\' => skip_escape(rest),
            '[' => levels += 1,
            ']' => levels -= 1,
            _ => {}
        }
    }
}

/// Translates an expression from JavaScript to Rust, where `\d` and others match more characters, and
/// brackets and some signs have a meaning in a class. `group` begins a group without a name.
///
/// # Errors
/// If the expression has a group that JavaScript does not know, such as a call of another group.
fn translated(pattern: &str, group: &str) -> Result<String, String> {
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
                let is_special = after.next_if_eq(&'?').is_some();
                let kind = (after.next(), after.next());
                let is_unknown = is_special
                    && matches!(
                        kind,
                        (Some('R' | '&' | '~' | '(' | '0'..='9'), _) | (Some('P'), Some('>'))
                    );
                if is_unknown || (!is_special && kind.0 == Some('*')) {
                    let shown = cut(pattern, TEXT_CHARS_MAX);
                    return Err(format!("{shown:?} has a group that JavaScript does not have"));
                }
                rust.push_str(if is_special { "(" } else { group });
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
