//! The regular expressions of JSON Schema, which are those of JavaScript (ECMA-262).
//!
//! Most of them run in time that grows with the text times the expression: the library `regex` compiles them.
//! Those with look-around or references to groups take the backtracking engine of `fancy-regex`, which reads the text
//! through a [`MeteredText`], so that each read spends steps. Other than in JavaScript, a group that is repeated keeps
//! its text from the repeats before, so that a reference to it can match that.
//!
//! An expression is refused if it is too long, repeats too much, or takes too much memory. Look-behind of a variable
//! length is refused, too, unless another crate switches on that feature of the library; and so are look-around and
//! references in a program that is compiled with `panic = "abort"`, because a match without steps ends by unwinding.

use std::cell::Cell;
use std::fmt::Write;
use std::ops::RangeInclusive;
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
const BACKTRACKS_MAX: usize = 100_000;

/// Number of bytes of a text that a search compares with a unit of weight in the time of a step.
const BYTES_PER_STEP: usize = 64;

/// Number of bytes of a text from which on each search by the backtracking engine takes its full price. In a shorter
/// text it finds states that the searches before it have built.
const LONG_BYTES: usize = 1_024;

/// Number of units of weight that the backtracking engine executes between two reads of a text in the time of a step.
const WEIGHT_PER_STEP: usize = 100;

/// Number of bytes of a text that add a step to each of its reads, for each unit of weight: the stack of a match grows
/// with them.
const STACK_BYTES_PER_STEP: usize = 4_096;

/// Maximum memory of the states that a match of an expression builds. Each thread keeps its own.
const STATES_MEMORY_MAX: usize = 512 << 10;

/// The states that count at least in a match: each byte is read.
const LEAST_STATES: usize = 16;

/// The characters of `\s`: spaces and ends of lines, ECMA-262, section 22.2.2.9.
const SPACES: &str =
    r"\t-\r\x20\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}";

/// Stands for half of a pair of surrogates, which no text has: a noncharacter.
const LONE_SURROGATE: &str = r"\x{10fffe}";

/// A dot: everything but the ends of lines.
const DOT: &str = r"[^\n\r\x{2028}\x{2029}]";

/// A class of every character.
const ANYTHING: &str = r"[\x00-\x{10ffff}]";

/// A class of no character.
const NOTHING: &str = r"[^\x00-\x{10ffff}]";

/// Matches the empty text, and reads the text.
const EMPTY_READ: &str = r"(?![^\x00-\x{10ffff}])";

/// The boundary of a word for the backtracking engine, whose own is that of Unicode.
const BOUNDARY: &str = "(?:(?<=[A-Za-z0-9_])(?![A-Za-z0-9_])|(?<![A-Za-z0-9_])(?=[A-Za-z0-9_]))";

/// The opposite.
const NO_BOUNDARY: &str = "(?:(?<=[A-Za-z0-9_])(?=[A-Za-z0-9_])|(?<![A-Za-z0-9_])(?![A-Za-z0-9_]))";

/// A compiled regular expression.
#[derive(Debug)]
pub(super) struct Pattern {
    /// The expression as the schema has it.
    pub(super) text: String,
    size: PatternSize,
    engine: PatternEngine,
    /// The number of characters of a text that matches, if the engine does not count them.
    length: Option<RangeInclusive<usize>>,
}

#[derive(Debug)]
enum PatternEngine {
    Linear(regex::Regex),
    Backtracking(fancy_regex::Regex),
}

/// The size of a translated expression.
#[derive(Clone, Copy, Debug, Default)]
struct PatternSize {
    /// Number of characters and classes, each as often as it is repeated.
    weight: usize,
    /// Number of groups, alternatives and references.
    parts: usize,
    /// Number of groups and repeats: the backtracking engine saves a position or a count for each.
    saves: usize,
    /// True if a count is a range, as in `{1,9}`: each of the optional characters has two states then.
    has_ranges: bool,
    /// True if something without look-around and references is repeated without a limit: a search of it can go to
    /// the end of the text.
    has_long_searches: bool,
}

impl PatternSize {
    /// Returns the steps of a search in a text.
    fn search_steps(self, bytes: usize) -> usize {
        let states = if self.has_ranges { self.weight.saturating_mul(2) } else { self.weight };
        bytes.saturating_mul(states.max(LEAST_STATES)) / BYTES_PER_STEP
    }

