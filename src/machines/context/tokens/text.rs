//! The estimate of a text's tokens.
//!
//! One pass groups ASCII as tokenizers do before they look up tokens: words with the space before them,
//! digits, punctuation, line breaks. Other characters have a weight by their script. The weights lie
//! between the encodings `o200k_base`, `cl100k_base` and `voyage3_base`, nearer to the newest.

use std::fmt::Write as _;

use serde_json::Value;

use callsheet_wire::plain_bytes;

/// Thousandths of a token.
const TOKEN: u64 = 1000;

/// Returns about the number of tokens of a text.
#[must_use]
pub fn estimate_text(text: &str) -> u64 {
    let mut scan = Scan::default();
    scan.push_text(text);
    scan.tokens()
}

/// Returns about the number of tokens of a value's JSON. Equals the estimate of its text, which is not
/// made.
#[must_use]
pub(super) fn estimate_json(value: &Value) -> u64 {
    let mut scan = Scan::default();
    scan.push_json(value);
    scan.tokens()
}

/// A series of characters that become tokens together.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum CharRun {
    #[default]
    None,
    /// Latin letters, of which only the first may be an ASCII capital, unless a letter outside of ASCII follows.
    Word,
    Capitals,
    Digits,
    Spaces,
    LineBreaks,
    Punctuation,
    /// Characters that are counted one by one.
    Single,
}

/// The kind of run of each ASCII character. [`CharRun::None`] for the bytes of others.
#[expect(clippy::indexing_slicing, reason = "the compiler evaluates it")]
const ASCII_RUNS: [CharRun; 256] = {
    let mut runs = [CharRun::Single; 256];
    let mut byte = 0;
    while byte < 256 {
        runs[byte] = match byte as u8 {
            b'a'..=b'z' => CharRun::Word,
            b'A'..=b'Z' => CharRun::Capitals,
            b'0'..=b'9' => CharRun::Digits,
            b' ' | b'\t' => CharRun::Spaces,
            b'\n' | b'\r' => CharRun::LineBreaks,
            0x21..=0x7E => CharRun::Punctuation,
            0..=0x7F => CharRun::Single,
            0x80..=0xFF => CharRun::None,
        };
        byte += 1;
    }
    runs
};

/// Returns the kind of run of an ASCII character, or [`CharRun::None`] for a byte of another one.
fn ascii_run(byte: u8) -> CharRun {
    ASCII_RUNS.get(usize::from(byte)).copied().unwrap_or_default()
}

#[derive(Default)]
struct Scan {
    /// Thousandths of a token before the current run, and of its characters that are counted one by one.
    milli: u64,
    run: CharRun,
    /// Number of characters of the current run.
    len: u64,
}

impl Scan {
    /// Returns the number of tokens of what was pushed.
    fn tokens(mut self) -> u64 {
        self.end_run();
        self.milli.div_ceil(TOKEN)
    }

    fn push_text(&mut self, text: &str) {
        let bytes = text.as_bytes();
        let mut at = 0;
        while let Some(&first) = bytes.get(at) {
            let run = ascii_run(first);
            if run == CharRun::None {
                let Some(char) = text.get(at..).and_then(|rest| rest.chars().next()) else { break };
                self.push_other(char);
                at += char.len_utf8();
                continue;
            }
            let begin = at;
            at += 1;
            while bytes.get(at).is_some_and(|&byte| ascii_run(byte) == run) {
                at += 1;
            }
            self.push_ascii(run, (at - begin) as u64);
        }
    }

    /// Adds one punctuation mark of JSON.
    fn push_mark(&mut self) {
        self.push_ascii(CharRun::Punctuation, 1);
    }

