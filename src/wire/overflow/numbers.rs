//! Finds the size of the context window and the tokens of the request in the text of an error.

/// Smaller numbers are not counts of tokens, because no window is so small: they count messages, for example.
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

/// Words which say that a number is the length of the answer that was requested.
const OF_OUTPUT: [&str; 17] = [
    "completion",
    "completions",
    "output",
    "outputs",
    "generation",
    "generated",
    "prediction",
    "answer",
    "response",
    "max_tokens",
    "max-tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "max_gen_len",
    "maxoutputtokens",
    "num_predict",
];

/// Words which say that a number is a part of the input.
const OF_INPUT: [&str; 10] = [
    "prompt",
    "prompts",
    "input",
    "inputs",
    "message",
    "messages",
    "text",
    "tools",
    "functions",
    "history",
];

/// The least part of the window, or number of tokens, that is worth an answer. With less room the context has to
/// become smaller.
const OUTPUT_ROOM_DIVISOR: u64 = 20;
const OUTPUT_ROOM_MIN: u64 = 1_024;

/// The numbers found in the text of an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) window: Option<u64>,
    pub(super) request: Option<u64>,
}

/// Returns the length of an answer that fits into the window behind the input, if a text in lower case names the
/// shares of input and output in a request that exceeds the window. Returns `None` if the shares do not add up to
/// that, or if there is hardly any room.
pub(super) fn output_room(text: &str, window: u64) -> Option<u32> {
    text.split(super::SEPARATOR).find_map(|sentence| {
        let (input, output) = shares(&lexemes(sentence), window)?;
        let room = window.checked_sub(input).filter(|room| output > *room)?;
        let is_worthwhile = room >= OUTPUT_ROOM_MIN.min(window / OUTPUT_ROOM_DIVISOR).max(1);
        u32::try_from(room).ok().filter(|_| is_worthwhile)
    })
}

/// Returns the tokens of the input and those of the requested answer.
fn shares(lexemes: &[Lexeme<'_>], window: u64) -> Option<(u64, u64)> {
    let (mut input, mut output) = (None, None);
    for (at, lexeme) in lexemes.iter().enumerate() {
        let Lexeme::Number(number) = *lexeme else { continue };
        let (before, rest) = lexemes.split_at_checked(at).unwrap_or_default();
        let after = rest.get(1..).unwrap_or_default();
        // `188240 + 21333 > 200000`
        if let [Lexeme::Symbol('+'), Lexeme::Number(answer), Lexeme::Symbol('>'), ..] = after {
            return Some((number, *answer));
        }
        // `2000 > 4096 - 2104`
        if let [
            Lexeme::Symbol('>'),
            Lexeme::Number(whole),
            Lexeme::Symbol('-'),
            Lexeme::Number(part),
            ..,
        ] = after
            && *whole == window
        {
            return Some((*part, number));
        }
        if meaning(before, after) == Meaning::Window {
            continue;
        }
        // The window may be as large as the requested answer.
        match share(before, after) {
            Some(RequestShare::Output) => output = output.or(Some(number)),
            Some(RequestShare::Input) if number != window => {
                input = Some(input.unwrap_or(0_u64).saturating_add(number));
            }
            Some(RequestShare::Input) | None => {}
        }
    }
    input.zip(output)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestShare {
    Input,
    Output,
}

/// Returns the part of the request that a number is the size of: by the words after it in the same phrase
/// (`4000 for the completion`), else by those before it (`max_tokens (1000)`).
fn share(before: &[Lexeme<'_>], after: &[Lexeme<'_>]) -> Option<RequestShare> {
    let of_word = |lexeme: &Lexeme<'_>| match lexeme {
        Lexeme::Word(word) => {
            let word = word.trim_matches('\'');
            let output = OF_OUTPUT.contains(&word).then_some(RequestShare::Output);
            output.or_else(|| OF_INPUT.contains(&word).then_some(RequestShare::Input))
        }
        Lexeme::Number(_) | Lexeme::Symbol(_) => None,
    };
    let is_in_phrase = |lexeme: &&Lexeme<'_>| match lexeme {
        Lexeme::Word(word) => *word != "and" && *word != "plus",
        Lexeme::Symbol(symbol) => matches!(symbol, '`' | '\'' | '"' | '-'),
        Lexeme::Number(_) => false,
    };
    let next = after.iter().take_while(is_in_phrase).find_map(of_word);
    next.or_else(|| {
        let is_in_phrase = |lexeme: &&Lexeme<'_>| match lexeme {
            Lexeme::Word(word) => *word != "and" && *word != "plus",
            Lexeme::Symbol(symbol) => !matches!(symbol, '.' | ';' | ',' | '>' | '+' | ')'),
            Lexeme::Number(_) => false,
        };
        before.iter().rev().take_while(is_in_phrase).find_map(of_word)
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lexeme<'a> {
    Word(&'a str),
    Number(u64),
    Symbol(char),
}

/// Finds the window and the tokens of the request in a text in lower case. Ignores numbers that are the code or the
/// status of the error.
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
    // A window or a request that is missing is taken from the numbers of unknown meaning.
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

/// Splits a text into words, numbers and symbols. A number may have commas. It may end in `k` or `m`, and only then
/// have decimals. Digits within a word, such as those of a model's name, are not a number.
fn lexemes(text: &str) -> Vec<Lexeme<'_>> {
    let mut lexemes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '0'..='9' => {
                let (lexeme, len) = number_or_word(rest);
                lexemes.push(lexeme);
                len
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

/// Returns the number, or the word after digits, at the beginning of a text, and the length of its text.
fn number_or_word(text: &str) -> (Lexeme<'_>, usize) {
    if let Some((number, len)) = parse_decimals(text) {
        return (Lexeme::Number(number), len);
    }
    let digits = text.find(|c| !is_of_number(c)).unwrap_or(text.len());
    let (number, rest) = text.split_at(digits);
    let (suffix, _) = rest.split_at(rest.find(|c| !is_of_suffix(c)).unwrap_or(rest.len()));
    let lexeme = parse_number(number, suffix).map_or(Lexeme::Word(suffix), Lexeme::Number);
    (lexeme, digits + suffix.len())
}

fn is_of_number(c: char) -> bool {
    c.is_ascii_digit() || c == ','
}

fn is_of_suffix(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '\'')
}

/// Parses a number such as `1.5m` at the beginning of a text. Returns it and the length of its text.
fn parse_decimals(text: &str) -> Option<(u64, usize)> {
    let (whole, rest) = text.split_once('.')?;
    let decimals = rest.find(|c: char| !c.is_ascii_digit())?;
    let (decimals, rest) = rest.split_at_checked(decimals)?;
    let unit = rest.get(..1)?;
    let ends = !rest.get(1..)?.starts_with(is_of_suffix);
    let scale = parse_number("1", unit).filter(|scale| *scale > 1 && ends)?;
    let place = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let part = decimals.parse::<u64>().ok()?.checked_mul(scale)? / place;
    let number = parse_number(whole, unit)?.checked_add(part)?;
    Some((number, whole.len() + 1 + decimals.len() + unit.len()))
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