    /// Returns the steps of a read of a text by the backtracking engine. Any read can be that of a search for a part of
    /// the expression without look-around and references.
    fn read_steps(self, bytes: usize) -> usize {
        let searched = if self.has_long_searches { bytes } else { bytes.min(4 * self.weight) };
        let searched = searched.saturating_mul(searched.min(LONG_BYTES)) / LONG_BYTES;
        let stack = bytes.saturating_mul(self.weight + 8) / STACK_BYTES_PER_STEP;
        // Each save looks at the others.
        let executed = self.weight / WEIGHT_PER_STEP + self.saves * self.saves / 256;
        1 + self.search_steps(searched) + stack + executed
    }
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
        let linear = translated(text, true)?;
        let backtracking = translated(text, false)?;
        let (linear, length) = without_count(&linear).unwrap_or((linear, None));
        let backtracking =
            without_count(&backtracking).map_or(backtracking, |(without, _)| without);
        let size = size(&linear);
        if size.weight > WEIGHT_MAX {
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
                    .unwrap_or_else(|| PatternEngine::backtracking(&backtracking, size, limit))
            });
            match built.unwrap_or(Err(Refused::NeedsMemory)) {
                Ok(engine) => {
                    *memory_left -= memory;
                    return Ok(Self { text: text.to_owned(), size, engine, length });
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
        if let Some(length) = &self.length {
            steps.spend_text(text)?;
            if !length.contains(&text.chars().count()) {
                return Ok(false);
            }
        }
        steps.spend(10 + self.size.search_steps(text.len()))?;
        // A few expressions make the regex library panic: https://github.com/rust-lang/regex/issues/1344
        match &self.engine {
            PatternEngine::Linear(regex) => {
                let matched = panic::catch_unwind(AssertUnwindSafe(|| regex.is_match(text)));
                matched.map_err(|_| TooExpensive)
            }
            PatternEngine::Backtracking(regex) => {
                let price = self.size.read_steps(text.len());
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

    fn backtracking(translated: &str, size: PatternSize, limit: usize) -> Result<Self, Refused> {
        let too_complex = || {
            let reason = "it has look-around or references, and too many groups or repeats";
            Err(Refused::Invalid(reason.to_owned()))
        };
        if size.weight > BACKTRACKING_WEIGHT_MAX {
            return too_complex();
        }
        if cfg!(panic = "abort") {
            let reason = "look-around and references need a program that unwinds panics";
            return Err(Refused::Invalid(reason.to_owned()));
        }
        let mut builder = fancy_regex::RegexBuilder::new(translated);
        // A search for the beginning of a match would go to the end of the text.
        builder.backtrack_limit(BACKTRACKS_MAX).seek(false);
        // The limit holds for each part that it gives to the other engine. Look-around, groups, alternatives and
        // references separate the parts.
        let limit = limit / (1 + size.parts);
        builder.delegate_size_limit(limit).delegate_dfa_size_limit(limit.min(STATES_MEMORY_MAX));
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
///
/// Whatever fails reads the text, if need be because of an [`EMPTY_READ`] before it. So the engine does little between
/// two reads, and they pay for that, too.
struct MeteredText<'t> {
    text: &'t str,
    price: usize,
    steps_left: Cell<usize>,
}

impl MeteredText<'_> {
    fn read(&self) -> &str {
        let Some(left) = self.steps_left.get().checked_sub(self.price) else {
            // Calls no panic hook.
            panic::resume_unwind(Box::new(TooExpensive));
        };
        self.steps_left.set(left);
        self.text
    }
}

impl Input for MeteredText<'_> {
    type Match<'m>
        = &'m str
    where
        Self: 'm;

    fn len(&self) -> usize {
        self.read().len()
    }

    fn as_bytes(&self) -> &[u8] {
        self.read().as_bytes()
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

/// Returns an expression of one class or escape without its count, and the numbers of characters that the count allows.
/// `^X{n,m}$` matches what `^X*$` matches, if that has n to m characters, also with look-around after its beginning.
/// Without one of the anchors, the higher count does not matter, and there is no length.
fn without_count(translated: &str) -> Option<(String, Option<RangeInclusive<usize>>)> {
    let mut atom = translated;
    if let Some(after) = translated.strip_prefix('^') {
        atom = after;
        while atom.strip_prefix('(').is_some_and(|content| look_around(content).is_some()) {
            atom = after_group(atom)?;
        }
    }
    let start = &translated[..translated.len() - atom.len()];
    let mut rest = atom.chars();
    match rest.next() {
        Some('[') => skip_class(&mut rest),
        Some('\\') => skip_escape(&mut rest),
        Some(_) | None => return None,
    }
    let (counts, end) = rest.as_str().strip_prefix('{')?.split_once('}')?;
    let atom = &atom[..atom.len() - rest.as_str().len()];
    let (least, most) = counts.split_once(',').unwrap_or((counts, counts));
    let is_number = |count: &str| count.chars().all(|digit| digit.is_ascii_digit());
    if least.is_empty() || !is_number(least) || !is_number(most) || !matches!(end, "" | "$") {
        return None;
    }
    // No text has as many characters as a count that does not fit.
    let least = least.parse().unwrap_or(usize::MAX);
    let most = most.parse().unwrap_or(usize::MAX);
    match end {
        _ if least > most => None,
        "$" if start.starts_with('^') => Some((format!("{start}{atom}*$"), Some(least..=most))),
        _ => Some((format!("{start}{atom}{{{least}}}{end}"), None)),
    }
}

/// Returns what follows the group at the beginning of a translated expression.
fn after_group(translated: &str) -> Option<&str> {
    let mut rest = translated.chars();
    let mut levels = 0;
    loop {
        match rest.next()? {
            '(' => levels += 1,
            ')' => levels -= 1,
            '\\' => skip_escape(&mut rest),
            '[' => skip_class(&mut rest),
            _ => {}
        }
        if levels == 0 {
            return Some(rest.as_str());
        }
    }
}

/// Returns the size of a translated expression.
fn size(translated: &str) -> PatternSize {
    let mut size = PatternSize::default();
    // The groups that are open: the weight of each so far, and the number of look-around and references before it.
    let mut open = vec![(0_usize, 0)];
    // The last atom, which a count repeats.
    let (mut last, mut is_last_hard) = (0_usize, false);
    let mut hard = 0;
    let mut rest = translated.chars();
    while let Some(character) = rest.next() {
        let counts = match character {
            '*' => Some("0,"),
            '+' => Some("1,"),
            '?' => Some("0,1"),
            '{' => rest.as_str().split_once('}').map(|(counts, _)| counts),
            _ => None,
        };
        if let Some(counts) = counts
            && let Some(count) = highest_count(counts)
        {
            let (is_range, is_endless) = (counts.contains(','), counts.ends_with(','));
            size.saves += 1;
            size.has_ranges |= is_range && !is_endless && count > 1;
            size.has_long_searches |= is_endless && !is_last_hard;
            last = last.saturating_mul(count).saturating_add(is_range.into());
            if character == '{' {
                rest = rest.as_str()[counts.len() + 1..].chars();
            }
            continue;
        }
        if let Some((sum, _)) = open.last_mut() {
            *sum = sum.saturating_add(last);
        }
        (last, is_last_hard) = (1, false);
        match character {
            '(' => {
                size.parts += 1;
                size.saves += 1;
                open.push((0, hard));
                let content = rest.as_str();
                hard += usize::from(look_around(content).is_some() || content.starts_with("?("));
                skip_group_start(&mut rest);
                last = 0;
            }
            ')' if open.len() > 1 => {
                if let Some((sum, hard_before)) = open.pop() {
                    (last, is_last_hard) = (sum.max(1), hard > hard_before);
                }
            }
            '|' => size.parts += 1,
            '\\' => skip_escape(&mut rest),
            '[' => skip_class(&mut rest),
            _ => {}
        }
    }
    size.weight = open.into_iter().fold(last, |weight, (sum, _)| weight.saturating_add(sum));
    size
}

/// Returns what begins look-around after its parenthesis.
fn look_around(content: &str) -> Option<&'static str> {
    ["?=", "?!", "?<=", "?<!"].into_iter().find(|start| content.starts_with(start))
}

/// Skips what begins a group after its parenthesis, such as `?:`.
fn skip_group_start(rest: &mut Chars<'_>) {
    let text = rest.as_str();
    if text.starts_with('?')
        && let Some(end) = text.find([':', '=', '!', '>', '(', ')'])
    {
        let is_part = !text[end..].starts_with(['(', ')']);
        *rest = text[end + usize::from(is_part)..].chars();
    }
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

/// The translation of an expression from JavaScript to Rust, where `\d` and others match more characters, and
/// brackets and some signs have a meaning in a class.
struct Translation<'p> {
    /// True if it is for the engine of `regex`, whose groups capture nothing, which takes less memory.
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

/// Translates an expression from JavaScript to Rust.
///
/// # Errors
/// If the expression has a group that JavaScript does not know, such as a call of another group.
fn translated(pattern: &str, is_linear: bool) -> Result<String, String> {
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
        self.rust.push_str(start);
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
            self.add_reference(&format!("<{name}>"), &format!(r"\k<{name}>"), is_open);
            self.rest = after.chars();
        } else if rest.starts_with(['b', 'B']) {
            self.rust.push_str(match rest.starts_with('b') {
                true if self.is_linear => r"(?-u:\b)",
                true => BOUNDARY,
                // That of `regex` matches within characters: look-around, which it does not have.
                false => NO_BOUNDARY,
            });
            self.rest.next();
        } else {
            translate_escape(&mut self.rest, &mut self.rust, false);
        }
    }

    /// Adds a reference to a group, which matches the empty text if the group has not matched.
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
        while let Some(is_set) = self.add_class_member() {
            let mut after = self.rest.clone();
            let is_hyphen = after.next() == Some('-');
            if !is_hyphen || after.as_str().is_empty() || after.as_str().starts_with(']') {
                continue;
            }
            self.rest = after;
            let hyphen = self.rust.len();
            self.rust.push('-');
            // A hyphen beside `\w` and the like is no range.
            let is_other_set = self.add_class_member();
            if is_set || is_other_set == Some(true) {
                self.rust.insert(hyphen, '\\');
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
        // JavaScript has no other escapes of letters: `\<` is `<`.
        '<' | '>' => write!(rust, "{escaped}"),
        _ if escaped.is_alphabetic() && !"nrtfvxpPu".contains(escaped) => {
            write!(rust, "{escaped}")
        }
        _ => write!(rust, r"\{escaped}"),
    };
}

/// Reads the four digits of a UTF-16 code unit.
fn code_unit(rest: &mut Chars<'_>) -> Option<u32> {
    let mut unit = 0;
    for _ in 0..4 {
        let digit = rest.clone().next()?.to_digit(16)?;
        rest.next();
        unit = unit * 16 + digit;
    }
    Some(unit)
}
