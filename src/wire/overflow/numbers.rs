//! Finds the size of the context window and the tokens of the request in the text of an error.

/// A window is never smaller, so smaller numbers are something else: a status, a count of messages.
const WINDOW_TOKENS_MIN: u64 = 256;

/// MiniMax's code of an overflow, which is in its sentence: `context window exceeds limit (2013)`.
const MINIMAX_CODE: u64 = 2013;

/// Words before a number which say that it is the window. They are searched backwards from the number, up to
/// the previous number that could be a window or the beginning of its sentence.
const OF_WINDOW: [&str; 18] = [
    "maximum", "max", "limit", "limited", "allowed", "exceed", "exceeds", "exceeded", "most",
    "than", "up", "supports", "window", "context", "n_ctx", "should", "less", "range",
];

/// Words before a number which say that it is the tokens of the request. Of all words of the two lists,
/// the one nearest to the number decides.
const OF_REQUEST: [&str; 16] = [
    "requested",
    "contains",
    "contain",
    "resulted",
    "has",
    "have",
    "got",
    "received",
    "given",
    "total",
    "provided",
    "sent",
    "current",
    "actual",
    "count",
    "your",
];

/// The numbers found in the text of an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) window: Option<u64>,
    pub(super) request: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lexeme<'a> {
    Word(&'a str),
    Number(u64),
    Symbol(char),
}

/// Finds the numbers in a text in lower case. Ignores the code and the status of the error.
pub(super) fn find(text: &str, code: Option<&str>, status: Option<u16>) -> Numbers {
    let lexemes = lexemes(text);
    let mut found = Numbers::default();
    let mut others = Vec::new();
    for (at, lexeme) in lexemes.iter().enumerate() {
        let Lexeme::Number(number) = *lexeme else { continue };
        let (before, rest) = lexemes.split_at_checked(at).unwrap_or_default();
        let after = rest.get(1..).unwrap_or_default();
        let is_code = code.is_some_and(|code| code == number.to_string())
            || status.is_some_and(|status| u64::from(status) == number);
        if number < WINDOW_TOKENS_MIN || is_code || number == MINIMAX_CODE || is_no_count(after) {
            continue;
        }
        match meaning(before, after) {
            Meaning::Window => found.window = found.window.or(Some(number)),
            Meaning::Request => found.request = found.request.max(Some(number)),
            Meaning::Unknown => others.push(number),
            Meaning::Difference => {}
        }
    }
    let largest_other = others.iter().copied().max();
    match (found.window, found.request) {
        (Some(window), None) => found.request = largest_other.filter(|other| *other > window),
        // If no number has a word, the smallest is the window and the largest the request.
        (None, None) if others.len() > 1 => {
            found.window = others.iter().copied().min();
            found.request = largest_other.filter(|other| Some(*other) > found.window);
            found.window = found.window.filter(|_| found.request.is_some());
        }
        (None, Some(request)) => {
            found.window = others.into_iter().find(|other| *other < request);
        }
        (None, None) | (Some(_), Some(_)) => {}
    }
    found
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    Window,
    Request,
    /// The excess of the request over the window.
    Difference,
    Unknown,
}

/// Returns the meaning of a number from the words around it.
fn meaning(before: &[Lexeme<'_>], after: &[Lexeme<'_>]) -> Meaning {
    match before.iter().rev().find(|lexeme| !matches!(lexeme, Lexeme::Symbol('(' | ':' | '='))) {
        Some(Lexeme::Symbol('>' | '≤' | '/')) => return Meaning::Window,
        Some(Lexeme::Word("by")) => return Meaning::Difference,
        _ => {}
    }
    // `199759 + 8192 > 200000`, `5000 > n_ctx`
    let in_sum = after
        .iter()
        .take_while(|lexeme| {
            matches!(lexeme, Lexeme::Number(_) | Lexeme::Symbol('+' | '>') | Lexeme::Word("tokens"))
        })
        .any(|lexeme| *lexeme == Lexeme::Symbol('>'));
    if in_sum {
        return Meaning::Request;
    }
    // `200000 maximum`, `8192-token context window`, `4096 token limit`
    let next = after
        .iter()
        .find(|lexeme| !matches!(lexeme, Lexeme::Word("token" | "tokens") | Lexeme::Symbol('-')));
    if let Some(Lexeme::Word("maximum" | "max" | "limit" | "context")) = next {
        return Meaning::Window;
    }
    let span = before.iter().rev().take_while(|lexeme| {
        !matches!(lexeme, Lexeme::Number(WINDOW_TOKENS_MIN..) | Lexeme::Symbol('.' | ';'))
    });
    for lexeme in span {
        match lexeme {
            Lexeme::Word(word) if OF_REQUEST.contains(word) => return Meaning::Request,
            Lexeme::Word(word) if OF_WINDOW.contains(word) => return Meaning::Window,
            Lexeme::Word(_) | Lexeme::Number(_) | Lexeme::Symbol(_) => {}
        }
    }
    Meaning::Unknown
}

/// Returns whether a number counts characters or bytes instead of tokens, or is part of a date.
fn is_no_count(after: &[Lexeme<'_>]) -> bool {
    match after {
        [Lexeme::Word(word), ..] => {
            word.starts_with("char") || word.starts_with("byte") || *word == "mb" || *word == "kb"
        }
        [Lexeme::Symbol('-'), Lexeme::Number(_), Lexeme::Symbol('-'), ..] => true,
        _ => false,
    }
}

/// Splits a text into words, numbers and symbols. A number may have commas and end in `k` or `m`;
/// digits within a word, such as those of a model's name, are not a number.
fn lexemes(text: &str) -> Vec<Lexeme<'_>> {
    let mut lexemes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '0'..='9' => {
                let end =
                    |is_part: fn(char) -> bool| rest.find(|c| !is_part(c)).unwrap_or(rest.len());
                let (digits, word) = (end(is_of_number), end(is_of_number_or_word));
                let (number, suffix) = rest.get(..word).unwrap_or_default().split_at(digits);
                lexemes.push(match parse_number(number, suffix) {
                    Some(number) => Lexeme::Number(number),
                    None => Lexeme::Word(suffix),
                });
                word
            }
            '<' if rest.starts_with("<=") => {
                lexemes.push(Lexeme::Symbol('≤'));
                2
            }
            c if c.is_ascii_alphabetic() || c == '_' => {
                let len = rest.find(|c| !is_of_word(c)).unwrap_or(rest.len());
                lexemes.push(Lexeme::Word(rest.get(..len).unwrap_or_default()));
                len
            }
            c => {
                if !c.is_whitespace() {
                    lexemes.push(Lexeme::Symbol(c));
                }
                c.len_utf8()
            }
        };
        rest = rest.get(len..).unwrap_or_default();
    }
    lexemes
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || c == ','
}

fn is_of_number_or_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == ',' || c == '_'
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '\'')
}

fn parse_number(digits: &str, suffix: &str) -> Option<u64> {
    let number: u64 = digits.replace(',', "").parse().ok()?;
    match suffix {
        "" => Some(number),
        "k" => number.checked_mul(1000),
        "m" => number.checked_mul(1_000_000),
        _ => None,
    }
}
