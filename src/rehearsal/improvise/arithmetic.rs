//! Finds arithmetic in a prompt: `17 % of 2,350`, `2350 的 17%`, `(3 + 4) * 5`, `7 times 6`.

/// An expression in a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expression {
    /// Where it begins, in bytes.
    pub(super) at: usize,
    /// It, in the usual signs and without thousands separators.
    pub(super) text: String,
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Number(String),
    Operator(char),
    Percent,
    /// `of`, between a percentage and its base.
    Of,
    /// `的`, between a base and its percentage.
    De,
    Function(&'static str),
    Open,
    Close,
    Other,
}

/// Brackets and functions nest no deeper than this.
const DEPTH_MAX: usize = 16;

/// Words that stand for signs; longer ones first where one begins another.
const WORDS: [(&str, Token); 26] = [
    ("multiplied by", Token::Operator('*')),
    ("divided by", Token::Operator('/')),
    ("to the power of", Token::Operator('^')),
    ("the square root of", Token::Function("sqrt")),
    ("square root of", Token::Function("sqrt")),
    ("percent", Token::Percent),
    ("per cent", Token::Percent),
    ("plus", Token::Operator('+')),
    ("minus", Token::Operator('-')),
    ("times", Token::Operator('*')),
    ("over", Token::Operator('/')),
    ("of", Token::Of),
    ("sqrt", Token::Function("sqrt")),
    ("sin", Token::Function("sin")),
    ("cos", Token::Function("cos")),
    ("tan", Token::Function("tan")),
    ("log", Token::Function("log")),
    ("ln", Token::Function("ln")),
    ("abs", Token::Function("abs")),
    ("乘以", Token::Operator('*')),
    ("除以", Token::Operator('/')),
    ("加上", Token::Operator('+')),
    ("减去", Token::Operator('-')),
    ("加", Token::Operator('+')),
    ("减", Token::Operator('-')),
    ("乘", Token::Operator('*')),
];

/// The expressions of a text, in order. A number alone is none, and neither is a date.
pub(super) fn find(lower: &str) -> Vec<Expression> {
    let tokens = tokens(lower);
    let mut found = Vec::new();
    let mut rest = tokens.as_slice();
    while let Some(((at, _), after)) = rest.split_first() {
        let mut parser = Parser { rest, operators: 0, depth: 0 };
        match parser.sum() {
            Some(text) if parser.operators > 0 && !is_date(&text) => {
                found.push(Expression { at: *at, text });
                rest = parser.rest;
            }
            // What parsed but is no expression is passed over whole, or `-05-01` of a date
            // would be found in it.
            Some(_) if parser.rest.len() < rest.len() => rest = parser.rest,
            Some(_) | None => rest = after,
        }
    }
    found
}

/// `2024-05-01` and `24/7` are no sums.
fn is_date(text: &str) -> bool {
    let parts: Vec<&str> = text.split([' ', '-', '/']).filter(|part| !part.is_empty()).collect();
    let digits = parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_digit()));
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    digits && (matches!(lengths.as_slice(), [4, 2, 2] | [2, 2, 4]) || text == "24 / 7")
}

fn tokens(text: &str) -> Vec<(usize, Token)> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(rest) = text.get(at..) {
        let Some(first) = rest.chars().next() else { break };
        let (token, length) = token(rest, first, at.checked_sub(1).map(|b| text.as_bytes().get(b)));
        if let Some(token) = token {
            tokens.push((at, token));
        }
        at += length;
    }
    tokens
}

/// The token that a text begins with (none for a space), and its length.
fn token(rest: &str, first: char, before: Option<Option<&u8>>) -> (Option<Token>, usize) {
    let sign = match first {
        ' ' | '\t' => return (None, 1),
        '+' => Token::Operator('+'),
        '-' | '−' | '–' => Token::Operator('-'),
        '*' | '×' => Token::Operator('*'),
        '/' | '÷' => Token::Operator('/'),
        '^' => Token::Operator('^'),
        '%' | '％' => Token::Percent,
        '(' | '（' => Token::Open,
        ')' | '）' => Token::Close,
        '的' => Token::De,
        '0'..='9' => return number(rest),
        _ => {
            let in_word = before.flatten().is_some_and(u8::is_ascii_alphanumeric);
            return word(rest, first, in_word);
        }
    };
    (Some(sign), first.len_utf8())
}

fn number(rest: &str) -> (Option<Token>, usize) {
    let run =
        rest.find(|c: char| !c.is_ascii_digit() && c != ',' && c != '.').unwrap_or(rest.len());
    let run = rest.get(..run).unwrap_or_default().trim_end_matches([',', '.']);
    // A name with digits in it (`2b`) is no number.
    let glued = rest.get(run.len()..).and_then(|after| after.chars().next());
    if glued.is_some_and(|c| c.is_ascii_alphabetic() || c == '_') || run.matches('.').count() > 1 {
        return (Some(Token::Other), run.len());
    }
    let mut groups = run.split(',').skip(1);
    if run.contains(',')
        && !groups.all(|group| group.split('.').next().is_some_and(|g| g.len() == 3))
    {
        // `1,2` is a list: its first number stands here.
        let first = run.split(',').next().unwrap_or_default();
        return (Some(Token::Number(first.to_owned())), first.len());
    }
    (Some(Token::Number(run.replace(',', ""))), run.len())
}