    fn push_json(&mut self, value: &Value) {
        match value {
            Value::Null => self.push_text("null"),
            Value::Bool(true) => self.push_text("true"),
            Value::Bool(false) => self.push_text("false"),
            Value::Number(number) => match number.as_u64() {
                Some(number) => {
                    let digits = number.checked_ilog10().unwrap_or_default() + 1;
                    self.push_ascii(CharRun::Digits, digits.into());
                }
                // Writing to a scan cannot fail.
                None => drop(write!(self, "{number}")),
            },
            Value::String(text) => self.push_json_string(text),
            Value::Array(items) => {
                self.push_mark();
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        self.push_mark();
                    }
                    self.push_json(item);
                }
                self.push_mark();
            }
            Value::Object(members) => {
                self.push_mark();
                for (index, (name, member)) in members.iter().enumerate() {
                    if index > 0 {
                        self.push_mark();
                    }
                    self.push_json_string(name);
                    self.push_mark();
                    self.push_json(member);
                }
                self.push_mark();
            }
        }
    }

    fn push_json_string(&mut self, text: &str) {
        // Only a text that needs escapes is serialised.
        if plain_bytes(text.as_bytes()).is_some() {
            self.push_text(&serde_json::to_string(text).unwrap_or_default());
        } else {
            self.push_mark();
            self.push_text(text);
            self.push_mark();
        }
    }

    /// Adds `count` ASCII characters of one kind, at least one.
    fn push_ascii(&mut self, run: CharRun, count: u64) {
        if run == CharRun::Single {
            self.milli += TOKEN * count;
        }
        match (self.run, run) {
            (before, run) if before == run => self.len += count,
            // The last capital belongs to the word that it begins.
            (CharRun::Capitals, CharRun::Word) => {
                self.len -= 1;
                if self.len > 0 {
                    self.end_run();
                }
                (self.run, self.len) = (CharRun::Word, 1 + count);
            }
            _ => {
                self.begin(run);
                self.len = count;
            }
        }
    }

    fn push_other(&mut self, char: char) {
        if let 'À'..='ɏ' | 'Ḁ'..='ỿ' = char {
            match self.run {
                CharRun::Word | CharRun::Capitals => {
                    (self.run, self.len) = (CharRun::Word, self.len + 1)
                }
                CharRun::None
                | CharRun::Digits
                | CharRun::Spaces
                | CharRun::LineBreaks
                | CharRun::Punctuation
                | CharRun::Single => self.begin(CharRun::Word),
            }
            self.milli += if char >= 'Ḁ' { 450 } else { 600 };
            return;
        }
        if self.run != CharRun::Single {
            self.begin(CharRun::Single);
        }
        self.milli += milli_of(char);
    }

    /// Starts a run. A single space or punctuation mark before it may be part of its first token.
    fn begin(&mut self, run: CharRun) {
        match (self.run, run) {
            (CharRun::Spaces, run) if self.len == 1 && run != CharRun::Digits => {}
            (CharRun::Punctuation, CharRun::Word | CharRun::Capitals) if self.len == 1 => {
                self.milli += 350
            }
            _ => self.end_run(),
        }
        (self.run, self.len) = (run, 1);
    }

    fn end_run(&mut self) {
        self.milli += match self.run {
            CharRun::None | CharRun::Single => 0,
            CharRun::Word => TOKEN + self.len.saturating_sub(5) * 150,
            CharRun::Capitals => 400 + self.len * 480,
            // Between one token for each digit and one for each three.
            CharRun::Digits => 300 + self.len * 400,
            CharRun::Spaces | CharRun::LineBreaks => TOKEN,
            CharRun::Punctuation => 700 + self.len * 250,
        };
        self.len = 0;
    }
}

impl std::fmt::Write for Scan {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.push_text(text);
        Ok(())
    }
}

/// Returns the weight of a character by its script, in thousandths of a token.
fn milli_of(char: char) -> u64 {
    match char {
        '\u{0370}'..='\u{03FF}' | '\u{1F00}'..='\u{1FFF}' => 650, // Greek
        '\u{0400}'..='\u{052F}' => 380,                           // Cyrillic
        '\u{0530}'..='\u{058F}' => 800,                           // Armenian
        '\u{0590}'..='\u{05FF}' => 650,                           // Hebrew
        '\u{0600}'..='\u{077F}' => 480,                           // Arabic
        '\u{0900}'..='\u{097F}' => 650,                           // Devanagari
        '\u{0980}'..='\u{0DFF}' => 750,                           // other scripts of India
        '\u{0E00}'..='\u{0EFF}' => 700,                           // Thai, Lao
        '\u{0F00}'..='\u{109F}' => 1000,                          // Tibetan, Burmese
        '\u{10A0}'..='\u{10FF}' => 750,                           // Georgian
        '\u{1100}'..='\u{11FF}' | '\u{AC00}'..='\u{D7AF}' => 800, // Hangul
        '\u{2000}'..='\u{206F}' => 700,                           // dashes, quotes
        '\u{3040}'..='\u{30FF}' => 750,                           // Kana
        '\u{3000}'..='\u{303F}'
        | '\u{3400}'..='\u{9FFF}'
        | '\u{F900}'..='\u{FAFF}'
        | '\u{FF00}'..='\u{FFEF}' => 1000, // Han, full width
        '\u{1F000}'..='\u{1FAFF}' => 1800,                        // emoji
        '\u{20000}'..='\u{3FFFF}' => 2000,                        // rare Han
        _ => 1300,
    }
}
