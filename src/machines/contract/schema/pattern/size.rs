//! The size of a translated expression, from which the price of a match follows.

use std::ops::RangeInclusive;
use std::str::Chars;

/// Number of bytes of a text that a search compares with a unit of weight in the time of a step, if the library keeps
/// the states that it builds, and if it may have to build one for each byte.
const BYTES_PER_STEP: usize = 64;
const BYTES_PER_STEP_WITHOUT_KEPT: usize = 8;

/// The weight up to which the library keeps all states. `[ab]*a[ab]{8}c` has this weight and about 512 states.
const KEPT_WEIGHT_MAX: usize = 12;

/// Number of bytes of a text from which on each search by the backtracking engine takes its full price. In a shorter
/// text it finds states that the searches before it have built.
const LONG_BYTES: usize = 1_024;

/// Number of units of weight that the backtracking engine executes between two reads of a text in the time of a
/// step.
const WEIGHT_PER_STEP: usize = 100;

/// Number of bytes of a text that add a step to each of its reads, for each unit of weight: the stack of a match
/// grows with them.
const STACK_BYTES_PER_STEP: usize = 4_096;

/// The states that count at least in a match: each byte is read.
const LEAST_STATES: usize = 16;

/// The size of a translated expression.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PatternSize {
    /// Number of characters and classes, each as often as it is repeated.
    pub(super) weight: usize,
    /// The part of the weight that is before all that is repeated without a limit, if the expression begins with `^`.
    /// A search compares it only with the beginning of a text.
    weight_before_loops: usize,
    /// Number of groups, alternatives and references. A reference counts more than once.
    pub(super) parts: usize,
    /// Number of groups and repeats: the backtracking engine saves a position or a count for each.
    saves: usize,
    /// True if a count is a range, as in `{1,9}`: each of the optional characters has two states then.
    has_ranges: bool,
    /// True if something without look-around and references is repeated without a limit: a search of it can go to
    /// the end of the text.
    pub(super) has_long_searches: bool,
}

impl PatternSize {
    /// Returns the steps of a search in a text by the library `regex`.
    pub(super) fn search_steps(self, bytes: usize) -> usize {
        let kept = if self.weight <= KEPT_WEIGHT_MAX {
            bytes
        } else if self.weight - self.weight_before_loops <= KEPT_WEIGHT_MAX {
            // A character has at most four bytes.
            bytes.saturating_sub(4 * self.weight_before_loops)
        } else {
            0
        };
        self.compared(kept) / BYTES_PER_STEP
            + self.compared(bytes - kept) / BYTES_PER_STEP_WITHOUT_KEPT
    }

    /// Returns how many bytes a search in a text compares with a unit of weight.
    fn compared(self, bytes: usize) -> usize {
        let states = if self.has_ranges { self.weight.saturating_mul(2) } else { self.weight };
        bytes.saturating_mul(states.max(LEAST_STATES))
    }

    /// Returns the steps of a read of a text by the backtracking engine. Any read can begin a search for a part of
    /// the expression that has no look-around and no references. The searches after the first find states that it
    /// has built.
    pub(super) fn read_steps(self, bytes: usize) -> usize {
        let searched = if self.has_long_searches { bytes } else { bytes.min(4 * self.weight) };
        let searched = searched.saturating_mul(searched.min(LONG_BYTES)) / LONG_BYTES;
        let stack = bytes.saturating_mul(self.weight + 8) / STACK_BYTES_PER_STEP;
        // Each save looks at the others.
        let executed = self.weight / WEIGHT_PER_STEP + self.saves * self.saves / 256;
        1 + self.compared(searched) / BYTES_PER_STEP + stack + executed
    }
}

/// Returns an expression of one class or escape without its count, and the numbers of characters that the count
/// allows. `^X{n,m}$` matches what `^X*$` matches, if that has n to m characters, also with look-around after `^`.
/// Without one of the anchors, the higher count does not matter: the result is `X{n}` with the other anchor, and no
/// numbers. Returns `None` for other expressions.
pub(super) fn without_count(translated: &str) -> Option<(String, Option<RangeInclusive<usize>>)> {
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
pub(super) fn size(translated: &str) -> PatternSize {
    let mut size = PatternSize::default();
    // The groups that are open: the weight of each so far, and the number of look-around and references before it.
    let mut open = vec![(0_usize, 0)];
    // The last atom, which a count repeats.
    let (mut last, mut is_last_hard) = (0_usize, false);
    let mut hard = 0;
    let (mut before_loops, mut has_alternatives) = (None, false);
    let mut rest = translated.chars();
    while let Some(character) = rest.next() {
        let counts = match character {
            '*' => Some("0,"),
            '+' => Some("1,"),
            '?' => Some("0,1"),
            '{' => rest.as_str().split_once('}').map(|(counts, _)| counts),
            _ => None,
        };
        // A count multiplies the weight of the last atom.
        if let Some(counts) = counts
            && let Some(count) = highest_count(counts)
        {
            let (is_range, is_endless) = (counts.contains(','), counts.ends_with(','));
            size.saves += 1;
            if is_endless && before_loops.is_none() {
                before_loops = open.first().map(|(sum, _)| *sum);
            }
            size.has_ranges |= is_range && !is_endless && count > 1;
            size.has_long_searches |= is_endless && !is_last_hard;
            last = last.saturating_mul(count).saturating_add(is_range.into());
            if character == '{' {
                rest = rest.as_str()[counts.len() + 1..].chars();
            }
            continue;
        }
        // Everything else begins an atom, so no count follows the last one.
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
            '|' => {
                size.parts += 1;
                has_alternatives |= open.len() == 1;
            }
            '\\' => skip_escape(&mut rest),
            '[' => skip_class(&mut rest),
            _ => {}
        }
    }
    size.weight = open.into_iter().fold(last, |weight, (sum, _)| weight.saturating_add(sum));
    if translated.starts_with('^') && !has_alternatives {
        size.weight_before_loops = before_loops.unwrap_or_default();
    }
    size
}

/// Returns what begins look-around after its parenthesis.
pub(super) fn look_around(content: &str) -> Option<&'static str> {
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

/// Returns the higher of the counts in braces, at least 1, and `None` for other texts in braces.
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