fn word(rest: &str, first: char, in_word: bool) -> (Option<Token>, usize) {
    let fits = |name: &str| {
        let ends = || {
            let next = rest.as_bytes().get(name.len());
            next.is_none_or(|b| !b.is_ascii_alphanumeric())
        };
        rest.starts_with(name) && (!name.is_ascii() || (!in_word && ends()))
    };
    match WORDS.iter().find(|(name, _)| fits(name)) {
        Some((name, token)) => (Some(token.clone()), name.len()),
        None => (Some(Token::Other), first.len_utf8()),
    }
}

/// A recogniser that writes the expression anew as it goes.
struct Parser<'a> {
    rest: &'a [(usize, Token)],
    operators: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.rest.first().map(|(_, token)| token)
    }

    fn skip(&mut self) {
        self.rest = self.rest.get(1..).unwrap_or_default();
    }

    /// Terms with operators between them. An operator without a term after it is left.
    fn sum(&mut self) -> Option<String> {
        let mut text = self.term()?;
        while let Some(Token::Operator(sign)) = self.peek().cloned() {
            let (before, operators) = (self.rest, self.operators);
            self.skip();
            let Some(term) = self.term() else {
                (self.rest, self.operators) = (before, operators);
                break;
            };
            text = format!("{text} {sign} {term}");
            self.operators += 1;
        }
        Some(text)
    }

    fn term(&mut self) -> Option<String> {
        if self.depth == DEPTH_MAX {
            return None;
        }
        self.depth += 1;
        let term = self.term_here();
        self.depth -= 1;
        term
    }

    /// A number, a percentage of a number, a function, or what stands in brackets.
    fn term_here(&mut self) -> Option<String> {
        match self.peek()?.clone() {
            Token::Number(number) => {
                self.skip();
                Some(self.percentage(number))
            }
            Token::Operator('-') => {
                self.skip();
                let Some(Token::Number(number)) = self.peek().cloned() else { return None };
                self.skip();
                Some(format!("-{number}"))
            }
            Token::Open => {
                self.skip();
                let inner = self.sum()?;
                (self.peek() == Some(&Token::Close)).then(|| self.skip())?;
                Some(format!("({inner})"))
            }
            Token::Function(name) => {
                self.skip();
                let inner = self.term()?;
                self.operators += 1;
                let bare = inner.strip_prefix('(').and_then(|i| i.strip_suffix(')'));
                Some(format!("{name}({})", bare.unwrap_or(&inner)))
            }
            Token::Operator(_)
            | Token::Percent
            | Token::Of
            | Token::De
            | Token::Close
            | Token::Other => None,
        }
    }

    /// What follows a number: `% of N`, or `的 P%`, or nothing.
    fn percentage(&mut self, number: String) -> String {
        let tokens: Vec<&Token> = self.rest.iter().take(3).map(|(_, token)| token).collect();
        let (text, used) = match tokens.as_slice() {
            [Token::Percent, Token::Of | Token::De, Token::Number(base)] => {
                (format!("{number}% of {base}"), 3)
            }
            [Token::De, Token::Number(part), Token::Percent] => (format!("{part}% of {number}"), 3),
            [Token::Percent, ..] => {
                self.skip();
                return format!("{number}%");
            }
            _ => return number,
        };
        self.operators += 1;
        self.rest = self.rest.get(used..).unwrap_or_default();
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_arithmetic_and_nothing_else() {
        for (text, expect) in [
            ("what is 17 % of 2,350?", &["17% of 2350"][..]),
            ("2350 的 17% 是多少？", &["17% of 2350"]),
            ("2350的17%是多少", &["17% of 2350"]),
            ("17 percent of 80.5, please", &["17% of 80.5"]),
            ("2+2 and 3 * (4 - 1.5)", &["2 + 2", "3 * (4 - 1.5)"]),
            ("seven is not 7 times 6", &["7 * 6"]),
            ("12 divided by 4", &["12 / 4"]),
            ("3 加 4 等于多少，6乘以7呢", &["3 + 4", "6 * 7"]),
            ("the square root of 144", &["sqrt(144)"]),
            ("sqrt(2) + 1", &["sqrt(2) + 1"]),
            ("1,234,567 minus 1", &["1234567 - 1"]),
            ("2^10", &["2 ^ 10"]),
            ("-3 + 5", &["-3 + 5"]),
            ("call 5 times", &[]),
            ("on 2024-05-01 at 12:30", &[]),
            ("open 24/7, version 1.2.3 and 50 %", &[]),
            ("10 items, 20 things", &[]),
            ("numbers 1,2,3", &[]),
            ("", &[]),
        ] {
            let found: Vec<String> = find(text).into_iter().map(|e| e.text).collect();
            assert_eq!(found, expect, "{text}");
        }
        assert_eq!(find("is 1+1?")[0].at, 3);
        assert_eq!(find(&"(".repeat(100_000)), []);
        assert_eq!(find(&"sqrt ".repeat(10_000)), []);
    }
}
