//! The estimate of a text's tokens.
//!
//! One pass groups ASCII as tokenizers do before they look up tokens: words with the space before them,
//! digits, punctuation, line breaks. Other characters have a weight by their script. The weights lie
//! between the encodings `o200k_base`, `cl100k_base` and `voyage3_base`, nearer to the newest.

/// Thousandths of a token.
const TOKEN: u64 = 1000;

/// Returns about the number of tokens of a text.
#[must_use]
pub fn estimate_text(text: &str) -> u64 {
    let mut scan = Scan { milli: 0, run: CharRun::None, len: 0 };
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte.is_ascii() {
            scan.push_ascii(byte);
            rest = after;
            continue;
        }
        let at = text.len() - rest.len();
        let Some(char) = text.get(at..).and_then(|rest| rest.chars().next()) else { break };
        scan.push_other(char);
        rest = rest.get(char.len_utf8()..).unwrap_or_default();
    }
    scan.end_run();
    scan.milli.div_ceil(TOKEN)
}

/// A series of characters that become tokens together.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CharRun {
    None,
    /// Latin letters, of which only the first may be a capital.
    Word,
    Capitals,
    Digits,
    Spaces,
    LineBreaks,
    Punctuation,
    /// Characters that are counted one by one.
    Single,
}

struct Scan {
    /// Thousandths of a token before the current run.
    milli: u64,
    run: CharRun,
    /// Number of characters of the current run.
    len: u64,
}

impl Scan {
    fn push_ascii(&mut self, byte: u8) {
        let run = match byte {
            b'a'..=b'z' => CharRun::Word,
            b'A'..=b'Z' => CharRun::Capitals,
            b'0'..=b'9' => CharRun::Digits,
            b' ' | b'\t' => CharRun::Spaces,
            b'\n' | b'\r' => CharRun::LineBreaks,
            0x21..=0x7E => CharRun::Punctuation,
            _ => {
                self.milli += TOKEN;
                CharRun::Single
            }
        };
        match (self.run, run) {
            (before, run) if before == run => self.len += 1,
            // The last capital belongs to the word that it begins.
            (CharRun::Capitals, CharRun::Word) => {
                self.len -= 1;
                if self.len > 0 {
                    self.end_run();
                }
                (self.run, self.len) = (CharRun::Word, 2);
            }
            _ => self.begin(run),
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
            // One token for each digit, or for each three.
            CharRun::Digits => 300 + self.len * 400,
            CharRun::Spaces | CharRun::LineBreaks => TOKEN,
            CharRun::Punctuation => 700 + self.len * 250,
        };
        self.len = 0;
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
