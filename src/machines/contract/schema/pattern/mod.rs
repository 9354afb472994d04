//! The regular expressions of JSON Schema, which are those of JavaScript (ECMA-262).
//!
//! Most of them run in time that grows with the text times the expression: the library `regex` compiles them.
//! Those with look-around, references to groups or `\B` take the backtracking engine of `fancy-regex`, which reads
//! the text through a [`MeteredText`], so that each read spends steps. Unlike in JavaScript, a group that is repeated
//! keeps its text from the repeats before, so that a reference to it can match that.
//!
//! An expression is not checked if it is too long, repeats too much, takes too much memory, or needs the backtracking
//! engine and has too many groups. Look-behind of a variable length is not checked, too, unless another crate switches on
//! that feature of the library. In a program that is compiled with `panic = "abort"`, everything that needs the
//! backtracking engine is not checked, because a match without steps ends by unwinding.

mod size;
mod translation;

use std::cell::Cell;
use std::ops::RangeInclusive;
use std::panic::{self, AssertUnwindSafe};

use fancy_regex::{CompileError, Error, Input};

use super::json_excerpt::{TEXT_CHARS_MAX, cut};
use super::steps::{Steps, TooExpensive};
use size::{PatternSize, size, without_count};
use translation::translated;

/// Maximum number of bytes of an expression.
const PATTERN_BYTES_MAX: usize = 4_096;

/// Maximum memory of the compiled regular expressions of a schema.
pub(super) const PATTERN_MEMORY_MAX: usize = 24 << 20;

/// The memory limits that an expression is compiled with, one after the other. The first that it fits counts as its
/// memory.
const MEMORY_LIMITS: [usize; 5] = [64 << 10, 256 << 10, 1 << 20, 3 << 20, 10 << 20];

/// The memory that each byte of an expression counts at least, because it takes time to be compiled.
const MEMORY_PER_BYTE: usize = 512;

/// Maximum number of characters and classes of an expression, each as often as it is repeated.
const WEIGHT_MAX: usize = 100_000;

/// The same for an expression with look-around or references to groups.
const BACKTRACKING_WEIGHT_MAX: usize = 10_000;

/// Maximum number of capturing groups of such an expression: the memory of a match grows with them.
const BACKTRACKING_GROUPS_MAX: usize = 50;

/// Maximum number of steps back in a match of an expression with look-around or references to groups.
const BACKTRACKS_MAX: usize = 100_000;

/// Maximum memory of the states that a match of an expression builds. Each thread keeps its own.
const STATES_MEMORY_MAX: usize = 512 << 10;

/// A compiled regular expression.
#[derive(Debug)]
pub(super) struct Pattern {
    /// The expression as the schema has it.
    pub(super) text: String,
    size: PatternSize,
    engine: PatternEngine,
    /// The number of characters of a text that matches, if the engine does not count them ([`without_count`]).
    length: Option<RangeInclusive<usize>>,
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
    /// The reason why it is not valid, or the limit that it exceeds.
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
            // Also those that turn out to be too large take time.
            let memory = limit.max(text.len() * MEMORY_PER_BYTE);
            *memory_left = memory_left.checked_sub(memory).ok_or_else(|| {
                "the regular expressions of the schema need too much memory".to_owned()
            })?;
            // The libraries can panic, as in a match.
            let built = panic::catch_unwind(|| {
                PatternEngine::linear(&linear, limit)
                    .unwrap_or_else(|| PatternEngine::backtracking(&backtracking, size, limit))
            });
            match built.unwrap_or(Err(Refused::NeedsMemory)) {
                Ok(engine) => return Ok(Self { text: text.to_owned(), size, engine, length }),
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
        steps.spend(10)?;
        // A few expressions make the regex library panic: https://github.com/rust-lang/regex/issues/1344
        match &self.engine {
            PatternEngine::Linear(regex) => {
                steps.spend(self.size.search_steps(text.len()))?;
                let matched = panic::catch_unwind(AssertUnwindSafe(|| regex.is_match(text)));
                matched.map_err(|_| TooExpensive)
            }
            PatternEngine::Backtracking(regex) => {
                let price = self.size.read_steps(text.len());
                if self.size.has_long_searches {
                    // The first search may build the states.
                    steps.spend(self.size.search_steps(text.len()))?;
                }
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
        // The limit holds for each part that this engine leaves to the other one. Look-around, groups, alternatives
        // and references separate the parts.
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

/// A text that the backtracking engine reads. Each read, by `len` or `as_bytes`, spends the steps of
/// [`PatternSize::read_steps`]. The match unwinds when too few are left.
///
/// Each part of an expression that can fail reads the text, some because of an [`translation::EMPTY_READ`] before
/// them. So the engine does little between two reads, and their price includes that.
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
